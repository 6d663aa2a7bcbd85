from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import Ran, Workers, images, run
from torch import nn

from fedflow.data import Dataset
from fedflow.local.client import Client
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation
from fedflow.simulation.remembered import RememberedScores

SGD = {"batch_size": 8, "epochs": 2, "lr": 0.1}


def served(ran: Ran, k: int) -> torch.Tensor:
    """The vector that client k is served, from the run's state."""
    name = ran.simulation.job.method.name
    if name == "ditto":
        return ran.clients[-1]["personal"][k]
    models = ran.servers[-1].get("models", ran.servers[-1].get("model"))
    return models[int(ran.outcome().scores.cluster[k])] if name == "ifca" else models


@pytest.mark.parametrize("method", ["fedavg", "ifca", "ditto"])
def test_scores_are_those_of_evaluating_every_client_alone(federation: Federation, method: str) -> None:
    ran = run(method, federation, training=SGD)
    scores, partition, test = ran.outcome().scores, federation.partition, federation.test
    for k in scores.clients:
        module = federation.model.to_module(served(ran, k))
        rows = torch.as_tensor(partition.test(k))
        with torch.no_grad():
            outputs, everything = module(test.x[rows]), module(test.x)
        loss = float(nn.functional.cross_entropy(outputs, test.y[rows]))
        assert scores.local_accuracy[k] == float((outputs.argmax(-1) == test.y[rows]).double().mean())
        assert scores.global_accuracy[k] == float((everything.argmax(-1) == test.y).double().mean())
        assert scores.local_loss[k] == pytest.approx(loss, abs=1e-5)
        over_all = float(nn.functional.cross_entropy(everything, test.y))
        assert scores.global_loss[k] == pytest.approx(over_all, abs=1e-5)
        assert scores.test_samples[k] == len(rows)


def test_a_round_is_scored_at_the_learning_rate_of_the_next(federation: Federation) -> None:
    rates = []

    class Watched(FedAvg):
        def model_for(self, client: Client) -> torch.Tensor:
            rates.append(client.lr)
            return client.received["model"]

    run(Watched(), federation, rounds=2, evaluate_every=1, training=SGD | {"lr_decay": 0.5}).outcome()
    assert rates == pytest.approx([0.05, 0.025, 0.025])  # twice after the last round


@pytest.mark.parametrize("method", ["ifca", "ditto"])
def test_the_models_served_are_the_same_with_any_workers(federation: Federation, method: str) -> None:
    ran = run(method, federation, rounds=1, training=SGD, executor=Workers(3))
    models = ran.outcome().models
    for k, number in enumerate(ran.outcome().scores.cluster.tolist()):
        assert torch.equal(models[number if method == "ifca" else k], served(ran, k))


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_statistics_of_a_batch_are_those_of_one_client(digits: Dataset, method: str) -> None:
    """Without running statistics, a prediction depends on its batch: not on workers or what is recorded."""

    def network() -> nn.Module:
        norm = nn.BatchNorm2d(4, track_running_stats=False)
        return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))

    partition = Partition.from_lists(
        [np.arange(k, 40, 3) for k in range(3)],
        [np.arange(7), np.arange(100, 359), np.empty(0, np.int64)],
        [np.array([k]) for k in range(3)],
    )
    federation = replace(images(digits), model=FlatModel(network), partition=partition)
    ran = run(method, federation, training=SGD)
    scores, x, y = ran.outcome().scores, federation.test.x, federation.test.y

    def expected(k: int, *batches: range) -> float:
        w = served(ran, k)
        hits = [federation.model.outputs(w, x[list(rows)]).argmax(-1) == y[list(rows)] for rows in batches]
        return float(torch.cat(hits).double().mean())

    thirds = (range(100, 187), range(187, 273), range(273, 359))  # 259 samples, at most 128 at once
    assert scores.local_accuracy[0] == expected(0, range(7))
    assert scores.local_accuracy[1] == expected(1, *thirds)
    assert np.isnan(scores.local_accuracy[2])
    assert scores.global_accuracy[0] == expected(0, range(120), range(120, 240), range(240, 359))
    shared = (
        run(method, federation, training=SGD, executor=Workers(2), keep_predictions=True).outcome().scores
    )
    for name in ("local_accuracy", "local_loss", "global_accuracy", "global_loss"):
        np.testing.assert_array_equal(getattr(shared, name), getattr(scores, name))


