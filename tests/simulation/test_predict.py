"""Predictions of many models at once are those of one after another."""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from support import consecutive, images, run
from torch import Tensor, nn

from fedflow.data import Dataset
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation import predict as module
from fedflow.simulation.federation import Federation
from fedflow.simulation.predict import ANSWERS, Asked, predict_all

NETWORKS = {
    "mlp": {"hidden": (8,)},
    "cnn": {"filters": (4, 4), "kernel": 3, "padding": 1, "batch_norm": True},
}


@pytest.mark.parametrize("at_once", [512, 40])
def test_predictions_of_many_models_are_those_of_each(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Of two networks, with different numbers of samples, one of them none; in one call or in several."""
    monkeypatch.setattr(module, "OF_ALL", {"cpu": at_once})
    monkeypatch.setattr(module, "MODELS", 3)
    models = [
        FlatModel(partial(build, *about, **NETWORKS[about[0]]))
        for about in (("mlp", digits.input_shape, 10), ("cnn", digits.input_shape, 10))
    ]
    rows, rng = [5, 17, 1, 0, 60, 30, 2, 9], np.random.default_rng(0)
    asked = [
        Asked(models[i in (2, 3, 4)], models[i in (2, 3, 4)].init(i), np.sort(rng.permutation(300)[:n]))
        for i, n in enumerate(rows)
    ]
    plain, together = (list(predict_all(asked, digits.test, True, vmapped)) for vmapped in (False, True))
    for one, other, n in zip(plain, together, rows, strict=True):
        assert np.array_equal(one.hits, other.hits) and one.hits.shape == (n,)
        assert np.allclose(one.losses, other.losses, atol=1e-5)
        for name, kind in ANSWERS.items():
            assert other.answers[name].dtype == kind and np.allclose(one.answers[name], other.answers[name])


@pytest.fixture
def asked(digits: Dataset) -> list[Asked]:
    """Four models and 40 samples."""
    model = FlatModel(partial(build, "cnn", digits.input_shape, 10, filters=(4, 4), kernel=3, padding=1))
    return [Asked(model, model.init(seed), np.arange(40)) for seed in range(4)]


def batches(monkeypatch: pytest.MonkeyPatch, room: int = 1 << 30) -> list[int]:
    """The sizes of batches, from here on; those of more than ``room`` samples are out of memory."""
    sizes, outputs = list[int](), FlatModel.outputs

    def spy(model: FlatModel, w: Tensor, x: Tensor, *more: Tensor) -> Tensor:
        sizes.append(len(x))
        if len(x) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return outputs(model, w, x, *more)

    monkeypatch.setattr(FlatModel, "outputs", spy)
    return sizes


def test_one_model_has_the_layers_of_the_loop(digits: Dataset, asked: list[Asked], monkeypatch) -> None:
    """Those of cohorts would unfold every image."""
    (plain,) = predict_all(asked[:1], digits.test, True, vmapped=False)
    monkeypatch.delattr(FlatModel, "for_cohorts")
    (found,) = predict_all(asked[:1], digits.test, True, vmapped=True)
    assert np.array_equal(found.losses, plain.losses)


def test_a_batch_is_limited_by_what_its_operations_write(digits: Dataset, asked, monkeypatch) -> None:
    sizes = batches(monkeypatch)
    whole = list(predict_all(asked, digits.test, False, True))
    assert sizes == [1, 2, 40]
    unfolded = 9 * 8 * 8  # of the first layer alone
    monkeypatch.setattr(module, "WRITTEN", len(asked) * 20 * 4 * unfolded)
    model = FlatModel(asked[0].model.factory)
    sizes.clear()
    again = list(predict_all([each._replace(model=model) for each in asked], digits.test, False, True))
    assert sum(sizes[2:]) == 40 and 2 <= max(sizes[2:]) < 20
    for one, other in zip(whole, again, strict=True):
        assert np.array_equal(one.hits, other.hits) and np.allclose(one.losses, other.losses, atol=1e-5)


def test_it_is_halved_when_memory_runs_out(digits: Dataset, asked: list[Asked], monkeypatch) -> None:
    plain = list(predict_all(asked, digits.test, False, False))
    sizes = batches(monkeypatch, room=15)
    with pytest.warns(UserWarning, match="^out of memory: [12]0 test samples at once from here on$"):
        found = list(predict_all(asked, digits.test, False, True))
    assert sizes == [1, 2, 40, 20, 10, 10, 10, 10]
    sizes.clear()
    list(predict_all(asked, digits.test, False, True))
    assert sizes == [10, 10, 10, 10]
    for one, other in zip(plain, found, strict=True):
        assert np.array_equal(one.hits, other.hits) and np.allclose(one.losses, other.losses, atol=1e-5)
    sizes.clear()
    with pytest.warns(UserWarning, match="out of memory: 10 test"):
        (one,) = predict_all(asked[:1], digits.test, False, True)
    assert np.allclose(one.losses, plain[0].losses, atol=1e-5)
    batches(monkeypatch, room=0)
    with pytest.raises(torch.OutOfMemoryError), pytest.warns(UserWarning, match="out of memory: 1 test"):
        list(predict_all(asked, digits.test, False, True))


def test_the_number_of_calls_does_not_grow_with_the_clients(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 24 clients, with the personal model of each, tuned and not."""
    calls, cohort = Counter[str](), ""
    outputs = FlatModel.outputs

    def counted(model: FlatModel, w: Tensor, *given: Tensor, **options: Tensor) -> Tensor:
        calls[cohort] += 1
        return outputs(model, w, *given, **options)

    monkeypatch.setattr(FlatModel, "outputs", counted)
    clients = images(digits)
    dealt = consecutive([20] * 24)
    dealt = replace(dealt, pool_indices=dealt.pool_indices % len(digits.y_test))
    clients = Federation(clients.model, clients.train, clients.test, dealt)
    scores = {}
    for cohort in ("loop", "vmap"):
        ran = run("local", clients, cohort=cohort, rounds=1, fine_tune=True, keep_predictions=True)
        scores[cohort] = ran.outcome().scores
    assert 6 * (calls["vmap"] - 2) <= calls["loop"]  # two measure what a sample needs
    for name in ("local_accuracy", "tuned_accuracy", "global_accuracy", "local_loss"):
        one, other = (scores[cohort].column(name) for cohort in ("loop", "vmap"))
        assert np.allclose(one, other, atol=1e-5, equal_nan=True), name
    torch.testing.assert_close(*(torch.stack(scores[cohort].models) for cohort in ("loop", "vmap")))


class Reshaping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.view(len(x), -1))  # ambiguous for an empty batch


class Normalizing(Reshaping):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(10, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x))  # one sample has no variance


@pytest.mark.parametrize("network", [Reshaping, Normalizing])
@pytest.mark.parametrize("models", [1, 3])
def test_clients_without_test_samples_suit_any_network(
    digits: Dataset, models: int, network: type[nn.Module]
) -> None:
    model = FlatModel(network)
    asked = [Asked(model, model.init(0), np.zeros(0, dtype=np.int64))] * models
    for predicted in predict_all(asked, digits.test, True, True):
        assert not len(predicted.hits) and not len(predicted.answers["label"])
