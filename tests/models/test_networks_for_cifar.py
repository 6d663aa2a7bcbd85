"""The networks of DiSK and SimKD for CIFAR: their counts in print, and feature maps."""

import pytest
import torch
from torch import nn

from fedflow.claims.books import Line, books
from fedflow.metrics.cost import macs
from fedflow.models import build
from fedflow.models.maps import MapNetwork

# Rows of Tables 6.2, A.11 and A.12 of DiSK, which the book has: parameters and millions of multiplications.
NETWORKS = {
    "ResNet34": "resnet34_bn",
    "ResNet18": "resnet18_bn",
    "ResNet10": "resnet10_bn",
    "ResNet10-l": "resnet10_l",
    "ResNet10-m": "resnet10_m",
    "ResNet10-s": "resnet10_s",
    "ResNet10-xs": "resnet10_xs",
    "ResNet10-xxs": "resnet10_xxs",
    "ResNet32x4": "resnet32x4",
    "WRN-40-2": "wrn40_2",
    "ResNet8x4": "resnet8x4",
    "ShuffleNetV2": "shufflenet_v2",
    "WRN-16-2": "wrn16_2",
    "WRN-40-1": "wrn40_1",
    "MobileNetV2x2": "mobilenet_v2",
}
(SIZES,) = (table for table in books()["disk"].tables if table.label.endswith("sizes of the networks"))


def counts(module: nn.Module, side: int, printed: str) -> list[str]:
    """Parameters, and multiplications for an image of that side with the digits that are printed."""
    multiplications = sum(macs(module, (3, side, side)).values()) / 1e6
    digits = len(printed.partition(".")[2])
    return [str(sum(p.numel() for p in module.parameters())), f"{multiplications:.{digits}f}"]


@pytest.mark.full
@pytest.mark.parametrize("line", SIZES.lines, ids=lambda line: line.label)
def test_counts_are_those_of_the_book(line: Line) -> None:
    cifar, tiny = (line.cells[i : i + 2] for i in (0, 2))
    for cells, side, classes in ((cifar, 32, 100), (tiny, 64, 200)):
        printed = [cell.value.text for cell in cells]
        if printed != ["-", "-"]:
            network = build(NETWORKS[line.label], (3, side, side), classes)
            assert counts(network, side, printed[1]) == printed


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
