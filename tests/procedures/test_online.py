"""The protocol of online meta-learning on small streams: reductions, what is measured, memory, resuming."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from resuming import ends_alike
from safetensors.torch import load_file
from support import Quadratic, by_hand, consecutive, images, refused, same
from torch import Tensor

from fedflow.data import Dataset, Examples
from fedflow.errors import FedflowError
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.procedures import End, Findings, Row, State, World
from fedflow.procedures.online import Online, accuracy, procedure
from fedflow.procedures.online.learners import BMOML, MOML
from fedflow.simulation.federation import Federation

SMALL: dict[str, Any] = {
    "partition": "tasks",
    "gradient_steps": [3],
    "adaptation_steps": [1],
    "alpha": [1.0],
    "evaluate_every": None,
}
BUFFERS = {
    "last": {"learner": "bmoml", "buffer": 2},
    "random": {"learner": "bmoml", "buffer": 2, "policy": "random_replace"},
    "coin": {"learner": "bmoml", "buffer": 2, "policy": "fifo_coin", "accept": 0.5},
    "averaged": {"learner": "bmoml", "buffer": 2, "states": "averaged_states"},
}


class Free(MOML):
    """MOML without its regularizer."""

    def pull(self, now: State, alpha: float, w: Tensor) -> Tensor | float:
        return 0.0


class FreeBuffer(BMOML):
    """B-MOML without its regularizer."""

    def pull(self, now: State, alpha: float, w: Tensor) -> Tensor | float:
        return 0.0


class Walk:
    """All parts of a procedure, step by step, in this process."""

    def __init__(
        self, federation: Federation, learners: Mapping[str, Any], seed: int = 0, **more: Any
    ) -> None:
        self.procedure = Online(**{**SMALL, "learners": dict(learners), **more})
        self.federation = federation
        world = World(seed, torch.device("cpu"), {}, {"tasks": federation}, {}, {})
        self.stream = self.procedure.open(world)
        self.states = {p: [self.procedure.start(self.stream, p)] for p in self.procedure.parts(self.stream)}
        self.rows: dict[str, list[Row]] = {part: [] for part in self.states}

    def step(self, number: int) -> None:
        for part, states in self.states.items():
            state, row = self.procedure.step(self.stream, part, states[-1], number)
            states.append(state)
            self.rows[part].append(row)

    def all(self) -> "Walk":
        for number in range(1, len(self.stream.tasks) + 1):
            self.step(number)
        return self

    def of(self, learner: str) -> list[State]:
        """The states of a learner with one expert."""
        (states,) = (self.states[p] for p, e in self.procedure.experts.items() if e.entry == learner)
        return states

    def column(self, learner: str, name: str) -> list[float]:
        (rows,) = (self.rows[p] for p, e in self.procedure.experts.items() if e.entry == learner)
        return [row[name] for row in rows]

    def findings(self) -> Findings:
        ends = {
            part: End(states[-1], pd.DataFrame(self.rows[part], index=range(1, len(states))))
            for part, states in self.states.items()
        }
        return self.procedure.finish(self.stream, ends)


@pytest.fixture
def tasks(digits: Dataset) -> Federation:
    """Five tasks of unequal size; some have a single batch. Each has its own samples."""
    return images(digits, sizes=(30, 12, 25, 40, 8))


def equal(walk: Walk, one: str, other: str, *names: str) -> bool:
    pairs = zip(walk.of(one), walk.of(other), strict=True)
    return all(same({n: a[n] for n in names}, {n: b[n] for n in names}) for a, b in pairs)


def test_reductions_hold_bit_for_bit(tasks: Federation) -> None:
    everything = {"learner": "bmoml", "buffer": 5}
    walk = Walk(
        tasks,
        {
            "mogd": {},
            "free": Free(),
            "ftml": {},
            "buffered": FreeBuffer(buffer=5),
            "moml": {},
            "one": {"learner": "bmoml", "buffer": 1},
            **BUFFERS,
            "always": {**everything, "buffer": 2, "policy": "fifo_coin", "accept": 1.0},
        },
    ).all()
    assert equal(walk, "mogd", "free", "w")
    assert equal(walk, "moml", "one", "w", "center", "linear", "memory")
    assert equal(walk, "ftml", "buffered", "w", "memory")
    assert equal(walk, "last", "always", "w", "memory")
    assert torch.equal(walk.of("ftml")[1]["w"], walk.of("mogd")[1]["w"])
    different = "mogd", "ftml", "moml", "last", "random", "coin", "averaged"
    assert len({tuple(walk.of(name)[-1]["w"].tolist()) for name in different}) == len(different)


def test_what_buffers_keep(tasks: Federation) -> None:
    walk = Walk(tasks, {"fs": {}, "toe": {}, "mogd": {}, **BUFFERS}).all()
    kept = {
        name: [s["memory"].tolist() for s in walk.of(name)[1:]] for name in ("fs", "toe", "mogd", *BUFFERS)
    }
    assert kept["fs"] == [[]] * 5
    assert kept["mogd"] == [[1], [2], [3], [4], [5]]
    assert kept["toe"][-1] == [1, 2, 3, 4, 5]
    assert kept["last"] == kept["averaged"] == [[1], [1, 2], [2, 3], [3, 4], [4, 5]]
    for t, memory in enumerate(kept["random"][2:], 3):
        assert t in memory and len(memory) == 2
    for before, memory in zip(kept["coin"][1:], kept["coin"][2:]):
        assert memory == before or memory[0] == before[1]


def test_learners_read_only_their_memory(tasks: Federation) -> None:
    names = {"fs": {}, "mogd": {}, "moml_proximal": {}, "moml": {}, "ftml": {}, "toe": {}, **BUFFERS}
    clean = Walk(tasks, names).all()

    def spoilt(names: Mapping[str, Any], keep: int) -> Walk:
        """Before every task, the inputs of all but the last ``keep`` tasks are lost."""
        train = Examples(tasks.train.x.clone(), tasks.train.y)
        walk = Walk(replace(tasks, train=train), names)
        for number in range(1, 6):
            for earlier in walk.stream.tasks[: max(0, number - keep)]:
                train.x[earlier.train.rows] = torch.nan
            walk.step(number)
        return walk

    for name in ("fs", "mogd", "moml_proximal", "moml"):
        assert all(map(same, spoilt({name: {}}, 1).of(name), clean.of(name)))
    for name in ("last", "averaged"):
        assert all(map(same, spoilt({name: BUFFERS[name]}, 2).of(name), clean.of(name)))
    for name in ("ftml", "toe"):
        with refused("the model is not finite", FedflowError):
            spoilt({name: {}}, 1)


def test_current_task_is_evaluated_before_training(tasks: Federation) -> None:
    learners = {"fs": {}, "mogd": {}, "ftml": {}, "moml": {}, "toe": {}, **BUFFERS}
    walk = Walk(tasks, learners, evaluate_every=2).all()
    changed = 0
    for expert in walk.procedure.experts.values():
        states, ctm, ltm = walk.of(expert.entry), *(walk.column(expert.entry, n) for n in ("ctm", "ltm"))

        def test(t: int, state: State) -> float:
            return accuracy(tasks.model, walk.stream.tasks[t - 1], state["w"], expert, 3.0)  # noqa: B023

        for t, value in enumerate(ctm, 1):
            before, after = test(t, states[t - 1]), test(t, states[t])
            assert value == (after if expert.entry == "toe" else before)
            changed += before != after
        for t, value in enumerate(ltm, 1):
            seen = np.mean([test(i, states[t]) for i in range(1, t + 1)])
            assert np.isnan(value) if t in (1, 3) else value == pytest.approx(seen)
    assert changed > 10


def test_a_model_that_never_changes_is_measured_once_on_each_task(
    tasks: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five tasks, LTM after each: fs measures 5 times, a learner that trains 5 + 1 + 2 + .. + 5 times."""
    measured: list[str] = []

    def counted(model: Any, task: Any, w: Any, expert: Any, *more: Any) -> float:
        measured.append(expert.entry)
        return accuracy(model, task, w, expert, *more)

    monkeypatch.setattr(procedure, "accuracy", counted)
    Walk(tasks, {"fs": {}, "mogd": {}}, evaluate_every=1).all()
    assert (measured.count("fs"), measured.count("mogd")) == (5, 20)


