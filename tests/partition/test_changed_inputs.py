"""Steps after a scheme that change the inputs of clients: who gets which, and who is tested on what."""

from pathlib import Path
from typing import Any

import dealing
import numpy as np
import pytest
import torch
from command import one_cell, prepared_project
from support import refused, run

from fedflow.data import DataColumn, Dataset, load_prepared
from fedflow.partition import Partition, Samples, load_partition
from fedflow.partition.after.transforms import Transforms
from fedflow.partition.opened import Opened, opened
from fedflow.simulation.federation import Federation
from fedflow.stages.experiment import Experiment

SCHEME = "scheme: iid, clients: 4, holdout: 0.25, "
NOISE = {"feature_noise": {"sigma": 0.4}}

TURNS = {"transforms": {"sets": [[], [{"name": "RandomRotation", "degrees": [90, 90]}]]}}
JITTER = [{"name": "ColorJitter", "brightness": 0.9}, {"name": "GaussianBlur", "kernel_size": 3}]


def images(n: int = 400, tests: int = 100, **more: Any) -> Dataset:
    """Random images, normalized by channel, and users whose test images are their own."""
    rng = np.random.default_rng(0)
    x, x_test = (torch.from_numpy(rng.integers(0, 256, (m, 3, 6, 6), np.uint8)) for m in (n, tests))
    columns = {"user": DataColumn(np.arange(n) % 4, np.arange(tests) % 4)}
    y, y_test = torch.arange(n) % 5, torch.arange(tests) % 5
    values = {"mean": (0.5, 0.4, 0.3), "std": (0.25, 0.5, 0.5), "columns": columns} | more
    return Dataset("toy", x, y, x_test, y_test, classes=tuple("abcde"), hash="h", **values)


def made(data: Dataset, **entry: Any) -> Partition:
    return dealing.make(Samples.of(data), **{"scheme": "iid", "clients": 4, "holdout": 0.25} | entry)


def seen(data: Dataset, split: str = "train") -> torch.Tensor:
    """The normalized inputs of a split without changes."""
    examples = getattr(data, split)
    return examples.inputs(torch.arange(len(examples)))


def rows_of(partition: Partition, k: int) -> np.ndarray:
    """All training rows of one client: trained on, held out for selection, and for its test."""
    selection = partition.selection(k)
    return np.concatenate(
        [partition.train(k), partition.test(k), [] if selection is None else selection]
    ).astype(int)


def assert_complete_test_set_is_unchanged(examples: Opened, data: Dataset) -> None:
    assert examples.test.x is data.x_test and torch.equal(
        examples.test.inputs(torch.arange(100)), seen(data, "test")
    )


@pytest.mark.parametrize(
    ("protocol", "deviations"),
    [("paper", np.sqrt([0.1, 0.2, 0.3, 0.4])), ("official", [0, 0.4 / 3, 0.8 / 3, 0.4])],
)
def test_noise_grows_with_the_number_of_the_client(protocol: str, deviations: list[float]) -> None:
    """Of pixels scaled to 0..1: after normalization it is divided by the std of the channel."""
    data = images(4000)
    partition = made(data, selection=0.2, public=100, feature_noise={"sigma": 0.4, "protocol": protocol})
    examples = opened(data, partition)
    noise = (examples.train.inputs(torch.arange(4000)) - seen(data)) * torch.tensor([0.25, 0.5, 0.5])[
        :, None, None
    ]
    for k, deviation in enumerate(deviations):
        drawn = noise[rows_of(partition, k)]
        assert float(drawn.std()) == pytest.approx(deviation, rel=0.03)
        assert float(drawn.mean()) == pytest.approx(0, abs=0.01)
    assert len(partition.public) == 100 and not noise[partition.public].any()
    assert examples.own is None  # clients are tested on held-out training samples
    assert_complete_test_set_is_unchanged(examples, data)


