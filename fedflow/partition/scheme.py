"""Base class and registry of partition schemes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedflow.data import DataColumn, Dataset
from fedflow.errors import MISSING, BadInput, FedflowError
from fedflow.heterogeneity.distances import total_variation
from fedflow.settings import Settings, registering

Indices = list[np.ndarray]  # one sorted int64 array of sample rows per client


@dataclass(frozen=True, eq=False)
class Samples:
    """The n training and t test samples of a dataset, as far as schemes use them.

    ``labels`` [n] and ``test_labels`` [t] are 0..K-1, or real targets in regression. ``columns`` are metadata
    of samples, such as the user. ``inputs()`` returns pixels or features [n, ...], and
    ``losses(difficulty)`` an expert's loss for each training sample [n]. File names in the parameters of a
    scheme are relative to ``root``. ``several``: samples can have several labels, whose number is then the
    real target. ``pooled``: the test samples are training samples too.
    """

    labels: np.ndarray
    test_labels: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    columns: Mapping[str, DataColumn] = field(default_factory=dict)
    inputs: Callable[[], np.ndarray] = lambda: np.empty((0, 1, 8, 8), np.uint8)
    losses: Callable[[Any], np.ndarray] = lambda difficulty: np.empty(0)
    root: Path = field(default_factory=Path)
    several: bool = False
    pooled: bool = False

    @classmethod
    def of(cls, dataset: Dataset, **more: Any) -> "Samples":
        """The samples of a prepared dataset, which are not writable.

        If targets are sequences, all samples have the label 0; of several real targets, the first counts. Of
        several labels per sample, their number is a real target.
        """
        train, test = fixed(_labels(dataset.y_train)), fixed(_labels(dataset.y_test))
        several = dataset.y_train.dtype == torch.bool

        def inputs() -> np.ndarray:
            return fixed(dataset.x_train.numpy())

        return cls(
            train, test, dataset.columns, inputs=inputs, several=several, pooled=dataset.pooled, **more
        )

    def need_one_label(self) -> None:
        """Raise `FedflowError` if samples can have several labels."""
        if self.several:
            raise no_classes()

    def only(self, rows: np.ndarray) -> "Samples":
        """The same with only the training samples at the sorted ``rows`` [m]."""
        columns = {n: replace(column, train=column.train[rows]) for n, column in self.columns.items()}
        return replace(self, labels=self.labels[rows], columns=columns, inputs=lambda: self.inputs()[rows])

    def column(self, name: str, field: str = "partition.column") -> DataColumn:
        """The named column. Raises `BadInput` for ``field`` if the dataset has none."""
        if name not in self.columns:
            there = ", ".join(sorted(self.columns))
            raise BadInput(field, name, f"a column of the dataset: {there or 'it has none'}")
        return self.columns[name]


@dataclass(frozen=True, eq=False)
class Split:
    """The result of a scheme.

    ``train`` has one sorted array of training rows per client, ``groups`` [N] are the planted groups.
    ``pools`` are disjoint arrays of test rows, and ``own`` lists the pools in the test set of each client; by
    default a client is tested on all test samples of the labels it trains on. ``selection`` are rows that
    each client holds out for model selection; ``held_out``: pools are training rows. ``train_labels`` [n] and
    ``test_labels`` [t] replace the labels of the dataset.
    """

    train: Indices
    groups: np.ndarray | None = None
    pools: Indices | None = None
    own: Indices | None = None
    selection: Indices | None = None
    held_out: bool = False
    train_labels: np.ndarray | None = None
    test_labels: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Raise `FedflowError` for labels that are not whole numbers."""
        for name in ("train_labels", "test_labels"):
            labels = getattr(self, name)
            if labels is not None and (kind := np.asarray(labels).dtype).kind not in "iu":
                raise FedflowError(f"{name} of a scheme must be whole numbers, not {kind}")


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
        """True if `split` renames the classes of each client."""
        return False

    def files(self) -> list[str]:
        """The files named in the parameters, relative to the project's root."""
        return []

    def count(self, samples: Samples) -> int:
        """The number of clients when ``clients`` is not given, for schemes that define one."""
        raise BadInput("partition.clients", MISSING, "a whole number >= 1")


