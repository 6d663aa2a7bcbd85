"""Plain steps of SGD in place, and layer by layer: the bits of `Trainer.descend`, with less memory traffic.

A flat gradient [D] costs two passes over its memory, and every new vector another. Together they take a fifth
of a step of a network with a million parameters and small batches.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflow.local.optimizer import Pull, SGDState
from fedflow.models.flat import FlatModel

Tensors = list[Tensor] | tuple[Tensor, ...]
CACHED = 1 << 17  # numbers of a matrix that stay in a core's cache while a product is added to them


class Product(NamedTuple):
    """A matrix [m, n] as the product of ``a`` [m, k] and ``b`` [k, n]."""

    a: Tensor
    b: Tensor

    @property
    def value(self) -> Tensor:
        return self.a @ self.b

    def add_to(self, matrix: Tensor, factor: float) -> None:
        """Add ``factor`` times this product to ``matrix`` [m, n] in place, twice as fast as BLAS at once."""
        rows = max(1, CACHED // matrix.shape[1])
        for block, a in zip(matrix.split(rows), self.a.split(rows)):
            block.addmm_(a, self.b, alpha=factor)


def pull_by_layer(model: FlatModel, pull: Pull) -> list[Pull]:
    """The penalty of each layer."""
    weight, centers = pull.weight, model.pieces(pull.center)
    if isinstance(weight, Tensor):
        return [Pull(*each) for each in zip(model.pieces(weight.expand_as(pull.center)), centers)]
    return [Pull(weight, center) for center in centers]


class Pieces:
    """A copy of a vector ``w`` [D] in training, and views of its parameters.

    ``state`` has a velocity if ``momentum`` > 0. A ``correction`` [D] is added to every step outside of it,
    the gradient of ``pull`` to every gradient.
    """

    def __init__(
        self,
        model: FlatModel,
        w: Tensor,
        momentum: float,
        weight_decay: float,
        correction: Tensor | None,
        pull: Pull | None = None,
    ) -> None:
        self.state = SGDState(w.detach().clone(), torch.zeros_like(w) if momentum else None)
        self._model, self._momentum, self._weight_decay = model, momentum, weight_decay
        whole = self.state.w, self.state.velocity, correction
        self._whole: list[list[Tensor]] = [[] if v is None else [v] for v in whole]
        self._by_layer = [[] if v is None else model.pieces(v) for v in whole]
        self._leaves = [piece.detach().requires_grad_() for piece in self._by_layer[0]]
        pulls = [] if pull is None else pull_by_layer(model, pull)
        self._weights: Any = [weight for weight, _ in pulls]  # all numbers, or all tensors
        self._centers = [center for _, center in pulls]

    def gradient(
        self, x: Tensor, y: Tensor, cost: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensors, Tensor]:
        """The gradients of the mean loss of a batch in training mode, by layer, and this loss, scalar.

        With ``cost``, the gradients of a function of this loss.
        """
        loss = self._model.loss(self._model.outputs_of(self._leaves, x), y)
        objective = cost(loss) if cost else loss
        return torch.autograd.grad(objective, self._leaves, materialize_grads=True), loss.detach()

    def descend(self, gradient: Sequence[Tensor | Product] | Tensor, lr: float) -> None:
        """One step along a gradient, by layer or whole [D]. Steps along products never form them."""
        whole = isinstance(gradient, Tensor)
        w, velocity, correction = self._whole if whole else self._by_layer
        pieces = [gradient] if isinstance(gradient, Tensor) else gradient
        if not (self._weight_decay or velocity or correction or self._centers):
            for layer, piece in zip(w, pieces):
                if isinstance(piece, Product):
                    piece.add_to(layer, -lr)
            w = [layer for layer, piece in zip(w, pieces) if isinstance(piece, Tensor)]
            pieces = [piece for piece in pieces if isinstance(piece, Tensor)]
        g: Tensors = [piece.value if isinstance(piece, Product) else piece for piece in pieces]
        if self._centers:
            away = torch._foreach_sub(w, self._centers)
            torch._foreach_mul_(away, self._weights)
            torch._foreach_add_(away, g)
            g = away
        if self._weight_decay:
            g = torch._foreach_add(g, torch._foreach_mul(w, self._weight_decay))
        if velocity:
            torch._foreach_mul_(velocity, self._momentum)
            torch._foreach_add_(velocity, g)
            g = velocity
        if correction:
            g = torch._foreach_add(g, correction)
        torch._foreach_sub_(w, g, alpha=lr)
