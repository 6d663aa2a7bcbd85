"""Batches that the host draws while a GPU trains: the same numbers, and none are drawn twice."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from support import Workers, images, run, same

from fedflow.simulation import ahead, cohort, worker
from fedflow.simulation.job import Job, Shard


def on_a_gpu(name: str, digits: Any, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[Any, list]:
    """A run on the path of a GPU, except the GPU; and the moment, round, client and stream of every draw.

    Moments are "late", before a cohort trains, and "early", while the previous one does.
    """
    drawn: list[tuple[str, int, int, str]] = []
    moment, draw = ["late"], ahead.draw_schedule

    def spy(training: Any, samples: int, epochs: int, seed: int, stream: str, *about: Any) -> Any:
        drawn.append((moment[0], *about[:2], stream))
        return draw(training, samples, epochs, seed, stream, *about)

    def train(job: Job, federation: Any, shard: Shard, *rest: Any) -> Any:
        outputs = cohort.cohort_call(job, federation, shard, *rest, round_shapes=True)()
        moment[0] = "early"
        job.draw_ahead(shard, rest[-1])
        moment[0] = "late"
        return cohort.unpacked(outputs)

    monkeypatch.setattr(ahead, "draw_schedule", spy)
    monkeypatch.setattr(worker, "train_cohort", train)
    monkeypatch.setattr(Job, "device", "cuda")
    return run(name, images(digits), cohort="vmap", rounds=4, participation=0.5, **settings), drawn


@pytest.mark.parametrize("name", ["fedavg", "superfed", "ditto"])
def test_batches_are_drawn_once_and_early(digits, monkeypatch, name) -> None:
    plain = run(name, images(digits), cohort="vmap", rounds=4, participation=0.5)
    found, drawn = on_a_gpu(name, digits, monkeypatch)
    assert same(found.state(), plain.state())
    assert len(drawn) == len(set(drawn)) and {t for moment, t, *_ in drawn if moment == "late"} == {1}
    early = {(t, k) for moment, t, k, _ in drawn if moment == "early"}
    assert early == {(r.round, k) for r in found.rounds[1:] for k in r.cohort}


class Copies(Workers):
    """Workers to which the settings travel with every shard."""

    def map(self, work: Any, job: Job, *rest: Any) -> list[Any]:
        return super().map(work, replace(job, training=deepcopy(job.training)), *rest)


@pytest.mark.parametrize("executor", [None, Workers(2), Copies(1)])
def test_several_calls_a_round_and_an_evaluation_throw_nothing_away(digits, monkeypatch, executor) -> None:
    monkeypatch.setattr(cohort, "FIRST_WIDTH", 1)
    tuned = {"fine_tune": True, "evaluate_every": 1, "executor": executor}
    _, drawn = on_a_gpu("fedavg", digits, monkeypatch, **tuned)
    drawn = [about for about in drawn if about[-1] != "tune"]
    assert len(drawn) == len(set(drawn)) and {t for moment, t, *_ in drawn if moment == "late"} == {1}


def test_a_straggler_has_other_batches_than_expected(digits, monkeypatch) -> None:
    training = {"epochs": 3, "stragglers": 0.5}
    plain = run("fedavg", images(digits), cohort="vmap", rounds=4, participation=0.5, training=training)
    found, drawn = on_a_gpu("fedavg", digits, monkeypatch, training=training)
    assert same(found.state(), plain.state())
    late = [(t, k) for moment, t, k, _ in drawn if moment == "late" and t > 1]
    assert 0 < len(late) < 3 * 4


@pytest.mark.parametrize("name", ["fedcluster", "fedeff"])
def test_nothing_is_expected_of_methods_that_choose_late(digits, monkeypatch, name) -> None:
    assert not {m for m, *_ in on_a_gpu(name, digits, monkeypatch)[1] if m == "early"}


def test_nor_on_a_cpu(digits, monkeypatch) -> None:
    sent: list[Shard] = []
    train = worker.train_shard
    monkeypatch.setattr(
        "fedflow.simulation.loop.train_shard", lambda job, shard: (sent.append(shard), train(job, shard))[1]
    )
    run("fedavg", images(digits), rounds=3)
    assert [shard.ahead for shard in sent] == [[], [], []]
