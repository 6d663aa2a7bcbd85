"""The results of a run: of every round, and of its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import Tensor

from fedflow.errors import FedflowError
from fedflow.files import Write

if TYPE_CHECKING:  # plug-ins import this module
    from fedflow.simulation.evaluation import Scores

PERSONAL_CLIENTS = 1000  # most personal models and kept vectors in an outcome, of the first clients
PERSONAL_BYTES = 1 << 30  # and their most bytes
SERIES_CLIENTS = 100  # most clients in a series: the first ones


@dataclass
class RoundReport:
    """Report of one round (numbered from 1).

    ``values`` has a number for every measured metric, by name (`fedflow.metrics.table`). Diagnostics of the
    method are ``method/<name>`` (of the server step) and ``client/<name>/mean``, ``/min``, ``/max`` (over the
    cohort). Bytes and clock are totals since the start. ``series`` has numbers of the first `SERIES_CLIENTS`
    clients, NaN = none: diagnostics that are arrays over clients, ``method/<name>``, and the ones in
    `Recording.series`, ``client/<name>``.
    """

    round: int
    cohort: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    assignment: list[int] | None = None  # cluster of each client, if one changed since the last evaluation
    values: dict[str, float] = field(default_factory=dict)
    series: dict[str, list[float]] = field(default_factory=dict)
    replayed: bool = False  # a round before a resume
    seconds: float = 0.0

    @property
    def lost(self) -> bool:
        """True if every client of the round failed."""
        return "train_loss" not in self.values


def reasons(failed: Mapping[int, str], named: int = 3) -> str:
    """The reasons of clients that ``failed``, in one line that names at most ``named`` clients."""
    texts = [f"client {k}: {reason}" for k, reason in [*failed.items()][:named]]
    return "; ".join([*texts, f"and {len(failed) - named} more"] if len(failed) > named else texts)


@dataclass
class RunFindings:
    """The results that a part of a run adds.

    ``metrics`` by name (None: not measured), ``files`` by their names in the results folder, and the scores
    of ``newcomers``.
    """

    metrics: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Write] = field(default_factory=dict)
    newcomers: "Scores | None" = None


@dataclass
class Outcome:
    """The end of a run: scores of every client, and the models that clients are served.

    Of personal models, the first ``PERSONAL_CLIENTS``, at most ``PERSONAL_BYTES``.
    """

    scores: "Scores"  # in client order, of all of them
    participations: np.ndarray  # [N]
    metrics: dict[str, Any]
    models: dict[int, Tensor]  # the served vectors: by cluster number, or by client; {0: w} if global
    newcomers: "Scores | None" = None
    files: dict[str, Write] = field(default_factory=dict)  # further files of the result

    def add(self, findings: RunFindings) -> None:
        """Add the findings of a part of the run. Raises `FedflowError` for a name that another part has."""
        for new, old in ((findings.metrics, self.metrics), (findings.files, self.files)):
            if taken := new.keys() & old.keys():
                raise FedflowError(f"two parts of the run have a result {', '.join(sorted(taken))}")
        self.metrics |= {name: _plain(value) for name, value in findings.metrics.items()}
        self.files |= findings.files
        self.newcomers = findings.newcomers or self.newcomers


def _plain(value: Any) -> Any:
    """A number that JSON can hold: of Python, and None if it is not finite."""
    value = value.item() if isinstance(value, np.generic | Tensor) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value


def mean_or_none(values: np.ndarray) -> float | None:
    """Mean of the measured values, or None without any, or if a diverged model makes it infinite."""
    measured = values[~np.isnan(values)]
    return float(measured.mean()) if len(measured) and np.isfinite(measured.mean()) else None


def series_table(rounds: Sequence[RoundReport]) -> pd.DataFrame:
    """The series of all rounds: a row per number, with round, client and name."""
    rows = [
        (r.round, client, name, value)
        for r in rounds
        for name, values in sorted(r.series.items())
        for client, value in enumerate(values)
        if not np.isnan(value)
    ]
    table = pd.DataFrame(rows, columns=["round", "client", "name", "value"])
    return table.astype({"round": "int32", "client": "int32", "name": "str", "value": "float64"})
