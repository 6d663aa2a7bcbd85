"""The same work in other simulators: one driver and one list of pinned versions each."""
