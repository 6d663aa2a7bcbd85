"""The traced form of group normalization and its gradients against PyTorch's own."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fedflow.local.fast.norms import NORMS


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("scaled", [True, False], ids=["scale and shift", "plain"])
def test_it_is_that_of_pytorch(groups: int, scaled: bool) -> None:
    rng = torch.Generator().manual_seed(groups)
    x, weight, bias, up = (
        torch.randn(*shape, dtype=torch.float64, generator=rng)
        for shape in ((3, 8, 5, 4), (8,), (8,), (3, 8, 5, 4))
    )

    def gradients(x: Tensor, *scale_and_shift: Tensor) -> tuple[Tensor, ...]:
        def loss(x: Tensor, *scale_and_shift: Tensor) -> tuple[Tensor, Tensor]:
            outputs = F.group_norm(x, groups, *scale_and_shift)
            return (outputs * up).sum(), outputs

        wanted = tuple(range(1 + len(scale_and_shift)))
        found, outputs = torch.func.grad(loss, argnums=wanted, has_aux=True)(x, *scale_and_shift)
        return *found, outputs

    inputs = (x, weight, bias) if scaled else (x,)
    traced = make_fx(gradients, decomposition_table=NORMS)(*inputs)
    assert "native_group_norm" not in traced.code
    for one, other in zip(traced(*inputs), gradients(*inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_vectors_are_left_alone() -> None:
    traced = make_fx(lambda x: F.group_norm(x, 2), decomposition_table=NORMS)(torch.randn(3, 8))
    assert "native_group_norm" in traced.code
