"""The client curriculum; that it runs on every method or is refused is tested in the battery."""

from dataclasses import replace
from itertools import combinations, pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import Ran, follow, images, prepare_run, quadratics, refused, run, same

from fedflow.data import Dataset
from fedflow.methods import build_method
from fedflow.methods.protocols import Cyclic
from fedflow.simulation.extensions.client_curriculum import ClientCurriculum, Pools
from fedflow.simulation.sampling import turns_of

TEN = quadratics([(1, b) for b in (4, 9, 1, 7, 3, 10, 2, 8, 5, 6)], range(1, 11), start=0.5)
PAIRS = (
    "0:20 20:22 42:24 66:26 92:29 121:32 153:35 188:38 226:42 268:46 314:51 365:56 421:62 483:68 551:75 "
    "626:82 708:90 798:99 897:100 997:100"
).split()
WORKED = [tuple(map(int, pair.split(":"))) for pair in PAIRS]
CC = {"sampling": "easy_first", "participation": 0.2, "rounds": 24}


def curriculum(**settings: Any) -> ClientCurriculum:
    return ClientCurriculum.parse(settings)


def pools(ran: Ran) -> list[tuple[int, list[int]]]:
    """The first round of every pool, and its clients."""
    found: list[tuple[int, list[int]]] = []
    for turn, report in zip(ran.simulation.extension(Pools).turns, ran.rounds):
        if turn.start == 0:
            found.append((report.round, []))
        found[-1][1].extend(report.cohort)
    return found


