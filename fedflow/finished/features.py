"""Result files of features: predictions, mixtures, series and masks."""

import pandas as pd

from fedflow.finished.reading import reject
from fedflow.finished.run import Run, once
from fedflow.metrics.masks import Masks
from fedflow.metrics.predictions import several
from fedflow.simulation.evaluation import OF_ROWS, PREDICTIONS
from fedflow.simulation.extensions.mixtures import SWEEP
from fedflow.simulation.extensions.recording import FILE, load_vectors


def predictions(run: Run) -> pd.DataFrame:
    """Predictions of the served models by client and test sample; no rows if not kept.

    Read at every call: the tables of many runs do not fit in memory.
    """
    return run.table("predictions.parquet", lambda table: [*(OF_ROWS if several(table) else PREDICTIONS)])


@once
def sweep(run: Run) -> pd.DataFrame:
    """Scores of the mixtures of every client's models; no rows if the method has none."""
    return run.table("sweep.parquet", [*SWEEP])


@once
def series(run: Run) -> pd.DataFrame:
    """The method's diagnostics over clients: round, client, value and name."""
    return run.table("series.parquet", ("round", "client", "value"), ["name"])


@once
def masks(run: Run) -> Masks | None:
    """Masks of the participants, or None if the method has no masks."""
    path = run.file(FILE)
    if path is None:
        return None
    recorded, clients = load_vectors(path), run.metrics["clients"]
    if len(recorded.vectors) > clients:
        reject(path, f"not of {clients} clients")
    return recorded.masks(run.clients["participations"].to_numpy()) if recorded.vectors else None
