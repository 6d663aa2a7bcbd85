"""What travels between the run and workers in other processes: how many bytes, and nothing is lost."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import NETWORKS, OnMeta, images, one_client, reports, run, same, suited

from fedflow.data import Dataset
from fedflow.methods import METHODS
from fedflow.methods.protocols import Generative
from fedflow.simulation.exact import ExactSum
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job, Shard, Trained, merged_sums

SMALL = 700  # bytes of a tensor's description; of a client's numbers


def posted(thing: Any) -> tuple[Any, int]:
    """What arrives of ``thing``, and the bytes that it takes."""
    parcel = pickle.dumps(thing)
    return pickle.loads(parcel), len(parcel)  # noqa: S301 - it was written one line above


class Post:
    """An executor whose shards and results travel as bytes."""

    workers = 2

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []  # bytes of each shard, and bytes of its vectors
        self.answered: list[tuple[int, int]] = []  # bytes of each sum, and bytes of its float32 vector

    def map(self, work: Callable, job: Job, shards: Sequence[Any], title: str) -> list[Any]:
        return [self._answer(work, job, shard) for shard in shards]

    def _answer(self, work: Callable, job: Job, shard: Any) -> Any:
        arrived, size = posted(shard)
        small = SMALL * (len(shard.vectors) + len(shard.clients))
        self.sent.append((size - small, sum(w.nbytes for w in shard.vectors)))
        result, _ = posted(work(job, arrived))
        if isinstance(result, Trained):
            self.answered += [(posted(each)[1], 4 * len(each.high)) for each in result.sums.values()]
        return result


@pytest.fixture(scope="module")
def wide(digits: Dataset) -> Federation:
    """A network that is larger than the description of its vectors."""
    return images(digits, sizes=(3, 7, 12, 9), hidden=(128,))


LIGHT = sorted(name for name, method in METHODS.items() if not issubclass(method, Generative))


@pytest.mark.by_profile
@pytest.mark.parametrize("name", [name for name in LIGHT if name not in NETWORKS])
def test_a_shard_has_the_size_of_its_vectors(wide: Federation, name: str) -> None:
    """Rows of a stack too: pickle alone writes the whole stack for each of its rows."""
    post = Post()
    run(name, suited(name, wide), rounds=1, evaluate_every=1, executor=post).outcome()
    assert any(vectors for _, vectors in post.sent)
    assert [each for each in post.sent if each[0] > 1.1 * each[1]] == []


@pytest.mark.parametrize("method", ["fedavg", "fesem", "fedac", "pacfl", "scaffold"])
def test_results_do_not_depend_on_the_transport(federation: Federation, method: str) -> None:
    here, there = (
        run(method, federation, rounds=2, evaluate_every=1, executor=executor) for executor in (None, Post())
    )
    assert reports(here) == reports(there)
    assert same(here.state(), there.state())
    assert here.outcome().metrics == there.outcome().metrics


def test_an_answer_is_one_double_per_parameter(wide: Federation) -> None:
    """The second half of a sum is 0 where weights are whole numbers, and is not sent."""
    post = Post()
    run("fedavg", wide, rounds=1, executor=post)
    assert len(post.answered) == 2
    assert all(size <= 2.2 * vector for size, vector in post.answered)


@pytest.mark.parametrize("weights", [[3.0, 5.0, 2.0], [0.1, 1 / 3, 1e-9], [1e18, 1.0, -1e18]])
def test_a_sum_arrives_bit_by_bit(weights: list[float]) -> None:
    rng = torch.Generator().manual_seed(0)
    sums = ExactSum()
    sums.add_rows(torch.randn(3, 1000, generator=rng, dtype=torch.float64), weights)
    arrived, _ = posted(sums)
    assert torch.equal(arrived.high, sums.high) and torch.equal(arrived.low, sums.low)
    assert arrived.weight == sums.weight
    assert posted(ExactSum())[0].high is None


def test_a_row_that_is_sent_leaves_its_stack_as_it_is() -> None:
    stack = torch.arange(4000.0).view(4, 1000)
    shard = Shard(1, [0, 1], [stack[1], stack[:, 5]], [{"model": 0}, {"model": 1}], [{}, {}])
    arrived, size = posted(shard)
    assert size < 8000 + 4 * SMALL
    assert torch.equal(arrived.vectors[0], stack[1]) and torch.equal(arrived.vectors[1], stack[:, 5])
    assert arrived.received == shard.received
    assert shard.vectors[0].data_ptr() == stack[1].data_ptr()


def test_merging_sums_leaves_the_parts_as_they_are() -> None:
    """A cluster may merge a part a second time, when the worker with the first result is lost."""
    parts = [Trained([], [], {("model", group): ExactSum()}) for group in (0, 1, 0)]
    for i, part in enumerate(parts):
        for total in part.sums.values():
            total.add(torch.full((5,), 0.1 + i), 3.0)
    before = [posted(part)[0] for part in parts]
    merged, again = merged_sums(parts), merged_sums(parts[::-1])
    for part, was in zip(parts, before, strict=True):
        assert all(torch.equal(total.high, was.sums[key].high) for key, total in part.sums.items())
    assert merged.keys() == again.keys() == {("model", 0), ("model", 1)}
    for key, total in merged.items():
        assert torch.equal(total.mean(torch.float32), again[key].mean(torch.float32))
    assert merged["model", 0].weight == 6.0


def test_vectors_from_another_device_are_moved_to_the_network(federation: Federation) -> None:
    elsewhere = replace(federation, model=OnMeta(federation.model))
    client = one_client(elsewhere, model=federation.model.init(0))
    assert client.received["model"].device.type == "meta"
