"""Samples read from an ``.npz`` file: shapes are known before anything is unpacked; nothing is unpickled."""

import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from fedflow.data.features import listed
from fedflow.data.files import ARRAYS, KINDS, MAX_IMAGE_BYTES, SPLITS, DataColumn, RawData, reading, regular
from fedflow.data.labels import labels_as_reals
from fedflow.errors import FedflowError

MEDMNIST = ("train_images", "train_labels", "test_images", "test_labels")  # ARRAYS in MedMNIST's files
PICKLED = (
    "a pickle, which can run any code and is not loaded; docs/howto/files.md has the lines that convert it"
)
Headers = dict[str, tuple[tuple[int, ...], np.dtype]]


def read_npz(path: Path) -> RawData:
    """The arrays ``x_train, y_train, x_test, y_test`` of an ``.npz`` file; pickled arrays are refused.

    The names of MedMNIST's files are accepted too; their labels [n, 1] become [n]. Every other pair
    ``<name>_train, <name>_test`` is a column; further arrays are left out, and noted. Shapes are compared
    before anything is unpacked.
    """
    with reading(regular(path, folders=False)):
        if path.is_file() and not zipfile.is_zipfile(path):
            raise FedflowError(f"{path}: not an .npz file, or cut short")
        headers = _headers(path)
        names = MEDMNIST if not headers.keys() & set(ARRAYS) and headers.keys() & set(MEDMNIST) else ARRAYS
        if missing := [name for name in names if name not in headers]:
            if pickled := [name for name, (_, dtype) in headers.items() if dtype.hasobject]:
                raise FedflowError(f"{path}: {pickled[0]} is {PICKLED}")
            forms = f"{', '.join(ARRAYS)} (or {', '.join(MEDMNIST)}, as MedMNIST has)"
            raise FedflowError(f"{path}: has no array {', '.join(missing)}; needs {forms}")
        stems, others = [], []
        for name in sorted(headers.keys() - set(names)):
            stem, _, split = name.rpartition("_")
            if split not in SPLITS or names == MEDMNIST:
                others.append(name)
                continue
            train, test = (f"{stem}_{split}" for split in SPLITS)
            if {train, test} - headers.keys():
                raise FedflowError(f"{path}: a column is a pair; {train} and {test} are not both there")
            stems.append(stem)
        _need_rows(path, names, [(f"{stem}_{split}", split) for stem in stems for split in SPLITS], headers)
        with np.load(path, allow_pickle=False) as archive:
            columns = {
                stem: DataColumn(archive[f"{stem}_train"], archive[f"{stem}_test"])
                for stem in dict.fromkeys(stems)
            }
            x_train, y_train, x_test, y_test = (archive[name] for name in names)
    if names == MEDMNIST:
        y_train, y_test = (y[:, 0] if y.shape[1:] == (1,) else y for y in (y_train, y_test))
    if found_labels := labels_as_reals(y_train):
        raise FedflowError(
            f"{path}: y_train is {y_train.dtype} and holds {found_labels}; save labels as whole numbers, and "
            "real targets as [n, 1]"
        )
    notes = (f"left out: {listed(f'{name} {list(headers[name][0])}' for name in others)}",) if others else ()
    return RawData(x_train, y_train, x_test, y_test, columns=columns, notes=notes)


def _headers(path: Path) -> Headers:
    """Shape and type of every array of an ``.npz`` file, none of which is unpacked."""
    headers = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as stream:
                shape, dtype = _header(name, stream)
                size, held = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
            if size != held and not dtype.hasobject:
                raise ValueError(f"{name} should hold {size} bytes, {dtype} {list(shape)}; it has {held}")
            headers[name] = shape, dtype
    return headers


def _header(name: str, stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of an ``.npy`` array."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        shape, _, dtype = readers[np.lib.format.read_magic(stream)](stream)
    except zipfile.BadZipFile:
        raise
    except Exception:  # NumPy raises almost anything, with the header's text and addresses of memory
        raise ValueError(f"{name} is not an .npy array, or has a damaged header") from None
    return shape, dtype


def _need_rows(path: Path, names: tuple[str, ...], columns: list[tuple[str, str]], headers: Headers) -> None:
    """Refuse arrays that are pickled, whose rows do not belong together, or whose samples are too large."""
    for name in (*names, *(column for column, _ in columns)):
        shape, dtype = headers[name]
        if dtype.hasobject:
            raise ValueError(f"{name} is {PICKLED}")
        if math.prod(shape[1:]) * dtype.itemsize > MAX_IMAGE_BYTES:
            raise ValueError(f"{name} is {dtype} {list(shape)}, whose samples are too large")
    rows = {}
    for split, (x, y) in zip(SPLITS, (names[:2], names[2:])):
        (inputs, kind), (labels, _) = headers[x], headers[y]
        if inputs and labels and inputs[0] != labels[0]:
            words = KINDS.get(kind, "samples")
            raise FedflowError(f"{path}: {inputs[0]} {words} in {x}, {labels[0]} labels in {y}")
        rows[split] = inputs[:1]
    for name, split in columns:
        shape, dtype = headers[name]
        if shape != rows[split]:
            layout = f"column {name.rpartition('_')[0]!r} is {dtype} {list(shape)} in {split}"
            raise FedflowError(f"{path}: {layout}; needs whole numbers {list(rows[split])}")
