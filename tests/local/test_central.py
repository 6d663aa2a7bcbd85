"""Training on all samples: against PyTorch's own optimizer, by hand, and from a checkpoint."""

from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from support import images, refused
from torch import nn

from fedflow.data import Dataset, Examples
from fedflow.errors import FedflowError
from fedflow.local.central_training import Central, SmoothedModel, epochs, evaluate
from fedflow.local.trained import load_network, save_network
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation


@pytest.fixture(scope="module")
def federation(digits: Dataset) -> Federation:
    return images(digits)


def central(**settings: object) -> Central:
    training = {"epochs": 3, "lr": 0.1} | dict(settings.pop("training", {}))  # type: ignore[call-overload]
    return Central.parse({"training": training, **settings})


def network(name: str = "mlp", smoothing: float = 0.0, **options: object) -> FlatModel:
    factory = partial(build, name, (1, 8, 8), 10, **options)
    return SmoothedModel(factory, smoothing=smoothing) if smoothing else FlatModel(factory)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_training_is_sgd_on_all_samples(federation: Federation, smoothing: float) -> None:
    """Full gradients, so that the order does not matter: momentum runs on over the epochs."""
    settings = central(label_smoothing=smoothing, training={"batch_size": 0, "weight_decay": 0.01, "lr": 0.5})
    model, train = network(smoothing=smoothing, hidden=(16,)), federation.train
    start = model.init(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "init", lambda seed: start)
        *_, last = epochs(model, train, federation.test, settings)
    module = model.to_module(start).train()
    loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        before = loss(module(train.x), train.y)
        before.backward()
        optimizer.step()
    assert last.w == pytest.approx(model.from_module(module), abs=1e-5)
    assert last.values["train_loss"] == pytest.approx(before.item(), abs=1e-5)
    outputs = module.eval()(federation.test.x)
    plain = nn.functional.cross_entropy(outputs, federation.test.y)  # without smoothing
    assert last.values["test_loss"] == pytest.approx(plain.item(), abs=1e-5)
    hits = outputs.argmax(-1) == federation.test.y
    assert last.values["test_accuracy"] == pytest.approx(hits.double().mean().item())


def test_the_network_learns_and_has_a_loss_for_every_sample(federation: Federation) -> None:
    model = network(hidden=(16,))
    *_, last = epochs(model, federation.train, federation.test, central())
    losses, hits = evaluate(model, last.w, federation.train)
    assert losses.shape == (len(federation.train),) and losses.dtype == np.float64
    assert 0 < losses.mean() < 0.5 < np.log(10) and hits.mean() > 0.9


def test_rates_follow_the_schedule() -> None:
    cosine = central(schedule="cosine", training={"epochs": 4})
    assert [cosine.lr_in(e) for e in (1, 2, 3, 4)] == pytest.approx(
        [0.1, 0.0853553, 0.05, 0.0146447], abs=1e-6
    )
    decayed = central(training={"lr_decay": 0.5})
    assert [decayed.lr_in(e) for e in (1, 2, 3)] == pytest.approx([0.1, 0.05, 0.025])


@pytest.mark.parametrize(
    ("name", "training"),
    [("mlp", {}), ("mlp", {"optimizer": "adam", "momentum": 0.0}), ("resnet10_bn", {})],
    ids=["dropout", "Adam", "BatchNorm"],
)
def test_a_resumed_training_has_the_bits_of_an_uninterrupted_one(digits: Dataset, name, training) -> None:
    """With momentum, a schedule and random views."""
    x, y = digits.train.inputs(torch.arange(40)), digits.y_train[:40]
    settings = central(schedule="cosine", training={"augment": "flip_crop", "batch_size": 16} | training)
    model = network(dropout=0.5)
    if name == "resnet9":
        x = nn.functional.interpolate(x, (32, 32)).expand(-1, 3, -1, -1).contiguous()
        model = FlatModel(partial(build, name, (3, 32, 32), 10))
    some = Examples(x, y)
    whole = list(epochs(model, some, some, settings))
    (first,) = islice(epochs(model, some, some, settings), 1)
    rest = list(epochs(model, some, some, settings, done=1, state=first.state))
    assert [e.values for e in (first, *rest)] == [e.values for e in whole]
    assert rest[-1].w.equal(whole[-1].w) and not first.w.equal(whole[-1].w)
    other = list(epochs(model, some, some, central(seed=1, training={"augment": "flip_crop"})))
    assert not other[-1].w.equal(whole[-1].w)


def test_a_regression_has_a_loss_and_no_accuracy() -> None:
    x = torch.linspace(-1, 1, 40)[:, None]
    model, some = FlatModel(partial(build, "linear", (1,), 1)), Examples(x, 2 * x[:, 0] + 1)
    *_, last = epochs(model, some, some, central(training={"epochs": 20, "batch_size": 8}))
    assert last.values["test_loss"] < 1e-3 and "test_accuracy" not in last.values
    with refused(r"^central.label_smoothing: 0.1 .*expected 0, as this network has its own loss"):
        SmoothedModel(partial(build, "linear", (1,), 1), smoothing=0.1)


def test_samples_with_several_labels_are_not_smoothed() -> None:
    model, y = SmoothedModel(partial(build, "mlp", (1,), 3), smoothing=0.1), torch.ones(2, 3).bool()
    with refused(r"^central.label_smoothing: 0.1 .*expected 0, as samples .* no single label"):
        model.losses(torch.zeros(2, 3), y)


@pytest.mark.parametrize("diverges", ["train", "test"])
def test_a_diverging_training_is_refused_in_one_line(federation: Federation, diverges: str) -> None:
    both = {"train": federation.train, "test": federation.test}
    both[diverges] = Examples(both[diverges].x * (1e20 if diverges == "train" else 1e39), both[diverges].y)
    with pytest.raises(FedflowError, match=r"diverged in epoch 1 at learning rate 0.1; try a smaller one"):
        list(epochs(federation.model, both["train"], both["test"], central()))


@pytest.mark.parametrize(
    ("field", "value"), [("stragglers", 0.5), ("drop_stragglers", True), ("steps", 9), ("curriculum", {})]
)
def test_settings_of_clients_are_refused(field: str, value: object) -> None:
    shown = "a mapping" if field == "curriculum" else value
    with refused(rf"^central.training.{field}: {shown} is not .*as one network has no clients or rounds"):
        central(training={field: value})


def test_a_stored_network_keeps_its_frozen_parameters(tmp_path: Path, monkeypatch) -> None:
    options = {"hidden": [4], "trainable": ["layers.last.*"]}
    model = FlatModel(partial(build, "mlp", (6,), 3, **options))
    facts = {"model": "mlp", "options": options, "input_shape": [6], "outputs": 3, "data_hash": "0"}
    save_network(tmp_path / "teacher", model.init(1), np.zeros(2), facts, {}, model.frozen)
    draw = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda seed: draw(seed + 1))  # as a later version may
    teacher = load_network(tmp_path / "teacher").teacher(torch.device("cpu"))
    x = torch.randn(5, 6)
    whole, own = model.to_module(teacher.w), teacher.model.to_module(teacher.w)
    assert torch.equal(whole(x), own(x))
