"""Datasets in torchvision's own layout below the data root, downloaded if they are missing.

torchvision's checksums apply. CIFAR is read from the authors' binary release, not from the pickled one that
torchvision uses. A stalled connection ends after `TIMEOUT` seconds.
"""

import contextlib
import hashlib
import socket
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fedflow.data.files import RawData
from fedflow.errors import FedflowError

TIMEOUT = 20.0  # seconds without a byte

CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
CIFAR_FILES = {  # archive, MD5, label bytes per record (the last is the class), training and test members
    "cifar10": (
        "cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        1,
        [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)],
        ["cifar-10-batches-bin/test_batch.bin"],
    ),
    "cifar100": (
        "cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        2,
        ["cifar-100-binary/train.bin"],
        ["cifar-100-binary/test.bin"],
    ),
}


@contextlib.contextmanager
def bounded_download() -> Iterator[None]:
    """Limit every wait for the network, and keep torchvision's messages off standard output."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        socket.setdefaulttimeout(before)


def mnist_like(name: str) -> Callable[[Path], RawData]:
    """Reader of ``MNIST``, ``FashionMNIST`` or ``KMNIST``."""
    return lambda root: _pair(_idx(name), root, {"train": True}, {"train": False})


def emnist(split: str) -> Callable[[Path], RawData]:
    """Reader of one EMNIST split, upright (the official images are transposed), labels from 0."""

    def read(root: Path) -> RawData:
        raw = _pair(_idx("EMNIST"), root, {"split": split, "train": True}, {"split": split, "train": False})
        first = 1 if split == "letters" else 0
        turned = raw.x_train.swapaxes(1, 2), raw.x_test.swapaxes(1, 2)
        return RawData(turned[0], raw.y_train - first, turned[1], raw.y_test - first)

    return read


def usps(root: Path) -> RawData:
    """USPS from the LIBSVM files; values in [-1, 1] become 0..255, truncated."""
    from torchvision import datasets

    return _pair(datasets.USPS, root, {"train": True}, {"train": False})


def svhn(root: Path) -> RawData:
    """SVHN, cropped digits; the ``extra`` split is unused."""
    from torchvision import datasets

    return _pair(datasets.SVHN, root, {"split": "train"}, {"split": "test"})


def stl10(root: Path) -> RawData:
    """The labeled part of STL-10."""
    from torchvision import datasets

    return _pair(datasets.STL10, root, {"split": "train"}, {"split": "test"})


def cifar(name: str) -> Callable[[Path], RawData]:
    """Reader of ``cifar10`` or ``cifar100`` (fine labels) from the authors' binary archive."""

    def read(root: Path) -> RawData:
        from torchvision.datasets.utils import download_url

        archive, md5, labels, train, test = CIFAR_FILES[name]
        path = root / archive
        if not path.is_file():
            download_url(CIFAR_URL + archive, root, archive, md5)
        with path.open("rb") as file:
            if hashlib.file_digest(file, "md5").hexdigest() != md5:
                raise FedflowError(
                    f"{path}: wrong checksum, expected MD5 {md5}; remove it for a new download"
                )
        with tarfile.open(path) as tar:
            return RawData(*_records(tar, train, labels), *_records(tar, test, labels))

    return read


def _records(tar: tarfile.TarFile, members: list[str], labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 32, 32, 3] and labels [n] of fixed-length records: label bytes, then 3x32x32 pixels."""
    parts = [tar.extractfile(name).read() for name in members]  # type: ignore[union-attr]
    records = np.frombuffer(b"".join(parts), np.uint8).reshape(-1, labels + 3072)
    return records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, labels - 1]


def _idx(name: str) -> type:
    from torchvision import datasets

    base = getattr(datasets, name)
    # Old torchvision caches are pickled .pt files; only the raw IDX files are read here.
    return type(name, (base,), {"_check_legacy_exist": lambda self: False})


def _pair(dataset: Callable, root: Path, train: dict, test: dict) -> RawData:
    def arrays(split: dict) -> tuple[np.ndarray, np.ndarray]:
        loaded = dataset(str(root), download=True, **split)
        x, y = loaded.data, loaded.targets if hasattr(loaded, "targets") else loaded.labels
        return np.asarray(x.transpose(0, 2, 3, 1) if x.ndim == 4 else x), np.asarray(y)

    return RawData(*arrays(train), *arrays(test))
