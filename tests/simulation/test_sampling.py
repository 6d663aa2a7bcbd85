"""Samplers of `run.sampling`; that methods follow them or refuse them is tested in the battery."""

from itertools import chain, combinations

import numpy as np
import pytest
from scipy.stats import chisquare
from support import prepare_run, quadratics, refused, run

from fedflow.errors import RoundFailed
from fedflow.methods.method import draw
from fedflow.simulation.sampling import sample

EQUAL = {clients: np.ones(clients) for clients in (4, 10, 20, 100)}


def cohorts(kind: str, rate: float, clients: int, count: int, seed: int = 0) -> list[list[int]]:
    """The first cohorts of a run, as `Method.plan` draws them."""
    rng = np.random.default_rng(0)
    drawn = (sample(kind, rate, EQUAL[clients], seed, number) for number in range(count))
    return [sorted(draw(rng, *found).tolist()) for found in drawn]


def test_bernoulli_cohorts_have_the_probabilities_of_independent_clients() -> None:
    """All 15 cohorts of four clients, without the empty one."""
    subsets = list(chain.from_iterable(combinations(range(4), size) for size in range(1, 5)))
    weights = np.array([0.3 ** len(s) * 0.7 ** (4 - len(s)) for s in subsets])
    found = [subsets.index(tuple(cohort)) for cohort in cohorts("bernoulli", 0.3, 4, 6000)]
    counts = np.bincount(found, minlength=15)
    assert chisquare(counts, 6000 * weights / weights.sum()).pvalue > 1e-3


@pytest.mark.parametrize(
    ("rate", "clients", "mean"), [(0.1, 100, 10.0003), (0.01, 100, 1.5774), (0.1, 20, 2.2768), (1, 10, 10)]
)
def test_bernoulli_cohorts_are_never_empty_and_have_the_mean_of_the_formula(
    rate: float, clients: int, mean: float
) -> None:
    assert clients * rate / (1 - (1 - rate) ** clients) == pytest.approx(mean, abs=1e-4)
    sizes = np.array([sample("bernoulli", rate, EQUAL[clients], 0, number)[1] for number in range(3000)])
    assert sizes.min() >= 1
    assert abs(sizes.mean() - mean) <= 4 * sizes.std() / np.sqrt(len(sizes))


@pytest.mark.parametrize(
    ("rate", "sizes"), [(0.1, [1] * 10), (0.3, [3, 3, 4]), (0.4, [4, 6]), (0.6, [10]), (1, [10])]
)
def test_a_sweep_visits_every_client_once(rate: float, sizes: list[int]) -> None:
    found = cohorts("sweep", rate, 10, 3 * len(sizes))
    sweeps = [found[i : i + len(sizes)] for i in range(0, len(found), len(sizes))]
    for sweep in sweeps:
        assert [len(cohort) for cohort in sweep] == sizes
        assert sorted(chain.from_iterable(sweep)) == list(range(10))
    if len(sizes) > 1:
        assert sweeps[0] != sweeps[1] != sweeps[2]
        assert found != cohorts("sweep", rate, 10, len(found), seed=1)


TEN = quadratics(((1, 1),) * 10, range(1, 11))


@pytest.mark.parametrize("kind", ["bernoulli", "sweep"])
def test_cohorts_of_a_run_are_those_of_the_sampler(kind: str) -> None:
    """With stragglers that are dropped, simulated time, and another number of rounds."""
    long, short = (run("fedavg", TEN, rounds=n, participation=0.3, sampling=kind) for n in (9, 4))
    found = [report.cohort for report in long.rounds]
    sizes = TEN.partition.sizes
    assert [len(cohort) for cohort in found] == [sample(kind, 0.3, sizes, 0, n)[1] for n in range(9)]
    assert [report.cohort for report in short.rounds] == found[:4]
    assert long.values("participants") == [len(cohort) for cohort in found]
    assert np.all(np.diff(long.values("clock")) > 0)
    dropping = {"epochs": 2, "stragglers": 0.9, "drop_stragglers": True}
    dropped = run("fedavg", TEN, rounds=9, participation=0.3, sampling=kind, training=dropping)
    assert [len(r.cohort) for r in dropped.rounds] == [len(c) - int(0.9 * len(c) + 1e-9) for c in found]
    assert all(set(r.cohort) <= set(cohort) for r, cohort in zip(dropped.rounds, found))


def test_a_rate_that_gives_only_empty_cohorts_is_refused() -> None:
    with refused("run.participation: 1e-06 is not accepted; expected at least 0.0005 with bernoulli"):
        prepare_run("fedavg", quadratics(), participation=1e-6, sampling="bernoulli")


def test_a_bernoulli_cohort_below_the_minimum_ends_the_run() -> None:
    with refused("round .*: 1 of 1 clients succeeded, run.min_cohort is 2", RoundFailed):
        run("fedavg", TEN, rounds=40, participation=0.2, sampling="bernoulli", min_cohort=2)


def test_a_minimum_for_rounds_of_several_cohorts_is_refused() -> None:
    with refused("run.min_cohort: 2 .*at most 1 with fedcluster, whose rounds have several cohorts"):
        prepare_run("fedcluster", TEN, {"clusters": 2, "grouping": "random"}, min_cohort=2)


@pytest.mark.parametrize("kind", ["proportional", "bernoulli", "sweep"])
def test_a_sampler_that_a_method_would_ignore_is_refused(kind: str) -> None:
    ignoring: list[tuple[str, dict, str]] = [("fedbuff", {}, "uniform with fedbuff, which is asynchronous")]
    if kind != "proportional":
        ignoring += [
            (name, hyper, f"uniform or proportional with {name}, which chooses its cohorts itself")
            for name, hyper in (("fedcluster", {}), ("fedsc", {}), ("fedeff", {"slow": "skip"}))
        ]
    for name, hyper, accepted in ignoring:
        with refused(rf"^run\.sampling: '{kind}' is not accepted; expected {accepted}$"):
            prepare_run(name, TEN, hyper, sampling=kind)
    for name, hyper in (("fedbuff", {"concurrency": 0}), ("fedeff", {}), ("local", {})):
        prepare_run(name, TEN, hyper | ({"weighting": "uniform"} if name == "fedeff" else {}), sampling=kind)


def test_stragglers_that_are_dropped_count_for_the_smallest_cohort() -> None:
    dropping = {"epochs": 2, "batch_size": 4, "stragglers": 0.5, "drop_stragglers": True}
    with refused("run.min_cohort: 6 .*at most 5, the cohort at participation 1 without dropped stragglers"):
        prepare_run("fedavg", TEN, min_cohort=6, training=dropping)
    prepare_run("fedavg", TEN, min_cohort=5, training=dropping)
    krum = {"step": "krum", "attackers": 0.2}
    with refused("at least 2 f [+] 3 clients in a cohort; it has 1, of which f = 1 attack"):
        prepare_run("fedavg", TEN, updates=[krum], training=dropping | {"stragglers": 0.9})
