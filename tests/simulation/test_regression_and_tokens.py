"""Runs on data other than images: linear regression, which has no accuracies, and sequences of tokens."""

import json
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import forbid_fallback, refused, run, run_without_values

from fedflow.data import Examples
from fedflow.data.files import DataColumn, RawData
from fedflow.data.synthetic import RegressionOptions, mixed_regression, true_models
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation

EASY = RegressionOptions(clients=12, dimension=20, samples=30)
STEPS = {"epochs": 5, "lr": 0.05}


def by_user(raw: RawData, network: str, **options: object) -> Federation:
    """Every user is a client, scored on its own test samples."""
    user, shape = raw.columns["user"], raw.x_train.shape[1:]
    users = range(int(user.train.max()) + 1)
    train, test = ([np.flatnonzero(who == k) for k in users] for who in (user.train, user.test))
    group = raw.columns.get("group")
    return Federation(
        FlatModel(partial(build, network, shape, len(raw.classes), **options)),
        Examples(torch.from_numpy(raw.x_train), torch.from_numpy(raw.y_train)),
        Examples(torch.from_numpy(raw.x_test), torch.from_numpy(raw.y_test)),
        Partition.from_lists(
            train,
            test,
            list(np.array(users)[:, None]),
            groups=None if group is None else np.array([group.train[rows[0]] for rows in train]),
        ),
    )


@pytest.fixture(scope="module")
def regression() -> Federation:
    return by_user(mixed_regression(EASY), "linear", bias=False, init="bernoulli")


def test_one_model_of_two_groups_is_as_good_as_their_mean(regression: Federation, cohort: str) -> None:
    ran = run("fedavg", regression, cohort=cohort, training=STEPS, rounds=15)
    losses = ran.values("train_loss")
    assert losses[-1] < losses[0] / 3
    first, second = true_models(EASY)
    # Each group keeps the loss of the half way to the other, |theta_1 - theta_2|^2 / 4, up to sampling.
    expected = np.square(first - second).sum() / 4
    assert ran.outcome().metrics["loss"] == pytest.approx(expected, rel=0.3)


def test_ifca_finds_the_groups_and_their_true_models(regression: Federation, cohort: str) -> None:
    ran = run("ifca", regression, cohort=cohort, training=STEPS, rounds=15, seed=1)
    metrics = ran.outcome().metrics
    assert metrics["ari"] == 1 and metrics["clusters"] == 2
    assert metrics["loss"] == pytest.approx(EASY.noise**2, rel=0.5)
    found, truth = np.array(ran.server("models")[-1]), true_models(EASY)
    assert min(np.abs(found[order] - truth).max() for order in ([0, 1], [1, 0])) < 0.05


def test_accuracies_of_a_regression_are_null(regression: Federation) -> None:
    scored: dict[str, Any] = {"fine_tune": True, "keep_trained": True, "reports": ["all"]}
    ran = run("fedavg", regression, rounds=2, evaluate_every=1, **scored)
    metrics = ran.outcome().metrics
    accuracies = {name for name in metrics if "accuracy" in name or name.startswith("local_")}
    assert len(accuracies) > 6 and {metrics[name] for name in accuracies} == {None}
    assert metrics["loss"] > 0 and json.dumps(metrics, allow_nan=False)
    last = ran.rounds[-1].values
    assert not (accuracies | {"all_accuracy"}) & last.keys() and last["all_loss"] == last["global_loss"] > 0


def test_a_regression_has_no_accuracy_to_reach(regression: Federation) -> None:
    stop = {"metric": "local_accuracy", "value": 0.9}
    for asked, message in (
        ({"target_accuracy": 0.9}, "^run.target_accuracy: 0.9 .*expected null, as .* no accuracy$"),
        ({"stop_at": stop}, "^run.stop_at.metric: 'local_accuracy' .*expected one of"),
    ):
        with refused(message):
            run("fedavg", regression, rounds=2, evaluate_every=1, **asked)


def language(length: int, next_word: bool) -> RawData:
    """Two users who count with different steps: predict the next word (or the next at every position)."""
    rng, words = np.random.default_rng(0), 8
    user = np.arange(2).repeat(40)
    start = rng.integers(words, size=80)
    said = 4 + (start[:, None] + (1 + user[:, None]) * np.arange(length + 1)) % words  # 0..3 are special
    x, y = said[:, :-1].astype(np.int32), said[:, -1] if next_word else said[:, 1:]
    classes = tuple(map(str, range(4 + words)))
    return RawData(x, y, x, y, classes, {"user": DataColumn(user, user)})


@pytest.mark.parametrize(("network", "next_word"), [("char_lstm", True), ("stacked_lstm", False)])
def test_clients_learn_to_predict_tokens(network: str, next_word: bool) -> None:
    federation = by_user(language(5, next_word), network, hidden=16, embedding=8)
    ran = run("fedavg", federation, training={"epochs": 5, "lr": 2.0}, rounds=20, evaluate_every=10)
    losses = ran.values("train_loss")
    assert losses[-1] < losses[0] / 4
    assert ran.values("local_accuracy")[-1] > 0.7  # the first word does not reveal the step
    outcome = ran.outcome()
    assert outcome.metrics["loss"] < 1 and outcome.scores.test_samples.tolist() == [40, 40]


SMALL = {
    "char_lstm": {"hidden": 4, "embedding": 3},
    "stacked_lstm": {"hidden": 4, "embedding": 3},
    "char_transformer": {"dim": 8, "heads": 2, "depth": 1, "mlp": 8},
}


@pytest.mark.parametrize(
    ("network", "next_word"), [("char_lstm", True), ("stacked_lstm", False), ("char_transformer", True)]
)
def test_a_cohort_learns_tokens_as_its_clients_do(network, next_word, monkeypatch) -> None:
    forbid_fallback(monkeypatch)
    federation = by_user(language(5, next_word), network, **SMALL[network])
    together = run("ditto", federation, cohort="vmap", rounds=1).state()
    monkeypatch.undo()
    alone = run("ditto", federation, cohort="loop", rounds=1).state()
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)


def test_a_graph_can_hold_tokens(monkeypatch) -> None:
    federation = by_user(language(5, True), "char_transformer", **SMALL["char_transformer"])
    run_without_values("fedavg", federation, monkeypatch, training={"batch_size": 4, "epochs": 1}, rounds=1)
