from collections import defaultdict

import pytest
from profiles import representatives
from support import images

from fedflow.data import Dataset
from fedflow.simulation.federation import Federation


@pytest.fixture(scope="session")
def federation(digits: Dataset) -> Federation:
    """Eight clients with real images and a small dense network."""
    return images(digits)


@pytest.hookimpl(tryfirst=True)  # before the selection by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests marked ``by_profile`` to `make test-full`, except for one method of every profile.

    The marker may name methods that stay, in ``also``, and a function for the ``kind`` of a method instead.
    """
    tests = defaultdict(list)
    for item in items:
        if marker := item.get_closest_marker("by_profile"):
            tests[item.nodeid.split("[")[0]].append((item, item.callspec.params["name"], marker.kwargs))  # type: ignore[attr-defined]
    for cases in tests.values():
        asked = dict(cases[0][2])
        stay = {*asked.pop("also", ())} | representatives((name for _, name, _ in cases), **asked)
        for item, name, _ in cases:
            if name not in stay:
                item.add_marker(pytest.mark.full)