@pytest.mark.filterwarnings("ignore:.*in 3 rounds")
def test_the_best_of_several_models_does_not_keep_the_others(federation: Federation) -> None:
    """Its memory is its own: workers would return that of all the candidates."""
    ran = run("superfed", federation, {"lam": "oracle"}, training=SGD, evaluate_every=3)
    models = ran.outcome().models
    assert len(models) == len(federation.partition.sizes)
    for w in models.values():
        assert w.untyped_storage().nbytes() == w.numel() * w.element_size()


def test_noise_of_a_step_before_clients_are_served_is_keyed_by_client(digits: Dataset) -> None:
    """Per-FedAvg serves the global model after one step, in training mode."""
    federation = images(digits, dropout=0.5)
    one, two = (run("perfedavg", federation, {"alpha": 1}, executor=Workers(n), rounds=1) for n in (1, 2))
    losses = [ran.outcome().scores.local_loss.tolist() for ran in (one, two, one)]
    assert losses[0] == losses[1] == losses[2]


@pytest.mark.parametrize("method", ["fedavg", "fedper", "local"])
def test_tuned_accuracy_is_that_after_one_more_local_training(federation: Federation, method: str) -> None:
    """With full batches, which do not depend on a stream."""
    training = {"batch_size": 0, "epochs": 2, "lr": 0.1}
    ran = run(method, federation, training=training, rounds=1, fine_tune=True)
    outcome = ran.outcome()
    for k in range(len(federation.partition.sizes)):
        w = outcome.scores.models[outcome.scores.model[k]]
        tuned = descend(federation, k, w, steps=2, lr=0.1)
        rows = torch.as_tensor(federation.partition.test(k))
        hits = federation.model.outputs(tuned, federation.test.x[rows]).argmax(-1) == federation.test.y[rows]
        assert outcome.scores.more["tuned_accuracy"][k] == float(hits.double().mean())


def descend(federation: Federation, k: int, w: torch.Tensor, steps: int, lr: float) -> torch.Tensor:
    rows, model = torch.as_tensor(federation.partition.train(k)), federation.model
    for _ in range(steps):
        leaf = w.clone().requires_grad_()
        loss = model.loss(model.train_outputs(leaf, federation.train.x[rows])[0], federation.train.y[rows])
        w = w - lr * torch.autograd.grad(loss, leaf)[0]
    return w


def seen(call: Callable[[], object]) -> int:
    """The number of images that the network evaluates during ``call``."""
    counts: list[int] = []
    outputs = FlatModel.outputs

    def spy(
        self: FlatModel, w: torch.Tensor, x: torch.Tensor, real: torch.Tensor | None = None
    ) -> torch.Tensor:
        counts.append(len(x))
        return outputs(self, w, x, real)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlatModel, "outputs", spy)
        call()
    return sum(counts)


def test_a_shared_model_sees_all_test_images_once_and_personal_ones_their_own(federation: Federation) -> None:
    assert seen(lambda: run("fedavg", federation, rounds=1)) == len(federation.test)
    reports = ["server", "active", "all"]
    more = seen(lambda: run("fedavg", federation, rounds=1, reports=reports))
    assert more == 4 * len(federation.test)
    own = sum(len(federation.partition.test(k)) for k in range(8))
    assert seen(lambda: run("ditto", federation, rounds=1)) == own


