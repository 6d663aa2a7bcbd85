"""The loss of networks on real targets."""

import torch
from torch import Tensor


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """The squared error of each sample [B], the mean over its targets.

    ``y`` is [B] or [B, k]; ``outputs`` have as many numbers: [B] or [B, 1], or [B, k].
    """
    errors = (outputs.reshape(y.shape) - y).square()
    return errors if errors.ndim == 1 else errors.flatten(1).mean(1)


def no_hits(y: Tensor) -> Tensor:
    """nan for each sample [B], as a regression has no hits."""
    return torch.full_like(y if y.ndim == 1 else y.flatten(1)[:, 0], torch.nan)
