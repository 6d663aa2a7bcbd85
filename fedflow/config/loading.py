"""``params.yaml``, read and checked, and the changes that a run makes."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from fedflow.config.changing import changed, read_yaml, with_registered_names
from fedflow.config.params import Params
from fedflow.config.sections import MAY_BE_EMPTY
from fedflow.errors import BadInput, FedflowError
from fedflow.settings import option

PARAMS = Path("params.yaml")


class Loaded(Params):
    """``params.yaml`` after ``changes``; ``file`` tells runs with changed settings from others."""

    file: "Loaded | None" = option(None, "the file without changes; null if it needs them to be valid")
    changes: list[str] = option(factory=list, doc="the changes as text, for Prefect")

    @property
    def plain(self) -> "Loaded | None":
        """The file without changes, if it is valid."""
        return self.file if self.file or self.changes else self

    def replace(self, *changes: str, **sections: Any) -> Self:
        """A copy with other sections, which ``changes`` describe. Raises `BadInput`."""
        return replace(self, **sections, file=self.plain, changes=[*self.changes, *changes])


class Changes(list[str]):
    """Changes of ``params.yaml`` as text, and the resulting settings.

    The parameter ``settings`` of a flow in the same process: Prefect records the text, and `load_params` does
    not parse it again.
    """

    def __init__(self, params: Loaded) -> None:
        super().__init__(params.changes)
        self.params = params


def load_params(path: Path = PARAMS, changes: Sequence[str] = ()) -> Loaded:
    """Read and check ``params.yaml``, after ``changes`` such as ``methods.ifca.clusters=4``.

    Raises `FedflowError` (no such file, not YAML) or `BadInput` (a field that is not accepted).
    """
    if isinstance(changes, Changes):
        return changes.params
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise BadInput(str(path), values, "a mapping of sections")
    unchanged, plain = with_registered_names(values), None
    values, changes = changed(unchanged, changes)
    if changes:
        with contextlib.suppress(BadInput):  # the file may need the changes to be valid
            plain = Loaded.parse(unchanged)
    Params.check_names(values, "")
    loaded = Loaded.parse({**values, "file": plain, "changes": changes})
    for entry in loaded.data.values():
        entry.start_from(path.parent)
    return loaded


def check_dvc(root: Path) -> None:
    """Raise `FedflowError` if ``params.yaml`` lacks a list of ``grid`` that ``dvc.yaml`` needs."""
    file = root / PARAMS
    grid = read_yaml(file).get("grid") if (root / "dvc.yaml").exists() else None
    for name in MAY_BE_EMPTY:
        if isinstance(grid, Mapping) and name not in grid:
            raise FedflowError(f"{file}: dvc.yaml needs the list grid.{name}; add `{name}: []` under grid")
    methods = grid.get("methods") if isinstance(grid, Mapping) else None
    registered = load_params(file).grid.methods if isinstance(methods, list) else []
    for name, ours in zip(methods or [], registered):
        if name != ours:
            raise BadInput(f"{file}: grid.methods", name, f"{ours!r}: dvc.yaml makes folders of them")
