"""What a vmapped cohort would ask of a GPU: launches and bytes, held at the values that were reached."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from benchmarks import counts, headline
from benchmarks.counts import WORKLOADS, Counting, count, prepared
from fedflow.local.drawing import draw_schedule
from fedflow.simulation import ahead
from fedflow.simulation.cohort import cohort_call

# Launches and gigabytes, a tenth above those of torch 2.15: versions take operations apart differently.
MOST = {"headline": (820, 51.2), "lenet5": (1330, 19.9), "resnet9": (1150, 450)}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_round_needs_no_more_launches_and_bytes(name):
    found, (launches, gigabytes) = count(WORKLOADS[name]), MOST[name]
    assert 0 < found.launches.total() <= launches
    assert 0 < found.bytes <= gigabytes * 1e9


def test_the_headline_that_is_counted_is_the_one_that_is_measured():
    counted = WORKLOADS["headline"]
    assert counted.network == headline.NETWORK and counted.training == headline.TRAINING
    assert counted.clients == headline.COHORT
    assert counted.samples * headline.CLIENTS == 50_000  # images of CIFAR-10


@pytest.mark.parametrize("network", [headline.NETWORK, "lenet5", "resnet9"])
def test_launches_do_not_grow_with_clients_or_images(network):
    workload = WORKLOADS["lenet5"]._replace(network=network, clients=2, samples=2)
    few, more_clients, more_images = (
        count(workload._replace(**change)) for change in ({}, {"clients": 5}, {"samples": 10})
    )
    assert few.launches == more_clients.launches == more_images.launches
    assert 2 * few.bytes < more_clients.bytes < 3 * few.bytes


def test_a_kernel_of_one_image_is_launched_for_every_image_of_every_client():
    x = torch.empty(7, 4, 3, 8, 8, device="meta")
    with Counting() as counting:
        torch.func.vmap(lambda own: F.unfold(own, 3))(x)
    assert counting.launches["im2col"] == 7 * 4


def test_the_host_is_timed_with_batches_drawn_now_and_ahead(monkeypatch):
    """Each way draws the batches of every turn once, timed or not."""
    monkeypatch.setattr(counts, "TURNS", 3)
    drawn: list[int] = []
    monkeypatch.setattr(ahead, "draw_schedule", lambda *args: drawn.append(1) or draw_schedule(*args))
    workload = WORKLOADS["lenet5"]._replace(clients=4, samples=10)
    assert {*counts.host_times(workload)} == {"now", "ahead"} and len(drawn) == 2 * 3 * 4


def test_views_are_free_and_repeated_entries_are_read_once():
    x = torch.empty(4, device="meta")
    with Counting() as counting:
        wide = x.expand(1000, 4).T.unsqueeze(0)
    assert not counting.launches and counting.bytes == 0
    with counting:
        wide.sum(1)
    assert dict(counting.launches) == {"sum": 1} and counting.bytes == 4 * (4 + 1000)


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({}, (5, 50)),
        ({"epochs": [None] * 4, "most": [None] * 4}, (5, 50)),  # as the rounds of a run say it
        ({"epochs": [1, None, None, None]}, (6, 64)),
        ({"most": [None, 1, None, None]}, (6, 64)),
    ],
)
def test_equal_clients_are_not_padded(changes: dict[str, Any], shape: tuple[int, int]) -> None:
    """Steps and samples of a call on a GPU: round numbers only where they change from round to round."""
    job, work, shard, _ = prepared(WORKLOADS["headline"]._replace(network="logistic", clients=4))
    streams = job.method.streams(job.training)
    call = cohort_call(
        job, work, replace(shard, **changes), shard.clients, job.method.local, streams, round_shapes=True
    )
    steps, samples = call.inputs["schedule batches/positions"], call.inputs["own/rows"]
    assert (steps.shape[1], samples.shape[1]) == shape
    assert ("own/real" in call.inputs) == (shape != (5, 50))
