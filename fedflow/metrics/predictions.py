"""Measures of predictions: top-k accuracy, AUROC, calibration and scores by class, over clients or for each.

The table has a row per client and test sample: ``client``, ``label``, ``predicted``, ``confidence``
(probability of the prediction) and ``rank`` (of the label among the outputs, 1 = right). With
`run.keep_probabilities` it also has ``p0``, ``p1``, ..., the probability of every class. Of several labels
per sample, it has ``client``, ``y0``, ``y1``, ... (whether the sample has the label) and ``p0``, ``p1``, ...
"""

import re

import numpy as np
import pandas as pd
import scipy

from fedflow.errors import BadInput
from fedflow.metrics.distribution import summarize, tenths

# fedflow.predictions
__all__ = ["auroc", "by_class", "by_client", "ece", "mce", "reliability", "sizes", "summary"]

BINS = 15
CUT = 0.5  # probability above which one of several labels is predicted
CALIBRATION = ("ece", "mce")  # expected and maximum calibration error
OF_CLASSES = ("macro_f1", "balanced_accuracy")  # means over classes
OF_LABELS = ("label_accuracy", "exact", "micro_f1")  # only of several labels per sample
SEVERAL = (*OF_LABELS, "macro_f1", "auroc")  # all of several labels per sample
WHOLE = ("auroc", *OF_CLASSES, *OF_LABELS)  # of all test samples of a client, never of batches
MEASURES = "top1, top5 (any number), auroc, macro_f1, balanced_accuracy, ece or mce"


