"""The toys of DiSK: exact accuracies, one stack of students against each alone, reductions, files."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from command import make_project
from safetensors.torch import load, save
from support import refused
from torch import Tensor

from fedflow.config import load_params
from fedflow.errors import FedflowError
from fedflow.procedures import End, Findings, State, World
from fedflow.procedures.toys import Gaussians, Intervals, stacks
from fedflow.procedures.toys.intervals import MINIMA, Interval, draw, expected_accuracy
from fedflow.procedures.toys.toy import PARTS, Toy, ToyTask
from fedflow.seeding import generator
from fedflow.stages import steps
from fedflow.stages.procedure import ProcedureRun, run_procedure

SMALL: dict[str, Any] = {"restarts": 3, "epochs": 2, "inner_epochs": 2, "samples": 60, "batch_size": 20}
TOYS: dict[str, Callable[..., Toy]] = {
    "intervals": lambda **options: Intervals(**(SMALL | options)),
    "gaussians": lambda **options: Gaussians(**(SMALL | {"teacher_epochs": 5} | options)),
}


def opened(toy: Toy, seed: int = 0) -> ToyTask:
    return toy.open(World(seed, torch.device("cpu"), {}, {}, {}, {}))


def after(toy: Toy, task: ToyTask, part: str, state: State | None = None) -> State:
    """The state after all steps, or the one step after ``state``."""
    for number in range(1, 1 + (toy.epochs if state is None else 1)):
        state, _ = toy.step(task, part, toy.start(task, part) if state is None else state, number)
    assert state is not None
    return state


def found(toy: Toy, parts: tuple[str, ...]) -> Findings:
    task = opened(toy)
    return toy.finish(task, {part: End(after(toy, task, part), pd.DataFrame()) for part in parts})


def test_expected_accuracies_of_the_three_minima_are_exact() -> None:
    assert {name: expected_accuracy(*ends) for name, ends in MINIMA.items()} == pytest.approx(
        {"a": 2 / 3, "b": 5 / 6, "c": 5 / 6}, abs=1e-12
    )
    assert expected_accuracy(4, 4) == expected_accuracy(4, 3) == expected_accuracy(0, 9) == 0.5


@pytest.mark.parametrize("ends", MINIMA.values(), ids=str)
def test_students_at_the_minima_have_their_expected_accuracies(ends: tuple[float, float]) -> None:
    x, y = draw(30_000, generator(0, "test"))
    assert y.double().mean() == 0.5 and x.min() >= 0 and x.max() <= 9
    student = Interval(kappa=50.0, scale=4.0)
    student.ends.data = torch.tensor(ends)
    hits = student(x).argmax(-1) == y
    assert hits.double().mean().item() == pytest.approx(expected_accuracy(*ends), abs=0.01)


def test_read_out_is_bounded() -> None:
    student = Interval(kappa=5.0, scale=4.0)
    student.ends.data = torch.tensor([2.0, 7.0])
    red, blue = student(torch.tensor([[4.5], [100.0]])).unbind(-1)
    assert (blue - red).tolist() == pytest.approx([4, -4], abs=1e-3)  # scale (2 h - 1)


def one_by_one(function: Callable[..., Any], places: tuple[int | None, ...]) -> Callable[..., Any]:
    """`torch.func.vmap` as a loop."""

    def run(*given: Tensor) -> Any:
        alone = [
            function(*(each if place is None else each[i] for each, place in zip(given, places, strict=True)))
            for i in range(len(given[0]))
        ]
        if isinstance(alone[0], tuple):
            return tuple(torch.stack(each) for each in zip(*alone, strict=True))
        return torch.stack(alone)

    return run


@pytest.mark.parametrize("part", ["ce", "kd", "disk"])
@pytest.mark.parametrize("name", TOYS)
def test_a_stack_of_students_is_every_student_alone(
    name: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = TOYS[name]()
    task = opened(toy)
    together, second = after(toy, task, part), {n: v[1:2] for n, v in toy.start(task, part).items()}
    monkeypatch.setattr(stacks, "vmap", one_by_one)
    for number in (1, 2):
        second, _ = toy.step(task, part, second, number)
    for each, value in second.items():
        torch.testing.assert_close(together[each][1:2], value, rtol=1e-3, atol=1e-4)
    starts = toy.start(task, part)["w"]
    assert not torch.equal(starts[0], starts[1]) and not torch.equal(starts, together["w"])


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("name", TOYS)
def test_disk_with_a_silent_guide_is_kd_of_as_many_epochs(name: str, top_k: int) -> None:
    toy = TOYS[name](top_k=top_k, weight_decay=0.0)
    task = opened(toy)
    state = toy.start(task, "disk")
    state["guide_w"][:, -1] = -1e4  # the last bias: g = 0, and so is its slope
    guided, plain = (
        after(toy, task, "disk", state),
        after(toy, task, "kd_matched", toy.start(task, "kd_matched")),
    )
    torch.testing.assert_close(guided["w"], plain["w"], rtol=1e-4, atol=1e-5)
    other = after(toy, task, "disk", toy.start(task, "disk"))
    assert (other["w"] - plain["w"]).abs().max() > 1e-4


@pytest.mark.parametrize("name", TOYS)
def test_the_budget_presses_guides_down(name: str) -> None:
    free, held = (TOYS[name](lambda_min=weight, lambda_max=weight, lr=0.01) for weight in (0.0, 50.0))
    task = opened(free)
    start = free.start(task, "disk")
    mean = []
    for toy in (free, held):
        state, _ = toy.step(task, "disk", start, 1)
        mean.append(stacks.evaluated(task.guide, state["guide_w"], task.guide_inputs).mean())
    assert mean[1] < mean[0] - 0.05


def test_a_resumed_part_ends_as_an_undisturbed_one() -> None:
    toy = TOYS["gaussians"]()
    whole = after(toy, opened(toy), "disk")
    again = TOYS["gaussians"]()
    state, _ = toy.step(opened(toy), "disk", toy.start(opened(toy), "disk"), 1)
    state, _ = again.step(opened(again), "disk", load(save(state)), 2)
    assert state.keys() == whole.keys() and all(torch.equal(state[name], whole[name]) for name in whole)


def test_students_find_all_three_minima_and_help_for_all_classes_changes_little() -> None:
    """K = 2 is all classes of the intervals: nearly all students end where KD leads them."""
    toy = Intervals(restarts=20, epochs=20, top_k=2)
    result = found(toy, ("disk", "kd_matched"))
    counts = result.summary["kd_matched"]
    assert min(counts[name] or 0 for name in MINIMA) > 0 and (counts["other"] or 0) <= 2
    ends = result.tables["students"].pivot(index="student", columns="part", values="minimum")
    assert (ends["disk"] == ends["kd_matched"]).mean() >= 0.8


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_teacher_separates_all_clusters(seed: int) -> None:
    assert opened(Gaussians(teacher_epochs=40), seed).accuracy == 1


@pytest.mark.parametrize(
    ("share", "minimum"), [(1.0, "at100"), (0.82, "at80"), (0.66, "at65"), (0.5, "other")]
)
def test_minima_of_the_gaussians_are_bins_of_accuracy(share: float, minimum: str) -> None:
    toy = TOYS["gaussians"]()
    assert toy.minimum(opened(toy), torch.zeros(1), share) == minimum


PARAMS = """
data: {}
models: {}
partitions: {}
procedures:
  intervals: {restarts: 3, epochs: 2, samples: 60}
  gaussians: {restarts: 3, epochs: 2, samples: 60, teacher_epochs: 2}
