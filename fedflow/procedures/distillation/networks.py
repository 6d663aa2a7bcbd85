"""Outputs of the teacher, students with further layers that are trained too, and the guides of DiSK.

A network with readable feature maps has a method ``maps(x)`` that returns the outputs [B, C, H, W] of its
stages. The last map is averaged over positions and is the input of the last linear layer.
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

GUIDE_WIDTHS = 64, 128  # the guide of the text
GUIDE_CHANNELS = 256  # the guide of the authors' code


class Outputs(NamedTuple):
    """Outputs of the teacher for a batch: logits [B, C], features [B, d] (inputs of its last layer), maps."""

    logits: Tensor
    features: Tensor
    maps: list[Tensor]


@torch.no_grad()
def outputs_of(network: Teacher, x: Tensor, maps: bool = False) -> Outputs:
    """The outputs of a ``network`` in evaluation mode, with its ``maps`` if requested."""
    model, w = network
    stages = model.call("maps", w, x) if maps else []
    features = stages[-1].mean((-2, -1)) if maps else model.features(w, x)
    return Outputs(F.linear(features, *head(network)), features, stages)


def head(network: Teacher) -> tuple[Tensor, Tensor]:
    """Weight [C, d] and bias [C] of the last linear layer."""
    views = network.model.views(network.w)
    return views[f"{network.model.last_linear}.weight"], views[f"{network.model.last_linear}.bias"]


def check_outputs(network: Teacher, x: Tensor, field: str, maps: bool) -> None:
    """Raise `BadInput` for ``field`` unless `outputs_of` can read this network, on inputs like ``x``."""
    name, model = Words(network.model.title), network.model
    if maps and not hasattr(model.to_module(network.w), "maps"):
        raise BadInput(field, name, "a network with a method maps, such as a ResNet, for its feature maps")
    linear = model.last_linear is not None
    if not linear or not torch.allclose(outputs_of(network, x, maps).logits, network.outputs(x), atol=1e-3):
        inputs = "the mean of its last map" if maps else "features"
        raise BadInput(field, name, f"a network that ends with a linear layer, with biases, of {inputs}")


class Hinted(nn.Module):
    """A student, and the projection of its first map to the channels of the teacher's first map (FitNet).

    The projection is a convolution between the ``sizes`` of these maps, BatchNorm and ReLU. `both` returns
    logits [B, C] and the projected map.
    """

    def __init__(
        self, student: Callable[[], nn.Module], head: str, channels: tuple[int, int], sizes: tuple[Size, Size]
    ) -> None:
        super().__init__()
        self.student, self.head = student(), head
        self.project = nn.Sequential(_resizing(channels, *sizes), nn.BatchNorm2d(channels[1]), nn.ReLU())

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.student.maps(x)  # type: ignore[operator]
        logits = self.student.get_submodule(self.head)(maps[-1].mean((-2, -1)))
        return logits, self.project(maps[0])

    def forward(self, x: Tensor) -> Tensor:
        return self.student(x)


class Projected(nn.Module):
    """A student whose last map is projected to the teacher's map and classified by the teacher (SimKD).

    The projection is 1x1, 3x3 and 1x1 convolutions, each with BatchNorm and ReLU, of which the first two have
    half of the teacher's channels. The student's last layer is removed; the teacher's, with ``weight`` [C, d]
    and ``bias`` [C], is constant. `both` returns logits and the projected map, of size ``size``.
    """

    def __init__(
        self,
        student: Callable[[], nn.Module],
        head: str,
        inside: int,
        weight: Tensor,
        bias: Tensor,
        size: Size,
    ) -> None:
        super().__init__()
        self.student, self.size = student(), size
        self.student.set_submodule(head, nn.Identity())
        outside = weight.shape[1]
        narrow = max(1, outside // 2)
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
    hint, target = (outputs_of(network, x, maps=True).maps[0] for network in (student, teacher))
    channels = hint.shape[1], target.shape[1]
    sizes = (hint.shape[2], hint.shape[3]), (target.shape[2], target.shape[3])
    model, last = student.model, student.model.last_linear
    assert last is not None
    return FlatModel(partial(Hinted, model.factory, last, channels, sizes), device=model.device)


def projected(student: Teacher, teacher: Teacher, x: Tensor) -> FlatModel:
    """The student of SimKD, for inputs like ``x``."""
    source, target = (outputs_of(network, x, maps=True).maps[-1] for network in (student, teacher))
    model, last, size = student.model, student.model.last_linear, _smaller(source, target)
    assert last is not None
    weight, bias = (part.cpu() for part in head(teacher))
    factory = partial(Projected, model.factory, last, source.shape[1], weight, bias, size)
    return FlatModel(factory, device=model.device)


def with_student(network: FlatModel, w: Tensor, student: Teacher) -> Tensor:
    """``w`` [D] of a `Hinted` or `Projected` network, with the values of the ``student`` in it."""
    return network.replaced(
        w, {f"student.{name}": value for name, value in student.model.views(student.w).items()}
    )


def student_of(network: FlatModel, w: Tensor, model: FlatModel) -> Tensor:
    """The vector [d] of the student, a ``model``, within ``w`` [D] of a `Hinted` network."""
    return torch.cat([w[network.slices[f"student.{name}"]] for name in model.names])


def _convolution(inside: int, outside: int, kernel: int) -> nn.Sequential:
    convolution = nn.Conv2d(inside, outside, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outside), nn.ReLU())


def _resizing(channels: tuple[int, int], source: Size, target: Size) -> nn.Module:
    """SimKD's convolution from maps of size ``source`` to ``target``; smaller maps grow only from half."""
    (height, width), (rows, columns) = source, target
    if height == 2 * rows:
        return nn.Conv2d(*channels, 3, stride=2, padding=1)
    if 2 * height == rows:
        return nn.ConvTranspose2d(*channels, 4, stride=2, padding=1)
    if height >= rows and width >= columns:
        return nn.Conv2d(*channels, (1 + height - rows, 1 + width - columns))
    return nn.Conv2d(*channels, 3, padding=1)


