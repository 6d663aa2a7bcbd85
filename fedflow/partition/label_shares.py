"""Label shares: a matrix gives the label mix of every client.

Order of sampling: row k of ``shares`` [N, K] is the label mix of client k; only proportions count. Sizes are
as in `iid` (equal, or with ``sigma``); if a label has too few samples for the demand, all sizes are reduced
by one factor until it suffices, whereas given ``sizes`` are kept or refused. Counts are rounded down, and the
missing samples of a client come from the labels with the largest remainders that have samples left. Samples
are permuted and dealt label by label; labels of zeros and samples outside the mixes are unused.

>>> samples = Samples(np.arange(90) % 3)
>>> split = LabelShares(shares=[[1, 1, 0], [0, 1, 2]]).split(samples, 2, np.random.default_rng(0))
>>> [np.bincount(rows % 3, minlength=3).tolist() for rows in split.train]
[[18, 18, 0], [0, 12, 24]]
"""

from pathlib import Path

import numpy as np

from fedflow.data.files import reading
from fedflow.errors import BadInput
from fedflow.partition.scheme import Samples, Split, by_counts, num_classes, register
from fedflow.partition.sizes import Sized
from fedflow.settings import option


@register("label_shares")
class LabelShares(Sized):
    shares: str | list[list[float]] = option(
        doc="a row per client with a number per label; or a file of rows, .npy or .csv without a header"
    )

    def count(self, samples: Samples) -> int:
        return len(self._matrix(samples))

    def files(self) -> list[str]:
        return [self.shares] if isinstance(self.shares, str) else []

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        matrix, stock = self._matrix(samples), np.bincount(samples.labels)
        if len(matrix) != clients:
            raise BadInput("partition.clients", clients, f"{len(matrix)}, the rows of shares")
        sizes = self.draw(len(samples.labels), clients, rng)
        counts = self._mixed(sizes, matrix / matrix.sum(1, keepdims=True), stock)
        return Split(by_counts(samples.labels, counts, rng))

    def _matrix(self, samples: Samples) -> np.ndarray:
        """The shares [N, K], checked."""
        classes, shown = num_classes(samples.labels), self.shares
        matrix = _read(samples.root / shown) if isinstance(shown, str) else _rectangle(shown)
        fits = matrix.ndim == 2 and matrix.shape[1] == classes and np.isfinite(matrix).all()
        if not fits or matrix.min() < 0 or not matrix.sum(1).all():
            accepted = f"rows of {classes} numbers >= 0, one per label, not all 0"
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
        if self.sizes is not None and (short := np.flatnonzero(counts.sum(1) < sizes)).size:
            accepted = f"less: client {short[0]} would get {counts[short[0]].sum()} samples of its labels"
            raise BadInput("partition.sizes", self.sizes, accepted)
        return counts


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
