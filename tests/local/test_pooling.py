"""The traced form of max pooling against PyTorch's own."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fedflow.local.fast.pooling import POOLING, WIDE


@pytest.mark.parametrize("height, width", [pytest.param(4, 6, marks=pytest.mark.full), (5, 7)])
@pytest.mark.parametrize("kernel", [2, (2, 3), 4])
@pytest.mark.parametrize("channels", [5, WIDE])
def test_values_and_gradients_are_those_of_pytorch_bit_for_bit(height, width, kernel, channels) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 3, (3, channels, height, width), generator=rng).float()  # ties
    x[0, 0, 0, 1] = torch.nan
    scale = torch.rand(F.max_pool2d(x, kernel).shape)

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        pooled = F.max_pool2d(x, kernel)
        return pooled, torch.func.grad(lambda x: (F.max_pool2d(x, kernel) * scale).nan_to_num().sum())(x)

    traced = make_fx(both, decomposition_table=POOLING)(x)
    assert not any("max_pool2d" in str(node.target) for node in traced.graph.nodes)
    for one, other in zip(traced(x), both(x)):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("options", [{"stride": 1}, {"padding": 1}, {"ceil_mode": True}, {"dilation": 2}])
def test_windows_that_overlap_or_reach_outside_are_left_alone(options: dict[str, int]) -> None:
    x = torch.randn(2, 3, 7, 7)
    traced = make_fx(lambda x: F.max_pool2d(x, 2, **options), decomposition_table=POOLING)(x)
    assert any("max_pool2d" in str(node.target) for node in traced.graph.nodes)
    assert torch.equal(traced(x), F.max_pool2d(x, 2, **options))
