"""Files of generated images, and the data source that reads them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support import refused

from fedflow.data import DatasetParams, is_current, load_prepared, prepare
from fedflow.data.generated import LastImages, load_generated, save_generated
from fedflow.errors import FedflowError

REAL = {"source": "digits"}


def made(path: Path, channels: int = 1, classes: int = 10) -> dict[str, Any]:
    """An entry of data of two rounds of images, two per class."""
    source = torch.Generator().manual_seed(0)
    y = torch.arange(classes).repeat_interleave(2)
    shape = len(y), channels, 8, 8
    rounds = {t: (torch.randint(256, shape, generator=source, dtype=torch.uint8), y) for t in (5, 10)}
    ones = torch.ones(3, dtype=torch.float64)
    last = LastImages(torch.tensor([2, 0, 3]), rounds[5][0][:3], ones, torch.ones(classes))
    save_generated(path, rounds, last)
    return {"source": "generated", "path": str(path), "test_of": REAL}


def test_images_of_a_round_are_training_samples_and_the_tests_are_real(tmp_path: Path) -> None:
    entry, real = made(tmp_path / "images"), prepare(DatasetParams.parse(REAL), tmp_path / "real")
    found = load_generated(tmp_path / "images")
    assert found.last is not None and found.last.image.tolist() == [2, 0, 3]
    for given, t in (({}, 10), ({"round": 5}, 5)):
        data = prepare(DatasetParams.parse(entry | given), tmp_path / str(t))
        assert torch.equal(data.x_train, found.rounds[t][0]) and torch.equal(data.y_train, found.rounds[t][1])
        assert torch.equal(data.x_test, real.x_test) and torch.equal(data.y_test, real.y_test)
        assert (data.mean, data.std, data.classes) == (real.mean, real.std, real.classes)
    plain = {"test_of": REAL | {"keep_labels": [0, 1]}, "keep_labels": [], "normalize": "none"}
    data = prepare(DatasetParams.parse(made(tmp_path / "two", classes=2) | plain), tmp_path / "few")
    assert (data.mean, data.classes) == ((0.0,), ("0", "1")) and set(data.y_test.tolist()) == {0, 1}


def test_color_images_keep_their_channels(tmp_path: Path) -> None:
    entry = made(tmp_path / "images", channels=3) | {"test_of": REAL | {"channels": 3}}
    data = prepare(DatasetParams.parse(entry), tmp_path / "data")
    assert torch.equal(data.x_train, load_generated(tmp_path / "images").rounds[10][0])


def test_a_new_file_makes_new_data_and_the_record_is_complete(tmp_path: Path) -> None:
    params = DatasetParams.parse(made(tmp_path / "images"))
    prepare(params, tmp_path / "data")
    assert is_current(tmp_path / "data", params) and params == DatasetParams.parse(params.flat())
    assert params.parameters.test_of["train_limit"] is None  # with defaults
    made(tmp_path / "images", classes=9)
    assert not is_current(tmp_path / "data", params) and load_prepared(tmp_path / "data").num_classes == 10


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"round": 7}, "data.round: 7 is not accepted; expected one of the evaluated rounds 5, 10"),
        ({"test_of": REAL | {"pad": 1}}, r"data.test_of: 'digits' .* \[8, 8\], as .* \[10, 10\]"),
        ({"test_of": {"source": "prototypes"}}, "data.test_of: 'prototypes' .* not features"),
        ({"test_of": REAL | {"keep_labels": [1, 2]}}, "data.test_of: 'digits' .* they differ in 2"),
        ({"test_of": {"source": "none"}}, "data.test_of.source: 'none' is not accepted"),
        ({"test_of": REAL | {"pad": -1}}, "data.test_of.pad: -1"),
        ({"test_of": {}}, "data.test_of.source: missing"),
        ({"path": "nowhere"}, "there is no file 'nowhere'"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with refused(message, FedflowError):
        prepare(DatasetParams.parse(made(tmp_path / "images") | given), tmp_path / "data")


@pytest.mark.parametrize("damage", ["cut", "empty", "other", "labels", "pixels", "folder"])
def test_a_damaged_file_is_one_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "images"
    entry = made(path)
    x, y = load_generated(path).rounds[10]
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        spoilt = {"labels": {"5/x": x, "5/y": y.float()}, "pixels": {"5/x": x / 2, "5/y": y}}
        save_file(spoilt.get(damage, {"w": x}), path)
    with refused(f"cannot read {path}: .*; run this experiment again", FedflowError):
        prepare(DatasetParams.parse(entry), tmp_path / "data")


def test_a_run_without_images_is_no_data(tmp_path: Path) -> None:
    entry = made(tmp_path / "images")
    save_generated(tmp_path / "images", {}, None)
    assert load_generated(tmp_path / "images") == ({}, None)
    with refused("data.path: .* expected the images of a method that generates some"):
        prepare(DatasetParams.parse(entry), tmp_path / "data")
