"""What is read of the teacher, and students with further layers that are trained with them.

A network whose feature maps can be read has a method ``maps(x)``: the outputs [B, C, H, W] of its stages, of
which the last one is averaged over its places and read by the last linear layer.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedflow.errors import BadInput
from fedflow.local.teacher import Teacher
from fedflow.models.flat import FlatModel
from fedflow.settings import Words

Size = tuple[int, int]  # height and width of a map


class Known(NamedTuple):
    """What the teacher knows of a batch: logits [B, C], features [B, d] (inputs of its last layer), maps."""

    logits: Tensor
    features: Tensor
    maps: list[Tensor]


@torch.no_grad()
def known(network: Teacher, x: Tensor, maps: bool = False) -> Known:
    """One pass of a ``network`` in evaluation mode; ``maps`` are read if asked for."""
    model, w = network
    found = model.call("maps", w, x) if maps else []
    features = found[-1].mean((-2, -1)) if maps else model.features(w, x)
    return Known(F.linear(features, *head(network)), features, found)


def head(network: Teacher) -> tuple[Tensor, Tensor]:
    """Weight [C, d] and bias [C] of the last linear layer."""
    own = network.model.views(network.w)
    return own[f"{network.model.last_linear}.weight"], own[f"{network.model.last_linear}.bias"]


def check_known(network: Teacher, x: Tensor, field: str, maps: bool) -> None:
    """Raise `BadInput` of ``field`` unless `known` reads this network, which has outputs for ``x``."""
    name, model = Words(network.model.title), network.model
    if maps and not hasattr(model.to_module(network.w), "maps"):
        raise BadInput(field, name, "a network with a method maps, such as a ResNet, for its feature maps")
    linear = model.last_linear is not None
    if not linear or not torch.allclose(known(network, x, maps).logits, network.outputs(x), atol=1e-3):
        what = "the mean of its last map" if maps else "features"
        raise BadInput(field, name, f"a network that ends with a linear layer, with biases, of {what}")


class Hinted(nn.Module):
    """A student, and the projection of its first map to the channels of the teacher's (FitNet).

    A 3x3 convolution, BatchNorm and ReLU. `both`: logits [B, C] and the projected map, of size ``size``.
    """

    def __init__(
        self, student: Callable[[], nn.Module], head: str, channels: tuple[int, int], size: Size
    ) -> None:
        super().__init__()
        self.student, self.head, self.size = student(), head, size
        inside, outside = channels
        self.project = _convolution(inside, outside, 3)

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.student.maps(x)  # type: ignore[operator]
        logits = self.student.get_submodule(self.head)(maps[-1].mean((-2, -1)))
        return logits, self.project(F.adaptive_avg_pool2d(maps[0], self.size))

    def forward(self, x: Tensor) -> Tensor:
        return self.student(x)


class Projected(nn.Module):
    """A student whose last map is projected to the teacher's, which the teacher's classifier reads (SimKD).

    1x1, 3x3 and 1x1 convolutions, each with BatchNorm and ReLU; the first two have 1 / ``factor`` of the
    teacher's channels. The student's own last layer is removed; the teacher's, ``weight`` [C, d] and ``bias``
    [C], is constant. `both`: logits and the projected map, of size ``size``.
    """

    def __init__(
        self,
        student: Callable[[], nn.Module],
        head: str,
        inside: int,
        weight: Tensor,
        bias: Tensor,
        size: Size,
        factor: int,
    ) -> None:
        super().__init__()
        self.student, self.size = student(), size
        self.student.set_submodule(head, nn.Identity())
        outside = weight.shape[1]
        narrow = max(1, outside // factor)
        self.project = nn.Sequential(
            _convolution(inside, narrow, 1), _convolution(narrow, narrow, 3), _convolution(narrow, outside, 1)
        )
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        last = self.student.maps(x)[-1]  # type: ignore[operator]
        projected = self.project(F.adaptive_avg_pool2d(last, self.size))
        return F.linear(projected.mean((-2, -1)), self.weight, self.bias), projected  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.both(x)[0]


def hinted(student: Teacher, teacher: Teacher, x: Tensor) -> FlatModel:
    """The student of FitNet, for inputs like ``x``."""
    own, target = (known(each, x, maps=True).maps[0] for each in (student, teacher))
    channels, size = (own.shape[1], target.shape[1]), _smaller(own, target)
    model, last = student.model, student.model.last_linear
    assert last is not None
    return FlatModel(partial(Hinted, model.factory, last, channels, size), device=model.device)


def projected(student: Teacher, teacher: Teacher, x: Tensor, factor: int) -> FlatModel:
    """The student of SimKD, for inputs like ``x``."""
    own, target = (known(each, x, maps=True).maps[-1] for each in (student, teacher))
    model, last, size = student.model, student.model.last_linear, _smaller(own, target)
    assert last is not None
    weight, bias = (part.cpu() for part in head(teacher))
    factory = partial(Projected, model.factory, last, own.shape[1], weight, bias, size, factor)
    return FlatModel(factory, device=model.device)


def with_student(network: FlatModel, w: Tensor, student: Teacher) -> Tensor:
    """``w`` [D] of a `Hinted` or `Projected` network with the values of its ``student``."""
    return network.replaced(
        w, {f"student.{name}": value for name, value in student.model.views(student.w).items()}
    )


def student_of(network: FlatModel, w: Tensor, model: FlatModel) -> Tensor:
    """The vector [d] of the student, a ``model``, within ``w`` [D] of a `Hinted` network."""
    return torch.cat([w[network.slices[f"student.{name}"]] for name in model.names])


def _convolution(inside: int, outside: int, kernel: int) -> nn.Sequential:
    convolution = nn.Conv2d(inside, outside, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outside), nn.ReLU())


def _smaller(one: Tensor, other: Tensor) -> Size:
    """Height and width of the smaller of two maps [B, C, H, W]."""
    return min(one.shape[-2], other.shape[-2]), min(one.shape[-1], other.shape[-1])
