"""Local steps: the one training loop of clients, servers, central networks and encoders.

The same code serves the plain loop (tensors of one client) and ``torch.func.vmap`` over a cohort (each tensor
stands for one client of many, ragged ends masked). So it uses tensor operations only and never branches in
Python on tensor values. How to extend it is in docs/decisions/0006.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.errors import BadInput
from fedflow.local.adaptation import Adaptation, per_class, with_prototypes
from fedflow.local.augment import augmented
from fedflow.local.fast.compiled import Gradient
from fedflow.local.fast.pieces import Pieces, Product
from fedflow.local.local_training import LocalTraining
from fedflow.local.optimizer import AdamState, Moving, SGDState
from fedflow.local.precision import tf32
from fedflow.local.samples import Batch, Samples
from fedflow.local.schedule import Schedule, shuffled
from fedflow.local.teacher import Teacher
from fedflow.models.flat import FlatModel
from fedflow.settings import shown

HELD = 16 << 20  # numbers: below this size, inputs are normalized once instead of in every step

Loss = Callable[[Tensor, Batch], Tensor]
State = TypeVar("State", bound=tuple)  # of tensors, None, numbers, and tuples of them such as `SGDState`


class Step(NamedTuple):
    """The result of `Trainer.gradient` on one batch.

    ``gradient`` [D], zero on buffers; ``loss``, the training loss that is recorded, scalar; ``buffers`` [Q]
    after this batch, None if unchanged.
    """

    gradient: Tensor
    loss: Tensor
    buffers: Tensor | None


@dataclass(frozen=True)
class Task:
    """The settings that all clients of a round share.

    ``lr`` and ``t``, the number of the round, are scalar tensors if a cohort call reads them as inputs;
    ``rounds`` is the number of rounds of the run, ``phase`` that of the method and ``level`` that of the
    clients' network (`Levelled`), all static.
    ``mean_samples`` is the mean of n_k over all clients (None: the client's own n_k). ``difficulty`` [n] is
    an expert's loss on every training sample, also of other clients.
    """

    model: FlatModel
    training: LocalTraining
    lr: float | Tensor
    t: int | Tensor = 0
    rounds: int = 0
    phase: str = ""
    level: str = ""
    mean_samples: float | None = None
    vmapped: bool = False
    compiled: Gradient | None = None
    teacher: Teacher | None = None
    difficulty: Tensor | None = None


class Trainer:
    """Local training on a set of samples.

    Attributes: ``samples`` (n, scalar tensor), ``lr`` (learning rate of the round, during a local step that
    of the step; a scalar tensor in a cohort if it changes between rounds), ``train_loss`` (mean of the
    recorded losses of the last training, scalar), ``trained`` (the model [D] after the last `fit` or
    `full_step`, unless the method sets another), ``last`` (what ``trained`` was in an earlier round, if a
    curriculum needs it), ``difficulty`` (mean of that of the samples at the start of the first training,
    scalar; None if no curriculum sorts them).
    """

    def __init__(self, task: Task, data: Samples, schedules: Mapping[str, Schedule]) -> None:
        self.model, self.training, self.lr = task.model, task.training, task.lr
        self._task, self._data, self._schedules = task, data, schedules
        self.samples = self._scalar(data.count)
        self.trained: Tensor | None = None
        self.last: Tensor | None = None
        self.difficulty: Tensor | None = None
        self.train_loss = torch.zeros((), dtype=self.model.dtype, device=data.index.device)

    @classmethod
    def central(
        cls,
        model: FlatModel,
        examples: Examples,
        training: LocalTraining,
        rng: np.random.Generator,
        lr: float | None = None,
        teacher: Teacher | None = None,
    ) -> "Trainer":
        """A trainer on all ``examples`` in one place; ``rng`` draws order, views and dropout's noise.

        ``lr`` replaces that of ``training``. Raises `BadInput` if ``training`` cannot augment ``examples``,
        or its objective does not fit ``model`` and ``teacher``.
        """
        training.check(model, examples, teacher)
        if training.curriculum is not None:
            raise BadInput("training.curriculum", shown(training.curriculum), "null in central training")
        if training.adaptation is not None:
            raise BadInput("training.adaptation", shown(training.adaptation), "null in central training")
        passes = training.passes(len(examples), training.epochs)
        schedule = shuffled(rng, len(examples), training.batch_size, passes)
        if model.draws_noise:
            model.seed_noise(int(rng.integers(1 << 63)))
        if training.augment != "none":
            schedule = schedule.with_views(training, [rng] * training.views)
        task = Task(model, training, training.lr if lr is None else lr, teacher=teacher)
        return cls(task, Samples.all_of(examples), {"batches": schedule.to(examples.device)})

    def on(self, model: FlatModel) -> "Trainer":
        """A trainer of another network ``model`` on the same samples, with the same settings."""
        return Trainer(replace(self._task, model=model, compiled=None), self._data, self._schedules)

    def _in_float32(self) -> "Trainer":
        """The same trainer, whose products are in float32."""
        training = replace(self.training, precision="float32")
        return Trainer(replace(self._task, training=training), self._data, self._schedules)

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        """What the client minimizes, F_k of ``w`` [D] on one batch, scalar, in training mode.

        The data loss, or `training.objective`; with `training.adaptation`, that of the adapted model. A batch
        without a second view has no loss of robustness: it is 0 for two equal views. Statistics of BatchNorm
        follow the first view.
        """
        objective, adaptation = self.training.objective, self.training.adaptation
        if adaptation is not None and batch.support is not None:
            w, batch = adaptation.adapt(self, w, batch)
        value, outputs = self._data_loss(w, batch)
        if objective is None or objective.data_weight == 1:  # side losses would still draw dropout's noise
            return value
        assert outputs is not None, "an objective is not compiled"
        second = target = None
        if objective.two_views and batch.other is not None:
            second = self.train_outputs(w, batch.other, batch.real)[0]
        if objective.taught:
            assert self._task.teacher is not None, "checked by `LocalTraining.check`"
            target = self._task.teacher.outputs(batch.x)
        side = objective.side_losses(outputs, second, target)
        side = side.mean() if batch.mask is None else _mean(side, batch.mask)
        return objective.data_weight * value + (1 - objective.data_weight) * side

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
        with self._autocast(batch.x):
            return self.model.features(w, batch.x, train=True, real=batch.real).to(self.model.dtype)

    def adapted(self, w: Tensor, adaptation: Adaptation) -> Tensor:
        """T(w; all samples) [D] from ``w`` [D], in evaluation mode, in the precision of the model."""
        if self.training.precision == "tf32":
            return self._in_float32().adapted(w, adaptation)
        model, limit = self.model, adaptation.clip_norm

        def loss(v: Tensor, batch: Batch) -> Tensor:
            losses = model.losses(model.outputs(v, batch.x, batch.real), batch.y)
            return losses.mean() if batch.mask is None else _mean(losses, batch.mask)

        if adaptation.name == "proto":
            chunks = self._data.chunks(model.dtype)
            found = [per_class(model.features(w, batch.x, real=batch.real), batch, model) for batch in chunks]
            sums, counts = (torch.stack(each).sum(0) for each in zip(*found, strict=True))
            return with_prototypes(model, w, sums, counts)
        for _ in range(adaptation.steps):
            with self._with_eval_gradients():
                g = self._full_gradient(w, loss).gradient
            if limit is not None:
                g = g * (limit / g.norm().clamp(min=limit))
            w = w - adaptation.lr * g
        return w

    def losses(self, w: Tensor) -> Tensor:
        """Data loss of ``w`` [D] on each sample [n], in evaluation mode; NaN for the padding of a cohort."""
        return self._each(w, self.model.losses)

    def mistakes(self, w: Tensor) -> Tensor:
        """1 for each sample [n] that ``w`` [D] predicts wrongly, else 0; NaN for the padding of a cohort."""
        return self._each(w, lambda outputs, y: 1 - self.model.hits(outputs, y).to(outputs.dtype))

    def disagreement(self, one: Tensor, other: Tensor) -> Tensor:
        """1 for each sample [n] with two predictions by two vectors [D], else 0; NaN for padding."""
        labels = [
            self._each(w, lambda outputs, y: outputs.argmax(-1).to(outputs.dtype)) for w in (one, other)
        ]
        return (labels[0] - labels[1]).abs().clamp(max=1)

    @property
    def expert_losses(self) -> Tensor:
        """The losses of an expert on the samples [n]; NaN for the padding of a cohort."""
        assert self._task.difficulty is not None, "checked when the run starts"
        losses, real = self._task.difficulty[self._data.index].to(self.model.dtype), self._data.real
        return losses if real is None else losses.where(real, torch.nan)

    def full_loss(self, w: Tensor) -> Tensor:
        """Mean data loss of ``w`` [D] over all samples, scalar, in evaluation mode."""
        return self._mean_of(w, self._data, self.model.losses)

    def full_accuracy(self, w: Tensor) -> Tensor:
        """Share of all samples that ``w`` [D] predicts correctly, scalar, in evaluation mode."""
        return self._mean_of(w, self._data, self.model.hits)

    def full_gradient(self, w: Tensor) -> Tensor:
        """Gradient [D] of `Trainer.loss` over all samples, as they are (zero on buffers)."""
        return self._full_gradient(w).gradient

    def full_pass(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient [D] of `full_gradient`, and ``w`` [D] with the buffers after these samples."""
        found = self._full_gradient(w)
        self.train_loss = found.loss
        return found.gradient, self._with(w, found.buffers)

    def full_step(self, w: Tensor) -> Tensor:
        """``w`` [D] after one step of gradient descent on all samples, chunk by chunk.

        The same as `fit` for one epoch with ``batch_size: 0`` and no momentum, for any number of samples.
        """
        found = self._full_gradient(w)
        self.train_loss = found.loss
        self.trained = self.descend(SGDState(w, None), found).w
        return self.trained

    def steps(self, stream: str = "batches") -> Tensor:
        """The number tau_k of local steps that this client takes, scalar tensor."""
        schedule = self._schedules[stream]
        return self._scalar(len(schedule) if schedule.active is None else schedule.active.sum())

    def rates(self) -> Tensor:
        """eta_i / eta of all local steps [S]; 0 for those that this client does not take."""
        schedule = self._schedules["batches"]
        steps = torch.arange(len(schedule), dtype=self.model.dtype, device=self._data.index.device)
        rates = torch.ones_like(steps) * self.training.lr_factor(steps)
        return rates if schedule.active is None else rates * schedule.active

    def travelled(self, lr: float | Tensor | None = None) -> Tensor:
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
    ) -> Tensor:
        """The vector [D] after local steps from ``start`` on the batches of ``stream``.

        ``loss`` defaults to `Trainer.loss`, ``lr`` to the rate of each step. ``correction`` [D] is added to
        every step outside the momentum buffer (SGD only); ``decay`` is added to the weight decay. The network
        itself updates its buffers.
        """

        if loss is None and decay is None and not isinstance(lr, Tensor) and self._plain:
            fit = self._fit_layers if self._task.vmapped else self._fit_pieces
            return fit(start, stream, lr, correction)

        def step(now: Moving, batch: Batch) -> tuple[Moving, Tensor]:
            found = self.gradient(now.w, batch, loss)
            return self.descend(now, found, lr=lr, correction=correction, decay=decay), found.loss

        self.trained = self.run_steps(step, self.initial_state(start), (stream,)).w
        return self.trained

    @property
    def _plain(self) -> bool:
        """Whether local steps are those of plain SGD on the data loss, of a network without buffers."""
        settings, vmapped = self.training, self._task.vmapped
        changed = settings.objective, settings.adaptation, settings.clip_norm
        usual = settings.curriculum is None if vmapped else settings.precision == "float32"
        none = all(each is None for each in changed)
        return usual and none and not self.model.buffers and settings.optimizer == "sgd"

    def _fit_pieces(self, start: Tensor, stream: str, lr: float | None, correction: Tensor | None) -> Tensor:
        """`fit` by `Pieces`, the same bits."""
        settings = self.training
        pieces = Pieces(self.model, start, settings.momentum, settings.weight_decay, correction)

        def step(now: SGDState, batch: Batch) -> tuple[SGDState, Tensor]:
            if compiled := self._compiled_for(batch):
                g: Sequence[Tensor | Product]
                g, loss = compiled.pieces(now.w, batch.x, batch.y)
            else:
                g, loss = pieces.gradient(batch.x, batch.y)
            pieces.descend(g, float(self.lr if lr is None else lr))
            return now, loss

        self.trained = self.run_steps(step, pieces.state, (stream,)).w
        return self.trained

    def _fit_layers(self, start: Tensor, stream: str, lr: float | None, correction: Tensor | None) -> Tensor:
        """`fit` in a cohort, layer by layer: no gradient of the whole vector is ever put together."""
        model, settings = self.model, self.training
        corrections = repeat(None) if correction is None else model.pieces(correction)

        def loss(pieces: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, Tensor]:
            with self._autocast(batch.x):
                outputs = model.outputs_of(pieces, batch.x, batch.real)
            value = self._mean_loss(outputs.to(model.dtype), batch)
            return value, value.detach()

        def step(now: tuple[SGDState, ...], batch: Batch) -> tuple[tuple[SGDState, ...], Tensor]:
            with tf32() if settings.precision == "tf32" else nullcontext():
                g, value = torch.func.grad(loss, has_aux=True)(tuple(own.w for own in now), batch)
            if settings.weight_decay:
                g = tuple(piece + settings.weight_decay * own.w for own, piece in zip(now, g))
            rate, each = self.lr if lr is None else lr, zip(now, g, corrections)
            return tuple(own.descend(piece, rate, settings.momentum, c) for own, piece, c in each), value

        layers = tuple(self.initial_state(piece) for piece in model.pieces(start))
        after = self.run_steps(step, layers, (stream,))
        self.trained = torch.cat([own.w.flatten() for own in after])
        return self.trained

    def run_steps(
        self, step: Callable[..., tuple[State, Tensor]], start: State, streams: Sequence[str] = ("batches",)
    ) -> State:
        """The loop of `fit`, for methods that define their own step: the state after all local steps.

        ``step(state, batch)`` returns the next state and its training loss, scalar; the mean over the steps
        is recorded. With several ``streams``, which must have equally many epochs, it gets a batch of each.
        `Trainer.lr` is the rate of the step. Padded steps, which come last, have no effect.
        """
        schedules = self._in_order([self._schedules[stream] for stream in streams], start)
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
        if self.training.optimizer == "adam":
            return AdamState.of(w)
        return SGDState(w, torch.zeros_like(w) if self.training.momentum else None)

    def gradient(self, w: Tensor, batch: Batch, objective: Loss | None = None) -> Step:
        """One gradient of ``objective`` (default: `Trainer.loss`) at ``w`` [D] on one batch.

        An objective calls `Trainer.loss` with the batch that it is given. If it does so exactly once, the
        data loss is recorded, without side losses and penalties; otherwise, the value of the objective is.
        Buffers become those after the first of these calls, and do not change without one.
        """
        objective = objective or self.loss
        if objective == self.loss and (compiled := self._compiled_for(batch)):
            return Step(*compiled(w, batch.x, batch.y), None)
        # With a record for this evaluation alone: objectives may be nested.
        batch = replace(batch, seen=[])
        differentiate = _functional_gradient if self._task.vmapped else _autograd_gradient
        with tf32() if self.training.precision == "tf32" else nullcontext():
            g, loss, buffers = differentiate(objective, w, batch)
        return Step(self.model.trainable(g), loss, buffers)

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
        if w.requires_grad and (compiled := self._compiled_for(batch)):
            value = compiled.loss(w, batch.x, batch.y)
        else:
            outputs, buffers = self.train_outputs(w, batch.x, batch.real)
            value = self._mean_loss(outputs, batch)
        if batch.seen is not None:
            batch.seen.append((value.detach(), buffers))
        return value, outputs

    def _mean_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        if batch.mask is None:
            return self.model.loss(outputs, batch.y)
        return _mean(self.model.losses(outputs, batch.y), batch.mask)

    def train_outputs(self, w: Tensor, x: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Outputs [B, .] in training mode, and the buffers [Q] after this batch (None if unchanged).

        ``real`` [B]: which samples are not the padding of a cohort (None: all).
        """
        with self._autocast(x):
            outputs, buffers = self.model.train_outputs(w, x, real=real)
        return outputs.to(self.model.dtype), buffers

    def _autocast(self, x: Tensor) -> AbstractContextManager:
        if self.training.precision != "bf16":
            return nullcontext()
        return torch.autocast(x.device.type, torch.bfloat16)

    def _with_eval_gradients(self) -> AbstractContextManager:
        """Where a network in evaluation mode has gradients: cuDNN has none of recurrent layers."""
        missing = self.model.recurrent and self.model.device.type == "cuda"
        return torch.backends.cudnn.flags(enabled=False) if missing else nullcontext()

    def _evaluate(
        self, w: Tensor, data: Samples, measure: Callable[[Tensor, Tensor], Tensor]
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """``measure(outputs, targets)`` [B] of each sample, and the mask of those that count, by chunk."""
        for batch in data.chunks(self.model.dtype):
            yield measure(self.model.outputs(w, batch.x, batch.real), batch.y), batch.mask

    def _each(self, w: Tensor, measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """A measure of each sample [n], in evaluation mode; NaN for the padding of a cohort."""
        return torch.cat(
            [
                values if mask is None else values.where(mask, torch.nan)
                for values, mask in self._evaluate(w, self._data, measure)
            ]
        )

    def _mean_of(self, w: Tensor, data: Samples, measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Mean of a measure over ``data``, scalar, in evaluation mode; NaN without samples."""
        total = torch.zeros_like(self.train_loss)
        for values, mask in self._evaluate(w, data, measure):
            total = total + (values if mask is None else values * mask).sum()
        return total / self._scalar(data.count)

    def _full_gradient(self, w: Tensor, loss: Loss | None = None) -> Step:
        """The step of the mean of ``loss`` (default: `Trainer.loss`) over all samples.

        Every chunk updates the buffers in turn.
        """
        total, value, after = torch.zeros_like(w), torch.zeros_like(self.train_loss), w
        self.model.next_pass()
        for i, batch in enumerate(self._data.chunks(self.model.dtype)):
            self.model.at_step(i)
            count = len(batch.x) if batch.mask is None else batch.mask.sum()
            g, found, buffers = self.gradient(after, batch, loss)
            total, value = total + count * g, value + count * found
            after = self._with(after, buffers)
        buffers = after[self.model.parameters :] if self.model.buffers else None
        return Step(total / self.samples, value / self.samples, buffers)

    def _in_order(self, schedules: list[Schedule], start: State) -> list[Schedule]:
        """Schedules with places in place of ranks, by the difficulty under the first vector of ``start``."""
        curriculum, ties = self.training.curriculum, schedules[0].ties
        if curriculum is None or ties is None:
            return schedules
        order = ties
        if curriculum.scores:
            difficulty = curriculum.difficulty(self, _first(start))
            order = curriculum.sorted(difficulty, ties)
            if self.difficulty is None:
                self.difficulty = difficulty.nansum() / self.samples
        return [schedule.in_order(order) for schedule in schedules]

    def _batches(self, schedule: Schedule) -> Iterator[Batch]:
        """The batches of all steps of a schedule."""
        held = None if self._task.vmapped or self._data.numel > HELD else self._held
        supports = repeat(None) if schedule.support is None else self._batches(schedule.support)
        draws = repeat(None) if schedule.draws is None else schedule.draws.to(self.model.dtype).unbind(0)
        for (positions, mask, views), support, drawn in zip(schedule.batches(), supports, draws):
            if held is None:
                batch = self._data.batch(positions, mask, self.model.dtype)
            else:
                x, y = (values.index_select(0, positions) for values in held)
                batch = Batch(x, y, mask, positions, real=mask)
            if views is not None:
                x, *others = (augmented(batch.x, view) for view in views.unbind(-2))
                batch = replace(batch, x=x, other=others[0] if others else None)
            yield batch if support is None and drawn is None else replace(batch, support=support, draws=drawn)

    @cached_property
    def _held(self) -> tuple[Tensor, Tensor]:
        """All inputs, normalized, and targets."""
        index, examples = self._data.index, self._data.examples
        return examples.inputs(index, self.model.dtype), examples.targets(index)

    def _compiled_for(self, batch: Batch) -> Gradient | None:
        plain = self.training.objective is None and self.training.adaptation is None
        compiled = self._task.compiled if plain else None
        return compiled if compiled and batch.mask is None and compiled.takes(batch.x, batch.y) else None

    def _with(self, w: Tensor, buffers: Tensor | None) -> Tensor:
        """``w`` [D] with these ``buffers`` [Q], if any."""
        return w if buffers is None else torch.cat([w[: self.model.parameters], buffers])

    def _scalar(self, value: Tensor | float, dtype: torch.dtype | None = None) -> Tensor:
        """A scalar tensor, created on the device: a copy from the host would stall the GPU."""
        dtype, device = dtype or self.model.dtype, self._data.index.device
        if isinstance(value, Tensor):
            return value.to(device, dtype)
        return torch.full((), value, dtype=dtype, device=device)


def _autograd_gradient(objective: Loss, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradient [D] of the objective, the loss to record, and the buffers after it."""
    leaf = w.detach().requires_grad_()
    value = objective(leaf, batch)
    (g,) = torch.autograd.grad(value, leaf)
    return g, *_recorded(value, batch)


def _functional_gradient(objective: Loss, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
    """The result of `_autograd_gradient` under ``torch.func.vmap``."""

    def with_record(w: Tensor) -> tuple[Tensor, tuple]:
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

    What is not a tensor is ``new``: the count of `AdamState` matters only while steps are active.
    """
    if isinstance(new, tuple):
        parts = [_where(active, n, o) for n, o in zip(new, old)]
        return type(new)(*parts) if hasattr(new, "_fields") else tuple(parts)
    return torch.where(active, new, old) if isinstance(new, Tensor) else new


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``values`` [B] over a mask [B]; 0 where the mask is empty (a padded step)."""
    return (values * mask).sum() / mask.sum().clamp(min=1)
