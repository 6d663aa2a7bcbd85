"""Networks on tokens, and linear regression: sizes, losses and hits by hand."""

from functools import partial

import pytest
import torch
from support import refused
from torch.nn import functional as F

from fedflow.models import build
from fedflow.models.flat import FlatModel


def flat(network: str, shape: tuple[int, ...], classes: int, **options: object) -> FlatModel:
    return FlatModel(partial(build, network, shape, classes, **options))


@pytest.mark.parametrize(
    ("network", "classes", "parameters", "head"),
    [
        ("char_lstm", 100, 821_024, 25_600),
        ("char_lstm", 80, 815_744, 20_480),
        ("char_lstm_feddyn", 80, 133_520, 8_080),
        ("stacked_lstm", 10_000, 5_565_328, 2_570_000),
    ],
)
def test_recurrent_networks_have_the_published_size(network, classes, parameters, head):
    model = flat(network, (10,), classes)
    assert model.size == parameters and int(model.head().mask.sum()) == head


@pytest.mark.parametrize(("network", "steps"), [("char_lstm", ()), ("stacked_lstm", (5,))])
def test_recurrent_networks_use_the_vector_that_they_are_given(network, steps):
    model = flat(network, (5,), 9, hidden=4, embedding=3)
    x, y = torch.arange(10).reshape(2, 5) % 9, torch.full((2, *steps), 7)
    for seed in range(2):
        w = model.init(seed).requires_grad_()
        loss = model.loss(model.train_outputs(w, x)[0], y)
        (gradient,) = torch.autograd.grad(loss, w)
        module = model.to_module(w)
        expected = F.cross_entropy(module(x).reshape(-1, 9), y.reshape(-1))
        expected.backward()
        torch.testing.assert_close(model.outputs(w, x), module(x))
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(gradient, torch.cat([p.grad.reshape(-1) for p in module.parameters()]))
        assert gradient.norm() > 0


def test_only_the_last_step_of_characters_is_predicted():
    model, x = flat("char_lstm", (6,), 5, hidden=4), torch.tensor([[0, 1, 2, 3, 4, 0]])
    w = model.init(0)
    assert model.outputs(w, x).shape == (1, 5)
    for place in range(6):  # it depends on every character before
        other = x.clone()
        other[0, place] = 4 - other[0, place] if other[0, place] != 2 else 0
        assert not torch.equal(model.outputs(w, other), model.outputs(w, x))


def test_the_loss_of_a_sequence_is_the_mean_over_its_words():
    model = flat("stacked_lstm", (3,), 6, hidden=4, embedding=3)
    scores = torch.zeros(3, 3, 6)
    scores[0, 0, 4] = scores[0, 2, 5] = 2.0
    y = torch.tensor([[4, 3, 4], [1, 5, 2], [0, 1, 3]])  # 0..3 are PAD, UNK, BOS, EOS
    total = torch.tensor(5 + torch.e**2).log()  # of the scores 2, 0, 0, 0, 0, 0
    expected = torch.stack([(total - 2 + total) / 2, torch.tensor(6.0).log(), torch.tensor(0.0)])
    torch.testing.assert_close(model.losses(scores, y), expected)
    torch.testing.assert_close(model.loss(scores, y), expected.mean())
    assert model.hits(scores, y).tolist() == [0.5, 0.0, 0.0]


def test_linear_regression_has_squared_errors_and_no_hits():
    model = flat("linear", (3,), 0, bias=False)
    assert model.size == 3
    w = torch.tensor([1.0, -2.0, 0.5], requires_grad=True)
    x, y = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]]), torch.tensor([1.0, 1.0])
    outputs, _ = model.train_outputs(w, x)
    assert outputs.tolist() == [[2.0], [-2.0]] and model.losses(outputs, y).tolist() == [1.0, 9.0]
    (gradient,) = torch.autograd.grad(model.loss(outputs, y), w)
    torch.testing.assert_close(gradient, 2 / 2 * x.T @ torch.tensor([1.0, -3.0]))  # 2 / n X^T (X w - y)
    assert model.hits(outputs, y).isnan().all()


def test_linear_regression_starts_at_the_given_values():
    start = flat("linear", (1000,), 0, init="bernoulli").init(0)
    assert set(start[:-1].unique().tolist()) == {0.0, 1.0} and start[-1] == 0
    assert start[:-1].mean() == pytest.approx(0.5, abs=0.06)
    assert not flat("linear", (4,), 0, init="zeros").init(0).any()
    assert flat("linear", (4,), 0).init(0).all()
    with refused(r"model.name: 'linear' .*default, zeros or bernoulli, not 'ones'"):
        build("linear", (4,), 0, init="ones")
    with refused("model.name: 'linear' .*use logistic for 5 classes"):
        build("linear", (4,), 5)


def test_logistic_regression_on_features_can_start_at_zero():
    model = flat("logistic", (30,), 5, zeros=True)
    assert model.size == 155 and not model.init(0).any()
    assert flat("logistic", (30,), 5).init(0).any()
