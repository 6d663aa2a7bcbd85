"""Distillation: a trained small network learns from a larger one by several methods.

Source: Acar, thesis, Chapter 6 and Appendix A.1.5 (DiSK); Eq. A.1 for SimKD with DiSK.

Every method starts from the same ``student`` of `central`, the baseline that was trained without a teacher,
and sees the same batches in the same epochs. A round of DiSK has several epochs of the guide and of the
student; a round of ``ce``, ``kd_matched`` and ``simkd`` as many of the student, a round of ``kd`` and
``fitnet`` one. Compare accuracies together with epochs.
*Differs from the authors' code in*: the accuracy is from the last round (the best has its own column); with
``preset: release``, batches without a wrong prediction are not left out.
*Ambiguous*: learning rates fall by the cosine over all rounds, for student and guide. SimKD and FitNet start
from the trained student too, and train with the same settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from torch import Tensor

from fedflow.data import Dataset
from fedflow.errors import BadInput, FedflowError
from fedflow.local.central_training import evaluate
from fedflow.local.local_training import LocalTraining
from fedflow.metrics.cost import macs
from fedflow.procedures.distillation.guided import Guided
from fedflow.procedures.distillation.methods import Method, Networks, Product
from fedflow.procedures.distillation.students import Course
from fedflow.procedures.interface import Column, End, Findings, Inputs, Procedure, Row, State, World, register
from fedflow.project.arguments import check_name
from fedflow.settings import option

BINS = np.linspace(0, 1, 21)  # in the table of guidance


@dataclass(frozen=True)
class Opened:
    """The course, and the networks of every part."""

    course: Course
    networks: dict[str, Networks]
    trained: dict[str, int]  # epochs of "student" and "teacher" in `central`


@register("distillation", "Distillation")
class Distillation(Procedure):
    page, step_name = "distillation.md", "round"
    curves: ClassVar = {
        "test_accuracy": Column("Test accuracy", "%", "higher"),
        "train_loss": Column("Loss of the student in training"),
        "guide": Column("Mean guidance g"),
        "guided": Column("Samples with g > 0.5", "%"),
        "budget": Column("Guided cross-entropy, which the budget limits"),
        "lambda": Column("lambda"),
        "epochs": Column("Epochs of the student", digits=0),
    }
    metrics: ClassVar = {
        "test_accuracy": Column("Test accuracy, last round", "%", "higher"),
        "best_accuracy": Column("(best round)", "%", "higher"),
        "epochs": Column("Epochs, first training included", digits=0),
        "parameters": Column("Parameters", "", "lower", log=True, digits=0),
        "macs": Column("MACs", "", "lower", log=True, digits=0),
    }

    dataset: str = option(doc="dataset that all networks are trained on")
    teacher: str = option(doc="a network of `central`")
    student: str = option(doc="a network of `central`, trained on the dataset without a teacher")
    methods: dict[str, Method] = option(
        factory=lambda: {name: {} for name in ("ce", "kd", "kd_matched", "disk")},
        doc="row of the summary -> method",
    )
    rounds: int = option(200, "rounds, and epochs of `kd`", symbol="R", ge=1)
    student_epochs: int = option(
        3, "epochs of the student in a round of DiSK and methods that match it", ge=1
    )
    batch_size: int = option(200, "samples per batch", ge=1)
    lr: float = option(0.1, "first learning rate of student and guide; it falls by a cosine", gt=0)
    momentum: float = option(0.9, "SGD momentum", ge=0, lt=1)
    weight_decay: float = option(5e-4, "L2 penalty in the gradient", ge=0, source="text; code: 1e-5")
    augment: str = option(
        "flip_crop",
        "augmentation of images, as in `training.augment`",
        choices=("none", "flip_crop", "flip_crop_cutout"),
    )

    def validate(self) -> None:
        if not self.methods:
            raise BadInput("procedures.methods", {}, "at least one method")
        for name in self.methods:
            check_name("procedures.methods", name)
            if name in ("teacher", "student"):
                raise BadInput("procedures.methods", name, "another name, as these are rows of the networks")

    def inputs(self) -> Inputs:
        return Inputs(datasets=(self.dataset,), networks=(self.teacher, self.student))

    def open(self, world: World) -> Opened:
        dataset = world.datasets[self.dataset]
        train, test = (part.to(world.device) for part in (dataset.train, dataset.test))
        if train.y.ndim > 1 or train.y.is_floating_point():
            raise BadInput("dataset", self.dataset, "a dataset whose samples have one label each")
        if dataset.pooled:
            raise BadInput("dataset", self.dataset, "a dataset whose test samples are no training samples")
        names = {"student": self.student, "teacher": self.teacher}
        for field, name in names.items():
            _check(world.networks[name].facts, dataset, field, name)
        world.networks[self.student].need_data(dataset.hash, "student")
        student, teacher = (world.networks[name].teacher(world.device) for name in names.values())
        shared_names = ("batch_size", "lr", "momentum", "weight_decay", "augment")
        training = LocalTraining.parse({name: getattr(self, name) for name in shared_names})
        try:
            training.check(student.model, train)
        except BadInput as error:
            raise error.renamed("augment") from error
        course = Course(world.seed, self.rounds, self.student_epochs, train, test, student, teacher, training)
        for name, method in self.methods.items():
            try:
                method.check(course)
            except BadInput as error:
                if error.field in names:  # the network does not fit the method
                    raise BadInput(
                        error.field, names[error.field], f"{error.accepted}, for {name}"
                    ) from error
                raise error.renamed(f"methods.{name}.{error.field}") from error
        networks = {name: method.networks(course) for name, method in self.methods.items()}
        epochs = {field: world.networks[name].facts["epochs"] for field, name in names.items()}
        return Opened(course, networks, epochs)

    def parts(self, shared: Opened) -> list[str]:
        return list(self.methods)

    def steps(self, shared: Opened, part: str) -> int:
        return self.rounds

    def start(self, shared: Opened, part: str) -> State:
        return self.methods[part].start(shared.course, shared.networks[part])

    def step(self, shared: Opened, part: str, state: State, number: int) -> tuple[State, Row]:
        method, networks, course = self.methods[part], shared.networks[part], shared.course
        state, row = method.step(course, networks, state, number)
        w = course.restored(state, "student").w
        losses, hits = evaluate(networks.student, w, course.test)
        if not (w.isfinite().all() and np.isfinite([*losses, row["train_loss"]]).all()):
            raise FedflowError(f"{part}: diverged in round {number}; try a smaller lr or lambda_max")
        return state, {"test_accuracy": float(hits.mean()), **row}

    def finish(self, shared: Opened, ends: Mapping[str, End]) -> Findings:
        from fedflow.pictures.distillation import by_epoch, guidance  # matplotlib is slow to import

        course, summary, vectors, guides = shared.course, {}, {}, list[pd.DataFrame]()
        for name, (model, w) in (("teacher", course.teacher), ("student", course.student)):
            accuracy = float(evaluate(model, w, course.test)[1].mean())
            summary[name] = _row(course, Product(model, w, model.parameters), accuracy, shared.trained[name])
        for part, end in ends.items():
            method, networks, rows = self.methods[part], shared.networks[part], end.rows
            product, accuracies = method.product(course, networks, end.state), rows["test_accuracy"]
            epochs = shared.trained["student"] + int(rows["epochs"].iloc[-1])
            summary[part] = _row(course, product, accuracies.iloc[-1], epochs)
            summary[part]["best_accuracy"] = float(accuracies.max())
            vectors[part] = product.w.cpu()
            if isinstance(method, Guided):
                guides.append(_spread(part, *method.guidance(course, networks, end.state)))
        drawings = [by_epoch({part: end.rows for part, end in ends.items()}, summary)]
        if not guides:
            return Findings(summary, {}, drawings, vectors)
        table = pd.concat(guides, ignore_index=True)
        return Findings(summary, {"guidance": table}, [*drawings, guidance(table)], vectors)


def _check(facts: Mapping[str, Any], dataset: Dataset, field: str, name: str) -> None:
    """Raise `BadInput` unless a network is for these inputs and classes."""
    if facts["outputs"] != dataset.num_classes:
        accepted = f"a network with {dataset.num_classes} outputs as the dataset, not {facts['outputs']}"
        raise BadInput(field, name, accepted)
    if (shape := tuple(facts["input_shape"])) != dataset.input_shape:
        raise BadInput(field, name, f"a network for inputs of shape {dataset.input_shape}, not {shape}")


def _row(course: Course, product: Product, accuracy: float, epochs: int) -> dict[str, float | None]:
    """A row of the summary."""
    cost = macs(product.model.to_module(product.w), course.some.shape[1:])
    return {
        "test_accuracy": float(accuracy),
        "best_accuracy": None,
        "epochs": float(epochs),
        "parameters": float(product.parameters),
        "macs": float(sum(cost.values())),
    }


def _spread(part: str, g: Tensor, right: Tensor) -> pd.DataFrame:
    """Histogram of the guidance of training samples that the student predicts correctly, and wrongly."""
    counts = {
        name: np.histogram(g[chosen].cpu().double().numpy(), BINS)[0]
        for name, chosen in (("right", right), ("wrong", ~right))
    }
    return pd.DataFrame({"method": part, "from": BINS[:-1].round(2), "to": BINS[1:].round(2), **counts})
