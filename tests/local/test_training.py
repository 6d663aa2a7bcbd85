import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import images
from torch import Tensor, nn

from fedflow.data import Dataset
from fedflow.local.client import Client
from fedflow.local.training import LocalTraining, batches, padded_batches
from fedflow.simulation.federation import Federation

SIZES = (23, 8, 1)


@given(samples=st.integers(1, 40), batch=st.integers(0, 50), epochs=st.integers(1, 3), seed=st.integers(0, 9))
def test_every_epoch_sees_every_sample_once(samples: int, batch: int, epochs: int, seed: int) -> None:
    training = LocalTraining(batch_size=batch, epochs=epochs)
    taken = list(batches(training, samples, epochs, seed, "batches", 1, 0))
    per_epoch = len(taken) // epochs
    assert len(taken) == training.steps(samples)
    for epoch in range(epochs):
        cut = taken[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(np.concatenate(cut).tolist()) == list(range(samples))
        size = batch or samples
        assert [len(b) for b in cut[:-1]] == [size] * (per_epoch - 1)
        assert len(cut[-1]) == (samples % size or size)  # the last one may be smaller


def test_batches_have_an_address() -> None:
    def order(**change: Any) -> list[int]:
        address = {"seed": 0, "stream": "batches", "round": 1, "client": 2} | change
        return np.concatenate(list(batches(LocalTraining(), 30, 1, **address))).tolist()

    assert order() == order()
    others = [order(seed=1), order(stream="personal"), order(round=2), order(client=3)]
    assert all(other != order() for other in others)


@given(
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=5),
    batch=st.integers(0, 30),
    epochs=st.integers(1, 2),
)
def test_padded_batches_are_the_same_batches(sizes: list[int], batch: int, epochs: int) -> None:
    training, clients = LocalTraining(batch_size=batch), [10 + k for k in range(len(sizes))]
    schedule = padded_batches(training, sizes, epochs, 0, "batches", 3, clients)
    positions, everything = schedule["positions"], torch.ones_like(schedule["positions"], dtype=torch.bool)
    mask, active = schedule.get("mask", everything), schedule.get("active", everything.any(-1))
    assert all(not tensor.all() for name, tensor in schedule.items() if name != "positions")
    assert torch.equal(mask.any(-1), active)
    for c, (client, n) in enumerate(zip(clients, sizes)):
        own = list(batches(training, n, epochs, 0, "batches", 3, client))
        steps = mask[c].any(-1)
        assert steps.tolist() == [True] * len(own) + [False] * (len(steps) - len(own))
        for s, batch_of_client in enumerate(own):
            assert positions[c, s][mask[c, s]].tolist() == batch_of_client.tolist()


@pytest.fixture(scope="module")
def federation(digits: Dataset) -> Federation:
    return images(digits, SIZES, dtype=torch.float64)


def client(federation: Federation, training: LocalTraining, k: int = 0) -> Client:
    index = torch.as_tensor(federation.partition.train(k))
    schedule = {
        "batches": [
            torch.as_tensor(b) for b in batches(training, len(index), training.epochs, 0, "batches", 1, k)
        ]
    }
    return Client(federation.model, federation.train, training, training.lr, index, None, schedule, {}, {})


def by_torch(
    federation: Federation, training: LocalTraining, w: Tensor, k: int = 0
) -> tuple[Tensor, list[float]]:
    """The same training by ``torch.optim.SGD`` on a module; the clipping is exact, torch's adds 1e-6."""
    module = copy.deepcopy(federation.model.to_module(w)).train()
    sgd = torch.optim.SGD(
        module.parameters(), training.lr, training.momentum, weight_decay=training.weight_decay
    )
    index, losses = torch.as_tensor(federation.partition.train(k)), []
    for batch in batches(training, len(index), training.epochs, 0, "batches", 1, k):
        rows = index[torch.as_tensor(batch)]
        loss = nn.functional.cross_entropy(
            module(federation.train.x[rows].double()), federation.train.y[rows]
        )
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
    ours = client(federation, training)
    expected, losses = by_torch(federation, training, w)
    torch.testing.assert_close(ours.fit(start=w), expected, rtol=0, atol=1e-12)
    assert float(ours.train_loss) == pytest.approx(np.mean(losses), abs=1e-12)


def test_a_correction_is_added_to_every_step_outside_the_momentum(federation: Federation) -> None:
    """Three steps of a loss without gradient: with momentum 0.9 inside it would be 1 + 1.9 + 2.71 steps."""
    training = LocalTraining(lr=0.1, epochs=3, batch_size=0, momentum=0.9)
    w = federation.model.init(0)
    ours = client(federation, training)
    moved = ours.fit(lambda v, batch: 0 * ours.loss(v, batch), start=w, correction=torch.ones_like(w))
    torch.testing.assert_close(moved, w - 0.3, rtol=0, atol=1e-12)


def test_full_loss_and_gradient_are_those_of_all_samples(federation: Federation, monkeypatch: Any) -> None:
    monkeypatch.setattr("fedflow.local.client.EVALUATION_BATCH", 10)  # three chunks of unequal size
    w, ours = federation.model.init(0), client(federation, LocalTraining())
    rows = torch.as_tensor(federation.partition.train(0))
    module = federation.model.to_module(w)
    loss = nn.functional.cross_entropy(module(federation.train.x[rows].double()), federation.train.y[rows])
    loss.backward()
    expected = torch.cat([p.grad.reshape(-1) for p in module.parameters()])  # type: ignore[union-attr]
    torch.testing.assert_close(ours.full_loss(w), loss.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.full_gradient(w), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("size", "epochs", "steps"), [(10, 2, 6), (0, 2, 2), (23, 1, 1), (100, 1, 1)])
def test_a_client_knows_its_steps(federation: Federation, size: int, epochs: int, steps: int) -> None:
    training = LocalTraining(batch_size=size, epochs=epochs)
    assert int(client(federation, training).steps()) == training.steps(SIZES[0]) == steps


def test_an_update_weighs_as_many_samples_as_the_client_has(federation: Federation) -> None:
    update = client(federation, LocalTraining(), 1).update(
        model=torch.zeros(2), scalars={"a": torch.ones(())}
    )
    assert (float(update.weight), int(update.group)) == (SIZES[1], 0)
    assert update.vectors.keys() == {"model"}
    assert update.scalars.keys() == {"a"}
