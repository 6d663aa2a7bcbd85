"""The real datasets, where a data root has their files."""

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fedflow.data import SOURCES, DatasetParams, prepare, source
from fedflow.data.transform import transformed
from fedflow.partition import PartitionParams, make_partition
from fedflow.partition.scheme import Samples

ROOT = Path(os.environ.get("FEDFLOW_DATA") or Path(__file__).parents[2].parent / "shared" / "data")


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (ROOT / name).is_file(), reason=f"no {name} in the data root")


@needs("mnist.npz")
def test_mnist_has_its_official_counts_and_constants():
    raw = source("mnist").load(ROOT)
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.from_numpy(raw.y_train).bincount().tolist() == train
    assert raw.x_train.shape == (60_000, 28, 28) and raw.x_test.shape == (10_000, 28, 28)
    x, entry = torch.from_numpy(raw.x_train).float() / 255, source("mnist")
    assert (round(x.mean().item(), 4), round(x.std().item(), 4)) == (entry.mean[0], entry.std[0])


@needs("usps.npz")
def test_usps_becomes_the_input_of_mix4(tmp_path):
    data = prepare(DatasetParams(source="usps", pad=8, channels=3), tmp_path, ROOT)
    assert data.input_shape == (3, 32, 32) and len(data.train) == 7291 and len(data.test) == 2007
    corner = data.test.inputs(torch.arange(9))[..., 0, 0]
    torch.testing.assert_close(corner, torch.full((9, 3), (0 - 0.1307) / 0.3081))


