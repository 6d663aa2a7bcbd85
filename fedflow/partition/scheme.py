"""Partition schemes: their base class and their registry."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from fedflow.data import DataColumn, Dataset
from fedflow.errors import BadInput, FedflowError
from fedflow.settings import Settings

Indices = list[np.ndarray]  # one sorted int64 array of sample rows per client


@dataclass(frozen=True, eq=False)
class Samples:
    """What a scheme may use of a data set: n training and t test samples.

    ``labels`` [n] and ``test_labels`` [t] are 0..K-1 (real targets in regression); ``columns`` are metadata
    of samples, such as its user; ``inputs()`` returns pixels or features [n, ...],
    ``losses(difficulty)`` an expert's loss per training sample [n]. ``root`` is the folder of the files that
    a scheme names.
    """

    labels: np.ndarray
    test_labels: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    columns: Mapping[str, DataColumn] = field(default_factory=dict)
    inputs: Callable[[], np.ndarray] = lambda: np.empty((0, 1, 8, 8), np.uint8)
    losses: Callable[[Any], np.ndarray] = lambda difficulty: np.empty(0)
    root: Path = field(default_factory=Path)

    @classmethod
    def of(cls, dataset: Dataset, **more: Any) -> "Samples":
        """Those of a prepared data set; if targets are sequences, all samples have the label 0.

        Of several real targets, the first one counts.
        """
        real = dataset.y_train.is_floating_point()
        train, test = (
            y.reshape(len(y), -1)[:, 0].numpy() if real or y.ndim == 1 else np.zeros(len(y), np.int64)
            for y in (dataset.y_train, dataset.y_test)
        )
        return cls(train, test, dataset.columns, inputs=dataset.x_train.numpy, **more)

    def only(self, rows: np.ndarray) -> "Samples":
        """Restricted to the training samples at ``rows`` [m], sorted."""
        columns = {n: replace(column, train=column.train[rows]) for n, column in self.columns.items()}
        return replace(self, labels=self.labels[rows], columns=columns, inputs=lambda: self.inputs()[rows])

    def column(self, name: str, field: str = "partition.column") -> DataColumn:
        """The named column; `BadInput` of ``field`` if the data set has none."""
        if name not in self.columns:
            there = ", ".join(sorted(self.columns))
            raise BadInput(field, name, f"a column of the data set: {there or 'it has none'}")
        return self.columns[name]


@dataclass(frozen=True, eq=False)
class Split:
    """The result of a scheme.

    ``train``: one sorted array of training rows per client. ``groups`` [N]: planted groups.
    ``pools``: disjoint arrays of test rows, and ``own``: the pools that make up each client's test
    set; by default a client is tested on all test samples of the labels that it trains on.
    ``selection``: rows that each client holds out for model selection. ``held_out``: pools are training rows.
    ``train_labels`` [n], ``test_labels`` [t]: labels that replace those of the data set.
    """

    train: Indices
    groups: np.ndarray | None = None
    pools: Indices | None = None
    own: Indices | None = None
    selection: Indices | None = None
    held_out: bool = False
    train_labels: np.ndarray | None = None
    test_labels: np.ndarray | None = None


class Scheme(Settings):
    """Base of all schemes: typed parameters and one pure function, `split`."""

    section: ClassVar[str] = "partition"
    name: ClassVar[str] = ""
    by_row: ClassVar[bool] = False  # names rows of all training samples

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        """Divide the samples. Raises `BadInput` if that is impossible."""
        raise NotImplementedError

    @property
    def renames(self) -> bool:
        """Whether `split` gives the classes of each client other names."""
        return False

    def files(self) -> list[str]:
        """The files that the parameters name, relative to the project's root."""
        return []

    def count(self, samples: Samples) -> int:
        """The number of clients if ``clients`` is not given: only some schemes know it."""
        raise BadInput("partition.clients", None, "a whole number >= 1")


SCHEMES: dict[str, type[Scheme]] = {}

S = TypeVar("S", bound=type[Scheme])


def register(name: str) -> Callable[[S], S]:
    """Class decorator: register a scheme as ``name``; `BadInput` for the name of another module's scheme."""

    def add(cls: S) -> S:
        if (known := SCHEMES.get(name)) is not None and known.__module__ != cls.__module__:
            raise BadInput("name", name, f"another name than a scheme of {known.__module__}")
        cls.name = name
        SCHEMES[name] = cls
        return cls

    return add


def runs(owners: np.ndarray, count: int) -> np.ndarray:
    """The owner of each of ``count`` samples, divided equally among ``owners``; the first get one more."""
    size, more = divmod(count, len(owners))
    return np.repeat(owners, size + (np.arange(len(owners)) < more))


def gather(owner: np.ndarray, clients: int) -> Indices:
    """The sorted rows of each client, from the owner of every sample [n]; -1 = no owner."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(clients)))[1:]


def by_counts(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> Indices:
    """``counts[k, c]`` random samples of label c for client k, without replacement; the others are unused."""
    clients, classes = counts.shape
    unused = np.bincount(labels, minlength=classes) - counts.sum(0)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    owner = np.empty(len(labels), np.int64)
    everybody = np.append(np.arange(clients), -1)
    owner[order] = np.repeat(np.tile(everybody, classes), np.vstack([counts, unused]).T.ravel())
    return gather(owner, clients)


def renamed(labels: np.ndarray, parts: Indices, names: np.ndarray) -> np.ndarray:
    """``labels`` [n] as their clients name them (``names`` [N, K]); 0 for unused samples."""
    changed = np.zeros_like(labels)
    for k, rows in enumerate(parts):
        changed[rows] = names[k, labels[rows]]
    return changed


def numbered(column: DataColumn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The v training values of a column, and those of all samples as 0..v-1 (-1: not in training)."""
    values, train = np.unique(column.train, return_inverse=True)
    test = np.searchsorted(values, column.test).clip(max=len(values) - 1)
    return values, train, np.where(values[test] == column.test, test, -1)


def spread(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` distinct, evenly spaced numbers of 0..total-1, so that every run contributes its share."""
    return ((np.arange(count) + rng.random()) * total / count).astype(int).clip(max=total - 1)


def num_classes(labels: np.ndarray) -> int:
    """K, the number of classes of labels 0..K-1. Raises `FedflowError` for real targets."""
    if labels.dtype.kind == "f":
        raise FedflowError(
            "partition: the targets of this data set are numbers, not classes; choose a scheme that does not "
            "look at them, such as natural or iid"
        )
    return int(labels.max()) + 1
