"""Clients that join after the last round: as if they were not there, then served and fine-tuned."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support import SIZES, images, prepare_run, run, same

from fedflow.data import Dataset
from fedflow.methods import METHODS
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation

LATE = 2


@pytest.fixture(scope="module")
def everyone(digits: Dataset) -> Federation:
    return images(digits)


@pytest.fixture(scope="module")
def federation(everyone: Federation) -> Federation:
    return replace(everyone, partition=replace(everyone.partition, newcomers=LATE))


@pytest.fixture(scope="module")
def without(everyone: Federation) -> Federation:
    """The same without the clients that join late."""
    kept, partition = len(SIZES) - LATE, everyone.partition
    pools = [partition.pool(p) for p in range(10)]
    train, own = ([part(k) for k in range(kept)] for part in (partition.train, partition.test_pools))
    return replace(everyone, partition=Partition.from_lists(train, pools, own))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_rounds_are_those_without_newcomers(name: str, federation: Federation, without: Federation):
    one, other = (run(name, f, rounds=2, participation=0.5, evaluate_every=1) for f in (federation, without))
    assert same(one.state(), other.state())
    assert [vars(r) | {"seconds": 0} for r in one.rounds] == [vars(r) | {"seconds": 0} for r in other.rounds]
    ended, expected = one.outcome(), other.outcome()
    assert ended.scores.clients == list(range(len(SIZES) - LATE)) == expected.scores.clients
    late = {name: value for name, value in ended.metrics.items() if name.startswith("newcomer")}
    assert ended.metrics.items() - late.items() == expected.metrics.items()
    assert late["newcomers"] == LATE and 0 <= late["newcomer_accuracy"] <= 1
    assert expected.newcomers is None and "newcomers" not in expected.metrics


def test_a_newcomer_of_fedavg_gets_the_global_model_and_tunes_it(
    federation: Federation, everyone: Federation
):
    ran = run("fedavg", federation, rounds=2)
    ended = ran.outcome()
    newcomers = ended.newcomers
    assert newcomers is not None and newcomers.clients == [6, 7]
    model, w = federation.model, ended.models[0]
    for place, k in enumerate(newcomers.clients):
        rows = torch.as_tensor(federation.partition.test(k))
        hits = model.hits(model.outputs(w, federation.test.inputs(rows)), federation.test.targets(rows))
        assert newcomers.local_accuracy[place] == pytest.approx(hits.double().mean().item())
    assert not np.isnan(newcomers.tuned_accuracy).any()


def test_a_newcomer_of_local_starts_from_the_first_model(federation: Federation):
    simulation = prepare_run("local", federation, rounds=1)
    first = simulation.state.store.first["model"]
    list(simulation.rounds())
    kept = simulation.state.store.get(7)
    assert torch.equal(kept["model"], first)
    assert simulation.outcome().metrics["newcomer_tuned_accuracy"] is not None


def test_participation_counts_those_who_take_part(federation: Federation):
    simulation = prepare_run("fedavg", federation, participation=0.5)
    assert (simulation.clients, simulation.cohort_size) == (6, 3)


def test_a_run_with_newcomers_goes_on_from_its_checkpoint(federation: Federation, tmp_path):
    whole = run("scaffold", federation, rounds=4, participation=0.5).outcome()
    settings = {"rounds": 4, "participation": 0.5, "checkpoints": tmp_path, "checkpoint_every": 1}
    rounds = prepare_run("scaffold", federation, **settings).rounds()
    next(rounds), next(rounds)
    resumed = prepare_run("scaffold", federation, **settings)
    assert len(list(resumed.rounds())) == 4
    assert resumed.outcome().metrics == whole.metrics
