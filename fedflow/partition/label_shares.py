"""Label shares: a matrix defines the labels of every client, and their shares.

Row k of ``shares`` [N, K] belongs to client k; only the proportions count. Order of sampling: ``by: client``
reads a row as the label mix of a client. Sizes are as in `iid` (equal, or with ``sigma``, ``power``); if a
label has too few samples for the demand, all sizes are reduced by one factor until it suffices, whereas given
``sizes`` are kept or refused. Counts are rounded down, and the missing samples of a client come from the
labels with the largest remainders that have samples left. ``by: label`` reads a column as the division of a
label: client k gets its share of all samples of it, cut at the floors of the cumulative shares. Samples are
permuted and dealt label by label; labels of zeros and samples outside the mixes are unused.
Source: the distribution partitioner of Flower Datasets is ``by: label``.

>>> samples = Samples(np.arange(90) % 3)
>>> split = LabelShares(shares=[[1, 1, 0], [0, 1, 2]]).split(samples, 2, np.random.default_rng(0))
>>> [np.bincount(rows % 3, minlength=3).tolist() for rows in split.train]
[[18, 18, 0], [0, 12, 24]]
"""

from pathlib import Path

import numpy as np

from fedflow.data.files import reading
from fedflow.errors import BadInput
from fedflow.partition.dirichlet import portions
from fedflow.partition.scheme import Samples, Split, by_counts, num_classes, register
from fedflow.partition.sizes import Sized
from fedflow.settings import option


@register("label_shares")
class LabelShares(Sized):
    shares: str | list[list[float]] = option(
        doc="a row of numbers per client, one per label; or a file of rows, .npy or .csv without a header"
    )
    by: str = option(
        "client",
        "a row is the label mix of a client, or a column the division of a label",
        choices=("client", "label"),
        source="Flower: label",
    )

    def validate(self) -> None:
        super().validate()
        for name in ("sizes", "sigma", "power"):
            if self.by == "label" and (value := getattr(self, name)):
                raise BadInput(f"partition.{name}", value, "its default: by: label defines sizes")

    def count(self, samples: Samples) -> int:
        return len(self._matrix(samples))

    def files(self) -> list[str]:
        return [self.shares] if isinstance(self.shares, str) else []

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        matrix, stock = self._matrix(samples), np.bincount(samples.labels)
        if len(matrix) != clients:
            raise BadInput("partition.clients", clients, f"{len(matrix)}, the rows of shares")
        if self.by == "label":
            counts = np.stack([_divided(n, column) for n, column in zip(stock, matrix.T)], axis=1)
        else:
            sizes = self.draw(len(samples.labels), clients, rng)
            counts = self._mixed(sizes, matrix / matrix.sum(1, keepdims=True), stock)
        return Split(by_counts(samples.labels, counts, rng))

    def _matrix(self, samples: Samples) -> np.ndarray:
        """The shares [N, K], checked."""
        classes, shown = num_classes(samples.labels), self.shares
        matrix = _read(samples.root / shown) if isinstance(shown, str) else _rectangle(shown)
        axis, who = (1, "client") if self.by == "client" else (0, "label")
        fits = matrix.ndim == 2 and matrix.shape[1] == classes and np.isfinite(matrix).all()
        if not fits or matrix.min() < 0 or not (matrix.sum(1).all() if axis else matrix.any()):
            accepted = f"rows of {classes} numbers >= 0, one per label, not all 0 (of any {who})"
            raise BadInput("partition.shares", shown, accepted)
        return matrix

    def _mixed(self, sizes: np.ndarray, mix: np.ndarray, stock: np.ndarray) -> np.ndarray:
        """Samples of each label for each client [N, K], in total at most ``stock`` [K]."""
        demand = sizes @ mix
        scarce = int(np.argmax(demand / np.maximum(stock, 1e-9)))
        if demand[scarce] > stock[scarce] + 1e-6:
            if self.sizes is not None:
                accepted = (
                    f"less: label {scarce} has {stock[scarce]} samples, clients need {demand[scarce]:g}"
                )
                raise BadInput("partition.sizes", self.sizes, accepted)
            sizes = np.floor(sizes * (stock[scarce] / demand[scarce]) + 1e-9).astype(np.int64)
        exact = sizes[:, None] * mix
        counts: np.ndarray = np.floor(exact + 1e-9).astype(np.int64)
        left = stock - counts.sum(0)
        for k in np.flatnonzero(counts.sum(1) < sizes):
            order = np.argsort(counts[k] - exact[k], kind="stable")
            order = order[(mix[k, order] > 0) & (left[order] > 0)][: sizes[k] - counts[k].sum()]
            counts[k, order] += 1
            left[order] -= 1
        return counts


def _divided(count: int, shares: np.ndarray) -> np.ndarray:
    """The number of ``count`` samples for each client [N]; 0 if no client has a share."""
    return portions(count, shares / shares.sum()) if shares.any() else np.zeros(len(shares), np.int64)


def _rectangle(rows: list[list[float]]) -> np.ndarray:
    """The rows as an array; of shape [0] if their lengths differ."""
    return np.array(rows) if len({len(row) for row in rows}) == 1 else np.empty(0)


def _read(path: Path) -> np.ndarray:
    with reading(path):
        matrix = (
            np.load(path, allow_pickle=False)
            if path.suffix == ".npy"
            else np.loadtxt(path, delimiter=",", ndmin=2, encoding="utf-8")
        )
    return matrix.astype(np.float64) if matrix.dtype.kind in "fiu" else np.empty(0)
