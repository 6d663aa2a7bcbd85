"""Students that are taught: reductions, who changes whom, products, resuming, networks that do not fit."""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from resuming import ends_alike
from safetensors.torch import load_file
from support import refused, same
from torch import Tensor, nn

from fedflow.data import Dataset
from fedflow.local.central_training import evaluate
from fedflow.local.trained import TrainedNetwork
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.procedures import End, Findings, World
from fedflow.procedures.distillation import Distillation
from fedflow.procedures.distillation.guided import DiSK, Guided
from fedflow.procedures.distillation.losses import multiplier
from fedflow.procedures.distillation.networks import GUIDES, ConvGuide, Hinted, MLPGuide, Outputs
from fedflow.procedures.distillation.procedure import Opened
from fedflow.procedures.distillation.students import Course

RELEASE = {"preset": "release", "top_k": 2}  # of the 10 classes of digits
SMALL: dict[str, Any] = {
    "dataset": "digits",
    "teacher": "teacher",
    "student": "student",
    "rounds": 2,
    "student_epochs": 2,
    "batch_size": 64,
    "lr": 0.05,
    "augment": "none",
}
NETWORKS = {
    "student": ("resnet10_xxs", {"widths": [4, 4, 8, 8]}),
    "teacher": ("resnet10_xxs", {"widths": [4, 8, 8, 16]}),
    "flat": ("mlp", {"hidden": [8]}),
}


