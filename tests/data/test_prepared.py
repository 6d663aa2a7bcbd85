import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from command import disk_of
from support import refused

from fedflow.data import SOURCES, Dataset, DatasetParams, is_current, load_prepared, prepare
from fedflow.data.prepared import path_sum
from fedflow.errors import FedflowError
from fedflow.project import code
from fedflow.stages import prepare as stage

FILES = ("meta.json", "test.safetensors", "train.safetensors")


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def digits(out: Path, **params: object) -> Dataset:
    return prepare(DatasetParams(source="digits", **params), out)


def test_two_prepares_are_byte_identical_and_in_any_process(tmp_path, npz):
    values = {"source": "npz", "path": str(npz()), "train_limit": 20, "pad": 1}
    prepare(DatasetParams.parse(values), tmp_path / "a")
    code = f"from fedflow.data import *; prepare(DatasetParams.parse({values}), {str(tmp_path / 'b')!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert sorted(contents(tmp_path / "a")) == sorted(FILES)


def test_meta_describes_the_files(tmp_path):
    data = digits(tmp_path)
    meta = json.loads((tmp_path / "meta.json").read_text())
    assert meta["params"] == DatasetParams(source="digits").as_dict()
    assert meta["shapes"] == {"train": [1438, 1, 8, 8], "test": [359, 1, 8, 8]}
    assert meta["class_counts"]["train"] == torch.bincount(data.y_train).tolist()
    assert meta["classes"] == list(data.classes) and meta["hash"] == data.hash and len(data.hash) == 16
    for name in FILES[1:]:
        assert meta["files"][name]["bytes"] == (tmp_path / name).stat().st_size


def test_what_is_loaded_is_what_was_prepared(tmp_path, make, arrays):
    made = make()
    data = load_prepared(tmp_path / "out", verify=True)
    assert data.name == "small" and data.num_classes == 3 and data.input_shape == (1, 4, 4)
    assert data.x_train.dtype == torch.uint8 and data.y_train.dtype == torch.int64
    assert np.array_equal(data.x_test[:, 0].numpy(), arrays()["x_test"])
    assert torch.equal(made.x_train, data.x_train) and torch.equal(made.y_test, data.y_test)
    assert len(data.train) == 30 and len(data.test) == 12


def test_the_files_are_readable_by_others(tmp_path, make):
    make()
    assert len({(tmp_path / "out" / name).stat().st_mode for name in FILES}) == 1


def test_a_second_prepare_replaces_the_first(tmp_path, make):
    first, second = make(), make(pad=1)
    assert first.hash != second.hash and second.input_shape == (1, 6, 6)
    assert first.x_train.shape == (30, 1, 4, 4) and first.x_train.float().mean() > 100  # still mapped
    assert sorted(contents(tmp_path / "out")) == sorted(FILES)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no list of mapped files")
def test_loaded_images_are_memory_mapped(make):
    data = make()
    assert "out/train.safetensors" in Path("/proc/self/maps").read_text()
    assert len(data.train) == 30


