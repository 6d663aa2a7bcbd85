import pytest
import torch

from fedflow.local.fast.dense import DENSE, LARGE

AFFINE, PRODUCT = DENSE[torch.ops.aten.addmm.default], DENSE[torch.ops.aten.mm.default]


@pytest.mark.parametrize("rows", [8, 10, 32])
def test_a_large_layer_of_a_small_batch_gives_the_same_outputs(rows: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(rows, LARGE // 128), torch.randn(128, LARGE // 128), torch.randn(128)
    outputs = AFFINE(bias, x, weight.t())
    assert outputs.is_contiguous()
    torch.testing.assert_close(outputs, torch.nn.functional.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(PRODUCT(x, weight.t()), x @ weight.t(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "out", "inputs"), [(7, 128, LARGE // 128), (33, 128, LARGE // 128), (10, 64, 400)]
)
def test_others_are_left_alone(rows: int, out: int, inputs: int) -> None:
    x, weight = torch.zeros(rows, inputs), torch.zeros(out, inputs)
    assert PRODUCT(x, weight.t()) is NotImplemented
    assert AFFINE(torch.zeros(out), x, weight.t()) is NotImplemented


def test_so_are_scaled_sums_and_weights_in_another_order() -> None:
    x, weight = torch.zeros(10, 4096), torch.zeros(4096, 128)
    assert PRODUCT(x, weight) is NotImplemented
    assert AFFINE(torch.zeros(128), x, weight.t().contiguous().t(), alpha=2) is NotImplemented
