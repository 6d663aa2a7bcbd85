"""The files of a finished run, for DVC, the report and MLflow. Deterministic bytes.

``metrics.json`` marks a complete set: it is removed before any other file changes and written last, so that
files of two runs, or half of one, never count as a run.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedflow.data.generated import FILE as IMAGES
from fedflow.data.generated import save_generated
from fedflow.files import Write, replace_files, write_json
from fedflow.methods.protocols import Dissimilarity
from fedflow.metrics.table import METRICS, diagnostics, yardstick_first
from fedflow.project.identity import FILE as IDENTITY
from fedflow.project.identity import Identity
from fedflow.simulation.evaluation import PREDICTIONS, SERVED, SWEEP, Scores
from fedflow.simulation.outcome import Outcome, RoundReport
from fedflow.simulation.recorded import FILE as VECTORS

MARKER = "metrics.json"


def write_results(
    folder: Path,
    facts: dict[str, Any],
    params: dict[str, Any],
    rounds: list[RoundReport],
    outcome: Outcome,
    samples: np.ndarray,
    groups: np.ndarray | None,
    identity: Identity | None = None,
) -> None:
    """Write the files of a run into ``folder``, in place of those of an earlier run.

    ``metrics.json`` has the final numbers, ``rounds.csv`` those by round, ``clients.parquet`` those by
    client. ``clusters.json`` has the cluster of every client, and how the server compared clients;
    ``proximity.parquet`` is the matrix of these dissimilarities, with a row and a column per client.
    ``series.parquet`` has the method's diagnostics by client and round, a row per number;
    ``predictions.parquet`` a row per client and sample of its test set, if they were kept;
    ``sweep.parquet`` a row per client and mixture of its models, of methods that have mixtures;
    ``client-vectors.safetensors`` the vectors that `Recording.records` names, such as masks (`load_vectors`);
    ``images.safetensors`` the images that the server generated, by evaluated round (`load_generated`).

    ``facts`` identifies the run (partition, method, seed, hashes); ``params``, its settings, become
    ``params.json``, and ``identity``, what decided it, ``identity.json``. ``samples`` [N] are training sizes,
    ``groups`` [N] planted groups, both with newcomers last, as in the table of clients. Clusters and groups
    in JSON exclude newcomers. Raises `FedflowError` if the folder cannot be written; a full disk leaves the
    files of the earlier run unchanged.
    """
    clients = clients_table(outcome, samples, groups)
    groups = None if groups is None else groups[outcome.scores.clients]
    history = [{"round": r.round, "assignment": r.assignment} for r in rounds if r.assignment is not None]
    clusters = {
        "groups": None if groups is None else [int(g) for g in groups],
        "history": history,
        "stable_cluster_ids": outcome.stable_cluster_ids,
        "proximity": _about(outcome.dissimilarity),
    }
    failures = {r.round: r.failed for r in rounds if r.failed}
    files: dict[str, Write | None] = {
        "params.json": partial(write_json, value=params),
        IDENTITY: partial(write_json, value=identity.as_dict()) if identity else None,
        "clusters.json": partial(write_json, value=clusters),
        "rounds.csv": partial(rounds_table(rounds).to_csv, index=False, float_format="%.9g"),
        "clients.parquet": partial(clients.to_parquet, index=False),
        "proximity.parquet": _matrix(outcome.dissimilarity).to_parquet,
        "series.parquet": partial(_series(rounds).to_parquet, index=False),
        "predictions.parquet": partial(_predictions(outcome.scores).to_parquet, index=False),
        "sweep.parquet": partial(_sweep(outcome).to_parquet, index=False),
        VECTORS: outcome.recorded.save,
        IMAGES: partial(save_generated, rounds=outcome.generated, last=outcome.last_images),
        "failures.json": partial(write_json, value=failures) if failures else None,
        MARKER: partial(write_json, value=facts | outcome.metrics),
    }
    replace_files(folder, files, MARKER)


def rounds_table(rounds: list[RoundReport]) -> pd.DataFrame:
    """One row per round: the metrics of `METRICS`, failed clients, then the diagnostics of the method."""
    known = {name for report in rounds for name in report.values}
    metrics = [m.name for m in METRICS.values() if m.rounds and (m.name in known or not m.sparse)]
    more = diagnostics(known)
    return pd.DataFrame(
        [
            {"round": r.round}
            | {name: r.values.get(name) for name in metrics}
            | {"failed": len(r.failed)}
            | {name: r.values.get(name) for name in more}
            for r in rounds
        ]
    )


def _series(rounds: list[RoundReport]) -> pd.DataFrame:
    """One row per number of a series, by round, name and client."""
    rows = [
        (r.round, client, name, value)
        for r in rounds
        for name, values in sorted(r.series.items())
        for client, value in enumerate(values)
        if not np.isnan(value)
    ]
    table = pd.DataFrame(rows, columns=["round", "client", "name", "value"])
    return table.astype({"round": "int32", "client": "int32", "name": "str", "value": "float64"})


def _predictions(scores: Scores) -> pd.DataFrame:
    """By client and sample; no rows if they were not kept."""
    none = pd.DataFrame(columns=list(PREDICTIONS)).astype(PREDICTIONS)
    return none if scores.predictions is None else scores.predictions


def _sweep(outcome: Outcome) -> pd.DataFrame:
    """By client and mixture; no rows if the method has none."""
    none = pd.DataFrame(columns=[*SWEEP, *SERVED]).astype(SWEEP | SERVED)
    return none if outcome.sweep is None else outcome.sweep


def clients_table(outcome: Outcome, samples: np.ndarray, groups: np.ndarray | None) -> pd.DataFrame:
    """One row per client, newcomers last; ``samples`` and ``groups`` as `write_results` has them."""
    clients = _clients(outcome.scores, samples, groups).assign(participations=outcome.participations)
    clients["newcomer"] = False
    if outcome.newcomers is None:
        return clients
    newcomers = _clients(outcome.newcomers, samples, groups).assign(participations=0, newcomer=True)
    return pd.concat([clients, newcomers], ignore_index=True)


def _clients(scores: Scores, samples: np.ndarray, groups: np.ndarray | None) -> pd.DataFrame:
    """One row per client of ``scores``."""
    group = [pd.NA] * len(scores.clients) if groups is None else groups[scores.clients]
    return pd.DataFrame(
        {
            "client": scores.clients,
            "samples": samples[scores.clients],
            "test_samples": scores.test_samples,
            **{m.name: getattr(scores, m.client) for m in yardstick_first(METRICS.values()) if m.client},
            "cluster": scores.cluster,
            "group": pd.array(group, dtype="Int64"),
        }
    )


def _about(found: Dissimilarity | None) -> dict[str, Any] | None:
    """Everything except the matrix."""
    if found is None:
        return None
    names = ("unit", "linkage", "height", "decomposition_error")
    return {name: getattr(found, name) for name in names}


def _matrix(found: Dissimilarity | None) -> pd.DataFrame:
    """Dissimilarities [n, n], rows and columns named after the clients; parquet needs text as names."""
    clients, matrix = (list(found.clients), found.matrix) if found else ([], np.empty((0, 0)))
    index = pd.Index(np.array(clients, dtype=np.int64), name="client")
    return pd.DataFrame(matrix, index, [str(k) for k in clients])