def test_memory_is_exact(digits: Dataset) -> None:
    names = {"fs": {}, "toe": {}, "mogd": {}, "ftml": {}, "moml_proximal": {}, "moml": {}, **BUFFERS}
    walk = Walk(images(digits, sizes=(10,) * 5), names).all()
    d, task, t = walk.stream.model.size, 10 * 64, np.arange(1, 6)
    expected = {
        "fs": d + 0 * t,
        "toe": 2 * d + t * task,
        "mogd": d + task + 0 * t,
        "ftml": d + t * task,
        "moml_proximal": 2 * d + task + 0 * t,
        "moml": 3 * d + task + 0 * t,
        **dict.fromkeys(("last", "random", "coin"), 3 * d + np.minimum(t, 2) * task),
        "averaged": (3 + np.minimum(t, 2)) * d + np.minimum(t, 2) * task,
    }
    for name, floats in expected.items():
        assert walk.column(name, "floats") == floats.tolist(), name


def test_memory_of_moml_is_that_of_seven_tasks_of_s_mnist() -> None:
    x = torch.randn(120, 784)
    examples = Examples(x, torch.arange(120) % 10)
    model = FlatModel(partial(build, "mlp", (784,), 10, hidden=(200,)))
    federation = Federation(model, examples, examples, consecutive([60, 60]))
    walk = Walk(federation, {"mogd": {}, "ftml": {}, "moml": {}}, gradient_steps=[1]).all()
    one, two = walk.column("ftml", "floats")
    more = walk.column("moml", "floats")[0] - walk.column("mogd", "floats")[0]
    assert (model.size, two - one) == (159_010, 47_040)
    assert more / (two - one) == pytest.approx(6.8, abs=0.05)


