"""Local steps: the training loop of clients, servers, central networks and encoders.

The same code serves the plain loop (tensors of one client) and ``torch.func.vmap`` over a cohort (each tensor
stands for one client of many, ragged ends masked). So it uses tensor operations only and never branches in
Python on tensor values. docs/decisions/0006 says how to extend it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.local import measures
from fedflow.local.extensions.extension import Drawing, Extension
from fedflow.local.fast.steps import Steps, step_for
from fedflow.local.local_training import LocalTraining
from fedflow.local.optimizer import Moving, Pull, SGDState
from fedflow.local.precision import tf32
from fedflow.local.samples import Batch, Samples
from fedflow.local.schedule import Schedule, shuffled
from fedflow.local.task import Cost, Loss, Task
from fedflow.models.flat import FlatModel

HELD = 16 << 20  # numbers: below this size, inputs are normalized once instead of in every step

# A tuple of tensors, None, numbers, and tuples of them such as `SGDState`.
State = TypeVar("State", bound=tuple[Any, ...])


class Step(NamedTuple):
    """The result of `Trainer.gradient` on one batch.

    ``gradient`` [D], zero on buffers; ``loss``, the training loss that is recorded, scalar; ``buffers`` [Q]
    after this batch, None if unchanged.
    """

    gradient: Tensor
    loss: Tensor
    buffers: Tensor | None


class Trainer:
    """Local training on a set of samples.

    Attributes: ``own`` (its `Samples`), ``samples`` (n, scalar tensor), ``lr`` (learning rate of the round,
    or of the step during a local step; a scalar tensor in a cohort if it changes between rounds),
    ``train_loss`` (mean of the recorded losses of the last training, scalar), ``trained`` (the model [D]
    after the last `fit` or `full_step`, unless the method sets another), ``last`` (``trained`` of the
    client's last participation, if an extension compares), ``records`` (scalars that extensions record, by
    name), ``t`` (number of the round, a scalar tensor; 0 without rounds), ``rounds`` (of the run).
    """

    def __init__(self, task: Task, own: Samples, schedules: Mapping[str, Schedule]) -> None:
        self.model, self.training, self.lr, self.rounds = task.model, task.training, task.lr, task.rounds
        self._task, self.own, self._schedules = task, own, schedules
        self.samples = self._scalar(own.count)
        self.trained: Tensor | None = None
        self.last: Tensor | None = None
        self.records: dict[str, Tensor] = {}
        self.train_loss = torch.zeros((), dtype=self.model.dtype, device=own.rows.device)

    @classmethod
    def central(
        cls,
        model: FlatModel,
        examples: Examples,
        training: LocalTraining,
        rng: np.random.Generator,
        lr: float | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> "Trainer":
        """A trainer on all ``examples``; ``rng`` draws order, views and dropout's noise.

        ``lr`` replaces the rate of ``training``. Raises `BadInput` if extensions of ``training`` need
        clients, or do not fit ``model``, ``examples`` and the ``inputs`` that they read.
        """
        training.check_central()
        training.check(model, examples, inputs)
        passes = training.passes(len(examples), training.epochs)
        schedule = shuffled(rng, len(examples), training.batch_size, passes)
        if model.draws_noise:
            model.seed_noise(int(rng.integers(1 << 63)))
        drawing = Drawing(training.in_use, schedule, len(examples), passes, lambda purpose: rng)
        schedule = drawing.complete()
        task = Task(model, training, training.lr if lr is None else lr, inputs=inputs or {})
        return cls(task, Samples.all_of(examples), {"batches": schedule.to(examples.device)})

    def on(self, model: FlatModel) -> "Trainer":
        """A trainer of another network ``model`` on the same samples, with the same settings."""
        return Trainer(replace(self._task, model=model, compiled=None), self.own, self._schedules)

    @property
    def t(self) -> Tensor:
        return self._scalar(self._task.t, torch.int64)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs of extensions, by name."""
        return self._task.inputs

    def in_float32(self) -> "Trainer":
        """This trainer, with products in float32 instead of tf32."""
        if self.training.precision != "tf32":
            return self
        training = replace(self.training, precision="float32")
        return Trainer(replace(self._task, training=training), self.own, self._schedules)

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        """The training loss F_k of ``w`` [D] on one batch, scalar, in training mode.

        It is the data loss, as extensions of the training change it.
        """
        return self._changed_loss(self.training.with_hook("loss"), w, batch)[0]

    def _changed_loss(
        self, extensions: Sequence[Extension], w: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor | None]:
        """The loss of the first of these extensions, around the others, and the outputs of the data loss."""
        if not extensions:
            return self._data_loss(w, batch)
        first, *rest = extensions
        return first.loss(self, partial(self._changed_loss, rest), w, batch)

    def data_loss(self, w: Tensor, batch: Batch) -> Tensor:
        """Mean data loss (cross-entropy) of ``w`` [D] on one batch, scalar, in training mode."""
        return self._data_loss(w, batch)[0]

    def data_loss_beside(self, w: Tensor, batch: Batch, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """`data_loss` on an unmasked batch, scalar, and the outputs for it and for other ``inputs``.

        The network is called once, on all of them together.
        """
        assert batch.mask is None, "of methods whose clients train alone"
        outputs, buffers = self.train_outputs(w, torch.cat([batch.x, *inputs]))
        parts = outputs.split([len(batch.x), *map(len, inputs)])
        value = self.model.loss(parts[0], batch.y)
        if batch.seen is not None:
            batch.seen.append((value.detach(), buffers))
        return value, parts

    def data_gradient(self, w: Tensor, batch: Batch) -> Tensor:
        """Gradient [D] of `data_loss` on one batch, zero on buffers, to be differentiated again by ``w``.

        Within `gradient`, which sets the precision of its products.
        """
        if self._task.vmapped:
            return self.model.trainable(torch.func.grad(self.data_loss)(w, batch))
        with torch.enable_grad():  # not `torch.func`, in which BatchNorm cannot count its batches
            at = w if w.requires_grad else w.detach().requires_grad_()
            (g,) = torch.autograd.grad(self.data_loss(at, batch), at, create_graph=w.requires_grad)
        return self.model.trainable(g)

    def features(self, w: Tensor, batch: Batch) -> Tensor:
        """Inputs [B, d] of the last linear layer of ``w`` [D], in training mode."""
        with self._task.autocast(batch.x):
            return self.model.features(w, batch.x, train=True, real=batch.real).to(self.model.dtype)

    def losses(self, w: Tensor) -> Tensor:
        """Data loss of ``w`` [D] on each sample [n], in evaluation mode; NaN for the padding of a cohort."""
        return measures.losses(self.model, self.own, w)

    def full_loss(self, w: Tensor) -> Tensor:
        """Mean data loss of ``w`` [D] over all samples, scalar, in evaluation mode."""
        return measures.mean(self.model, self.own, w, self.model.losses)

    def full_accuracy(self, w: Tensor) -> Tensor:
        """Share of all samples that ``w`` [D] predicts correctly, scalar, in evaluation mode."""
        return measures.mean(self.model, self.own, w, self.model.hits)

    def full_gradient(self, w: Tensor, loss: Loss | None = None) -> Tensor:
        """Gradient [D] of ``loss`` (default: `Trainer.loss`) over all samples as they are; 0 on buffers."""
        return self._full_gradient(w, loss).gradient

    def full_pass(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient [D] of `full_gradient`, and ``w`` [D] with the buffers after these samples."""
        step = self._full_gradient(w)
        self.train_loss = step.loss
        return step.gradient, self._with(w, step.buffers)

    def full_step(self, w: Tensor) -> Tensor:
        """``w`` [D] after one step of gradient descent on all samples, chunk by chunk.

        The same as `fit` for one epoch with ``batch_size: 0`` and no momentum, for any number of samples.
        """
        step = self._full_gradient(w)
        self.train_loss = step.loss
        self.trained = self.descend(SGDState(w, None), step).w
        return self.trained

    def steps(self, stream: str = "batches") -> Tensor:
        """The number tau_k of local steps that this client takes, scalar tensor."""
        schedule = self._schedules[stream]
        return self._scalar(len(schedule) if schedule.active is None else schedule.active.sum())

    def rates(self) -> Tensor:
        """eta_i / eta of all local steps [S]; 0 for steps that this client does not take."""
        schedule = self._schedules["batches"]
        steps = torch.arange(len(schedule), dtype=self.model.dtype, device=self.own.rows.device)
        rates: Tensor = torch.ones_like(steps) * self.training.lr_factor(steps)
        return rates if schedule.active is None else rates * schedule.active

    def traveled(self, lr: float | Tensor | None = None) -> Tensor:
        """The sum of the rates eta_i of all local steps, scalar; ``lr`` is eta (default: of the round)."""
        return self.rates().sum() * (self.lr if lr is None else lr)

    def fit(
        self,
        loss: Loss | None = None,
        *,
        start: Tensor,
        stream: str = "batches",
        lr: float | None = None,
        correction: Tensor | None = None,
        decay: Tensor | float | None = None,
        pull: Pull | None = None,
        cost: Cost | None = None,
    ) -> Tensor:
        """The vector [D] after local steps from ``start`` on the batches of ``stream``.

        ``loss`` defaults to `Trainer.loss`, ``lr`` to the rate of each step. ``correction`` [D] is added to
        every step outside the momentum buffer (SGD only); ``decay`` is added to the weight decay; ``pull`` is
        a penalty added to the loss, but not recorded. ``cost`` is a function of the loss of a batch, which is
        minimized in its place. The network itself updates its buffers.
        """
        task, plain = self._task, loss is None and decay is None and not isinstance(lr, Tensor)
        fast = step_for(task) if plain and not (cost and task.compiled) else None
        if fast is not None:
            steps = fast(start, lambda: self.lr if lr is None else lr, correction, pull, cost)
        else:
            value = loss or self.loss
            objective = (lambda w, batch: cost(value(w, batch))) if cost else loss

            def step(now: Moving, batch: Batch) -> tuple[Moving, Tensor]:
                gradient = self.gradient(now.w, batch, objective)
                if pull is not None:
                    gradient = self.pulled(gradient, now.w, pull)
                return self.descend(now, gradient, lr=lr, correction=correction, decay=decay), gradient.loss

            steps = Steps(task.initial_state(start), step, lambda state: state.w)
        self.trained = steps.vector(self.run_steps(steps.step, steps.state, (stream,)))
        return self.trained

    def run_steps(
        self, step: Callable[..., tuple[State, Tensor]], start: State, streams: Sequence[str] = ("batches",)
    ) -> State:
        """The loop of `fit`, for methods that define their own step: the state after all local steps.

        ``step(state, batch)`` returns the next state and its training loss, scalar; the mean over the steps
        is recorded. With several ``streams``, which must have equally many epochs, it gets a batch of each.
        `Trainer.lr` is the rate of the step. Padded steps, which come last, have no effect.
        """
        schedules = [self._schedules[stream] for stream in streams]
        for extension in self.training.with_hook("begin"):
            schedules = extension.begin(self, schedules, _first(start))
        steps = zip(*map(self._batches, schedules), schedules[0].steps(), strict=True)
        now, losses, lr = start, torch.zeros_like(self.train_loss), self.lr
        self.model.next_pass()
        for i, (*batches, taken) in enumerate(steps):
            self.model.at_step(i)
            if self.training.lr_within is not None:
                self.lr = lr * self.training.lr_factor(i)
            later, value = step(now, *batches)
            if taken is not None:
                later, value = _where(taken, later, now), value * taken
            now, losses = later, losses + value
        self.train_loss, self.lr = losses / self.steps(streams[0]), lr
        return now

    def initial_state(self, w: Tensor) -> Moving:
        """``w`` [D] at the start of its training."""
        return self._task.initial_state(w)

    def step(self, now: Moving, batch: Batch) -> tuple[Moving, Tensor]:
        """A plain local step on `Trainer.loss`: the next state, and the recorded loss."""
        gradient = self.gradient(now.w, batch)
        return self.descend(now, gradient), gradient.loss

    def gradient(self, w: Tensor, batch: Batch, objective: Loss | None = None) -> Step:
        """One gradient of ``objective`` (default: `Trainer.loss`) at ``w`` [D] on one batch.

        An objective calls `Trainer.loss` with the given batch. If it does so exactly once, the data loss is
        recorded, without side losses and penalties, else the value of the objective. Buffers are taken after
        the first of these calls, and do not change without one.
        """
        objective = objective or self.loss
        if objective == self.loss and (compiled := self._task.compiled_for(batch)):
            return Step(*compiled(w, batch.x, batch.y), None)
        # With a record for this evaluation alone: objectives may be nested.
        batch = replace(batch, seen=[])
        differentiate = _functional_gradient if self._task.vmapped else _autograd_gradient
        with tf32() if self.training.precision == "tf32" else nullcontext():
            g, loss, buffers = differentiate(objective, w, batch)
        return Step(self.model.trainable(g), loss, buffers)

    def pulled(self, step: Step, w: Tensor, pull: Pull) -> Step:
        """``step`` with the gradient of a penalty at ``w`` [D] added, zero on buffers."""
        return step._replace(gradient=self.model.trainable(pull.added(step.gradient, w)))

    def descend(
        self,
        now: Moving,
        step: Step,
        *,
        lr: float | Tensor | None = None,
        correction: Tensor | None = None,
        decay: Tensor | float | None = None,
    ) -> Moving:
        """One step of the optimizer: clipping, then weight decay, momentum or Adam, and ``correction``."""
        w, g, settings = now.w, step.gradient, self.training
        if settings.clip_norm is not None:
            g = g * (settings.clip_norm / g.norm().clamp(min=settings.clip_norm))
        if settings.weight_decay:
            g = g + settings.weight_decay * self.model.trainable(w)
        if decay is not None:
            g = g + decay * self.model.trainable(w)
        rate = self.lr if lr is None else lr
        if isinstance(now, SGDState):
            moved: Moving = now.descend(g, rate, settings.momentum, correction)
        elif correction is None:
            moved = now.descend(g, rate, settings.betas)
        else:
            raise ValueError("steps of Adam have no correction")
        return moved._replace(w=self._with(moved.w, step.buffers))

    def _data_loss(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The data loss, recorded on the batch, and the outputs [B, K]; None from compiled code."""
        outputs = buffers = None
        if w.requires_grad and (compiled := self._task.compiled_for(batch)):
            value = compiled.loss(w, batch.x, batch.y)
        else:
            outputs, buffers = self.train_outputs(w, batch.x, batch.real)
            value = self._task.mean_loss(outputs, batch)
        if batch.seen is not None:
            batch.seen.append((value.detach(), buffers))
        return value, outputs

    def train_outputs(self, w: Tensor, x: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Outputs [B, .] in training mode, and the buffers [Q] after this batch (None if unchanged).

        ``real`` [B] is false for the padding of a cohort (None: no padding).
        """
        with self._task.autocast(x):
            outputs, buffers = self.model.train_outputs(w, x, real=real)
        return outputs.to(self.model.dtype), buffers

    def _full_gradient(self, w: Tensor, loss: Loss | None = None) -> Step:
        """The step of the mean of ``loss`` (default: `Trainer.loss`) over all samples.

        Every chunk updates the buffers in turn.
        """
        total, value, after = torch.zeros_like(w), torch.zeros_like(self.train_loss), w
        self.model.next_pass()
        for i, batch in enumerate(self.own.chunks(self.model.dtype)):
            self.model.at_step(i)
            count = len(batch.x) if batch.mask is None else batch.mask.sum()
            g, mean, buffers = self.gradient(after, batch, loss)
            total, value = total + count * g, value + count * mean
            after = self._with(after, buffers)
        buffers = after[self.model.parameters :] if self.model.buffers else None
        return Step(total / self.samples, value / self.samples, buffers)

    def _batches(self, schedule: Schedule) -> Iterator[Batch]:
        held, dtype = None if self._task.vmapped or self.own.numel > HELD else self._held, self.model.dtype
        further = {name: self._batches(batches) for name, batches in schedule.further.items()}
        for positions, mask, numbers in schedule.batches():
            if held is None:
                batch = self.own.batch(positions, mask, dtype)
            else:
                x, y = (values.index_select(0, positions) for values in held)
                batch = Batch(x, y, mask, positions, real=mask)
            for name, values in numbers.items():
                batch.extra[name] = values.to(dtype) if values.is_floating_point() else values
            batch.extra |= {name: next(batches) for name, batches in further.items()}
            for extension in self.training.with_hook("batch"):
                batch = extension.batch(batch)
            yield batch

    @cached_property
    def _held(self) -> tuple[Tensor, Tensor]:
        rows, examples = self.own.rows, self.own.examples
        return examples.inputs(rows, self.model.dtype), examples.targets(rows)

    def _with(self, w: Tensor, buffers: Tensor | None) -> Tensor:
        """``w`` [D] with these ``buffers`` [Q], if any."""
        return w if buffers is None else torch.cat([w[: self.model.parameters], buffers])

    def _scalar(self, value: Tensor | float, dtype: torch.dtype | None = None) -> Tensor:
        dtype, device = dtype or self.model.dtype, self.own.rows.device
        if isinstance(value, Tensor):
            return value.to(device, dtype)
        return torch.full((), value, dtype=dtype, device=device)  # a copy from the host would stall a GPU


def _autograd_gradient(objective: Loss, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradient [D] of the objective, the loss to record, and the buffers after it."""
    leaf = w.detach().requires_grad_()
    value = objective(leaf, batch)
    (g,) = torch.autograd.grad(value, leaf)
    return g, *_recorded(value, batch)


def _functional_gradient(objective: Loss, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
    """The result of `_autograd_gradient` under ``torch.func.vmap``."""

    def with_record(w: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        value = objective(w, batch)
        loss, buffers = _recorded(value, batch)
        return value, (loss, () if buffers is None else buffers)

    g, (loss, buffers) = torch.func.grad(with_record, has_aux=True)(w)
    return g, loss, buffers if isinstance(buffers, Tensor) else None


def _recorded(value: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """The loss to record and the buffers, of an objective with this value."""
    data, buffers = batch.seen[0] if batch.seen else (value, None)
    return (data if batch.seen and len(batch.seen) == 1 else value).detach(), buffers


def _first(state: Any) -> Tensor:
    """The first tensor of a state."""
    return _first(state[0]) if isinstance(state, tuple) else state


def _where(active: Tensor, new: Any, old: Any) -> Any:
    """``new`` where ``active``, else ``old``: two states of equal form.

    Numbers are ``new``: the count of `AdamState` matters only while steps are active.
    """
    if isinstance(new, tuple):
        parts = [_where(active, n, o) for n, o in zip(new, old)]
        return type(new)(*parts) if hasattr(new, "_fields") else tuple(parts)
    return torch.where(active, new, old) if isinstance(new, Tensor) else new
