"""The rule of labels, in files and in arrays of the caller: 0..K-1, each with training samples."""

from typing import Any, NamedTuple

import numpy as np

NUMBERED = "names = np.unique(y), y = np.searchsorted(names, y), test labels likewise"
LOSSES = ("mse", "bce")  # squared error of real targets, binary cross-entropy of several labels per sample
PRECISION = 1e-3  # largest error of a real target in float32, in standard deviations
FEW = 20  # different whole numbers that real targets rarely are


class Misfit(NamedTuple):
    """Labels that are not 0..classes-1: the split that has them, the labels in words, and what to do."""

    split: str
    shown: str
    classes: int
    remedy: str


def misfit(train: np.ndarray, test: np.ndarray, count: int = 0, complete: bool = True) -> Misfit | None:
    """The labels of a split that are not among 0..K-1, None if all are.

    K is ``count``, or if that is 0, as many as occur. ``complete``: every label must have a training sample.
    """
    present = np.unique(train)
    several = len(present) > 1
    total = count or (len(present) if several else 1 + max(0, int(train.max()), int(test.max())))
    every = np.arange(total)
    if complete and not np.array_equal(present, every):
        return Misfit("train", brief(present), total, "" if count else remedy(present))
    for split, labels in (("train", present), ("test", np.unique(test))):
        if (stray := np.setdiff1d(labels, every)).size:
            return Misfit(split, brief(stray), total, "")
    return None


def numbered(train: np.ndarray, test: np.ndarray) -> dict[str, Any]:
    """Labels of any values as ``y_train`` and ``y_test``, 0..K-1 in sorted order, and their ``classes``.

    Raises ValueError for numbers that are not whole.
    """
    values = np.unique(np.concatenate([train, test]))
    if values.dtype.kind == "f" and (values % 1).any():
        raise ValueError(f"y holds {values[values % 1 != 0][0]}, no label; set data.task: regression")
    names = (f"{value:.0f}" if values.dtype.kind == "f" else str(value) for value in values)
    y_train, y_test = (np.searchsorted(values, y) for y in (train, test))
    return {"y_train": y_train, "y_test": y_test, "classes": tuple(names)}


def remedy(present: np.ndarray) -> str:
    """A hint on numbering the sorted labels ``present`` [K] from 0 to K - 1, to follow an error."""
    first = int(present[0])
    if len(present) > 1 and (np.diff(present) == 1).all():
        return f": subtract {first}" if first > 0 else f": add {-first}"
    return f": number them with {NUMBERED}; real targets of a regression are float32"


def labels_as_reals(y: np.ndarray) -> str:
    """The values of real targets [n] that look like labels in a float column, in words; empty if none do.

    These are few whole numbers, or the numbers from 0 or 1 without a gap.
    """
    if y.dtype.kind != "f" or y.ndim != 1 or not len(y) or (y % 1).any():
        return ""
    values = np.unique(y).astype(np.int64)
    counted = bool(values[0] in (0, 1) and (np.diff(values) == 1).all())
    most = len(y) - 1 if counted else min(FEW, len(y) // 2)
    return brief(values) if 1 < len(values) <= most else ""


def reals(*parts: np.ndarray) -> list[np.ndarray]:
    """The real targets of some ``parts`` as float32.

    Raises ValueError if they are too large for it, or differ by less than its precision, as times do.
    """
    y = np.concatenate(parts).astype(np.float64)
    if np.abs(y).max(initial=0) > np.finfo(np.float32).max:
        raise ValueError(f"a target of {np.abs(y).max():.3g} is too large for float32")
    made = y.astype(np.float32)
    if len(y) and (lost := (np.abs(made - y).max(0) > PRECISION * y.std(0)) & (np.ptp(y, 0) > 0)).any():
        least, most = (bound(y, 0)[lost].flat[0] for bound in (np.min, np.max))
        raise ValueError(
            f"targets from {least:.12g} to {most:.12g} differ too little for float32; subtract their mean"
        )
    return [part.astype(np.float32) for part in parts]


def binary_rows(y: np.ndarray) -> str:
    """ "one-hot" or "multi-label" if ``y`` [n, C] holds only 0 and 1; else empty."""
    if not np.isin(y, (0, 1)).all():
        return ""
    return "one-hot" if (y.sum(1) == 1).all() else "multi-label"


def several(y: np.ndarray) -> bool:
    """True for labels ``y`` [n, C] of which a sample can have several: only 0 and 1."""
    return y.ndim == 2 and bool(y.size) and y.dtype.kind in "biuf" and bool(np.isin(y, (0, 1)).all())


def brief(labels: np.ndarray) -> str:
    """Labels in words."""
    return ", ".join(map(str, labels[:8])) + (", ..." if len(labels) > 8 else "")
