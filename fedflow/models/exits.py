"""Networks with two exits: the first layers and a small head form a smaller network.

A trunk leads to the first exit, and through the other layers to the last exit. The option ``exits``:

last   both exits exist, only the last is computed
both   the same parameters; in training the outputs are [B, 2, K], and losses are summed over the exits
first  only the trunk and the first exit exist
none   the first exit does not exist

Parameters of the same name are the same in all four and start from the same values. The first exit is as in
shallow-deep networks: mix pooling, a max + (1 - a) mean with a learned scalar a, then a dense layer.
Source: Kaya, Hong, Dumitras, "Shallow-Deep Networks", ICML 2019 (SDN); Acar and Saligrama, "FedHeN", 2022.
"""

from collections.abc import Sequence
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedflow.models.maps import start_kaiming
from fedflow.models.preact_resnet import _Block

EXITS = ("last", "both", "first", "none")
EXIT = "exit.*"  # the parameters of the first exit


class Exit(nn.Module):
    """Mix pooling to ``pool`` x ``pool`` positions, with a drawn from U[0, 1], and a dense layer."""

    def __init__(self, channels: int, sides: Sequence[int], num_classes: int, pool: int) -> None:
        super().__init__()
        if pool < 1 or any(side < 1 or side % pool for side in sides):
            raise ValueError(f"pool must divide the sides {tuple(sides)} of the input of the first exit")
        self.kernel = tuple(side // pool for side in sides)
        self.mix = nn.Parameter(torch.rand(()))
        self.fc = nn.Linear(channels * pool**2, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.mix * F.max_pool2d(x, self.kernel) + (1 - self.mix) * F.avg_pool2d(x, self.kernel)
        return self.fc(pooled.flatten(1))


class TwoExits(nn.Module):
    """A ``trunk``, its ``exit``, the ``rest`` of the layers and the last head ``fc``."""

    def __init__(self, exits: str, trunk: nn.Module, exit: Exit, rest: nn.Module, fc: nn.Linear) -> None:
        super().__init__()
        if exits not in EXITS:
            raise ValueError(f"exits must be one of {', '.join(EXITS)}")
        self.exits, self.trunk = exits, trunk
        if exits != "none":
            self.exit = exit
        if exits != "first":
            self.rest, self.fc = rest, fc
        self.head_patterns = {"first": (EXIT,), "both": (EXIT, "fc.*")}.get(exits, ("fc.*",))

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk(x)
        if self.exits == "first":
            return self.exit(x)
        last = self.fc(self.rest(x).flatten(1))
        return torch.stack([self.exit(x), last], 1) if self.exits == "both" and self.training else last

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of each sample [B], summed over the exits of ``outputs`` [B, 2, K] or [B, K].

        Raises `ValueError` for targets other than one label per sample.
        """
        if y.is_floating_point() or y.ndim > 1:
            raise ValueError("two exits need one label per sample")
        if outputs.ndim == 2:
            return F.cross_entropy(outputs, y, reduction="none")
        first, last = (F.cross_entropy(logits, y, reduction="none") for logits in outputs.unbind(1))
        return first + last

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """True for samples that the last exit predicts correctly, bool [B]."""
        return (outputs if outputs.ndim == 2 else outputs[:, -1]).argmax(-1) == y


class PreActResNetExit(TwoExits):
    """Pre-activation ResNet-18 with GroupNorm, whose first exit follows the second of its four stages.

    For 3 channels and 10 classes, it has 11,172,437 parameters, 676,171 of them with ``exits`` first and
    11,171,146 with none; for 100 classes 11,230,217 and 687,781; with ``pool`` 4 11,191,637 and 695,371.
    Without ``norm``, the sum of a block is pooled, as in the usual code for CIFAR; with it, norm and ReLU
    come before the last pooling, as in `PreActResNet` (1,024 parameters more), ReLU before the first exit.
    Source: FedHeN, section 4, whose counts do not determine the norm and the size of the pooling.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        exits: str = "last",
        pool: int = 1,
        norm: bool = False,
        groups: int = 2,
    ) -> None:
        def stage(inside: int, outside: int) -> nn.Sequential:
            first = _Block(inside, outside, 1 if outside == inside else 2, groups)
            return nn.Sequential(first, _Block(outside, outside, 1, groups))

        stem = nn.Conv2d(input_shape[0], 64, 3, 1, 1, bias=False)
        # Parts are drawn in order, so that the first do not depend on the existence of others.
        trunk = start_kaiming(nn.Sequential(stem, stage(64, 64), stage(64, 128)))
        exit = Exit(128, [ceil(side / 2) for side in input_shape[1:]], num_classes, pool)
        rest = start_kaiming(nn.Sequential(stage(128, 256), stage(256, 512)))
        if norm:
            trunk.append(nn.ReLU())
            rest += nn.Sequential(nn.GroupNorm(groups, 512), nn.ReLU())
        rest.append(nn.AdaptiveAvgPool2d(1))
        super().__init__(exits, trunk, exit, rest, nn.Linear(512, num_classes))


class CNNExit(TwoExits):
    """3x3 convolutions ``filters``, each with GroupNorm, ReLU and 2x2 max pooling, then a dense layer.

    The first exit follows the second convolution. ``width`` is the share of channels that are kept, the first
    of every convolution, rounded up; in training, the output of a convolution is divided by it, as in
    HeteroFL (which GroupNorm undoes). For 3x32x32 and 10 classes, 114,613 parameters, 20,139 with ``exits``
    first.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        filters: Sequence[int] = (32, 64, 128),
        exits: str = "last",
        pool: int = 1,
        groups: int = 2,
        width: float = 1.0,
    ) -> None:
        if len(filters) < 3:
            raise ValueError("filters must be at least 3, two of them before the first exit")
        if not 0 < width <= 1:
            raise ValueError("width must be above 0 and at most 1")
        channels, *sides = input_shape
        trunk, rest = nn.Sequential(), nn.Sequential()
        for layer, full in enumerate(filters):
            kept = ceil(round(width * full, 9))
            (trunk if layer < 2 else rest).append(_Stage(channels, kept, groups, width))
            channels, sides = kept, [side // 2 for side in sides]
            if layer == 1:
                exit = Exit(channels, sides, num_classes, pool)
        super().__init__(exits, trunk, exit, rest, nn.Linear(channels * sides[0] * sides[1], num_classes))


class _Stage(nn.Module):
    """Convolution (3x3), scaler 1 / ``width`` in training, GroupNorm, ReLU, 2x2 max pooling."""

    def __init__(self, inside: int, outside: int, groups: int, width: float) -> None:
        super().__init__()
        self.conv, self.width = nn.Conv2d(inside, outside, 3, padding=1, bias=False), width
        self.norm = nn.GroupNorm(groups, outside)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.training and self.width < 1:
            x = x / self.width
        return F.max_pool2d(F.relu(self.norm(x)), 2)
