"""What a method sees of one client: its data, what it received, what it keeps, and how to train.

The same object serves the plain loop (tensors of one client) and ``torch.func.vmap`` over a cohort
(each tensor stands for one client of many, ragged ends masked). So a method's code must use tensor
operations only and never branch in Python on tensor values.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.local.training import LocalTraining
from fedflow.models.flat import FlatModel

EVALUATION_BATCH = 512


@dataclass
class Batch:
    """Inputs [B, ...], targets [B], and, where a cohort is padded, which samples are real [B]."""

    x: Tensor
    y: Tensor
    mask: Tensor | None = None


Loss = Callable[[Tensor, Batch], Tensor]


@dataclass
class Update:
    """What a client sends up and keeps.

    ``vectors`` travel to the server and are averaged with ``weight`` within ``group`` (the cluster);
    ``scalars`` travel too; ``keep`` becomes the client's own state.
    """

    vectors: dict[str, Tensor]
    weight: Tensor
    group: Tensor
    scalars: dict[str, Tensor] = field(default_factory=dict)
    keep: dict[str, Tensor] = field(default_factory=dict)


class Client:
    """One client in one round.

    Attributes: ``received`` and ``kept`` (name -> vector), ``samples`` (n_k, scalar tensor),
    ``mean_samples`` (mean of n_k over all N clients), ``lr`` (this round's client learning rate),
    ``trained`` (the vector of the last `fit` or `full_step`).
    """

    def __init__(
        self,
        model: FlatModel,
        examples: Examples,
        training: LocalTraining,
        lr: float,
        index: Tensor,
        real: Tensor | None,
        schedule: Mapping[str, tuple[Tensor, Tensor] | list[Tensor]],
        received: Mapping[str, Tensor],
        kept: Mapping[str, Tensor],
        mean_samples: float | None = None,  # of a client on its own: its samples
    ) -> None:
        self.model, self.training, self.lr = model, training, lr
        self.received, self.kept = received, kept
        self._examples, self._index, self._real, self._schedule = examples, index, real, schedule
        count = torch.tensor(len(index), device=index.device) if real is None else real.sum()
        self.samples = count.to(model.dtype)
        self.mean_samples = self.samples if mean_samples is None else self._scalar(mean_samples)
        self.trained: Tensor | None = None
        self.train_loss = torch.zeros((), dtype=model.dtype, device=index.device)
        self._seen: tuple[Tensor, Tensor | None] | None = None

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        """Mean loss F_k of ``w`` [D] on one batch, scalar, in training mode."""
        outputs, stats = self.model.train_outputs(w, batch.x)
        if batch.mask is None:
            value = self.model.loss(outputs, batch.y)
        else:
            value = _mean(self.model.losses(outputs, batch.y), batch.mask)
        self._seen = value.detach(), stats
        return value

    def full_loss(self, w: Tensor) -> Tensor:
        """Mean loss of ``w`` [D] over all local training samples, scalar, in evaluation mode."""
        total = torch.zeros((), dtype=self.model.dtype, device=self._index.device)
        for start in range(0, len(self._index), EVALUATION_BATCH):
            chunk = slice(start, start + EVALUATION_BATCH)
            rows = self._index[chunk]
            losses = self.model.losses(
                self.model.outputs(w, self._examples.inputs(rows, self.model.dtype)),
                self._examples.targets(rows),
            )
            total = total + (losses if self._real is None else losses * self._real[chunk]).sum()
        return total / self.samples

    def full_gradient(self, w: Tensor) -> Tensor:
        """Gradient [D] of the mean loss over all local training samples (zero on buffers)."""
        return self._full_gradient(w)[0]

    def full_step(self, w: Tensor) -> Tensor:
        """``w`` [D] after one step of gradient descent on all local samples, chunk by chunk.

        What `fit` does in one epoch with ``batch_size: 0``, however many samples there are.
        """
        g, self.train_loss, after = self._full_gradient(w)
        self.trained = self.model.with_buffers(torch.sub(w, self._shaped(g, w), alpha=self.lr), after)
        return self.trained

    def steps(self, stream: str = "batches") -> Tensor:
        """Number of local steps tau_k that this client really takes, scalar tensor."""
        schedule = self._schedule[stream]
        if isinstance(schedule, list):
            return torch.tensor(len(schedule), dtype=self.model.dtype, device=self._index.device)
        return schedule[1].any(-1).sum().to(self.model.dtype)

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
        settings, lr = self.training, self.lr if lr is None else lr
        w, velocity, losses = start, None, torch.zeros_like(self.train_loss)
        for batch, active in self._batches(stream):
            g, value, stats = self._gradient(loss or self.loss, w, batch)
            g = self._shaped(g, w)
            if settings.momentum:
                velocity = g if velocity is None else settings.momentum * velocity + g
                g = velocity
            if correction is not None:
                g = g + correction
            stepped = torch.sub(w, g, alpha=lr)
            if stats is not None:
                stepped = torch.cat([stepped[: self.model.parameters], stats])
            if active is not None:
                stepped, value = torch.where(active, stepped, w), value * active
            w, losses = stepped, losses + value
        self.train_loss = losses / self.steps(stream)
        self.trained = w
        return w

    def update(
        self,
        *,
        weight: Tensor | float | None = None,
        group: Tensor | int = 0,
        scalars: Mapping[str, Tensor] | None = None,
        keep: Mapping[str, Tensor] | None = None,
        **vectors: Tensor,
    ) -> Update:
        """What this client sends up; ``weight`` defaults to its number of samples."""
        return Update(
            vectors=vectors,
            weight=self._scalar(self.samples if weight is None else weight),
            group=torch.as_tensor(group, device=self._index.device),
            scalars=dict(scalars or {}),
            keep=dict(keep or {}),
        )

    def _scalar(self, value: Tensor | float) -> Tensor:
        return torch.as_tensor(value, dtype=self.model.dtype, device=self._index.device)

    def _batches(self, stream: str) -> Iterator[tuple[Batch, Tensor | None]]:
        schedule = self._schedule[stream]
        if isinstance(schedule, list):
            for positions in schedule:
                yield self._batch(positions, None), None
        else:
            for positions, mask in zip(*(t.unbind(0) for t in schedule)):
                yield self._batch(positions, mask), mask.any()

    def _batch(self, positions: Tensor, mask: Tensor | None) -> Batch:
        rows = self._index[positions]
        return Batch(self._examples.inputs(rows, self.model.dtype), self._examples.targets(rows), mask)

    def _full_gradient(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient [D] and value of the mean loss over all samples, and ``w`` with the buffers after them."""
        total, value, after = torch.zeros_like(w), torch.zeros_like(self.train_loss), w
        for start in range(0, len(self._index), EVALUATION_BATCH):
            positions = torch.arange(start, min(start + EVALUATION_BATCH, len(self._index)), device=w.device)
            mask = None if self._real is None else self._real[positions]
            count = len(positions) if mask is None else mask.sum()
            g, loss, stats = self._gradient(self.loss, after, self._batch(positions, mask))
            total, value = total + count * g, value + count * loss
            if stats is not None:
                after = torch.cat([w[: self.model.parameters], stats])
        return total / self.samples, value / self.samples, after

    def _shaped(self, g: Tensor, w: Tensor) -> Tensor:
        """A gradient [D] at ``w`` as local SGD steps along it: clipped, then with weight decay."""
        settings = self.training
        if settings.clip_norm is not None:
            g = g * (settings.clip_norm / g.norm().clamp(min=settings.clip_norm))
        return g + settings.weight_decay * self.model.trainable(w) if settings.weight_decay else g

    def _gradient(self, loss: Loss, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gradient [D] of ``loss``, the data loss of the batch, and the buffers after it."""
        if self._real is None:
            leaf = w.detach().requires_grad_()
            (g,) = torch.autograd.grad(loss(leaf, batch), leaf)
            assert self._seen is not None
            return self.model.trainable(g), *self._seen

        def with_aux(w: Tensor) -> tuple[Tensor, tuple]:
            value = loss(w, batch)
            assert self._seen is not None
            value_seen, stats = self._seen
            return value, (value_seen, () if stats is None else stats)

        g, (value, stats) = torch.func.grad(with_aux, has_aux=True)(w)
        return self.model.trainable(g), value, stats if isinstance(stats, Tensor) else None


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``values`` [B] over a mask [B]; 0 where the mask is empty (a padded step)."""
    return (values * mask).sum() / mask.sum().clamp(min=1)