class NoGuide(nn.Module):
    """g = 0 for all samples."""

    def __init__(self, inputs: int, features: int, classes: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return 0 * self.w * x.flatten(1).sum(1)


def trained(dataset: Dataset, name: str, /, seed: int = 0, **facts: Any) -> TrainedNetwork:
    """A network of `NETWORKS` that has seen nothing yet."""
    kind, options = NETWORKS[name]
    about = {
        "name": name,
        "model": kind,
        "options": options,
        "input_shape": list(dataset.input_shape),
        "outputs": dataset.num_classes,
        "data_hash": dataset.hash,
        "epochs": 5,
        **facts,
    }
    model = FlatModel(partial(build, kind, tuple(about["input_shape"]), about["outputs"], **options))
    return TrainedNetwork(model.init(seed), np.zeros(1), about)


@pytest.fixture(scope="module")
def few(digits: Dataset) -> Dataset:
    """193 training samples: the last batch has a single one."""
    return replace(
        digits,
        x_train=digits.x_train[:193],
        y_train=digits.y_train[:193],
        x_test=digits.x_test[:100],
        y_test=digits.y_test[:100],
    )


class Walk:
    """All parts, round by round."""

    def __init__(self, dataset: Dataset, taught: dict[str, Any], seed: int = 0, **more: Any) -> None:
        networks = {name: trained(dataset, name, seed) for seed, name in enumerate(NETWORKS)}
        networks |= more.pop("networks", {})
        self.procedure = Distillation(**{**SMALL, "methods": taught, **more})
        self.opened: Opened = self.procedure.open(
            World(seed, torch.device("cpu"), {"digits": dataset}, {}, networks, {})
        )
        self.states = {name: [self.procedure.start(self.opened, name)] for name in taught}
        self.rows: dict[str, list[dict[str, float]]] = {name: [] for name in taught}

    def step(self, number: int) -> None:
        for name, states in self.states.items():
            before = {key: value.clone() for key, value in states[-1].items()}
            state, row = self.procedure.step(self.opened, name, states[-1], number)
            assert same(before, states[-1])  # a step changes nothing
            states.append(state)
            self.rows[name].append(row)

    def all(self) -> "Walk":
        for number in range(1, self.procedure.rounds + 1):
            self.step(number)
        return self

    def student(self, name: str) -> Tensor:
        return self.states[name][-1]["student.w"]

    def findings(self) -> Findings:
        return self.procedure.finish(
            self.opened,
            {
                name: End(states[-1], pd.DataFrame(self.rows[name], index=range(1, len(states))))
                for name, states in self.states.items()
            },
        )


def test_guides() -> None:
    assert sum(p.numel() for p in MLPGuide(256 + 100).parameters()) == 31_681
    for network, x in ((MLPGuide(6), torch.randn(9, 6)), (ConvGuide(6, 8, 3), torch.randn(9, 6, 4, 4))):
        g = network(100 * x)
        assert g.shape == (9,) and (g >= 0).all() and (g <= 1).all() and g.std() > 0


def test_the_guide_of_the_code_reads_the_third_stage(few: Dataset) -> None:
    """Its linear layers: 256 - features of the teacher (16) - classes; the third map has 8 channels."""
    walk = Walk(few, {"disk": {"guide": "conv"}})
    guide = walk.opened.networks["disk"].guide
    assert guide is not None
    shapes = {
        name: tuple(value.shape) for name, value in guide.views(walk.states["disk"][0]["guide.w"]).items()
    }
    assert shapes["map.0.weight"] == (256, 8, 1, 1)
    assert (shapes["head.0.weight"], shapes["head.1.weight"]) == ((16, 256), (10, 16))
    maps, method = [torch.randn(2, 4, 3, 3) for _ in range(4)], DiSK.parse({"guide": "conv"})
    for stages in (maps, maps[:3]):
        assert method.seen(Outputs(torch.randn(2, 10), torch.randn(2, 4), stages)) is maps[2]


@pytest.mark.parametrize(
    ("source", "target", "kernel", "size"),
    [
        ((8, 8), (8, 8), 1, 8),
        ((8, 8), (4, 4), 3, 4),
        ((4, 4), (8, 8), 4, 8),
        ((8, 8), (6, 6), 3, 6),
        ((4, 4), (6, 6), 3, 4),
    ],
)
def test_the_projection_of_fitnet_changes_the_size(
    source: tuple[int, int], target: tuple[int, int], kernel: int, size: int
) -> None:
    """As in SimKD's code: 1x1, stride 2, a transposed convolution, a larger kernel, or the same size."""
    student = partial(build, "resnet10_xxs", (1, *source), 10)
    network = Hinted(student, "fc", (8, 5), (source, target))
    assert network.project[0].kernel_size == (kernel, kernel)
    logits, hint = network.both(torch.randn(2, 1, *source))
    assert logits.shape == (2, 10) and hint.shape == (2, 5, size, size)


@pytest.mark.parametrize(("against", "cost"), [("teacher", 12.380), ("label", 3.380)])
def test_the_budget_is_divided_by_wrong_labels(against: str, cost: float) -> None:
    """Of four samples, the student is wrong on one, and disagrees with the teacher on all.

    Its cross-entropy is log(e^3 + 2) - 3 = 0.0949 for the class that it predicts, and 3.0949 for others. The
    sums, 4 x 3.0949 and 3 x 0.0949 + 3.0949, are divided by 1; the four disagreements would give 3.0949.
    """
    student, teacher = (3.0 * nn.functional.one_hot(torch.full((4,), k), 3) for k in (0, 1))
    y, taught = torch.tensor([0, 0, 0, 2]), Outputs(teacher, teacher, [])
    method = DiSK.parse({"against": against})
    assert method.cost(taught, student, y, torch.ones(4)).item() == pytest.approx(cost, abs=1e-3)


def test_the_warm_up_has_other_batches_and_its_schedule(
    few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rate falls by a cosine over the warm-up, and the guide then starts without momentum."""
    epochs, epoch = list[tuple[tuple[str, int], float, bool]](), Course.epoch

    def recorded(
        course: Course, key: Any, model: Any, now: Any, objective: Any, lr: float, decay: Any
    ) -> Any:
        epochs.append((key, lr, bool(now.velocity.any())))
        return epoch(course, key, model, now, objective, lr, decay)

    monkeypatch.setattr(Course, "epoch", recorded)
    Walk(few, {"disk": {"warm_up": 3, "guide_epochs": 2, "restart": 2}}).all()
    guided = [(number, *rest) for (name, number), *rest in epochs if name == "guide"]
    assert [number for number, *_ in guided] == [-2, -1, 0, 1, 2, 3, 4]
    assert [lr for _, lr, _ in guided[:4]] == pytest.approx([0.05, 0.0375, 0.0125, 0.05])
    assert [moving for *_, moving in guided] == [False, True, True, False, True, True, True]


def test_without_guidance_disk_is_kd(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """To rounding, with BatchNorm and all of the two rounds; SimKD to the bit."""
    monkeypatch.setitem(GUIDES, "mlp", NoGuide)
    walk = Walk(few, {"kd_matched": {}, "disk": {}, "simkd": {}, "simkd_disk": {}, "ce": {}}).all()
    start = walk.states["disk"][0]["student.w"]
    assert walk.student("disk") == pytest.approx(walk.student("kd_matched"), abs=1e-4)
    assert (walk.student("disk") - start).abs().max() > 0.01
    assert torch.equal(walk.student("simkd_disk"), walk.student("simkd"))


def test_alpha_of_one_is_cross_entropy(few: Dataset) -> None:
    walk = Walk(few, {"ce": {}, "kd_matched": {"alpha": 1}, "kd": {"alpha": 0.1}}).all()
    assert torch.equal(walk.student("ce"), walk.student("kd_matched"))
    assert not torch.equal(walk.student("ce"), walk.student("kd"))


def test_first_round_of_ce_is_sgd(few: Dataset) -> None:
    """Full batches, so that the order does not matter; PyTorch's own optimizer and BatchNorm."""
    walk = Walk(few, {"ce": {}}, batch_size=1000).all()
    module = walk.opened.course.student.model.to_module(walk.states["ce"][0]["student.w"]).train()
    optimizer = torch.optim.SGD(module.parameters(), momentum=0.9, weight_decay=5e-4)
    x, y = few.train.inputs(torch.arange(193)), few.y_train
    for epoch in range(4):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * epoch / 4)) / 2
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    assert walk.student("ce") == pytest.approx(walk.opened.course.student.model.from_module(module), abs=1e-4)


