"""Optimizers: the state of a vector in training, and its step along one gradient."""

from typing import NamedTuple

import torch
from torch import Tensor


class Pull(NamedTuple):
    """The penalty ``weight``/2 ||w - ``center``||^2; the weight is a number, or one per entry [D]."""

    weight: float | Tensor
    center: Tensor

    def added(self, g: Tensor, w: Tensor) -> Tensor:
        """The gradient ``g`` [D] plus the gradient of this penalty at ``w`` [D]."""
        return g + self.weight * (w - self.center)


class SGDState(NamedTuple):
    """A vector trained by SGD: its value ``w`` [D] and ``velocity`` [D] (None without momentum)."""

    w: Tensor
    velocity: Tensor | None

    def descend(
        self, g: Tensor, lr: Tensor | float, momentum: float, correction: Tensor | None
    ) -> "SGDState":
        """One step along ``g`` [D]; a ``correction`` [D] stays outside the velocity."""
        velocity = None
        if self.velocity is not None:
            g = velocity = momentum * self.velocity + g
        if correction is not None:
            g = g + correction
        if isinstance(lr, Tensor):
            return SGDState(torch.addcmul(self.w, g, lr, value=-1), velocity)
        return SGDState(torch.sub(self.w, g, alpha=lr), velocity)


class AdamState(NamedTuple):
    """A vector trained by Adam: its value ``w`` [D], two moments [D] of its gradients, steps taken."""

    w: Tensor
    first: Tensor
    second: Tensor
    steps: int = 0

    @classmethod
    def of(cls, w: Tensor) -> "AdamState":
        return cls(w, torch.zeros_like(w), torch.zeros_like(w))

    def descend(self, g: Tensor, lr: Tensor | float, betas: list[float]) -> "AdamState":
        """One step along ``g`` [D]: the same bits as ``torch.optim.Adam`` if ``lr`` is a number."""
        (beta1, beta2), steps = betas, self.steps + 1
        first = self.first.lerp(g, 1 - beta1)
        second = (self.second * beta2).addcmul(g, g, value=1 - beta2)
        scale = (second.sqrt() / (1 - beta2**steps) ** 0.5).add(1e-8)
        if isinstance(lr, Tensor):
            w = torch.addcmul(self.w, first / scale, lr, value=-1 / (1 - beta1**steps))
        else:
            w = self.w.addcdiv(first, scale, value=-lr / (1 - beta1**steps))
        return AdamState(w, first, second, steps)


Moving = SGDState | AdamState  # a vector in training, by either optimizer
