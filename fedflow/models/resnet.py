"""ResNets of basic blocks, with BatchNorm or GroupNorm (without running statistics)."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from fedflow.models.maps import MapNetwork, start_kaiming, through


def _norm(channels: int, groups: int) -> nn.Module:
    return nn.GroupNorm(groups, channels) if groups else nn.BatchNorm2d(channels)


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution if the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = _norm(outside, groups)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = _norm(outside, groups)
        self.shortcut = nn.Sequential()
        if stride > 1 or inside != outside:
            self.shortcut += nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), _norm(outside, groups)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class ResNet(MapNetwork):
    """Stem (3x3) - stages of ``depths`` blocks, ``widths``, stride 2 after the first - mean - dense K.

    The stem has ``stem`` channels (null = as the first stage). ``groups`` is the number of groups of
    GroupNorm; 0 is BatchNorm. With ``imagenet``, the stem is as in torchvision: 7x7, stride 2, max pool. For
    images of any size. Sources: He et al., CVPR 2016; FedDyn's code for GroupNorm; for CIFAR, DiSK (Tables
    6.2, A.11, A.12) and the code of SimKD (Chen et al., CVPR 2022), in which WRN-d-k is also such a network
    of depth d - 2.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        widths: Sequence[int] = (64, 128, 256, 512),
        depths: Sequence[int] = (2, 2, 2, 2),
        stem: int | None = None,
        groups: int = 0,
        imagenet: bool = False,
    ) -> None:
        super().__init__()
        inside = stem or widths[0]
        kernel, stride = (7, 2) if imagenet else (3, 1)
        self.stem = nn.Conv2d(input_shape[0], inside, kernel, stride, kernel // 2, bias=False)
        self.norm, self.imagenet = _norm(inside, groups), imagenet
        self.stages = nn.Sequential()
        for stage, (outside, depth) in enumerate(zip(widths, depths, strict=True)):
            first = _Block(inside, outside, 2 if stage else 1, groups)
            rest = (_Block(outside, outside, 1, groups) for _ in range(depth - 1))
            self.stages.append(nn.Sequential(first, *rest))
            inside = outside
        self.fc = nn.Linear(inside, num_classes)
        self.shared_patterns = (f"stages.{len(depths) - 1}.{depths[-1] - 1}.*", "fc.*")
        start_kaiming(self)

    def maps(self, x: Tensor) -> list[Tensor]:
        x = F.relu(self.norm(self.stem(x)))
        return through(self.stages, F.max_pool2d(x, 3, 2, 1) if self.imagenet else x)