@pytest.mark.parametrize(
    "method", [{"method": "disk"}, {"method": "disk", **RELEASE}, {"method": "simkd_disk"}]
)
def test_who_is_trained_changes_alone(few: Dataset, method: dict[str, Any]) -> None:
    """The guide's epochs leave the student's weights and running statistics, and the reverse."""
    walk = Walk(few, {"own": {**method, "warm_up": 0}})
    own, networks, course = walk.procedure.methods["own"], walk.opened.networks["own"], walk.opened.course
    assert isinstance(own, Guided)
    state = walk.states["own"][0]
    for phase, who in ((own.follow, "student"), (partial(own.instruct, epochs=1), "guide")):
        after, _ = phase(course, networks, state, number=1)  # type: ignore[operator]
        changed = {name for name in state if not torch.equal(state[name], after[name])}
        assert changed == {f"{who}.w", f"{who}.velocity"}
        model = networks.student if who == "student" else networks.guide
        assert model is not None and model.buffers
        statistics = slice(model.parameters, None)
        assert not torch.equal(state[f"{who}.w"][statistics], after[f"{who}.w"][statistics])


def test_the_student_does_not_see_the_budget(few: Dataset) -> None:
    same_first = {"method": "disk", "order": "student", "delta": 0.0}
    walk = Walk(few, {"low": {**same_first, "lambda_max": 0.1}, "high": {**same_first, "lambda_min": 50.0}})
    walk.step(1)
    assert torch.equal(walk.student("low"), walk.student("high"))
    guides = [walk.states[name][-1]["guide.w"] for name in ("low", "high")]
    assert not torch.equal(*guides)
    assert walk.rows["high"][0]["guide"] < walk.rows["low"][0]["guide"]  # a budget costs guidance