def test_noise_is_drawn_for_each_client_and_sample_and_keyed_by_the_seed() -> None:
    data = images()
    partition = made(data, **NOISE)
    noise = opened(data, partition).train.x - seen(data)
    assert torch.equal(opened(data, partition).train.x - seen(data), noise)
    assert len(torch.unique(noise)) > 0.99 * noise.numel()
    other = opened(data, made(data, seed=1, **NOISE)).train.x - seen(data)
    assert not torch.isclose(other, noise, atol=1e-4).any(dim=(1, 2, 3)).all()


def test_a_tuned_run_has_the_noise_of_the_run_that_it_tunes() -> None:
    """Validation takes training samples of each client for its test; the noise of each sample stays."""
    data = images()
    plain, tuned = (opened(data, made(data, **NOISE, **more)) for more in ({}, {"validation": 0.2}))
    kept = made(data, **NOISE, validation=0.2)
    for k in range(4):
        rows = rows_of(kept, k)
        assert len(rows) == 75 and torch.equal(plain.train.x[rows], tuned.train.x[rows])


def test_users_with_own_test_samples_are_tested_with_their_noise() -> None:
    data = images(n=4000, tests=2000)
    partition = made(
        data, scheme="natural", holdout=0.0, feature_noise={"sigma": 0.4, "protocol": "official"}
    )
    examples = opened(data, partition)
    assert examples.own is not None and examples.test.x is data.x_test
    noise = (examples.own.x - seen(data, "test")) * torch.tensor([0.25, 0.5, 0.5])[:, None, None]
    found = [float(noise[partition.test(k)].std()) for k in range(4)]
    assert found == pytest.approx([0, 0.4 / 3, 0.8 / 3, 0.4], rel=0.03)
    trained = opened(data, partition).train.x[:100] - seen(data)[:100]
    assert not torch.allclose(trained[1::4], (examples.own.x - seen(data, "test"))[:100][1::4])


def test_noise_of_domains_and_of_features() -> None:
    """Normalized by the std of each domain; features are not scaled."""
    domain = DataColumn(np.arange(4000) % 2, np.arange(100) % 2)
    data = images(4000, mean=((0.5,), (0.4,)), std=((0.5,), (0.1,)), columns={"domain": domain})
    partition = made(data, **NOISE)
    noise = opened(data, partition).train.x - seen(data)
    for d, std in enumerate((0.5, 0.1)):
        rows = partition.train(3)[partition.train(3) % 2 == d]
        assert float(noise[rows].std()) == pytest.approx(np.sqrt(0.4) / std, rel=0.05)
    x = torch.zeros(4000, 8)
    features = Dataset(
        "toy", x, torch.arange(4000) % 5, x[:9], torch.arange(9) % 5, tuple("abcde"), (), (), "h"
    )
    noisy = opened(features, partition).train.x
    assert float(noisy[partition.train(0)].std()) == pytest.approx(np.sqrt(0.1), rel=0.05)
    assert not x.any()  # the dataset itself, which may be mapped from a file


def test_the_hash_of_a_partition_follows_the_noise_and_its_seed(tmp_path: Any) -> None:
    data = images()
    entries = [{}, NOISE, {"feature_noise": {"sigma": 0.3}}]
    partitions = [made(data, **entry) for entry in entries]
    partitions.append(made(data, feature_noise={"sigma": 0.4, "protocol": "official"}))
    assert len({partition.hash for partition in partitions}) == 4
    seeded = [made(data, scheme="natural", holdout=0.0, seed=s, **NOISE).hash for s in (0, 1)]
    assert seeded[0] != seeded[1]
    partitions[1].save(tmp_path)
    loaded = load_partition(tmp_path)
    assert loaded.hash == partitions[1].hash
    assert torch.equal(opened(data, loaded).train.x, opened(data, partitions[1]).train.x)


