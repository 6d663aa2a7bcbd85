"""Numbers that follow from predictions: top-k accuracy, AUROC and calibration, of a client and over clients.

The table has a row per client and sample of its test set: ``client``, ``label``, ``predicted``,
``confidence`` (probability of the prediction) and ``rank`` (of the label among the outputs, 1 = right).
"""

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from fedflow.errors import BadInput
from fedflow.metrics.distribution import summarise, tenths

BINS = 15


def by_client(table: pd.DataFrame, measure: str) -> pd.Series:
    """The measure of every client of the table; NaN where it has none.

    Measures: ``top<k>`` (share of samples whose label is among the k largest outputs), ``auroc``, ``ece`` and
    ``mce``. Raises `BadInput` for others, and for ``auroc`` unless the labels are 0 and 1.
    """
    if top := re.fullmatch(r"top([1-9]\d*)", measure):
        return (table["rank"] <= int(top[1])).groupby(table["client"]).mean()
    if measure not in OF_A_CLIENT:
        raise BadInput("measure", measure, "top1, top5 (any number), auroc, ece or mce")
    if measure == "auroc" and not table[["label", "predicted"]].isin((0, 1)).all(axis=None):
        raise BadInput("measure", measure, "top1, ece or mce, as there are more than two classes")
    found = {client: OF_A_CLIENT[measure](rows) for client, rows in table.groupby("client")}
    return pd.Series(found, dtype=float).rename_axis("client")


def sizes(table: pd.DataFrame) -> pd.Series:
    """The number of test samples of every client of the table."""
    return table.groupby("client").size()


def summary(values: pd.Series, weights: pd.Series) -> dict[str, float]:
    """How the ``values`` of n clients are spread, NaN left out; ``weights`` are their test samples.

    ``mean`` and ``weighted`` average, ``worst10`` and ``best10`` (`tenths`, weighted), ``gap`` between these
    (accuracy parity), ``gini``; and how many ``clients`` have a value, and are ``left_out``. Source: AAggFF's
    metrics.
    """
    numbers, samples = values.to_numpy(float), weights.reindex(values.index).to_numpy(float)
    spread, (worst, best) = summarise(numbers, samples), tenths(numbers, samples)
    measured = int(values.notna().sum())
    return {name: spread[name] for name in ("mean", "weighted", "gini")} | {
        "worst10": worst, "best10": best, "gap": best - worst, "clients": measured,
        "left_out": len(values) - measured,
    }  # fmt: skip


def auroc(table: pd.DataFrame) -> float:
    """Probability that a sample of class 1 has a higher P(1) than one of class 0, ties half.

    NaN unless both classes are present. P(1) has the precision of the confidence, float32.
    """
    positive = table["label"].to_numpy() == 1
    ones, zeros = positive.sum(), (~positive).sum()
    if not ones or not zeros:
        return float("nan")
    confidence = table["confidence"].to_numpy(float)
    ranks = rankdata(np.where(table["predicted"] == 1, confidence, 1 - confidence))
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def ece(table: pd.DataFrame, bins: int = BINS, batch: int | None = None) -> float:
    """Expected calibration error: sum_b (n_b / n) |accuracy_b - confidence_b| over equal bins (low, high].

    With ``batch``, the mean over batches of that many rows, as SuPerFed publishes it; that is larger.
    """
    return float(np.mean([counts @ gaps / counts.sum() for counts, gaps in _gaps(table, bins, batch)]))


def mce(table: pd.DataFrame, bins: int = BINS, batch: int | None = None) -> float:
    """Maximum calibration error: the largest |accuracy_b - confidence_b|; otherwise like `ece`."""
    return float(np.mean([gaps.max() for _, gaps in _gaps(table, bins, batch)]))


def _gaps(table: pd.DataFrame, bins: int, batch: int | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """By batch: of every bin that is not empty, its samples and |accuracy - confidence|."""
    confidence, inner = table["confidence"].to_numpy(float), np.linspace(0, 1, bins + 1)[1:-1]
    excess, place = (table["rank"] == 1) - confidence, np.digitize(confidence, inner, right=True)
    for start in range(0, len(table), batch or len(table)):
        rows = slice(start, start + (batch or len(table)))
        counts = np.bincount(place[rows], minlength=bins)
        sums = np.bincount(place[rows], excess[rows], minlength=bins)
        yield counts[counts > 0], np.abs(sums / np.maximum(counts, 1))[counts > 0]


OF_A_CLIENT = {"auroc": auroc, "ece": ece, "mce": mce}
