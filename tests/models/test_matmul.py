"""Convolutions of cohorts: those of `nn.Conv2d`, in few kernels."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fedflow.models.matmul import Columns, MatmulConv2d, folded, use_matmul

CLIENTS, BATCH = 3, 2
LAYERS = [
    ((3, 4), (3, 3), {"padding": 1}, (8, 9)),
    ((2, 5), (3, 2), {"stride": (2, 1), "padding": (0, 1), "bias": False}, (9, 7)),
    ((1, 3), (5, 5), {"dilation": 2}, (12, 12)),
    ((3, 16), (1, 1), {}, (5, 5)),  # more filters than positions / 4
    ((2, 3), (3, 3), {"stride": 2, "padding": 1, "dilation": (1, 2)}, (9, 9)),
    ((2, 2), (3, 3), {"padding": 2, "bias": False}, (16, 16)),
]


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module, dict[str, Tensor], Tensor]:
    """A layer, the same as products, weights of all clients, and their images."""
    (inputs, filters), kernel, options, size = request.param
    torch.manual_seed(0)
    layer = nn.Conv2d(inputs, filters, kernel, **options).double()
    products = use_matmul(nn.Conv2d(inputs, filters, kernel, **options).double())
    assert type(products) is MatmulConv2d
    weights = {
        name: torch.randn(CLIENTS, *t.shape, dtype=torch.double) for name, t in layer.named_parameters()
    }
    return layer, products, weights, torch.randn(CLIENTS, BATCH, inputs, *size, dtype=torch.double)


def loss(layer: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    return functional_call(layer, weights, (x,)).sin().sum()


def gradients(layer: nn.Module, weights: dict[str, Tensor], x: Tensor, own: int | None = 0) -> Any:
    def of(weights: dict[str, Tensor], x: Tensor) -> Any:
        return grad(loss, argnums=(1, 2))(layer, weights, x)

    return vmap(of, in_dims=(0, own))(weights, x)


@pytest.mark.filterwarnings("error")  # of vmap's slow fallback
@pytest.mark.parametrize("pair", LAYERS, indirect=True)
def test_outputs_and_gradients_are_those_of_a_convolution(pair: Any) -> None:
    layer, products, weights, x = pair
    one = {name: value[0] for name, value in weights.items()}
    torch.testing.assert_close(
        functional_call(products, one, (x[0],)), functional_call(layer, one, (x[0],)), rtol=0, atol=5e-14
    )
    for images, own in ((x, 0), (x[0], None)):
        found, expected = (gradients(each, weights, images, own) for each in (products, layer))
        torch.testing.assert_close(found, expected, rtol=0, atol=5e-13)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("pair", LAYERS[:4], indirect=True)
def test_so_are_second_derivatives(pair: Any) -> None:
    layer, products, weights, x = pair

    def second(each: nn.Module) -> Any:
        def sharpness(own: dict[str, Tensor], images: Tensor) -> Tensor:
            return grad(loss, argnums=1)(each, own, images)["weight"].sin().sum()

        return vmap(grad(sharpness))(weights, x)

    torch.testing.assert_close(second(products), second(layer), rtol=0, atol=5e-12)


class Seen(TorchDispatchMode):
    """The operations that reach the device, and their largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.names.append(function.__name__.split(".")[0])
        if isinstance(result, Tensor) and not result._is_view():
            self.largest = max(self.largest, result.numel())
        return result


@pytest.mark.parametrize(
    ("inputs", "filters", "side", "entries"),
    [(32, 64, 28, 10 * 9 * 32 * 28 * 28), (512, 512, 4, 512 * 512 * 9)],
    ids=["many positions", "many filters"],
)
def test_no_kernel_is_launched_per_image_and_no_gradient_made_for_each(
    inputs: int, filters: int, side: int, entries: int
) -> None:
    """`im2col` is such a kernel. Of a wide layer, filters per image would take 10 times as much."""
    layer, clients = use_matmul(nn.Conv2d(inputs, filters, 3, padding=1)), 5
    weights = {name: torch.empty(clients, *t.shape, device="meta") for name, t in layer.named_parameters()}
    x = torch.empty(clients, 10, inputs, side, side, device="meta")
    with Seen() as seen:
        gradients(layer, weights, x)
    assert "im2col" not in seen.names and seen.names.count("add_") == 9  # places of the kernel
    assert seen.names.count("bmm") + seen.names.count("baddbmm") == 3
    assert seen.largest == clients * entries


@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("padding", [(0, 0), (1, 2)])
@pytest.mark.parametrize(("kernel", "dilation"), [((3, 3), (1, 1)), ((5, 1), (2, 1)), ((2, 4), (1, 2))])
def test_columns_are_folded_on_a_gpu_as_on_a_cpu(kernel, dilation, padding, stride) -> None:
    """Also of a cohort."""
    x = torch.randn(CLIENTS, BATCH, 3, 17, 14, dtype=torch.double)
    pairs = kernel, padding, stride, dilation
    g = torch.stack([torch.randn_like(Columns.apply(own, pairs)) for own in x])
    ours = vmap(lambda g: folded(g, x.shape[-2:], pairs))(g)
    for own, columns in zip(ours, g):
        torch.testing.assert_close(own, F.fold(columns, x.shape[-2:], kernel, dilation, padding, stride))