def test_padding_comes_before_normalization(tmp_path):
    data = prepare(DatasetParams(source="mnist5k", pad=2, channels=3, test_limit=10), tmp_path)
    assert data.input_shape == (3, 32, 32) and data.mean == (0.1307,) * 3 and data.std == (0.3081,) * 3
    x = data.train.inputs(torch.arange(50))
    border = torch.ones(32, 32, dtype=torch.bool)
    border[2:-2, 2:-2] = False
    edge = torch.tensor((0 - 0.1307) / 0.3081)
    torch.testing.assert_close(x[:, :, border], edge.expand(50, 3, int(border.sum())))
    inside = (data.x_train[:50].double() / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(x.double(), inside, atol=1e-6, rtol=0)
    assert torch.equal(x[:, 0], x[:, 1]) and torch.equal(x[:, 0], x[:, 2])


def test_missing_constants_are_those_of_the_training_images(tmp_path):
    whole = digits(tmp_path / "a")
    x = whole.x_train.double() / 255
    assert whole.mean[0] == pytest.approx(x.mean().item(), abs=1e-6)
    assert whole.std[0] == pytest.approx(x.std(correction=0).item(), abs=1e-6)
    part = digits(tmp_path / "b", pad=3, channels=3, train_limit=50)
    assert part.mean == whole.mean * 3 and part.std == whole.std * 3  # of all images, unpadded


def test_a_constant_image_set_is_not_divided_by_zero(npz, tmp_path):
    path = npz(x_train=np.full((30, 4, 4), 51, np.uint8))
    data = prepare(DatasetParams(source="npz", path=str(path)), tmp_path / "out")
    assert data.mean == (0.2,) and data.std == (1.0,)


@pytest.mark.parametrize("limit", [10, 33, 1000, 1438, 5000])
def test_a_limit_keeps_every_class_in_proportion(tmp_path, limit):
    whole, part = digits(tmp_path / "a"), digits(tmp_path / "b", train_limit=limit)
    assert len(part.train) == min(limit, 1438) and len(part.test) == 359
    share = torch.bincount(part.y_train) / torch.bincount(whole.y_train)
    assert (share - len(part.train) / 1438).abs().max() < 1 / 139  # one image of the smallest class


def test_limits_are_nested_keep_the_order_and_depend_on_the_seed(tmp_path):
    def kept(name: str, limit: int | None, seed: int = 0) -> list[tuple]:
        data = digits(tmp_path / name, test_limit=limit, seed=seed)
        return [(y, *x.flatten().tolist()) for x, y in zip(data.x_test, data.y_test.tolist())]

    whole, large, small = kept("w", None), kept("l", 120), kept("s", 40)
    assert [image for image in whole if image in large] == large and set(small) < set(large)
    assert set(kept("t", 40, seed=1)) != set(small)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "data.source: missing; expected one of mnist"),
        ({"source": "minst"}, "did you mean 'mnist'"),
        ({"source": "digits", "pad": -1}, "data.pad: -1 is not accepted; expected a whole number >= 0"),
        ({"source": "digits", "channels": 2}, "data.channels: 2 is not accepted"),
        ({"source": "digits", "train_limit": 0}, "data.train_limit: 0 is not accepted"),
        ({"source": "digits", "path": "x.npz"}, "data.path: 'x.npz' is not accepted; expected null"),
        ({"source": "npz"}, "data.path: None is not accepted; expected a file or folder, for source 'npz'"),
        ({"source": "digits", "padding": 2}, "did you mean 'pad'"),
    ],
)
def test_bad_parameters_are_named(values, message):
    with refused(message):
        DatasetParams.parse(values)


def test_a_limit_below_the_number_of_classes_is_refused(make, tmp_path):
    with refused(r"data.test_limit: 2 .* at least 3"):
        make(test_limit=2)
    assert not (tmp_path / "out").exists()


def test_color_is_not_turned_into_gray(npz, tmp_path):
    color = {f"x_{split}": np.zeros((n, 4, 4, 3), np.uint8) for split, n in (("train", 30), ("test", 12))}
    params = DatasetParams(source="npz", path=str(npz(**color)), channels=1)
    with refused(r"data\.channels: 1"):
        prepare(params, tmp_path / "out")
    assert prepare(DatasetParams(source="npz", path=params.path), tmp_path / "out").input_shape == (3, 4, 4)


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    digits(tmp_path / "out")
    before = contents(tmp_path / "out")
    for name in ("out", "new"):
        with disk_of(50_000), refused("cannot write the prepared data", FedflowError):
            digits(tmp_path / name, pad=1)
    assert contents(tmp_path / "out") == before and contents(tmp_path / "new") == {}
    assert load_prepared(tmp_path / "out", verify=True).input_shape == (1, 8, 8)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with refused(f"{tmp_path}/file/out: cannot write the prepared data: ", FedflowError):
        digits(tmp_path / "file" / "out")


def test_a_move_that_fails_leaves_no_meta(tmp_path, make, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    make()
    monkeypatch.setattr(os, "replace", full)
    with refused("No space left on device", FedflowError):
        make(pad=1)
    with refused("meta.json: missing; `fedflow prepare out` makes it", FedflowError):
        load_prepared(tmp_path / "out")
    assert sorted(contents(tmp_path / "out")) == sorted(FILES[1:])


def edit(**changes: object) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps(json.loads(content) | changes).encode()


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("meta.json", None, "missing"),
        ("meta.json", lambda c: c[:100], "cannot be read"),
        ("meta.json", lambda c: b"[]", "cannot be read"),
        ("meta.json", lambda c: b"\xff\xfe", "cannot be read"),
        ("meta.json", edit(mean=[0.0]), "do not match its hash"),
        ("meta.json", edit(shapes={}), "cannot be read: has no 'train'"),
        ("meta.json", edit(shapes={"train": [29, 1, 4, 4], "test": [12, 1, 4, 4]}), "holds other tensors"),
        ("train.safetensors", None, "missing"),
        ("train.safetensors", lambda c: c[:-1], "bytes, not"),
        ("test.safetensors", lambda c: b"", "has 0 bytes, not"),
        ("test.safetensors", lambda c: c + b"\0", "bytes, not"),
        ("test.safetensors", lambda c: b"\xff" * len(c), "cannot be read"),
    ],
)
def test_damaged_prepared_data_name_the_file(make, tmp_path, name, damage, message):
    make()
    file = tmp_path / "out" / name
    content = file.read_bytes()
    file.unlink()
    if damage:
        file.write_bytes(damage(content))
    with refused(f"(?=.*{name}).*{message}.*`fedflow prepare out` makes it", FedflowError):
        load_prepared(tmp_path / "out")