def fixed(values: np.ndarray) -> np.ndarray:
    """A view of the values that cannot be changed."""
    view = values.view()
    view.flags.writeable = False
    return view


def _labels(y: Tensor) -> np.ndarray:
    """The labels or real targets [n] that schemes see, for targets ``y`` [n, ...]."""
    if y.dtype == torch.bool:
        return y.sum(1).float().numpy()
    if y.is_floating_point() or y.ndim == 1:
        return y.reshape(len(y), -1)[:, 0].numpy()
    return np.zeros(len(y), np.int64)


SCHEMES: dict[str, type[Scheme]] = {}

S = TypeVar("S", bound=type[Scheme])


def register(name: str) -> Callable[[S], S]:
    """Class decorator: register a scheme as ``name``. Raises `BadInput` for another module's name."""
    return registering(SCHEMES, Scheme)(name, name)


def runs(owners: np.ndarray, count: int) -> np.ndarray:
    """The owners of ``count`` samples, divided equally among ``owners``; the first get one more."""
    size, more = divmod(count, len(owners))
    return np.repeat(owners, size + (np.arange(len(owners)) < more))


def gather(owner: np.ndarray, clients: int) -> Indices:
    """The sorted rows of each client, from the owner of every sample [n] (-1: no owner)."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(clients)))[1:]


def by_counts(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> Indices:
    """``counts[k, c]`` random samples of label c for client k, without replacement."""
    clients, classes = counts.shape
    unused = np.bincount(labels, minlength=classes) - counts.sum(0)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    owner = np.empty(len(labels), np.int64)
    everybody = np.append(np.arange(clients), -1)
    owner[order] = np.repeat(np.tile(everybody, classes), np.vstack([counts, unused]).T.ravel())
    return gather(owner, clients)


def renamed(labels: np.ndarray, parts: Indices, names: np.ndarray) -> np.ndarray:
    """``labels`` [n] renamed by client with ``names`` [N, K]; 0 for unused samples."""
    changed = np.zeros_like(labels)
    for k, rows in enumerate(parts):
        changed[rows] = names[k, labels[rows]]
    return changed


def numbered(column: DataColumn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The v training values of a column, and the value of every sample as 0..v-1 (-1: not in training)."""
    values, train = np.unique(column.train, return_inverse=True)
    test = np.searchsorted(values, column.test).clip(max=len(values) - 1)
    return values, train, np.where(values[test] == column.test, test, -1)


def spread(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` distinct, evenly spaced numbers in 0..total-1: every stretch contributes its share."""
    return ((np.arange(count) + rng.random()) * total / count).astype(int).clip(max=total - 1)


def label_skew(counts: np.ndarray | None) -> dict[str, float]:
    """Labels per client, and total variation between the labels of a client and of all; means over clients.

    ``counts`` [N, K] are samples by client and label, or None for real targets.
    """
    if counts is None:
        return {}
    shares, overall = counts / counts.sum(1, keepdims=True), counts.sum(0) / counts.sum()
    return {
        "labels_per_client": float((counts > 0).sum(1).mean()),
        "skew": float(total_variation(shares, overall).mean()),
    }


def num_classes(labels: np.ndarray) -> int:
    """K, the number of classes of labels 0..K-1. Raises `FedflowError` for other targets."""
    if labels.dtype.kind == "f":
        raise no_classes()
    return int(labels.max()) + 1


def no_classes() -> FedflowError:
    return FedflowError(
        "partition: the targets of this dataset are several labels per sample, or numbers, not classes; "
        "choose a scheme that does not use labels, such as natural or iid"
    )
