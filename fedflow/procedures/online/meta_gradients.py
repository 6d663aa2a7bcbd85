"""Adaptation to a task (MAML), meta-gradients, and the steps of a round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedflow.models.flat import FlatModel
from fedflow.procedures.online.learners import Learner
from fedflow.procedures.online.stream import Rows, Stream, StreamTask
from fedflow.seeding import generator

Batch = tuple[Tensor, Tensor]  # inputs [n, ...] and targets [n]


@dataclass(frozen=True)
class Expert:
    """A learner with one configuration of its grid."""

    entry: str  # the learner's name in the settings
    learner: Learner
    adaptation_steps: int
    adaptation_lr: float
    gradient_steps: int = 0
    alpha: float = 0.0


def clipped(g: Tensor, limit: float | None) -> Tensor:
    """``g`` scaled to norm ``limit`` if it is longer."""
    return g if limit is None else g * (limit / g.norm().clamp(min=limit))


def adapted(
    model: FlatModel,
    w: Tensor,
    support: Batch,
    steps: int,
    lr: float,
    decay: float = 0.0,
    clip_norm: float | None = None,
    differentiable: bool = False,
) -> Tensor:
    """U(w) [D]: ``steps`` gradient steps on ``support``; ``w`` itself without samples.

    If ``differentiable``, ``w`` requires gradients.
    """
    if not len(support[0]):
        return w
    for _ in range(steps):
        at = w if differentiable else w.detach().requires_grad_()
        loss = model.loss(model.outputs(at, support[0]), support[1])
        (g,) = torch.autograd.grad(loss, at, create_graph=differentiable)
        w = w - lr * (clipped(g, clip_norm) + decay * w)
    return w


def meta_gradient(
    model: FlatModel, w: Tensor, support: Batch, query: Batch, steps: int, lr: float, decay: float = 0.0
) -> Tensor:
    """The gradient [D] in ``w`` of the loss of U(w; support) on ``query``, with the second derivatives."""
    w = w.detach().requires_grad_()
    at = adapted(model, w, support, steps, lr, decay, differentiable=True)
    return torch.autograd.grad(model.loss(model.outputs(at, query[0]), query[1]), w)[0]


def accuracy(
    model: FlatModel,
    task: StreamTask,
    w: Tensor,
    expert: Expert,
    clip_norm: float | None,
    rows: np.ndarray | None = None,
) -> float:
    """Accuracy on the task's test samples after adaptation to D_t, or to ``rows`` [n] of it."""
    support = task.train.batch(rows, model.dtype)
    at = adapted(model, w, support, expert.adaptation_steps, expert.adaptation_lr, clip_norm=clip_norm)
    with torch.no_grad():
        x, y = task.test.batch(None, model.dtype)
        return model.hits(model.outputs(at, x), y).double().mean().item()


@dataclass(frozen=True)
class Lesson:
    """Computations of round ``number`` for one expert, on the ``readable`` tasks only.

    Random numbers depend on the seed, the round and the step, and are the same for all experts.
    """

    stream: Stream
    expert: Expert
    settings: Any  # `Online`, of which lr, batch_size, weight_decay and clip_norm are used
    number: int
    readable: Sequence[int]

    @property
    def alpha(self) -> float:
        return self.expert.alpha

    def descend(self, w: Tensor, pull: Callable[[Tensor], Tensor | float]) -> Tensor:
        """``gradient_steps`` steps on the meta-loss of the readable tasks plus a term with gradient ``pull``.

        Every step takes a random task, and support and query from a new permutation of it; a task of a single
        batch is permuted again for the query.
        """
        seed, size = self.stream.seed, self.settings.batch_size
        choice = generator(seed, "online task", self.number)
        order = generator(seed, "online batches", self.number)
        for _ in range(self.expert.gradient_steps):
            rows = self.stream.train(self.readable[int(choice.integers(len(self.readable)))])
            shuffled = order.permutation(len(rows))
            other = shuffled[size:] if len(shuffled) > size else order.permutation(len(rows))
            g = self._meta_gradient(w, rows, shuffled[:size], other[:size])
            w = self._step(w, g + pull(w))
        return w

    def fit(self, w: Tensor) -> Tensor:
        """``gradient_steps`` plain steps on mini-batches of the union of the readable tasks."""
        size, rng = self.settings.batch_size, generator(self.stream.seed, "online union", self.number)
        parts = [self.stream.train(t) for t in self.readable]
        union = Rows(parts[0].examples, torch.cat([part.rows for part in parts]))
        order = np.empty(0, np.int64)
        for _ in range(self.expert.gradient_steps):
            order = order if len(order) else rng.permutation(len(union))
            batch, order = union.batch(order[:size], self.stream.model.dtype), order[size:]
            w = self._step(w, meta_gradient(self.stream.model, w, batch, batch, 0, 0.0))
        return w

    def gradient(self, w: Tensor, current: bool = False) -> Tensor:
        """The meta-gradient [D] of the ``current`` task, or the mean over the readable tasks.

        All samples of a task are both support and query.
        """
        tasks = [self.number] if current else self.readable
        gradients = [self._meta_gradient(w, self.stream.train(t), None, None) for t in tasks]
        return torch.stack(gradients).mean(0)

    def _meta_gradient(self, w: Tensor, rows: Rows, *parts: np.ndarray | None) -> Tensor:
        model, expert, decay = self.stream.model, self.expert, self.settings.weight_decay
        support, query = (rows.batch(part, model.dtype) for part in parts)
        return meta_gradient(model, w, support, query, expert.adaptation_steps, expert.adaptation_lr, decay)

    def _step(self, w: Tensor, g: Tensor) -> Tensor:
        settings = self.settings
        return w - settings.lr * (clipped(g, settings.clip_norm) + settings.weight_decay * w)
