"""The results of a run: those of every round, and those of the end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from fedflow.data.generated import LastImages
from fedflow.methods.protocols import Dissimilarity, Images
from fedflow.simulation.evaluation import Scores
from fedflow.simulation.recorded import ClientVectors

PERSONAL_CLIENTS = 1000  # personal models and kept vectors in an outcome: those of the lowest client numbers
PERSONAL_BYTES = 1 << 30  # upper limit of the size of each
SERIES_CLIENTS = 100  # clients in a series: those of the lowest numbers
POLLED = "polled_loss"  # the series of the losses by which a client curriculum ranks
PRUNED, GATE = (
    "client/pruned",
    "client/gate_kept",
)  # series of clients that prune: share, accuracy of the rest


@dataclass
class RoundReport:
    """What happened in one round (numbered from 1).

    ``values`` has a number for every metric that was measured, by name (`fedflow.metrics.table`).
    Diagnostics of the method are ``method/<name>`` (of the server step) and ``client/<name>/mean``, ``/min``,
    ``/max`` (over the cohort). Bytes and clock are totals since the start. ``series`` has numbers of the
    first `SERIES_CLIENTS` clients, NaN = none: diagnostics that are arrays over clients, ``method/<name>``,
    and those in `Recording.series`, ``client/<name>``.
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
        """Whether every client of the round failed."""
        return "train_loss" not in self.values


def reasons(failed: Mapping[int, str], named: int = 3) -> str:
    """Why clients ``failed`` (reasons by number), in one line that names at most ``named`` clients."""
    told = [f"client {k}: {reason}" for k, reason in [*failed.items()][:named]]
    return "; ".join([*told, f"and {len(failed) - named} more"] if len(failed) > named else told)


@dataclass
class Outcome:
    """The end of a run: scores of every client, and the models that clients are served.

    Personal models and kept vectors are those of the first ``PERSONAL_CLIENTS`` clients, at most
    ``PERSONAL_BYTES`` of each.
    """

    scores: Scores  # in client order, of all of them
    participations: np.ndarray  # [N]
    metrics: dict[str, Any]
    models: dict[int, Tensor]  # the served vectors: by cluster number, or by client; {0: w} if global
    newcomers: Scores | None = None
    dissimilarity: Dissimilarity | None = None  # between clients, without newcomers, if the server has one
    stable_cluster_ids: bool = True
    sweep: pd.DataFrame | None = None  # `SWEEP`, of methods with mixtures
    recorded: ClientVectors = field(default_factory=ClientVectors)  # `Recording.records`
    generated: dict[int, Images] = field(default_factory=dict)  # `State.generated`
    last_images: LastImages | None = None  # of methods that generate images
