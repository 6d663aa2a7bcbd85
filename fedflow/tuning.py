"""Tuning: each method's grid of settings is tried with a part of the training data held out.

The rule is the same for every method. A share ``tuning.validation`` of every client's training samples is
held out; every combination of the grid is run on the rest; the one whose served models have the
highest mean accuracy over clients on the held-out samples is chosen, the first of equals. Test data
play no part. What is chosen stands in ``params.yaml`` under ``tuned``, by partition and method.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from filelock import FileLock

from fedflow.errors import BadInput, FedflowError, RoundFailed
from fedflow.settings import Settings, option

if TYPE_CHECKING:  # it holds the settings below
    from fedflow.config import Params


class Tuning(Settings):
    """What `fedflow tune` tries, and how it judges."""

    section = "tuning"
    validation: float = option(0.2, "share of a client's training samples that is held out", gt=0, lt=1)
    rounds: int | None = option(None, "rounds of each try; nothing = run.rounds", ge=1)
    seed: int = option(1000, "seed of the tries: not one of those that are reported", ge=0)
    grid: dict = option(
        factory=lambda: {"training.lr": [0.003, 0.01, 0.03, 0.1]},
        doc="setting of a method -> values to try, the same for all methods",
    )
    methods: dict = option(factory=dict, doc="method -> further settings with values, or others than in grid")

    def validate(self) -> None:
        for name, grid in {"grid": self.grid, **{f"methods.{m}": g for m, g in self.methods.items()}}.items():
            lists = isinstance(grid, Mapping) and all(isinstance(v, list) and v for v in grid.values())
            if not lists:
                raise BadInput(f"tuning.{name}", grid, "a mapping of settings to lists of values")

    def tries(self, method: str) -> Iterator[dict[str, Any]]:
        """Every combination of settings of the method, such as ``{"training.lr": 0.1, "mu": 1}``."""
        grid = self.grid | self.methods.get(method, {})
        for values in product(*grid.values()):
            yield dict(zip(grid, values))


def tune(
    params: "Params",
    partition: str,
    federate: Callable[..., dict[str, Any]],
    methods: Sequence[str],
    settings: Sequence[str],
    root: Path,
    write: bool = True,
) -> dict[str, dict[str, Any]]:
    """Try the grid of every method by ``federate`` (the flow, or `fedflow.inline`); returns what is chosen.

    Every try is a recorded run of the partition ``<name>-validation``; its scores are listed in
    ``tuning/<partition>.csv``. ``write`` puts what is chosen under ``tuned`` in ``params.yaml``.
    """
    tuning, home = params.tuning, root / "tuning"
    scored: list[dict[str, Any]] = []
    chosen: dict[str, dict[str, Any]] = {}
    for method in methods:
        tries, scores = list(tuning.tries(method)), []
        for tried in tries:
            entry = params.partitions[partition]
            changes = [*settings, *overrides(entry, partition, method, tuning, tried)]
            name = ",".join(f"{field}={value}" for field, value in tried.items())
            try:
                metrics = federate(
                    f"{partition}-validation", method, tuning.seed, settings=changes, root=str(root),
                    out=str(home / partition / method / name), sweep="tune",
                )  # fmt: skip
                scores.append(metrics["local_accuracy"])
            except RoundFailed as error:  # it diverged
                print(f"{method}, {name}: {error}")
                scores.append(None)
            scored.append({"method": method, **tried, "validation_accuracy": scores[-1]})
        chosen[method] = choose(tries, scores)
        if write:
            write_choice(root / "params.yaml", partition, method, chosen[method])
        _write_scores(home / f"{partition}.csv", method, scored)
    return chosen


def _write_scores(path: Path, method: str, scored: list[dict[str, Any]]) -> None:
    """Put the scores of a method in place of its older ones."""
    import pandas as pd

    table = pd.DataFrame([row for row in scored if row["method"] == method])
    if path.exists():
        older = pd.read_csv(path)
        table = pd.concat([older[older.method != method], table], ignore_index=True)
    table.to_csv(path, index=False)


def overrides(
    entry: Mapping[str, Any], partition: str, method: str, tuning: Tuning, tried: dict
) -> list[str]:
    """The changes to params.yaml that make one try: the partition ``<name>-validation``, and the settings."""
    held = dict(entry) | {"validation": tuning.validation, "newcomers": 0.0}
    changes = [f'partitions."{partition}-validation"={yaml.safe_dump(held, default_flow_style=True)}']
    changes += [f"run.rounds={tuning.rounds}"] if tuning.rounds else []
    return changes + [f"methods.{method}.{name}={value}" for name, value in tried.items()]


def choose(tries: Sequence[dict[str, Any]], scores: Sequence[float | None]) -> dict[str, Any]:
    """The settings with the highest score; those that diverged (None, NaN) do not count."""
    values = np.array([np.nan if score is None else score for score in scores], dtype=float)
    if np.isnan(values).all():
        raise FedflowError("tuning: every try diverged; try smaller values of training.lr")
    return tries[int(np.nanargmax(values))]


def write_choice(params: Path, partition: str, method: str, chosen: Mapping[str, Any]) -> None:
    """Put ``chosen`` under ``tuned`` in params.yaml; comments and order stay."""
    from ruamel.yaml import YAML

    editor = YAML()
    editor.width, editor.preserve_quotes = 110, True
    lock = params.parent / ".fedflow" / "params.lock"
    lock.parent.mkdir(exist_ok=True)
    with FileLock(lock):  # others may be tuning other partitions
        _edit(params, editor, partition, method, chosen)


def _edit(params: Path, editor: Any, partition: str, method: str, chosen: Mapping[str, Any]) -> None:
    document = editor.load(params.read_text())
    if document.get("tuned") is None:
        document["tuned"] = {}
    section = document["tuned"].setdefault(partition, {}).setdefault(method, {})
    for name, value in chosen.items():
        *parents, last = name.split(".")
        place = section
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    partial = params.with_suffix(".partial")
    with partial.open("w") as file:
        editor.dump(document, file)
    partial.replace(params)
