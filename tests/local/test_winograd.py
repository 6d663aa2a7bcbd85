"""Winograd's convolution and its gradients against PyTorch's own."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fedflow.local import winograd
from fedflow.local.convolution import CONVOLUTION


def drawn(*shape: int) -> Tensor:
    rng = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=rng)


@pytest.mark.parametrize("size", [(4, 4), (6, 9), (7, 5), (16, 16), (3, 3)])
@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (2, 0)])
def test_it_is_the_convolution_and_its_gradients(size: tuple[int, int], padding: tuple[int, int]) -> None:
    x, kernel = drawn(3, 5, *size), drawn(4, 5, 3, 3)
    expected = F.conv2d(x, kernel, padding=padding)
    torch.testing.assert_close(winograd.convolve(x, kernel, padding), expected, rtol=1e-11, atol=1e-11)
    g = drawn(*expected.shape)
    gradients = torch.ops.aten.convolution_backward(
        g, x, kernel, [4], (1, 1), padding, (1, 1), False, (0, 0), 1, [True, True, True]
    )
    for found, own in zip(winograd.gradients(g, x, kernel, padding, True), gradients, strict=True):
        torch.testing.assert_close(found, own, rtol=1e-11, atol=1e-11)
    assert winograd.gradients(g, x, kernel, padding, False)[0] is None


def test_rounding_errors_are_small() -> None:
    x, kernel = drawn(4, 64, 16, 16), drawn(64, 64, 3, 3)
    exact = F.conv2d(x, kernel, padding=1)
    own = winograd.convolve(x.float(), kernel.float(), (1, 1))
    assert (own - exact).norm() < 4e-6 * exact.norm()


@pytest.mark.parametrize(
    "channels, out, size, kernel, pays",
    [
        (32, 64, 30, 3, True),
        (64, 64, 32, 3, True),
        (3, 64, 32, 3, False),
        (32, 32, 32, 3, False),
        (64, 64, 32, 5, False),
        (64, 64, 14, 3, False),
        (64, 64, 4, 3, False),
    ],
    ids=["pfl", "wide", "images", "few channels", "5 x 5", "4 n + 2 outputs", "few tiles"],
)
def test_it_is_used_where_it_was_faster(channels: int, out: int, size: int, kernel: int, pays: bool) -> None:
    x, weight = torch.empty(10, channels, size, size), torch.empty(out, channels, kernel, kernel)
    assert winograd.pays(x, weight, (kernel // 2,) * 2) == pays


@pytest.mark.parametrize("options", [{"stride": 2}, {"dilation": 2}, {"groups": 2}], ids=str)
def test_others_are_left_alone(options: dict[str, int]) -> None:
    x, weight = torch.randn(10, 128, 16, 16), torch.randn(64, 128 // options.get("groups", 1), 3, 3)
    traced = make_fx(lambda x, weight: F.conv2d(x, weight, **options), decomposition_table=CONVOLUTION)
    assert "aten.bmm" not in traced(x, weight).code
