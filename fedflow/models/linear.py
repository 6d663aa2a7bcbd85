"""Linear regression, and the loss of networks on real targets."""

from math import prod

import torch
from torch import Tensor, nn


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """The squared error of each sample [B], the mean over its targets.

    ``y`` is [B] or [B, k], and ``outputs`` are [B] or [B, 1], or [B, k].
    """
    errors = (outputs.reshape(y.shape) - y).square()
    return errors if errors.ndim == 1 else errors.flatten(1).mean(1)


def no_hits(y: Tensor) -> Tensor:
    """nan for each sample [B], as a regression has no hits."""
    return torch.full_like(y if y.ndim == 1 else y.flatten(1)[:, 0], torch.nan)


class Linear(nn.Module):
    """One dense layer to one real output; the loss of a sample is its squared error (y - <w, x> - b)^2.

    ``init`` is "default", "zeros", or "bernoulli": every weight 0 or 1 with probability 1/2, as IFCA
    starts its models on mixed regression. Hits are nan. Raises `ValueError` for several classes.
    """

    head_patterns = ("layer.*",)

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, bias: bool = True, init: str = "default"
    ) -> None:
        super().__init__()
        if num_classes > 1:
            other = f"use logistic for {num_classes} classes, mlp for {num_classes} targets"
            raise ValueError(f"linear regression has one output; {other}")
        self.layer = nn.Linear(prod(input_shape), 1, bias)
        if init == "bernoulli":
            self.layer.weight.data.bernoulli_(0.5)
        elif init == "zeros":
            nn.init.zeros_(self.layer.weight)
        elif init != "default":
            raise ValueError(f"init must be default, zeros or bernoulli, not {init!r}")
        if bias and init != "default":
            nn.init.zeros_(self.layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Squared error of each sample [B]."""
        return squared_error(outputs, y)

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """nan for each sample [B]."""
        return no_hits(y)
