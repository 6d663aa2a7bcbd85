"""Data curricula: the worked schedules, scores and orders, and the samples that local steps see."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import follow, images, one_client, prepare_run, refused, run
from torch import Tensor

from fedflow.data import Dataset
from fedflow.local.client import Client
from fedflow.local.drawing import draw_schedule
from fedflow.local.extensions.curriculum import SCORES, Curriculum, normalized
from fedflow.local.local_training import LocalTraining
from fedflow.local.samples import Batch, Samples
from fedflow.local.schedule import Schedule, pad_schedules
from fedflow.local.task import Task
from fedflow.simulation.federation import Federation

LOSSES = torch.tensor([0.1, 0.5, 2.0, 1.0])


def pairs(text: str) -> list[tuple[int, int]]:
    """Pairs of numbers, written as "0:20 20:22"."""
    return [(int(first), int(second)) for first, second in (pair.split(":") for pair in text.split())]


QUEUE = pairs(
    "0:100 10:110 21:121 34:134 48:148 63:163 80:180 98:198 118:218 140:240 164:264 191:291 221:321 254:354 "
    "290:390 329:429 372:472 420:500 470:500"
)
LAZY = pairs(
    "0:100 10:109 21:120 33:132 47:146 62:160 78:176 96:194 116:213 138:235 162:258 188:284 217:312 249:344 "
    "284:378 322:415 364:456 410:500 460:500"
)


def training(curriculum: dict[str, Any], **more: Any) -> LocalTraining:
    return LocalTraining.parse({"epochs": 10, "batch_size": 10, "curriculum": curriculum} | more)


# The worked schedules: 500 samples, 10 epochs, batches of 10


@pytest.mark.parametrize(("mode", "expected"), [("queue", QUEUE), ("lazy_epoch", LAZY)])
def test_worked_passes(mode: str, expected: list[tuple[int, int]]) -> None:
    passes = training({"mode": mode}).passes(500, 10)
    starts = itertools.accumulate((each.steps for each in passes), initial=0)
    assert list(zip(starts, (each.prefix for each in passes))) == expected


@pytest.mark.parametrize(
    ("curriculum", "steps", "samples"),
    [
        ({}, 500, 4933),
        ({"pacing": "step"}, 500, 5000),
        ({"pacing": "quadratic"}, 500, 4912),
        ({"pacing": "root"}, 500, 4944),
        ({"pacing": "exponential"}, 500, 4903),
        ({"order": "vanilla"}, 500, 5000),
        ({"mode": "lazy_epoch"}, 510, 5032),
        ({"mode": "lazy_epoch", "pacing": "quadratic"}, 513, None),
        ({"mode": "lazy_epoch", "pacing": "root"}, 514, None),
        ({"mode": "lazy_epoch", "pacing": "step"}, 510, None),
        ({"mode": "lazy_epoch", "pacing": "exponential"}, 543, None),
        ({"mode": "lazy_epoch", "b": 0.0025, "least": 32}, 556, None),
        ({"mode": "lazy_epoch", "order": "vanilla"}, 550, 5500),
        ({"mode": "per_step"}, 500, 5000),
    ],
)
def test_worked_totals(curriculum: dict[str, Any], steps: int, samples: int | None) -> None:
    load = training(curriculum).workload(500)
    assert load == (steps, samples or load.samples)


def test_smallest_prefixes() -> None:
    def prefixes(least: int) -> list[int]:
        return [each.prefix for each in training({"b": 0.0025, "least": least}).passes(500, 10)]

    assert prefixes(1)[:6] == [1, 2, 3, 4, 6, 7]
    assert prefixes(32)[0] == 32
    assert training({"b": 0, "least": 32}).passes(20, 10) == training({"b": 1}).passes(20, 10)


@pytest.mark.parametrize("mode", ["queue", "per_step"])
def test_a_number_of_steps_is_the_budget(mode: str) -> None:
    passes = training({"mode": mode}, epochs=1, steps=500).passes(500, 1)
    assert passes == training({"mode": mode}).passes(500, 10)


# Scores and orders


def test_scores_and_order_of_worked_losses() -> None:
    expected = torch.tensor([0.7407, 0.1481, 0.0370, 0.0741])
    torch.testing.assert_close(normalized(LOSSES), expected, rtol=0, atol=5e-5)
    assert order(LOSSES) == [0, 1, 3, 2]
    assert normalized(torch.tensor([0.0, 1.0])).isfinite().all()


def order(difficulty: Tensor, ties: Sequence[int] | None = None, **curriculum: Any) -> list[int]:
    places = torch.tensor(range(len(difficulty)) if ties is None else ties)
    return Curriculum(**curriculum).sorted(difficulty, places).tolist()


def test_orders() -> None:
    for change in (torch.exp, torch.log, lambda x: 3 * x - 1, lambda x: -normalized(x)):
        assert order(change(LOSSES)) == order(LOSSES)
    assert order(LOSSES, order="anti") == order(-LOSSES) == order(LOSSES)[::-1]


@pytest.mark.parametrize("direction", ["curriculum", "anti"])
def test_padding_and_diverged_losses_are_last(direction: str) -> None:
    nan, inf = torch.nan, torch.inf
    assert order(torch.tensor([1.0, 1.0, nan, nan]), [1, 0, 2, 3], order=direction) == [1, 0, 2, 3]
    assert set(order(torch.tensor([nan, inf, nan]), [1, 0, 2], order=direction)[:2]) == {0, 1}


def test_ties() -> None:
    def drawn(**curriculum: Any) -> list[int]:
        schedule = draw_schedule(training(curriculum), 30, 1, 0, "batches", 1, 0)
        return schedule.extra["ties"].values.tolist()

    places = list(range(30))
    assert sorted(drawn()) == places != drawn() == drawn(order="anti")
    assert drawn(ties="stable") == places
    mistakes = torch.tensor([1.0, 0, 1, 0])
    easy = order(mistakes, drawn(ties="stable")[:4])
    assert easy == [1, 3, 0, 2]
    assert order(mistakes, [3, 2, 1, 0], order="anti") == easy[::-1]  # the whole list is reversed
    assert drawn(ties="stable", order="anti") == places[::-1]
    assert drawn(ties="stable", order="random") == drawn(order="random")


# What local steps see


@pytest.fixture(scope="module")
def federation(digits: Dataset) -> Federation:
    found = images(digits, (23, 40), dtype=torch.float64)
    expert = torch.linspace(5, 1, len(found.train.y), dtype=torch.float64)
    return replace(found, inputs={"expert": expert})


def padded(federation: Federation, settings: LocalTraining, k: int, samples: int) -> Client:
    """Client k, padded to ``samples`` samples as in a cohort."""
    own = torch.as_tensor(federation.partition.train(k))
    both = [draw_schedule(settings, n, settings.epochs, 0, "batches", 1, k) for n in (len(own), samples)]
    schedule = Schedule.of_cohort(
        {name: t[0] for name, t in pad_schedules(both, samples=samples + 9).items()}
    )
    index = torch.nn.functional.pad(own, (0, samples + 9 - len(own)))
    data = Samples(federation.train, index, torch.arange(samples + 9) < len(own))
    task = Task(federation.model, settings, settings.lr, vmapped=True, inputs=federation.inputs)
    return Client(task, data, {"batches": schedule}, {}, {})


def seen(ours: Client, start: Tensor) -> list[list[int]]:
    """The places of the samples of every step."""
    batches: list[list[int]] = []

    def step(now: tuple[tuple[Tensor]], batch: Batch) -> tuple[tuple[tuple[Tensor]], Tensor]:
        assert batch.positions is not None
        real = batch.positions if batch.mask is None else batch.positions[batch.mask]
        batches.append(real.tolist())
        return now, torch.zeros(())

    ours.run_steps(step, ((start,),))
    return [batch for batch in batches if batch]


@pytest.mark.parametrize("mode", ["queue", "per_step", "lazy_epoch"])
@pytest.mark.parametrize("direction", ["curriculum", "anti", "random"])
def test_batches_come_from_a_growing_prefix(federation: Federation, direction: str, mode: str) -> None:
    settings = training({"mode": mode, "order": direction}, epochs=6, batch_size=5)
    ours, w = one_client(federation, 0, settings), federation.model.init(3)
    batches = seen(ours, w)
    ties = draw_schedule(settings, 23, 6, 0, "batches", 1, 0).extra["ties"].values
    expected = ours.losses(w).argsort(descending=direction == "anti") if direction != "random" else ties
    passes = settings.passes(23, 6)
    left, reached = iter(batches), 0
    for prefix, steps in passes:
        of_pass = [place for batch in itertools.islice(left, steps) for place in batch]
        assert len(of_pass) == len(set(of_pass)) == min(prefix, 5 * steps)
        assert set(of_pass) <= set(expected[:prefix].tolist())
        assert prefix >= reached
        reached = prefix
    assert not list(left) and reached == 23
    assert mode == "per_step" or set(itertools.chain(*batches)) == set(range(23))
    if direction == "random":
        assert "difficulty" not in ours.records
    else:
        assert float(ours.records["difficulty"]) == pytest.approx(float(ours.full_loss(w)))
    assert seen(padded(federation, settings, 0, 40), w) == batches


@pytest.mark.parametrize("score", SCORES)
def test_scores(federation: Federation, score: str) -> None:
    """Ascending from easy to hard, and the same with padding."""
    given = {"expert": "large"} if score == "expert" else {}
    settings = training({"score": score, **given})
    curriculum = settings.curriculum
    assert curriculum is not None
    ours, wide = one_client(federation, 1, settings), padded(federation, settings, 1, 50)
    start, last = federation.model.init(1), federation.model.init(2)
    first = curriculum.difficulty(ours, start)
    ours.last = wide.last = last
    found = curriculum.difficulty(ours, start)
    torch.testing.assert_close(curriculum.difficulty(wide, start)[:40], found, rtol=0, atol=1e-12)
    assert curriculum.difficulty(wide, start)[40:].isnan().all()
    rows = torch.as_tensor(federation.partition.train(1))
    x, y = federation.train.inputs(rows, torch.float64), federation.train.targets(rows)
    one, other = (federation.model.outputs(w, x) for w in (start, last))
    l_one, l_other = (federation.model.losses(outputs, y) for outputs in (one, other))
    wrong, wrong_other = ((outputs.argmax(-1) != y).double() for outputs in (one, other))
    expected = {
        "global": l_one,
        "local": l_other,
        "both": (l_one + l_other) / 2,
        "global_pred": wrong,
        "local_pred": wrong_other,
        "both_pred": (one.argmax(-1) != other.argmax(-1)).double(),
        "expert": federation.inputs["expert"][rows],
    }
    torch.testing.assert_close(found, expected[score], rtol=0, atol=1e-12)
    # A client that never took part has trained no model yet.
    at_first = {"local": l_one, "both": l_one, "local_pred": wrong, "both_pred": 0 * wrong}
    torch.testing.assert_close(first, (expected | at_first)[score], rtol=0, atol=1e-12)
    ours.last = start
    torch.testing.assert_close(curriculum.difficulty(ours, start), first, rtol=0, atol=0)
    if score == "both_pred":
        ours.last = last
        mistakes = replace(curriculum, reading="mistakes").difficulty(ours, start)
        assert torch.equal(2 * mistakes, wrong + wrong_other)


def test_the_local_score_has_the_model_of_the_last_participation(federation: Federation, cohort: str) -> None:
    """None for clients that never took part, in one round with those that did."""
    held: list[tuple[int, Tensor | None]] = []

    class Spied(Curriculum):
        def difficulty(self, trainer: Any, start: Tensor) -> Tensor:
            held.append((len(trainer.own.rows), trainer.last))
            return super().difficulty(trainer, start)

    settings = {"epochs": 4, "batch_size": 5, "curriculum": Spied(score="local")}
    simulation = prepare_run(
        "fedavg", federation, training=settings, sampling="sweep", participation=0.5, rounds=4, cohort=cohort
    )
    ran = follow(simulation)
    assert [last is None for _, last in held] == [True, True, False, False]
    assert ran.rounds[0].cohort != ran.rounds[1].cohort
    if cohort == "loop":
        for (_, last), report in zip(held[2:], ran.rounds[2:]):
            (k,) = report.cohort
            earlier = next(at for at in (0, 1) if ran.rounds[at].cohort == [k])
            assert torch.equal(last, ran.clients[earlier]["trained"][k])
    assert not torch.equal(*ran.clients[-1]["trained"])
    difficulty = ran.values("client/difficulty/mean")
    assert len(difficulty) == 4 and all(value > 0 for value in difficulty)


# Bad input


@pytest.mark.parametrize(
    ("curriculum", "more", "message"),
    [
        ({"a": 1.5}, {}, r"^training\.curriculum\.a: 1\.5 .*<= 1"),
        ({"score": "expert"}, {}, r"^training\.curriculum\.expert: "),
        ({"expert": "large"}, {}, r"^training\.curriculum\.expert: .*null, as score is global"),
        ({"reading": "mistakes"}, {}, r"^training\.curriculum\.reading: .*disagreement, as score is global"),
        ({"mode": "lazy_epoch"}, {"batch_size": 0}, r"^training\.curriculum\.mode: .*batch_size 0$"),
        ({"mode": "lazy_epoch"}, {"steps": 7, "epochs": 1}, r"^training\.curriculum\.mode: .*steps$"),
        ({"order": "easy"}, {}, r"^training\.curriculum\.order: "),
    ],
)
def test_settings_that_are_refused(curriculum: dict[str, Any], more: dict[str, Any], message: str) -> None:
    with refused(message):
        training(curriculum, **more)


@pytest.mark.parametrize("name", ["fedsgd", "qfedsgd"])
def test_methods_without_batches_refuse_a_curriculum(name: str, federation: Federation) -> None:
    with refused(
        rf"^training\.curriculum: a mapping is not accepted; expected null with {name}, which trains on"
    ):
        prepare_run(name, federation, training={"curriculum": {}})


def test_an_expert_must_be_known(federation: Federation) -> None:
    settings = {"curriculum": {"score": "expert", "expert": "large"}}
    prepare_run("fedavg", federation, training=settings | {"epochs": 10})
    with refused(r"^training\.curriculum\.expert: "):
        prepare_run("fedavg", replace(federation, inputs={}), training=settings)
    unused = {"curriculum": settings["curriculum"] | {"order": "random"}, "epochs": 10}
    run("fedavg", replace(federation, inputs={}), training=unused, rounds=1)


def test_a_run_too_short_to_reach_all_samples_says_so(federation: Federation) -> None:
    with pytest.warns(UserWarning, match="fedavg: the curriculum of 2 of 2 clients has too few local steps"):
        prepare_run("fedavg", federation, training={"epochs": 1, "batch_size": 5, "curriculum": {}})
