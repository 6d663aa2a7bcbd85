"""Plug-ins: modules of other packages that register methods, schemes or procedures when they are imported.

A package names its module under the entry point ``fedflow.plugins``; `fedflow new method` writes one.
"""

from importlib.metadata import entry_points

from fedflow.errors import FedflowError, reason

GROUP = "fedflow.plugins"


def load_plugins() -> None:
    """Import the modules of all installed plug-ins. Raises `FedflowError` for one that fails."""
    for point in sorted(entry_points(group=GROUP)):
        try:
            point.load()
        except Exception as error:
            failed = f"the plug-in {point.name} cannot be imported ({type(error).__name__}: {reason(error)})"
            raise FedflowError(f"{failed}; fix {point.value}, or uninstall its package") from error
