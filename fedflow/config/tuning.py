"""The section ``tuning`` of ``params.yaml``."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from fedflow.errors import BadInput
from fedflow.metrics.table import METRICS, yardstick_first
from fedflow.settings import Settings, option

MEASURES = {metric.measure: metric.name for metric in yardstick_first(METRICS.values()) if metric.measure}


class Tuning(Settings):
    """The settings that `fedflow tune` tries, and the measure."""

    section = "tuning"
    validation: float = option(0.2, "share of a client's training samples that is held out", gt=0, lt=1)
    measure: str = option(
        "local",
        "the column of the report to tune for; tuned = after fine-tuning, worst = worst tenth of the clients",
        choices=tuple(MEASURES),
    )
    rounds: int | None = option(None, "rounds of each try; null = run.rounds", ge=1)
    seed: int = option(1000, "seed of the tries; do not use a reported seed", ge=0)
    grid: dict = option(
        factory=lambda: {"training.lr": [0.003, 0.01, 0.03, 0.1]},
        doc="setting of a method -> values to try, the same for all methods",
    )
    methods: dict = option(
        factory=dict, doc="method -> further settings with values, or values in place of the grid's"
    )
    search: str = option(
        "grid",
        "which combinations are tried: grid = all; random, tpe (Optuna) = `trials` of them, with numbers "
        "between the smallest and the largest value listed",
        choices=("grid", "random", "tpe"),
    )
    trials: int = option(20, "tries of a method with search: random or tpe, the same for all methods", ge=1)
    widen: int = option(3, "how often a grid may be widened while its best value is at an edge", ge=0)

    def validate(self) -> None:
        for name, grid in {"grid": self.grid, **{f"methods.{m}": g for m, g in self.methods.items()}}.items():
            lists = isinstance(grid, Mapping) and all(isinstance(v, list) and v for v in grid.values())
            if not lists or not grid:
                raise BadInput(
                    f"tuning.{name}", grid, "a mapping of at least one setting to a list of values"
                )
            if "run.rounds" in grid:
                raise BadInput(
                    f"tuning.{name}", "run.rounds", "other settings: tuning.rounds gives the rounds"
                )

    def grid_of(self, *names: str) -> dict[str, list]:
        """The values to try of every setting: the grid, then the entries of these methods."""
        grid = self.grid
        for name in names:
            grid = grid | self.methods.get(name, {})
        return {name: [_number(value) for value in values] for name, values in grid.items()}


def combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of one value of each setting."""
    for values in product(*grid.values()):
        yield dict(zip(grid, values))


def _number(value: Any) -> Any:
    """A number for text such as 1e-3, as YAML reads it."""
    with contextlib.suppress(ValueError):
        return float(value) if isinstance(value, str) else value
    return value
