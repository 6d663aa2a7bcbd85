"""Pacing functions: the worked table, and what holds for all families."""

import itertools

import pytest

from fedflow.errors import BadInput
from fedflow.local.pacing import FAMILIES, Pacing

TIMES = (0, 51, 102, 204, 306, 407, 408, 510)
TABLE = {  # N = 500, T = 510, a = 0.8, b = 0.2
    "linear": (100, 150, 200, 300, 400, 499, 500, 500),
    "quadratic": (100, 106, 125, 200, 325, 498, 500, 500),
    "root": (100, 241, 300, 382, 446, 499, 500, 500),
    "step": (100, 100, 100, 100, 100, 100, 500, 500),
    "exponential": (100, 100, 100, 102, 132, 490, 500, 500),
}


@pytest.mark.parametrize(("family", "sizes"), TABLE.items())
def test_worked_table(family, sizes):
    assert tuple(Pacing(pacing=family).size(t, 510, 500) for t in TIMES) == sizes


@pytest.mark.parametrize("family", FAMILIES)
def test_prefix_grows_from_its_first_size_to_all(family):
    for a, b, steps in itertools.product((0.1, 0.55, 0.8, 1.0), (0.0, 0.0025, 0.29, 0.8), (100, 510)):
        pacing = Pacing(pacing=family, a=a, b=b)
        sizes = [pacing.size(t, steps, 100) for t in range(steps + 1)]
        assert sizes == sorted(sizes)
        assert sizes[0] == max(1, round(100 * b - 0.4))
        assert set(sizes[-(-int(a * steps * 1000) // 1000) :]) == {100}


def test_families_are_ordered():
    for t in range(409):
        at = [Pacing(pacing=p).size(t, 510, 500) for p in ("root", "linear", "quadratic", "exponential")]
        assert at == sorted(at, reverse=True)


@pytest.mark.parametrize("neutral", [{"a": 0}, {"b": 1}, {"order": "vanilla"}])
def test_neutral_values_are_whole_from_the_start(neutral):
    pacing = Pacing(**neutral)
    assert pacing.whole
    assert {pacing.size(t, 10, 7) for t in range(10)} == {7}


@pytest.mark.parametrize("wrong", [{"a": 1.1}, {"b": -0.1}, {"pacing": "sqrt"}, {"order": "easy"}])
def test_bad_values_are_refused(wrong):
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Pacing(**wrong)
