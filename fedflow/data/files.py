"""Samples read from files: image folders and tars of image folders.

Nothing is unpickled or unpacked to disk. Any fault of a file becomes one `FedflowError` that starts with
its path.
"""

import csv
import io
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from fedflow.data.encoding import Encoding
from fedflow.data.features import listed
from fedflow.data.images import Constants, squared
from fedflow.data.split import draw_test
from fedflow.errors import FedflowError, reason
from fedflow.settings import Settings, option

KINDS = {np.dtype(np.uint8): "images", np.dtype(np.float32): "features", np.dtype(np.int32): "tokens"}
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
SPLITS = ("train", "test")
WHOLE = re.compile("0|-?[1-9][0-9]{0,17}")  # of int64
MAX_IMAGE_BYTES = 1 << 26  # larger samples are refused before they are read
JUNK = {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin"}  # of file managers


@dataclass(frozen=True, eq=False)
class DataColumn:
    """A fact about every sample, such as its user or domain: whole numbers ``train`` [n], ``test`` [t].

    ``names[v]`` is the meaning of value v; empty if values have no names.
    """

    train: np.ndarray
    test: np.ndarray
    names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class RawData:
    """Both splits of a dataset, as read from its files.

    ``x_*`` is uint8 images, [n, h, w] for gray and [n, h, w, 3] for color (RGB), or float32 features
    [n, ...], or int32 tokens [n, L]. ``y_*`` holds labels [n], or float32 targets [n] (regression), or for
    tokens a target at each position [n, L], or several labels per sample, 0 and 1 [n, K]. ``classes`` names
    label 0, 1, ...: it is empty for regression, and if the files do not name them; for tokens it is the
    vocabulary. ``columns`` are metadata of samples.
    ``mean`` and ``std`` normalize images: a value per channel, or one such tuple for every value of the
    column ``domain``; empty if unknown. ``notes`` are lines for the user: what was read, and what was not.
    ``encoding`` turns new rows of a table into inputs. ``pooled``: the test samples are training samples too.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...] = ()
    columns: dict[str, DataColumn] = field(default_factory=dict)
    mean: Constants = ()
    std: Constants = ()
    notes: tuple[str, ...] = ()
    encoding: Encoding | None = None
    pooled: bool = False

    @property
    def kind(self) -> str:
        """The kind of inputs, by their type: "images", "features" or "tokens"; empty for other types."""
        return KINDS.get(self.x_train.dtype, "")


class FolderOptions(Settings):
    """Facts about the images, and how images of several sizes are made equal."""

    section = "data"
    table: str | None = option(
        None, "a CSV file with a column `file` (train/<class>/<image>); other columns are metadata of images"
    )
    resize: int | None = option(None, "height and width, needed for images of several sizes", ge=1)
    crop: bool = option(False, "crop images to their central square before they are resized")
    test_share: float | None = option(
        None,
        "share of a random test set, in each class, of a tree <class>/<image>; null = with train/ and test/",
        gt=0,
        lt=1,
    )
    seed: int = option(0, "seed of the random test set", ge=0)


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn any error while ``path`` is read into one `FedflowError` that names it."""
    try:
        yield
    except FedflowError:
        raise
    except Exception as error:  # decoders of damaged files raise almost anything
        raise FedflowError(f"{path}: cannot be read: {reason(error)}") from error


def regular(path: Path, folders: bool = True) -> Path:
    """The path of a file, or a folder where ``folders`` are accepted; other paths raise `FedflowError`.

    A pipe or device could be read for ever.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise FedflowError(f"{path}: not a file or folder, but a pipe, socket or device")
    if path.is_dir() and not folders:
        raise FedflowError(f"{path}: a folder; needs a file")
    return path


def read_images(path: Path, options: FolderOptions) -> RawData:
    """The images of a tree or of a tar of one, with the columns of their table."""
    return (read_folder if path.is_dir() else read_tar)(path, options)


def read_folder(path: Path, options: FolderOptions | None = None) -> RawData:
    """The images of a tree ``train/<class>/*``, ``test/<class>/*``; with ``test_share``, of ``<class>/*``.

    Classes are numbered in alphabetical order, or numerically if all names are whole numbers. Names that
    start with a dot, and files of file managers (Thumbs.db), are ignored; images deeper in the tree or
    without a class are refused.
    """

    options = options or FolderOptions.parse({})
    used = {*SPLITS, *([Path(options.table).name] if options.table else [])}

    def images() -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
        for top in [path] if options.test_share else [path / split for split in SPLITS]:
            for file in chain.from_iterable(map(top.glob, ("*", "*/*", "*/*/**/*"))):
                if file.is_file() and not (file.parent == path and file.name in used):
                    with file.open("rb") as stream:
                        yield PurePosixPath(file.relative_to(path).as_posix()), stream

    with reading(path):
        extra = {PurePosixPath(file.name) for file in path.iterdir() if file.name not in used}
        extra = set() if options.test_share else extra
        return _stacked(path, images(), options, extra)


def read_tar(path: Path, options: FolderOptions | None = None) -> RawData:
    """The images of a tar (plain or compressed) of such a tree, read into memory.

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
        # tarfile takes a damaged header for the end of the archive; the true end is a block of zeros.
        archive.fileobj.seek(archive.offset)
        if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise FedflowError(f"{path}: the tar is damaged or cut short")

    with reading(path):
        try:
            archive = tarfile.open(path)  # noqa: SIM115
        except tarfile.ReadError:  # its text lists the errors of all decompressors
            raise ValueError("not a tar, or damaged") from None
        with archive:
            return _stacked(path, images(archive), options or FolderOptions.parse({}))


def _stacked(
    path: Path,
    images: Iterable[tuple[PurePosixPath, IO[bytes]]],
    options: FolderOptions,
    extra: Iterable[PurePosixPath] = (),
) -> RawData:
    """Arrays of decoded ``.../<split>/<class>/<image>`` streams, sorted by class, then by name.

    Other files, and the ``extra`` ones next to the splits, are noted.
    """
    share = options.test_share
    found, others = _decoded(path, images if share is None else map(_as_training, images), options)
    others |= {file for file in extra if not is_junk(file.name)}
    if share is not None:
        _move_test(found, share, options.seed)
    for split in SPLITS:
        if not found[split]:
            hint = "; of <class>/<image>, data.test_share is the share for testing" if share is None else ""
            raise FedflowError(f"{path}: holds no image {split}/<class>/<image>{hint}")
    classes = _in_order({label for label, _ in found["train"]})
    if unknown := sorted({label for label, _ in found["test"]} - set(classes)):
        raise FedflowError(f"{path}: class {unknown[0]!r} is in test/ but not in train/")
    color = any(image.ndim == 3 for split in SPLITS for image in found[split].values())
    number = {label: i for i, label in enumerate(classes)}
    keys = {split: sorted(found[split], key=lambda key: (number[key[0]], key[1])) for split in SPLITS}

    def arrays(split: str) -> tuple[np.ndarray, np.ndarray]:
        x = np.stack([_colored(found[split][key], color) for key in keys[split]])
        return x, np.array([number[label] for label, _ in keys[split]], np.int64)

    files = {split: ["/".join(key if share else (split, *key)) for key in keys[split]] for split in SPLITS}
    columns = {} if options.table is None else _columns(Path(options.table), files)
    notes = (f"left out: {listed(sorted(map(str, others)))}",) if others else ()
    return RawData(*arrays("train"), *arrays("test"), tuple(classes), columns, notes=notes)


def _as_training(image: tuple[PurePosixPath, IO[bytes]]) -> tuple[PurePosixPath, IO[bytes]]:
    """The image of ``<class>/<image>`` as one of ``train/<class>/<image>``; other files as they are."""
    name, stream = image
    if {*name.parts[:-1]} & {*SPLITS}:
        raise ValueError("has a folder train or test, so it needs no data.test_share")
    inside = len(name.parts) > 1
    return PurePosixPath(*name.parts[:-2], "train", *name.parts[-2:]) if inside else name, stream


def _move_test(found: dict[str, dict[tuple[str, str], Any]], share: float, seed: int) -> None:
    """Move this share of the training images of every class to the test images."""
    keys = sorted(found["train"])
    strata = (
        np.unique([label for label, _ in keys], return_inverse=True)[1] if keys else np.zeros(0, np.int64)
    )
    for key, tested in zip(keys, draw_test(strata, share, seed, "data.folder.split")):
        if tested:
            found["test"][key] = found["train"].pop(key)


def equal_images(images: list[np.ndarray], resize: int | None, crop: bool) -> np.ndarray:
    """Images of one size, uint8 [n, h, w], or [n, h, w, 3] if any is in color; of several sizes resized.

    Raises ValueError if they have several sizes and ``resize`` is None.
    """
    sizes = {image.shape[:2] for image in images}
    if len(sizes) > 1:
        if resize is None:
            raise ValueError(f"has images of {len(sizes)} sizes; data.resize makes them equal")
        images = [squared(image, resize, crop) for image in images]
    color = any(image.ndim == 3 for image in images)
    return np.stack([_colored(image, color) for image in images])


def _decoded(
    path: Path, images: Iterable[tuple[PurePosixPath, IO[bytes]]], options: FolderOptions
) -> tuple[dict[str, dict[tuple[str, str], np.ndarray]], set[PurePosixPath]]:
    """The images of each split by class and name, resized as soon as a second size is found; other files.

    Of folders other than train/ and test/, the name stands for the files.
    """
    from PIL import Image

    found: dict[str, dict[tuple[str, str], np.ndarray]] = {split: {} for split in SPLITS}
    others, outside = set[PurePosixPath](), set[PurePosixPath]()
    root, size, several = None, None, False
    for name, stream in images:
        at = next((i for i, part in enumerate(name.parts) if part in SPLITS), len(name.parts))
        tree, (split, *inside) = name.parts[:at], name.parts[at:] or ("",)
        if any(map(is_junk, name.parts)):
            continue
        if not split:
            outside.add(name)
            continue
        if len(inside) != 2:
            if name.suffix.lower() in Image.registered_extensions():
                raise FedflowError(
                    f"{path}: {name} is not {split}/<class>/<image>, without folders in between"
                )
            others.add(name)
            continue
        root = tree if root is None else root
        if tree != root:
            raise FedflowError(f"{path}: holds several image trees; needs one train/ and one test/ folder")
        label, file = inside
        if (label, file) in found[split]:
            raise FedflowError(f"{path}: holds {name} twice")
        with reading(f"{path}: {name}"):
            image = decode_image(stream)
        size = size or image.shape[:2]
        if image.shape[:2] != size and not several:
            if options.resize is None:
                pixels = f"{image.shape[:2]} pixels, the others are {size}"
                raise FedflowError(f"{path}: {name} is {pixels}; data.resize makes them equal")
            several = True
            for earlier in found.values():
                earlier |= {key: squared(x, options.resize, options.crop) for key, x in earlier.items()}
        if several and options.resize is not None:
            image = squared(image, options.resize, options.crop)
        found[split][label, file] = image
    depth = len(root or ()) + 1
    return found, others | {PurePosixPath(*name.parts[:depth]) for name in outside}


def _columns(table: Path, files: dict[str, list[str]]) -> dict[str, DataColumn]:
    """The columns of a CSV file for the named images; text is numbered in alphabetical order."""
    with reading(table):
        with regular(table, folders=False).open(newline="", encoding="utf-8-sig") as stream:
            rows = csv.DictReader(stream)
            names = list(rows.fieldnames or [])
            if "file" not in names:
                raise ValueError("has no column 'file'")
            if twice := _first_repeated(names):
                raise ValueError(f"has two columns {twice!r}")
            facts: dict[str, dict[str, str]] = {}
            for row in rows:
                if facts.setdefault(row["file"], row) != row:
                    raise ValueError(f"has two different rows for {row['file']}")
        for file in (*files["train"], *files["test"]):
            if file not in facts:
                raise ValueError(f"has no row for the image {file}")
            if missing := [name for name in names if not facts[file][name]]:
                raise ValueError(f"column {missing[0]!r} has no value for {file}")
        if strangers := sorted(facts.keys() - {*files["train"], *files["test"]}, key=str):
            raise ValueError(f"names {strangers[0]}, which is not an image of the dataset")
    columns = {}
    for name in names:
        if name != "file":
            codes, values = _codes([facts[file][name] for split in SPLITS for file in files[split]])
            train, test = np.split(codes, [len(files["train"])])
            columns[name] = DataColumn(train, test, values)
    return columns


def _codes(texts: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Whole numbers unchanged, without names; otherwise, as for 007, the rank of each text."""
    if all(map(WHOLE.fullmatch, texts)):
        return np.array([int(text) for text in texts], np.int64), ()
    values, codes = np.unique(texts, return_inverse=True)
    return codes.astype(np.int64), tuple(map(str, values))


def _in_order(names: set[str]) -> list[str]:
    """Sorted numerically (2 before 10) if all are whole numbers; otherwise alphabetically."""
    numbers = all(name.isascii() and name.isdecimal() for name in names)
    return sorted(names, key=lambda name: (int(name) if numbers else 0, name))


def is_junk(name: str) -> bool:
    """Return whether a file or folder of this name is hidden or made by a file manager."""
    return name.startswith(".") or name.lower() in JUNK


def _first_repeated(names: list[str]) -> str | None:
    return next((name for i, name in enumerate(names) if name in names[:i]), None)


def decode_image(stream: IO[bytes]) -> np.ndarray:
    """One image of a file as uint8, turned upright by its EXIF data: [h, w] if it is gray, else [h, w, 3]."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        opened = Image.open(stream)
    except UnidentifiedImageError:  # its text shows an object in memory
        raise ValueError("not an image of a known format") from None
    with opened as image:
        # Pillow reads 16-bit color images as 8-bit; only the arguments of its decoders show it.
        deep = any(
            re.search(";16[BLN]", str(how))
            or name == "SGI16"
            or (name == "ppm" and isinstance(how, tuple) and how[-1] > 255)
            for name, _, _, how in image.tile
        )
        if deep or image.mode.startswith(("I", "F")):
            raise ValueError(f"more than 8 bits per channel ({image.mode}); only 8-bit images are accepted")
        ImageOps.exif_transpose(image, in_place=True)
        return np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))


def _colored(image: np.ndarray, color: bool) -> np.ndarray:
    return np.stack([image] * 3, axis=-1) if color and image.ndim == 2 else image
