"""Clusters of clients by round, their agreement with planted groups, and client dissimilarities."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedflow.files import Write, write_json
from fedflow.methods.protocols import Clustered, Dissimilarity
from fedflow.metrics.clustering import agreement
from fedflow.simulation.evaluation import Scores
from fedflow.simulation.extensions.extension import Run, RunExtension
from fedflow.simulation.outcome import RoundReport, RunFindings

FILE, MATRIX = "clusters.json", "proximity.parquet"
FACTS = ("unit", "linkage", "height", "decomposition_error")  # of a `Dissimilarity`, without the matrix


class Clusters(RunExtension):
    """The files ``clusters.json`` (clusters and planted groups) and ``proximity.parquet`` (the matrix)."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.assignment = np.full(run.clients, -1)  # last known cluster of every client, -1 before the first

    def packed(self) -> Mapping[str, Tensor]:
        return {"assignment": torch.from_numpy(self.assignment)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.assignment = tensors["assignment"].numpy()

    def evaluate(self, report: RoundReport, scores: Scores) -> Mapping[str, float | None]:
        changed = not np.array_equal(scores.cluster, self.assignment[scores.clients])
        self.assignment[scores.clients] = scores.cluster
        if not isinstance(self.run.job.method, Clustered):
            return {}
        report.assignment = self.assignment.tolist() if changed else None
        return self.agreement(scores)

    def finish(self, scores: Scores) -> RunFindings:
        stable = Clustered.of(self.run.job.method).stable_cluster_ids
        files = cluster_files(self.run.state.history, self.run.groups, self.compared(), stable)
        return RunFindings(self.agreement(scores), files)

    def agreement(self, scores: Scores) -> dict[str, float | None]:
        """The agreement of the clusters with planted groups or common labels."""
        groups, labels = (
            None if array is None else array[scores.clients] for array in (self.run.groups, self.run.labels)
        )
        return dict(agreement(scores.cluster, groups, labels))

    def compared(self) -> Dissimilarity | None:
        """The method's matrix of client dissimilarities, restricted to clients that take part."""
        whole = Clustered.of(self.run.job.method).dissimilarity(self.run.state.server)
        if whole is None:
            return None
        rows = [i for i, k in enumerate(whole.clients) if k < self.run.clients]
        matrix = whole.matrix[np.ix_(rows, rows)].astype(np.float64)
        if not np.isfinite(matrix).all():  # of models that diverged
            return None
        matrix = (matrix + matrix.T) / 2
        np.fill_diagonal(matrix, 0)
        return replace(whole, matrix=matrix, clients=[whole.clients[i] for i in rows])


def cluster_files(
    rounds: Sequence[RoundReport], groups: np.ndarray | None, compared: Dissimilarity | None, stable: bool
) -> dict[str, Write]:
    """The files of clusters by name; ``stable``: a cluster keeps its number in all rounds."""
    facts = {
        "groups": None if groups is None else [int(g) for g in groups],
        "history": [
            {"round": r.round, "assignment": r.assignment} for r in rounds if r.assignment is not None
        ],
        "stable_cluster_ids": stable,
        "proximity": compared and {name: getattr(compared, name) for name in FACTS},
    }
    files: dict[str, Write] = {FILE: partial(write_json, value=facts)}
    if compared:
        index = pd.Index(np.array(compared.clients, dtype=np.int64), name="client")
        names = [str(k) for k in compared.clients]  # parquet needs text
        files[MATRIX] = pd.DataFrame(compared.matrix, index, names).to_parquet
    return files
