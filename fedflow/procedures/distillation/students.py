"""Networks, samples and rounds shared by all students of a procedure, and one epoch of SGD."""

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
from fedflow.procedures.distillation.networks import Outputs, outputs_of
from fedflow.procedures.interface import State
from fedflow.seeding import generator

KEPT = 1 << 26  # most numbers of the teacher's outputs that are kept
Objective = Callable[[Tensor, Batch], tuple[Tensor, Tensor | None]]  # of w [D]: value and buffers [Q]


@dataclass(frozen=True)
class Course:
    """Inputs of all parts. All students start from ``student``, which was trained without the teacher.

    A round of DiSK has ``student_epochs``; ``training`` is one epoch of SGD at the first learning rate.
    """

    seed: int
    rounds: int
    student_epochs: int
    train: Examples
    test: Examples
    student: Teacher
    teacher: Teacher
    training: LocalTraining
    _kept: dict[str, list[Tensor]] = field(default_factory=dict)  # the teacher's outputs for all samples

    @cached_property
    def some(self) -> Tensor:
        """Two inputs, for shapes."""
        return self.train.inputs(torch.arange(2, device=self.train.device), self.student.model.dtype)

    def logits(self, batch: Batch) -> Tensor:
        """The teacher's outputs [B, C] for a batch of training samples."""
        return self._looked_up(batch, "logits", lambda x: [self.teacher.outputs(x)])[0]

    def outputs(self, batch: Batch, maps: bool) -> Outputs:
        """`outputs_of` the teacher for a batch of training samples."""

        def read(x: Tensor) -> list[Tensor]:
            logits, features, stages = outputs_of(self.teacher, x, maps)
            return [logits, features, *stages]

        logits, features, *stages = self._looked_up(batch, f"outputs {maps}", read)
        return Outputs(logits, features, stages)

    def _looked_up(self, batch: Batch, name: str, read: Callable[[Tensor], list[Tensor]]) -> Sequence[Tensor]:
        """``read`` for the inputs of a batch, computed once for all samples if they are constant and few."""
        if name not in self._kept:
            numbers = len(self.train) * sum(part[0].numel() for part in read(self.some))
            constant = self.training.augment == "none" and numbers <= KEPT
            chunks = Samples.all_of(self.train).chunks(self.student.model.dtype) if constant else ()
            self._kept[name] = [torch.cat(parts) for parts in zip(*(read(chunk.x) for chunk in chunks))]
        whole = self._kept[name]
        return [part[batch.positions] for part in whole] if whole else read(batch.x)

    @cached_property
    def error(self) -> float:
        """The share of the training samples that the first student predicts wrongly."""
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

        ``key`` seeds order and views: the name of the network, and the number of the epoch.
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
        """A `packed` network."""
        w, velocity = (state.get(f"{name}.{part}") for part in SGDState._fields)
        assert w is not None
        device = self.train.device
        return SGDState(w.to(device), None if velocity is None else velocity.to(device))


def packed(now: SGDState, name: str) -> State:
    """A network in training as part of a state."""
    return {f"{name}.{part}": value for part, value in now._asdict().items() if value is not None}