def test_efficiency_is_the_smallest_subset_that_reaches_the_threshold() -> None:
    # F = 1 / 2 (w - c)^2 from w = 0.5; a step of 0.5 halves the distance; a hit has a loss below 1.
    federation = by_hand(partial(Quadratic, 0.5), ((1, 0.6), (1, 2.5), (1, 5)), [4, 4, 4])
    walk = Walk(
        federation, {"fs": {}}, clip_norm=None, adaptation_lr=[0.5], subset_sizes=[0, 1, 3], threshold=1.0
    ).all()
    assert walk.column("fs", "needed") == [0, 1, 3] and walk.column("fs", "failed") == [0, 0, 1]
    assert walk.column("fs", "ctm") == [1, 1, 0]
    summary = walk.findings().summary["fs"]
    assert summary["efficiency"] == pytest.approx(4 / 3) and summary["failures"] == 1
    assert summary["ltm"] is None


def test_a_step_cuts_the_sum_of_gradients() -> None:
    # F = 1 / 2 (w - 5)^2 from w = 0.5, without adaptation: gradients -4.5 and alpha (w - 0.5).
    federation = by_hand(partial(Quadratic, 0.5), ((1, 5),), [4])
    walk = Walk(
        federation,
        {"moml": {}},
        gradient_steps=[2],
        adaptation_steps=[0],
        lr=0.2,
        weight_decay=0.1,
        alpha=[6.0],
    ).all()
    first = 0.5 - 0.2 * (-3 + 0.1 * 0.5)  # -4.5 is cut to -3
    second = first - 0.2 * ((first - 5) + 6 * (first - 0.5) + 0.1 * first)
    assert walk.of("moml")[-1]["w"].item() == pytest.approx(second)
    assert walk.of("moml")[-1]["linear"].item() == pytest.approx(-6 * (second - 0.5))