@pytest.mark.full
@pytest.mark.skipif(
    not all((ROOT / name).is_file() for name in ("mnist.npz", "fmnist.npz", "usps.npz", "cifar10.tar")),
    reason="no mnist, fmnist, usps and cifar10 in the data root",
)
def test_mix4_of_real_images(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    for name in ("mnist.npz", "fmnist.npz", "usps.npz"):
        (root / name).symlink_to(ROOT / name)
    # Decoding all of CIFAR-10 takes ten seconds: the first 40 images of each class are enough here.
    with tarfile.open(ROOT / "cifar10.tar") as tar, tarfile.open(root / "cifar10.tar", "w") as few:
        for member in tar:
            if member.isfile() and int(Path(member.name).stem) < 40:
                few.addfile(member, tar.extractfile(member))
    parts: list[dict] = [
        {"source": "usps"},
        {"source": "cifar10", "train_limit": 200, "test_limit": 100},
        {"source": "mnist", "train_limit": 300},
        {"source": "fmnist", "train_limit": 100},
    ]
    data = prepare(DatasetParams.parse({"source": "mix", "parts": parts}), tmp_path, root)
    assert data.input_shape == (3, 32, 32) and data.num_classes == 40 and len(set(data.classes)) == 40
    assert [data.classes[c] for c in (3, 13, 39)] == ["usps:3", "cifar10:cat", "fmnist:Ankle boot"]
    domain = data.columns["domain"]
    assert domain.names == ("usps", "cifar10", "mnist", "fmnist")
    assert torch.from_numpy(domain.train).bincount().tolist() == [7291, 200, 300, 100]
    assert torch.from_numpy(domain.test).bincount().tolist() == [2007, 100, 10_000, 10_000]
    assert data.y_train.bincount().tolist()[:20] == [*source("usps").train_counts, *[20] * 10]
    assert torch.equal(data.y_train // 10, torch.from_numpy(domain.train))
    gray, color = ((0.1307,) * 3, (0.3081,) * 3), (source("cifar10").mean, source("cifar10").std)
    assert list(zip(data.mean, data.std)) == [gray, color, gray, gray]
    one_each = torch.tensor([0, 7291, 7491, 7791])  # an image of each part
    corners = data.train.inputs(one_each)[:, :, 0, 0]
    border = torch.full((3,), (0 - 0.1307) / 0.3081)
    assert all(torch.allclose(corners[i], border, atol=1e-6) for i in (0, 2, 3))
    usps = prepare(DatasetParams(source="usps", pad=8, channels=3), tmp_path / "usps", ROOT)
    assert torch.equal(data.x_train[:7291], usps.x_train)


@needs("mnist.npz")
@needs("usps.npz")
def test_digits_of_two_domains_share_their_labels(tmp_path):
    parts = [{"source": "mnist", "train_limit": 1000, "resize": 16, "test_limit": 10}, {"source": "usps"}]
    entry = {"source": "mix", "parts": parts, "labels": "shared"}
    data = prepare(DatasetParams.parse(entry), tmp_path, ROOT)
    assert data.num_classes == 10 and data.input_shape == (1, 16, 16) and len(data.train) == 8291


@needs("emnist_letters.npz")
def test_the_letters_of_emnist(tmp_path):
    raw = source("emnist_letters").load(ROOT)
    assert raw.classes[0] == "A" and raw.classes[25] == "Z" and raw.y_train.max() == 25
    entry = DatasetParams(source="emnist_letters", keep_labels=[*range(10)], normalize="train")
    data = prepare(entry, tmp_path, ROOT)
    assert data.classes == tuple("ABCDEFGHIJ") and data.y_train.bincount().tolist() == [2400] * 10
    x = torch.from_numpy(raw.x_train[raw.y_train < 10]).double() / 255  # FedDyn's EMNIST-L
    assert [*data.mean, *data.std] == pytest.approx([x.mean().item(), x.std().item()], rel=1e-4)


@needs("cifar100_mini.npz")
def test_cifar100_mini_is_balanced():
    raw = source("cifar100_mini").load(ROOT)
    assert set(torch.from_numpy(raw.y_train).bincount().tolist()) == {100} and len(raw.classes) == 100


@needs("cifar100_mini.npz")
def test_the_iid_split_of_cifar100_gives_every_device_five_images_of_each_class(tmp_path):
    """500 images a device, as for side losses; 20 devices share the small file, 100 the official one."""
    data = prepare(DatasetParams(source="cifar100_mini"), tmp_path, ROOT)
    params = PartitionParams.parse({"dataset": "mini", "scheme": "iid", "stratified": True, "clients": 20})
    partition = make_partition(params, Samples(data.y_train.numpy(), data.y_test.numpy()))
    labels = data.y_train[torch.as_tensor(np.stack([partition.train(k) for k in range(20)]))]
    assert labels.shape == (20, 500)
    assert all(torch.equal(own.bincount(), torch.full((100,), 5)) for own in labels)


@pytest.mark.slow
@needs("cifar10.tar")
def test_cifar10_is_read_from_its_tar(tmp_path):
    data = prepare(DatasetParams(source="cifar10"), tmp_path, ROOT)
    assert data.classes[0] == "airplane" and data.input_shape == (3, 32, 32)
    assert data.y_train.bincount().tolist() == [5000] * 10 and data.y_test.bincount().tolist() == [1000] * 10
    # lossy JPEG pixels, so the published means hold only roughly
    means = data.x_train.double().mean((0, 2, 3)) / 255
    torch.testing.assert_close(means, torch.tensor(data.mean, dtype=torch.float64), atol=0.005, rtol=0)


@needs("tinyshakespeare.txt")
def test_tiny_shakespeare_has_its_roles_and_characters():
    options = SOURCES["tinyshakespeare"].options
    assert options is not None
    raw = source("tinyshakespeare").load(ROOT, options=options.parse({"stride": 50, "min_samples": 10}))
    assert len(raw.classes) == 65 and raw.x_train.shape[1] == 80
    assert {"ROMEO", "GLOUCESTER", "First Citizen"} <= set(raw.columns["user"].names)


@pytest.mark.full
@needs("tinyshakespeare.txt")
def test_tiny_shakespeare_by_role_and_pooled_as_in_feddyn():
    """2,000 and 400 windows of every role that has more, in one run each; or 2,000 windows of anyone."""
    raw = transformed(DatasetParams(source="tinyshakespeare"), ROOT)
    samples = Samples(raw.y_train, raw.y_test, raw.columns)
    limits = {"min_samples": 2001, "min_test": 401, "max_samples": 2000, "max_test": 400}
    params = PartitionParams.parse({"dataset": "plays", "scheme": "natural", **limits})
    by_role, roles = make_partition(params, samples), raw.columns["user"]
    assert set(by_role.sizes.tolist()) == {2000} and len(by_role.sizes) == 87
    for k in (0, 40, 86):
        rows, pool = by_role.train(k), by_role.test(k)
        assert np.ptp(rows) == 1999 and len(pool) == 400 and np.ptp(pool) == 399
        assert len({*roles.train[rows].tolist(), *roles.test[pool].tolist()}) == 1
    few = {"train_limit": 200_000, "test_limit": 40_000}
    raw = transformed(DatasetParams(source="tinyshakespeare", **few), ROOT)
    params = PartitionParams.parse({"dataset": "plays", "scheme": "iid", "clients": 100})
    pooled = make_partition(params, Samples(raw.y_train, raw.y_test, raw.columns))
    assert set(pooled.sizes.tolist()) == {2000} and len(raw.y_test) == 40_000
    assert len(set(raw.columns["user"].train[pooled.train(0)].tolist())) > 50