grid: {datasets: [], partitions: [], methods: [], seeds: [0], procedures: [intervals, gaussians]}
engine: {executor: inline, device: cpu}
"""


@pytest.mark.parametrize("name", TOYS)
def test_files_count_every_student(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "BLOCK", 0)
    root = make_project(tmp_path, PARAMS)
    run = ProcedureRun(load_params(root / "params.yaml", []), name, 0, root)
    run_procedure(run)
    summary = pd.read_csv(run.folder / "summary.csv", index_col="row")
    minima = list(TOYS[name]().minima)
    assert list(summary.index) == [*PARTS, "teacher"]
    assert (summary.loc[list(PARTS), minima].sum(axis=1) == 3).all()
    assert summary.loc["teacher"].drop("mean_accuracy").isna().all()
    students = pd.read_csv(run.folder / "tables" / "students.csv")
    grouped = pd.read_csv(run.folder / "tables" / "minima.csv")
    assert len(students) == grouped["students"].sum() == 3 * len(PARTS)
    assert summary.loc["disk", "mean_accuracy"] == pytest.approx(
        students[students["part"] == "disk"]["accuracy"].mean()
    )
    assert list((run.folder / "pictures").glob("toy-*.svg"))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("intervals", {"top_k": 3}, r"top_k: 3 .*>= 1 and <= 2"),
        ("gaussians", {"top_k": 4}, r"top_k: 4 .*>= 1 and <= 3"),
        ("intervals", {"kappa": 0}, r"kappa: 0"),
        ("gaussians", {"restarts": 0}, r"restarts: 0"),
        ("intervals", {"lambda_max": 0.05}, r"lambda_max: 0.05 .*>= lambda_min, 0.1"),
    ],
)
def test_bad_options_are_refused_in_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with refused(message):
        TOYS[name](**options)


def test_students_that_are_not_finite_end_the_part_in_one_line() -> None:
    toy = TOYS["gaussians"](lr=1e30)
    with refused("ce: after round 1, a student is not finite: lr is too large", FedflowError):
        after(toy, opened(TOYS["gaussians"]()), "ce")


@pytest.mark.parametrize("name", TOYS)
def test_a_run_too_short_for_a_period_of_lambda_is_said(name: str) -> None:
    with pytest.warns(UserWarning, match=f"^{name}: in 20 rounds of periods of 50, lambda ends at 15.9, "):
        TOYS[name](epochs=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TOYS[name](epochs=20, lambda_period=20)
