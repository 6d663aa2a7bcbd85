import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support import OnMeta, images, one_client, refused
from torch import Tensor, nn

from fedflow.data import Dataset
from fedflow.local.drawing import draw_schedule
from fedflow.local.local_training import LocalTraining
from fedflow.local.optimizer import AdamState
from fedflow.local.samples import Batch
from fedflow.simulation.federation import Federation

SIZES = (23, 8, 1)


@pytest.fixture(scope="module")
def federation(digits: Dataset) -> Federation:
    return images(digits, SIZES, dtype=torch.float64)


def by_torch(federation: Federation, training: LocalTraining, w: Tensor) -> tuple[Tensor, list[float]]:
    """The same training by ``torch.optim`` on a module; the clipping is exact, torch's adds 1e-6."""
    module = copy.deepcopy(federation.model.to_module(w)).train()
    parameters, options = module.parameters(), {"lr": training.lr, "weight_decay": training.weight_decay}
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(parameters, **options, momentum=training.momentum)
        if training.optimizer == "sgd"
        else torch.optim.Adam(parameters, **options, betas=tuple(training.betas))
    )
    a, b = training.lr_within or (0, 0)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: (1 + a * i) ** -b)
    index, losses = torch.as_tensor(federation.partition.train(0)), []
    schedule = draw_schedule(training, len(index), training.epochs, 0, "batches", 1, 0)
    for batch, *_ in schedule.batches():
        rows = index[batch]
        x, y = federation.train.x[rows].double(), federation.train.y[rows]
        loss = nn.functional.cross_entropy(module(x), y)
        optimizer.zero_grad()
        loss.backward()
        if training.clip_norm is not None:
            norm = torch.cat([p.grad.reshape(-1) for p in module.parameters()]).norm()  # type: ignore[union-attr]
            for p in module.parameters():
                p.grad *= min(1.0, training.clip_norm / float(norm))  # type: ignore[operator]
        optimizer.step()
        rates.step()
        losses.append(float(loss.detach()))
    return federation.model.from_module(module), losses


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"clip_norm": 0.5}, {"clip_norm": 1e3}, {"batch_size": 0},
     {"momentum": 0.9, "weight_decay": 0.1, "clip_norm": 0.5}, {"lr_within": [0.5, 0.75], "momentum": 0.9},
     {"steps": 7, "epochs": 1}, {"optimizer": "adam"},
     {"optimizer": "adam", "betas": [0.8, 0.99], "weight_decay": 0.1, "clip_norm": 0.5, "lr_within": [1, 2]}],
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


def test_adam_has_the_bits_of_torch() -> None:
    leaf = torch.linspace(-1, 1, 999).requires_grad_()
    adam, ours = torch.optim.Adam([leaf], lr=0.01, betas=(0.8, 0.99)), AdamState.of(leaf.detach().clone())
    for step in range(5):
        leaf.grad = torch.sin(37.0 * step + leaf.detach())
        ours = ours.descend(leaf.grad, 0.01, [0.8, 0.99])
        adam.step()
    assert torch.equal(ours.w, leaf)


def test_the_rate_of_every_step(federation: Federation) -> None:
    """Worked numbers of eta (1 + 0.001 i)^-0.75; they start over in every training."""
    training = LocalTraining(steps=510, batch_size=5, lr=0.001, lr_within=[0.001, 0.75])
    ours, seen = one_client(federation, training=training), []

    def step(now: tuple[Tensor], batch: Batch) -> tuple[tuple[Tensor], Tensor]:
        seen.append(ours.lr)
        return now, torch.zeros(())

    for _ in range(2):
        ours.run_steps(step, (torch.zeros(()),))
    worked = {0: 0.001, 1: 0.00099925, 100: 0.00093101, 255: 0.00084337, 509: 0.00073449}
    assert [seen[i] for i in worked] == pytest.approx([*worked.values()], abs=5e-9)
    assert seen[:510] == seen[510:] and ours.lr == 0.001
    assert float(ours.traveled()) == pytest.approx(sum(seen) / 2, rel=1e-12)
    assert float(ours.traveled(2.0)) == pytest.approx(sum(seen) / 2 * 2000, rel=1e-12)
    first = one_client(federation, training=LocalTraining(steps=500, lr=0.001, lr_within=[0.001, 0.75]))
    assert float(first.traveled()) == pytest.approx(0.42686, abs=5e-6)


