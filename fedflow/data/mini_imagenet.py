"""miniImageNet: 100 classes of ImageNet with 600 images each (Vinyals et al. 2016).

The usual layouts are read: ``train.csv``, ``val.csv`` and ``test.csv`` of Ravi and Larochelle (2017),
with the columns ``filename`` and ``label``, next to a folder ``images/`` (``images/<filename>``, or
``images/<label>/<filename>``); or a tree ``train/<class>/*``, ``val/<class>/*``, ``test/<class>/*``, or
``<class>/*``. Pickles, such as ``mini-imagenet-cache-train.pkl``, are refused.

Their three splits hold different classes, for few-shot learning. They are pooled here, and every class is
split: ``test_per_class`` images, drawn with ``seed`` from the images in order of name, are test images, the
others training images. That is 50,000 and 10,000, as in PFLDyn (Acar et al., ICML 2021), whose draw is not
published.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedflow.data.files import RawData, decode_image, is_junk, reading, regular
from fedflow.data.images import squared
from fedflow.errors import FedflowError
from fedflow.seeding import generator
from fedflow.settings import Settings, option

CLASSES = 100
PARTS = ("train", "val", "test")
NEEDED = (
    "needs train.csv, val.csv and test.csv (filename,label) next to images/, or the images in train/<class>/"
    ", val/<class>/ and test/<class>/, or in 100 folders <class>/"
)


class MiniImageNetOptions(Settings):
    """The size of the images and of the test set."""

    section = "data"
    size: int = option(84, "height and width of the images: bilinear, antialiased if they shrink", ge=1)
    test_per_class: int = option(100, "test images of each class; the others are for training", ge=1)
    seed: int = option(0, "seed of their draw", ge=0)


def mini_imagenet(path: Path, options: MiniImageNetOptions) -> RawData:
    """Color images [n, size, size, 3] by class, then by name; labels 0..99 in alphabetical order of classes.

    Raises `FedflowError` for pickles, another layout, missing or damaged images, and classes of unequal size.
    """
    found: dict[str, dict[str, Path]] = {}
    for label, file in _listed(path):
        if file.name in found.setdefault(label, {}):
            raise FedflowError(f"{path}: class {label!r} has two images {file.name}")
        found[label][file.name] = file
    names = sorted(found)
    if len(names) != CLASSES:
        raise FedflowError(f"{path}: has {len(names)} classes, not {CLASSES}")
    per_class = max(map(len, found.values()))
    if short := [name for name in names if len(found[name]) < per_class]:
        few = f"class {short[0]!r} has {len(found[short[0]])} images, others have {per_class}"
        raise FedflowError(f"{path}: {few}")
    if per_class <= options.test_per_class:
        raise FedflowError(
            f"{path}: its classes have {per_class} images, none of them for training "
            f"(data.test_per_class: {options.test_per_class})"
        )
    files: dict[bool, list[Path]] = {True: [], False: []}  # for testing or not
    for number, name in enumerate(names):
        drawn = generator(options.seed, "data.mini_imagenet", number).permutation(per_class)
        for rank, (_, file) in zip(drawn, sorted(found[name].items()), strict=True):
            files[bool(rank < options.test_per_class)].append(file)
    labels = {test: np.arange(CLASSES).repeat(len(paths) // CLASSES) for test, paths in files.items()}
    x_train, x_test = (_images(files[test], options.size) for test in (False, True))
    return RawData(x_train, labels[False], x_test, labels[True], tuple(names))


def _listed(path: Path) -> Iterator[tuple[str, Path]]:
    """Class and file of every image."""
    from PIL import Image

    inside = sorted(path.iterdir()) if path.is_dir() else [path]
    tables, trees = ([path / f"{part}{suffix}" for part in PARTS] for suffix in (".csv", ""))
    if sum(entry.is_dir() and not is_junk(entry.name) for entry in inside) == CLASSES:
        trees = [path]
    if all(table.is_file() for table in tables):
        for table in tables:
            yield from _rows(table)
    elif all(tree.is_dir() for tree in trees):
        kinds = Image.registered_extensions()  # no Thumbs.db
        for tree in trees:
            for file in sorted(tree.glob("*/*")):
                if not is_junk(file.name) and file.suffix.lower() in kinds:
                    yield file.parent.name, file
    else:
        pickles = [entry.name for entry in inside if entry.suffix in (".pkl", ".pickle")]
        why = f"{pickles[0]} is a pickle, which could run code when it is read; " if pickles else ""
        raise FedflowError(f"{path}: {why}{NEEDED}")


def _rows(table: Path) -> Iterator[tuple[str, Path]]:
    images = table.parent / "images"
    with reading(table), regular(table).open(newline="", encoding="utf-8-sig") as stream:
        rows = csv.DictReader(stream)
        if missing := {"filename", "label"} - set(rows.fieldnames or []):
            raise ValueError(f"has no column {min(missing)!r}")
        listed = [(row["label"], row["filename"]) for row in rows]
    for label, name in listed:
        if not (label and name):
            raise FedflowError(f"{table}: has a row without a file name or label")
        if Path(label, name).is_absolute() or ".." in Path(label, name).parts:
            raise FedflowError(f"{table}: {name!r} of class {label!r} is not a file in images/")
        file = images / name
        yield label, file if file.is_file() else images / label / name


def _images(files: list[Path], size: int) -> np.ndarray:
    """The decoded files [n, size, size, 3]."""
    x = np.empty((len(files), size, size, 3), np.uint8)
    for image, file in zip(x, files):
        with reading(file), file.open("rb") as stream:
            pixels = squared(decode_image(stream), size)
        image[:] = pixels if pixels.ndim == 3 else pixels[..., None]
    return x
