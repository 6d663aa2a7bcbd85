"""The server's means: exact weighted sums of uploaded vectors, by name and group."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedflow.local.client import Update
from fedflow.simulation.exact import ExactSum

Sums = dict[tuple[str, int], ExactSum]


def fold(sums: Sums, update: Update, weights: list[float], groups: list[int]) -> None:
    """Add every vector of some clients to the sum of its group."""
    for group in sorted(set(groups)):
        members = [c for c, own in enumerate(groups) if own == group]
        for name, stacked in update.vectors.items():
            rows = stacked if len(members) == len(groups) else stacked[members]
            total = sums.setdefault((name, group), ExactSum())
            total.add_rows(rows, [weights[c] for c in members])


def exact_mean(
    parts: Mapping[tuple[str, int], ExactSum], rows: Iterable[tuple[Tensor, float]], dtype: torch.dtype
) -> Tensor:
    """The weighted mean [n] of some sums and of single vectors with their weights."""
    total = ExactSum()
    for _, part in sorted(parts.items(), key=lambda item: item[0]):
        total.merge(part)
    for vector, weight in rows:
        total.add(vector, weight)
    return total.mean(dtype)
