"""Objectives that a client minimizes in place of its mean data loss (cross-entropy, CE).

Source: Acar, thesis, Chapter 7, Eq. 7.2 to 7.4. w^tau is the softmax of the logits divided by tau,
KL(p, q) = sum p log(p / q), and x1, x2 are two independent random views of a sample.

robust  (7.2): alpha CE + (1 - alpha) tau^2 mean KL(w^tau(x1), w^tau(x2))
distil  (7.3): alpha CE + (1 - alpha) tau^2 mean KL(teacher^tau(x1), w^tau(x1))
both    (7.4): alpha CE + (1 - alpha) of either; for alpha = 0.1 the weights are 0.1, 0.9 and 0.9

*Ambiguous*: CE and the teacher see the first view. Gradients flow through both views (``stop_gradient``: only
through the second). In expectation, the order of the views in KL is irrelevant; ``symmetric`` is the mean of
both orders, which varies less.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.errors import BadInput
from fedflow.local.extensions.augmentation import OTHER
from fedflow.local.extensions.extension import Extension, Host, Losses, Reads
from fedflow.local.samples import Batch
from fedflow.models.flat import FlatModel
from fedflow.settings import option

TEACHER = "teacher"


class Objective(Extension):
    """The data loss and one or two side losses. It adds no traffic; the teacher is sent once."""

    section = "training.objective"
    minimizes: ClassVar[str] = "side losses"

    name: str = option(
        doc="side losses: two views of an image agree; outputs follow a teacher's; or both",
        choices=("robust", "distil", "both"),
    )
    alpha: float | None = option(
        None,
        "weight of the data loss; the side losses have 1 - alpha; null = 0.5 for robust, else 0.1",
        symbol="alpha",
        ge=0,
        le=1,
        source="Chapter 7",
    )
    tau: float = option(3.5, "temperature of the side losses", symbol="tau", gt=0, source="Chapter 7")
    teacher: str | None = option(None, "a network of `central`; null for robust, which needs none")
    stop_gradient: bool = option(False, "robust, both: the first view is a constant target")
    symmetric: bool = option(False, "robust, both: mean of KL in either order of the two views")

    @property
    def two_views(self) -> bool:
        return self.name != "distil"

    @property
    def taught(self) -> bool:
        return self.name != "robust"

    @property
    def views(self) -> int:
        return 2 if self.two_views else 1

    @property
    def reads(self) -> tuple[Reads, ...]:
        return () if self.teacher is None else (Reads(TEACHER, f"{self.section}.teacher", self.teacher),)

    @property
    def data_weight(self) -> float:
        return (0.1 if self.taught else 0.5) if self.alpha is None else self.alpha

    def validate(self) -> None:
        if self.taught and self.teacher is None:
            raise BadInput(f"{self.section}.teacher", None, f"a network of central, as {self.name} needs one")
        for name in ("stop_gradient", "symmetric"):
            if getattr(self, name) and not self.two_views:
                raise BadInput(f"{self.section}.{name}", True, "false with distil, which has one view")
        if self.teacher is not None and not self.taught:
            raise BadInput(f"{self.section}.teacher", self.teacher, "null with robust")

    def check_training(self, training: Any) -> None:
        if self.two_views and training.augment == "none":
            accepted = f"flip_crop or flip_crop_cutout, as {self.name} compares two random views"
            raise BadInput("training.augment", training.augment, accepted)

    def loss(self, host: Host, inner: Losses, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The data loss and side losses.

        A batch without a second view has no loss of robustness: it is 0 for two equal views. Statistics of
        BatchNorm follow the first view.
        """
        value, outputs = inner(w, batch)
        if self.data_weight == 1:  # side losses would still draw dropout's noise
            return value, outputs
        assert outputs is not None, "an objective is not compiled"
        second = target = None
        if self.two_views and OTHER in batch.extra:
            second = host.train_outputs(w, batch.extra[OTHER], batch.real)[0]
        if self.taught:
            target = host.inputs[TEACHER].outputs(batch.x)
        side = batch.mean(self.side_losses(outputs, second, target))
        return self.data_weight * value + (1 - self.data_weight) * side, outputs

    def side_losses(self, first: Tensor, second: Tensor | None, target: Tensor | None) -> Tensor:
        """The side losses of each sample [B], from logits [B, K] of its two views and of the teacher.

        The logits [B, E, K] of a network with E exits give the sum over the exits, as its data loss does.
        """
        if first.ndim == 3:
            others = [None] * first.shape[1] if second is None else second.unbind(1)
            pairs = zip(first.unbind(1), others, strict=True)
            return torch.stack([self.side_losses(*pair, target) for pair in pairs]).sum(0)
        total = torch.zeros_like(first[:, 0])
        if target is not None:
            total = total + divergence(target, first, self.tau)
        if second is not None:
            total = total + self._disagreement(first, second)
        return self.tau**2 * total

    def _disagreement(self, first: Tensor, second: Tensor) -> Tensor:
        def from_target(p: Tensor, q: Tensor) -> Tensor:
            return divergence(p.detach() if self.stop_gradient else p, q, self.tau)

        divergences = from_target(first, second)
        return (divergences + from_target(second, first)) / 2 if self.symmetric else divergences

    def check(self, model: FlatModel, examples: Examples, inputs: Mapping[str, Any]) -> None:
        """Raise `BadInput` unless this network and its teacher have one logit per class for ``examples``."""
        first = torch.zeros(1, dtype=torch.int64, device=examples.device)
        x = examples.inputs(first, model.dtype)
        w = torch.zeros(model.size, dtype=model.dtype, device=model.device)
        shape = model.outputs(w, x).shape
        if not examples.labeled or len(shape) != 2:
            raise BadInput(self.section, self.name, "null, as the samples do not have one label each")
        if not self.taught:
            return
        if (teacher := inputs.get(TEACHER)) is None:
            raise BadInput(f"{self.section}.teacher", self.teacher, "a trained network of central")
        if (taught := teacher.outputs(x).shape) != shape:
            accepted = f"a network with {shape[1]} outputs as the clients', not {taught[1]}"
            raise BadInput(f"{self.section}.teacher", self.teacher, accepted)


def divergence(p: Tensor, q: Tensor, tau: float) -> Tensor:
    """KL(p^tau, q^tau) [B] of the softmax of logits ``p`` and ``q`` [B, K], both divided by tau."""
    p, q = ((logits / tau).log_softmax(-1) for logits in (p, q))
    return (p.exp() * (p - q)).sum(-1)