@pytest.mark.parametrize("step", [NOISE, TURNS])
def test_samples_with_several_distributions_are_refused(step: dict[str, Any]) -> None:
    (name,) = step
    data = images()
    with refused(f"partition.{name}: .* expected null without holdout, because clients share test samples"):
        made(data, holdout=0.0, **step)
    with refused(f"partition.{name}: .* expected null, because clients share training samples"):
        sharing = {"groups": 2, "sampler": "independent", "samples_per_label": 60}
        made(data, scheme="label_groups", holdout=0.0, **sharing, **step)
    tokens = Dataset(
        "t",
        torch.ones(40, 5, dtype=torch.int32),
        torch.arange(40) % 2,
        torch.ones(4, 5, dtype=torch.int32),
        torch.arange(4) % 2,
        ("a", "b"),
        (),
        (),
        "h",
    )
    with refused(f"partition.{name}: .* expected null"):
        made(tokens, **step)


def test_fields_of_the_noise_are_checked() -> None:
    for entry, message in (
        ({"sigma": -1}, r"feature_noise.sigma: -1.0 .*>= 0"),
        ({"protocol": "code"}, r"feature_noise.protocol: 'code' .*official, paper"),
        ({"std": 1}, r"partition.feature_noise.std: .*expected one of"),
    ):
        with refused(message):
            made(images(), feature_noise=entry)


def started(root: Path, step: str, model: str = "mlp") -> Federation:
    """The federation that a worker opens, of a project with this step."""
    params = prepared_project(
        root, one_cell("{source: digits, normalize: none}", model, SCHEME + step), "few"
    )
    opened = Experiment(params, "few", "fedavg", 0, root).job.federation.open()
    assert isinstance(opened, Federation)
    return opened


def test_a_worker_opens_the_inputs_that_clients_have_and_scores_on_them(tmp_path: Path) -> None:
    """With noise of official levels, client 0 has none, and the last sees nothing but noise."""
    noisy = started(tmp_path, "feature_noise: {sigma: 50, protocol: official}")
    assert noisy.test.images and not noisy.own_test.images
    ran = run("fedavg", noisy, training={"batch_size": 8, "epochs": 3, "lr": 0.1}, rounds=3)
    scores = ran.outcome().scores
    assert scores.local_accuracy[0] > 0.2 > scores.local_accuracy[-1]
    other = started(tmp_path / "other", "feature_noise: {sigma: 0.0}")
    assert other.partition.hash != noisy.partition.hash
    levels = 255 * other.train.x
    assert torch.allclose(levels, levels.round(), atol=1e-4)


def test_generated_images_need_pixels(tmp_path: Path) -> None:
    with refused("partition.feature_noise: .* expected null with .*, whose images have pixels in"):
        run("fedcgan", started(tmp_path, "feature_noise: {sigma: 0.1}"))


def test_clients_take_turns_in_the_sets_of_transforms() -> None:
    """Also on the samples that they are tested on, or select models on."""
    data = images()
    partition = made(data, selection=0.2, public=40, **TURNS)
    examples = opened(data, partition)
    for k in range(4):
        rows = rows_of(partition, k)
        turned = torch.rot90(data.x_train[rows], k % 2, dims=(2, 3))
        assert torch.equal(examples.train.x[rows], turned)
    assert torch.equal(examples.train.x[partition.public], data.x_train[partition.public])
    assert examples.train.images and examples.own is None
    assert_complete_test_set_is_unchanged(examples, data)


def test_groups_of_clients_are_tested_on_their_transforms() -> None:
    domain = DataColumn(np.arange(400) % 2, np.arange(100) % 2)
    data = images(columns={"domain": domain})
    partition = made(data, scheme="domains", holdout=0.0, transforms=TURNS["transforms"] | {"by": "group"})
    examples = opened(data, partition)
    assert examples.own is not None and partition.groups.tolist() == [0, 0, 1, 1]
    for k, group in enumerate(partition.groups):
        for changed, plain, rows in (
            (examples.train.x, data.x_train, partition.train(k)),
            (examples.own.x, data.x_test, partition.test(k)),
        ):
            assert len(rows) and torch.equal(changed[rows], torch.rot90(plain[rows], group, dims=(2, 3)))
    assert_complete_test_set_is_unchanged(examples, data)
    sets = Transforms(sets=[[]] * 3, by="group")
    assert sets.variants(3, np.array([0, 2, 4])).tolist() == [0, 2, 1]
    with refused("partition.transforms.by: 'group' .* expected client, because this scheme has no groups"):
        made(data, transforms=TURNS["transforms"] | {"by": "group"})
    with refused("partition.transforms: .* null without holdout, because clients share test samples"):
        made(data, scheme="domains", holdout=0.0, **TURNS)


