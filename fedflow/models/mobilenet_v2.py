"""MobileNetV2 for small images: blocks are wide inside and narrow between them."""

from collections.abc import Callable

from torch import Tensor, nn

from fedflow.models.maps import MapNetwork, start_kaiming, through


def convolution(
    inside: int,
    outside: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """A convolution without biases, BatchNorm, and an activation."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outside),
        activation(),
    )


class Inverted(nn.Module):
    """An inverted residual: ``expansion`` times as wide inside, with a shortcut if the shape stays."""

    def __init__(
        self,
        inside: int,
        outside: int,
        stride: int = 1,
        expansion: int = 6,
        activation: Callable[[], nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        hidden = expansion * inside
        self.layers = nn.Sequential(
            convolution(inside, hidden, 1, activation=activation),
            convolution(hidden, hidden, 3, stride, hidden, activation),
            nn.Conv2d(hidden, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.residual = stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class MobileNetV2(MapNetwork):
    """Stem 32 (3x3, stride 2) - inverted residuals in stages of 24, 32, 96, 320 - 1x1 1280 - mean - dense K.

    For 3 channels and 100 classes, 2,353,060 parameters. Source: Sandler et al., CVPR 2018, with ReLU, the
    strides and the 1x1 convolution of the first block as in the code of SimKD for CIFAR.
    """

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.stem, inside = convolution(input_shape[0], 32, 3, 2), 16
        stages = [nn.Sequential(Inverted(32, inside, expansion=1))]
        for outside, depth, stride in (
            (24, 2, 1),
            (32, 3, 2),
            (64, 4, 2),
            (96, 3, 1),
            (160, 3, 2),
            (320, 1, 1),
        ):
            if stride > 1:
                stages.append(nn.Sequential())
            for block in range(depth):
                stages[-1].append(Inverted(inside, outside, 1 if block else stride))
                inside = outside
        stages[-1].append(convolution(inside, 1280, 1))
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(1280, num_classes)
        start_kaiming(self)

    def maps(self, x: Tensor) -> list[Tensor]:
        return through(self.stages, self.stem(x))
