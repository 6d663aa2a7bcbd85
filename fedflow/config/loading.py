"""``params.yaml``, read and checked, and the changes that a run makes."""

import contextlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from fedflow.config.changing import changed, read_yaml, with_registered_names
from fedflow.config.params import Params
from fedflow.config.sections import MAY_BE_EMPTY
from fedflow.errors import BadInput, FedflowError
from fedflow.settings import option, written

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
    try:
        loaded = Loaded.parse({**values, "file": plain, "changes": changes})
    except BadInput as error:
        section, _, name = error.field.rpartition(".")
        scheme = [change for change in changes if change.startswith(f"{section}.scheme=")]
        if error.value != name or not scheme:
            raise
        accepted = f"{error.accepted}; to replace the whole entry, --set '{section}={{...}}'"
        raise BadInput(error.field, name, accepted, error.guess) from None
    for entry in loaded.data.values():
        entry.start_from(path.parent)
    return loaded


def warn_of_kept(params: Loaded, runs: Iterable[tuple[str, ...]]) -> None:
    """Warn, in one line, of changes such as ``training.lr=0.5`` that the entry of a method overrides.

    ``runs`` are pairs of a partition and a method.
    """
    names = [change.partition("=")[0] for change in params.changes]
    shared, kept = {"training": params.training, "run": params.run}, dict[str, list[str]]()
    for partition, method in dict.fromkeys(runs):
        ours = {"training": params.method(method, partition)[1], "run": params.run_of(method, partition)}
        entries = {method, params.registered(method)}
        for section, *path in (name.split(".") for name in dict.fromkeys(names)):
            name = ".".join([section, *path])
            if not path or section not in ours or {f"methods.{entry}.{name}" for entry in entries} & {*names}:
                continue
            used = _at(ours[section].as_dict(), path)
            if used != _at(shared[section].as_dict(), path):
                kept.setdefault(name, []).append(f"{method} keeps {written(used)}")
    if kept:
        methods = "; ".join(f"--set {name}: {', '.join(dict.fromkeys(kept[name]))}" for name in kept)
        warnings.warn(f"{methods}; use --set methods.NAME.{next(iter(kept))}=VALUE", stacklevel=2)


def _at(values: Any, path: Sequence[str]) -> Any:
    """The value at a path in nested mappings, or the value that ends the path early."""
    for name in path:
        values = values.get(name) if isinstance(values, Mapping) else values
    return values


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
