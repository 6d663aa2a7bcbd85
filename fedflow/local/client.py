"""What a method sees of one client: its data, what it received, what it keeps, and how to train.

The same object serves the plain loop (tensors of one client) and ``torch.func.vmap`` over a cohort
(each tensor stands for one client of many, ragged ends masked). So a method's code must use tensor
operations only and never branch in Python on tensor values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.local.compiled import Gradient
from fedflow.local.training import LocalTraining
from fedflow.models.flat import FlatModel

EVALUATION_BATCH = 512
HELD = 16 << 20  # numbers: a client's inputs are normalised once, not in every step, where they are fewer


@dataclass
class Batch:
    """Inputs [B, ...], targets [B], and, where a cohort is padded, which samples are real [B]."""

    x: Tensor
    y: Tensor
    mask: Tensor | None = None


Loss = Callable[[Tensor, Batch], Tensor]
MANY = ("vectors", "scalars", "keep", "diagnostics")  # what an `Update` has by name


class SGDState(NamedTuple):
    """A vector in training: its value ``w`` [D] and its momentum ``velocity`` [D] (None without momentum)."""

    w: Tensor
    velocity: Tensor | None


class Step(NamedTuple):
    """What `Client.gradient` finds on one batch.

    ``gradient`` [D], zero on buffers; ``loss``, the training loss that is recorded, scalar; ``buffers`` [Q]
    after this batch, None where they stay as they are.
    """

    gradient: Tensor
    loss: Tensor
    buffers: Tensor | None


State = TypeVar("State", bound=tuple)  # of tensors, None, and tuples of them such as `SGDState`


@dataclass
class Update:
    """What a client sends up and keeps.

    ``vectors`` travel to the server and are averaged with ``weight`` within ``group`` (the cluster);
    ``scalars`` travel too; ``keep`` becomes the client's own state. ``diagnostics`` are scalars that are
    recorded and not sent.
    """

    vectors: dict[str, Tensor]
    weight: Tensor
    group: Tensor
    scalars: dict[str, Tensor] = field(default_factory=dict)
    keep: dict[str, Tensor] = field(default_factory=dict)
    diagnostics: dict[str, Tensor] = field(default_factory=dict)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Update":
        """The same with every tensor changed."""
        many = {kind: {name: change(t) for name, t in getattr(self, kind).items()} for kind in MANY}
        return Update(weight=change(self.weight), group=change(self.group), **many)

    def finite(self) -> Tensor:
        """Whether no NaN and no infinite value is in it, scalar bool."""
        numbers = [self.weight, *(t for kind in MANY for t in getattr(self, kind).values())]
        return torch.stack([t.isfinite().all() for t in numbers]).all()


class Client:
    """One client in one round.

    Attributes: ``received`` and ``kept`` (name -> vector), ``samples`` (n_k, scalar tensor),
    ``mean_samples`` (mean of n_k over all N clients), ``lr`` (this round's client learning rate; a scalar
    tensor in a cohort where rounds differ in it), ``phase`` (`Method.phase` of this round),
    ``times`` (in introductions: how long its download, epoch and upload take, tensor [3]),
    ``trained`` (the model that it holds after training: of the last `fit` or `full_step`, unless the
    method says which).
    """

    def __init__(
        self,
        model: FlatModel,
        examples: Examples,
        training: LocalTraining,
        lr: float | Tensor,
        index: Tensor,
        real: Tensor | None,
        schedule: Mapping[str, list[Tensor] | Mapping[str, Tensor]],
        received: Mapping[str, Tensor],
        kept: Mapping[str, Tensor],
        mean_samples: float | None = None,  # of a client on its own: its samples
        vmapped: bool = False,
        compiled: Gradient | None = None,
        selection: tuple[Tensor, Tensor | None] | None = None,  # positions, and which of them are real
        phase: str = "",
    ) -> None:
        self.model, self.training, self.lr = model, training, lr
        self.received, self.kept, self.phase = received, kept, phase
        self._examples, self._index, self._real, self._schedule = examples, index, real, schedule
        self._vmapped, self._compiled, self._selection = vmapped, compiled, selection
        self.samples = self._scalar(len(index) if real is None else real.sum())
        self.mean_samples = self.samples if mean_samples is None else self._scalar(mean_samples)
        self.trained: Tensor | None = None
        self.times: Tensor  # the engine knows them
        self.train_loss = torch.zeros((), dtype=model.dtype, device=index.device)
        self._heard: list[tuple[Tensor, Tensor | None]] | None = None  # while an objective is evaluated

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        """Mean loss F_k of ``w`` [D] on one batch, scalar, in training mode."""
        if w.requires_grad and (compiled := self._compiled_for(batch)):
            return self._note(compiled.loss(w, batch.x, batch.y), None)
        if self.training.precision == "bf16":
            with torch.autocast(self._index.device.type, torch.bfloat16):
                outputs, stats = self.model.train_outputs(w, batch.x)
            outputs = outputs.to(self.model.dtype)
        else:
            outputs, stats = self.model.train_outputs(w, batch.x)
        if batch.mask is None:
            value = self.model.loss(outputs, batch.y)
        else:
            value = _mean(self.model.losses(outputs, batch.y), batch.mask)
        return self._note(value, stats)

    def data(self, raw: bool = False) -> tuple[Tensor, Tensor]:
        """All inputs [n_k, ...] and targets [n_k] of this client; ``raw``: pixels 0..255 as they are stored.

        For introductions only: no cohort can be stacked from ragged data.
        """
        inputs = (
            self._examples.x[self._index] if raw else self._examples.inputs(self._index, self.model.dtype)
        )
        return inputs, self._examples.targets(self._index)

    def full_loss(self, w: Tensor) -> Tensor:
        """Mean loss of ``w`` [D] over all local training samples, scalar, in evaluation mode."""
        return self._total_loss(w, self._index, self._real) / self.samples

    def selection_loss(self, w: Tensor) -> Tensor:
        """The same over the samples that the client holds out to choose by (`Method.selects`)."""
        assert self._selection is not None, "Method.selects has the engine see to it"
        index, real = self._selection
        return self._total_loss(w, index, real) / self._scalar(len(index) if real is None else real.sum())

    def full_gradient(self, w: Tensor) -> Tensor:
        """Gradient [D] of the mean loss over all local training samples (zero on buffers)."""
        return self._full_gradient(w)[0]

    def full_pass(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The same gradient [D], and ``w`` [D] with the buffers after these samples."""
        g, self.train_loss, after = self._full_gradient(w)
        return g, after

    def full_step(self, w: Tensor) -> Tensor:
        """``w`` [D] after one step of gradient descent on all local samples, chunk by chunk.

        What `fit` does in one epoch with ``batch_size: 0``, however many samples there are.
        """
        g, self.train_loss, after = self._full_gradient(w)
        self.trained = self.model.with_buffers(_along(w, self._shaped(g, w), self.lr), after)
        return self.trained

    def steps(self, stream: str = "batches") -> Tensor:
        """Number of local steps tau_k that this client really takes, scalar tensor."""
        schedule = self._schedule[stream]
        if isinstance(schedule, list):
            return self._scalar(len(schedule))
        if "active" not in schedule:
            return self._scalar(len(schedule["positions"]))
        return self._scalar(schedule["active"].sum())

    def fit(
        self,
        loss: Loss | None = None,
        *,
        start: Tensor,
        stream: str = "batches",
        lr: float | None = None,
        correction: Tensor | None = None,
    ) -> Tensor:
        """The vector [D] after local SGD from ``start`` over the batches of ``stream``.

        ``loss`` defaults to `Client.loss`. ``correction`` [D] is added to every step outside the
        momentum buffer. Buffers follow the network's own rule.
        """

        def step(now: SGDState, batch: Batch) -> tuple[SGDState, Tensor]:
            found = self.gradient(now.w, batch, loss)
            return self.descend(now, found, lr=lr, correction=correction), found.loss

        self.trained = self.run_steps(step, self.initial_state(start), (stream,)).w
        return self.trained

    def run_steps(
        self,
        step: Callable[..., tuple[State, Tensor]],
        start: State,
        streams: Sequence[str] = ("batches",),
    ) -> State:
        """What `fit` does, for methods with steps of their own: the state after all local steps.

        ``step(state, batch)`` returns the next state and its training loss, scalar, of which the mean over
        the steps is recorded; with several ``streams``, which must have equally many epochs, it gets a batch
        of each. Steps that a padded client does not have change nothing.
        """
        now, losses = start, torch.zeros_like(self.train_loss)
        for *batches, active in zip(*map(self._batches, streams), self._active(streams[0]), strict=True):
            later, value = step(now, *batches)
            if active is not None:
                later, value = _where(active, later, now), value * active
            now, losses = later, losses + value
        self.train_loss = losses / self.steps(streams[0])
        return now

    def initial_state(self, w: Tensor) -> SGDState:
        """``w`` [D] at the start of its training."""
        return SGDState(w, torch.zeros_like(w) if self.training.momentum else None)

    def gradient(self, w: Tensor, batch: Batch, objective: Loss | None = None) -> Step:
        """One gradient of ``objective`` (default: `Client.loss`) at ``w`` [D] on one batch.

        The loss recorded is the data loss where the objective calls `Client.loss` once, so that penalties
        do not count; where it does so never, or several times, the value of the objective. Buffers become
        those after the first of these calls, and stay as they are without one.
        """
        objective = objective or self.loss
        if objective == self.loss and (compiled := self._compiled_for(batch)):
            return Step(*compiled(w, batch.x, batch.y), None)
        before, self._heard = self._heard, []
        try:
            return self._gradient(objective, w, batch, self._heard)
        finally:
            self._heard = before

    def descend(
        self, now: SGDState, step: Step, *, lr: float | None = None, correction: Tensor | None = None
    ) -> SGDState:
        """One step of SGD along the gradient, with clipping, weight decay and momentum, as `fit` takes it."""
        w, velocity = now
        g = self._shaped(step.gradient, w)
        if velocity is not None:
            g = velocity = self.training.momentum * velocity + g
        if correction is not None:
            g = g + correction
        w = _along(w, g, self.lr if lr is None else lr)
        return SGDState(self._with(w, step.buffers), velocity)

    def update(
        self,
        *,
        weight: Tensor | float | None = None,
        group: Tensor | int = 0,
        scalars: Mapping[str, Tensor] | None = None,
        keep: Mapping[str, Tensor] | None = None,
        diagnostics: Mapping[str, Tensor] | None = None,
        **vectors: Tensor,
    ) -> Update:
        """What this client sends up; ``weight`` defaults to its number of samples."""
        return Update(
            vectors=vectors,
            weight=self._scalar(self.samples if weight is None else weight),
            group=self._scalar(group, torch.int64),
            scalars=dict(scalars or {}),
            keep=dict(keep or {}),
            diagnostics=dict(diagnostics or {}),
        )

    def _total_loss(self, w: Tensor, index: Tensor, real: Tensor | None) -> Tensor:
        """Sum of the losses of ``w`` [D] over the samples at ``index`` [n] that are ``real`` [n], scalar."""
        total = torch.zeros((), dtype=self.model.dtype, device=index.device)
        for start in range(0, len(index), EVALUATION_BATCH):
            chunk = slice(start, start + EVALUATION_BATCH)
            rows = index[chunk]
            losses = self.model.losses(
                self.model.outputs(w, self._examples.inputs(rows, self.model.dtype)),
                self._examples.targets(rows),
            )
            total = total + (losses if real is None else losses * real[chunk]).sum()
        return total

    def _scalar(self, value: Tensor | float, dtype: torch.dtype | None = None) -> Tensor:
        """A scalar tensor on the device, made there: a copy from the host would make the GPU wait."""
        dtype = dtype or self.model.dtype
        if isinstance(value, Tensor):
            return value.to(self._index.device, dtype)
        return torch.full((), value, dtype=dtype, device=self._index.device)

    def _batches(self, stream: str) -> Iterator[Batch]:
        schedule = self._schedule[stream]
        if isinstance(schedule, list):
            return map(self._batch_of_its_own if self._small else self._batch, schedule)
        steps = schedule["positions"].unbind(0)
        masks = schedule["mask"].unbind(0) if "mask" in schedule else repeat(None)
        return (self._batch(positions, mask) for positions, mask in zip(steps, masks))

    def _active(self, stream: str) -> Sequence[Tensor | None]:
        """For every step whether this client has it; None where all clients of the cohort do."""
        schedule = self._schedule[stream]
        if isinstance(schedule, list):
            return [None] * len(schedule)
        if "active" in schedule:
            return schedule["active"].unbind(0)
        return [None] * len(schedule["positions"])

    @property
    def _small(self) -> bool:
        """Whether all inputs of this client may be held, normalised, while it trains."""
        return len(self._index) * self._examples.x[0].numel() <= HELD

    @cached_property
    def _held(self) -> tuple[Tensor, Tensor]:
        return self.data()

    def _batch_of_its_own(self, positions: Tensor) -> Batch:
        x, y = self._held
        return Batch(x.index_select(0, positions), y.index_select(0, positions))

    def _batch(self, positions: Tensor, mask: Tensor | None = None) -> Batch:
        rows = self._index[positions]
        return Batch(self._examples.inputs(rows, self.model.dtype), self._examples.targets(rows), mask)

    def _full_gradient(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient [D] and value of the mean loss over all samples, and ``w`` with the buffers after them."""
        total, value, after = torch.zeros_like(w), torch.zeros_like(self.train_loss), w
        for start in range(0, len(self._index), EVALUATION_BATCH):
            positions = torch.arange(start, min(start + EVALUATION_BATCH, len(self._index)), device=w.device)
            mask = None if self._real is None else self._real[positions]
            count = len(positions) if mask is None else mask.sum()
            g, loss, stats = self.gradient(after, self._batch(positions, mask))
            total, value = total + count * g, value + count * loss
            after = self._with(after, stats)
        return total / self.samples, value / self.samples, after

    def _shaped(self, g: Tensor, w: Tensor) -> Tensor:
        """A gradient [D] at ``w`` as local SGD steps along it: clipped, then with weight decay."""
        settings = self.training
        if settings.clip_norm is not None:
            g = g * (settings.clip_norm / g.norm().clamp(min=settings.clip_norm))
        return g + settings.weight_decay * self.model.trainable(w) if settings.weight_decay else g

    def _compiled_for(self, batch: Batch) -> Gradient | None:
        return self._compiled if self._compiled and self._compiled.takes(batch.x, batch.y) else None

    def _note(self, value: Tensor, buffers: Tensor | None) -> Tensor:
        """``value``, a data loss, of which the objective that is evaluated, if any, takes note."""
        if self._heard is not None:
            self._heard.append((value.detach(), buffers))
        return value

    def _with(self, w: Tensor, buffers: Tensor | None) -> Tensor:
        """``w`` [D] with these ``buffers`` [Q], if any."""
        return w if buffers is None else torch.cat([w[: self.model.parameters], buffers])

    def _gradient(self, objective: Loss, w: Tensor, batch: Batch, heard: list) -> Step:
        def told(value: Tensor) -> tuple[Tensor, Tensor | None]:
            """The loss to record, and the buffers."""
            data, buffers = heard[0] if heard else (value, None)
            return (data if len(heard) == 1 else value).detach(), buffers

        if not self._vmapped:
            leaf = w.detach().requires_grad_()
            value = objective(leaf, batch)
            (g,) = torch.autograd.grad(value, leaf)
            return Step(self.model.trainable(g), *told(value))

        def with_aux(w: Tensor) -> tuple[Tensor, tuple]:
            value = objective(w, batch)
            loss, buffers = told(value)
            return value, (loss, () if buffers is None else buffers)

        g, (loss, buffers) = torch.func.grad(with_aux, has_aux=True)(w)
        return Step(self.model.trainable(g), loss, buffers if isinstance(buffers, Tensor) else None)


def _along(w: Tensor, g: Tensor, lr: Tensor | float) -> Tensor:
    """``w - lr g`` [D], in one pass."""
    return torch.addcmul(w, g, lr, value=-1) if isinstance(lr, Tensor) else torch.sub(w, g, alpha=lr)


def _where(active: Tensor, new: Any, old: Any) -> Any:
    """``new`` where ``active``, else ``old``: two states of equal form."""
    if isinstance(new, tuple):
        parts = [_where(active, n, o) for n, o in zip(new, old)]
        return SGDState(*parts) if isinstance(new, SGDState) else tuple(parts)
    return None if new is None else torch.where(active, new, old)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``values`` [B] over a mask [B]; 0 where the mask is empty (a padded step)."""
    return (values * mask).sum() / mask.sum().clamp(min=1)