def test_random_transforms_are_drawn_once_for_each_sample() -> None:
    """Whatever the caller has drawn, whoever has the sample; another seed draws others."""
    data = images()
    random = {"transforms": {"sets": [JITTER]}}
    first = opened(data, made(data, **random)).train.x
    torch.manual_seed(7)
    state = torch.get_rng_state()
    again = opened(data, made(data, scheme="dirichlet", alpha=1.0, **random)).train.x
    assert torch.equal(first, again) and torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(opened(data, made(data, seed=1, **random)).train.x, first)
    bright = first.float().mean((1, 2, 3)) / data.x_train.float().mean((1, 2, 3))
    assert bright.std() > 0.2  # a draw for each sample
    assert len({made(data, **step).hash for step in ({}, TURNS, random)}) == 3


def test_noise_comes_after_transforms() -> None:
    data = images(4000)
    both = opened(data, made(data, **TURNS, **NOISE)).train.x
    turned, noisy = (opened(data, made(data, **step)).train for step in (TURNS, NOISE))
    noise = noisy.x - seen(data)
    assert torch.allclose(both, turned.inputs(torch.arange(4000)) + noise, atol=1e-5)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ([], "transforms.sets: .* at least one list"),
        ([[{"name": "Rotate"}]], r"transforms.sets\[0\]\[0\].name: 'Rotate'"),
        ([[], [{"degrees": 90}]], r"transforms.sets\[1\]\[0\].name: None"),
        (
            [[{"name": "GaussianBlur", "kernel_size": 2}]],
            r"sets\[0\]\[0\]: .* arguments of torchvision.transforms.v2",
        ),
        ([[], [{"name": "Resize", "size": [3, 3]}]], r"sets\[1\]: .* keep uint8 images of shape \[3, 6, 6\]"),
        ([[{"name": "Normalize", "mean": [0.5], "std": [0.5]}]], r"sets\[0\]: .* keep uint8 images"),
        ([{"name": "GaussianBlur"}], r"transforms.sets\[0\]: .* a list"),
    ],
)
def test_transforms_that_cannot_be_used_are_refused(sets: Any, message: str) -> None:
    with refused(message):
        made(images(), transforms={"sets": sets})


def test_a_worker_opens_transformed_images(tmp_path: Path) -> None:
    federation = started(tmp_path, "transforms: {sets: [[], [{name: RandomRotation, degrees: [90, 90]}]]}")
    plain = federation.train.x.clone()
    rows = federation.partition.train(1)
    plain[rows] = torch.rot90(plain[rows], -1, dims=(2, 3))
    for k in (0, 1):
        own = federation.partition.train(k)
        assert torch.equal(plain[own], load_prepared(tmp_path / "data" / "prepared" / "data").x_train[own])
    ran = run("fedavg", federation, training={"batch_size": 8, "epochs": 1, "lr": 0.1}, rounds=1)
    assert 0 <= ran.outcome().scores.local_accuracy.mean() <= 1


@pytest.mark.parametrize("name", ["RandomZoomOut", "RandomShortestSize"])
def test_transforms_that_change_the_shape_of_some_images_are_refused(name: str) -> None:
    entry = {"name": name, **({"min_size": [8, 6]} if name == "RandomShortestSize" else {"p": 0.3})}
    data = images()
    with refused(
        r"partition.transforms.sets\[0\]: .* expected transforms that keep (uint8 )?images of shape"
    ):
        opened(data, made(data, transforms={"sets": [[entry]]}))
