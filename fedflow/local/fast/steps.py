"""The choice of the form of a local step: in place by layer, a cohort by layer, or the general one."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflow.local.fast.pieces import Pieces, Product, pull_by_layer
from fedflow.local.optimizer import Pull, SGDState
from fedflow.local.precision import tf32
from fedflow.local.samples import Batch
from fedflow.local.task import Cost, Task

Rate = Callable[[], float | Tensor]  # the learning rate of the step that is taken


class Steps(NamedTuple):
    """Local steps: the first ``state``, ``step(state, batch)`` to the next one and its loss, and the vector.

    ``vector(state)`` [D] is the model of a state.
    """

    state: Any
    step: Callable[[Any, Batch], tuple[Any, Tensor]]
    vector: Callable[[Any], Tensor]


StepFunction = Callable[[Tensor, Rate, Tensor | None, Pull | None, Cost | None], Steps]


def step_for(task: Task) -> StepFunction | None:
    """The fast form of plain SGD on the data loss, with the bits of the general form, or None.

    It takes the first vector [D], the learning rate, a correction [D] that is added to every step, a penalty
    of the loss, and a function of the loss that is minimized, unless steps are compiled.
    """
    settings = task.training
    changed = settings.with_hook("loss") or settings.clip_norm is not None or task.model.buffers
    usual = not settings.with_hook("begin") if task.vmapped else settings.precision == "float32"
    if changed or not usual or settings.optimizer != "sgd":
        return None
    form = _by_layer if task.vmapped else _in_place
    return partial(form, task)


def _in_place(
    task: Task, start: Tensor, rate: Rate, correction: Tensor | None, pull: Pull | None, cost: Cost | None
) -> Steps:
    settings = task.training
    pieces = Pieces(task.model, start, settings.momentum, settings.weight_decay, correction, pull)

    def step(now: SGDState, batch: Batch) -> tuple[SGDState, Tensor]:
        if compiled := task.compiled_for(batch):
            g: Sequence[Tensor | Product]
            g, loss = compiled.pieces(now.w, batch.x, batch.y)
        else:
            g, loss = pieces.gradient(batch.x, batch.y, cost)
        pieces.descend(g, float(rate()))
        return now, loss

    return Steps(pieces.state, step, lambda state: state.w)


def _by_layer(
    task: Task, start: Tensor, rate: Rate, correction: Tensor | None, pull: Pull | None, cost: Cost | None
) -> Steps:
    """Steps of a cohort, layer by layer: no gradient of the whole vector is ever put together."""
    model, settings = task.model, task.training
    corrections = repeat(None) if correction is None else model.pieces(correction)
    pulls = () if pull is None else pull_by_layer(model, pull)

    def loss(pieces: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, Tensor]:
        with task.autocast(batch.x):
            outputs = model.outputs_of(pieces, batch.x, batch.real)
        value = task.mean_loss(outputs.to(model.dtype), batch)
        return cost(value) if cost else value, value.detach()

    def step(now: tuple[SGDState, ...], batch: Batch) -> tuple[tuple[SGDState, ...], Tensor]:
        with tf32() if settings.precision == "tf32" else nullcontext():
            g, value = torch.func.grad(loss, has_aux=True)(tuple(layer.w for layer in now), batch)
        if pulls:
            g = tuple(p.added(piece, layer.w) for p, layer, piece in zip(pulls, now, g))
        if settings.weight_decay:
            g = tuple(piece + settings.weight_decay * layer.w for layer, piece in zip(now, g))
        lr, layers = rate(), zip(now, g, corrections)
        return tuple(layer.descend(piece, lr, settings.momentum, c) for layer, piece, c in layers), value

    first = tuple(task.initial_state(piece) for piece in model.pieces(start))
    return Steps(first, step, lambda state: torch.cat([layer.w.flatten() for layer in state]))
