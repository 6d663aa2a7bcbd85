"""A finished run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import pandas as pd

from fedflow.finished.reading import Columns, check_columns, read_parquet, read_table
from fedflow.metrics.table import diagnostics

P = ParamSpec("P")
T = TypeVar("T")
SHARES = ("accuracy", "confidence")  # columns of several files


@dataclass(frozen=True)
class Run:
    """A finished run: settings, ``metrics.json``, ``rounds.csv`` and clients.

    Other files belong to features, whose readers use `table` or `file`.
    """

    folder: Path
    metrics: dict[str, Any]
    params: dict[str, Any]  # `SECTIONS` of settings, and the central networks in use
    rounds: pd.DataFrame  # a row per round; bytes are cumulative, accuracies empty where not evaluated
    clients: pd.DataFrame  # a row per client that took part
    variant: str = ""  # runs of the same method and variant are averaged
    label: str = ""  # the name that is printed
    repeated: str = ""  # another folder with the same settings, data and seed, which is not shown
    committed: Mapping[str, str] = field(default_factory=dict)  # its row of results.csv, if it ran elsewhere
    memory: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # of `once`

    def file(self, name: str) -> Path | None:
        """The path of a file that only some runs have, or None if this one does not."""
        return self.folder / name if name in self.metrics.get("files", ()) else None

    def table(self, name: str, columns: Columns, words: Sequence[str] = ()) -> pd.DataFrame:
        """A Parquet file that only some runs have, read at every call; no rows without a file.

        ``columns`` are numeric, ``words`` text. Raises `FedflowError` for a damaged file, and for clients,
        rounds and shares out of range.
        """
        path = self.file(name)
        if path is None:
            return _no_rows(*(() if callable(columns) else columns), *words)
        table = read_table(path, read_parquet, columns, words)
        ranges = {"client": (0, self.metrics["clients"] - 1), "round": (1, self.metrics["rounds"])}
        check_columns(path, table, ranges | dict.fromkeys(SHARES, (0, 1)))
        return table

    def has_rounds(self, column: str) -> bool:
        """True if some round has a value in ``column``."""
        return not np.isnan(self.numbers(column)).all()

    def numbers(self, column: str) -> np.ndarray:
        """A column of ``rounds`` [rounds], NaN if there is none."""
        missing = np.full(len(self.rounds), np.nan)
        return self.rounds[column].to_numpy(float) if column in self.rounds else missing

    @property
    def diagnostics(self) -> list[str]:
        """Columns of ``rounds`` with the method's diagnostics."""
        return diagnostics(self.rounds.columns)

    @property
    def procedure(self) -> str:
        """The registered procedure if this is a row of an outcome, or else an empty text."""
        return self.params["procedure"]["name"] if "procedure" in self.params else ""

    @property
    def partition(self) -> str:
        return self.metrics["partition"]

    @property
    def division(self) -> str:
        """The partition as the run's seed drew it, by name (`Grid.redraw`)."""
        return self.metrics.get("division", self.partition)

    @property
    def redrawn(self) -> bool:
        """True if runs with other seeds have other divisions."""
        return "division" in self.metrics

    @property
    def method(self) -> str:
        return self.metrics["method"]

    @property
    def seed(self) -> int:
        return self.metrics["seed"]

    @property
    def settings(self) -> str:
        """The digest of `params`."""
        return self.metrics["settings"]


@cache
def _no_rows(*columns: str) -> pd.DataFrame:
    return pd.DataFrame(columns=[*columns])


def once(of: Callable[Concatenate[Run, P], T]) -> Callable[Concatenate[Run, P], T]:
    """Cache in the run what ``of`` returns for it and the other arguments."""

    @wraps(of)
    def cached(run: Run, *args: P.args, **options: P.kwargs) -> T:
        key = (of, *args, *options.items())
        if key not in run.memory:
            run.memory[key] = of(run, *args, **options)
        return run.memory[key]

    return cached
