"""Convolutional networks of SuPerFed (Hahn et al., KDD 2022, Table 2.2), with the layers of its code.

Only BatchNorm has biases. It keeps no running statistics, as in the code: it normalizes with the mean and
variance of the batch, in evaluation too, so that a model is its parameters alone. The head is two dense
layers with 256 units in between. Weights start by Xavier's normal distribution.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from fedflow.models.binary import start_xavier


def _convolution(
    inside: int, outside: int, kernel: int, stride: int = 1, padding: int = 0, groups: int = 1
) -> nn.Sequential:
    """A convolution and BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outside, track_running_stats=False),
    )


def _head(inside: int, num_classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inside, 256, bias=False), nn.ReLU(), nn.Linear(256, num_classes, bias=False)
    )


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution if the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inside, outside, 3, stride, padding=1)
        self.conv2 = _convolution(outside, outside, 3, padding=1)
        changes = stride > 1 or inside != outside
        self.shortcut = _convolution(inside, outside, 1, stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv2(F.relu(self.conv1(x))) + self.shortcut(x))


class ResNet9BN(nn.Module):
    """Stem 64 (3x3, stride 2, max pool 3) - blocks 64, 128, 256, 512, the last two of stride 2 - mean - head.

    5,054,784 parameters for 3 channels and 100 classes, 156,672 of them in the head. In the authors' code the
    first block lacks its shortcut: a block without a 1x1 convolution adds nothing. Here it adds its input.
    """

    head_patterns = ("classifier.*",)

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _convolution(input_shape[0], 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
            _Block(64, 64, 1),
            _Block(64, 128, 1),
            _Block(128, 256, 2),
            _Block(256, 512, 2),
        )
        self.classifier = _head(512, num_classes)
        start_xavier(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((-2, -1)))


class MobileNet(nn.Module):
    """Stem 32 (3x3, stride 2) - separable blocks 64, 128, 256, 512 of strides 1, 2, 2, 1 - mean - head.

    A block is an unpadded 3x3 convolution of every channel and a 1x1 convolution, each with BatchNorm and
    ReLU. 364,480 parameters for 3 channels and 200 classes, 182,272 of them in the head.
    """

    head_patterns = ("classifier.*",)

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(_convolution(input_shape[0], 32, 3, stride=2, padding=1), nn.ReLU())
        inside = 32
        for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 1)):
            self.features += nn.Sequential(
                _convolution(inside, inside, 3, stride, groups=inside),
                nn.ReLU(),
                _convolution(inside, outside, 1),
                nn.ReLU(),
            )
            inside = outside
        self.classifier = _head(inside, num_classes)
        start_xavier(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((-2, -1)))


class VGG9(nn.Module):
    """Convolutions 16, pool, 32, pool, 64, 128, pool, 256, 512, pool (3x3, padded, each with ReLU) - head.

    Without BatchNorm. 1,718,416 parameters for 1x28x28 and 62 classes, 146,944 of them in the head.
    """

    head_patterns = ("classifier.*",)

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        inside, height, width = input_shape
        self.features = nn.Sequential()
        for outside, pool in ((16, True), (32, True), (64, False), (128, True), (256, False), (512, True)):
            self.features += nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.ReLU())
            if pool:
                self.features.append(nn.MaxPool2d(2))
            inside = outside
        if min(height, width) < 16:
            raise ValueError("it needs 16x16 pixels or more")
        self.classifier = _head(512 * (height // 16) * (width // 16), num_classes)
        start_xavier(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))
