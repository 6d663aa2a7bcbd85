"""Files that other libraries write, made small here in their layout; the page that shows how to read them."""

import io
import json
import pickle
import re
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from scipy.io import savemat
from sklearn.datasets import load_digits
from support import refused

from fedflow.data import DatasetParams
from fedflow.data.files import RawData
from fedflow.data.sources import READERS
from fedflow.data.transform import transformed
from fedflow.errors import FedflowError
from fedflow.partition import PartitionParams, Samples, make_partition

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "files.md").read_text()
ENTRIES = {
    name: entry
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    for name, entry in yaml.safe_load(block).items()
}
DIGITS, LABELS = (load_digits(return_X_y=True)[i][:60] for i in (0, 1))
IMAGES = (DIGITS * 15).astype(np.uint8).reshape(-1, 8, 8)


def png(image: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "png")
    return stream.getvalue()


def write_leaf(folder: Path, users: dict[str, tuple[list, list]], **more: Any) -> None:
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True, exist_ok=True)
        content = {"users": list(users), "num_samples": [len(y) for _, y in users.values()]}
        content |= {"user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()}} | more
        (folder / split / f"all_data_0_niid_0_keep_10_{split}_9.json").write_text(json.dumps(content))


FEATURES = {"image": {"_type": "Image"}, "label": {"names": list("abcdefghij"), "_type": "ClassLabel"}}


def hugging_face(rows: slice, **more: Any) -> pa.Table:
    """A table as `datasets` writes it, with the description of its columns in the schema."""
    cells = [{"bytes": png(image), "path": None} for image in IMAGES[rows]]
    table = pa.table({"image": cells, "label": LABELS[rows].astype(np.int64), **more})
    text = json.dumps({"info": {"features": FEATURES}})
    return table.replace_schema_metadata({"huggingface": text})


def save_to_disk(folder: Path, table: pa.Table, features: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as out,
    ):
        out.write_table(table)
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
    )
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page."""
    root = tmp_path_factory.mktemp("field")
    medical = {}
    for split, rows in (("train", slice(0, 40)), ("val", slice(0, 5)), ("test", slice(40, 60))):
        medical |= {f"{split}_images": IMAGES[rows], f"{split}_labels": LABELS[rows, None]}
    np.savez(root / "pathmnist.npz", **medical)
    for i, (image, label) in enumerate(zip(IMAGES[:40], LABELS)):
        file = root / "pets" / ("cat" if label < 5 else "dog") / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(image))
    for name in ("Thumbs.db", "cat/desktop.ini", "dog/.DS_Store"):
        (root / "pets" / name).write_bytes(b"\xd0\xcf\x11\xe0")
    users = {
        f"f_{k:05d}": ((DIGITS[k::4] / 16).tolist(), LABELS[k::4].astype(float).tolist()) for k in range(4)
    }
    write_leaf(root / "synthetic_1_1", users)
    tweets = {"ana": ["so happy today!", "what a sad day"], "bo": ["Happy happy", "so sad"]}
    fields = {
        u: ([["1", "Mon", "NO_QUERY", u, t, "training"] for t in texts], [1, 0])
        for u, texts in tweets.items()
    }
    write_leaf(root / "sent140", fields)
    (root / "mnist-parquet" / "data").mkdir(parents=True)
    for i, rows in enumerate((slice(0, 20), slice(20, 40))):
        table = hugging_face(rows, writer_id=[f"w{k % 3}" for k in range(20)])
        pq.write_table(table, root / "mnist-parquet" / "data" / f"train-0000{i}-of-00002.parquet")
    tested = hugging_face(slice(40, 60), writer_id=[f"w{k % 3}" for k in range(20)])
    pq.write_table(tested, root / "mnist-parquet" / "data" / "test-00000-of-00001.parquet")
    save_to_disk(root / "saved", hugging_face(slice(0, 60)), FEATURES)
    savemat(root / "letters.mat", {"X": IMAGES.reshape(60, 64).T, "y": LABELS[None] + 1, "mean": 3.5})
    for split, (x, y) in {"train": (DIGITS[:40], LABELS[:40]), "test": (DIGITS[40:], LABELS[40:])}.items():
        (root / split).mkdir()
        for k in range(3):
            np.savez_compressed(root / split / f"{k}.npz", data={"x": x[k::3], "y": y[k::3]})
    return root


@pytest.fixture
def read(made: Path, monkeypatch: pytest.MonkeyPatch):
    """Reads an entry of the page, with changes."""
    monkeypatch.chdir(made)

    def load(name: str, **changes: Any) -> RawData:
        entry = ENTRIES[name] | changes
        return transformed(DatasetParams.parse({k: v for k, v in entry.items() if v is not None}))

    return load


def test_every_entry_of_the_page_is_short_and_tested():
    source = Path(__file__).read_text()
    assert len(ENTRIES) == 9 and not [name for name in ENTRIES if f'read("{name}"' not in source]


def test_medmnist(read):
    raw = read("medical")
    np.testing.assert_array_equal(raw.x_train, IMAGES[:40])
    assert raw.y_test.tolist() == LABELS[40:].tolist() and "left out: val_images [5, 8, 8]" in raw.notes[0]


def test_folders_of_classes_only(read, tmp_path, made):
    raw = read("pets")
    assert raw.classes == ("cat", "dog") and not raw.notes
    counts = np.bincount(LABELS[:40] >= 5)
    assert np.bincount(raw.y_test).tolist() == [round(0.25 * n) for n in counts]
    known = {image.tobytes() for image in IMAGES[:40]}
    assert len(known) == len({image.tobytes() for image in [*raw.x_train, *raw.x_test]} & known) == 40
    np.testing.assert_array_equal(raw.x_test, read("pets").x_test)
    assert not np.array_equal(raw.x_test, read("pets", seed=1).x_test)
    with refused(
        "holds no image train/<class>/<image>; of <class>/<image>, data.test_share is the share", FedflowError
    ):
        read("pets", test_share=None)
    with tarfile.open(tmp_path / "pets.tar", "w") as tar:
        tar.add(made / "pets", "pets")
    np.testing.assert_array_equal(read("pets", path=str(tmp_path / "pets.tar")).x_test, raw.x_test)
    (tmp_path / "both" / "train" / "cat").mkdir(parents=True)
    (tmp_path / "both" / "train" / "cat" / "a.png").write_bytes(png(IMAGES[0]))
    with refused(
        "both: cannot be read: has a folder train or test, so it needs no data.test_share", FedflowError
    ):
        read("pets", path=str(tmp_path / "both"))


def test_plain_features_in_the_form_of_leaf(read, tmp_path):
    raw = read("synthetic")
    order = np.concatenate([np.arange(60)[k::4] for k in range(4)])
    np.testing.assert_allclose(raw.x_train, DIGITS[order] / 16, rtol=1e-6)
    assert raw.y_train.tolist() == LABELS[order].tolist() and raw.classes == tuple(map(str, range(10)))
    assert raw.columns["user"].names[1] == "f_00001" and raw.x_train.dtype == np.float32
    real = {"a": ([1.0, 2.0], [0.5, 1.0]), "b": ([3.0], [2.0])}
    write_leaf(tmp_path / "real", real)
    with refused("y holds 0.5, no label; set data.task: regression", FedflowError):
        read("synthetic", path=str(tmp_path / "real"))
    raw = read("synthetic", path=str(tmp_path / "real"), task="regression")
    assert raw.x_train.tolist() == [[1], [2], [3]] and raw.y_train.tolist() == [0.5, 1, 2]
    for x, message in (
        ([["a"]], "user 'b': cannot be read: needs as many numbers in every x"),
        ([[1.0, 2.0]], "user 'b': has inputs of the shape .2., not .1. as another user"),
        ([[1.0], [1.0, 2.0]], "needs as many numbers in every x"),
    ):
        write_leaf(tmp_path / "odd", {"a": ([[1.0]], [0]), "b": (x, [1] * len(x))})
        with refused(message, FedflowError):
            read("synthetic", path=str(tmp_path / "odd"))


def test_hierarchies_are_groups_and_clients(tmp_path, read):
    users = {f"u{k}": ([[float(k)]] * 2, [0, 1]) for k in range(4)}
    write_leaf(tmp_path / "plays", users, hierarchies=["Hamlet", "Macbeth", "Hamlet", "Lear"])
    raw = read("synthetic", path=str(tmp_path / "plays"))
    assert raw.columns["hierarchy"].names == ("Hamlet", "Lear", "Macbeth")
    assert raw.columns["hierarchy"].train.tolist() == [0, 0, 2, 2, 0, 0, 1, 1]
    samples = Samples(raw.y_train, raw.y_test, raw.columns)
    of_plays = make_partition(
        PartitionParams.parse({"dataset": "x", "scheme": "natural", "column": "hierarchy"}), samples
    )
    assert of_plays.sizes.tolist() == [4, 2, 2]
    grouped = make_partition(
        PartitionParams.parse({"dataset": "x", "scheme": "natural", "groups": "hierarchy"}), samples
    )
    assert grouped.groups.tolist() == [0, 2, 0, 1]
    write_leaf(tmp_path / "other", users, hierarchies=["Hamlet", "Macbeth", "Lear", "Lear"])
    (tmp_path / "other" / "test").rename(tmp_path / "test2")
    (tmp_path / "plays" / "test").rename(tmp_path / "other" / "test")
    with refused("user 'u2': belongs to 'Hamlet', but in train/ 'Lear'", FedflowError):
        read("synthetic", path=str(tmp_path / "other"))
    write_leaf(tmp_path / "lists", users, hierarchies=[["a"], ["b"], ["a"], ["b"]])
    raw = read("synthetic", path=str(tmp_path / "lists"))
    assert "hierarchy" not in raw.columns and "left out: hierarchies, which are not one text" in raw.notes[0]


def test_sent140_counts_words(read, made):
    raw = read("tweets")  # words by frequency, then alphabet: happy, sad, so, ...
    assert raw.x_train[:, :3].tolist() == [[1, 0, 1], [0, 1, 0], [2, 0, 0], [0, 1, 1]]
    assert raw.y_train.tolist() == [1, 0, 1, 0] and raw.classes == ("negative", "positive")
    assert read("tweets", vocabulary=2).x_train.shape == (4, 2)
    with refused("user 'f_00000': cannot be read: needs x of the form .id, date, query", FedflowError):
        read("tweets", path="synthetic_1_1")


def test_shards_of_hugging_face(read, tmp_path):
    raw = read("shards")
    np.testing.assert_array_equal(raw.x_train, IMAGES[:40])
    np.testing.assert_array_equal(raw.x_test, IMAGES[40:])
    assert raw.classes == tuple("abcdefghij") and raw.y_test.tolist() == LABELS[40:].tolist()
    assert raw.columns["user"].names == ("w0", "w1", "w2") and raw.columns["user"].train[:4].tolist() == [
        0,
        1,
        2,
        0,
    ]
    assert raw.notes == ("input: image; target: label",)
    assert "left out: writer_id" in read("shards", user=None).notes[0]
    with refused(
        "data.user|data.columns: 'nobody' is not accepted; expected a column: image, label, writer_id"
    ):
        read("shards", user="nobody")
    with refused(
        "data.test: 'validation' is not accepted; expected another split of .* than .*: test, train"
    ):
        read("shards", test="validation")
    only = {"path": "mnist-parquet/data/test-00000-of-00001.parquet", "user": None}
    one = read("shards", **only)
    assert len(one.x_train) + len(one.x_test) == 20 and "one split" in one.notes[-1]
    for field in "train", "test":
        with refused(f"data.{field}: 'validation' .* {field}, its default, as .* split"):
            read("shards", **only, **{field: "validation"})
    with refused("data.test_share: 0.5 .* 0.2, its default, as the split test of mnist-parquet is the test"):
        read("shards", test_share=0.5)


def test_lists_of_numbers_and_images_of_several_sizes_in_parquet(read, tmp_path):
    lists = pd.DataFrame({"pixels": DIGITS.tolist(), "label": LABELS, "text": "a"})
    lists.to_parquet(tmp_path / "lists.parquet")
    raw = read("shards", path=str(tmp_path / "lists.parquet"), user=None)
    assert raw.x_train.dtype == np.float32 and raw.x_train.shape[1:] == (64,)
    assert {row.tobytes() for row in np.concatenate([raw.x_train, raw.x_test])} == {
        row.tobytes() for row in DIGITS.astype(np.float32)
    }
    with refused("data.input: 'text' is not accepted; expected a column of images or of lists of numbers"):
        read("shards", path=str(tmp_path / "lists.parquet"), user=None, input="text")
    pd.DataFrame({"text": ["a"] * 9, "label": [0, 1, 2] * 3}).to_parquet(tmp_path / "text.parquet")
    with refused("data.input: None .* a column of images or lists of numbers, not of text: text, label"):
        read("shards", path=str(tmp_path / "text.parquet"), user=None)
    sizes = [{"bytes": png(np.zeros((4 + i % 2, 4), np.uint8)), "path": None} for i in range(10)]
    pd.DataFrame({"image": sizes, "label": [0, 1] * 5}).to_parquet(tmp_path / "sizes.parquet")
    with refused("has images of 2 sizes; data.resize makes them equal", FedflowError):
        read("shards", path=str(tmp_path / "sizes.parquet"), user=None)
    assert read("shards", path=str(tmp_path / "sizes.parquet"), user=None, resize=6).x_train.shape[1:] == (
        6,
        6,
    )
    damaged = [{"bytes": b"no image", "path": None}] * 4
    pd.DataFrame({"image": damaged, "label": [0, 1] * 2}).to_parquet(tmp_path / "bad.parquet")
    with refused("the image in row 1: cannot be read: not an image of a known format", FedflowError):
        read("shards", path=str(tmp_path / "bad.parquet"), user=None)


def test_folders_of_save_to_disk(read, tmp_path):
    raw = read("saved")
    assert raw.classes == tuple("abcdefghij") and len(raw.x_test) == sum(
        round(0.25 * n) for n in np.bincount(LABELS)
    )
    for split, rows in (("train", slice(0, 40)), ("test", slice(40, 60))):
        save_to_disk(tmp_path / "both" / split, hugging_face(rows), FEATURES)
    (tmp_path / "both" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    raw = read("saved", path=str(tmp_path / "both"), test_share=None)
    np.testing.assert_array_equal(raw.x_test, IMAGES[40:])
    (tmp_path / "both" / "test" / "data-00000-of-00001.arrow").write_bytes(b"cut")
    with refused("data-00000-of-00001.arrow: cannot be read", FedflowError):
        read("saved", path=str(tmp_path / "both"))
    with refused("has no .*parquet file, and is no folder of save_to_disk", FedflowError):
        read("saved", path="pets")


def test_names_on_the_hub_are_left_to_datasets(read, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("fedflow.project.distribution.find_spec", lambda name: None)
        with refused(
            "the dataset 'ylecun/mnist' of the Hub needs datasets, not installed here: `pip", FedflowError
        ):
            read("saved", path="ylecun/mnist")
    asked: list = []

    class Rows:
        features = SimpleNamespace(to_dict=lambda: FEATURES)

        def with_format(self, kind: str) -> Any:
            assert kind == "arrow"
            return Whole()

    class Whole:
        def __getitem__(self, rows: slice) -> pa.Table:
            return hugging_face(slice(0, 60))

    def load_dataset(name: str, config: str | None, revision: str | None) -> dict:
        asked.append((name, config, revision))
        return {"train": Rows(), "test": Rows()}

    monkeypatch.setattr("fedflow.project.distribution.find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    raw = read("saved", path="ylecun/mnist", revision="v1", test_share=None)
    assert asked == [("ylecun/mnist", None, "v1")] and len(raw.x_test) == 60


def test_what_datasets_itself_writes(read, tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"m": datasets.Array2D((2, 3), "float32"), "label": datasets.Value("int64")})
    rows = {"m": np.arange(60, dtype=np.float32).reshape(10, 2, 3), "label": [0, 1] * 5}
    made = datasets.Dataset.from_dict(rows, features=features)
    made.save_to_disk(tmp_path / "a")
    made.to_parquet(tmp_path / "a.parquet")
    for path in ("a", "a.parquet"):
        raw = read("saved", path=str(tmp_path / path))
        assert raw.x_train.shape == (8, 2, 3) and set(raw.x_train.ravel()) <= set(range(60))


def test_hdf5_of_tensorflow_federated(read, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("fedflow.project.distribution.find_spec", lambda name: None)
        with refused("source 'tff' needs h5py, not installed here", FedflowError):
            read("writers", path=str(tmp_path))
    h5py = pytest.importorskip("h5py")
    with refused("has 0 files .*_train.h5; needs a folder with one, and its pair", FedflowError):
        read("writers", path=str(tmp_path))
    for split, users in (("train", ("f0_1", "f2_3")), ("test", ("f2_3", "f4_5"))):
        with h5py.File(tmp_path / f"fed_emnist_{split}.h5", "w") as file:
            for k, user in enumerate(users):
                group = file.create_group(f"examples/{user}")
                group["pixels"], group["label"] = (
                    (IMAGES[k * 9 : k * 9 + 9] / 255).astype(np.float32),
                    np.arange(9) % 2,
                )
                group["coarse"] = np.arange(9) % 3
    raw = read("writers", path=str(tmp_path))
    np.testing.assert_array_equal(raw.x_train, IMAGES[:18])
    assert raw.columns["user"].names == ("f0_1", "f2_3", "f4_5") and "left out: coarse" in raw.notes[0]
    assert raw.columns["user"].test.tolist() == [1] * 9 + [2] * 9 and raw.classes == ("0", "1")
    assert read("writers", path=str(tmp_path), target="coarse").classes == ("0", "1", "2")
    folder = tmp_path / "text"
    folder.mkdir()
    said = {
        "train": {"HAMLET": ["To be,", "or not"], "GHOST": ["Swear"]},
        "test": {"HAMLET": ["Words, words"]},
    }
    for split, roles in said.items():
        with h5py.File(folder / f"shakespeare_{split}.h5", "w") as file:
            for role, lines in roles.items():
                snippets = np.array([line.encode() for line in lines], object)
                file.create_dataset(f"examples/{role}/snippets", data=snippets, dtype=h5py.string_dtype())
    with refused("user 'GHOST' has snippets; .* source: tff_shakespeare reads snippets", FedflowError):
        read("writers", path=str(folder))
    text = DatasetParams.parse(
        {"source": "tff_shakespeare", "path": str(folder), "length": 4, "min_samples": 2}
    )
    raw = transformed(text)
    letters = [["".join(raw.classes[token] for token in row) for row in x] for x in (raw.x_train, raw.x_test)]
    assert letters[0] == [("To be,\nor not")[i : i + 4] for i in range(9)] and letters[1][-1] == "word"
    assert "".join(raw.classes[token] for token in raw.y_train) == "e,\nor not"[-9:]
    assert raw.columns["user"].names == ("HAMLET",) and raw.x_train.dtype == np.int32
    assert raw.notes == ("1 role; left out: 1, with too few training windows",)
    with refused("user 'f0_1' has coarse, label, pixels; needs snippets", FedflowError):
        transformed(DatasetParams.parse({"source": "tff_shakespeare", "path": str(tmp_path)}))
    with h5py.File(tmp_path / "v73.mat", "w", userblock_size=512) as file:  # MATLAB's axes are reversed
        file["X"], file["y"] = IMAGES.reshape(60, 64), LABELS[None]
    with (tmp_path / "v73.mat").open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM")
    raw = read("letters", path=str(tmp_path / "v73.mat"), test_path=str(tmp_path / "v73.mat"))
    np.testing.assert_array_equal(raw.x_train, IMAGES)


def test_matlab(read, tmp_path):
    raw = read("letters")
    assert raw.classes == tuple(map(str, range(1, 11))) and raw.x_train.dtype == np.uint8
    assert {i.tobytes() for i in [*raw.x_train, *raw.x_test]} == {i.tobytes() for i in IMAGES}
    assert raw.notes == ("x: X [60, 8, 8], images; y: y; left out: mean",)
    assert read("letters", shape=None).x_train.dtype == np.float32
    colored = np.stack([IMAGES] * 3, axis=-1).transpose(1, 2, 3, 0)  # as SVHN: [h, w, 3, n]
    savemat(tmp_path / "svhn.mat", {"X": colored, "y": LABELS[:, None]})
    raw = read("letters", path=str(tmp_path / "svhn.mat"), test_path=str(tmp_path / "svhn.mat"), shape=None)
    np.testing.assert_array_equal(raw.x_test, colored.transpose(3, 0, 1, 2))
    savemat(tmp_path / "square.mat", {"X": DIGITS[:, :60], "y": LABELS})
    with refused(
        "X is .60, 60., y has 60 values; set data.axis to the axis of x that counts the samples", FedflowError
    ):
        read("letters", path=str(tmp_path / "square.mat"), shape=None)
    raw = read("letters", path=str(tmp_path / "square.mat"), shape=None, axis=1, task="regression")
    assert raw.y_train.dtype == np.float32
    savemat(tmp_path / "names.mat", {"inputs": DIGITS, "y": LABELS})
    with refused("data.x: None is not accepted; expected a variable of the file: inputs, y"):
        read("letters", path=str(tmp_path / "names.mat"), shape=None)
    (tmp_path / "bad.mat").write_bytes(b"no mat")
    with refused("bad.mat: cannot be read", FedflowError):
        read("letters", path=str(tmp_path / "bad.mat"))


def test_pickles_are_refused_and_the_page_converts_them(read, tmp_path, made):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Evil()))
    (tmp_path / "a.pt").write_bytes(pickle.dumps(Evil()))
    np.savez(
        tmp_path / "evil.npz", x_train=np.array([Evil()], object), y_train=[0], x_test=[[0.0]], y_test=[0]
    )
    for name in ("a.pkl", "a.pt", "evil.npz"):
        with refused(
            f"{name}: .*a pickle, which can run any code and is not loaded; docs/howto/files.md", FedflowError
        ):
            read("medical", path=str(tmp_path / name))
    assert not (tmp_path / "owned").exists()
    with refused("0.npz: data is a pickle, which can run any code and is not loaded", FedflowError):
        read("medical", path="train/0.npz")
    known: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "files.md", "exec"), known)
    raw = read("pfllib")
    np.testing.assert_allclose(raw.x_train[raw.columns["user"].train == 1], DIGITS[:40][1::3])
    samples = Samples(raw.y_train, raw.y_test, raw.columns)
    clients = make_partition(PartitionParams.parse({"dataset": "x", "scheme": "natural"}), samples)
    assert clients.sizes.tolist() == [14, 13, 13] and len(clients.test(2)) == 6


@pytest.mark.parametrize("suffix", READERS)
def test_a_file_of_another_kind_is_refused_in_one_line(read, tmp_path, suffix):
    (tmp_path / f"a{suffix}").write_bytes(b"\x89HDF\r\n\x1a\n")
    reader = READERS[suffix][0]
    name, options = ("npz", {}) if reader != "npz" else ("table", {"target": "y"})
    with refused(f"source '{name}' does not read {suffix} files; `source: {reader}`", FedflowError):
        transformed(DatasetParams.parse({"source": name, "path": str(tmp_path / f"a{suffix}"), **options}))


def test_shards_that_number_classes_differently_are_refused(read, tmp_path):
    for name, classes in (("train-0", ["cat", "dog"]), ("train-1", ["dog", "cat"])):
        text = json.dumps({"info": {"features": {"label": {"_type": "ClassLabel", "names": classes}}}})
        table = pa.table({"image": [[1.0, 2.0]] * 4, "label": [0, 1] * 2})
        pq.write_table(table.replace_schema_metadata({"huggingface": text}), tmp_path / f"{name}.parquet")
    with refused(
        "column 'label' has the classes cat, dog in one file, and dog, cat in another", FedflowError
    ):
        read("shards", path=str(tmp_path), user=None)


def test_columns_of_hugging_face_that_cannot_be_used_are_refused_in_one_line(read, tmp_path):
    lists = {"pixels": DIGITS.tolist(), "label": LABELS, "site": [None, *"ab" * 29, "a"]}
    pd.DataFrame(lists).to_parquet(tmp_path / "gap.parquet")
    with refused("gap.parquet: cannot be read: column 'site' has 1 missing", FedflowError):
        read("shards", path=str(tmp_path / "gap.parquet"), user=None, columns=["site"])
    pd.DataFrame(lists | {"label": LABELS.astype(float)}).to_parquet(tmp_path / "real.parquet")
    with refused("column 'label' is float64 and holds 0, 1, .*; save labels as whole numbers", FedflowError):
        read("shards", path=str(tmp_path / "real.parquet"), user=None)


def test_images_of_matlab_may_be_listed_by_columns(read, tmp_path):
    rows = np.stack([image.ravel(order="F") for image in IMAGES])
    savemat(tmp_path / "columns.mat", {"X": rows, "y": LABELS})
    path = str(tmp_path / "columns.mat")
    raw = read("letters", path=path, test_path=path, axis=0, shape=[8, 8], order="columns")
    np.testing.assert_array_equal(raw.x_train, IMAGES)
    with refused("data.test_share: 0.5 .* with test_path"):
        read("letters", path=path, test_path=path, axis=0, test_share=0.5)
    with refused("data.order: 'columns' .* without shape"):
        read("letters", path=path, axis=0, shape=None, order="columns")


def test_descriptions_of_other_columns_do_not_matter(read, tmp_path):
    lists = {"boxes": [{"dtype": "int32"}], "label": {"_type": "ClassLabel", "names": ["a", "b"]}}
    for name, more in (("train-0", ["x", "y"]), ("train-1", ["y", "x"])):
        text = json.dumps({"info": {"features": {**lists, "other": {"names": more}}}})
        table = pa.table(
            {"image": [[1.0, 2.0]] * 4, "label": [0, 1] * 2, "boxes": [[1]] * 4, "other": [0] * 4}
        )
        pq.write_table(table.replace_schema_metadata({"huggingface": text}), tmp_path / f"{name}.parquet")
    raw = read("shards", path=str(tmp_path), user=None, input="image", target="label")
    assert raw.classes == ("a", "b")


@pytest.mark.parametrize(
    ("train", "test"),
    [("Train", "Test"), ("train1", "test1"), ("training-0", "eval/part"), ("a/train", "b/TEST")],
)
def test_files_of_splits_are_known_by_their_names(read, tmp_path, train, test):
    for name, rows in ((train, slice(40)), (test, slice(40, 60))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(hugging_face(rows), tmp_path / f"{name}.parquet")
    raw = read("shards", path=str(tmp_path), user=None)
    assert (raw.y_train.tolist(), raw.y_test.tolist()) == (LABELS[:40].tolist(), LABELS[40:].tolist())
    pq.write_table(hugging_face(slice(9)), tmp_path / "test-2.parquet")
    pq.write_table(hugging_face(slice(9)), tmp_path / "eval-2.parquet")
    left = ("left out: the split eval", "input: image; target: label")
    assert read("shards", path=str(tmp_path), user=None).notes == left or test == "eval/part"
    pq.write_table(hugging_face(slice(9)), tmp_path / "more.parquet")
    with refused("more.parquet names no split, such as train or test, as .* does", FedflowError):
        read("shards", path=str(tmp_path), user=None)


def test_features_of_hugging_face_may_be_lists(read, tmp_path):
    table = pa.table({"image": [[1.0, 2.0]] * 20, "label": [0, 1] * 10, "user": ["a", "b"] * 10})
    text = json.dumps({"info": {"features": {"image": [{"dtype": "float32", "_type": "Value"}]}}})
    path = str(tmp_path / "lists.parquet")
    pq.write_table(table.replace_schema_metadata({"huggingface": text}), path)
    assert read("shards", path=path, user="user").columns["user"].names == ("a", "b")
    with refused(r"data.columns: \['user'\] is not accepted; expected other columns than `user`"):
        read("shards", path=path, user="user", columns=["user"])
