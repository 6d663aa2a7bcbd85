"""Labelled images read from files: ``.npz`` arrays, image folders and tars of image folders.

Nothing is unpickled and nothing is unpacked to disk. Whatever is wrong with a file becomes one
`FedflowError` that starts with its path.
"""

import io
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from fedflow.errors import FedflowError

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
SPLITS = ("train", "test")
MAX_IMAGE_BYTES = 1 << 26  # larger members of a tar are refused before they are read


@dataclass(frozen=True, eq=False)
class Column:
    """A fact about every sample, such as its user or domain: whole numbers ``train`` [n], ``test`` [t].

    ``names[v]`` says what value v means; empty where the numbers speak for themselves.
    """

    train: np.ndarray
    test: np.ndarray
    names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class RawData:
    """Both splits of a data set as its files hold them, before padding and normalisation.

    ``x_*`` is uint8, [n, h, w] for grey images and [n, h, w, 3] for colour (RGB), or float32 features
    [n, d], or int32 tokens [n, L]; ``y_*`` holds whole numbers [n], or real targets; ``classes`` names
    label 0, 1, ... and is empty where the files do not name them; ``columns`` are facts per sample.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...] = ()
    columns: dict[str, Column] = field(default_factory=dict)


def reason(error: BaseException) -> str:
    """The first line of an error's text, or the name of its type."""
    if isinstance(error, KeyError):
        return f"has no {error}"
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn whatever goes wrong while ``path`` is read into one `FedflowError` that names it."""
    try:
        yield
    except FedflowError:
        raise
    except Exception as error:  # decoders of damaged files raise almost anything
        raise FedflowError(f"{path}: cannot be read: {reason(error)}") from error


def read_npz(path: Path) -> RawData:
    """The arrays ``x_train, y_train, x_test, y_test`` of an ``.npz`` file; pickled arrays are refused."""
    with reading(path):
        if path.is_file() and not zipfile.is_zipfile(path):
            raise FedflowError(f"{path}: not an .npz file, or cut short")
        with np.load(path, allow_pickle=False) as archive:
            if missing := [name for name in ARRAYS if name not in archive.files]:
                raise FedflowError(f"{path}: has no array {', '.join(missing)}; needs {', '.join(ARRAYS)}")
            return RawData(*(archive[name] for name in ARRAYS))


def read_images(path: Path) -> RawData:
    """The images of a tree or of a tar of one."""
    return (read_folder if path.is_dir() else read_tar)(path)


def read_folder(path: Path) -> RawData:
    """The images of a tree ``train/<class>/*``, ``test/<class>/*``; classes in alphabetical order."""

    def images() -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
        for split in SPLITS:
            for file in (path / split).glob("*/*"):
                if file.is_file():
                    with file.open("rb") as stream:
                        yield PurePosixPath(file.relative_to(path).as_posix()), stream

    with reading(path):
        return _stacked(path, images())


def read_tar(path: Path) -> RawData:
    """The images of a tar (plain or compressed) of such a tree, read in memory.

    Links, devices, absolute paths and paths that climb out with ``..`` are refused.
    """

    def images(archive: tarfile.TarFile) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
        for member in archive:
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts or not (member.isfile() or member.isdir()):
                raise FedflowError(f"{path}: unsafe member {member.name!r} (a link, device or outside path)")
            if member.size > MAX_IMAGE_BYTES:
                raise FedflowError(f"{path}: member {member.name!r} is too large for an image")
            if member.isfile() and (stream := archive.extractfile(member)):
                yield name, io.BytesIO(stream.read())
        # tarfile takes a damaged header for the end of the archive; the real end is a block of zeros.
        archive.fileobj.seek(archive.offset)
        if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise FedflowError(f"{path}: the tar is damaged or cut short")

    with reading(path), tarfile.open(path) as archive:
        return _stacked(path, images(archive))