def _smaller(a: Tensor, b: Tensor) -> Size:
    """Height and width of the smaller of two maps [B, C, H, W]."""
    return min(a.shape[-2], b.shape[-2]), min(a.shape[-1], b.shape[-1])


class MLPGuide(nn.Module):
    """g [B] in [0, 1] from the teacher's features and logits together [B, d + C].

    64 - BatchNorm, ReLU - 128 - BatchNorm, ReLU - 1 - sigmoid: 31,681 parameters for d = 256 and C = 100.
    """

    def __init__(self, inputs: int) -> None:
        super().__init__()
        layers = list[nn.Module]()
        for inside, outside in zip((inputs, *GUIDE_WIDTHS), GUIDE_WIDTHS, strict=False):
            layers += [nn.Linear(inside, outside), nn.BatchNorm1d(outside), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(GUIDE_WIDTHS[-1], 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(-1)


class ConvGuide(nn.Module):
    """g [B] in [0, 1] from a map of the teacher with ``channels`` [B, c, H, W], as in the authors' code.

    1x1 to 256, 3x3, 1x1, each with BatchNorm and SiLU - mean - d - C - BatchNorm, ReLU - 1 - sigmoid.
    """

    def __init__(self, channels: int, features: int, classes: int) -> None:
        super().__init__()
        layers, inside = list[nn.Module](), channels
        for kernel in (1, 3, 1):
            convolution = nn.Conv2d(inside, GUIDE_CHANNELS, kernel, padding=kernel // 2, bias=False)
            layers += [convolution, nn.BatchNorm2d(GUIDE_CHANNELS), nn.SiLU()]
            inside = GUIDE_CHANNELS
        self.map = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(GUIDE_CHANNELS, features),
            nn.Linear(features, classes),
            nn.BatchNorm1d(classes),
            nn.ReLU(),
            nn.Linear(classes, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.map(x).mean((-2, -1))).squeeze(-1)


# Guides for inputs with c channels, d features and C classes
GUIDES: dict[str, Callable[[int, int, int], nn.Module]] = {
    "mlp": lambda inputs, features, classes: MLPGuide(inputs),
    "conv": ConvGuide,
}
