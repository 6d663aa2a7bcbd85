"""The real data sets, where a data root has their files."""

import os
from pathlib import Path

import pytest
import torch

from fedflow.data import DatasetParams, prepare, source

ROOT = Path(os.environ.get("FEDFLOW_DATA") or Path(__file__).parents[2].parent / "shared" / "data")


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (ROOT / name).is_file(), reason=f"no {name} in the data root")


@needs("mnist.npz")
def test_mnist_has_its_official_counts() -> None:
    raw = source("mnist").load(ROOT)
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.from_numpy(raw.y_train).bincount().tolist() == train
    assert raw.x_train.shape == (60_000, 28, 28) and raw.x_test.shape == (10_000, 28, 28)


@needs("mnist.npz")
def test_the_usual_constants_of_mnist_are_those_of_its_images() -> None:
    x = torch.from_numpy(source("mnist").load(ROOT).x_train).float() / 255
    assert round(x.mean().item(), 4) == source("mnist").mean[0]
    assert round(x.std().item(), 4) == source("mnist").std[0]


@needs("usps.npz")
def test_usps_becomes_the_input_of_mix4(tmp_path: Path) -> None:
    data = prepare(DatasetParams(source="usps", pad=8, channels=3), tmp_path, ROOT)
    assert data.input_shape == (3, 32, 32) and len(data.train) == 7291 and len(data.test) == 2007
    corner = data.test.inputs(torch.arange(9))[..., 0, 0]
    torch.testing.assert_close(corner, torch.full((9, 3), (0 - 0.1307) / 0.3081))


@needs("emnist_letters.npz")
def test_a_subset_of_emnist_letters_is_accepted() -> None:
    raw = source("emnist_letters").load(ROOT)
    assert raw.classes[0] == "A" and raw.classes[25] == "Z" and raw.y_train.max() == 25


@needs("cifar100_mini.npz")
def test_cifar100_mini_is_balanced() -> None:
    raw = source("cifar100_mini").load(ROOT)
    assert set(torch.from_numpy(raw.y_train).bincount().tolist()) == {100} and len(raw.classes) == 100


@pytest.mark.slow
@needs("cifar10.tar")
def test_cifar10_is_read_from_its_tar(tmp_path: Path) -> None:
    data = prepare(DatasetParams(source="cifar10"), tmp_path, ROOT)
    assert data.classes[0] == "airplane" and data.input_shape == (3, 32, 32)
    assert data.y_train.bincount().tolist() == [5000] * 10 and data.y_test.bincount().tolist() == [1000] * 10
    # lossy JPEG pixels, so the published means hold only roughly
    means = data.x_train.double().mean((0, 2, 3)) / 255
    torch.testing.assert_close(means, torch.tensor(data.mean, dtype=torch.float64), atol=0.005, rtol=0)
