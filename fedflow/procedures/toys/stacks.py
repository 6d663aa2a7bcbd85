"""Training of a stack of networks [R, D] of one architecture, all at once under vmap."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedflow.models.flat import FlatModel
from fedflow.seeding import generator, torch_seed

Samples = tuple[Tensor, Tensor]  # inputs [n, d], labels [n]
# Loss, and buffers after the batch [Q], of a vector [D], further tensors of its network, and a batch.
Objective = Callable[..., tuple[Tensor, Tensor]]


class Stack(NamedTuple):
    """Networks ``w`` [R, D] and the momentum of their parameters ``v`` [R, P]."""

    w: Tensor
    v: Tensor


class SGD(NamedTuple):
    """Stochastic gradient descent with momentum; weight decay is in the gradient."""

    lr: float
    momentum: float
    weight_decay: float

    def step(
        self, model: FlatModel, stack: Stack, objective: Objective, extra: tuple[Tensor, ...], *batch: Tensor
    ) -> Stack:
        """One step of every network: each has its ``extra`` [R, ...], all have the same ``batch``."""
        dims = (0, *(0 for _ in extra), *(None for _ in batch))
        slope, buffers = vmap(grad(objective, has_aux=True), dims)(stack.w, *extra, *batch)
        w = stack.w[:, : model.parameters]
        v = self.momentum * stack.v + slope[:, : model.parameters] + self.weight_decay * w
        return Stack(torch.cat([w - self.lr * v, buffers], 1), v)


def start(model: FlatModel, seed: int, purpose: str, count: int) -> Stack:
    """``count`` networks with different starts."""
    w = torch.stack([model.init(torch_seed(seed, purpose, i)) for i in range(count)])
    return Stack(w, torch.zeros_like(w[:, : model.parameters]))


def in_training(model: FlatModel, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [B, K] of one network ``w`` [D] in training mode, and its buffers [Q] after the batch."""
    outputs, buffers = model.train_outputs(w, x)
    return outputs, w[model.parameters :] if buffers is None else buffers


def batches(count: int, size: int, epochs: int, seed: int, purpose: str, number: int) -> Iterator[Tensor]:
    """Positions of the batches of ``epochs`` over ``count`` samples, in a new order each time."""
    for epoch in range(epochs):
        order = generator(seed, purpose, number, epoch).permutation(count)
        yield from torch.from_numpy(order).split(size)


@torch.no_grad()
def evaluated(model: FlatModel, w: Tensor, x: Tensor) -> Tensor:
    """Outputs [R, n, K] of networks ``w`` [R, D] in evaluation mode."""
    return vmap(model.outputs, (0, None))(w, x)


def accuracies(model: FlatModel, w: Tensor, samples: Samples) -> Tensor:
    """The share of ``samples`` that each network ``w`` [R, D] classifies correctly, float64 [R]."""
    x, y = samples
    return (evaluated(model, w, x).argmax(-1) == y).double().mean(1)
