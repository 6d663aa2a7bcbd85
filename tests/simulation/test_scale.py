"""The cost of a round with very many clients: work and memory depend on the cohort, not on all clients."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from support import Ran, Workers, prepare_run, run

from fedflow.finished.results import write_results
from fedflow.partition import Partition
from fedflow.simulation.clients import ClientStore
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job

SGD = {"batch_size": 8, "epochs": 1, "lr": 0.1}


def lines(call: Callable[[], object]) -> int:
    """The number of lines of fedflow's Python code that run during ``call``, every iteration counted."""
    count = 0

    def note(frame: Any, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return note if "/fedflow/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(note)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("method", "every"), [("fedavg", 1), ("scaffold", 1), ("cc_fedams", 1), ("ditto", 9), ("ifca", 9)]
)
def test_the_cost_of_a_round_of_ten_clients_does_not_depend_on_their_number(
    federation: Federation, method: str, every: int, tmp_path: Path
) -> None:
    """With evaluations of a global model, and with checkpoints."""

    def rounds(clients: int) -> int:
        pools, own = [np.arange(20)], [np.zeros(1, np.int64)] * clients
        many = replace(federation, partition=Partition.from_lists([np.arange(6)] * clients, pools, own))
        often = {"evaluate_every": every, "checkpoint_every": 2, "checkpoints": tmp_path}
        reports = prepare_run(method, many, rounds=9, participation=10 / clients, **often).rounds()
        next(reports)
        return lines(lambda: [next(reports) for _ in range(2)])

    assert rounds(4000) == pytest.approx(rounds(400), rel=0.02)


class Counting(Workers):
    """Workers that record how many clients per shard determine their model."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.asked: list[int] = []

    def map(self, work: Callable, job: Job, shards: Sequence[Any], title: str) -> list[Any]:
        self.asked += [len(shard.received) for shard in shards if work.__name__ == "evaluate_shard"]
        return super().map(work, job, shards, title)


@pytest.mark.parametrize(("method", "asked"), [("fedavg", [1, 1]), ("ifca", [4, 4]), ("ditto", [4, 4])])
def test_one_client_is_asked_where_all_are_served_one_model(federation, method, asked) -> None:
    workers = Counting(2)
    run(method, federation, training=SGD, rounds=1, executor=workers)
    assert workers.asked == asked


@pytest.mark.parametrize("method", ["ditto", "fedper", "apfl"])
def test_personal_models_are_scored_in_parts_as_at_once(federation, method, monkeypatch) -> None:
    whole = run(method, federation, training=SGD, rounds=2, fine_tune=True, executor=Workers(2)).outcome()
    monkeypatch.setattr("fedflow.simulation.scoring.PERSONAL_EVAL_CHUNK", 3 * federation.model.size)
    workers = Counting(2)
    parts = run(method, federation, training=SGD, rounds=2, fine_tune=True, executor=workers).outcome()
    assert workers.asked == [2, 1, 2, 1, 1, 1] * 2  # 3, 3 and 2 clients, by two workers
    assert parts.metrics == whole.metrics
    assert parts.models.keys() == whole.models.keys() == set(range(8))
    assert all(torch.equal(parts.models[k], whole.models[k]) for k in range(8))


def test_an_outcome_holds_a_limited_number_of_personal_models(federation, monkeypatch) -> None:
    monkeypatch.setattr("fedflow.simulation.scoring.PERSONAL_EVAL_CHUNK", 2 * federation.model.size)
    monkeypatch.setattr("fedflow.simulation.scoring.PERSONAL_CLIENTS", 3)
    assert set(run("ditto", federation, rounds=1).outcome().models) == {0, 1, 2}


def test_all_models_of_clusters_are_held_also_if_trained_ones_are_scored(federation, monkeypatch) -> None:
    monkeypatch.setattr("fedflow.simulation.scoring.PERSONAL_EVAL_CHUNK", 2 * federation.model.size)
    monkeypatch.setattr("fedflow.simulation.scoring.PERSONAL_CLIENTS", 4)
    plain, trained = (
        run("ifca", federation, {"clusters": 3}, training=SGD, keep_trained=keep).outcome()
        for keep in (False, True)
    )
    assert set(trained.models) == set(plain.models) == {*plain.scores.cluster.tolist()}
    assert not {*plain.scores.cluster.tolist()} <= {*plain.scores.cluster[:4].tolist()}


def sampled(method: str, federation: Federation, **settings: Any) -> Ran:
    return run(method, federation, training=SGD, evaluate_every=1, evaluate_clients=3, **settings)


@pytest.mark.parametrize("method", ["fedavg", "ifca", "ditto"])
def test_a_sample_of_clients_has_the_scores_that_it_has_among_all(federation, method) -> None:
    some = sampled(method, federation, fine_tune=True)
    everyone = run(method, federation, training=SGD, evaluate_every=1, fine_tune=True).outcome().scores
    outcome, chosen = some.outcome(), list(some.simulation.scoring.scored)
    scores = outcome.scores
    assert len(chosen) == 3 and scores.clients == list(range(8))
    others = [k for k in range(8) if k not in chosen]
    for name in ("local_accuracy", "local_loss", "global_accuracy", "tuned_accuracy"):
        values, all_values = scores.column(name), everyone.column(name)
        assert np.array_equal(values[chosen], all_values[chosen]) and np.isnan(values[others]).all()
    assert np.array_equal(scores.test_samples, everyone.test_samples)
    assert np.array_equal(scores.cluster[chosen], everyone.cluster[chosen])
    assert (scores.cluster[others] == -1).all()
    assert outcome.metrics["evaluated_clients"] == 3
    assert outcome.metrics["local_accuracy"] == pytest.approx(everyone.local_accuracy[chosen].mean())
    assert some.values("local_accuracy")[-1] == outcome.metrics["local_accuracy"]


def test_every_method_and_round_scores_the_same_sample(federation: Federation) -> None:
    first, other = sampled("fedavg", federation), sampled("ditto", federation)
    assert first.simulation.scoring.scored == other.simulation.scoring.scored
    elsewhere = sampled("fedavg", federation, seed=1).simulation.scoring.scored
    assert elsewhere != first.simulation.scoring.scored


def test_assignments_leave_others_out_and_results_have_a_row_for_every_client(federation, tmp_path) -> None:
    ran = sampled("ifca", federation)
    assigned, scored = (
        next(filter(None, (r.assignment for r in ran.rounds))),
        list(ran.simulation.scoring.scored),
    )
    assert [k for k in range(8) if assigned[k] >= 0] == scored
    write_results(tmp_path, {}, {}, ran.rounds, ran.outcome(), federation.partition.sizes, None)
    table = pd.read_parquet(tmp_path / "clients.parquet")
    assert table["client"].tolist() == list(range(8))
    assert np.flatnonzero(table["local_accuracy"].notna()).tolist() == scored


def test_rows_in_files_are_resident_only_while_they_are_used(tmp_path: Path) -> None:
    """64 rows of 1 MiB are written and read; the process must not keep their pages."""
    store = ClientStore({"c": torch.zeros(1 << 18)}, 100_000, tmp_path)
    process = psutil.Process()
    before = process.memory_info().rss
    for k in range(64):
        store.put(k * 1500, {"c": torch.full((1 << 18,), float(k))})
        store.settle()
        assert float(store.get(k * 1500)["c"].max()) == k
    assert process.memory_info().rss - before < 16 << 20