def test_findings_combine_experts_of_a_learner(tasks: Federation) -> None:
    grid = {"adaptation_steps": [0, 2], "adaptation_lr": [0.1, 0.3], "evaluate_every": 2}
    learners = {"fs": {}, "moml": {"alpha": [0.5, 1.0, 2.0], "adaptation_steps": [1]}}
    with pytest.warns(UserWarning, match="^online: fs: adaptation_steps: 0 has no adaptation_lr"):
        walk = Walk(tasks, learners, **grid).all()
    found = walk.findings()
    experts, whole = found.tables["experts"], found.tables["learners"]
    assert experts.groupby("learner").size().to_dict() == {"fs": 3, "moml": 6}
    for metric in ("ctm", "ltm"):
        assert experts.groupby("learner")[f"weight_{metric}"].sum().tolist() == pytest.approx([1, 1])
    first = whole[whole["task"] == 1].set_index("learner")
    parts = {
        name: [p for p, e in walk.procedure.experts.items() if e.entry == name] for name in ("fs", "moml")
    }
    for name, own in parts.items():  # equal weights at first
        assert first.loc[name, "ctm"] == pytest.approx(np.mean([walk.rows[part][0]["ctm"] for part in own]))
        best = experts[(experts["learner"] == name) & experts["model"]]["expert"].item()
        assert torch.equal(found.vectors[name], walk.states[best][-1]["w"])
        assert found.summary[name]["ltm"] == whole[whole["learner"] == name]["ltm"].iloc[-1]
    assert [d.name for d in found.drawings] == ["online-ctm", "online-ltm", "online-memory"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learners": {"momel": {}}}, "procedures.learners.momel: .*did you mean 'moml'"),
        ({"learners": {"a": {"learner": "b"}}}, "learners.a.learner: 'b'"),
        ({"learners": {}}, "at least one learner"),
        ({"learners": {"bmoml": {"buffer": 0}}}, "learners.bmoml.buffer: 0 .* whole number >= 1"),
        ({"learners": {"bmoml": {"policy": "fifo_coin"}}}, "learners.bmoml.accept: None .* with fifo_coin"),
        ({"learners": {"bmoml": {"accept": 0.5}}}, "learners.bmoml.accept: 0.5 .* null without fifo_coin"),
        ({"learners": {"moml": {"buffer": 3}}}, "learners.moml.buffer"),
        ({"learners": {"mogd": {"alpha": [1.0]}}}, "learners.mogd.alpha: .* no regularizer"),
        (
            {"learners": {"fs": {"gradient_steps": [3]}}},
            "learners.fs.gradient_steps: .* null: fs never trains",
        ),
        ({"learners": {"moml": {"alpha": []}}}, "learners.moml.alpha: .* one or more different"),
        ({"alpha": [0.0]}, r"alpha\[0\]: 0.0 .* > 0"),
        ({"gradient_steps": [5, 5]}, "gradient_steps: .* different"),
        ({"subset_sizes": [3, 0]}, "subset_sizes: .* increasing"),
        ({"subset_sizes": [0, 10]}, "subset_sizes: .* up to 8, .* smallest task"),
        ({"tasks": 6}, "tasks: 6 .* at most 5"),
    ],
)
def test_settings_that_do_not_fit(tasks: Federation, changes: dict[str, Any], message: str) -> None:
    with refused(message):
        Walk(tasks, **{"learners": {"moml": {}}, **changes})


@pytest.mark.parametrize(("train", "test"), [(1, 2), (0, 2), (5, 0)])
def test_tasks_without_query_or_test_samples_are_refused(tasks: Federation, train: int, test: int) -> None:
    rows = [np.arange(10), np.arange(10, 10 + train)]
    pools = [np.arange(2), np.arange(2, 2 + test)]
    partition = Partition.from_lists(rows, pools, [np.array([0]), np.array([1])])
    with refused(f"partition: 'tasks' .* client 1 has {train} and {test}"):
        Walk(replace(tasks, partition=partition), {"fs": {}})


