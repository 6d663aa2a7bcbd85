"""The toy problem of DiSK in one dimension: a student with one interval learns from a teacher with two."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedflow.models.flat import FlatModel
from fedflow.procedures.interface import Column, Row, World, register
from fedflow.procedures.toys.stacks import Samples
from fedflow.procedures.toys.toy import Toy, ToyTask
from fedflow.seeding import generator
from fedflow.settings import option

if TYPE_CHECKING:
    from fedflow.pictures.drawing import Drawing

LENGTH = 9.0
BLUE = (2.0, 3.0), (5.0, 7.0)  # intervals of class 1
RED = (0.0, 2.0), (3.0, 5.0), (7.0, LENGTH)
MINIMA = {"c": (2.0, 7.0), "b": (5.0, 7.0), "a": (2.0, 3.0)}


def inside(x: Tensor, ends: Tensor, kappa: float) -> Tensor:
    """h(x; a, b) = sigma(kappa (x - a)) - sigma(kappa (x - b)) for ``ends`` (a, b)."""
    low, high = ends
    return (kappa * (x - low)).sigmoid() - (kappa * (x - high)).sigmoid()


def read_out(h: Tensor, scale: float) -> Tensor:
    """Logits [B, 2] from h [B], which differ by scale (2 h - 1)."""
    return torch.stack([torch.zeros_like(h), scale * (2 * h - 1)], -1)


class Interval(nn.Module):
    """A student whose ends start as two sorted uniform numbers in [0, 9]."""

    def __init__(self, kappa: float, scale: float) -> None:
        super().__init__()
        self.ends = nn.Parameter((LENGTH * torch.rand(2)).sort().values)
        self.kappa, self.scale = kappa, scale

    def forward(self, x: Tensor) -> Tensor:
        return read_out(inside(x[:, 0], self.ends, self.kappa), self.scale)


def draw(count: int, rng: np.random.Generator) -> Samples:
    """Half of the points are blue (label 1), each class uniform on its intervals."""
    labels = np.arange(count) % 2
    x = np.empty(count)
    for label, pieces in enumerate((RED, BLUE)):
        lengths = np.array([high - low for low, high in pieces])
        piece = rng.choice(len(pieces), size=int((labels == label).sum()), p=lengths / lengths.sum())
        x[labels == label] = np.array(pieces)[piece, 0] + rng.random(len(piece)) * lengths[piece]
    return torch.from_numpy(x).float()[:, None], torch.from_numpy(labels)


def expected_accuracy(low: float, high: float) -> float:
    """The probability that a point is classified correctly by "blue in [low, high], red outside"."""

    def covered(pieces: tuple[tuple[float, float], ...]) -> float:
        common = sum(max(0.0, min(high, end) - max(low, begin)) for begin, end in pieces)
        return common / sum(end - begin for begin, end in pieces)

    return (covered(BLUE) + 1 - covered(RED)) / 2


@register("intervals", "Intervals")
class Intervals(Toy):
    """Intervals: students with one interval learn from a teacher with two where points are blue.

    Points of [0, 9] are blue on [2, 3] and [5, 7], else red. A student is h(x; a, b) =
    sigma(kappa (x - a)) - sigma(kappa (x - b)). It has three minima: A [2, 3], B [5, 7] and C [2, 7], which
    covers all blue points.

    Source: Acar, thesis, Chapter 6 (DiSK), Table 6.1

    *Differs from the source in*: logits differ by ``scale`` (2 h - 1), as with log h and log (1 - h) all
    students end near [3, 7]; no weight decay, which pulls ends to 0 (source: 0.01); K = 1, as K = 2 helps
    both classes equally (source: 2); no validation points, as nothing is selected; students of KD and DiSK
    start at random, not from the students of CE; guides and students take ``inner_epochs`` of 5 batches in a
    round (source: 3 gradient steps); the budget takes cross-entropy up to 5, as the authors' code for images.
    *Ambiguous*: ``kappa`` and the batch size are not given. The teacher is the sum of h on both blue
    intervals, not trained; the guide is a logistic function of the two. Expected accuracies are 66.7 % for A
    and 83.3 % for B and C, so that the printed 67, 83 and 87 % of 100 points do not distinguish B from C.
    """

    kappa: float = option(5.0, "steepness of the ends; not in the source", gt=0)
    scale: float = option(4.0, "scale of the logits", gt=0, grid=(1, 4))
    tests: int = option(100, "test points", ge=1)
    tolerance: float = option(0.5, "largest distance of ends from the ends of a minimum", gt=0, le=1)
    top_k: int = option(1, "classes of the teacher that the guide helps", symbol="K", ge=1, le=2, grid=(1, 2))
    weight_decay: float = option(0.0, "L2 penalty of students and guides", ge=0, source="0.01 in the source")

    minima: ClassVar = (*MINIMA, "other")
    metrics: ClassVar = {
        **{
            name: Column(f"{name.upper()}: [{low:g}, {high:g}]", "students", digits=1)
            for name, (low, high) in sorted(MINIMA.items())
        },
        "other": Column("Other", "students", "lower", digits=1),
        "mean_accuracy": Column("Mean accuracy", "%", "higher"),
        "expected": Column("Median expected accuracy", "%", "higher"),
        "low": Column("Median lower end", digits=2),
        "high": Column("Median upper end", digits=2),
    }

    def open(self, world: World) -> ToyTask:
        (train, h), (test, h_test) = (
            self._samples(world, name, count)
            for name, count in (("train", self.samples), ("test", self.tests))
        )
        student = FlatModel(partial(Interval, self.kappa, self.scale), device=world.device)
        guide = FlatModel(_guide, device=world.device)
        logits = read_out(h.sum(-1), self.scale)
        right = (h_test.sum(-1) > 0.5) == test[1]
        return ToyTask(world.seed, train, test, student, guide, logits, h, right.double().mean().item())

    def _samples(self, world: World, name: str, count: int) -> tuple[Samples, Tensor]:
        """Points, and the two h of the teacher [n, 2]."""
        x, y = (part.to(world.device) for part in draw(count, generator(world.seed, f"intervals {name}")))
        return (x, y), torch.stack([inside(x[:, 0], torch.tensor(ends), self.kappa) for ends in BLUE], -1)

    def minimum(self, task: ToyTask, w: Tensor, accuracy: float) -> str:
        for name, ends in MINIMA.items():
            if (w - torch.tensor(ends)).abs().max() <= self.tolerance:
                return name
        return "other"

    def described(self, task: ToyTask, w: Tensor) -> Row:
        low, high = w.tolist()
        return {"low": low, "high": high, "expected": expected_accuracy(low, high)}

    def drawings(self, task: ToyTask, students: pd.DataFrame, w: Mapping[str, Tensor]) -> "list[Drawing]":
        from fedflow.pictures.toys import ends  # matplotlib is slow to import

        return [ends(students, MINIMA)]


def _guide() -> nn.Module:
    return nn.Sequential(nn.Linear(len(BLUE), 1), nn.Sigmoid())
