"""Adaptation T: from a model w and support samples to a model that is adapted to them, differentiable in w.

Source: Acar, thesis, Chapter 3 (PFL, ICML 2021). Clients minimize F_k(T(w; support)) on other samples, the
query: training finds a model that is good after adaptation.

maml   ``steps`` gradient steps on the support: w <- w - lr (grad F(w; support) + weight_decay w). The
       gradient of the query loss in w has the second derivatives; ``order: first`` drops them.
proto  the last linear layer becomes nearest-prototype classification: c_k is the mean over the support of the
       inputs r(x) of that layer for class k, the logit of class k is 2 <c_k, r(x)> - ||c_k||^2, which is
       -||c_k - r(x)||^2 up to a term common to all classes. Queries of classes that the support lacks do not
       count. The layer itself has no gradient, and class names do not matter.

At evaluation, the support is all training samples of a client, as they are.
*Differs from the authors' code in*: support batches are disjoint from query batches, which are the same as in
the run without adaptation (there: two batches of a new shuffle in every step); adaptation steps are plain
gradient steps; a step without a query that counts has no gradient (there: class 0 for these queries).
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.errors import BadInput
from fedflow.local.extensions.curriculum import Curriculum
from fedflow.local.extensions.extension import Drawing, Extension, Host, Losses
from fedflow.local.extensions.objective import Objective
from fedflow.local.samples import Batch
from fedflow.local.schedule import Schedule
from fedflow.models.flat import FlatModel
from fedflow.settings import option, written

SUPPORT = "support"
ABSENT = -1e9  # bias of a class without samples


class Adaptation(Extension):
    """T(w; support). It adds no traffic and no state."""

    section = "training.adaptation"
    minimizes: ClassVar[str] = "the loss of an adapted model, which needs second derivatives"
    needs_batches: ClassVar[bool] = True
    needs_clients: ClassVar[bool] = True

    name: str = option(
        doc="gradient steps on the support (maml), or prototypes of its classes as last layer (proto)",
        choices=("maml", "proto"),
    )
    lr: float = option(0.1, "maml: step size", symbol="eta", ge=0, grid=(0.01, 0.1), source="Chapter 3")
    steps: int = option(
        1, "maml: gradient steps; 0 = none", symbol="s", ge=0, grid=(1, 5), source="Chapter 3"
    )
    order: str = option(
        "second", "maml: the meta-gradient with second derivatives, or without", choices=("second", "first")
    )
    weight_decay: float = option(
        0.0, "maml: L2 penalty in the gradient, in training only", ge=0, source="authors' code: 1e-3"
    )
    clip_norm: float | None = option(
        None, "maml: largest norm of a gradient, at evaluation only", gt=0, source="authors' code: 10"
    )

    def validate(self) -> None:
        for field in fields(self)[1:] if self.name == "proto" else ():
            if (value := getattr(self, field.name)) != field.default:
                raise BadInput(f"{self.section}.{field.name}", value, f"{written(field.default)} with proto")

    @property
    def adapts(self) -> bool:
        """True if T is not the identity."""
        return self.name == "proto" or self.steps > 0

    @property
    def gradients(self) -> int:
        """Gradients in one local step: of the query, and of the support by adaptation step or prototype."""
        return 1 + (self.steps if self.name == "maml" else 1)

    def check_training(self, training: Any) -> None:
        for other in training.in_use:
            if isinstance(other, Curriculum):
                reason = "whose support are samples of all difficulties"
                raise other.refused(f"with training.adaptation, {reason}")
            if self.name == "proto" and isinstance(other, Objective) and other.taught:
                accepted = "null or robust with proto, which excludes classes that a teacher may predict"
                raise BadInput(other.section, other.name, accepted)

    def check(
        self, model: FlatModel, examples: Examples, inputs: Mapping[str, Any] | None = None, section: str = ""
    ) -> None:
        """Raise `BadInput` unless ``model`` has a last layer that prototypes can replace, for classes.

        ``section`` names settings for evaluation; without it, for training, the network needs other layers.
        """
        if self.name == "maml":
            second = not section and self.steps and self.order == "second"
            if second and model.device.type == "cuda" and model.recurrent:
                accepted = "first with a recurrent network on a GPU, as cuDNN has no second derivatives"
                raise BadInput(f"{self.section}.order", "second", accepted)
            return
        field = f"{section or self.section}.name"
        if not examples.labeled:
            raise BadInput(field, "proto", "maml, as the samples do not have one label each")
        x = examples.inputs(torch.zeros(1, dtype=torch.int64, device=examples.device), model.dtype)
        if (last := model.last_linear) is not None:
            w = model.init(0)
            head, outputs = model.views(w), model.outputs(w, x)
            logits = model.features(w, x) @ head[f"{last}.weight"].T + head[f"{last}.bias"]
        if last is None or logits.shape != outputs.shape or not torch.allclose(logits, outputs):
            accepted = "maml, as the network does not end with a linear layer with biases"
            raise BadInput(field, "proto", accepted)
        if not section and {name.rpartition(".")[0] for name in model.names} == {last}:
            raise BadInput(field, "proto", "maml, as the network has no layer before the last one")

    def draw(self, drawing: Drawing) -> Mapping[str, Schedule]:
        support = draw_support(drawing.rng(SUPPORT), drawing.schedule, drawing.samples)
        return {SUPPORT: drawing.further(SUPPORT, support)}

    def loss(self, host: Host, inner: Losses, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The loss of the adapted model, on batches with a support."""
        return inner(*self.adapt(host, w, batch)) if SUPPORT in batch.extra else inner(w, batch)

    def adapt(self, host: Host, w: Tensor, query: Batch) -> tuple[Tensor, Batch]:
        """T(w; support) [D], differentiable in ``w`` [D], and the ``query`` with the samples that count."""
        support: Batch = query.extra[SUPPORT]
        if self.name == "proto":
            features = host.features(w, support)
            sums, counts = per_class(features, support, host.model)
            return with_prototypes(host.model, w, sums, counts), query.only((counts > 0)[query.y])
        for _ in range(self.steps):
            at = w.detach() if self.order == "first" else w
            g = host.data_gradient(at, support) + self.weight_decay * host.model.trainable(at)
            w = w - self.lr * g
        return w, query

    def adapted(self, host: Host, w: Tensor) -> Tensor:
        """T(w; all samples) [D] from ``w`` [D], in evaluation mode, in the precision of the model."""
        model, host = host.model, host.in_float32()
        if self.name == "proto":
            chunks = host.own.chunks(model.dtype)
            parts = [per_class(model.features(w, batch.x, real=batch.real), batch, model) for batch in chunks]
            sums, counts = (torch.stack(values).sum(0) for values in zip(*parts, strict=True))
            return with_prototypes(model, w, sums, counts)

        def loss(v: Tensor, batch: Batch) -> Tensor:
            return batch.mean(model.losses(model.outputs(v, batch.x, batch.real), batch.y))

        # cuDNN has no gradients of recurrent layers in evaluation mode.
        plain = model.recurrent and model.device.type == "cuda"
        for _ in range(self.steps):
            with torch.backends.cudnn.flags(enabled=False) if plain else nullcontext():
                g = host.full_gradient(w, loss)
            if self.clip_norm is not None:
                g = g * (self.clip_norm / g.norm().clamp(min=self.clip_norm))
            w = w - self.lr * g
        return w


