"""``params.yaml``, read and checked, and the changes that a run makes."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from fedflow.config.changing import changed, read_yaml, with_registered_names
from fedflow.config.params import Params
from fedflow.config.sections import MAY_BE_EMPTY
from fedflow.errors import BadInput, FedflowError
from fedflow.settings import option

PARAMS = Path("params.yaml")


class Loaded(Params):
    """``params.yaml`` after ``changes``; runs with its own settings are told from others by ``file``."""

    file: "Loaded | None" = option(None, "the file without changes; null if it needs them to be valid")
    changes: list[str] = option(factory=list, doc="the changes, as text for Prefect's record")

    @property
    def plain(self) -> "Loaded | None":
        """The file without changes, if it is valid."""
        return self.file if self.file or self.changes else self

    def replace(self, *changes: str, **sections: Any) -> Self:
        """A copy with other sections, which ``changes`` describe. Raises `BadInput`."""
        return replace(self, **sections, file=self.plain, changes=[*self.changes, *changes])


class Changes(list[str]):
    """Changes of ``params.yaml`` as text, and the settings that they gave.

    The parameter ``settings`` of a flow that is called in the same process: Prefect records the text, and
    `load_params` does not parse them again.
    """

    def __init__(self, params: Loaded) -> None:
        super().__init__(params.changes)
        self.params = params


def load_params(path: Path = PARAMS, changes: Sequence[str] = ()) -> Loaded:
    """Read and check ``params.yaml``, after ``changes`` such as ``methods.ifca.clusters=4``.

    `Changes` are already loaded.
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
    known = values if plain is None else _reused(values, unchanged, plain)
    return Loaded.parse({**known, "file": plain, "changes": changes})


def check_dvc(root: Path) -> None:
    """Raise `FedflowError` if ``params.yaml`` lacks a list of ``grid`` that ``dvc.yaml`` needs."""
    file = root / PARAMS
    grid = read_yaml(file).get("grid") if (root / "dvc.yaml").exists() else None
    for name in MAY_BE_EMPTY:
        if isinstance(grid, Mapping) and name not in grid:
            raise FedflowError(f"{file}: dvc.yaml needs the list grid.{name}; add `{name}: []` under grid")
    methods = grid.get("methods") if isinstance(grid, Mapping) else None
    known = load_params(file).grid.methods if isinstance(methods, list) else []
    for name, ours in zip(methods or [], known):
        if name != ours:
            raise BadInput(f"{file}: grid.methods", name, f"{ours!r}: dvc.yaml makes folders of them")


def _same(one: Any, other: Any) -> bool:
    """Equal in value and type, at every depth: 1 is not true."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _reused(values: Mapping[str, Any], known: Mapping[str, Any], params: Any) -> dict[str, Any]:
    """``values``, reusing those of ``params``, parsed from ``known``, that are equal in both."""
    get = params.get if isinstance(params, Mapping) else partial(getattr, params)

    def one(name: str, value: Any) -> Any:
        if name not in known:
            return value
        if _same(value, known[name]):
            return get(name)
        both = (
            isinstance(value, Mapping) and isinstance(known[name], Mapping) and isinstance(get(name), Mapping)
        )
        return _reused(value, known[name], get(name)) if both else value

    return {name: one(name, value) for name, value in values.items()}
