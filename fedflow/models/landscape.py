"""Loss around a model, between two models, and on the plane through three models.

Sources: Li et al., Visualizing the Loss Landscape of Neural Nets, 2018 (directions); Garipov et al., Loss
Surfaces, Mode Connectivity, and Fast Ensembling of DNNs, 2018 (the plane through three models).

A random *direction* is filter-normalized: every row of a weight (one filter or neuron) has the norm of the
same row in the model. A step of 0.1 along it changes every row by a tenth of its norm, and networks that
differ only in the scale of their layers have the same surface. Biases and parameters of norms, which have one
dimension, do not move. Two directions are drawn independently and, as by Li et al., not made orthogonal:
their cosine is about 1 / sqrt(P).

*Buffers* (BatchNorm statistics) are constant around a model. Between models they are averaged with the
parameters, but with weights >= 0, as variances must not be negative.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.errors import FedflowError
from fedflow.models.flat import FlatModel
from fedflow.seeding import torch_seed

BATCH = 256
Marks = tuple[tuple[float, float], ...]
MARGIN = 0.2  # shown beyond the ends of a segment or triangle, relative to its length


@dataclass(frozen=True)
class Surface:
    """Mean loss and accuracy [m, n] of the models at coordinates ``y`` [m] and ``x`` [n].

    ``marks`` are the coordinates (x, y) of the models that define the surface.
    """

    x: np.ndarray
    y: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray
    marks: Marks


class Landscape:
    """Loss and accuracy of models with the same network on ``examples``, which are normalized once."""

    def __init__(self, model: FlatModel, examples: Examples) -> None:
        self.model, self.samples = model, len(examples)
        rows = torch.arange(len(examples), device=examples.device).split(BATCH)
        self.batches = [(examples.inputs(batch, model.dtype), examples.targets(batch)) for batch in rows]

    @torch.no_grad()
    def score(self, w: Tensor) -> tuple[float, float]:
        """Mean loss and accuracy of the model ``w`` [D]."""
        sums = torch.zeros(2, dtype=torch.float64, device=self.model.device)
        for x, y in self.batches:
            outputs = self.model.outputs(w, x)
            scores = self.model.losses(outputs, y), self.model.hits(outputs, y)
            sums += torch.stack([values.double().sum() for values in scores])
        loss, accuracy = (sums / self.samples).tolist()
        return loss, accuracy

    def line(self, w1: Tensor, w2: Tensor, points: int) -> Surface:
        """The segment (1 - x) w1 + x w2 at ``points`` values of x from -0.2 to 1.2: [1, points]."""

        def model(x: float, y: float) -> Tensor:
            return mixture(self.model, (w1, w2), (1 - x, x))

        return self._surface(_around((0, 1), points), np.zeros(1), model, ((0.0, 0.0), (1.0, 0.0)))

    def plane(self, w: Tensor, points: int, radius: float, seed: int = 0) -> Surface:
        """w + x d1 + y d2 with two random directions, x and y from -radius to radius: [points, points]."""
        d1, d2 = (direction(self.model, w, seed, i) for i in range(2))
        at = np.linspace(-radius, radius, points)
        return self._surface(at, at, lambda x, y: w + x * d1 + y * d2, ((0.0, 0.0),))

    def triangle(self, w1: Tensor, w2: Tensor, w3: Tensor, points: int) -> Surface:
        """The plane through three models, in Euclidean distances from w1: [points, points].

        The x axis leads from w1 to w2, the y axis is orthogonal to it, towards w3. Raises `FedflowError` for
        collinear models.
        """
        u, v = ((w - w1)[: self.model.parameters].double() for w in (w2, w3))
        width, along = float(u.norm()), float(u @ v / u.norm())
        height = float((v - along * u / width).norm()) if width else 0.0
        if height <= 1e-6 * float(v.norm()):
            raise FedflowError("the three models are on one line; a plane needs three that are not")

        def model(x: float, y: float) -> Tensor:
            third = y / height
            second = (x - third * along) / width
            return mixture(self.model, (w1, w2, w3), (1 - second - third, second, third))

        marks = ((0.0, 0.0), (width, 0.0), (along, height))
        x, y = (_around(ends, points) for ends in zip(*marks))
        return self._surface(x, y, model, marks)

    def sharpness(self, w: Tensor, rho: float, directions: int, seed: int = 0) -> np.ndarray:
        """Rise of the loss at relative distance ``rho`` from w along n random ``directions``: [n].

        It is the mean of both signs, which cancels the slope at w. Flat minima have small values.
        """
        at_w = self.score(w)[0]
        steps = (rho * direction(self.model, w, seed, i) for i in range(directions))
        return np.array([(self.score(w + d)[0] + self.score(w - d)[0]) / 2 - at_w for d in steps])

    def _surface(
        self, x: np.ndarray, y: np.ndarray, model: Callable[[float, float], Tensor], marks: Marks
    ) -> Surface:
        scores = np.array([[self.score(model(s, t)) for s in x.tolist()] for t in y.tolist()])
        return Surface(x, y, scores[..., 0], scores[..., 1], marks)


def direction(model: FlatModel, w: Tensor, seed: int, number: int) -> Tensor:
    """A random filter-normalized direction [D] at w, with equal draws for all models of a network."""
    source = torch.Generator().manual_seed(torch_seed(seed, "landscape", number))
    drawn = torch.zeros(model.size, dtype=torch.float64)
    drawn[: model.parameters] = torch.randn(model.parameters, generator=source, dtype=torch.float64)
    drawn = drawn.to(w)
    pieces = [
        torch.zeros_like(random) if random.ndim < 2 else random * (_norms(weight) / _norms(random))
        for random, weight in zip(model.views(drawn).values(), model.views(w).values())
    ]
    return model.trainable(torch.cat([piece.reshape(-1) for piece in pieces]))


def mixture(model: FlatModel, models: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Sum of the models [D] by ``weights``, which sum to 1; for buffers, negative weights become 0."""
    positive = torch.tensor(weights, dtype=torch.float64).clamp_min(0)

    def mixed(factors: Sequence[float]) -> Tensor:
        return torch.stack([factor * w for factor, w in zip(factors, models)]).sum(0)

    return model.with_buffers(mixed(weights), mixed((positive / positive.sum()).tolist()))


def _norms(weight: Tensor) -> Tensor:
    """The norm of every row of a weight, in a shape that broadcasts."""
    return weight.reshape(len(weight), -1).norm(dim=1).view(-1, *[1] * (weight.ndim - 1))


def _around(ends: Sequence[float], points: int) -> np.ndarray:
    """``points`` values from a margin below the smallest to a margin above the largest of ``ends``."""
    low, high = min(ends), max(ends)
    return np.linspace(low - MARGIN * (high - low), high + MARGIN * (high - low), points)
