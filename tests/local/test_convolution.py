"""The traced form of a convolution's gradient by its input against PyTorch's own."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fedflow.local.fast.convolution import CONVOLUTION, FEW


def traced_gradients(x: Tensor, weight: Tensor, **options: int) -> tuple[list[Tensor], list[Tensor], str]:
    """Gradients by input, weight and bias: traced, PyTorch's, and the traced operations."""

    def gradients(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        def loss(*inputs: Tensor) -> Tensor:
            return F.conv2d(*inputs, **options).square().sum()

        return torch.func.grad(loss, argnums=(0, 1, 2))(x, weight, bias)

    inputs = (x, weight, torch.ones(len(weight), dtype=x.dtype))
    traced = make_fx(gradients, decomposition_table=CONVOLUTION)(*inputs)
    return [*traced(*inputs)], [*gradients(*inputs)], traced.code


@pytest.mark.parametrize("channels", [1, 3, FEW])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 2)])
@pytest.mark.parametrize("padding", [0, 1])
def test_it_is_that_of_pytorch(channels: int, kernel: tuple[int, int], padding: int) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(2, channels, 7, 6, dtype=torch.float64, generator=rng)
    weight = torch.randn(5, channels, *kernel, dtype=torch.float64, generator=rng)
    found, expected, code = traced_gradients(x, weight, padding=padding)
    assert "aten.mm" in code
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "channels, options",
    [(FEW + 1, {}), (4, {"stride": 2}), (4, {"dilation": 2}), (4, {"groups": 2})],
    ids=["many channels", "strides", "holes", "groups"],
)
def test_others_are_left_alone(channels: int, options: dict[str, int]) -> None:
    weight = torch.randn(4, channels // options.get("groups", 1), 3, 3)
    found, expected, code = traced_gradients(torch.randn(2, channels, 7, 7), weight, **options)
    assert "aten.mm" not in code
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