def test_pools_and_turns_are_the_worked_ones() -> None:
    """100 clients, 10 at a time, a budget of 1000: a turn for every rest, or the rest in the turn before."""
    found = list(takewhile(lambda pool: pool[0] < 1000, curriculum().pools(100, 1000)))
    assert found == WORKED
    sizes = [size for _, size in found]
    assert (sum(-(-size // 10) for size in sizes), sum(sizes)) == (118, 1097)
    assert sum(len(turns_of(size, 10)) for size in sizes) == 102
    assert [turns_of(size, 10) for size in (24, 3)] == [[(0, 10), (10, 24)], [(0, 3)]]


@pytest.mark.parametrize(
    ("settings", "length", "updates"),
    [({}, 100, 1077), ({"updates": 1000}, 93, 1000), ({"order": "vanilla"}, 100, 1000)],
)
def test_a_run_ends_after_its_rounds_or_its_updates(settings: dict, length: int, updates: int) -> None:
    turns = curriculum(**settings).turns(100, 10, 100)
    assert len(turns) == length and sum(turn.end - turn.start for turn in turns) == updates


def test_a_run_with_updates_has_exactly_these() -> None:
    ran = run("fedavg", TEN, **CC | {"rounds": 100}, client_curriculum={"updates": 50})
    settings, length = ran.simulation.settings, len(ran.rounds)
    assert length == settings.rounds == ran.simulation.job.rounds == ran.outcome().metrics["rounds"] < 25
    assert ran.values("updates") == np.cumsum([len(r.cohort) for r in ran.rounds]).tolist()
    assert ran.values("updates")[-1] == 50
    with refused(f"run.rounds: 5 is not accepted; expected at least {length} for 50 updates"):
        prepare_run("fedavg", TEN, **CC | {"rounds": 5}, client_curriculum={"updates": 50})


@pytest.mark.parametrize(("host", "order", "vectors"), [("fedavg", "curriculum", 1), ("scaffold", "anti", 2)])
def test_clients_of_a_pool_have_the_smallest_losses_and_take_part_once(
    host: str, order: str, vectors: int
) -> None:
    """Losses of client k under w: (w - b_k)^2 / 2, for 8 bytes down and 4 bytes up, also of SCAFFOLD."""
    times = [[1.0, 3.0 * k, 0.5] for k in range(10)]
    settings = CC | {"client_curriculum": {"order": order}, "timing": {"given": times}}
    ran = run(host, TEN, **settings)
    b = np.array([4, 9, 1, 7, 3, 10, 2, 8, 5, 6])
    for number, (first, members) in enumerate(found := pools(ran)):
        w = 0.5 if first == 1 else ran.server("model")[first - 2]
        losses = ran.rounds[first - 1].series["polled_loss"]
        assert losses == pytest.approx((w - b) ** 2 / 2)
        size = ran.rounds[first - 1].values["pool"]
        expected = sorted(np.argsort(losses if order == "curriculum" else -np.array(losses))[: int(size)])
        if number + 1 < len(found):
            assert sorted(members) == expected
        assert set(members) <= set(expected)
    polled = [first for first, _ in found]
    assert len(polled) > 5 and [r.round for r in ran.rounds if r.series] == polled
    assert ran.values("polls") == [sum(first <= t for first in polled) for t in range(1, 25)]
    assert ran.values("poll_bytes") == [120 * polls for polls in ran.values("polls")]
    updates, polls = np.array(ran.values("updates")), np.array(ran.values("polls"))
    assert ran.values("bytes_down") == (8 * vectors * updates + 80 * polls).tolist()
    assert ran.values("bytes_up") == (8 * vectors * updates + 40 * polls).tolist()
    waited = [1 + 3 * 9 / 3 + 0.5 if report.series else 0 for report in ran.rounds]  # for the slowest
    trained = [max(1.5 + 2 * 3.0 * k for k in report.cohort) for report in ran.rounds]
    assert ran.values("clock") == pytest.approx(np.cumsum(np.add(waited, trained)).tolist())


@pytest.mark.parametrize("neutral", [{"b": 1}, {"a": 0}, {"order": "vanilla", "score": "global"}])
@pytest.mark.parametrize("rate", [0.3, 1])
def test_a_pool_of_all_clients_is_a_sweep(neutral: dict, rate: float) -> None:
    settings: dict[str, Any] = {"participation": rate, "rounds": 7}
    swept = run("scaffold", TEN, **settings, sampling="sweep")
    ran = run("scaffold", TEN, **settings, sampling="easy_first", client_curriculum=neutral)
    assert same(ran.state(), swept.state()) and ran.outcome().metrics == swept.outcome().metrics
    for one, other in zip(ran.rounds, swept.rounds, strict=True):
        assert (one.cohort, one.series) == (other.cohort, {})
        assert one.values == other.values | {"pool": 10, "polls": 0, "poll_bytes": 0}


def expert(losses: Any) -> Any:
    """`TEN` with an expert's losses of every client's samples."""
    spread = np.repeat(losses, TEN.partition.sizes)
    return replace(
        TEN, inputs={"expert": torch.from_numpy(spread + np.random.default_rng(0).normal(0, 1e-3, 55))}
    )


@pytest.mark.parametrize(
    ("federation", "settings", "ranked"),
    [
        (expert(np.arange(10.0)), {"score": "expert", "expert": "x"}, list(range(10))),
        (expert(np.arange(10.0)), {"score": "expert", "expert": "x", "order": "anti"}, list(range(10))[::-1]),
        (quadratics([(1, 1)] * 10, [2] * 10), {}, None),  # equal losses
    ],
    ids=["expert", "expert, anti", "equal losses"],
)
def test_pools_of_a_fixed_order_are_nested(federation: Any, settings: dict, ranked: list | None) -> None:
    ran = run("fedavg", federation, **CC, client_curriculum=settings)
    sizes = [int(ran.rounds[first - 1].values["pool"]) for first, _ in pools(ran)]
    found = [sorted(members) for _, members in pools(ran)][:-1]  # the run may end inside the last
    assert all(set(one) <= set(other) for one, other in pairwise(found))
    if ranked:
        assert found == [sorted(ranked[:size]) for size in sizes[:-1]]
    else:
        assert found[0] != list(range(sizes[0]))
    assert (ran.values("polls")[-1] > 0) is (settings == {})


@pytest.mark.parametrize("score", [{}, {"score": "expert", "expert": "x"}])
def test_random_pools_are_new_and_nobody_is_asked(score: dict) -> None:
    ran = run("fedavg", TEN, **CC, client_curriculum={"order": "random", "pacing": "step"} | score)
    found = [sorted(members) for _, members in pools(ran)][:4]
    assert [len(members) for members in found] == [2] * 4 and len(set(map(tuple, found))) > 1
    assert ran.values("polls")[-1] == 0


def test_the_losses_of_models_that_diverged_are_the_largest() -> None:
    losses = np.array([2.0, np.nan, 1.0, 3.0])
    assert curriculum().ranked(losses, 4, 0, 0).tolist() == [2, 0, 3, 1]
    assert curriculum(order="anti").ranked(losses, 4, 0, 0).tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize("stop", [5, 8, 9])
def test_a_resume_inside_a_pool_ends_the_same(stop: int, tmp_path: Path) -> None:
    settings = CC | {"checkpoint_every": 1, "checkpoints": tmp_path}
    whole = run("scaffold", TEN, **CC, checkpoint_every=1)
    killed = iter(prepare_run("scaffold", TEN, **settings).rounds())
    for _ in range(stop):
        next(killed)
    resumed = follow(prepare_run("scaffold", TEN, **settings))
    assert same(resumed.state(), whole.state()) and [r.replayed for r in resumed.rounds].count(True) == stop
    for one, other in zip(resumed.rounds, whole.rounds, strict=True):
        assert (one.cohort, one.values, one.series) == (other.cohort, other.values, other.series)
    assert {whole.simulation.extension(Pools).turns[t].start > 0 for t in (5, 8, 9)} == {True, False}


@pytest.mark.filterwarnings("ignore:.*to reach all samples")
@pytest.mark.parametrize("host", ["fedavg", "scaffold"])
def test_curricula_of_clients_and_of_their_data_are_two_settings(host: str, digits: Dataset) -> None:
    """A data curriculum sends nothing; with a pool of all clients, it is all that is left."""
    federation, rounds = images(digits), {"participation": 0.25, "rounds": 6}
    sweep, easy = {"sampling": "sweep"}, {"sampling": "easy_first"}
    plain = {"epochs": 2, "batch_size": 8}
    data = plain | {"curriculum": {"b": 0.1}}
    neither, dc, cc, both, neutral = (
        run(host, federation, training=training, **rounds | clients)
        for training, clients in (
            (plain, sweep),
            (data, sweep),
            (plain, easy),
            (data, easy),
            (data, easy | {"client_curriculum": {"b": 1}}),
        )
    )
    for one, other in combinations((neither, dc, cc, both), 2):
        assert not same(one.state(), other.state())
    assert same(neutral.state(), dc.state())
    for traffic in ("bytes_down", "bytes_up", "poll_bytes"):
        assert both.values(traffic) == cc.values(traffic) and dc.values(traffic) == neither.values(traffic)


class Two(Cyclic, type(build_method("fedavg"))):  # type: ignore[misc]
    """FedAvg with two cohorts in a round."""

    name = "two"

    def cycles(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (
            "fedavg",
            {"sampling": "sweep", "client_curriculum": {}},
            "run.sampling: 'sweep' .* easy_first with run",
        ),
        ("fedavg", {"client_curriculum": {"b": 1.5}}, r"run.client_curriculum.b: 1.5 .*<= 1"),
        ("fedavg", {"client_curriculum": {"score": "local"}}, "client_curriculum.score: 'local' .*global"),
        ("fedavg", {"client_curriculum": {"score": "expert"}}, "expert: None .*a name of `central`"),
        ("fedavg", {"client_curriculum": {"expert": "x"}}, "expert: 'x' .*null, as score is global"),
        ("fedavg", {"client_curriculum": {"score": "expert", "expert": "x"}}, "expert: 'x' .*of `central`"),
        ("fedavg", {"min_cohort": 2}, "run.min_cohort: 2 .*at most 1, the smallest cohort"),
        (
            "fedavg",
            {"training": {"epochs": 2, "stragglers": 0.5, "drop_stragglers": True}},
            "training.drop_stragglers: [tT]rue .*false with run.sampling: easy_first",
        ),
        ("fedbuff", {}, "run.sampling: 'easy_first' .*expected uniform with fedbuff, which is asynchronous"),
        ("fedcluster", {}, "run.sampling: 'easy_first' .*uniform or proportional with fedcluster"),
        (Two.parse({}), {}, "run.sampling: 'easy_first' .*sweep with two, whose rounds have several cohorts"),
    ],
)
def test_what_it_cannot_do_is_refused(method: Any, settings: dict, message: str) -> None:
    small = {"rounds": 24, "participation": 0.1, "sampling": "easy_first"}
    with refused(message):
        prepare_run(method, TEN, **small | settings)


def test_a_run_that_ends_too_early_says_so() -> None:
    short: dict[str, Any] = {"sampling": "easy_first", "participation": 1.0, "rounds": 2}
    said = "^run.client_curriculum: the run ends when 3 of 10 clients are in the pool$"
    with pytest.warns(UserWarning, match=said):
        prepare_run("fedavg", TEN, **short)
