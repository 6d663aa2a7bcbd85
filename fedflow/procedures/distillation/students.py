"""What all students of a procedure share: networks, samples, rounds, and one epoch of SGD."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.local.central_training import evaluate
from fedflow.local.local_training import LocalTraining
from fedflow.local.optimizer import SGDState
from fedflow.local.samples import Batch, Samples
from fedflow.local.teacher import Teacher
from fedflow.local.trainer import Step, Trainer
from fedflow.models.flat import FlatModel
from fedflow.procedures.distillation.networks import Known, known
from fedflow.procedures.interface import State
from fedflow.seeding import generator

KEPT = 1 << 26  # numbers that are kept of the teacher
Objective = Callable[
    [Tensor, Batch], tuple[Tensor, Tensor | None]
]  # of w [D]: its value, and the buffers [Q]


@dataclass(frozen=True)
class Course:
    """What all parts share. ``student`` was trained without the teacher; all students start from it.

    A round of DiSK has ``student_epochs``; ``training`` is one epoch of SGD, at the first learning rate.
    """

    seed: int
    rounds: int
    student_epochs: int
    train: Examples
    test: Examples
    student: Teacher
    teacher: Teacher
    training: LocalTraining
    _kept: dict[str, list[Tensor]] = field(default_factory=dict)  # what the teacher knows of all samples

    @cached_property
    def some(self) -> Tensor:
        """Two inputs, for shapes."""
        return self.train.inputs(torch.arange(2, device=self.train.device), self.student.model.dtype)

    def logits(self, batch: Batch) -> Tensor:
        """The teacher's outputs [B, C] for a batch of training samples."""
        return self._looked_up(batch, "logits", lambda x: [self.teacher.outputs(x)])[0]

    def known(self, batch: Batch, maps: bool) -> Known:
        """What the teacher knows of a batch of training samples; see `known`."""

        def read(x: Tensor) -> list[Tensor]:
            logits, features, found = known(self.teacher, x, maps)
            return [logits, features, *found]

        logits, features, *found = self._looked_up(batch, f"known {maps}", read)
        return Known(logits, features, found)

    def _looked_up(self, batch: Batch, name: str, read: Callable[[Tensor], list[Tensor]]) -> Sequence[Tensor]:
        """``read`` of the inputs of a batch; of all samples, once, if they are not augmented and it fits."""
        if name not in self._kept:
            numbers = len(self.train) * sum(part[0].numel() for part in read(self.some))
            alike = self.training.augment == "none" and numbers <= KEPT
            chunks = Samples.all_of(self.train).chunks(self.student.model.dtype) if alike else ()
            self._kept[name] = [torch.cat(parts) for parts in zip(*(read(each.x) for each in chunks))]
        whole = self._kept[name]
        return [part[batch.positions] for part in whole] if whole else read(batch.x)

    @cached_property
    def error(self) -> float:
        """The share of the training samples that the student gets wrong before it is taught."""
        return 1 - float(evaluate(*self.student, self.train)[1].mean())

    def epoch(
        self,
        key: tuple[str, int],
        model: FlatModel,
        now: SGDState,
        objective: Objective,
        lr: float,
        weight_decay: float | None,
    ) -> tuple[SGDState, float]:
        """The state after one epoch on ``objective``, and the mean loss of its steps.

        ``key`` is that of its order and views: of whom, and the number of the epoch.
        """
        purpose, number = key
        rng = generator(self.seed, f"distillation/{purpose}", number)
        decay = self.training.weight_decay if weight_decay is None else weight_decay
        training = replace(self.training, weight_decay=decay)
        trainer = Trainer.central(model, self.train, training, rng, lr=lr)

        def step(now: SGDState, batch: Batch) -> tuple[SGDState, Tensor]:
            w = now.w.detach().requires_grad_()
            value, buffers = objective(w, batch)
            (g,) = torch.autograd.grad(value, w)
            value = value.detach()
            return trainer.descend(now, Step(model.trainable(g), value, buffers)), value  # type: ignore[return-value]

        return trainer.run_steps(step, now), trainer.train_loss.item()

    def started(self, w: Tensor, name: str) -> State:
        """``w`` [D] before its first step, as part of a state."""
        return packed(SGDState(w, torch.zeros_like(w) if self.training.momentum else None), name)

    def restored(self, state: State, name: str) -> SGDState:
        """What was `packed`."""
        w, velocity = (state.get(f"{name}.{part}") for part in SGDState._fields)
        assert w is not None
        device = self.train.device
        return SGDState(w.to(device), None if velocity is None else velocity.to(device))


def packed(now: SGDState, name: str) -> State:
    """A network in training as part of a state."""
    return {f"{name}.{part}": value for part, value in now._asdict().items() if value is not None}
