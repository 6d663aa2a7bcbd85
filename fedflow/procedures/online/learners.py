"""Online meta-learners: the tasks they keep, and their updates of the meta-model w.

Notation of the thesis (whose text lost its bars): ``w`` is w^t, ``center`` is w-bar^t, and ``linear`` is
lambda^{t-1}, the estimate of the gradient of the last meta-loss at w^t. ``descend`` takes K stochastic steps
from w on the meta-loss of the readable tasks plus the regularizer, whose gradient is `pull`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from fedflow.choice import Choice
from fedflow.errors import BadInput
from fedflow.procedures.interface import State
from fedflow.settings import option, registering


class Round(Protocol):
    """Computations of a round: a `Lesson`, or exact solutions for losses in closed form."""

    @property
    def alpha(self) -> float: ...

    def descend(self, w: Tensor, pull: Callable[[Tensor], Tensor | float]) -> Tensor: ...

    def fit(self, w: Tensor) -> Tensor: ...

    def gradient(self, w: Tensor, current: bool = False) -> Tensor: ...


class Learner(Choice):
    """Base of all learners. Grids that are not given are the procedure's."""

    section: ClassVar[str] = "procedures.learners"
    plural: ClassVar[str] = "learners"
    key: ClassVar[str] = "learner"
    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    has_alpha: ClassVar[bool] = False
    trains: ClassVar[bool] = True
    trains_before: ClassVar[bool] = False  # the current task is evaluated after training on it

    learner: str = option("", "the registered learner; by default the name of the entry")
    gradient_steps: list[int] | None = option(
        None, "grid of gradient steps in a round; null = the procedure's", symbol="K", ge=1
    )
    adaptation_steps: list[int] | None = option(None, "grid of gradient steps of adaptation", ge=0)
    adaptation_lr: list[float] | None = option(None, "grid of step sizes of adaptation", gt=0)
    alpha: list[float] | None = option(None, "grid of the weight of the regularizer", gt=0)

    @classmethod
    def known(cls) -> Mapping[str, type["Learner"]]:
        return LEARNERS

    def validate(self) -> None:
        if self.alpha is not None and not self.has_alpha:
            raise BadInput(f"{self.section}.alpha", self.alpha, f"null: {self.name} has no regularizer")
        if self.gradient_steps is not None and not self.trains:
            accepted = f"null: {self.name} never trains"
            raise BadInput(f"{self.section}.gradient_steps", self.gradient_steps, accepted)

    def begin(self, first: Tensor) -> State:
        """The vectors before the first round, from w^1 [D]. All count as memory."""
        return {"w": first.clone()}

    def keep(self, memory: Tensor, t: int, rng: np.random.Generator) -> Tensor:
        """The tasks in memory in round t, int64 [m], from the last ``memory``: readable until round t + 1.

        The current task ``t`` is readable in any case. By default it replaces all others.
        """
        return memory.new_tensor([t])

    def learn(self, now: State, lesson: Round) -> State:
        """The vectors after a round."""
        raise NotImplementedError


LEARNERS: dict[str, type[Learner]] = {}
register = registering(LEARNERS, Learner)


@register("fs", "From scratch")
class FromScratch(Learner):
    """Adapt to every task from the first model, which is never trained."""

    trains = False

    def keep(self, memory: Tensor, t: int, rng: np.random.Generator) -> Tensor:
        return memory

    def learn(self, now: State, lesson: Round) -> State:
        return now


@register("toe", "Train on everything")
class TrainOnEverything(Learner):
    """In every round, plain steps from the first model on the union of all tasks.

    As in the authors' code, the current task is evaluated after training on it.
    """

    trains_before = True

    def begin(self, first: Tensor) -> State:
        return {"w": first.clone(), "first": first.clone()}

    def keep(self, memory: Tensor, t: int, rng: np.random.Generator) -> Tensor:
        return torch.cat([memory, memory.new_tensor([t])])

    def learn(self, now: State, lesson: Round) -> State:
        return {**now, "w": lesson.fit(now["first"])}


@register("mogd", "MOGD")
class MOGD(Learner):
    """Online gradient descent on the meta-loss of the current task, without a regularizer."""

    def pull(self, now: State, alpha: float, w: Tensor) -> Tensor | float:
        """The gradient at ``w`` of the regularizer."""
        return 0.0

    def learn(self, now: State, lesson: Round) -> State:
        return {"w": lesson.descend(now["w"], partial(self.pull, now, lesson.alpha))}


