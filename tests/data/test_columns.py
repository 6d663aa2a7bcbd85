import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from command import make_project
from support import refused

from fedflow.config import load_params
from fedflow.data import Dataset, DatasetParams, is_current, load_prepared, prepare, source
from fedflow.errors import FedflowError
from fedflow.stages.prepare import prepare_dataset

USERS = {"user_train": np.arange(30) // 10, "user_test": np.arange(12, dtype=np.uint8) // 4}


def test_pairs_of_whole_numbers_are_columns_that_follow_their_samples(npz, tmp_path):
    path = str(npz(**USERS, row_train=np.arange(30), row_test=np.arange(12), note=np.array(["x"])))
    whole = prepare(DatasetParams(source="npz", path=path), tmp_path / "whole")
    prepare(DatasetParams(source="npz", path=path, train_limit=9, keep_labels=[2, 0]), tmp_path / "some")
    some = load_prepared(tmp_path / "some", verify=True)
    assert sorted(some.columns) == ["row", "user"] and some.columns["user"].names == ()
    rows = some.columns["row"].train
    assert len(rows) == 9 and np.array_equal(some.columns["user"].train, rows // 10)
    assert torch.equal(some.x_train, whole.x_train[rows]) and some.columns["user"].test.dtype == np.int64
    assert len(some.columns["row"].test) == 8
    meta = json.loads((tmp_path / "some" / "meta.json").read_text())
    assert meta["columns"] == {"row": [], "user": []} and meta["types"]["column.user"] == "int64"
    assert prepare(DatasetParams(source="npz", path=str(npz())), tmp_path / "none").hash != whole.hash


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user_train": USERS["user_train"]}, "a pair; user_train and user_test are not both there"),
        (USERS | {"user_test": np.zeros(11, int)}, "'user' is int64 .11. in test; needs whole numbers .12."),
        (USERS | {"user_train": np.zeros(30)}, "'user' is float64 .30. in train; needs whole numbers .30."),
    ],
)
def test_columns_that_do_not_fit_are_refused(npz, changes, message):
    path = npz(**changes)
    with refused(f"{path}: .*{message}", FedflowError):
        source("npz").load(path=path)


def test_domains_of_images_are_normalized_with_their_own_constants(npz, tmp_path):
    halves = {"domain_train": np.arange(30) % 2, "domain_test": np.ones(12, int)}
    data = prepare(DatasetParams(source="npz", path=str(npz(**halves)), channels=3), tmp_path)
    assert data.by_domain and data.columns["domain"].names == ("0", "1")
    for d in range(2):
        pixels = data.x_train[d::2, 0].double() / 255
        assert data.mean[d] == pytest.approx([pixels.mean().item()] * 3, abs=1e-6)
        assert data.std[d] == pytest.approx([pixels.std(correction=0).item()] * 3, abs=1e-6)
        x = data.train.inputs(torch.arange(d, 30, 2))
        assert abs(x.mean()) < 1e-4 and x.std(correction=0).item() == pytest.approx(1, abs=1e-4)
    alone = {"domain_train": np.zeros(30, int), "domain_test": np.ones(12, int)}
    params = DatasetParams(source="npz", path=str(npz(**alone)))
    with refused("small: no training image has the domain 1", FedflowError):
        prepare(params, tmp_path)
    below = {"domain_train": np.arange(30) % 2 - 1, "domain_test": np.zeros(12, int)}
    with refused("small: a training image has the domain -1; needs 0, 1, ...", FedflowError):
        prepare(DatasetParams(source="npz", path=str(npz(**below)), normalize="train"), tmp_path / "below")


def test_users_of_leaf_need_not_have_every_class(tmp_path):
    for split in ("train", "test"):
        data = {name: {"x": [[0.5] * 784] * 3, "y": [7, 61, 7]} for name in ("ann", "bob")}
        (tmp_path / split).mkdir()
        content = {"users": list(data), "user_data": data}
        (tmp_path / split / "all_data.json").write_text(json.dumps(content))
    entry = {"source": "leaf_femnist", "path": str(tmp_path), "train_limit": 4}
    data = prepare(DatasetParams.parse(entry), tmp_path / "out")
    assert data.num_classes == 62 and sorted(data.y_train.tolist()) == [7, 7, 7, 61]
    assert data.columns["user"].names == ("ann", "bob") and len(data.columns["user"].train) == 4


TABLE = """file,user,camera
train/cat/0.png,7,wide
train/cat/1.png,7,tele
train/cat/2.png,8,wide
train/dog/0.png,9,wide
train/dog/1.png,9,wide
train/dog/2.png,9,wide
test/cat/0.png,7,fish-eye
test/cat/1.png,8,wide
test/dog/0.png,9,tele
test/dog/1.png,9,wide
"""


@pytest.fixture
def with_table(tree: dict, folder: Callable, tar: Callable, tmp_path: Path) -> Callable[..., Dataset]:
    """Prepares the image tree, or a tar of it, with a table."""

    def run(table: str = TABLE, packed: bool = False) -> Dataset:
        file = tmp_path / "facts.csv"
        file.write_text(table)
        path = tar({f"pets/{name}": content for name, content in tree.items()}) if packed else folder(tree)
        entry = {"source": "folder", "path": str(path), "table": str(file)}
        return prepare(DatasetParams.parse(entry), tmp_path / "out")

    return run


