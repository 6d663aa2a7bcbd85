"""Heterogeneity of a partition by several measures: averages over pairs of clients.

At most 100 random clients are compared. Measures of inputs use at most 200 random samples of each, keyed by
``seed``, so that the size of a client has little influence; measures of labels use the labels of all its
samples. Distances between finite samples are positive even if the distributions are equal: compare a
partition with an IID one under the same settings.
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

    Up to ``clients`` clients with samples are drawn, and for measures of inputs up to ``samples`` samples of
    each; a signature has ``p`` directions. Measures of labels need a class per sample (`has_classes`),
    measures of inputs real inputs (no tokens). Raises `BadInput`.
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
    classes, tokens = has_classes(partition, dataset), x.dtype.kind == "i"
    usable = {name: classes if measure.labels else not tokens for name, measure in MEASURES.items()}
    if not any(usable.values()):
        raise BadInput("dataset", dataset.name, "real inputs, or a class per sample")
    if measures is None:
        measures = [name for name in MEASURES if usable[name]]
    for measure in measures:
        if measure not in MEASURES:
            raise unknown_name("measures", measure, MEASURES)
        if not usable[measure]:
            by_labels = ("inputs", "targets are not classes")
            kind, why = by_labels if MEASURES[measure].labels else ("labels", "inputs are tokens")
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
        facts=_facts(list(rows.values()), labels if classes else None),
        groups=None if partition.groups is None else partition.groups[chosen],
    )


def has_classes(partition: Partition, dataset: Dataset) -> bool:
    """True if every training sample has a class: no real target, sequence or several labels."""
    labels = dataset.y_train.numpy() if partition.train_labels is None else partition.train_labels
    return labels.ndim == 1 and labels.dtype.kind != "f"


def _facts(rows: list[np.ndarray], labels: np.ndarray | None) -> dict[str, float]:
    sizes = np.array([len(row) for row in rows])
    facts = {"clients": float(len(rows)), "size_mean": float(sizes.mean()), "size_sd": float(sizes.std())}
    return facts | label_skew(None if labels is None else label_counts(labels, rows))


def table(comparisons: Sequence[PartitionComparison]) -> "pd.DataFrame":
    """One row per partition: facts about its clients, and the mean of every measure."""
    import pandas as pd

    return pd.DataFrame(
        [{**c.facts, **c.means} for c in comparisons], index=pd.Index([c.name for c in comparisons])
    )
