"""Warnings of ``--set`` changes that a command does not read."""

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedflow.config import Loaded
    from fedflow.stages.grid import Cell

NAMED = ("central", "data", "methods", "models", "partitions", "procedures", "tuned")  # sections of entries


def warn_of_unused(params: "Loaded", user: str, used: Iterable[str], *without: str) -> None:
    """Warn of changes that ``user`` does not read: of entries not in ``used``, or in sections ``without``."""
    read = {"grid.redraw", *used}
    unused: list[str] = []
    for name in (change.partition("=")[0].replace('"', "") for change in params.changes):
        section, _, rest = name.partition(".")
        if section not in without and not (section in NAMED and rest):
            continue
        if not any(f"{name}.".startswith(f"{entry}.") or entry.startswith(f"{name}.") for entry in read):
            unused.append(name)
    if unused:
        warnings.warn(f"--set {', '.join(unused)}: not used by {user}", stacklevel=2)


def entries(params: "Loaded", cells: Sequence["Cell"]) -> set[str]:
    """The entries that runs and procedures read, such as "methods.ditto"."""
    used = set[str]()
    for cell in cells:
        used |= {f"{section}.{name}" for name in cell.datasets for section in ("data", "models")}
        used |= network_entries(params, cell.networks)
        used |= {f"partitions.{name.partition('@')[0]}" for name in cell.partitions}
        if len(cell.names) == 1:
            used |= {f"procedures.{name}" for name in cell.names}
            continue
        partition, method = cell.names
        for name in (method, params.registered(method)):
            used |= {f"methods.{name}", f"tuned.{partition}.{name}"}
    return used


def network_entries(params: "Loaded", names: Iterable[str]) -> set[str]:
    """The entries that central networks and their teachers read."""
    networks = params.networks(*names)
    datasets = {params.network(name).dataset for name in networks}
    named = {f"{section}.{name}" for name in datasets for section in ("data", "models")}
    return named | {f"central.{name}" for name in networks}
