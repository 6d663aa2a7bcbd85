"""Masks of pruned networks: pure functions of flat vectors, also under ``torch.func.vmap``.

A mask [D] is true for the entries of its vector that a client keeps. Named tensors are pruned one by one
(``FlatModel.weights``: the weights of convolutional and linear layers); all others are kept.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedflow.models.flat import FlatModel

LAST = 0.05  # the largest rate of the last step


def without_smallest(
    model: FlatModel,
    w: Tensor,
    mask: Tensor,
    rate: Tensor | float,
    names: Sequence[str],
    largest_rate: float = 1.0,
) -> Tensor:
    """``mask`` [D] without the share ``rate`` of the entries of ``w`` [D] closest to 0, in each named tensor.

    ``largest_rate`` is a bound of a ``rate`` that is a tensor: fewer values are sorted below a small one.
    These are the entries below a percentile of the absolute values that are kept and not 0, with linear
    interpolation, as of ``numpy.percentile``: ceil(rate (n - 1)) of n different values.
    """
    most = largest_rate if isinstance(rate, Tensor) else rate
    pieces = zip(model.names, w.split(model.sizes), mask.split(model.sizes), strict=True)
    return torch.cat(
        [
            kept & ~(values.abs().double() < _percentile(values.abs(), kept & (values != 0), rate, most))
            if name in names
            else kept
            for name, values, kept in pieces
        ]
    )


def _percentile(values: Tensor, chosen: Tensor, rate: Tensor | float, most: float) -> Tensor:
    """The percentile of the ``chosen`` of ``values`` [n], float64 scalar; NaN if there are none.

    ``rate`` is at most ``most``.
    """
    # By sorting, because torch.quantile has a limit of 16 million values and none are left out.
    count = min(len(values), math.ceil(most * len(values)) + 2)
    ascending = values.masked_fill(~chosen, torch.inf).topk(count, largest=False).values.double()
    rank = (rate * (chosen.sum().double() - 1)).clamp(min=0)
    low, high = ascending.gather(0, torch.stack([rank.floor(), rank.ceil()]).long()).unbind()
    return torch.lerp(low, high, rank - rank.floor())


def mask_distance(model: FlatModel, first: Tensor, second: Tensor, names: Sequence[str]) -> Tensor:
    """Distance of two masks [D], 0 to 1, float64 scalar: the share of entries that differ in each named
    tensor, averaged over these tensors."""
    differ = dict(zip(model.names, (first != second).split(model.sizes), strict=True))
    return torch.stack([differ[name].double().mean() for name in names]).mean()


def pruned_share(model: FlatModel, mask: Tensor) -> Tensor:
    """Share of all parameters that a mask [D] prunes, without buffers, float64 scalar."""
    return (~mask[: model.parameters]).double().mean()


def next_rate(rate: float, target: float, pruned: Tensor) -> Tensor:
    """The rate of the next step, float64 scalar: ``rate``, or less if the ``pruned`` share is that close
    to the ``target``."""
    left = target - pruned
    return torch.where(left < rate, (left / (1 - pruned)).clamp(0, LAST), torch.full_like(left, rate))
