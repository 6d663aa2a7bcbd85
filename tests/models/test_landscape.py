"""Loss surfaces whose numbers are known: of least squares, and of networks that differ in scale only."""

from functools import partial

import numpy as np
import pytest
import torch
from support import Quadratic, refused
from torch import nn

from fedflow.data import Examples
from fedflow.errors import FedflowError
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.models.landscape import Landscape, direction, mixture


class LeastSquares(nn.Module):
    """F(w) = |w - b|^2 of a sample b [2, 3]; its weight has two filters of three entries, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 3))
        self.bias = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight - x).square().sum((1, 2))

    losses, hits = Quadratic.losses, Quadratic.hits


@pytest.fixture(scope="module")
def squares() -> Landscape:
    """Two samples, b = 0 and b = 2 everywhere: the mean loss is |w - 1|^2 + 6."""
    x = torch.stack([torch.zeros(2, 3), torch.full((2, 3), 2.0)]).double()
    return Landscape(FlatModel(LeastSquares, dtype=torch.float64), Examples(x, torch.zeros(2)))


def loss(weights: np.ndarray) -> np.ndarray:
    """Of weights [..., 6]: |w - 1|^2 + 6."""
    return np.square(weights - 1).sum(-1) + 6


def model(*weights: float) -> torch.Tensor:
    return torch.tensor([*weights, 1, 1], dtype=torch.float64)


def images(padded, count: int = 64) -> Examples:
    rows = torch.arange(count)
    return Examples(padded.test.inputs(rows).double(), padded.y_test[rows])


def test_the_loss_on_a_segment_is_the_known_parabola(squares):
    found = squares.line(model(*[0] * 6), model(*[2] * 6), 8)
    np.testing.assert_allclose(found.x, np.linspace(-0.2, 1.2, 8))
    np.testing.assert_allclose(found.loss, loss(2 * found.x[:, None] * np.ones(6))[None])
    near = [0.5, 0.5, 0.5, 0, 0, 0.5, 0.5, 0.5]  # 6 (2 x)^2 < 1, the loss of the sample 0, until x = 0.204
    np.testing.assert_array_equal(found.accuracy, [near])
    assert found.marks == ((0, 0), (1, 0))


def test_the_plane_through_three_models_meets_each_of_them_at_its_mark(squares):
    w1, w2, w3 = model(1, 0, 0, 0, 0, 0), model(4, 4, 0, 0, 0, 0), model(1, 5, 0, 0, 0, 0)
    found = squares.triangle(w1, w2, w3, 15)
    assert found.marks == ((0, 0), (5, 0), pytest.approx((4, 3)))  # |u| = 5; v = (0, 5)
    np.testing.assert_allclose((found.x[0], found.x[-1]), (-1, 6))
    np.testing.assert_allclose((found.y[0], found.y[-1]), (-0.6, 3.6))
    axes = np.array([[0.6, 0.8, 0, 0, 0, 0], [-0.8, 0.6, 0, 0, 0, 0]])
    x, y = np.meshgrid(found.x, found.y)
    start = np.array([1, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(found.loss, loss(start + x[..., None] * axes[0] + y[..., None] * axes[1]))
    for third in (model(-2, -4, 0, 0, 0, 0), w1, w2):
        with refused("the three models are on one line", FedflowError):
            squares.triangle(w1, w2, third, 5)
    with refused("the three models are on one line", FedflowError):
        squares.triangle(w1, w1, w3, 5)


def test_a_direction_has_the_norm_of_every_filter_and_no_bias(squares):
    w = model(3, 4, 0, 0, 0, 2)
    rows = direction(squares.model, w, 0, 0)[:6].view(2, 3).norm(dim=1)
    np.testing.assert_allclose(rows, [5, 2])
    for number in range(3):
        assert not direction(squares.model, w, 0, number)[6:].any()
        assert not direction(squares.model, model(*[0] * 6), 0, number).any()
    assert not torch.equal(direction(squares.model, w, 0, 0), direction(squares.model, w, 0, 1))
    assert not torch.equal(direction(squares.model, w, 0, 0), direction(squares.model, w, 1, 0))


def test_the_loss_of_a_parabola_rises_by_the_squared_size_of_the_step(squares):
    """The slope cancels: (F(w + d) + F(w - d)) / 2 - F(w) = |d|^2 = rho^2 |w|^2."""
    rises = squares.sharpness(model(3, 4, 0, 0, 0, 2), rho=0.1, directions=4)
    np.testing.assert_allclose(rises, 0.01 * 29)


def test_the_center_of_the_plane_is_the_model_with_its_buffers(padded):
    network = FlatModel(partial(build, "lenet5_bn", (1, 28, 28), 10), dtype=torch.float64)
    landscape, w = Landscape(network, images(padded)), network.init(0)
    assert network.buffers
    found = landscape.plane(w, 3, 0.5)
    assert (found.loss[1, 1], found.accuracy[1, 1]) == landscape.score(w)
    own = images(padded)
    outputs = network.outputs(w, own.x)
    assert landscape.score(w)[0] == pytest.approx(float(network.loss(outputs, own.y)))
    assert landscape.score(w)[1] == pytest.approx(float(network.hits(outputs, own.y).double().mean()))
    assert not direction(network, w, 0, 0)[network.parameters :].any()


def test_buffers_between_models_are_averaged_and_stay_positive():
    network = FlatModel(partial(build, "lenet5_bn", (1, 28, 28), 10))
    w1, w2 = network.init(0), network.init(1)
    w2[network.parameters :] += 1
    parameters, buffers = slice(0, network.parameters), slice(network.parameters, None)
    middle, beyond = (mixture(network, [w1, w2], [1 - t, t]) for t in (0.5, 1.2))
    torch.testing.assert_close(middle, (w1 + w2) / 2)
    torch.testing.assert_close(beyond[parameters], (1.2 * w2 - 0.2 * w1)[parameters])
    torch.testing.assert_close(beyond[buffers], w2[buffers])


def test_networks_that_differ_in_the_scale_of_their_layers_have_one_surface(padded):
    """ReLU(c z) = c ReLU(z): the first layer times c and the second by c are the same function."""
    network = FlatModel(partial(build, "mlp", (1, 28, 28), 10, hidden=(12,)), dtype=torch.float64)
    landscape, w, scaled = Landscape(network, images(padded)), network.init(0), network.init(0)
    for piece, factor in zip(network.views(scaled).values(), (7, 7, 1 / 7, 1)):
        piece *= factor
    one, other = (landscape.plane(v, 3, 0.8, seed=5) for v in (w, scaled))
    np.testing.assert_allclose(other.loss, one.loss, rtol=1e-9)
    np.testing.assert_allclose(landscape.sharpness(scaled, 0.3, 3), landscape.sharpness(w, 0.3, 3), rtol=1e-9)
    assert one.loss.std() > 0.01
