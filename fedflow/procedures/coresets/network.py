"""A graph convolutional network of two layers that classifies nodes (Kipf and Welling 2017)."""

import math

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedflow.local.local_training import BETAS
from fedflow.local.optimizer import AdamState

HIDDEN, DROPOUT, LR, DECAY = 16, 0.5, 0.01, 5e-4  # as in the paper


class GCN:
    """softmax(S relu(S X W0) W1) with S = D^-1/2 (A + I) D^-1/2; dropout before both layers, no biases.

    X has the ``features`` [n, d], with rows divided by their sums, or is the identity.
    """

    def __init__(
        self, adjacency: sparse.csr_array, features: sparse.csr_array | None, classes: int, seed: int
    ) -> None:
        whole = adjacency + sparse.eye_array(adjacency.shape[0])
        scale = sparse.diags_array(1 / np.sqrt(whole.sum(1)))
        self.smooth = _tensor(scale @ whole @ scale)
        inputs = sparse.eye_array(adjacency.shape[0]) if features is None else _rows_to_one(features)
        self.inputs = _tensor(inputs)
        self.random = torch.Generator().manual_seed(seed)
        self.shapes = (inputs.shape[1], HIDDEN), (HIDDEN, classes)
        self.w = torch.cat([self._glorot(*shape).flatten() for shape in self.shapes])  # both layers

    def logits(self, w: Tensor, training: bool = False) -> Tensor:
        """Scores of all nodes, [n, classes], with parameters ``w``."""
        inputs, first, second = self.inputs, *self._layers(w)
        if training:
            kept = self._drop(inputs.values())
            inputs = torch.sparse_coo_tensor(
                inputs.indices(), kept, inputs.shape, is_coalesced=True, check_invariants=False
            )
        hidden = torch.sparse.mm(self.smooth, torch.sparse.mm(inputs, first)).relu()
        return torch.sparse.mm(self.smooth, (self._drop(hidden) if training else hidden) @ second)

    def fit(
        self,
        labels: Tensor,
        chosen: Tensor,
        validation: Tensor,
        weights: Tensor | None,
        epochs: int,
        patience: int | None,
    ) -> int:
        """Train with Adam on the ``chosen`` nodes, weighted if ``weights`` are given; return the epochs.

        Training stops when the loss of the ``validation`` nodes has not fallen for ``patience`` epochs in a
        row. `DECAY` times half the squared norm of the first layer is added to the loss.
        """
        now, best, waited, done = AdamState.of(self.w), float("inf"), 0, 0
        shares = torch.full((len(chosen),), 1 / len(chosen)) if weights is None else weights / weights.sum()
        while done < epochs and waited != patience:
            w = now.w.requires_grad_()
            losses = cross_entropy(self.logits(w, True)[chosen], labels[chosen], reduction="none")
            loss = shares @ losses + DECAY / 2 * self._layers(w)[0].square().sum()
            now = now.descend(torch.autograd.grad(loss, w)[0], LR, BETAS)
            now = now._replace(w=now.w.detach())
            with torch.no_grad():
                held = cross_entropy(self.logits(now.w)[validation], labels[validation]).item()
            best, waited, done = min(best, held), 0 if held < best else waited + 1, done + 1
        self.w = now.w
        return done

    def accuracy(self, labels: Tensor, nodes: Tensor) -> float:
        """The share of ``nodes`` that are classified correctly."""
        with torch.no_grad():
            return (self.logits(self.w)[nodes].argmax(1) == labels[nodes]).double().mean().item()

    def _layers(self, w: Tensor) -> list[Tensor]:
        parts = w.split([math.prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def _glorot(self, *shape: int) -> Tensor:
        bound = (6 / sum(shape)) ** 0.5
        return (2 * torch.rand(shape, generator=self.random) - 1) * bound

    def _drop(self, values: Tensor) -> Tensor:
        kept = torch.rand(values.shape, generator=self.random) >= DROPOUT
        return values * kept / (1 - DROPOUT)


def _rows_to_one(features: sparse.csr_array) -> sparse.csr_array:
    sums = np.asarray(features.sum(1), float)
    return sparse.diags_array(1 / np.where(sums == 0, 1, sums)) @ features


def _tensor(matrix: sparse.sparray) -> Tensor:
    """A sparse float32 tensor."""
    entries = sparse.coo_array(matrix)
    indices = torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64))
    values = torch.from_numpy(entries.data.astype(np.float32))
    return torch.sparse_coo_tensor(indices, values, entries.shape, check_invariants=False).coalesce()
