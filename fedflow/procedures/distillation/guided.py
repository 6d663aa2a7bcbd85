"""DiSK, and SimKD with DiSK: methods with a guide that discounts samples the student cannot learn."""

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedflow.errors import BadInput
from fedflow.local.samples import Batch, Samples
from fedflow.models.flat import FlatModel
from fedflow.procedures.distillation import losses
from fedflow.procedures.distillation.methods import Method, Networks, SimKD, register
from fedflow.procedures.distillation.networks import GUIDES, Outputs, check_outputs, outputs_of
from fedflow.procedures.distillation.students import Course
from fedflow.procedures.interface import Row, State
from fedflow.seeding import torch_seed
from fedflow.settings import option

RELEASE = {  # defaults of the authors' code for CIFAR
    "tau_s": 3.5,
    "top_k": 10,
    "target": "masked",
    "label_in_mask": True,
    "log_normalizer": True,
    "lambda_min": 1.0,
    "lambda_max": 5.0,
    "delta": 0.6,
    "delta_end": 0.4,
    "delta_period": 20,
    "delta_decay": 0.9,
    "against": "teacher",
    "guide": "conv",
    "warm_up": 5,
    "order": "student",
    "weight_decay": 1e-5,
    "restart": 50,
}


class Guided(Method):
    """Algorithm 7: a guide discounts samples that the student cannot learn, within a budget.

    In every round the guide minimizes the discounted loss plus lambda times the budget, with the student
    fixed; the student minimizes the discounted loss, with the guide fixed. Fixed networks are in evaluation
    mode.
    """

    lambda_min: float = option(0.1, "lambda at the start of a period", ge=0, grid=(0.01, 0.1, 1, 5, 10))
    lambda_max: float = option(50.0, "lambda towards its end", ge=0, grid=(1, 5, 10, 20, 50, 100, 1000))
    lambda_period: int | None = option(
        None,
        "rounds of a period; null = a quarter of all rounds (the published 50 of 200), or all rounds if "
        "there are fewer than 8",
        ge=1,
        grid=(20, 50),
    )
    delta: float | None = option(
        None, "budget; null = the first student's share of wrong training samples", ge=0
    )
    delta_end: float | None = option(
        None, "budget towards the end of a period; null = constant", ge=0, source="code: 0.4"
    )
    delta_period: int | None = option(None, "rounds of a period of the budget", ge=1, source="code: 20")
    delta_decay: float = option(1.0, "decay of the first budget of a period", gt=0, le=1, source="code: 0.9")
    max_ce: float | None = option(
        5.0, "largest cross-entropy of a sample in the budget; null = no limit", gt=0, source="code"
    )
    over: str = option(
        "wrong",
        "divisor of the budget's sum: the number of wrong predictions, or of all samples",
        choices=("wrong", "all"),
        source="A.1.5; Eq. 6.3: all",
    )
    against: str = option(
        "label",
        "target of the cross-entropy in the budget: the label, or the teacher's prediction",
        choices=("label", "teacher"),
        source="code: teacher",
    )
    guide: str = option(
        "mlp",
        "mlp on the teacher's features and logits, or conv on the map of its third stage",
        choices=tuple(GUIDES),
        source="code: conv",
    )
    guide_lr: float | None = option(None, "first learning rate of the guide; null = the student's", gt=0)
    guide_epochs: int = option(3, "epochs of the guide in a round", ge=1)
    warm_up: int = option(0, "epochs of the guide before the first round", ge=0, source="code: 5")
    order: str = option(
        "guide", "network trained first in a round", choices=("guide", "student"), source="code: student"
    )

    def validate(self) -> None:
        super().validate()
        if self.lambda_max < self.lambda_min:
            accepted = f"lambda_min, {self.lambda_min:g}, or more"
            raise BadInput(f"{self.section}.lambda_max", self.lambda_max, accepted)
        if self.delta_end is None:
            for name, default in {"delta_period": None, "delta_decay": 1.0}.items():
                if getattr(self, name) != default:
                    accepted = "null without delta_end" if default is None else "1 without delta_end"
                    raise BadInput(f"{self.section}.{name}", getattr(self, name), accepted)
        elif self.delta is None or self.delta < self.delta_end or self.delta_period is None:
            accepted = "null, or a number of at most delta with a delta_period"
            raise BadInput(f"{self.section}.delta_end", self.delta_end, accepted)

    @property
    def reads_maps(self) -> bool:
        """True if the teacher's maps are read."""
        return self.guide == "conv" or "teacher" in self.reads

    def check(self, course: Course) -> None:
        super().check(course)
        check_outputs(course.teacher, course.some, "teacher", self.reads_maps)
        rounds, period = course.rounds, self.period(course)
        losses.warn_of_low_end(self.method, rounds, self.lambda_min, self.lambda_max, period)
        if self.delta_end is not None and self.delta_period is not None and self.delta_period > rounds:
            reason = f"the budget does not fall to {self.delta_end:g}, as delta_period is {self.delta_period}"
            warnings.warn(f"{self.method}: in {rounds} rounds {reason}", stacklevel=2)

    def period(self, course: Course) -> float:
        """Rounds of a period of lambda; by default, the last period ends with the run."""
        return self.lambda_period or (course.rounds / 4 if course.rounds >= 8 else course.rounds)

    def networks(self, course: Course) -> Networks:
        taught = outputs_of(course.teacher, course.some, self.reads_maps)
        sizes = (part.shape[1] for part in (self.seen(taught), taught.features, taught.logits))
        guide = partial(GUIDES[self.guide], *sizes)
        return super().networks(course)._replace(guide=FlatModel(guide, device=course.train.device))

    def remaining(self, state: State, taught: Outputs, outputs: Any, y: Tensor, g: Tensor) -> Tensor:
        """The loss that remains for the student with guidance ``g`` [B], scalar."""
        raise NotImplementedError

    def logits(self, outputs: Any) -> Tensor:
        """The logits [B, C] among the outputs of the student's network."""
        raise NotImplementedError

    def for_guide(self, taught: Outputs, g: Tensor) -> Tensor | float:
        """A further loss of the guide."""
        return 0.0

    def seen(self, taught: Outputs) -> Tensor:
        """The inputs of the guide."""
        if self.guide == "conv":  # as in the authors' code, whose ResNets have three or four stages
            return taught.maps[:3][-1]
        return torch.cat([taught.features, taught.logits], 1)

    def start(self, course: Course, networks: Networks) -> State:
        assert networks.guide is not None
        guide = networks.guide.init(torch_seed(course.seed, "distillation/guide"))
        return super().start(course, networks) | course.started(guide, "guide")

    def step(self, course: Course, networks: Networks, state: State, number: int) -> tuple[State, Row]:
        row: Row = {}
        if number == 1 and self.warm_up:
            state, _ = self.instruct(course, networks, state, 1, self.warm_up, warming=True)
            state |= course.started(course.restored(state, "guide").w, "guide")  # without momentum
        for name in ("guide", "student") if self.order == "guide" else ("student", "guide"):
            if name == "guide":
                state, numbers = self.instruct(course, networks, state, number, self.guide_epochs)
            else:
                state, numbers = self.follow(course, networks, state, number)
            row |= numbers
        return state, row

    def instruct(
        self,
        course: Course,
        networks: Networks,
        state: State,
        number: int,
        epochs: int,
        warming: bool = False,
    ) -> tuple[State, Row]:
        """The state after ``epochs`` of the guide; the numbers are means over their batches.

        ``warming`` is the warm-up before round 1, with lambda and delta of that round.
        """
        model, guide = networks
        assert guide is not None
        w_student, delta = course.restored(state, "student").w, self.allowance(course, number)
        weight = losses.multiplier(number - 1, self.lambda_min, self.lambda_max, self.period(course))
        batches = list[Tensor]()

        def objective(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
            taught = course.outputs(batch, self.reads_maps)
            with torch.no_grad():
                outputs = model.call(self.call, w_student, batch.x)
            g, buffers = guide.train_outputs(w, self.seen(taught))
            cost = self.cost(taught, self.logits(outputs), batch.y, g)
            batches.append(torch.stack([g.mean(), (g > 0.5).to(g.dtype).mean(), cost]).detach())
            left = self.remaining(state, taught, outputs, batch.y, g) + self.for_guide(taught, g)
            return left + weight * (cost - delta).relu(), buffers

        number = 0 if warming else number  # whose epochs have other batches
        state, _ = self.train(course, "guide", guide, state, number, epochs, objective, self.guide_lr)
        mean, share, cost = torch.stack(batches).mean(0).tolist()
        return state, {"lambda": weight, "delta": delta, "guide": mean, "guided": share, "budget": cost}

    def follow(self, course: Course, networks: Networks, state: State, number: int) -> tuple[State, Row]:
        """The state after the student's epochs with the guide fixed."""
        guide = networks.guide
        assert guide is not None
        w_guide = course.restored(state, "guide").w

        def loss(outputs: Any, batch: Batch) -> Tensor:
            taught = course.outputs(batch, self.reads_maps)
            with torch.no_grad():
                g = guide.outputs(w_guide, self.seen(taught))
            return self.remaining(state, taught, outputs, batch.y, g)

        return self.teach(course, networks, state, number, loss)

    def allowance(self, course: Course, number: int) -> float:
        """delta in round ``number``."""
        first = course.error if self.delta is None else self.delta
        if self.delta_end is None or self.delta_period is None:
            return first
        return losses.allowance(number - 1, first, self.delta_end, self.delta_period, self.delta_decay)

    def cost(self, taught: Outputs, logits: Tensor, y: Tensor, g: Tensor) -> Tensor:
        """The left side of the budget, scalar. Its divisor counts wrong labels, as in the authors' code."""
        target = y if self.against == "label" else taught.logits.argmax(-1)
        costs = cross_entropy(logits, target, reduction="none")
        return losses.guided_cost(g, costs, logits.argmax(-1) != y, self.over, self.max_ce)

    @torch.no_grad()
    def guidance(self, course: Course, networks: Networks, state: State) -> tuple[Tensor, Tensor]:
        """g [n], and True for samples that the student predicts correctly [n], without augmentation."""
        model, guide = networks
        assert guide is not None
        (student, _), (w_guide, _) = (course.restored(state, name) for name in ("student", "guide"))
        values, right = list[Tensor](), list[Tensor]()
        for batch in Samples.all_of(course.train).chunks(model.dtype):
            taught = outputs_of(course.teacher, batch.x, self.reads_maps)
            values.append(guide.outputs(w_guide, self.seen(taught)))
            right.append(model.outputs(student, batch.x).argmax(-1) == batch.y)
        return torch.cat(values), torch.cat(right)


@register("disk", "DiSK")
class DiSK(Guided):
    """Eq. 6.5: alpha cross-entropy + (1 - alpha) guided distillation (6.4)."""

    preset: str = option(
        "paper",
        "defaults of this entry, from the text or from the authors' code",
        choices=("paper", "release"),
    )
    alpha: float = option(0.1, "weight of cross-entropy", ge=0, le=1, grid=(0, 0.1, 0.5, 0.9, 1))
    tau: float = option(4.0, "temperature of the teacher", gt=0)
    tau_s: float | None = option(
        None, "temperature of the student; null = tau", gt=0, grid=(1, 2, 4), source="code: 3.5"
    )
    fit_tau_s: bool = option(False, "fit the temperature of the first student to the teacher's outputs")
    top_k: int | None = option(
        None,
        "top classes of the teacher that the guide helps; null = a fifth, the published 20 of 100",
        symbol="K",
        ge=1,
        grid=(1, 3, 5, 10, 20, 50),
    )
    label_in_mask: bool = option(False, "the guide helps the label's class too", source="code: true")
    target: str = option(
        "teacher",
        "the teacher's whole distribution, or only the classes that the guide helps, with other logits "
        "set to the smallest (masked) or to 0 (masked_zero)",
        choices=("teacher", "masked", "masked_zero"),
        source="code: masked",
    )
    log_normalizer: bool = option(
        False, "the guide minimizes (1 - alpha) mean log(1 + K g) too", source="code: true"
    )

    @classmethod
    def parse(cls, values: Mapping[str, Any], section: str | None = None) -> Self:
        if isinstance(values, Mapping) and values.get("preset") == "release":
            values = {**RELEASE, **values}
        return super().parse(values, section)

    def validate(self) -> None:
        super().validate()
        if self.fit_tau_s and self.tau_s is not None:
            raise BadInput(f"{self.section}.tau_s", self.tau_s, "null with fit_tau_s")

    def check(self, course: Course) -> None:
        super().check(course)
        classes = course.student.model.classes
        if self.top_k is not None and self.top_k >= classes:
            accepted = f"less than {classes}, the number of classes, such as a fifth: {max(1, classes // 5)}"
            release = self.preset == "release" and self.top_k == RELEASE["top_k"]
            accepted += "; the 10 of preset: release are for 100 classes" if release else ""
            raise BadInput("top_k", self.top_k, accepted)

    def start(self, course: Course, networks: Networks) -> State:
        state = super().start(course, networks)
        return state | ({"tau_s": self.fitted(course)} if self.fit_tau_s else {})

    @torch.no_grad()
    def fitted(self, course: Course) -> Tensor:
        """The temperature [] of the student that is closest to the teacher on all training samples."""
        pairs = [
            (course.student.outputs(batch.x), course.teacher.outputs(batch.x))
            for batch in Samples.all_of(course.train).chunks(course.student.model.dtype)
        ]
        student, teacher = (torch.cat(outputs) for outputs in zip(*pairs, strict=True))
        return torch.tensor(losses.student_temperature(student, teacher, self.tau), dtype=torch.float64)

    def logits(self, outputs: Any) -> Tensor:
        return outputs

    def helped(self, taught: Outputs) -> int:
        """K."""
        return self.top_k or max(1, taught.logits.shape[1] // 5)

    def for_guide(self, taught: Outputs, g: Tensor) -> Tensor | float:
        if not self.log_normalizer:
            return 0.0
        return (1 - self.alpha) * losses.log_normalizer(g, self.helped(taught))

    def remaining(self, state: State, taught: Outputs, outputs: Any, y: Tensor, g: Tensor) -> Tensor:
        mask = losses.top_classes(taught.logits, self.helped(taught))
        if self.label_in_mask:
            mask = mask.scatter(1, y[:, None], True)
        if self.target == "teacher":
            target = (taught.logits / self.tau).softmax(-1)
        else:
            fill = "smallest" if self.target == "masked" else "zero"
            target = losses.masked_target(taught.logits, mask, self.tau, fill)
        tau_s = self.tau if self.tau_s is None else self.tau_s
        tau_s = state["tau_s"].item() if "tau_s" in state else tau_s
        distance = losses.guided(outputs, target, mask, g, self.tau, tau_s)
        return self.alpha * cross_entropy(outputs, y) + (1 - self.alpha) * distance


@register("simkd_disk", "SimKD with DiSK")
class GuidedSimKD(Guided, SimKD):
    """Eq. A.1: mean (1 - g) times the mean squared error of the student's projected last map.

    *Ambiguous*: the training of the guide is not described. Here it minimizes the same plus lambda times the
    budget, with the cross-entropy of SimKD's prediction.
    """

    def logits(self, outputs: Any) -> Tensor:
        return outputs[0]

    def remaining(self, state: State, taught: Outputs, outputs: Any, y: Tensor, g: Tensor) -> Tensor:
        return ((1 - g) * losses.map_errors(outputs[1], taught.maps[-1])).mean()
