"""Numbers that follow from predictions: top-k accuracy, AUROC and calibration, of a client and over clients.

The table has a row per client and sample of its test set: ``client``, ``label``, ``predicted``,
``confidence`` (probability of the prediction) and ``rank`` (of the label among the outputs, 1 = right).
"""

import re

import numpy as np
import pandas as pd
import scipy

from fedflow.errors import BadInput
from fedflow.metrics.distribution import summarize, tenths

__all__ = ["auroc", "by_client", "ece", "mce", "reliability", "sizes", "summary"]  # fedflow.predictions

BINS = 15
CALIBRATION = ("ece", "mce")  # expected and maximum calibration error


def by_client(table: pd.DataFrame, measure: str, batch: int | None = None) -> pd.Series:
    """The measure of every client of the table; NaN where it has none, or a confidence is NaN.

    Measures: ``top<k>`` (share of samples whose label is among the k largest outputs), ``auroc``, ``ece`` and
    ``mce``. With ``batch``, the mean over the client's batches of that many rows, of which the last may be
    shorter: calibration errors are published so in SuPerFed, and are larger. Raises `BadInput` for other
    measures, and for ``auroc`` in batches or unless the labels are 0 and 1.
    """
    if measure == "auroc":
        return _aurocs(table, batch)
    n = max(1, len(table))
    owner, clients = pd.factorize(table["client"], sort=True)
    batches = owner * n + table.groupby("client").cumcount().to_numpy() // (batch or n)
    part, parts = pd.factorize(batches, sort=True)
    if top := re.fullmatch(r"top([1-9]\d*)", measure):
        values = np.bincount(part, table["rank"] <= int(top[1])) / np.bincount(part)
    elif measure in CALIBRATION:
        values = _errors(table, part, measure)
    else:
        raise BadInput("measure", measure, "top1, top5 (any number), auroc, ece or mce")
    means = np.bincount(parts // n, values) / np.bincount(parts // n)
    return pd.Series(means, pd.Index(clients, name="client"), dtype=float)


def ece(table: pd.DataFrame, batch: int | None = None) -> float:
    """Expected calibration error of all rows: sum_b (n_b / n) |accuracy_b - confidence_b| over their bins.

    The bins are those of `reliability`; with ``batch``, the mean over batches of that many rows.
    """
    return float(by_client(table.assign(client=0), "ece", batch).iloc[0])


def mce(table: pd.DataFrame, batch: int | None = None) -> float:
    """Maximum calibration error of all rows: max_b |accuracy_b - confidence_b|; otherwise like `ece`."""
    return float(by_client(table.assign(client=0), "mce", batch).iloc[0])


def reliability(table: pd.DataFrame) -> pd.DataFrame:
    """Samples, accuracy and mean confidence in each of 15 equal bins (low, high] of the confidence.

    One row for each bin that is not empty, by number from 0. Samples without a confidence are in none.
    """
    table = table[table["confidence"].notna()]
    confidence = table["confidence"].astype(float)
    rows = pd.DataFrame({"right": table["rank"] == 1, "confidence": confidence})
    return rows.groupby(pd.Series(_bins(confidence), table.index, name="bin")).agg(
        samples=("right", "size"), accuracy=("right", "mean"), confidence=("confidence", "mean")
    )


def sizes(table: pd.DataFrame) -> pd.Series:
    """The number of test samples of every client of the table."""
    return table.groupby("client").size()


def summary(values: pd.Series, weights: pd.Series) -> dict[str, float]:
    """How the ``values`` of n clients are spread, NaN left out; ``weights`` are their test samples.

    ``mean`` and ``weighted`` average, ``std`` (of the population), ``worst10`` and ``best10`` (`tenths`,
    weighted), ``gap`` between these (accuracy parity), ``gini``; and how many ``clients`` have a value, and
    are ``left_out``. Source: AAggFF's metrics.
    """
    numbers, samples = values.to_numpy(float), weights.reindex(values.index).to_numpy(float)
    spread, (worst, best) = summarize(numbers, samples), tenths(numbers, samples)
    measured = int(values.notna().sum())
    return {name: spread[name] for name in ("mean", "std", "weighted", "gini")} | {
        "worst10": worst,
        "best10": best,
        "gap": best - worst,
        "clients": measured,
        "left_out": len(values) - measured,
    }


def auroc(table: pd.DataFrame) -> float:
    """Probability that a sample of class 1 has a higher P(1) than one of class 0, ties half.

    NaN unless both classes are present. P(1) has the precision of the confidence, float32.
    """
    positive = table["label"].to_numpy() == 1
    ones, zeros = positive.sum(), (~positive).sum()
    if not ones or not zeros:
        return float("nan")
    confidence = table["confidence"].to_numpy(float)
    ranks = scipy.stats.rankdata(np.where(table["predicted"] == 1, confidence, 1 - confidence))
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def _aurocs(table: pd.DataFrame, batch: int | None) -> pd.Series:
    if batch:
        raise BadInput("measure", "auroc", "top1, ece or mce in batches")
    if not table[["label", "predicted"]].isin((0, 1)).all(axis=None):
        raise BadInput("measure", "auroc", "top1, ece or mce, as there are more than two classes")
    found = {client: auroc(rows) for client, rows in table.groupby("client")}
    return pd.Series(found, dtype=float).rename_axis("client")


def _errors(table: pd.DataFrame, part: np.ndarray, measure: str) -> np.ndarray:
    """One of `CALIBRATION` of each part [P], NaN if a confidence is; ``part`` [n] is the part of each row."""
    confidence, parts = table["confidence"].to_numpy(float), part.max(initial=-1) + 1
    excess, place = (table["rank"] == 1).to_numpy() - confidence, part * BINS + _bins(confidence)
    samples, gaps = (
        np.bincount(place, weights, parts * BINS).reshape(parts, BINS) for weights in (None, excess)
    )
    gaps = np.abs(gaps)
    if measure == "mce":
        return (gaps / np.maximum(samples, 1)).max(1)
    return gaps.sum(1) / samples.sum(1)


def _bins(confidence: np.ndarray | pd.Series) -> np.ndarray:
    """The bin of each confidence, of `BINS` equal ones (low, high]."""
    return np.digitize(confidence, np.linspace(0, 1, BINS + 1)[1:-1], right=True)
