"""Guides of DiSK: small networks that say how far a sample is discounted, by what the teacher knows."""

from collections.abc import Callable

from torch import Tensor, nn

WIDTHS = 64, 128  # of the guide of the text
CHANNELS = 256  # of that of the authors' code


class MLPGuide(nn.Module):
    """g [B] in [0, 1] from the teacher's features and logits together [B, d + C].

    64 - BatchNorm, ReLU - 128 - BatchNorm, ReLU - 1 - sigmoid: 31,681 parameters for d = 256 and C = 100.
    """

    def __init__(self, inputs: int) -> None:
        super().__init__()
        layers = list[nn.Module]()
        for inside, outside in zip((inputs, *WIDTHS), WIDTHS, strict=False):
            layers += [nn.Linear(inside, outside), nn.BatchNorm1d(outside), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(WIDTHS[-1], 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(-1)


class ConvGuide(nn.Module):
    """g [B] in [0, 1] from the teacher's last map [B, d, H, W], as in the authors' code.

    1x1 to 256, 3x3, 1x1, each with BatchNorm and SiLU - mean - d - C - BatchNorm, ReLU - 1 - sigmoid.
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        layers, inside = list[nn.Module](), channels
        for kernel in (1, 3, 1):
            convolution = nn.Conv2d(inside, CHANNELS, kernel, padding=kernel // 2, bias=False)
            layers += [convolution, nn.BatchNorm2d(CHANNELS), nn.SiLU()]
            inside = CHANNELS
        self.map = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(CHANNELS, channels),
            nn.Linear(channels, classes),
            nn.BatchNorm1d(classes),
            nn.ReLU(),
            nn.Linear(classes, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.map(x).mean((-2, -1))).squeeze(-1)


GUIDES: dict[str, Callable[[int, int], nn.Module]] = {  # by name, from d and C
    "mlp": lambda features, classes: MLPGuide(features + classes),
    "conv": ConvGuide,
}
