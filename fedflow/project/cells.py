"""The runs and outcomes of the grid that `dvc repro` would make, computed before it.

`fedflow repro` computes them into folders that are named by the content of everything that a cell depends
on, and commits them as results of their stages. A stage that DVC runs before that, the same command as ever,
finds its result there. Needs neither PyTorch nor the settings.
"""

import hashlib
import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedflow.errors import FedflowError
from fedflow.project.yaml_text import YamlError, yaml_value

DVC, LOCK = "dvc.yaml", "dvc.lock"
READY = Path(".fedflow") / "cells"
RUN, OUTCOME = "federate", "procedure"  # stages with a matrix
COMMANDS = {  # that `fedflow repro` replaces; a stage with another one is left to DVC
    RUN: "fedflow run --partition ${item.partition} --method ${item.method} --seed ${item.seed}"
    " --sweep repro",
    OUTCOME: "fedflow procedure ${item.procedure} --seed ${item.seed} --sweep repro",
}


@dataclass(frozen=True)
class GridCell:
    """One run or outcome of the grid, as the matrix of a stage of dvc.yaml names it."""

    root: Path
    kind: str
    item: tuple[tuple[str, str], ...]  # partition, method, seed; or procedure, seed
    files: tuple[str, ...]  # that it depends on
    results: str
    command: str

    @property
    def stage(self) -> str:
        return f"{self.kind}@{'-'.join(value for _, value in self.item)}"

    @property
    def title(self) -> str:
        *names, seed = (value for _, value in self.item)
        return " · ".join([*names, f"seed {seed}"])

    @property
    def ready(self) -> Path:
        """Where its result waits for DVC; another folder after any change. `FedflowError` without a file."""
        content = hashlib.sha256(self.stage.encode())
        for file in self.files:
            content.update(_read(self.root / file))
        return self.root / READY / content.hexdigest()[:32]

    def take(self) -> Path | None:
        """Copy its result, if it waits, to the results folder; returns that.

        `tidy` deletes it once DVC has it: nothing is lost if this process is killed.
        """
        ready, results = self.ready, self.root / self.results
        if not ready.is_dir():
            return None
        shutil.rmtree(results, ignore_errors=True)
        return Path(shutil.copytree(ready, results))

    def changed(self, lock: dict[str, Any]) -> bool:
        """Whether DVC, with this content of dvc.lock, would run it."""
        of_stage = lock.get(self.stage, {})
        known = {each["path"]: each.get("md5") for each in of_stage.get("deps", [])}
        files = {file: _md5(self.root / file) for file in self.files}
        return (of_stage.get("cmd"), known) != (self.command, files)


def cells(root: Path) -> list[GridCell]:
    """Every cell of the grid, except those of stages with another command than `COMMANDS`.

    `FedflowError` if the project has no dvc.yaml or no such grid.
    """
    stage, params = (_mapping(root / file) for file in (DVC, "params.yaml"))
    try:
        return [
            GridCell(
                root,
                kind,
                item,
                tuple(_filled(file, item) for file in stage["stages"][kind]["deps"]),
                os.path.commonpath([_filled(file, item) for file in stage["stages"][kind]["outs"]]),
                _filled(stage["stages"][kind]["cmd"], item),
            )
            for kind, command in COMMANDS.items()
            if stage["stages"][kind]["cmd"] == command
            for item in _items(stage["stages"][kind]["matrix"], params["grid"])
        ]
    except (KeyError, TypeError, AttributeError) as error:
        stages = f"stages {RUN} and {OUTCOME} with a matrix of params.yaml's grid"
        raise FedflowError(f"{root / DVC}: expected {stages} ({error})") from error


def _items(matrix: dict[str, str], grid: dict[str, Any]) -> Iterator[tuple[tuple[str, str], ...]]:
    """The values of a matrix such as ``seed: ${grid.seeds}``; a section that the grid lacks is empty."""
    lists = [grid.get(value.strip("${}").removeprefix("grid."), []) for value in matrix.values()]
    if not all(isinstance(each, list) for each in lists):
        raise TypeError("a section of the grid is no list")
    for values in itertools.product(*lists):
        yield tuple(zip(matrix, map(str, values), strict=True))


def cell(root: Path, **item: Any) -> GridCell | None:
    """The cell with these values; None if the grid has none, or there is no dvc.yaml."""
    if not (root / DVC).exists():
        return None
    wanted = {name: str(value) for name, value in item.items()}
    return next((each for each in cells(root) if dict(each.item) == wanted), None)


def changed_cells(root: Path) -> list[GridCell]:
    """The cells that DVC would run."""
    lock = _mapping(root / LOCK).get("stages", {}) if (root / LOCK).exists() else {}
    return [each for each in cells(root) if each.changed(lock)]


def tidy(root: Path) -> None:
    """Delete results that DVC has, and those of settings that have changed since."""
    wanted = {each.ready for each in changed_cells(root)}
    for folder in _folders(root / READY):
        if folder not in wanted:
            shutil.rmtree(folder)


def _folders(folder: Path) -> Iterator[Path]:
    yield from folder.iterdir() if folder.is_dir() else ()


def _filled(text: str, item: tuple[tuple[str, str], ...]) -> str:
    for name, value in item:
        text = text.replace(f"${{item.{name}}}", value)
    return text


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise FedflowError(f"{file}: {error.strerror}; `fedflow repro` makes it") from error


def _md5(file: Path) -> str:
    return hashlib.md5(_read(file), usedforsecurity=False).hexdigest()


def _mapping(file: Path) -> dict[str, Any]:
    try:
        found = yaml_value(_read(file), exact=False)
    except YamlError as error:
        raise FedflowError(f"{file}, {error}") from error
    if not isinstance(found, dict):
        raise FedflowError(f"{file}: not a mapping")
    return found
