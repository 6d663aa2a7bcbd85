"""Plug-ins: modules of other packages that register methods, schemes or procedures when they are imported.

A package names its module under the entry point ``fedflow.plugins``; `fedflow new method` writes one.
"""

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from traceback import walk_tb

from fedflow.errors import FedflowError, reason

GROUP = "fedflow.plugins"


class Failures:
    """Errors of plug-ins by name, if they are collected (`fedflow doctor`) and not raised."""

    collected: dict[str, str] | None = None


class Loading:
    """``now`` while plug-ins are imported, when modules above `fedflow.methods` may be half imported."""

    now = False


def load_plugins() -> None:
    """Import the modules of all installed plug-ins. Raises `FedflowError` for one that fails."""
    for point in sorted(entry_points(group=GROUP)):
        Loading.now = True
        try:
            point.load()
        except (Exception, SystemExit) as error:
            why = f"cannot be imported ({type(error).__name__}: {reason(error)}{_line(error, point)})"
            fix = f"fix {point.value}{_advice(error)}, or uninstall its package"
            if Failures.collected is None:
                raise FedflowError(f"the plug-in {point.name} {why}; {fix}") from error
            Failures.collected[point.name] = f"{why}; {fix}"
        finally:
            Loading.now = False


def plugins() -> set[str]:
    """The top-level modules of all installed plug-ins."""
    return {point.value.partition(":")[0].partition(".")[0] for point in entry_points(group=GROUP)}


def _line(error: BaseException, point: EntryPoint) -> str:
    """The last line of a plug-in that led to an error, as "; mine.py, line 3"."""
    package = point.module.partition(".")[0]
    lines = [
        (frame.f_code.co_filename, line)
        for frame, line in walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package
    ]
    return f"; {Path(lines[-1][0]).name}, line {lines[-1][1]}" if lines else ""


def _advice(error: BaseException) -> str:
    """Advice for a failed import from a module of fedflow, which may have moved."""
    inside = isinstance(error, ImportError) and (error.name or "").startswith("fedflow.")
    return " (plug-ins import names from `fedflow` alone: docs/api.md)" if inside else ""