@register("ftml", "FTML")
class FTML(MOGD):
    """Follow the meta-leader: steps on the meta-losses of all tasks (Finn et al., ICML 2019)."""

    def keep(self, memory: Tensor, t: int, rng: np.random.Generator) -> Tensor:
        return torch.cat([memory, memory.new_tensor([t])])


@register("moml_proximal", "MOML without the linear term")
class Proximal(MOGD):
    """Algorithm 11: MOML with lambda frozen at 0."""

    has_alpha = True

    def begin(self, first: Tensor) -> State:
        return {"w": first.clone(), "center": first.clone()}

    def pull(self, now: State, alpha: float, w: Tensor) -> Tensor | float:
        return alpha * (w - now["center"])

    def learn(self, now: State, lesson: Round) -> State:
        w = lesson.descend(now["w"], partial(self.pull, now, lesson.alpha))
        return {"w": w, "center": (now["center"] + w) / 2}


@register("moml", "MOML")
class MOML(Proximal):
    """Algorithm 6: a linear term against the bias towards the current task, and a proximal term."""

    rule: str = option(
        "linear",
        "lambda from the optimality condition, or from the meta-gradient on all samples in memory",
        choices=("linear", "gradient"),
        source="Appendix A.1.4 (linear), Algorithm 6 (gradient)",
    )

    def begin(self, first: Tensor) -> State:
        return {**super().begin(first), "linear": torch.zeros_like(first)}

    def pull(self, now: State, alpha: float, w: Tensor) -> Tensor | float:
        return alpha * (w - now["center"]) - now["linear"]  # (5.6)

    def learn(self, now: State, lesson: Round) -> State:
        alpha, center = lesson.alpha, now["center"]
        w = lesson.descend(now["w"], partial(self.pull, now, alpha))  # (5.7)
        linear = (
            lesson.gradient(w) if self.rule == "gradient" else now["linear"] - alpha * (w - center)  # (5.10)
        )
        return {"w": w, "center": (center + w - linear / alpha) / 2, "linear": linear}  # (5.8)


@register("bmoml", "B-MOML")
class BMOML(MOML):
    """MOML on the mean meta-loss of a buffer of at most B tasks, sampled as in the authors' code.

    ``averaged_states`` is the printed formula: the linear term is the mean of the last B gradients of single
    tasks, each at the model after its round.
    """

    buffer: int = option(5, "tasks in memory, including the current one", symbol="B", ge=1, grid=(5, 10))
    policy: str = option(
        "last",
        "the last B tasks; or the current task replaces a random one or, with probability accept, the oldest",
        choices=("last", "random_replace", "fifo_coin"),
    )
    accept: float | None = option(None, "fifo_coin: probability of keeping a task", symbol="p", gt=0, le=1)
    states: str = option(
        "single_state", "one lambda, or the mean of B gradients", choices=("single_state", "averaged_states")
    )

    def validate(self) -> None:
        super().validate()
        if (self.accept is None) == (self.policy == "fifo_coin"):
            accepted = "null without fifo_coin" if self.accept else "a number > 0 and <= 1 with fifo_coin"
            raise BadInput(f"{self.section}.accept", self.accept, accepted)
        if self.states == "averaged_states" and self.rule != "linear":
            accepted = "linear, the default: averaged_states are gradients in any case"
            raise BadInput(f"{self.section}.rule", self.rule, accepted)

    def begin(self, first: Tensor) -> State:
        more = {"states": first.new_zeros(0, len(first))} if self.states == "averaged_states" else {}
        return {**super().begin(first), **more}

    def keep(self, memory: Tensor, t: int, rng: np.random.Generator) -> Tensor:
        current = memory.new_tensor([t])
        if len(memory) < self.buffer or self.policy == "last":
            return torch.cat([memory, current])[-self.buffer :]
        if self.policy == "random_replace":
            replaced = torch.arange(self.buffer, device=memory.device) == int(rng.integers(self.buffer))
            return torch.where(replaced, current, memory)
        return torch.cat([memory[1:], current]) if rng.random() < self.accept else memory  # type: ignore[operator]

    def learn(self, now: State, lesson: Round) -> State:
        if self.states == "single_state":
            return super().learn(now, lesson)
        w = lesson.descend(now["w"], partial(self.pull, now, lesson.alpha))
        states = torch.cat([now["states"], lesson.gradient(w, current=True)[None]])[-self.buffer :]
        linear = states.mean(0)
        center = (now["center"] + w - linear / lesson.alpha) / 2
        return {"w": w, "center": center, "linear": linear, "states": states}
