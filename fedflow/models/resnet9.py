"""ResNet-9 with GroupNorm: without running statistics, only parameters are averaged."""

from torch import Tensor, nn
from torch.nn import functional as F


def _block(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(32, outside), nn.ReLU())


class ResNet9(nn.Module):
    """Prep 64 - 128 pool - residual 2x128 - 256 pool - 512 pool - residual 2x512 - max pool 4 - dense K.

    Every 3x3 convolution has a bias and is followed by GroupNorm (32 groups) and ReLU.
    6,621,540 parameters for 3x32x32 and 100 classes.
    """

    head_patterns = ("classifier.*",)
    shared_patterns = ("residual3.1.1.*", "classifier.*")  # with the last GroupNorm

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        if min(height, width) < 32:
            raise ValueError("it needs 32x32 pixels or more")
        self.prep, self.layer1 = _block(channels, 64), _block(64, 128)
        self.residual1 = nn.Sequential(_block(128, 128), _block(128, 128))
        self.layer2, self.layer3 = _block(128, 256), _block(256, 512)
        self.residual3 = nn.Sequential(_block(512, 512), _block(512, 512))
        self.classifier = nn.Linear(512 * (height // 32) * (width // 32), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.layer1(self.prep(x)), 2)
        x = x + self.residual1(x)
        x = F.max_pool2d(self.layer2(x), 2)
        x = F.max_pool2d(self.layer3(x), 2)
        x = x + self.residual3(x)
        return self.classifier(F.max_pool2d(x, 4).flatten(1))
