"""Encoder and decoder of a conditional variational autoencoder, for square images of side 8, 16, 32 or 64.

Pixels are in [0, 1]; smaller images have fewer stages. All convolutions are 4x4 with stride 2 and biases.
Weights start by Xavier's normal distribution, biases from 0. Source: Hahn, doctoral thesis, UNIST 2024,
Chapter IV, and the authors' code (vaseline555/FedEvg) for sides 32 and 64.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from fedflow.models.gan import side_of

LATENT = 128


class Encoder(nn.Module):
    """Means and standard deviations [B, 2 * 128] of the latent vectors of images, regardless of classes.

    Source, for side 32: 985,856 parameters for gray images.
    """

    widths: ClassVar = (64, 64, 128, 256)

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        widths, side = _stages(input_shape)
        wide, layers = input_shape[0], list[nn.Module]()
        for width in widths:
            layers += [nn.Conv2d(wide, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU()]
            wide = width
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(wide * side * side, 2 * LATENT))
        self.apply(_initialize)

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = self.layers(x).chunk(2, 1)
        return torch.cat([mean, softplus(spread) + 1e-8], 1)


class Decoder(nn.Module):
    """Images [B, ch, R, R] from latent vectors and one-hot labels [B, 128 + C].

    Source, for side 32: 865,025 parameters for 10 classes of gray images.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        widths, side = _stages(input_shape)
        wide = widths[-1]
        layers: list[nn.Module] = [
            nn.Linear(LATENT + classes, wide * side * side),
            nn.Unflatten(1, (wide, side, side)),
            nn.ReLU(),
        ]
        for width in widths[-2::-1]:
            layers += [nn.ConvTranspose2d(wide, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU()]
            wide = width
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(wide, input_shape[0], 4, 2, 1), nn.Sigmoid())
        self.apply(_initialize)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def _stages(input_shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """The widths of the strided stages, and the side of the last maps: 2, or 4 for side 64."""
    side = side_of(input_shape)
    count = min(4, int(math.log2(side // 2)))
    return Encoder.widths[4 - count :], side >> count


def _initialize(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
        nn.init.xavier_normal_(layer.weight)
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)
