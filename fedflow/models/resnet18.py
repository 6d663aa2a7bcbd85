"""ResNet-18 with GroupNorm: without running statistics, only parameters are averaged."""

from torch import Tensor, nn
from torch.nn import functional as F


class _Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(groups, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outside)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut += nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.GroupNorm(groups, outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class ResNet18(nn.Module):
    """Stem 64 (7x7, stride 2, max pool) - four stages of two blocks, 64, 128, 256, 512 - mean - dense K.

    As torchvision's, with GroupNorm of ``groups`` in place of BatchNorm: 11,181,642 parameters for 3 channels
    and 10 classes, for images of any size. Source: He et al., CVPR 2016; FedDyn's code for GroupNorm.
    """

    head_patterns = ("fc.*",)
    shared_patterns = ("stages.3.1.*", "fc.*")

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int, groups: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(input_shape[0], 64, 7, 2, 3, bias=False)
        self.norm = nn.GroupNorm(groups, 64)
        self.stages, inside = nn.Sequential(), 64
        for outside in (64, 128, 256, 512):
            first = _Block(inside, outside, 1 if outside == inside else 2, groups)
            self.stages.append(nn.Sequential(first, _Block(outside, outside, 1, groups)))
            inside = outside
        self.fc = nn.Linear(inside, num_classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.fc(self.stages(x).mean((-2, -1)))
