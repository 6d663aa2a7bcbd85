"""miniImageNet, made small: 100 classes of three or four images in the usual layouts."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import refused

from fedflow.data import DatasetParams, prepare
from fedflow.data.files import RawData
from fedflow.data.mini_imagenet import PARTS, MiniImageNetOptions, mini_imagenet
from fedflow.errors import FedflowError

CLASSES = [f"n{number:03}" for number in range(100)]
PART = {name: PARTS[0 if number < 64 else 1 if number < 80 else 2] for number, name in enumerate(CLASSES)}
OPTIONS = MiniImageNetOptions(size=4, test_per_class=1)


def picture(number: int, i: int, gray: bool = False) -> bytes:
    stream = io.BytesIO()
    level = 2 * number + i
    Image.new("L" if gray else "RGB", (6, 6), level if gray else (level, 255 - level, i)).save(stream, "png")
    return stream.getvalue()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Writes three images of each class in a layout: the i-th of class c has the level 2 c + i."""

    def make(layout: str) -> Path:
        lines = {part: ["filename,label"] for part in PARTS}
        for number, name in enumerate(CLASSES):
            for i in range(3):
                file = f"{name}{i:02}.png"
                inside = {
                    "flat": f"images/{file}",
                    "nested": f"images/{name}/{file}",
                    "classes": f"{name}/{file}",
                    "tree": f"{PART[name]}/{name}/{file}",
                }[layout]
                (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / inside).write_bytes(picture(number, i))
                lines[PART[name]].append(f"{file},{name}")
        if layout in ("flat", "nested"):
            for part in PARTS:
                (tmp_path / f"{part}.csv").write_text("\n".join(lines[part]) + "\n")
        return tmp_path

    return make


def equal(one: RawData, other: RawData) -> bool:
    names = ("x_train", "y_train", "x_test", "y_test")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def test_all_splits_are_pooled_and_every_class_is_split(write):
    raw = mini_imagenet(write("flat"), OPTIONS)
    assert raw.classes == tuple(CLASSES)
    assert raw.x_train.shape == (200, 4, 4, 3) and raw.x_test.shape == (100, 4, 4, 3)
    assert raw.x_train.dtype == np.uint8
    assert raw.y_test.tolist() == list(range(100)) and raw.y_train.tolist() == [c // 2 for c in range(200)]
    drawn = raw.x_test[:, 0, 0, 0] - 2 * raw.y_test
    assert set(drawn.tolist()) == {0, 1, 2}  # not the same place in every class
    for c in range(100):
        levels = [*raw.x_train[raw.y_train == c, 0, 0, 0].tolist(), int(raw.x_test[c, 0, 0, 0])]
        assert sorted(levels) == [2 * c, 2 * c + 1, 2 * c + 2] and levels[0] < levels[1]
    assert not equal(raw, mini_imagenet(write("flat"), MiniImageNetOptions(size=4, test_per_class=1, seed=1)))


def test_every_layout_holds_the_same_images(write, tmp_path_factory, tmp_path):
    flat = mini_imagenet(write("flat"), OPTIONS)
    for layout in ("nested", "tree", "classes"):
        for left in tmp_path.iterdir():
            left.rename(tmp_path_factory.mktemp("left") / left.name)
        assert equal(flat, mini_imagenet(write(layout), OPTIONS))


def test_only_images_of_a_class_count(write):
    path = write("classes")
    before = mini_imagenet(path, OPTIONS)
    for name in ("Thumbs.db", ".DS_Store", "._n00000.png", "list.txt"):
        (path / "n000" / name).write_bytes(b"")
    assert equal(before, mini_imagenet(path, OPTIONS))


def test_it_is_a_named_source(write, tmp_path_factory):
    entry = {"source": "mini_imagenet", "path": str(write("tree")), "test_per_class": 2, "normalize": "train"}
    data = prepare(DatasetParams.parse(entry), tmp_path_factory.mktemp("prepared"))
    assert data.input_shape == (3, 84, 84) and len(data.y_train) == 100 and len(data.y_test) == 200


def test_pickles_are_refused_with_the_reason(tmp_path):
    file = tmp_path / "mini-imagenet-cache-train.pkl"
    file.write_bytes(b"\x80\x04.")
    reason = (
        "mini-imagenet-cache-train.pkl is a pickle, which could run code when it is read; needs train.csv, "
    )
    for path in (file, tmp_path):
        with refused(reason, FedflowError):
            mini_imagenet(path, OPTIONS)


def test_what_is_missing_or_damaged_is_named_in_one_line(write):
    path = write("flat")
    image, table = path / "images/n00302.png", path / "val.csv"
    good, rows = image.read_bytes(), table.read_text()

    def fails(message: str, **options: int) -> None:
        with refused(message, FedflowError):
            mini_imagenet(path, MiniImageNetOptions(**{"size": 4, "test_per_class": 1} | options))

    image.unlink()
    fails(r"images/n003/n00302.png: cannot be read: \[Errno 2\]")
    image.write_bytes(good[:40])
    fails("images/n00302.png: cannot be read: ")
    image.write_bytes(picture(3, 2, gray=True))
    assert mini_imagenet(path, OPTIONS).x_train.shape == (200, 4, 4, 3)
    fails(
        r"its classes have 3 images, none of them for training \(data.test_per_class: 3\)", test_per_class=3
    )
    for content, message in (
        (rows.replace("label", "class"), "val.csv: cannot be read: has no column 'label'"),
        (rows + "../a.png,n064\n", r"val.csv: '../a.png' of class 'n064' is not a file in images/"),
        (rows + "a.png,n064/../..\n", r"val.csv: 'a.png' of class 'n064/../..' is not a file in images/"),
        (rows + f"{image},n064\n", "val.csv: '/.*n00302.png' of class 'n064' is not a file in images/"),
        (rows + "a.png,\n", "val.csv: has a row without a file name or label"),
        (rows + "n06400.png,n064\n", "class 'n064' has two images n06400.png"),
        (rows.replace("n06400.png,n064\n", ""), "class 'n064' has 2 images, others have 3"),
        (rows.replace(",n064", ",n065"), "has 99 classes, not 100"),
    ):
        table.write_text(content)
        fails(message)
    table.unlink()
    fails(r"needs train.csv, val.csv and test.csv \(filename,label\) next to images/, or the images in train")
