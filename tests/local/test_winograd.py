"""Winograd's convolution and its gradients against PyTorch's own."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fedflow.local.fast import winograd
from fedflow.local.fast.compiled import _traced
from fedflow.local.fast.convolution import CONVOLUTION


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


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"dilation": 2}, {"groups": 2}], ids=str)
def test_others_are_left_alone(options: dict[str, int]) -> None:
    size = 4 * 8 * options.get("stride", 1) + 2 * options.get("dilation", 1)  # whole tiles of outputs
    x, weight = torch.randn(1, 128, size, size), torch.randn(64, 128 // options.get("groups", 1), 3, 3)
    assert winograd.pays(x, weight, (0, 0))
    traced = make_fx(lambda x, weight: F.conv2d(x, weight, **options), decomposition_table=CONVOLUTION)
    assert ("aten.bmm" in traced(x, weight).code) is (options == {})


def two_layers(x: Tensor, *layers: Tensor) -> Tensor:
    for kernel, bias in zip(layers[::2], layers[1::2], strict=True):
        x = F.conv2d(x, kernel, bias, padding=1).relu()
    return x.square().sum()


def test_a_graph_is_that_of_pytorch_and_every_process_traces_the_same() -> None:
    """Two layers of 64 channels: the loss, and gradients by inputs, kernels and biases."""
    layers = drawn(64, 64, 3, 3) / 24, drawn(64), drawn(64, 64, 3, 3) / 12, drawn(64) / 2
    inputs = drawn(3, 64, 16, 16), *layers
    function = torch.func.grad_and_value(two_layers, argnums=(0, 1, 2, 3, 4))
    first, second = (_traced(function, *inputs) for _ in range(2))
    assert first.code == second.code and "aten.bmm" in first.code
    # Of each layer: inputs, kernels and outputs, and gradients by outputs, kernels and inputs.
    assert first.code.count("aten.mm.default") == 2 * 6
    torch.testing.assert_close(first(*inputs), function(*inputs), rtol=1e-9, atol=1e-9)


def written(x: Tensor) -> Tensor:
    x = x.clone()
    before = x[:, :2].sum()
    x[:, :2].mul_(2)
    x[:, :2].mul_(2)
    return torch.stack([before, x[:, :2].sum()])


def test_calls_that_write_or_draw_are_not_shared() -> None:
    x = torch.arange(12.0).view(3, 4)
    torch.testing.assert_close(_traced(written, x)(x), written(x))
    twice = _traced(lambda x: torch.stack([torch.rand_like(x), torch.rand_like(x)]), x)(x)
    assert (twice[0] != twice[1]).any()
