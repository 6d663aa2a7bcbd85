"""Clients that join after the last round: they do not affect the rounds, and are served and fine-tuned."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from profiles import abilities
from support import SIZES, forbid_fallback, prepare_run, reports, run, same, suited, with_newcomers

from fedflow.methods import METHODS
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation

LATE = 2


@pytest.fixture(scope="module")
def federation(federation: Federation) -> Federation:
    return with_newcomers(federation, LATE)


@pytest.fixture(scope="module")
def without(federation: Federation) -> Federation:
    """The same without the clients that join late."""
    kept, partition = len(SIZES) - LATE, federation.partition
    pools = [partition.pool(p) for p in range(10)]
    train, own, selection = (
        [part(k) for k in range(kept)]
        for part in (partition.train, partition.test_pools, partition.selection)
    )
    return replace(federation, partition=Partition.from_lists(train, pools, own, selection))


def accuracy(federation: Federation, w: torch.Tensor, k: int) -> float:
    """The share of the test samples of client k that the model w gets right."""
    rows, model = torch.as_tensor(federation.partition.test(k)), federation.model
    hits = model.hits(model.outputs(w, federation.test.inputs(rows)), federation.test.targets(rows))
    return hits.double().mean().item()


@pytest.mark.by_profile(kind=abilities)
@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_rounds_are_those_without_newcomers(name: str, federation: Federation, without: Federation):
    one, other = (
        run(name, suited(name, f), rounds=2, participation=0.5, evaluate_every=1)
        for f in (federation, without)
    )
    assert same(one.state(), other.state())
    assert reports(one) == reports(other)
    ended, expected = one.outcome(), other.outcome()
    assert ended.scores.clients == list(range(len(SIZES) - LATE)) == expected.scores.clients
    new = {name: value for name, value in ended.metrics.items() if name.startswith("newcomer")}
    assert ended.metrics.items() - new.items() == expected.metrics.items()
    assert new["newcomers"] == LATE and 0 <= new["newcomer_accuracy"] <= 1
    assert expected.newcomers is None and "newcomers" not in expected.metrics


@pytest.mark.parametrize("name", ["fedavg", "ditto"])
def test_a_newcomer_gets_the_global_model_and_tunes_it(federation, name):
    """Also where clients keep models: a newcomer has none yet."""
    ran = run(name, federation, rounds=2)
    newcomers = ran.outcome().newcomers
    assert newcomers.clients == [6, 7]
    expected = [accuracy(federation, ran.servers[-1]["model"], k) for k in (6, 7)]
    assert newcomers.local_accuracy.tolist() == pytest.approx(expected)
    assert not np.isnan(newcomers.more["tuned_accuracy"]).any()


def test_a_newcomer_of_local_starts_from_the_initial_model(federation: Federation):
    """It is then trained from there, here with full batches, which do not depend on a stream."""
    simulation = prepare_run("local", federation, rounds=1)
    model, first = federation.model, simulation.state.store.first["model"]
    list(simulation.rounds())
    assert torch.equal(simulation.state.store.get(7)["model"], first)
    newcomers = simulation.outcome().newcomers
    for place, k in enumerate(newcomers.clients):
        rows, w = torch.as_tensor(federation.partition.train(k)), first
        for scores in (newcomers.local_accuracy, newcomers.more["tuned_accuracy"]):
            assert scores[place] == pytest.approx(accuracy(federation, w, k))
            for _ in range(2):
                leaf = w.clone().requires_grad_()
                outputs = model.train_outputs(leaf, federation.train.inputs(rows))[0]
                loss = model.loss(outputs, federation.train.targets(rows))
                w = w - 0.1 * torch.autograd.grad(loss, leaf)[0]


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedper"])
def test_newcomers_are_tuned_in_a_cohort_as_one_by_one(name, federation, monkeypatch):
    training = {"batch_size": 8, "epochs": 2, "lr": 0.1}
    one_by_one = run(name, federation, rounds=1, training=training).outcome().newcomers
    forbid_fallback(monkeypatch)
    together = run(name, federation, rounds=1, training=training, cohort="vmap").outcome().newcomers

    for field in ("local_accuracy", "tuned_accuracy"):  # of hundreds of test images, one may tip
        assert together.column(field) == pytest.approx(one_by_one.column(field), abs=0.01)


def test_participation_does_not_count_newcomers(federation: Federation):
    simulation = prepare_run("fedavg", federation, participation=0.5, rounds=20)
    assert (simulation.clients, simulation.cohort_size) == (6, 3)
    assert {k for report in simulation.rounds() for k in report.cohort} == set(range(6))


def test_a_run_with_newcomers_resumes_from_its_checkpoint(federation: Federation, tmp_path):
    whole = run("scaffold", federation, rounds=4, participation=0.5).outcome()
    settings = {"rounds": 4, "participation": 0.5, "checkpoints": tmp_path, "checkpoint_every": 1}
    rounds = prepare_run("scaffold", federation, **settings).rounds()
    next(rounds), next(rounds)
    resumed = prepare_run("scaffold", federation, **settings)
    assert len(list(resumed.rounds())) == 4
    assert resumed.outcome().metrics == whole.metrics


@pytest.mark.parametrize("name", ["pacfl", "flt"])
def test_the_server_forgets_newcomers(name: str, federation: Federation) -> None:
    """Extensions that are asked later see the server of the run, and another outcome is the same."""
    ran = run(name, federation, rounds=2)
    one, other = ran.outcome(), ran.outcome()
    assert same(ran.simulation.state.server.tensors(), ran.servers[-1])
    assert one.newcomers.local_accuracy.tolist() == other.newcomers.local_accuracy.tolist()
