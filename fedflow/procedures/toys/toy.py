"""Base of the toy problems: students that differ only in their start, and their losses."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pandas as pd
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedflow.errors import BadInput, FedflowError
from fedflow.models.flat import FlatModel
from fedflow.procedures.distillation.losses import (
    distillation,
    guided,
    guided_cost,
    multiplier,
    top_classes,
    warn_of_low_end,
)
from fedflow.procedures.interface import Column, End, Findings, Procedure, Row, State
from fedflow.procedures.toys.stacks import (
    SGD,
    Samples,
    Stack,
    accuracies,
    batches,
    evaluated,
    in_training,
    start,
)
from fedflow.settings import option

if TYPE_CHECKING:
    from fedflow.pictures.drawing import Drawing

PARTS = ("ce", "kd", "disk", "ce_matched", "kd_matched")


@dataclass(frozen=True)
class ToyTask:
    """Samples, networks, and the teacher's outputs for the training samples."""

    seed: int
    train: Samples
    test: Samples
    student: FlatModel
    guide: FlatModel  # g [B, 1] in [0, 1] from ``guide_inputs``
    logits: Tensor  # [n, C], the teacher's
    guide_inputs: Tensor  # [n, d]
    accuracy: float  # the teacher's, on the test samples


class Toy(Procedure):
    """Students with few parameters, and the minima in which they end.

    All students of a part see the same batches. A step of `ce` and `kd` is an epoch; a step of `disk` is a
    round of Algorithm 7: ``inner_epochs`` of the guides, then of the students, with the others fixed and in
    evaluation mode. A step of `ce_matched` and `kd_matched` has as many epochs.
    """

    step_name = "round"
    curves: ClassVar = {
        "mean_accuracy": Column("Mean accuracy of the students", "%", "higher"),
        "best": Column("Students in the best minimum", "%", "higher"),
    }
    minima: ClassVar[tuple[str, ...]]  # metrics that count students; the best is first

    restarts: int = option(100, "students of a part, with different starts", ge=1)
    epochs: int = option(200, "epochs of ce and kd, rounds of disk", symbol="R", ge=1)
    inner_epochs: int = option(
        3, "epochs of an update in disk, and of a step in ce_matched and kd_matched", ge=1
    )
    samples: int = option(1000, "training samples", ge=2)
    batch_size: int = option(200, "samples of a batch; not in the source", symbol="B", ge=1)
    lr: float = option(0.1, "learning rate of students and guides", symbol="eta", gt=0)
    momentum: float = option(0.9, "SGD momentum", ge=0, lt=1)
    alpha: float = option(0.1, "weight of CE", ge=0, le=1, grid=(0, 0.1, 0.5, 0.9, 1))
    tau: float = option(4.0, "temperature", gt=0, grid=(1, 2, 4))
    tau_s: float | None = option(None, "temperature of the student in disk; null = tau", gt=0, grid=(1, 2, 4))
    lambda_min: float = option(0.1, "weight of the budget at the start of a period", ge=0)
    lambda_max: float = option(
        50.0, "weight of the budget at the end of a period", ge=0, grid=(1, 5, 10, 20, 50, 100, 1000)
    )
    lambda_period: int = option(50, "rounds of a period", symbol="lambda_T", ge=1, grid=(20, 50))
    delta: float = option(0.0, "budget", ge=0, grid=(0, 0.05, 0.1))
    top_k: int = option(doc="classes of the teacher that the guide helps", symbol="K", ge=1)
    weight_decay: float = option(doc="L2 penalty of students and guides", ge=0)

    @abstractmethod
    def minimum(self, task: ToyTask, w: Tensor, accuracy: float) -> str:
        """The name in `minima` of a student ``w`` [D] with this accuracy on the test samples."""

    @abstractmethod
    def described(self, task: ToyTask, w: Tensor) -> Row:
        """Further columns in the table of students for a student ``w`` [D]."""

    @abstractmethod
    def drawings(self, task: ToyTask, students: pd.DataFrame, w: Mapping[str, Tensor]) -> "list[Drawing]":
        """Drawings of the table of students and their vectors [R, D] by part."""

    def validate(self) -> None:
        if self.lambda_max < self.lambda_min:
            raise BadInput(
                "procedures.lambda_max", self.lambda_max, f"a number >= lambda_min, {self.lambda_min:g}"
            )
        warn_of_low_end(self.name, self.epochs, self.lambda_min, self.lambda_max, self.lambda_period)

    @property
    def sgd(self) -> SGD:
        return SGD(self.lr, self.momentum, self.weight_decay)

    def parts(self, shared: ToyTask) -> list[str]:
        return list(PARTS)

    def steps(self, shared: ToyTask, part: str) -> int:
        return self.epochs

    def start(self, shared: ToyTask, part: str) -> State:
        state = start(shared.student, shared.seed, "toy students", self.restarts)._asdict()
        if part == "disk":
            guides = start(shared.guide, shared.seed, "toy guides", self.restarts)
            state |= {"guide_w": guides.w, "guide_v": guides.v}
        return state

    def step(self, shared: ToyTask, part: str, state: State, number: int) -> tuple[State, Row]:
        now = {name: value.to(shared.logits.device) for name, value in state.items()}
        students = Stack(now["w"], now["v"])
        with shared.student.for_cohorts(), shared.guide.for_cohorts():
            if part == "disk":
                guides = Stack(now["guide_w"], now["guide_v"])
                guides = self._teach_guides(shared, guides, students.w, number)
                students = self._guide_students(shared, students, guides.w, number)
                then = {**students._asdict(), "guide_w": guides.w, "guide_v": guides.v}
            else:
                students = self._teach_students(shared, part, students, number)
                then = students._asdict()
            accuracy = accuracies(shared.student, students.w, shared.test)
        if not students.w.isfinite().all():
            raise FedflowError(f"{part}: after round {number}, a student is not finite: lr is too large")
        minima = self._minima(shared, students.w, accuracy)
        best = minima.count(self.minima[0]) / len(minima)
        return then, {"mean_accuracy": accuracy.mean().item(), "best": best}

    def _minima(self, task: ToyTask, w: Tensor, accuracy: Tensor) -> list[str]:
        return [self.minimum(task, *student) for student in zip(w.cpu(), accuracy.tolist(), strict=True)]

    def _batches(self, task: ToyTask, purpose: str, number: int, epochs: int) -> Iterator[Tensor]:
        """Positions of the samples of every batch in a step."""
        return batches(len(task.guide_inputs), self.batch_size, epochs, task.seed, purpose, number)

    def _teach_students(self, task: ToyTask, part: str, students: Stack, number: int) -> Stack:
        """CE, or KD (6.1)."""
        name, _, matched = part.partition("_")
        alpha = 1.0 if name == "ce" else self.alpha

        def loss(w: Tensor, x: Tensor, y: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
            outputs, buffers = in_training(task.student, w, x)
            return distillation(outputs, teacher, y, alpha, self.tau), buffers

        epochs, samples = self.inner_epochs if matched else 1, (*task.train, task.logits)
        for rows in self._batches(task, "toy students", number, epochs):
            students = self.sgd.step(task.student, students, loss, (), *(part[rows] for part in samples))
        return students

    def _guided(self, outputs: Tensor, teacher: Tensor, mask: Tensor, g: Tensor) -> Tensor:
        """(1 - alpha) L_dist (6.4)."""
        target = (teacher / self.tau).softmax(-1)
        return (1 - self.alpha) * guided(outputs, target, mask, g, self.tau, self.tau_s or self.tau)

    def _teach_guides(self, task: ToyTask, guides: Stack, students: Tensor, number: int) -> Stack:
        """Steps on the Lagrangian (6.5) as a function of g, without CE, which is constant."""
        (x, y), mask = task.train, top_classes(task.logits, self.top_k)
        weight = multiplier(number - 1, self.lambda_min, self.lambda_max, self.lambda_period)
        outputs = evaluated(task.student, students, x)  # [R, n, C]
        costs = cross_entropy(outputs.transpose(1, 2), y.expand(len(students), -1), reduction="none")
        wrong = outputs.argmax(-1) != y

        def loss(
            w: Tensor,
            outputs: Tensor,
            costs: Tensor,
            wrong: Tensor,
            inputs: Tensor,
            teacher: Tensor,
            mask: Tensor,
        ) -> tuple[Tensor, Tensor]:
            g, buffers = in_training(task.guide, w, inputs)
            over = (guided_cost(g[:, 0], costs, wrong) - self.delta).relu()
            return self._guided(outputs, teacher, mask, g[:, 0]) + weight * over, buffers

        for rows in self._batches(task, "toy guides", number, self.inner_epochs):
            extra = tuple(part[:, rows] for part in (outputs, costs, wrong))
            batch = (part[rows] for part in (task.guide_inputs, task.logits, mask))
            guides = self.sgd.step(task.guide, guides, loss, extra, *batch)
        return guides

    def _guide_students(self, task: ToyTask, students: Stack, guides: Tensor, number: int) -> Stack:
        """Steps on alpha CE + (1 - alpha) L_dist."""
        mask = top_classes(task.logits, self.top_k)
        g = evaluated(task.guide, guides, task.guide_inputs)[..., 0]  # [R, n]

        def loss(
            w: Tensor, g: Tensor, x: Tensor, y: Tensor, teacher: Tensor, mask: Tensor
        ) -> tuple[Tensor, Tensor]:
            outputs, buffers = in_training(task.student, w, x)
            distance = self._guided(outputs, teacher, mask, g)
            return self.alpha * cross_entropy(outputs, y) + distance, buffers

        for rows in self._batches(task, "toy students", number, self.inner_epochs):
            batch = (part[rows] for part in (*task.train, task.logits, mask))
            students = self.sgd.step(task.student, students, loss, (g[:, rows],), *batch)
        return students

    def finish(self, shared: ToyTask, ends: Mapping[str, End]) -> Findings:
        w, tables = {part: end.state["w"] for part, end in ends.items()}, list[pd.DataFrame]()
        summary: dict[str, dict[str, float | None]] = {}
        for part, last in w.items():
            accuracy = accuracies(shared.student, last.to(shared.logits.device), shared.test).cpu()
            minima = self._minima(shared, last, accuracy)
            described = pd.DataFrame([self.described(shared, student) for student in last])
            table = pd.DataFrame({"part": part, "student": range(len(last)), "minimum": minima})
            tables.append(table.assign(accuracy=accuracy.numpy()).join(described))
            summary[part] = {name: float(minima.count(name)) for name in self.minima}
            summary[part]["mean_accuracy"] = accuracy.mean().item()
            summary[part] |= {str(name): float(value) for name, value in described.median().items()}
        summary["teacher"] = {"mean_accuracy": shared.accuracy}
        students = pd.concat(tables, ignore_index=True)
        groups = students.drop(columns="student").groupby(["part", "minimum"], sort=False)
        tables_by_name = {
            "students": students,
            "minima": groups.mean().assign(students=groups.size()).reset_index(),
        }
        return Findings(summary, tables_by_name, self.drawings(shared, students, w), w)
