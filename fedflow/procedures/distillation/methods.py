"""Methods of the procedure `distillation`, which are classes of settings.

All start from the same student, and see the same batches and views in the same epochs.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

from torch import Tensor
from torch.nn.functional import cross_entropy

from fedflow.choice import Choice
from fedflow.local.samples import Batch
from fedflow.models.flat import FlatModel
from fedflow.procedures.distillation import losses
from fedflow.procedures.distillation.networks import (
    check_outputs,
    hinted,
    projected,
    student_of,
    with_student,
)
from fedflow.procedures.distillation.students import Course, Objective, packed
from fedflow.procedures.interface import Row, State
from fedflow.seeding import torch_seed
from fedflow.settings import option, registering


class Networks(NamedTuple):
    """The networks of a part: the student, possibly with further layers, and the guide or None."""

    student: FlatModel
    guide: FlatModel | None = None


class Product(NamedTuple):
    """A trained student as it is used: its network, vector [D], and number of parameters."""

    model: FlatModel
    w: Tensor
    parameters: int


class Method(Choice):
    """Base of all methods, which minimize one loss of the student."""

    section: ClassVar[str] = "procedures.methods"
    plural: ClassVar[str] = "methods"
    key: ClassVar[str] = "method"
    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    matched: ClassVar[bool] = True  # the student has as many epochs as with DiSK
    reads: ClassVar[tuple[str, ...]] = ()  # networks whose maps are read
    call: ClassVar[str] = "forward"  # method of the student's network that is called

    method: str = option("", "the registered method; by default the name of the entry")
    weight_decay: float | None = option(None, "L2 penalty in the gradient; null = the procedure's", ge=0)
    restart: int | None = option(
        None, "rounds between restarts of the learning rate; null = none", ge=1, source="code: 50"
    )

    @classmethod
    def known(cls) -> Mapping[str, type["Method"]]:
        return METHODS

    def check(self, course: Course) -> None:
        """Raise `BadInput` if the networks do not fit; warn of schedules longer than the rounds."""
        if self.restart is not None and self.restart > course.rounds:
            reason = f"the learning rate does not fall to 0, as restart is {self.restart}"
            warnings.warn(f"{self.method}: in {course.rounds} rounds {reason}", stacklevel=2)
        for field in self.reads:
            check_outputs(getattr(course, field), course.some, field, maps=True)

    def networks(self, course: Course) -> Networks:
        return Networks(course.student.model)

    def loss(self, course: Course, outputs: Any, batch: Batch) -> Tensor:
        """The student's loss, scalar, from the outputs of its network in training mode."""
        raise NotImplementedError

    def epochs(self, course: Course) -> int:
        """Epochs of the student in a round."""
        return course.student_epochs if self.matched else 1

    def start(self, course: Course, networks: Networks) -> State:
        """The state before the first round."""
        model, w = networks.student, course.student.w
        if model is not course.student.model:
            first = model.init(torch_seed(course.seed, "distillation/projection"))
            w = with_student(model, first, course.student)
        return course.started(w, "student")

    def step(self, course: Course, networks: Networks, state: State, number: int) -> tuple[State, Row]:
        """The state after round ``number``, from 1, and its numbers."""
        return self.teach(course, networks, state, number, partial(self.loss, course))

    def teach(
        self,
        course: Course,
        networks: Networks,
        state: State,
        number: int,
        loss: Callable[[Any, Batch], Tensor],
    ) -> tuple[State, Row]:
        """The state after the student's epochs of a round."""

        def objective(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
            outputs, buffers = networks.student.train_outputs(w, batch.x, self.call)
            return loss(outputs, batch), buffers

        epochs = self.epochs(course)
        state, value = self.train(course, "student", networks.student, state, number, epochs, objective)
        return state, {"epochs": number * epochs, "train_loss": value}

    def train(
        self,
        course: Course,
        name: str,
        model: FlatModel,
        state: State,
        number: int,
        epochs: int,
        objective: Objective,
        lr: float | None = None,
    ) -> tuple[State, float]:
        """The state after ``epochs`` of the network ``name`` in a round, and the loss of the last epoch.

        The first learning rate is ``lr``, by default the procedure's. Round 0 is a warm-up: the rate falls
        over its epochs, whose numbers are 0 and below, so that no other round has the same views.
        """
        now, value, first = course.restored(state, name), math.nan, lr or course.training.lr
        period = epochs * ((self.restart or course.rounds) if number else 1)
        for epoch in range((number - 1) * epochs, number * epochs):
            rate = first * (1 + math.cos(math.pi * (epoch % period) / period)) / 2
            now, value = course.epoch((name, epoch + 1), model, now, objective, rate, self.weight_decay)
        return state | packed(now, name), value

    def product(self, course: Course, networks: Networks, state: State) -> Product:
        """The student as it is used."""
        model = networks.student
        return Product(model, course.restored(state, "student").w, model.parameters)


METHODS: dict[str, type[Method]] = {}
register = registering(METHODS, Method)


@register("ce", "More epochs of cross-entropy")
class CE(Method):
    """The training of the student continues without the teacher."""

    def loss(self, course: Course, outputs: Any, batch: Batch) -> Tensor:
        return cross_entropy(outputs, batch.y)


@register("kd", "Knowledge distillation")
class KD(Method):
    """Eq. 6.1. Source: Hinton et al., 2015."""

    matched = False
    alpha: float = option(0.1, "weight of cross-entropy", ge=0, le=1, grid=(0, 0.1, 0.5, 0.9, 1))
    tau: float = option(4.0, "temperature", gt=0)

    def loss(self, course: Course, outputs: Any, batch: Batch) -> Tensor:
        return losses.distillation(outputs, course.logits(batch), batch.y, self.alpha, self.tau)


@register("kd_matched", "Knowledge distillation with the epochs of DiSK")
class MatchedKD(KD):
    """Eq. 6.1, with as many epochs of the student as DiSK has."""

    matched = True


@register("fitnet", "FitNet")
class FitNet(Method):
    """Cross-entropy + tau^2 KL + beta times the mean squared error of the student's projected first map.

    Source: Romero et al., ICLR 2015, in the form of SimKD's code (DefangChen/SimKD).
    """

    matched, reads, call = False, ("student", "teacher"), "both"
    tau: float = option(4.0, "temperature", gt=0)
    beta: float = option(100.0, "weight of the error of the maps", ge=0)

    def networks(self, course: Course) -> Networks:
        return Networks(hinted(course.student, course.teacher, course.some))

    def loss(self, course: Course, outputs: Any, batch: Batch) -> Tensor:
        (logits, hint), taught = outputs, course.outputs(batch, maps=True)
        both = 2 * losses.distillation(logits, taught.logits, batch.y, 0.5, self.tau)
        return both + self.beta * losses.map_errors(hint, taught.maps[0]).mean()

    def product(self, course: Course, networks: Networks, state: State) -> Product:
        model, (_, w, _) = course.student.model, super().product(course, networks, state)
        return Product(model, student_of(networks.student, w, model), model.parameters)


@register("simkd", "SimKD")
class SimKD(Method):
    """The student's last map is projected to the teacher's last map and read by the teacher's classifier.

    Projection and classifier are part of the student. Source: Chen et al., CVPR 2022, and their code.
    """

    reads, call = ("student", "teacher"), "both"

    def networks(self, course: Course) -> Networks:
        return Networks(projected(course.student, course.teacher, course.some))

    def loss(self, course: Course, outputs: Any, batch: Batch) -> Tensor:
        return losses.map_errors(outputs[1], course.outputs(batch, maps=True).maps[-1]).mean()

    def product(self, course: Course, networks: Networks, state: State) -> Product:
        model, w, trained = super().product(course, networks, state)
        classifier = sum(model.views(w)[name].numel() for name in ("weight", "bias"))
        return Product(model, w, trained + classifier)