def test_clients_compare_models_on_their_training_images(federation: Federation) -> None:
    """IFCA: two models on every client's own images, then each chosen model on the test images."""
    ran = run("ifca", federation, training=SGD)
    chosen = len(set(ran.outcome().scores.cluster.tolist()))
    train = federation.partition.sizes.sum()
    ran.simulation.state.scores = RememberedScores(8)
    assert seen(ran.outcome) == 2 * train + chosen * len(federation.test)


def test_clients_that_never_trained_share_one_evaluation(federation: Federation) -> None:
    ran = run("local", federation, rounds=1, participation=0.25)
    assert seen(ran.outcome) == 3 * len(federation.test)  # two trained, six did not


def test_a_client_without_test_images_is_left_out_of_the_mean(federation: Federation) -> None:
    old = federation.partition
    own = [old.test_pools(k) if k else np.empty(0, np.int64) for k in range(8)]
    pools = [old.pool(p) for p in range(10)]
    partition = Partition.from_lists([old.train(k) for k in range(8)], pools, own)
    lacking = Federation(federation.model, federation.train, federation.test, partition)
    outcome = run("fedavg", lacking, training=SGD, rounds=1).outcome()
    assert np.isnan(outcome.scores.local_accuracy[0])
    assert outcome.metrics["local_accuracy"] == pytest.approx(outcome.scores.local_accuracy[1:].mean())


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_clients_with_held_out_samples_are_scored_on_those(federation: Federation, method: str) -> None:
    """On rows of the training split; the client of one sample holds out none."""
    whole = list(map(federation.partition.train, range(8)))
    held = [rows[: len(rows) // 2] for rows in whole]
    train = [rows[len(rows) // 2 :] for rows in whole]
    partition = Partition.from_lists(train, held, list(np.arange(8)[:, None]), held_out=True)
    ran = run(method, replace(federation, partition=partition), training=SGD, rounds=2, fine_tune=True)
    scores = ran.outcome().scores
    for k in range(8):
        rows = torch.as_tensor(held[k])
        if not len(rows):
            assert np.isnan(scores.local_accuracy[k]) and scores.test_samples[k] == 0
            continue
        outputs = federation.model.outputs(served(ran, k), federation.train.x[rows])
        truth = federation.train.y[rows]
        assert scores.local_accuracy[k] == float((outputs.argmax(-1) == truth).double().mean())
        loss = float(nn.functional.cross_entropy(outputs, truth))
        assert scores.local_loss[k] == pytest.approx(loss, abs=1e-5)
        assert scores.test_samples[k] == len(rows)
        everything = federation.model.outputs(served(ran, k), federation.test.x).argmax(-1)
        assert scores.global_accuracy[k] == float((everything == federation.test.y).double().mean())
        assert 0 <= scores.more["tuned_accuracy"][k] <= 1


def test_the_last_trained_models_are_scored_too(federation: Federation) -> None:
    ran = run("fedavg", federation, training=SGD, rounds=1, keep_trained=True)
    outcome, test = ran.outcome(), federation.test
    for k in range(8):
        rows = torch.as_tensor(federation.partition.test(k))
        outputs = federation.model.outputs(ran.clients[-1]["trained"][k], test.x[rows])
        accuracy = float((outputs.argmax(-1) == test.y[rows]).double().mean())
        assert outcome.scores.more["trained_accuracy"][k] == accuracy
    assert outcome.metrics["local_final_accuracy"] == pytest.approx(
        outcome.scores.more["trained_accuracy"].mean()
    )


@pytest.mark.parametrize(("method", "models"), [("fedavg", {0}), ("ifca", {0, 1}), ("ditto", set(range(8)))])
def test_the_outcome_holds_the_models_that_are_served(federation, method, models) -> None:
    ran = run(method, federation, training=SGD)
    outcome = ran.outcome()
    assert set(outcome.models) <= models
    for k in range(8):
        number = {"fedavg": 0, "ifca": int(outcome.scores.cluster[k]), "ditto": k}[method]
        assert torch.equal(outcome.models[number], served(ran, k))
