"""Steps in place are those of `Trainer.descend`, bit for bit."""

from typing import Any

import pytest
import torch
from support import images, one_client, run, same
from torch import Tensor

from fedflow.data import Dataset
from fedflow.local import trainer
from fedflow.local.fast.pieces import CACHED, Product
from fedflow.local.fast.steps import step_for
from fedflow.local.local_training import LocalTraining
from fedflow.local.optimizer import Pull
from fedflow.local.samples import Batch

SETTINGS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9},
    {"weight_decay": 0.01},
    {"momentum": 0.5, "weight_decay": 0.1, "lr_within": [0.5, 0.6]},
]


def ended(client: Any, start: Tensor, correction: Tensor | None, lr: float | None) -> tuple[Tensor, Tensor]:
    w = client.fit(start=start, correction=correction, lr=lr)
    return w, client.train_loss


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("network", ["lenet5", "logistic"])
@pytest.mark.parametrize("corrected", [False, True])
def test_steps_in_place_have_the_bits_of_flat_ones(
    padded: Dataset, network: str, settings: dict, corrected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = LocalTraining.parse({"batch_size": 7, "epochs": 2, "lr": 0.05, **settings})
    client = one_client(images(padded, network=network), 4, training)
    start = client.model.init(3)
    before, correction = start.clone(), torch.randn_like(start) if corrected else None
    assert step_for(client._task)
    found = ended(client, start, correction, 0.02 if corrected else None)
    monkeypatch.setattr(trainer, "step_for", lambda task: None)
    again = one_client(images(padded, network=network), 4, training)
    expected = ended(again, start, correction, 0.02 if corrected else None)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    assert torch.equal(start, before) and not torch.equal(found[0], before)
    assert client.trained is found[0]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("by_entry", [False, True])
def test_a_penalty_in_place_has_the_bits_of_a_flat_one(
    padded: Dataset, settings: dict, by_entry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place and flat; it agrees with a penalty that is differentiated."""
    training = LocalTraining.parse({"batch_size": 7, "epochs": 2, "lr": 0.05, **settings})
    client = one_client(images(padded, network="lenet5"), 4, training)
    start, center = client.model.init(3), client.model.init(4)
    pull = Pull(torch.full_like(start, 0.3) if by_entry else 0.3, center)

    def penalized(w: Tensor, batch: Batch) -> Tensor:
        return client.loss(w, batch) + 0.3 / 2 * (w - center).square().sum()

    ends = [client.fit(start=start, pull=pull), client.fit(penalized, start=start)]
    monkeypatch.setattr(trainer, "step_for", lambda task: None)
    ends.append(client.fit(start=start, pull=pull))
    assert torch.equal(ends[0], ends[2]) and not torch.equal(ends[0], client.fit(start=start))
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_cost_of_the_loss_in_place_has_the_bits_of_an_objective(
    padded: Dataset, settings: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = LocalTraining.parse({"batch_size": 7, "epochs": 2, "lr": 0.05, **settings})
    client = one_client(images(padded, network="lenet5"), 4, training)
    start = client.model.init(3)

    def objective(w: Tensor, batch: Batch) -> Tensor:
        return client.loss(w, batch).sqrt()

    def ended(*loss: Any, **options: Any) -> tuple[Tensor, Tensor]:
        return client.fit(*loss, start=start, **options), client.train_loss

    ends = [ended(cost=torch.sqrt), ended(objective)]
    monkeypatch.setattr(trainer, "step_for", lambda task: None)
    ends.append(ended(cost=torch.sqrt))
    assert all(torch.equal(a, b) for end in ends[1:] for a, b in zip(ends[0], end))
    assert not torch.equal(ends[0][0], client.fit(start=start))


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adam"},
        {"clip_norm": 1.0},
        {"precision": "bf16"},
        {"objective": {"name": "robust"}, "augment": "flip_crop"},
        {"adaptation": {"name": "proto"}},
    ],
    ids=str,
)
def test_other_steps_are_flat(digits: Dataset, settings: dict) -> None:
    training = LocalTraining.parse({"batch_size": 7, **settings})
    assert step_for(one_client(images(digits), 4, training)._task) is None


@pytest.mark.parametrize("cohort", ["loop", "vmap"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto", "apfl", "perfedavg", "feddyn", "fedac"])
def test_methods_have_the_same_results(
    digits: Dataset, name: str, cohort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients have 1 to 40 samples: in a cohort, batches and steps are padded."""
    training = {"batch_size": 5, "momentum": 0.5, "weight_decay": 0.001}
    found = run(name, images(digits), training=training, cohort=cohort)
    monkeypatch.setattr(trainer, "step_for", lambda task: None)
    assert same(run(name, images(digits), training=training, cohort=cohort).state(), found.state())


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "bf16", "lr_within": [0.5, 0.6]},
        pytest.param({"precision": "tf32"}, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("network", ["lenet5", pytest.param("simple_cnn", marks=pytest.mark.slow)])
def test_steps_of_cohorts_have_the_bits_of_flat_ones(
    padded: Dataset, network: str, settings: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = {"batch_size": 7, "epochs": 2, "lr_decay": 0.9, **settings}
    made: list[dict[str, Tensor]] = []
    for plain in (True, False):
        if not plain:
            monkeypatch.setattr(trainer, "step_for", lambda task: None)
        ran = run("scaffold", images(padded, network=network), training=training, cohort="vmap", rounds=3)
        made.append(ran.state())
    assert same(*made)


@pytest.mark.parametrize(("m", "n"), [(5, 3), (7, CACHED // 3), (2, CACHED + 1)])
def test_a_product_is_added_block_by_block(m: int, n: int) -> None:
    product, matrix = Product(torch.randn(4, m).T, torch.randn(4, n)), torch.randn(m, n)
    expected = matrix - 0.5 * (product.a.double() @ product.b.double())
    product.add_to(matrix, -0.5)
    torch.testing.assert_close(matrix, expected.float())
