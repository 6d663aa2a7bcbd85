import copy
from typing import Any

import numpy as np
import pytest
import torch
from support import images, one_client
from torch import Tensor, nn

from fedflow.data import Dataset
from fedflow.local.schedule import draw_schedule
from fedflow.local.training import LocalTraining
from fedflow.simulation.federation import Federation

SIZES = (23, 8, 1)


@pytest.fixture(scope="module")
def federation(digits: Dataset) -> Federation:
    return images(digits, SIZES, dtype=torch.float64)


def by_torch(federation: Federation, training: LocalTraining, w: Tensor) -> tuple[Tensor, list[float]]:
    """The same training by ``torch.optim.SGD`` on a module; the clipping is exact, torch's adds 1e-6."""
    module = copy.deepcopy(federation.model.to_module(w)).train()
    options = {name: getattr(training, name) for name in ("lr", "momentum", "weight_decay")}
    sgd = torch.optim.SGD(module.parameters(), **options)
    index, losses = torch.as_tensor(federation.partition.train(0)), []
    schedule = draw_schedule(training, len(index), training.epochs, 0, "batches", 1, 0)
    for batch, *_ in schedule.batches():
        rows = index[batch]
        x, y = federation.train.x[rows].double(), federation.train.y[rows]
        loss = nn.functional.cross_entropy(module(x), y)
        sgd.zero_grad()
        loss.backward()
        if training.clip_norm is not None:
            norm = torch.cat([p.grad.reshape(-1) for p in module.parameters()]).norm()  # type: ignore[union-attr]
            for p in module.parameters():
                p.grad *= min(1.0, training.clip_norm / float(norm))  # type: ignore[operator]
        sgd.step()
        losses.append(float(loss.detach()))
    return federation.model.from_module(module), losses


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"clip_norm": 0.5}, {"clip_norm": 1e3}, {"batch_size": 0},
     {"momentum": 0.9, "weight_decay": 0.1, "clip_norm": 0.5}],
    ids=lambda options: " ".join(options) or "plain",
)  # fmt: skip
def test_local_training_is_that_of_torch(federation: Federation, options: dict) -> None:
    training = LocalTraining.parse({"lr": 0.1, "epochs": 3, "batch_size": 5} | options)
    w = federation.model.init(0)
    ours = one_client(federation, training=training)
    expected, losses = by_torch(federation, training, w)
    torch.testing.assert_close(ours.fit(start=w), expected, rtol=0, atol=1e-12)
    assert float(ours.train_loss) == pytest.approx(np.mean(losses), abs=1e-12)


def test_a_correction_is_added_to_every_step_outside_the_momentum(federation: Federation) -> None:
    """Three steps of a loss without gradient: with momentum 0.9 inside it would be 1 + 1.9 + 2.71 steps."""
    training = LocalTraining(lr=0.1, epochs=3, batch_size=0, momentum=0.9)
    w = federation.model.init(0)
    ours = one_client(federation, training=training)
    moved = ours.fit(lambda v, batch: 0 * ours.loss(v, batch), start=w, correction=torch.ones_like(w))
    torch.testing.assert_close(moved, w - 0.3, rtol=0, atol=1e-12)


def test_full_loss_and_gradient_are_those_of_all_samples(federation: Federation, monkeypatch: Any) -> None:
    monkeypatch.setattr("fedflow.local.samples.EVALUATION_BATCH", 10)  # three chunks of unequal size
    w, ours = federation.model.init(0), one_client(federation)
    rows = torch.as_tensor(federation.partition.train(0))
    module = federation.model.to_module(w)
    loss = nn.functional.cross_entropy(module(federation.train.x[rows].double()), federation.train.y[rows])
    loss.backward()
    expected = torch.cat([p.grad.reshape(-1) for p in module.parameters()])  # type: ignore[union-attr]
    torch.testing.assert_close(ours.full_loss(w), loss.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.full_gradient(w), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("size", "epochs", "steps"), [(10, 2, 6), (0, 2, 2), (23, 1, 1), (100, 1, 1)])
def test_the_number_of_local_steps(federation: Federation, size: int, epochs: int, steps: int) -> None:
    training = LocalTraining(batch_size=size, epochs=epochs)
    taken = one_client(federation, training=training).steps()
    assert training.workload(SIZES[0]) == (int(taken), epochs * SIZES[0]) == (steps, epochs * SIZES[0])


def test_an_update_weighs_as_many_samples_as_the_client_has(federation: Federation) -> None:
    update = one_client(federation, 1).update(model=torch.zeros(2), scalars={"a": torch.ones(())})
    assert (float(update.weight), int(update.group)) == (SIZES[1], 0)
    assert update.vectors.keys() == {"model"}
    assert update.scalars.keys() == {"a"}
