"""Pre-activation ResNets with GroupNorm: without running statistics, only parameters are averaged."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from fedflow.models.maps import MapNetwork, start_kaiming, through


class _Block(nn.Module):
    """Twice norm, ReLU, 3x3 convolution. If the shape changes, the shortcut is 1x1 after the first ReLU."""

    def __init__(self, inside: int, outside: int, stride: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, inside)
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        changes = stride > 1 or inside != outside
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(x))
        x = x if self.shortcut is None else self.shortcut(out)
        return x + self.conv2(F.relu(self.norm2(self.conv1(out))))


class PreActResNet(MapNetwork):
    """Stem 64 (3x3) - four stages of ``depths`` blocks, 64, 128, 256, 512 - norm, ReLU - mean - dense K.

    With GroupNorm of ``groups`` in place of BatchNorm; for images of any size. For 3 channels and 100
    classes, 2, 2, 2, 2 (ResNet-18) has 11,218,340 parameters and 3, 4, 6, 3 (ResNet-34) 21,326,500.
    Source: He et al., "Identity Mappings in Deep Residual Networks", ECCV 2016; FedDyn's code for GroupNorm.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        depths: Sequence[int] = (2, 2, 2, 2),
        groups: int = 2,
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(input_shape[0], 64, 3, 1, 1, bias=False)
        self.stages, inside = nn.Sequential(), 64
        for outside, depth in zip((64, 128, 256, 512), depths, strict=True):
            first = _Block(inside, outside, 1 if outside == inside else 2, groups)
            rest = (_Block(outside, outside, 1, groups) for _ in range(depth - 1))
            self.stages.append(nn.Sequential(first, *rest))
            inside = outside
        self.norm = nn.GroupNorm(groups, inside)
        self.fc = nn.Linear(inside, num_classes)
        self.shared_patterns = (f"stages.3.{depths[-1] - 1}.*", "norm.*", "fc.*")
        start_kaiming(self)

    def maps(self, x: Tensor) -> list[Tensor]:
        *others, last = through(self.stages, self.stem(x))
        return [*others, F.relu(self.norm(last))]
