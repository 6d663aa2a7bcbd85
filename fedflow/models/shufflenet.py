"""ShuffleNetV2 for small images: half of the channels bypass each block, and all are shuffled after it."""

import torch
from torch import Tensor, nn

from fedflow.models.maps import MapNetwork, start_kaiming, through


def _convolution(
    inside: int, outside: int, kernel: int = 1, stride: int = 1, groups: int = 1, relu: bool = True
) -> nn.Sequential:
    """A convolution without biases, BatchNorm, ReLU."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outside),
        *([nn.ReLU()] if relu else []),
    )


class _Block(nn.Module):
    """Convolutions 1x1, 3x3 by channel, 1x1 of half of the channels; the other half is unchanged.

    With stride 2, both branches have all channels, and the other one has convolutions 3x3 by channel and 1x1.
    """

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.stride, half = stride, outside // 2
        self.layers = nn.Sequential(
            _convolution(half if stride == 1 else inside, half),
            _convolution(half, half, 3, stride, half, relu=False),
            _convolution(half, half),
        )
        if stride > 1:
            self.beside = nn.Sequential(
                _convolution(inside, inside, 3, stride, inside, relu=False), _convolution(inside, half)
            )

    def forward(self, x: Tensor) -> Tensor:
        other, x = x.chunk(2, 1) if self.stride == 1 else (self.beside(x), x)
        return torch.stack([other, self.layers(x)], 2).flatten(1, 2)  # channels of both alternate


class ShuffleNetV2(MapNetwork):
    """Stem 24 (1x1) - stages of 4, 8, 4 blocks, 116, 232, 464, of stride 2 - 1x1 1024 - mean - dense K.

    Source: Ma et al., ECCV 2018 (1x), with the stem of the code of SimKD for CIFAR. For 3x32x32 and 100
    classes, 1,355,528 parameters.
    """

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        stages, inside = [], 24
        self.stem = _convolution(input_shape[0], inside)
        for outside, depth in ((116, 4), (232, 8), (464, 4)):
            rest = (_Block(outside, outside, 1) for _ in range(depth - 1))
            stages.append(nn.Sequential(_Block(inside, outside, 2), *rest))
            inside = outside
        stages[-1].append(_convolution(inside, 1024))
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(1024, num_classes)
        start_kaiming(self)

    def maps(self, x: Tensor) -> list[Tensor]:
        return through(self.stages, self.stem(x))
