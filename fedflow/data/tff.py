"""Datasets of TensorFlow Federated: HDF5 files with the samples of every user.

``fed_emnist_train.h5`` and ``fed_emnist_test.h5`` (also ``fed_cifar100_*.h5``) hold
``examples/<user>/<pixels or image>`` and ``examples/<user>/label``. The pixels of EMNIST, in [0, 1] with a
white background, become 0 to 255. ``shakespeare_train.h5`` and ``shakespeare_test.h5`` hold
``examples/<role>/snippets``, the lines of a role.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedflow.data.features import counted, listed
from fedflow.data.files import SPLITS, DataColumn, RawData, reading
from fedflow.data.labels import numbered
from fedflow.data.shakespeare import ShakespeareOptions, encoded, stacked, windows_of
from fedflow.errors import BadInput, FedflowError
from fedflow.project.distribution import require
from fedflow.settings import Settings, option

INPUTS = ("pixels", "image")
TEXT = "snippets"
P = TypeVar("P")


class TFFOptions(Settings):
    """The target."""

    section = "data"
    target: str = option("label", "name of the labels, such as coarse_label of CIFAR-100")


def read_tff(path: Path, options: TFFOptions) -> RawData:
    """Images by user: uint8 [n, h, w] or [n, h, w, 3]; ``path`` is the folder of both files."""
    others = set[str]()
    parts = _read("tff", path, lambda users: _samples(users, options, others))
    names, users = np.unique(np.concatenate([parts[split][2] for split in SPLITS]), return_inverse=True)
    count = len(parts["train"][0])
    column = DataColumn(users[:count], users[count:], tuple(map(str, names)))
    labels = numbered(parts["train"][1], parts["test"][1])
    note = counted(names, "user") + (f"; left out: {listed(sorted(others))}" if others else "")
    x_train, x_test = (parts[split][0] for split in SPLITS)
    return RawData(x_train=x_train, x_test=x_test, columns={"user": column}, notes=(note,), **labels)


def read_tff_text(path: Path, options: ShakespeareOptions) -> RawData:
    """Windows of the joined lines of every role, tokens [n, length], and the next character [n].

    Tokens are the ranks of the characters of both files. Roles without ``min_samples`` training windows are
    left out.
    """
    parts = _read("tff_shakespeare", path, _lines)
    alphabet = "".join(sorted({*"".join(text for texts in parts.values() for text in texts.values())}))
    cut = {
        split: {role: windows_of(encoded(text, alphabet), options) for role, text in texts.items()}
        for split, texts in parts.items()
    }
    roles = [role for role, windows in cut["train"].items() if len(windows) >= options.min_samples]
    arrays = []
    for split in SPLITS:
        held = [(cut[split][role], number) for number, role in enumerate(roles) if role in cut[split]]
        if not any(len(windows) for windows, _ in held):
            raise FedflowError(f"{path}: no role has {options.length + 1} characters in *_{split}.h5")
        arrays.append(stacked(held))
    (x_train, y_train, train), (x_test, y_test, test) = arrays
    columns = {"user": DataColumn(train, test, tuple(roles))}
    left = len(parts["train"]) - len(roles)
    note = counted(roles, "role") + (f"; left out: {left}, with too few training windows" if left else "")
    return RawData(x_train, y_train, x_test, y_test, tuple(alphabet), columns, notes=(note,))


def _lines(users: Any) -> dict[str, str]:
    """The joined lines of every role."""
    if strange := [
        f"user {user!r} has {listed(group)}" for user, group in users.items() if TEXT not in group
    ]:
        raise ValueError(f"{strange[0]}; needs {TEXT}")
    return {user: "\n".join(line.decode() for line in group[TEXT][()]) for user, group in users.items()}


def _read(source: str, path: Path, read: Callable[[Any], P]) -> dict[str, P]:
    """The results of ``read`` for the users of both files, by split."""
    require(f"source {source!r}", "h5py", part="hdf5")
    import h5py

    parts = {}
    for split in SPLITS:
        files = sorted(path.glob(f"*_{split}.h5")) if path.is_dir() else []
        if len(files) != 1:
            raise FedflowError(
                f"{path}: has {counted(files, 'file')} *_{split}.h5; needs a folder with one, and its pair"
            )
        with reading(files[0]), h5py.File(files[0]) as file:
            if "examples" not in file:
                raise ValueError("has no group `examples`, by which TensorFlow Federated keeps users")
            parts[split] = read(file["examples"])
    return parts


def _samples(users: Any, options: TFFOptions, others: set[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, labels and user names of all users; the names of other arrays are added to ``others``."""
    x, y, names = [], [], []
    for user, group in users.items():
        field = next((name for name in INPUTS if name in group), None)
        if field is None or options.target not in group:
            there = listed(group)
            if field is None:
                other = "; source: tff_shakespeare reads snippets" if TEXT in group else ""
                raise ValueError(f"user {user!r} has {there}; needs {' or '.join(INPUTS)}, and labels{other}")
            raise BadInput("data.target", options.target, f"one of {there}")
        others |= group.keys() - {field, options.target}
        images, labels = group[field][()], group[options.target][()].ravel()
        if len(images) != len(labels):
            raise ValueError(f"user {user!r} has {len(images)} images and {len(labels)} labels")
        x.append(_bytes(images))
        y.append(labels)
        names.append(np.full(len(labels), user))
    return np.concatenate(x), np.concatenate(y), np.concatenate(names)


def _bytes(images: np.ndarray) -> np.ndarray:
    """Pixels in [0, 1] as 0 to 255."""
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind != "f" or not (images.min() >= 0 and images.max() <= 1):
        raise ValueError("holds pixels outside 0..1")
    return np.rint(images * 255).astype(np.uint8)