def test_a_rate_of_the_method_does_not_change_within_a_round(federation: Federation) -> None:
    w = federation.model.init(0)
    fixed, changing = (
        one_client(federation, training=LocalTraining(epochs=3, lr=lr, lr_within=within))
        for lr, within in ((0.1, None), (0.7, [1, 1]))
    )
    assert torch.equal(changing.fit(start=w, lr=0.1), fixed.fit(start=w))


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"steps": 5, "epochs": 2}, "epochs: 2 is not accepted; expected 1, its default, with steps"),
        ({"steps": 0}, "steps: 0 is not accepted; expected a whole number >= 1 or null"),
        ({"steps": 5, "stragglers": 0.5, "drop_stragglers": True}, "stragglers: 0.5 .* 0 with steps"),
        ({"lr_within": [0.1]}, r"lr_within: \[0.1\] .* null or two numbers, \[a, b\]"),
        ({"lr_within": [0.1, -1]}, "lr_within: -1.0 .* >= 0"),
        (
            {"betas": [0.8, 0.99]},
            r"betas: \[0.8, 0.99\] .* \[0.9, 0.999\], its default, without optimizer: adam",
        ),
        ({"betas": [0.9]}, r"betas: \[0.9\] .* two numbers"),
        ({"betas": [0.9, 1]}, r"betas\[1\]: 1.0 .* < 1"),
        ({"optimizer": "adma"}, "optimizer: 'adma' .*did you mean 'adam'"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum: 0.9 .* 0 with optimizer: adam"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(values: dict, line: str) -> None:
    with refused(rf"^training\.{line}"):
        LocalTraining.parse(values)


@pytest.mark.parametrize(("size", "epochs", "steps"), [(10, 2, 6), (0, 2, 2), (23, 1, 1), (100, 1, 1)])
def test_the_number_of_local_steps(federation: Federation, size: int, epochs: int, steps: int) -> None:
    training = LocalTraining(batch_size=size, epochs=epochs)
    taken = one_client(federation, training=training).steps()
    assert training.workload(SIZES[0]) == (int(taken), epochs * SIZES[0]) == (steps, epochs * SIZES[0])


@pytest.mark.parametrize(("mode", "size", "steps"), [("queue", 8, [3, 1, 1]), ("lazy_epoch", 8, [3, 2, 1])])
def test_the_steps_of_an_epoch_also_of_a_cohort(mode: str, size: int, steps: list[int]) -> None:
    """A lazy epoch of n samples has floor(n / B) + 1 steps, another ceil(n / B)."""
    training = LocalTraining.parse({"batch_size": size, "curriculum": {"score": "both", "mode": mode}})
    assert training.epoch_steps(torch.tensor(SIZES).float()).tolist() == steps
    assert [training.workload(n, 1).steps for n in SIZES] == steps


def test_an_update_weighs_as_many_samples_as_the_client_has(federation: Federation) -> None:
    update = one_client(federation, 1).update(model=torch.zeros(2), scalars={"a": torch.ones(())})
    assert (float(update.weight), int(update.group)) == (SIZES[1], 0)
    assert update.vectors.keys() == {"model"}
    assert update.scalars.keys() == {"a"}


def test_what_a_method_computes_on_the_host_joins_the_rest(federation: Federation) -> None:
    """Such as singular vectors, by NumPy; without values, as no GPU is here."""
    nowhere = replace(
        federation, model=OnMeta(federation.model), train=federation.train.to(torch.device("meta"))
    )
    update = one_client(nowhere).update(signature=torch.ones(3, 2), keep={"own": torch.ones(2)})
    assert {update.vectors["signature"].device, update.keep["own"].device} == {torch.device("meta")}
    update.finite()