def test_verify_finds_a_changed_pixel(make, tmp_path):
    make()
    file = tmp_path / "out" / "train.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    load_prepared(tmp_path / "out")
    with refused("train.safetensors: wrong checksum", FedflowError):
        load_prepared(tmp_path / "out", verify=True)


def test_one_process_at_a_time_prepares_data(tmp_path, monkeypatch):
    """Four threads, each of which opens the lock file itself, act like four processes."""
    made = []

    def counted(*given):
        made.append(given)
        return prepare(*given)

    monkeypatch.setattr(stage, "prepare", counted)
    params = DatasetParams.parse({"source": "digits"}, section="data")
    with ThreadPoolExecutor(4) as threads:
        again = threads.map(
            lambda _: stage.current_or_prepared(params, tmp_path / "d", tmp_path / "lock")[1], range(4)
        )
        assert sorted(again) == [False] * 3 + [True]
    assert len(made) == 1


PLUGIN = """
import fedflow as ff
import numpy as np

def levels(root):
    x = np.full((6, 8, 8), 3, np.uint8)
    return ff.RawData(x, np.arange(6) % 2, x, np.arange(6) % 2)

ff.register_source(
    ff.Source(name="levels", title="Levels", about="one", origin="here", kind="made", fetch=levels)
)
"""


@pytest.mark.parametrize("part", [False, True], ids=["itself", "part of a mix"])
def test_data_are_outdated_once_the_code_of_a_plugin_changes(tmp_path, monkeypatch, capsys, part):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setitem(SOURCES, "levels", None)
    entry: dict = {"source": "levels"}
    if part:
        entry = {"source": "mix", "parts": [entry]}

    def prepared(text: str) -> tuple[int, bool, str]:
        """The level, whether it was prepared now, and the line said, as in a new process."""
        for cached in (code.closure, code._source, code._file, code._imports, code._home):
            cached.cache_clear()
        monkeypatch.delitem(sys.modules, "plugin_of_a_test", raising=False)
        (tmp_path / "plugin_of_a_test.py").write_text(text)
        importlib.import_module("plugin_of_a_test")
        params = DatasetParams.parse(entry)
        data, made = stage.current_or_prepared(params, tmp_path / "d", tmp_path / "lock")
        return int(data.x_train.max()), made, capsys.readouterr().out.replace("\n", "")

    said = f"{tmp_path / 'd'}: prepared again, changed: code of source levels"
    assert prepared(PLUGIN) == (3, True, "")
    assert prepared(f"# a comment{PLUGIN}") == (3, False, "")
    assert prepared(PLUGIN.replace("3", "4")) == (4, True, said)
    SOURCES["levels"].fetch.__module__ = "in_no_file"
    assert not is_current(tmp_path / "d", DatasetParams.parse(entry))


def test_files_behind_links_to_folders_count(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "back").symlink_to(tmp_path / "set")  # a loop
    (tmp_path / "real" / "a").write_text("1")
    first = path_sum(tmp_path / "set")
    (tmp_path / "real" / "a").write_text("22")
    assert path_sum(tmp_path / "set") != first


def test_the_hash_of_a_table_depends_on_its_names(tmp_path):
    hashes = set()
    for words in (("yes", "no"), ("pos", "neg")):
        pd.DataFrame({"a": [0.5, 1, 2, 4] * 5, "label": words * 10}).to_csv(tmp_path / "t.csv", index=False)
        entry = {"source": "table", "path": str(tmp_path / "t.csv"), "target": "label"}
        data = prepare(DatasetParams.parse(entry), tmp_path / "out")
        assert is_current(tmp_path / "out", DatasetParams.parse(entry))
        hashes.add(data.hash)
    assert len(hashes) == 2