def test_the_mask_and_its_size_matter(few: Dataset) -> None:
    """All variants of the target run; by default a fifth of the classes is helped."""
    most = {"method": "disk", "top_k": 9, "lambda_min": 5.0}
    walk = Walk(
        few,
        {
            "most": most,
            "label": {**most, "label_in_mask": True},
            "masked": {**most, "target": "masked_zero"},
            "fewer": {**most, "top_k": 3},
            "fifth": {**most, "top_k": None},
            "two": {**most, "top_k": 2},
        },
    )
    walk.step(1)
    assert torch.equal(walk.student("fifth"), walk.student("two"))
    different = ("most", "label", "masked", "fewer", "two")
    assert len({tuple(walk.student(name)[:5].tolist()) for name in different}) == len(different)


@pytest.mark.parametrize("rounds", range(1, 61))
def test_lambda_rises_in_a_run_of_any_length_and_ends_high(rounds: int) -> None:
    """Four periods, and one below 8 rounds; a whole quarter of the rounds is the period as it is."""
    method = DiSK.parse({"lambda_min": 0.0, "lambda_max": 1.0})
    period = method.period(SimpleNamespace(rounds=rounds))  # type: ignore[arg-type]
    found = [multiplier(r, 0.0, 1.0, period) for r in range(rounds)]
    last_period = range(math.ceil(rounds - period), rounds)
    assert found[0] == 0 and found[-1] == max(found[r] for r in last_period)
    assert rounds == 1 or found[-1] > 0.4999
    assert sum(after < before for before, after in pairwise(found)) == (3 if rounds >= 8 else 0)
    if rounds >= 8 and rounds % 4 == 0:
        assert found == [multiplier(r, 0.0, 1.0, rounds // 4) for r in range(rounds)]


@pytest.mark.parametrize(
    ("settings", "rounds", "says"),
    [
        (
            {},
            1,
            "disk: in 1 round of periods of 1, lambda ends at 0.1, so that the budget is hardly enforced",
        ),
        ({"lambda_period": 3}, 4, "disk: in 4 rounds of periods of 3, lambda ends at 0.1, "),
        ({"lambda_period": 50}, 6, "disk: in 6 rounds of periods of 50, lambda ends at 1.32, "),
        (
            {"delta": 1.0, "delta_end": 0.5, "delta_period": 5},
            4,
            "in 4 rounds the budget does not fall to 0.5",
        ),
        ({"restart": 50}, 4, "disk: in 4 rounds the learning rate does not fall to 0, as restart is 50"),
    ],
)
def test_a_schedule_that_the_rounds_cut_off_is_said(
    few: Dataset, settings: dict[str, Any], rounds: int, says: str
) -> None:
    with pytest.warns(UserWarning, match=says):
        Walk(few, {"disk": settings}, rounds=rounds)


def test_rows_and_schedules(few: Dataset) -> None:
    walk = Walk(
        few, {"kd": {}, "disk": {"lambda_period": 2, "delta": 1.0, "delta_end": 0.5, "delta_period": 2}}
    ).all()
    table = pd.DataFrame(walk.rows["disk"])
    assert table["lambda"].tolist() == pytest.approx([0.1, (0.1 + 50) / 2])
    assert table["delta"].tolist() == pytest.approx([1.0, 0.75])
    assert table["epochs"].tolist() == [2, 4] and [row["epochs"] for row in walk.rows["kd"]] == [1, 2]
    assert table[["guide", "guided"]].stack().between(0, 1).all() and (table["budget"] > 0).all()
    plain = Walk(few, {"disk": {}})
    plain.step(1)
    model, w = plain.opened.course.student
    assert plain.rows["disk"][0]["delta"] == pytest.approx(1 - evaluate(model, w, few.train)[1].mean())


def test_fitted_temperature_of_a_student_that_is_the_teacher(few: Dataset) -> None:
    walk = Walk(few, {"disk": {"fit_tau_s": True, "tau": 3}}, teacher="student")
    assert walk.states["disk"][0]["tau_s"].item() == pytest.approx(3, rel=1e-4)
    walk.step(1)
    assert walk.states["disk"][1]["tau_s"] == walk.states["disk"][0]["tau_s"]


def test_preset_of_the_code() -> None:
    release = DiSK.parse({"preset": "release", "top_k": 3})
    assert release.top_k == 3 and release.label_in_mask and release.log_normalizer
    assert (release.order, release.against, release.guide) == ("student", "teacher", "conv")
    assert (release.lambda_min, release.lambda_max, release.tau_s, release.restart) == (1, 5, 3.5, 50)
    paper = DiSK.parse({})
    assert (paper.order, paper.against, paper.target, paper.max_ce) == ("guide", "label", "teacher", 5)


def test_products(few: Dataset) -> None:
    """What is kept of every method predicts as it was scored, and is no larger than the student."""
    taught = {"kd": {}, "disk": {}, "fitnet": {}, "simkd": {}, "simkd_disk": {}}
    walk = Walk(few, taught, lr=0.01).all()
    found, course = walk.findings(), walk.opened.course
    assert found.summary["student"]["parameters"] == course.student.model.parameters
    assert [found.summary[name]["epochs"] for name in ("teacher", "student", "kd", "disk")] == [5, 5, 7, 9]
    for name in taught:
        projected = name.startswith("simkd")
        model = walk.opened.networks[name].student if projected else course.student.model
        row, rows = found.summary[name], pd.DataFrame(walk.rows[name])
        accuracy = evaluate(model, found.vectors[name], few.test)[1].mean()
        assert row["test_accuracy"] == pytest.approx(accuracy) == rows["test_accuracy"].iloc[-1]
        assert row["best_accuracy"] == rows["test_accuracy"].max()
        more = row["parameters"] - course.student.model.parameters
        head, projection = 10 * (16 + 1) - 10 * (8 + 1), 8 * 8 + 8 * 8 * 9 + 8 * 16 + 2 * (8 + 8 + 16)
        assert more == (head + projection if projected else 0)
        assert (row["macs"] > found.summary["student"]["macs"]) == projected
    table = found.tables["guidance"]
    assert (table.groupby("method")[["right", "wrong"]].sum().sum(axis=1) == 193).all()
    assert [d.name for d in found.drawings] == ["distillation-epochs", "distillation-guide"]
    with torch.no_grad():  # the classifier of SimKD is the teacher's, and stays it
        views = walk.opened.networks["simkd"].student.views(found.vectors["simkd"])
        assert torch.equal(views["weight"], course.teacher.model.views(course.teacher.w)["fc.weight"])


def test_test_samples_that_are_training_samples_are_refused(few: Dataset) -> None:
    with refused("dataset: 'digits' .*a dataset whose test samples are no training samples"):
        Walk(replace(few, pooled=True), {"ce": {"method": "ce"}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": {}}, "methods: .* at least one method"),
        ({"methods": {"dsik": {}}}, "procedures.methods.dsik: .*did you mean 'disk'"),
        ({"methods": {"a": {"method": "b"}}}, "methods.a.method: 'b'"),
        ({"methods": {"teacher": {"method": "kd"}}}, "methods: 'teacher' .* another name"),
        ({"methods": {"kd": {"alpha": 1.5}}}, "methods.kd.alpha: 1.5 .* <= 1"),
        ({"methods": {"kd": {"guide": "mlp"}}}, "methods.kd.guide"),
        ({"methods": {"simkd": {"top_k": 2}}}, "methods.simkd.top_k"),
        ({"methods": {"disk": {"top_k": 0}}}, "methods.disk.top_k: 0 .* >= 1"),
        ({"methods": {"disk": {"top_k": 11}}}, "methods.disk.top_k: 11 .* less than 10, the number of c"),
        ({"methods": {"disk": {"top_k": 10}}}, "methods.disk.top_k: 10 .* less than 10, .* a fifth: 2$"),
        (
            {"methods": {"disk": {"preset": "release"}}},
            "methods.disk.top_k: 10 .* such as a fifth: 2; the 10 of preset: release are for 100 classes",
        ),
        ({"methods": {"disk": {"lambda_max": 0.01}}}, "methods.disk.lambda_max: 0.01 .* lambda_min, 0.1"),
        ({"methods": {"disk": {"delta_decay": 0.9}}}, "methods.disk.delta_decay: 0.9 .* without delta_end"),
        ({"methods": {"disk": {"delta_end": 0.1}}}, "methods.disk.delta_end: 0.1 .* with a delta_period"),
        ({"methods": {"disk": {"fit_tau_s": True, "tau_s": 2}}}, "methods.disk.tau_s: 2.0 .* fit_tau_s"),
        ({"teacher": "flat", "methods": {"simkd": {}}}, "teacher: 'flat' .* a method maps, .*, for simkd"),
        ({"student": "flat", "methods": {"fitnet": {}}}, "student: 'flat' .* a method maps, .*, for fitnet"),
        ({"teacher": "flat", "methods": {"disk": {"guide": "conv"}}}, "teacher: 'flat' .* maps"),
        ({"networks": {"outputs": 7}}, "teacher: 'teacher' .* 10 outputs as the dataset, not 7"),
        ({"networks": {"input_shape": [3, 8, 8]}}, r"teacher: 'teacher' .* \(1, 8, 8\), not \(3, 8, 8\)"),
        ({"student": "old"}, "student: 'old' .* trained on the dataset as it is now"),
        ({"augment": "flip_crop_cutout"}, "augment: 'flip_crop_cutout' .* Cutout can hide"),
    ],
)
def test_what_does_not_fit_is_refused(few: Dataset, changes: dict[str, Any], message: str) -> None:
    networks = {"old": trained(few, "student", name="old", data_hash="0")}
    if facts := changes.pop("networks", {}):
        networks["teacher"] = trained(few, "teacher", **facts)
    with refused(message):
        Walk(few, **{"taught": changes.pop("methods", {"kd": {}}), **changes, "networks": networks})


def test_a_teacher_without_maps_teaches_kd_and_disk(few: Dataset) -> None:
    walk = Walk(few, {"kd": {}, "disk": {}}, teacher="flat")
    walk.step(1)
    assert set(walk.findings().vectors) == {"kd", "disk"}


PARAMS = """
data: {digits: {source: digits, train_limit: 100, test_limit: 50}}
models: {digits: {name: resnet10_xxs, options: {widths: [4, 4, 8, 8]}}}
central:
  teacher:
    {dataset: digits, model: {name: resnet10_xxs, options: {widths: [4, 8, 8, 16]}}, training: {epochs: 1}}
  student: {dataset: digits, training: {epochs: 1}}
partitions: {}
procedures:
  distillation:
    dataset: digits
    teacher: teacher
    student: student
    rounds: 2
    batch_size: 50
    student_epochs: 1
    methods:
      kd: {}
      disk: {preset: release, top_k: 3, guide_epochs: 1, warm_up: 1, fit_tau_s: true, tau_s: null}
grid:
  {datasets: [digits], central: [teacher, student], partitions: [], methods: [], seeds: [0],
   procedures: [distillation]}
engine: {executor: inline, device: cpu}
"""


def test_runs_that_resume_between_two_rounds_and_any_number_of_workers_end_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = ends_alike(tmp_path, PARAMS, "distillation", monkeypatch, interrupt=2, total=4)
    files = {path.name for path in done.rglob("*")}
    assert {"distillation-epochs.svg", "distillation-guide.svg", "guidance.csv"} < files
    vectors = load_file(done / "vectors.safetensors")
    model = FlatModel(partial(build, "resnet10_xxs", (1, 8, 8), 10, widths=(4, 4, 8, 8)))
    assert {name: len(w) for name, w in vectors.items()} == dict.fromkeys(("kd", "disk"), model.size)
