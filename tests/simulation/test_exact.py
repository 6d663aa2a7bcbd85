import copy
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedflow.simulation import exact
from fedflow.simulation.exact import ExactSum
from fedflow.simulation.executors import balanced

# Floats of a run's order of magnitude: the products of float32 vectors with sample counts.
VALUES = st.floats(-1e3, 1e3, width=32).filter(lambda v: v == 0 or abs(v) > 1e-6)
TERMS = st.lists(st.tuples(VALUES, st.integers(1, 1000)), min_size=1, max_size=12)


def total(terms: list) -> ExactSum:
    sums = ExactSum()
    for value, weight in terms:
        sums.add(torch.tensor([value]), weight)
    return sums


@given(TERMS, st.randoms(), st.integers(0, 12))
def test_neither_order_nor_workers_change_a_bit(terms: list, random: object, cut: int) -> None:
    shuffled = list(terms)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    merged = ExactSum()
    for part in (shuffled[cut:], shuffled[:cut]):
        if part:
            merged.merge(total(part))
    assert torch.equal(merged.mean(torch.float32), total(terms).mean(torch.float32))
    assert merged.weight == sum(weight for _, weight in terms)


@given(TERMS, st.integers(1, 40))
def test_rows_added_at_once_are_the_same_sum(terms: list, at_once: int) -> None:
    """Three columns: as they are, turned round, and halved, in parts of few numbers."""
    columns = [terms, terms[::-1], [(value / 2, weight) for value, weight in terms]]
    rows = torch.tensor([[column[c][0] for column in columns] for c in range(len(terms))])
    sums, weights = ExactSum(), [float(weight) for _, weight in terms]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(exact.AT_ONCE, "cpu", at_once)
        sums.add_rows(rows, weights)
    one_by_one = ExactSum()
    for row, weight in zip(rows, weights):
        one_by_one.add(row, weight)
    assert torch.equal(sums.mean(torch.float32), one_by_one.mean(torch.float32))
    assert sums.weight == one_by_one.weight


@given(TERMS)
def test_the_sum_is_exact(terms: list) -> None:
    sums = total(terms)
    expected = sum(Fraction(value) * weight for value, weight in terms)
    assert Fraction(float(sums.high)) + Fraction(float(sums.low)) == expected


@given(st.integers(0, 100), st.integers(2, 30))
def test_rows_of_several_blocks_are_summed_without_rounding(seed: int, rows: int) -> None:
    """Narrow blocks in float64 alone, wide ones in both parts, and some carried over in between."""
    rng = torch.Generator().manual_seed(seed)
    scale = torch.tensor([0.0, -1, -5, -9, 20]).repeat_interleave(4)  # powers of 10
    sums, terms = ExactSum(), torch.randn(rows, 20, generator=rng) * 10**scale
    terms[rows // 2, 7] = 0
    weights = torch.randint(1, 100, (rows,), generator=rng).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(exact.AT_ONCE, "cpu", 6)
        for row, weight in zip(terms, weights):
            sums.add(row, weight)
        high, low = sums.high, sums.low
    assert high is not None and low is not None
    for c in range(20):
        expected = sum(Fraction(float(row[c])) * weight for row, weight in zip(terms, weights))
        assert Fraction(float(high[c])) + Fraction(float(low[c])) == expected


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_stays_so(value: float) -> None:
    sums = ExactSum()
    for row in torch.tensor([[1.0, 2.0], [value, 3.0], [1.0, 4.0]]):
        sums.add(row, 2)
    mean = sums.mean(torch.float32)
    assert not torch.isfinite(mean[0]) and float(mean[1]) == 3


@pytest.mark.parametrize("rows", [1, 3])
def test_vectors_may_be_empty(rows: int) -> None:
    """Clients that share nothing send them."""
    total = ExactSum()
    total.add_rows(torch.zeros(rows, 0), [2.0] * rows)
    total.merge(total)
    assert total.mean(torch.float32).shape == (0,)


def test_rounding_errors_of_a_plain_sum_are_kept() -> None:
    terms = [(1e16, 1), (1.0, 1), (-1e16, 1)]
    sums = ExactSum()
    for value, weight in terms:
        sums.add(torch.tensor([value], dtype=torch.float64), weight)
    assert float(sums.mean(torch.float64)) == 1 / 3
    assert (1e16 + 1.0) - 1e16 == 0


def test_rounding_errors_are_kept_as_the_sums_of_workers_are_merged() -> None:
    parts = [ExactSum(), ExactSum()]
    for place, value in ((0, 1e16), (0, 1.0), (1, -1e16)):
        parts[place].add(torch.tensor([value], dtype=torch.float64), 1)
    for one, other in (parts, parts[::-1]):
        merged = ExactSum()
        merged.merge(one)
        merged.merge(other)
        assert float(merged.mean(torch.float64)) == 1 / 3


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 8))
def test_shards_are_balanced_and_complete(sizes: list[int], workers: int) -> None:
    load = np.array(sizes)
    shards = balanced(range(len(sizes)), load, workers)
    assert sorted(k for shard in shards for k in shard) == list(range(len(sizes)))
    assert len(shards) == min(workers, len(sizes))
    assert all(shard == sorted(shard) and shard for shard in shards)
    loads = [load[shard].sum() for shard in shards]
    assert max(loads) - min(loads) <= max(sizes)


@pytest.mark.parametrize("shape", [(), (3,), (3, 4), (2, 3, 4)])
def test_terms_of_any_shape_are_summed_by_client(shape: tuple[int, ...]) -> None:
    """As many rows as clients: weights are of clients."""
    rows = torch.arange(3.0).view(3, *[1] * len(shape)).expand(3, *shape).contiguous()
    at_once, one_by_one = ExactSum(), ExactSum()
    at_once.add_rows(rows, [1.0, 2.0, 5.0])
    for row, weight in zip(rows, (1.0, 2.0, 5.0)):
        one_by_one.add(row, weight)
    for sums in (at_once, one_by_one, copy.deepcopy(at_once)):
        assert torch.equal(sums.mean(torch.float32), torch.full(shape, 1.5))