def _stacked(path: Path, images: Iterable[tuple[PurePosixPath, IO[bytes]]]) -> RawData:
    """Decode ``.../<split>/<class>/<image>`` streams; order by class, then by name."""
    found: dict[str, dict[tuple[str, str], np.ndarray]] = {split: {} for split in SPLITS}
    trees, size = set(), None
    for name, stream in images:
        *tree, split, label, file = ("", "", *name.parts)
        if split not in SPLITS or label.startswith(".") or file.startswith("."):
            continue
        trees.add(tuple(tree))
        with reading(f"{path}: {name}"):
            image = _decode(stream)
        size = size or image.shape[:2]
        if image.shape[:2] != size:
            raise FedflowError(f"{path}: {name} is {image.shape[:2]} pixels, the others are {size}")
        found[split][label, file] = image
    if len(trees) > 1:
        raise FedflowError(f"{path}: holds several image trees; needs one train/ and one test/ folder")
    for split in SPLITS:
        if not found[split]:
            raise FedflowError(f"{path}: holds no image {split}/<class>/<image>")
    classes = sorted({label for label, _ in found["train"]})
    if unknown := sorted({label for label, _ in found["test"]} - set(classes)):
        raise FedflowError(f"{path}: class {unknown[0]!r} is in test/ but not in train/")
    colour = any(image.ndim == 3 for split in SPLITS for image in found[split].values())

    def arrays(images: dict[tuple[str, str], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        keys = sorted(images)
        x = np.stack([_coloured(images[key], colour) for key in keys])
        return x, np.array([classes.index(label) for label, _ in keys], np.int64)

    return RawData(*arrays(found["train"]), *arrays(found["test"]), tuple(classes))


def _decode(stream: IO[bytes]) -> np.ndarray:
    """One image as uint8, [h, w] if it is grey, else [h, w, 3]."""
    from PIL import Image

    with Image.open(stream) as image:
        if image.mode.startswith(("I", "F")):
            raise ValueError(f"has pixels of mode {image.mode}; only 8-bit images are accepted")
        return np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))


def _coloured(image: np.ndarray, colour: bool) -> np.ndarray:
    return np.stack([image] * 3, axis=-1) if colour and image.ndim == 2 else image


def checked(raw: RawData, origin: str, classes: tuple[str, ...], shape: tuple | None) -> RawData:
    """``raw`` with int64 labels and named classes, or a `FedflowError` that starts with ``origin``.

    ``classes`` and ``shape`` (C, H, W) are what the source promises; empty and None accept any.
    Training labels must be exactly 0..K-1.
    """

    def need(fine: bool, problem: str) -> None:
        if not fine:
            raise FedflowError(f"{origin}: {problem}")

    for split in SPLITS:
        x, y = getattr(raw, f"x_{split}"), getattr(raw, f"y_{split}")
        colour = x.ndim == 4 and x.shape[-1] == 3
        layout = f"x_{split} is {x.dtype} {list(x.shape)}"
        need(x.dtype == np.uint8, f"{layout}; needs uint8")
        need((x.ndim == 3 or colour) and x.size > 0, f"{layout}; needs [n, h, w] or [n, h, w, 3]")
        labels = f"y_{split} is {y.dtype} {list(y.shape)}"
        need(y.dtype.kind in "iu" and y.ndim == 1, f"{labels}; needs whole numbers [n]")
        need(len(x) == len(y), f"{len(x)} images in x_{split}, {len(y)} labels in y_{split}")
        need(x.shape[1:] == raw.x_train.shape[1:], f"{layout}; x_train has {list(raw.x_train.shape)}")
        found = (3 if colour else 1, *x.shape[1:3])
        need(shape is None or found == shape, f"images are {found} (channels, height, width), not {shape}")

    present = np.unique(raw.y_train)
    if raw.classes and classes:
        need(set(raw.classes) == set(classes), f"class folders {list(raw.classes)}; needs {list(classes)}")
    names = classes or raw.classes or tuple(map(str, range(len(present))))
    fits = np.array_equal(present, np.arange(len(names)))
    need(fits, f"y_train must hold the labels 0..{len(names) - 1}; it holds {_brief(present)}")
    stray = np.setdiff1d(raw.y_test, present)
    need(not stray.size, f"y_test holds labels that y_train does not: {_brief(stray)}")

    # An image folder numbers its classes by name; a named source by its own order.
    renumber = np.array([names.index(name) for name in raw.classes or names])
    return RawData(raw.x_train, renumber[raw.y_train], raw.x_test, renumber[raw.y_test], names)


def _brief(labels: np.ndarray) -> str:
    return ", ".join(map(str, labels[:8])) + (", ..." if len(labels) > 8 else "")
