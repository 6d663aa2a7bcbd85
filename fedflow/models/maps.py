"""Networks with readable feature maps, for distillation of features."""

from collections.abc import Iterable
from typing import TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


class MapNetwork(nn.Module):
    """A network for images: stages of convolutions, the mean over positions, a dense layer ``fc``."""

    fc: nn.Linear
    head_patterns = ("fc.*",)

    def maps(self, x: Tensor) -> list[Tensor]:
        """The output of every stage [B, C, H, W] for images ``x``; the last one is pooled."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.maps(x)[-1].mean((-2, -1)))


def through(stages: Iterable[nn.Module], x: Tensor) -> list[Tensor]:
    """The outputs of consecutive ``stages`` for the input ``x``."""
    return [x := stage(x) for stage in stages]


def start_kaiming(module: M) -> M:
    """Draw the weights of convolutions from Kaiming's normal distribution (fan out, ReLU)."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return module