def draw_support(rng: np.random.Generator, query: Schedule, samples: int) -> Schedule:
    """For every step, as many other samples as a whole ``query`` batch has, or all others if there are fewer.

    If the query has all samples, so has the support. A draw of few samples is enough, of which those in the
    query are left out: a permutation of all samples in every step would be slow.
    """
    width, free = query.positions.shape[1], np.ones(samples, dtype=bool)
    positions, sizes = np.zeros((len(query), width), dtype=np.int64), list[int]()
    for row, (batch, _, _) in zip(positions, query.batches()):
        queried = batch.numpy()
        if len(queried) == samples:
            drawn = np.arange(samples)
        else:
            free[queried] = False
            drawn = rng.choice(samples, min(samples, len(queried) + width), replace=False)
            drawn = drawn[free[drawn]][:width]
            free[queried] = True
        row[: len(drawn)] = drawn
        sizes.append(len(drawn))
    return Schedule(torch.from_numpy(positions), tuple(sizes))


def per_class(features: Tensor, batch: Batch, model: FlatModel) -> tuple[Tensor, Tensor]:
    """The sum [K, d] of ``features`` [B, d] over each class, and its samples [K]."""
    outputs = model.shapes[model.names.index(f"{model.last_linear}.weight")][0]
    classes = torch.arange(outputs, device=features.device)
    members = (batch.y[:, None] == classes).to(features.dtype)
    if batch.mask is not None:
        members = members * batch.mask[:, None]
    return members.T @ features, members.sum(0)


def with_prototypes(model: FlatModel, w: Tensor, sums: Tensor, counts: Tensor) -> Tensor:
    """``w`` [D] with the means of ``sums`` [K, d] over ``counts`` [K] samples as its last layer."""
    centers = sums / counts.clamp(min=1)[:, None]
    # From the mean of all: another term common to all classes, and smaller numbers, which lose less in bf16.
    mean = (sums.sum(0) / counts.sum().clamp(min=1)).detach()
    bias = torch.where(counts > 0, -((centers - mean) * (centers + mean)).sum(-1), ABSENT)
    layer = {"weight": 2 * (centers - mean), "bias": bias}
    return model.replaced(w, {f"{model.last_linear}.{name}": values for name, values in layer.items()})