PARAMS = """
data: {digits: {source: digits}}
models: {digits: {name: mlp, options: {hidden: [8]}}}
partitions: {tasks: {dataset: digits, scheme: shards, clients: 4, shards_per_client: 2, seed: 0}}
procedures:
  online:
    partition: tasks
    gradient_steps: [2]
    adaptation_steps: [1]
    evaluate_every: 2
    subset_sizes: [0, 20]
    learners: {fs: {}, toe: {}, ftml: {}, moml: {}, bmoml: {buffer: 2, policy: random_replace, alpha: [1]}}
grid: {datasets: [digits], partitions: [tasks], methods: [fedavg], seeds: [0], procedures: [online]}
engine: {executor: inline, device: cpu}
"""


def test_runs_that_resume_between_two_tasks_and_any_number_of_workers_end_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = ends_alike(tmp_path, PARAMS, "online", monkeypatch, interrupt=12, total=24)  # two of four tasks
    pictures = {path.name for path in (done / "pictures").iterdir()}
    assert {"online-ctm.svg", "online-ltm.svg", "online-efficiency.svg", "online-memory.svg"} <= pictures
    vectors = load_file(done / "vectors.safetensors")
    assert vectors.keys() == {"fs", "toe", "ftml", "moml", "bmoml"}
    model = FlatModel(partial(build, "mlp", (1, 8, 8), 10, hidden=(8,)))
    assert model.to_module(vectors["moml"])(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def prototypes(count: int, side: int = 12, noise: float = 2.5) -> Federation:
    """Ten classes of noisy images; in every task each class is rotated and flipped in its own way."""
    rng = np.random.default_rng(0)
    classes, images_of = rng.normal(size=(10, side, side)), []
    labels = np.tile(np.arange(10), 12)  # 60 for training, 60 for testing
    for _ in range(count):
        turned = [np.rot90(c, rng.integers(4)) for c in classes]
        turned = [c[:, ::-1] if rng.random() < 0.5 else c for c in turned]
        images_of.append(np.stack(turned)[labels] + noise * rng.normal(size=(120, side, side)))
    x = torch.from_numpy(np.stack(images_of)).float().reshape(count, 2, -1, side * side)
    y = torch.from_numpy(labels[:60]).repeat(count)
    train, test = (Examples(x[:, i].reshape(-1, side * side), y) for i in (0, 1))
    model = FlatModel(partial(build, "mlp", (side * side,), 10, hidden=(50,)))
    return Federation(model, train, test, consecutive([60] * count))


def test_meta_learners_are_above_toe_and_fs() -> None:
    walk = Walk(
        prototypes(40),
        {"fs": {}, "toe": {}, "mogd": {}, "moml": {}},
        gradient_steps=[10],
        adaptation_steps=[2],
        adaptation_lr=[0.2],
        evaluate_every=40,
    ).all()
    got = walk.findings().summary
    for metric in ("ctm", "ltm"):
        value = {name: values[metric] or 0.0 for name, values in got.items()}
        assert max(value["fs"], value["toe"]) < min(value["mogd"], value["moml"]) - 0.03  # claim 1
    fs = walk.column("fs", "ctm")
    assert np.mean(fs[:20]) == pytest.approx(np.mean(fs[20:]), abs=0.05)  # flat


@pytest.mark.slow
def test_ftml_is_above_mogd_most_in_ltm() -> None:
    """Mean over seeds: with one, the order of both gains is chance."""
    gains = []
    for seed in range(5):
        walk = Walk(
            prototypes(50),
            {"mogd": {}, "ftml": {}},
            seed,
            gradient_steps=[20],
            adaptation_lr=[0.2],
            lr=0.3,
            evaluate_every=50,
        ).all()
        mogd, ftml = (walk.findings().summary[name] for name in ("mogd", "ftml"))
        gains.append([(ftml[metric] or 0.0) - (mogd[metric] or 0.0) for metric in ("ctm", "ltm")])
    ctm, ltm = np.mean(gains, 0)
    assert ltm > ctm > 0  # claim 2
