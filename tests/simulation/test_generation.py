"""Images of a server within a run: what is measured, kept, refused, and equal after a resume."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from generating import Blend, blend
from support import consecutive, follow, prepare_run, refused
from torch import Tensor, nn

from fedflow.data import Dataset, DatasetParams, prepare
from fedflow.data.generated import FILE, load_generated
from fedflow.errors import FedflowError
from fedflow.local.teacher import Teacher
from fedflow.methods.method import Round
from fedflow.methods.protocols import Images
from fedflow.metrics.generation import frechet, nearest, neighbors
from fedflow.metrics.table import METRICS
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation.extensions.generation import Generation
from fedflow.simulation.federation import Federation
from fedflow.simulation.outcome import Outcome

BY_ROUND = {name for name, metric in METRICS.items() if metric.sparse}
ONCE = {"fid_floor", "real_accuracy", "nearest_real", "lowest_class"}


@pytest.fixture(scope="module")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Digits with pixels in [0, 1]."""
    params = DatasetParams.parse({"source": "digits", "normalize": "none"})
    return prepare(params, tmp_path_factory.mktemp("pixels"))


@pytest.fixture
def clients(pixels: Dataset) -> Federation:
    """Four clients with 300 training images each; 238 images belong to none."""
    network = FlatModel(partial(build, "mlp", pixels.input_shape, 10, hidden=(16,)))
    dealt = consecutive([300] * 4)
    dealt = replace(dealt, pool_indices=dealt.pool_indices % len(pixels.y_test))
    return Federation(network, pixels.train, pixels.test, dealt)


def written(outcome: Outcome, path: Path) -> bytes:
    """The file of the images of a run."""
    outcome.files[FILE](path)
    return path.read_bytes()


def test_images_are_measured_at_every_evaluation_and_compared_at_the_end(clients: Federation) -> None:
    ran = follow(prepare_run(blend(), clients, rounds=3, evaluate_every=2))
    names = [{name for name in report.values if name in BY_ROUND | ONCE} for report in ran.rounds]
    assert names == [set(), BY_ROUND, BY_ROUND | ONCE]
    last = ran.rounds[-1].values
    made = ran.simulation.extension(Generation)
    assert list(made.kept) == [2, 3]
    x, y = made.kept[3]
    assert x.dtype == torch.uint8 and x.shape == (100, 1, 8, 8) and y.bincount().tolist() == [10] * 10
    fake, real = x.flatten(1) / 255, clients.test.inputs(torch.arange(359)).flatten(1)
    train = clients.train.inputs(torch.arange(1200)).flatten(1)
    assert last["fid"] == pytest.approx(frechet(fake, real))
    expected = neighbors(real, fake, 5)._asdict()
    assert {name: last[name] for name in expected} == pytest.approx(expected)
    row, distance = nearest(fake, train)
    assert last["nearest_train"] == pytest.approx(distance.mean().item())
    usual = nearest(real, train)[1]
    assert last["nearest_real"] == pytest.approx(usual.mean().item())
    assert last["near_copies"] == (distance < usual.quantile(0.05)).double().mean().item()
    closest = made.last()
    assert closest is not None and closest.distance.tolist() == sorted(distance.tolist())[:10]
    assert torch.allclose(closest.x.flatten(1) / 255, train[row[closest.image]])
    shares = torch.bincount(clients.test.y).double() / 359
    assert (closest.accuracy @ shares).item() == pytest.approx(last["global_accuracy"])
    assert closest.accuracy.min() == last["lowest_class"]


class Copies(Blend):
    """Images are the first training images of every class."""

    real: ClassVar[Images]

    def images(self, now: Round, server: object) -> Images:
        return self.real


def test_copies_of_training_images_are_found_out(clients: Federation) -> None:
    rows = torch.cat([(clients.train.y == label).nonzero()[:10, 0] for label in range(10)])
    Copies.real = Images(clients.train.inputs(rows), clients.train.y[rows])
    values = follow(prepare_run(Copies(), clients, rounds=1)).rounds[-1].values
    assert values["nearest_train"] == pytest.approx(0, abs=1e-6) and values["near_copies"] == 1
    assert values["nearest_test"] > 0.5


def test_real_images_are_drawn_once_with_the_same_number_per_class(clients: Federation) -> None:
    found = []
    for seed in (0, 0, 1):
        simulation = prepare_run(blend(spc=3), clients, rounds=2, seed=seed, evaluate_every=1)
        follow(simulation)
        real = simulation.extension(Generation).real
        assert real.drawn.y.tolist() == torch.arange(10).repeat_interleave(3).tolist()
        assert nearest(real.drawn.x.flatten(1), real.train)[1].max() < 1e-6  # of images that clients hold
        found.append((real.drawn.x, simulation.state.history[-1].values["real_accuracy"], real.floor))
    assert torch.equal(found[0][0], found[1][0]) and found[0][1:] == found[1][1:]
    assert not torch.equal(found[0][0], found[2][0])


def test_features_of_a_network_replace_pixels(clients: Federation, pixels: Dataset) -> None:
    judge = FlatModel(partial(build, "mlp", pixels.input_shape, 10, hidden=(6,)))
    judged = replace(clients, features=Teacher(judge, judge.init(3)))
    ran = follow(prepare_run(blend(), judged, rounds=1, features="judge"))
    fake, real = ran.simulation.extension(Generation).kept[1].x / 255, clients.test.inputs(torch.arange(359))

    def features(x: Tensor) -> Tensor:
        with torch.no_grad():
            return judge.features(judge.init(3), x)

    assert features(fake).shape == (100, 6)
    assert ran.rounds[-1].values["fid"] == pytest.approx(frechet(features(fake), features(real)))
    nothing = FlatModel(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)))
    with refused(
        r"run.features: 'Sequential' is not accepted; expected a network that ends in a linear layer"
    ):
        prepare_run(blend(), replace(clients, features=Teacher(nothing, nothing.init(0))), features="judge")


def test_a_resumed_run_has_the_same_images_and_measures_byte_for_byte(
    clients: Federation, tmp_path: Path
) -> None:
    settings = {"rounds": 4, "evaluate_every": 1, "checkpoint_every": 1}
    whole = follow(prepare_run(blend(), clients, **settings))
    for at in (2, 4):  # also after the last round, before its files are written
        folder = tmp_path / str(at)
        rounds = prepare_run(blend(), clients, checkpoints=folder, **settings).rounds()
        for _ in range(at):
            next(rounds)
        again = follow(prepare_run(blend(), clients, checkpoints=folder, **settings))
        assert sum(report.replayed for report in again.rounds) == at
        assert [r.values for r in again.rounds] == [r.values for r in whole.rounds]
        assert written(again.outcome(), tmp_path / "again") == written(whole.outcome(), tmp_path / "whole")
    assert list(load_generated(tmp_path / "again").rounds) == [1, 2, 3, 4]


@pytest.mark.parametrize("pixel", [1.5, -0.1, np.nan])
def test_images_outside_the_unit_interval_are_one_line(clients: Federation, pixel: float) -> None:
    class Spoilt(Blend):
        def images(self, now: Round, server: object) -> Images:
            made = super().images(now, server)
            made.x[0, 0, 0, 0] = pixel
            return made

    with refused(
        r"blend: after round 1, its images have pixels from .* to .*, not in \[0, 1\]", FedflowError
    ):
        follow(prepare_run(Spoilt(classifier={"epochs": 1}), clients, rounds=1))