@pytest.mark.parametrize("packed", [False, True])
def test_a_table_gives_the_columns_of_an_image_folder(with_table, packed):
    lines = TABLE.splitlines()
    data = with_table("\n".join([lines[0], *reversed(lines[1:])]), packed)
    user, camera = data.columns["user"], data.columns["camera"]
    assert user.names == ()
    assert user.train.tolist() == [7, 7, 8, 9, 9, 9] and user.test.tolist() == [7, 8, 9, 9]
    assert camera.names == ("fish-eye", "tele", "wide") and camera.train.tolist() == [2, 1, 2, 2, 2, 2]
    assert camera.test.tolist() == [0, 2, 1, 2]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (TABLE.replace("train/dog/1.png,9,wide\n", ""), "has no row for the image train/dog/1.png"),
        (TABLE + "test/dog/2.png,9,wide\n", "names test/dog/2.png, which is not an image of the dataset"),
        (TABLE.replace("7,tele", "7,"), "column 'camera' has no value for train/cat/1.png"),
        (TABLE + "train/cat/0.png,8,wide\n", "has two different rows for train/cat/0.png"),
        (TABLE.replace("user", "camera", 1), "has two columns 'camera'"),
        (TABLE.replace("file", "name", 1), "has no column 'file'"),
        ("", "has no column 'file'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(with_table, tmp_path, table, message):
    with refused(f"{tmp_path / 'facts.csv'}: cannot be read: {message}", FedflowError):
        with_table(table)


def test_a_table_that_is_not_there_is_named(folder, tree):
    params = DatasetParams.parse({"source": "folder", "path": str(folder(tree)), "table": "none.csv"})
    with refused("none.csv: cannot be read", FedflowError):
        prepare(params, "out")


def test_a_replaced_file_is_noticed_and_a_touched_or_missing_one_is_not(npz, tmp_path):
    path, out = npz(), tmp_path / "out"
    params = DatasetParams(source="npz", path=str(path))
    assert not is_current(out, params)
    first = prepare(params, out)
    assert is_current(out, params) and not is_current(out, DatasetParams(source="npz", path=str(path), pad=1))
    os.utime(path, (1, 1))
    assert is_current(out, params)
    npz(y_train=np.arange(30)[::-1] % 3)
    assert not is_current(out, params) and prepare(params, out).hash != first.hash and is_current(out, params)
    path.unlink()
    assert is_current(out, params)


def test_prepare_reads_a_replaced_file_again_and_says_where_a_field_is_wrong(npz, tmp_path):
    root, file = make_project(tmp_path / "project"), npz()
    params = load_params(root / "params.yaml", [f"data.arrays.path={file}"])
    first = load_prepared(prepare_dataset(params, "arrays", root))
    npz(x_train=np.ones((30, 4, 4), np.uint8))
    assert load_prepared(prepare_dataset(params, "arrays", root)).hash != first.hash
    limited = load_params(root / "params.yaml", [f"data.arrays.path={file}", "data.arrays.train_limit=2"])
    with refused("data.arrays.train_limit: 2 is not"):
        prepare_dataset(limited, "arrays", root)


def test_files_of_folders_tables_and_parts_are_watched(with_table, npz, tmp_path):
    with_table()
    folder = {"source": "folder", "path": str(tmp_path / "images"), "table": str(tmp_path / "facts.csv")}
    params = DatasetParams.parse({"source": "mix", "parts": [folder, {"source": "npz", "path": str(npz())}]})
    assert len(params.files()) == 3
    prepare(params, tmp_path / "mix")
    (tmp_path / "facts.csv").write_text(TABLE.replace("8", "6"))
    assert not is_current(tmp_path / "mix", params)
    prepare(params, tmp_path / "mix")
    assert is_current(tmp_path / "mix", params)
    (tmp_path / "images" / "train" / "cat" / "2.png").rename(tmp_path / "images" / "train" / "cat" / "3.png")
    assert not is_current(tmp_path / "mix", params)


@pytest.mark.parametrize("mixed", [False, True], ids=["itself", "part of a mix"])
def test_a_file_of_the_data_root_is_watched(npz, tmp_path, monkeypatch, mixed):
    """Replacing a subset by the full set, or another layout of it, must not keep training on the subset."""
    root, out, source = tmp_path / "root", tmp_path / "out", {"source": "cifar100_mini"}
    sizes = (("train", 200), ("test", 100))
    images = {f"x_{split}": np.zeros((n, 32, 32, 3), np.uint8) for split, n in sizes}
    labels = {f"y_{split}": np.arange(n) % 100 for split, n in sizes}
    root.mkdir()
    file = npz(**images, **labels).rename(root / "cifar100_mini.npz")
    monkeypatch.setenv("FEDFLOW_DATA", str(root))
    mix = {"source": "mix", "labels": "shared", "parts": [source, source]}
    params = DatasetParams.parse(mix if mixed else source)
    first = prepare(params, out)
    assert is_current(out, params)
    npz(**images | {"x_test": images["x_test"] + 1}, **labels).rename(file)
    assert not is_current(out, params) and prepare(params, out).hash != first.hash and is_current(out, params)
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    shutil.copy(file, copy)
    monkeypatch.setenv("FEDFLOW_DATA", str(copy))
    assert is_current(out, params)  # the same content in another place
    (copy / file.name).unlink()
    assert is_current(out, params)
