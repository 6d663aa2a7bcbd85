"""The files of a finished run, for DVC, the report and MLflow. Deterministic bytes.

``metrics.json`` marks a complete set. It is removed before any other file changes and written last, so that
a mixture of two runs, or half of one, never counts as a run.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedflow.errors import FedflowError
from fedflow.files import Write, read_fact, replace_files, write_json
from fedflow.metrics.table import METRICS, diagnostics, yardstick_first
from fedflow.project.identity import FILE as IDENTITY
from fedflow.project.identity import Identity
from fedflow.simulation.evaluation import Scores
from fedflow.simulation.outcome import Outcome, RoundReport, series_table

MARKER, PARAMS, ROUNDS, CLIENTS = "metrics.json", "params.json", "rounds.csv", "clients.parquet"
SERIES, FAILURES = "series.parquet", "failures.json"


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
    """Write the files of a run into ``folder``, in place of an earlier run.

    ``metrics.json`` has the final numbers and the names of all ``files``, ``rounds.csv`` numbers by round,
    ``clients.parquet`` numbers by client, ``series.parquet`` diagnostics by client and round (if any), and
    ``failures.json`` failed clients by round (if any). Extensions of the run add further files
    (`fedflow.simulation.extensions`).

    ``facts`` identify the run (partition, method, seed, hashes); its settings ``params`` become
    ``params.json``, its ``identity`` ``identity.json``. ``samples`` [N] are training sizes and ``groups`` [N]
    planted groups, newcomers last. Raises `FedflowError` if the folder cannot be written; a full disk leaves
    the earlier run unchanged.
    """
    clients, series = clients_table(outcome, samples, groups), series_table(rounds)
    failures = {r.round: r.failed for r in rounds if r.failed}
    files: dict[str, Write] = {
        PARAMS: partial(write_json, value=params),
        **({IDENTITY: partial(write_json, value=identity.as_dict())} if identity else {}),
        ROUNDS: partial(rounds_table(rounds).to_csv, index=False, float_format="%.9g"),
        CLIENTS: partial(clients.to_parquet, index=False),
        **({SERIES: partial(series.to_parquet, index=False)} if len(series) else {}),
        **({FAILURES: partial(write_json, value=failures)} if failures else {}),
    }
    if taken := sorted(outcome.files.keys() & {*files, MARKER}):
        raise FedflowError(f"an extension of the run cannot write {taken[0]}, a file of every result")
    files |= outcome.files
    metrics = facts | outcome.metrics | {"files": sorted(files)}
    earlier = read_fact(folder / MARKER, "files") or []
    gone = {name: None for name in earlier if name not in files}
    replace_files(folder, gone | files | {MARKER: partial(write_json, value=metrics)}, MARKER)


def rounds_table(rounds: list[RoundReport]) -> pd.DataFrame:
    """One row per round: metrics of `METRICS`, failed clients, then diagnostics of the method."""
    reported = {name for report in rounds for name in report.values}
    metrics = [m.name for m in METRICS.values() if m.rounds and (m.name in reported or not m.sparse)]
    more = diagnostics(reported)
    return pd.DataFrame(
        [
            {"round": r.round}
            | {name: r.values.get(name) for name in metrics}
            | {"failed": len(r.failed)}
            | {name: r.values.get(name) for name in more}
            for r in rounds
        ]
    )


def clients_table(outcome: Outcome, samples: np.ndarray, groups: np.ndarray | None) -> pd.DataFrame:
    """One row per client, newcomers last; ``samples`` and ``groups`` as for `write_results`."""
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
            **{m.name: scores.column(m.client) for m in yardstick_first(METRICS.values()) if m.client},
            "cluster": scores.cluster,
            "group": pd.array(group, dtype="Int64"),
        }
    )
