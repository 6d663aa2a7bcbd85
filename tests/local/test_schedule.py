"""Schedules: drawn for one client, and padded for a cohort."""

import itertools
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedflow.local.drawing import draw_schedule
from fedflow.local.local_training import LocalTraining
from fedflow.local.schedule import pad_schedules


def drawn(samples: int, training: LocalTraining, epochs: int, **key: Any) -> list[list[int]]:
    """The positions of every batch."""
    key = {"seed": 0, "stream": "batches", "round": 1, "client": 2} | key
    schedule = draw_schedule(training, samples, epochs, **key)
    assert schedule.steps() == [None] * len(schedule)
    return [positions.tolist() for positions, *_ in schedule.batches()]


@given(samples=st.integers(1, 40), batch=st.integers(0, 50), epochs=st.integers(1, 3), seed=st.integers(0, 9))
def test_every_epoch_sees_every_sample_once(samples: int, batch: int, epochs: int, seed: int) -> None:
    training = LocalTraining(batch_size=batch, epochs=epochs)
    taken = drawn(samples, training, epochs, seed=seed)
    per_epoch = len(taken) // epochs
    assert len(taken) == training.workload(samples).steps
    for epoch in range(epochs):
        cut = taken[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(itertools.chain(*cut)) == list(range(samples))
        size = batch or samples
        assert [len(b) for b in cut[:-1]] == [size] * (per_epoch - 1)
        assert len(cut[-1]) == (samples % size or size)  # the last one may be smaller


@given(samples=st.integers(1, 40), batch=st.integers(0, 50), steps=st.integers(1, 12))
def test_steps_are_the_first_of_as_many_epochs(samples: int, batch: int, steps: int) -> None:
    training = LocalTraining(batch_size=batch, steps=steps)
    taken = drawn(samples, training, 1)
    assert taken == drawn(samples, LocalTraining(batch_size=batch), steps)[:steps]
    assert training.workload(samples) == (steps, sum(map(len, taken)))


def test_every_key_has_its_order() -> None:
    keys: list[dict] = [{}, {"seed": 1}, {"stream": "personal"}, {"round": 2}, {"client": 3}]
    first, again = ([drawn(30, LocalTraining(), 1, **key) for key in keys] for _ in range(2))
    assert first == again and len({str(order) for order in first}) == len(keys)


@given(
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=5),
    batch=st.integers(0, 30),
    epochs=st.integers(1, 2),
    more=st.integers(0, 3),
)
def test_padded_schedules_have_the_same_batches(sizes: list[int], batch: int, epochs: int, more: int) -> None:
    training = LocalTraining(batch_size=batch)
    own = [draw_schedule(training, n, epochs, 0, "batches", 3, k) for k, n in enumerate(sizes)]
    schedule = pad_schedules(own, max(map(len, own)) + more)
    positions, everything = schedule["positions"], torch.ones_like(schedule["positions"], dtype=torch.bool)
    mask, active = schedule.get("mask", everything), schedule.get("active", everything.any(-1))
    assert all(not tensor.all() for name, tensor in schedule.items() if name != "positions")
    assert torch.equal(mask.any(-1), active)
    for c, (k, n) in enumerate(enumerate(sizes)):
        alone = drawn(n, training, epochs, round=3, client=k)
        assert active[c].tolist() == [s < len(alone) for s in range(positions.shape[1])]
        assert [positions[c, s][mask[c, s]].tolist() for s in range(len(alone))] == alone
