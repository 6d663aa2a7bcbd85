"""MobileViT: convolutions for neighboring pixels, attention between patches of them."""

from functools import partial

import torch
from torch import Tensor, nn

from fedflow.models.binary import start_xavier
from fedflow.models.mobilenet_v2 import Inverted, convolution
from fedflow.models.transformer import Attention

HEADS, WIDTH, PATCH = 4, 8, 2


_convolution = partial(convolution, activation=nn.SiLU)
_Inverted = partial(Inverted, expansion=4, activation=nn.SiLU)
_Attention = partial(Attention, heads=HEADS, width=WIDTH, activation=nn.SiLU)


class _Block(nn.Module):
    """Attention between equal positions of all 2x2 patches, and a shortcut."""

    def __init__(self, channels: int, dim: int, depth: int, mlp: int) -> None:
        super().__init__()
        self.before = nn.Sequential(_convolution(channels, channels, 3), _convolution(channels, dim, 1))
        self.attention = nn.Sequential(*(_Attention(dim, mlp) for _ in range(depth)))
        self.after, self.join = _convolution(dim, channels, 1), _convolution(2 * channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        height, width = (side // PATCH for side in x.shape[-2:])
        patches = self.before(x).unflatten(-1, (width, PATCH)).unflatten(-3, (height, PATCH))
        tokens = patches.permute(0, 3, 5, 2, 4, 1).flatten(1, 2).flatten(2, 3)  # [B, 4, patches, d]
        patches = self.attention(tokens).unflatten(2, (height, width)).unflatten(1, (PATCH, PATCH))
        y = patches.permute(0, 5, 3, 1, 4, 2).flatten(4, 5).flatten(2, 3)  # [B, d, H, W]
        return self.join(torch.cat([self.after(y), x], dim=1))


class MobileViT(nn.Module):
    """The smallest MobileViT, with expansion 4, on images whose sides are divisible by 64.

    1,120,640 parameters for 3x64x64 and 200 classes. Source: Mehta, Rastegari, ICLR 2022 (XXS), as in
    AAggFF's code, without the layers that it never calls. Xavier's normal start, biases 0.
    """

    head_patterns = ("classifier.*",)

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        if height % 64 or width % 64:
            raise ValueError("it needs sides divisible by 64")
        self.features = nn.Sequential(
            _convolution(channels, 16, 3, stride=2),
            _Inverted(16, 16),
            _Inverted(16, 24, stride=2),
            _Inverted(24, 24),
            _Inverted(24, 24),
            _Inverted(24, 48, stride=2),
            _Block(48, 64, depth=2, mlp=128),
            _Inverted(48, 64, stride=2),
            _Block(64, 80, depth=4, mlp=320),
            _Inverted(64, 80, stride=2),
            _Block(80, 96, depth=3, mlp=384),
            _convolution(80, 320, 1),
        )
        self.classifier = nn.Linear(320, num_classes, bias=False)
        start_xavier(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((-2, -1)))
