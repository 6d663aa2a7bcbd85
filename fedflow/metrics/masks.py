"""Overlap of the masks of clients, by labels that they share, and the share of each layer that is kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import scipy

CHUNK = 1 << 20  # entries of masks that are counted at once; float32 counts them exactly


@dataclass(frozen=True)
class Masks:
    """The masks of n clients, compared. See `compare`."""

    clients: Sequence[int]
    iou: np.ndarray
    hamming: np.ndarray
    layers: Mapping[str, np.ndarray]
    sizes: Mapping[str, int]
    labels: np.ndarray | None

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Number of shared labels and IoU of every pair of clients."""
        assert self.labels is not None, "checked by the callers"
        labels, at = self.labels.astype(int), np.triu_indices(len(self.clients), 1)
        return (labels @ labels.T)[at], self.iou[at]

    def by_shared_labels(self) -> dict[int, float]:
        """Mean IoU of pairs of clients by number of shared labels; empty without labels."""
        if self.labels is None:
            return {}
        shared, iou = self._pairs
        return {int(number): float(iou[shared == number].mean()) for number in np.unique(shared)}

    def correlation(self) -> float | None:
        """Spearman's correlation of IoU and shared labels over all pairs, or None if either is constant."""
        if self.labels is None or any(len(np.unique(values)) < 2 for values in self._pairs):
            return None
        return float(scipy.stats.spearmanr(*self._pairs).statistic)


def compare(
    masks: np.ndarray, clients: Sequence[int], sizes: Mapping[str, int], labels: np.ndarray | None = None
) -> Masks:
    """Compare the ``masks`` [n, D] (bool) of ``clients`` [n].

    ``sizes`` are the numbers of entries of the tensors in the order of a mask; ``labels`` [n, C] (bool) is
    true if a client has the label. Of the result, ``iou`` [n, n] is the number of entries that both keep over
    the number that either keeps (1 if neither keeps any), and ``hamming`` [n, n] the share of the D entries
    on which they agree. ``layers`` has the share of entries that each client keeps [n] of every layer
    (module) that some client prunes, and ``sizes`` its number of entries.
    """
    n, d = masks.shape
    both = np.zeros((n, n))
    for start in range(0, d, step := max(1, CHUNK // max(1, n))):
        part = masks[:, start : start + step].astype(np.float32)
        both += part @ part.T
    kept = both.diagonal()
    either = kept[:, None] + kept - both
    iou = np.divide(both, either, out=np.ones_like(both), where=either > 0)
    layers, entries = _by_layer(masks, sizes)
    pruned = [layer for layer, shares in layers.items() if (shares < 1).any()]
    return Masks(
        clients,
        iou,
        1 - (either - both) / max(1, d),
        {name: layers[name] for name in pruned},
        {name: entries[name] for name in pruned},
        labels,
    )


def _by_layer(masks: np.ndarray, sizes: Mapping[str, int]) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The share of entries of every layer that each mask keeps [n], and its number of entries."""
    kept: dict[str, np.ndarray] = {}
    entries: dict[str, int] = {}
    ends = np.cumsum([0, *sizes.values()])
    for name, (start, end) in zip(sizes, pairwise(ends.tolist())):
        layer = name.rpartition(".")[0] or name
        kept[layer] = kept.get(layer, 0) + masks[:, start:end].sum(1)
        entries[layer] = entries.get(layer, 0) + end - start
    return {layer: count / entries[layer] for layer, count in kept.items()}, entries
