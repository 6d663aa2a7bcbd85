"""Heterogeneity of a partition by several measures: averages over pairs of clients.

At most 100 random clients are compared, by at most 200 random samples each, keyed by ``seed``, so that the
size of a client has little influence. Distances between finite samples are positive even if the distributions
are equal: compare a partition with an IID one under the same settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedflow.data import Dataset
from fedflow.errors import BadInput, unknown_name
from fedflow.heterogeneity.measures import MEASURES, Views, label_counts
from fedflow.partition.partition import Partition
from fedflow.partition.scheme import label_skew
from fedflow.seeding import generator

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class PartitionComparison:
    """The result of `compare`: a symmetric matrix [m, m] per measure, between the compared ``clients`` [m].

    ``groups`` [m] are their planted groups, or None; ``facts`` describe all clients with samples.
    """

    name: str
    clients: np.ndarray
    matrices: dict[str, np.ndarray]
    facts: dict[str, float]
    groups: np.ndarray | None = None

    @property
    def means(self) -> dict[str, float]:
        """The average over all pairs of clients, by measure."""
        pairs = np.triu_indices(len(self.clients), 1)
        return {name: float(matrix[pairs].mean()) for name, matrix in self.matrices.items()}


def compare(
    partition: Partition,
    dataset: Dataset,
    measures: Sequence[str] | None = None,
    *,
    name: str = "",
    clients: int = 100,
    samples: int = 200,
    p: int = 2,
    seed: int = 0,
) -> PartitionComparison:
    """Measure how much the training data of clients differ, by ``measures`` (default: all in `MEASURES`).

    Up to ``clients`` clients with samples are drawn, and up to ``samples`` samples of each; a signature has
    ``p`` directions. Measures of labels need classes, measures of inputs real inputs (no tokens). Raises
    `BadInput`.
    """
    labels = dataset.y_train.numpy() if partition.train_labels is None else partition.train_labels
    x, holders = dataset.x_train.numpy(), np.flatnonzero(partition.sizes)
    if min(len(holders), clients) < 2:
        raise BadInput("clients", min(len(holders), clients), "at least 2 with samples")
    last, count = int(partition.indices.max()), len(x)
    if last >= count:
        raise BadInput("partition", f"row {last}", f"one of the {count} training samples of the dataset")
    if samples < 1:
        raise BadInput("samples", samples, "a whole number >= 1")
    real, tokens = labels.dtype.kind == "f", x.dtype.kind == "i"
    usable = {name: not (real if measure.labels else tokens) for name, measure in MEASURES.items()}
    if measures is None:
        measures = [name for name in MEASURES if usable[name]]
    for measure in measures:
        if measure not in MEASURES:
            raise unknown_name("measures", measure, MEASURES)
        if not usable[measure]:
            kind, why = ("inputs", "targets are not classes") if real else ("labels", "inputs are tokens")
            raise BadInput("measures", measure, f"a measure of {kind}: the {why}")
    chosen = holders
    if len(holders) > clients:
        chosen = np.sort(generator(seed, "heterogeneity/clients").choice(holders, clients, replace=False))
    rows = {int(k): partition.train(int(k)) for k in holders}
    views = Views(x, labels, [rows[k] for k in chosen.tolist()], samples, p, seed)
    return PartitionComparison(
        name=name or str(partition.params.get("scheme", "")),
        clients=chosen,
        matrices={measure: MEASURES[measure].of(views) for measure in measures},
        facts=_facts(list(rows.values()), labels),
        groups=None if partition.groups is None else partition.groups[chosen],
    )


def _facts(rows: list[np.ndarray], labels: np.ndarray) -> dict[str, float]:
    sizes = np.array([len(row) for row in rows])
    facts = {"clients": float(len(rows)), "size_mean": float(sizes.mean()), "size_sd": float(sizes.std())}
    return facts | label_skew(None if labels.dtype.kind == "f" else label_counts(labels, rows))


def table(comparisons: Sequence[PartitionComparison]) -> "pd.DataFrame":
    """One row per partition: facts about its clients, and the mean of every measure."""
    import pandas as pd

    return pd.DataFrame(
        [{**c.facts, **c.means} for c in comparisons], index=pd.Index([c.name for c in comparisons])
    )
