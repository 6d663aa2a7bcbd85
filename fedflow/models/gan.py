"""Generator and discriminator of an AC-GAN, for square images of side 8, 16, 32 or 64.

Pixels are in [-1, 1]; smaller images have fewer stages. Weights start from N(0, 0.02^2), scales of BatchNorm
from N(1, 0.02^2), biases from 0. Source: Hahn, doctoral thesis, UNIST 2024, Chapter IV, and the authors' code
(vaseline555/FedEvg) for sides 32 and 64.
"""

import math
from typing import ClassVar

from torch import Tensor, nn

SIDES = (8, 16, 32, 64)
NOISE = 128  # entries of the noise


def side_of(input_shape: tuple[int, ...]) -> int:
    """The side of images [C, H, W]. Raises `ValueError` unless it is in `SIDES`."""
    if len(input_shape) != 3 or input_shape[1] != input_shape[2] or input_shape[1] not in SIDES:
        raise ValueError(f"it needs square images with a side of {', '.join(map(str, SIDES))}")
    return input_shape[1]


class Generator(nn.Module):
    """Images [B, ch, R, R] from noise and one-hot labels [B, 128 + C], by convolutions without biases.

    Source, for side 32: 1,222,528 parameters for 10 classes of gray images.
    """

    widths: ClassVar = (128, 128, 64)  # between the first stage and the last, for side 64

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        inputs, wide = NOISE + classes, 256
        layers: list[nn.Module] = [
            nn.Unflatten(1, (inputs, 1, 1)),
            nn.ConvTranspose2d(inputs, wide, 4, bias=False),
            nn.BatchNorm2d(wide),
            nn.LeakyReLU(0.2),
        ]
        for width in self.widths[3 - int(math.log2(side_of(input_shape) // 8)) :]:
            layers += [
                nn.ConvTranspose2d(wide, width, 4, 2, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.LeakyReLU(0.2),
            ]
            wide = width
        layers += [nn.ConvTranspose2d(wide, input_shape[0], 4, 2, 1, bias=False), nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        self.apply(_initialize)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Discriminator(nn.Module):
    """Logits [B, 1 + C]: whether an image is real, and its class. Convolutions without biases, dropout 0.5.

    Source, for side 32: 1,708,555 parameters for 10 classes of gray images.
    """

    widths: ClassVar = (64, 128, 256, 256)  # of the strided stages, for side 64

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        wide, layers = input_shape[0], list[nn.Module]()
        for i, width in enumerate(self.widths[: int(math.log2(side_of(input_shape) // 4))]):
            layers += [nn.Conv2d(wide, width, 4, 2, 1, bias=False), *([nn.BatchNorm2d(width)] if i else [])]
            layers += [nn.LeakyReLU(0.2), nn.Dropout(0.5)]
            wide = width
        layers += [nn.Conv2d(wide, 256, 4, bias=False), nn.Dropout(0.5), nn.Flatten()]
        self.layers = nn.Sequential(*layers, nn.Linear(256, 1 + classes))
        self.apply(_initialize)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def _initialize(layer: nn.Module) -> None:
    if isinstance(layer, nn.BatchNorm2d):
        nn.init.normal_(layer.weight, 1, 0.02)
    elif isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
        nn.init.normal_(layer.weight, 0, 0.02)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
