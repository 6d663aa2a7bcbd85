"""The loss of networks on several labels per sample, with one logit for each label."""

import torch
from torch import Tensor
from torch.nn import functional as F


def binary_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """The binary cross-entropy of each sample [B], the mean over its labels, for logits and ``y`` [B, K]."""
    return F.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none").mean(1)


def right_labels(outputs: Tensor, y: Tensor) -> Tensor:
    """The share of right labels of each sample [B]; a label is predicted if its logit is positive."""
    return torch.eq(outputs > 0, y).to(outputs.dtype).mean(1)
