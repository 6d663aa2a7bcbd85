"""What a run tells: of every round, and at the end."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from fedflow.methods.base import Dissimilarity
from fedflow.simulation.evaluation import Scores

PERSONAL_CLIENTS = 1000  # personal models of an outcome, those of the lowest client numbers
PERSONAL_BYTES = 1 << 30  # ... and no more than this


@dataclass
class Round:
    """What happened in one round (numbered from 1). Accuracies are None where not evaluated."""

    round: int
    cohort: list[int]
    train_loss: float
    bytes_down: int  # cumulative, as are bytes_up
    bytes_up: int
    failed: dict[int, str] = field(default_factory=dict)
    local_accuracy: float | None = None
    local_std: float | None = None
    local_worst10: float | None = None
    global_accuracy: float | None = None
    clusters: int = 1
    ari: float | None = None
    nmi: float | None = None
    clustering_error: float | None = None
    assignment: list[int] | None = None  # per client, where it changed since the last evaluation
    clock: float = 0.0  # simulated time at the end of the round
    idle: float = 0.0  # of it, how long a client waited for the others, mean over the cohort
    delay: float = 0.0  # steps that the server took while a client was at work, mean over the cohort
    replayed: bool = False  # told again after a resume
    seconds: float = 0.0


@dataclass
class Outcome:
    """The end of a run: scores of every client that could take part, and the models they are served.

    Of personal models, those of the first ``PERSONAL_CLIENTS`` clients, within ``PERSONAL_BYTES``.
    """

    scores: Scores  # in client order, of all of them
    participations: np.ndarray  # [N]
    metrics: dict[str, Any]
    models: dict[int, Tensor]  # the served vectors: by cluster number, or by client; {0: w} if global
    newcomers: Scores | None = None  # of those that join now
    dissimilarity: Dissimilarity | None = None  # of clients that took part, where the server compares them
    stable_cluster_ids: bool = True  # whether a cluster had the same number in all rounds
