"""The networks of DiSK and SimKD for CIFAR: their counts in print, and feature maps."""

import pytest
import torch
from torch import nn

from fedflow.metrics.cost import macs
from fedflow.models import build
from fedflow.models.maps import MapNetwork

# Tables 6.2, A.11 and A.12 of DiSK, recomputed: millions of multiplications on CIFAR-100 (parameters:
# test_flat.py), then parameters and millions of multiplications on TinyImageNet.
PRINTED = {
    "resnet34_bn": ("1159.4", 21_379_592, "4637.7"),
    "resnet18_bn": ("555.5", 11_271_432, "2221.8"),
    "resnet10_bn": ("253.5", 5_000_712, "1013.8"),
    "resnet10_l": ("63.8", 1_277_800, "255.2"),
    "resnet10_m": ("16.2", 333_336, "64.7"),
    "resnet10_s": ("4.16", 90_352, "16.6"),
    "resnet10_xs": ("2.86", 31_184, "11.4"),
    "resnet10_xxs": ("2.02", 14_720, "8.08"),
    "resnet32x4": ("1083.0",),
    "wrn40_2": ("327.6",),
    "resnet8x4": ("177.1",),
    "shufflenet_v2": ("44.5",),
    "wrn16_2": ("101.1",),
    "wrn40_1": ("83.3",),
    "mobilenet_v2": ("22.4",),
}


def millions(module: nn.Module, side: int, printed: str) -> str:
    """Multiplications for an image of that side, with the digits that are printed."""
    return f"{sum(macs(module, (3, side, side)).values()) / 1e6:.{len(printed.partition('.')[2])}f}"


@pytest.mark.full
@pytest.mark.parametrize("name", PRINTED)
def test_counts_are_those_in_print(name) -> None:
    cifar, *tiny = PRINTED[name]
    assert millions(build(name, (3, 32, 32), 100), 32, cifar) == cifar
    if tiny:
        module = build(name, (3, 64, 64), 200)
        assert [sum(p.numel() for p in module.parameters()), millions(module, 64, tiny[1])] == tiny


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (3, 32, 32)], ids=lambda shape: str(shape[-1]))
@pytest.mark.parametrize(
    ("name", "channels", "halvings"),
    [
        ("resnet10_xxs", (8, 8, 16, 16), (0, 1, 2, 3)),
        ("wrn16_2", (32, 64, 128), (0, 1, 2)),
        ("resnet18_gn", (64, 128, 256, 512), (2, 3, 4, 5)),
        ("preact_resnet18_gn", (64, 128, 256, 512), (0, 1, 2, 3)),
        ("shufflenet_v2", (116, 232, 1024), (1, 2, 3)),
        ("mobilenet_v2", (24, 32, 96, 1280), (1, 2, 3, 4)),
    ],
)
def test_maps_of_all_stages_end_with_what_is_pooled(name, channels, halvings, shape) -> None:
    module = build(name, shape, 10).eval()
    assert isinstance(module, MapNetwork)
    x = torch.randn(2, *shape)
    maps = module.maps(x)
    sides = [-(-shape[-1] // 2**times) for times in halvings]
    assert [tuple(each.shape) for each in maps] == [
        (2, own, side, side) for own, side in zip(channels, sides, strict=True)
    ]
    assert torch.equal(module.fc(maps[-1].mean((-2, -1))), module(x))


def test_half_of_the_channels_pass_by_a_block_of_shufflenet() -> None:
    module = build("shufflenet_v2", (3, 16, 16), 10).eval()
    block, x = module.stages[0][1], torch.randn(2, 116, 8, 8)
    assert torch.equal(block(x)[:, ::2], x[:, :58]) and not torch.equal(block(x)[:, 1::2], x[:, 58:])