def by_client(table: pd.DataFrame, measure: str, batch: int | None = None) -> pd.Series:
    """The measure of every client in the table; NaN if it is undefined or a confidence is NaN.

    Measures: ``top<k>`` (share of samples whose label is among the k largest outputs), ``auroc``,
    ``macro_f1`` (mean F1 over the classes among the client's labels and predictions), ``balanced_accuracy``
    (mean recall over the classes among its labels), ``ece`` and ``mce``. With ``batch``, the mean over the
    client's batches of that many rows, of which the last may be shorter; SuPerFed publishes calibration
    errors in this form, which are larger.

    Measures of several labels per sample, each predicted if its probability exceeds 1/2: ``label_accuracy``
    (share of right labels), ``exact`` (share of samples with all labels right), ``micro_f1``, ``macro_f1``
    (mean over the labels among the client's labels and predictions) and ``auroc`` (mean over the labels that
    some of its samples have, and others not).

    Raises `BadInput` for other measures, for measures of classes in batches, and for ``auroc`` of more than
    two classes without the probability of every class.
    """
    if measure in WHOLE and batch:
        raise BadInput("measure", measure, "top1, ece or mce in batches")
    if several(table):
        return _of_labels(table, measure)
    if measure in OF_LABELS:
        raise BadInput("measure", measure, f"{MEASURES}, as samples have one label each")
    if measure in WHOLE:
        return _aurocs(table) if measure == "auroc" else _over_classes(table, measure)
    n = max(1, len(table))
    owner, clients = pd.factorize(table["client"], sort=True)
    batches = owner * n + table.groupby("client").cumcount().to_numpy() // (batch or n)
    part, parts = pd.factorize(batches, sort=True)
    if top := re.fullmatch(r"top([1-9]\d*)", measure):
        values = np.bincount(part, table["rank"] <= int(top[1])) / np.bincount(part)
    elif measure in CALIBRATION:
        values = _errors(table, part, measure)
    else:
        raise BadInput("measure", measure, MEASURES)
    means = np.bincount(parts // n, values) / np.bincount(parts // n)
    return pd.Series(means, pd.Index(clients, name="client"), dtype=float)


def summarized(table: pd.DataFrame) -> tuple[str, ...]:
    """The measures of these predictions that a run records, as their means over clients."""
    if several(table):
        return tuple(name for name in SEVERAL if name != "label_accuracy")  # the local accuracy
    return (*OF_CLASSES, *(["auroc"] if _probabilities(table) is not None or _binary(table) else []))


def by_class(table: pd.DataFrame) -> pd.DataFrame:
    """Scores of every class among the labels and predictions of all rows.

    ``samples``, ``recall`` (accuracy on the samples of the class), ``precision``, ``f1`` and, with the
    probability of every class, ``auroc`` against the rest. NaN where undefined: recall and AUROC without
    samples of the class, precision without predictions of it, AUROC without other samples. Of several labels
    per sample, the classes are all labels.
    """
    if several(table):
        y, p = _labels_of(table)
        of_labels = _label_counts(y, p)
        samples, predicted, right = (pd.Series(count) for count in of_labels)
        columns = {"samples": samples, "recall": right / samples, "precision": right / predicted}
        return pd.DataFrame(columns).assign(f1=_f1(*of_labels), auroc=_areas(y, p)).rename_axis("class")
    counts = _by_class(table.assign(client=0)).droplevel("client")
    scores = counts[["samples"]].assign(
        recall=counts["right"] / counts["samples"],
        precision=counts["right"] / counts["predicted"],
        f1=counts["f1"],
    )
    if (probabilities := _probabilities(table)) is not None:
        scores["auroc"] = _one_against_rest(table["label"].to_numpy(), probabilities)[scores.index]
    return scores


def several(table: pd.DataFrame) -> bool:
    """True for predictions of several labels per sample."""
    return "y0" in table.columns


def ece(table: pd.DataFrame, batch: int | None = None) -> float:
    """Expected calibration error of all rows: sum_b (n_b / n) |accuracy_b - confidence_b|.

    The bins b are as in `reliability`. With ``batch``, the mean over batches of that many rows.
    """
    return float(by_client(table.assign(client=0), "ece", batch).iloc[0])


def mce(table: pd.DataFrame, batch: int | None = None) -> float:
    """Maximum calibration error of all rows: max_b |accuracy_b - confidence_b|; otherwise like `ece`."""
    return float(by_client(table.assign(client=0), "mce", batch).iloc[0])


def reliability(table: pd.DataFrame) -> pd.DataFrame:
    """Samples, accuracy and mean confidence in each of 15 equal bins (low, high] of the confidence.

    There is one row per bin that is not empty, numbered from 0. Samples without a confidence are left out.
    """
    table = table[table["confidence"].notna()]
    confidence = table["confidence"].astype(float)
    rows = pd.DataFrame({"right": table["rank"] == 1, "confidence": confidence})
    return rows.groupby(pd.Series(_bins(confidence), table.index, name="bin")).agg(
        samples=("right", "size"), accuracy=("right", "mean"), confidence=("confidence", "mean")
    )


def sizes(table: pd.DataFrame) -> pd.Series:
    """The number of test samples of every client in the table."""
    return table.groupby("client").size()


def summary(values: pd.Series, weights: pd.Series) -> dict[str, float]:
    """Distribution of the ``values`` of n clients without NaN; ``weights`` are their test samples.

    ``mean`` and ``weighted`` average, ``std`` (population), ``worst10`` and ``best10`` (`tenths`, weighted),
    their ``gap`` (accuracy parity), ``gini``; the numbers of ``clients`` with a value and ``left_out``.
    Source: AAggFF's metrics.
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
    """Probability that a sample of class 1 has a higher P(1) than one of class 0; ties count half.

    NaN unless both classes are present. P(1) has the precision of the confidence, float32. With the
    probabilities of more than two classes: the mean over the classes among the labels, each against the rest.
    Of several labels per sample: the mean over the labels that some samples have, and others not.
    """
    if several(table):
        return float(_of_labels(table.assign(client=0), "auroc").iloc[0])
    if (probabilities := _probabilities(table)) is not None and probabilities.shape[1] > 2:
        labels = table["label"].to_numpy()
        areas = _one_against_rest(labels, probabilities)[np.unique(labels)]
        return float(areas.mean()) if len(areas) else float("nan")
    positive = table["label"].to_numpy() == 1
    ones, zeros = positive.sum(), (~positive).sum()
    if not ones or not zeros:
        return float("nan")
    confidence = table["confidence"].to_numpy(float)
    ranks = scipy.stats.rankdata(np.where(table["predicted"] == 1, confidence, 1 - confidence))
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def _one_against_rest(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """AUROC [K] of every class against the rest; NaN without samples of the class, or without others."""
    return _areas(labels[:, None] == np.arange(probabilities.shape[1]), probabilities)


def _areas(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """AUROC [K] of every column of ``y`` [n, K], bool; NaN if all of a column are equal."""
    ones = y.sum(0).astype(float)
    sums = np.where(y, scipy.stats.rankdata(p, axis=0), 0).sum(0)
    pairs = ones * (len(y) - ones)
    return np.divide(sums - ones * (ones + 1) / 2, pairs, out=np.full(len(ones), np.nan), where=pairs > 0)


def _labels_of(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The labels of all samples [n, K], bool, and their probabilities [n, K]."""
    y, p = _numbered(table, "y"), _numbered(table, "p")
    assert y is not None and p is not None, "kept together"
    return y.astype(bool), p


def _of_labels(table: pd.DataFrame, measure: str) -> pd.Series:
    """A measure of `SEVERAL` by client; NaN if a probability is."""
    if measure not in SEVERAL:
        raise BadInput("measure", measure, f"{', '.join(SEVERAL)}, as samples have several labels")
    y, p = _labels_of(table)
    rows = table.groupby("client").indices
    values = {client: _label_score(y[at], p[at], measure) for client, at in rows.items()}
    return pd.Series(values, dtype=float).rename_axis("client")


def _label_score(y: np.ndarray, p: np.ndarray, measure: str) -> float:
    if np.isnan(p).any():
        return float("nan")
    right = (p > CUT) == y
    if measure in ("label_accuracy", "exact"):
        return float((right if measure == "label_accuracy" else right.all(1)).mean())
    if measure == "auroc":
        values = _areas(y, p)
    else:
        counts = _label_counts(y, p)
        values = _f1(*(n.sum(keepdims=True) for n in counts) if measure == "micro_f1" else counts)
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def _f1(samples: np.ndarray, predicted: np.ndarray, right: np.ndarray) -> np.ndarray:
    """F1 [K]; NaN without samples and predictions."""
    either = samples + predicted
    return np.divide(2 * right, either, out=np.full(len(either), np.nan), where=either > 0)


def _label_counts(y: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By label [K]: the numbers of samples that have it, that are predicted to, and with both."""
    predicted = p > CUT
    return y.sum(0), predicted.sum(0), (y & predicted).sum(0)


def _probabilities(table: pd.DataFrame) -> np.ndarray | None:
    """The probability of every class [n, K], or None if it was not kept."""
    return _numbered(table, "p")


def _numbered(table: pd.DataFrame, letter: str) -> np.ndarray | None:
    """The columns p0, p1, ... of a letter [n, K], or None without any."""
    names = [
        f"{letter}{c}" for c in range(sum(bool(re.fullmatch(rf"{letter}\d+", n)) for n in table.columns))
    ]
    return table[names].to_numpy(float) if names else None


def _by_class(table: pd.DataFrame) -> pd.DataFrame:
    """By client and class: ``samples``, ``predicted``, ``right`` and ``f1``."""

    def number(rows: pd.DataFrame, column: str) -> pd.Series:
        return rows.groupby(["client", column]).size().rename_axis(["client", "class"])

    right = number(table[table["label"] == table["predicted"]], "label")
    numbers = {"samples": number(table, "label"), "predicted": number(table, "predicted"), "right": right}
    counts = pd.DataFrame(numbers).fillna(0).astype(int)
    return counts.assign(f1=2 * counts["right"] / (counts["samples"] + counts["predicted"]))


def _over_classes(table: pd.DataFrame, measure: str) -> pd.Series:
    """A measure of `OF_CLASSES` by client."""
    counts = _by_class(table)
    recall = counts["right"] / counts["samples"]  # NaN without samples: not in the mean
    return (counts["f1"] if measure == "macro_f1" else recall).groupby(level="client").mean()


def _aurocs(table: pd.DataFrame) -> pd.Series:
    if not _binary(table) and _probabilities(table) is None:
        accepted = "top1, ece or mce, as there are more than two classes without run.keep_probabilities: true"
        raise BadInput("measure", "auroc", accepted)
    values = {client: auroc(rows) for client, rows in table.groupby("client")}
    return pd.Series(values, dtype=float).rename_axis("client")


def _binary(table: pd.DataFrame) -> bool:
    return bool(table[["label", "predicted"]].isin((0, 1)).all(axis=None))


def _errors(table: pd.DataFrame, part: np.ndarray, measure: str) -> np.ndarray:
    """A measure of `CALIBRATION` by part [P], NaN if a confidence is; row i is in ``part[i]``."""
    confidence, parts = table["confidence"].to_numpy(float), part.max(initial=-1) + 1
    excess, cell = (table["rank"] == 1).to_numpy() - confidence, part * BINS + _bins(confidence)
    samples, gaps = (
        np.bincount(cell, weights, parts * BINS).reshape(parts, BINS) for weights in (None, excess)
    )
    gaps = np.abs(gaps)
    if measure == "mce":
        return (gaps / np.maximum(samples, 1)).max(1)
    return gaps.sum(1) / samples.sum(1)


def _bins(confidence: np.ndarray | pd.Series) -> np.ndarray:
    """The bin of each confidence, among `BINS` equal bins (low, high]."""
    return np.digitize(confidence, np.linspace(0, 1, BINS + 1)[1:-1], right=True)
