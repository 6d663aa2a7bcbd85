"""Measures of generated images: worked numbers, invariants, and torchmetrics and prdc as oracles."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from torch import Tensor, nn

from fedflow.metrics.generation import Gaussian, frechet, nearest, neighbors, radii


def rows(n: int, d: int, seed: int = 0) -> Tensor:
    """Correlated rows [n, d], in float64."""
    source = torch.Generator().manual_seed(seed)
    mixed = torch.randn(d, d, generator=source, dtype=torch.float64)
    return torch.randn(n, d, generator=source, dtype=torch.float64) @ mixed + seed


def test_frechet_distances_of_the_worked_examples() -> None:
    def gaussian(mean: list[float], covariance: list[list[float]]) -> Gaussian:
        root = torch.linalg.cholesky(torch.tensor(covariance, dtype=torch.float64)).T
        return Gaussian(torch.tensor(mean, dtype=torch.float64), root)

    one, other = gaussian([0, 0], [[2, 0.5], [0.5, 1]]), gaussian([1, -1], [[1, -0.3], [-0.3, 3]])
    assert one.distance(other) == pytest.approx(2.9293118550, abs=1e-9)
    x, y = torch.tensor([[0.0, 0], [1, 0], [0, 2]]), torch.tensor([[1.0, 1], [2, 1], [1, 4], [3, 0]])
    assert frechet(x, y) == pytest.approx(3.2076518196, abs=1e-9)


@pytest.mark.parametrize("sizes", [(40, 30), (5, 40), (4, 3)])
def test_the_frechet_distance_is_that_of_the_covariances_whatever_their_rank(sizes: tuple[int, int]) -> None:
    x, y = rows(sizes[0], 6), rows(sizes[1], 6, seed=1)
    covariances = np.cov(x.T), np.cov(y.T)
    root = sqrtm(covariances[0] @ covariances[1] + 1e-14 * np.eye(6)).real
    expected = float((x.mean(0) - y.mean(0)).square().sum()) + np.trace(sum(covariances) - 2 * root)
    found = frechet(x, y)
    assert found == pytest.approx(expected, rel=1e-4)
    assert found == pytest.approx(frechet(y, x)) == pytest.approx(frechet(x.flip(0), y.roll(1, 0)))
    assert frechet(x, x) == pytest.approx(0, abs=1e-9)


def test_the_frechet_distance_is_that_of_torchmetrics() -> None:
    fid = pytest.importorskip("torchmetrics.image.fid")

    class Pixels(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1).double() / 255

    source = torch.Generator().manual_seed(0)
    real, fake = (torch.randint(low, 256, (60, 3, 4, 4), generator=source).byte() for low in (0, 90))
    oracle = fid.FrechetInceptionDistance(feature=Pixels(), input_img_size=(3, 4, 4)).set_dtype(torch.float64)
    oracle.update(real, real=True)
    oracle.update(fake, real=False)
    expected = float(oracle.compute())
    assert frechet(real.flatten(1) / 255, fake.flatten(1) / 255) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("k", "density", "coverage"), [(1, 1.5, 0.6), (2, 1.375, 0.8)])
def test_neighbors_of_the_worked_example(k: int, density: float, coverage: float) -> None:
    real, fake = torch.tensor([[0.0], [1], [2], [4], [8]]), torch.tensor([[0.4], [1.1], [1.5], [20]])
    assert neighbors(real, fake, k) == pytest.approx((0.75, 1.0, density, coverage))


@pytest.mark.parametrize("k", [1, 5])
def test_neighbors_are_those_of_prdc(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prdc = pytest.importorskip("prdc")
    real, fake = rows(60, 4), rows(40, 4, seed=1) - 1
    found = neighbors(real, fake, k)._asdict()
    assert found == pytest.approx(prdc.compute_prdc(real.numpy(), fake.numpy(), nearest_k=k))


@pytest.mark.parametrize("block", [7, 1000])
def test_blocks_and_the_order_of_rows_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, fake = rows(50, 4), rows(30, 4) + 0.5
    expected = neighbors(real, fake, 3)
    every = torch.cdist(real, fake)
    monkeypatch.setattr("fedflow.metrics.generation.BLOCK", block)
    assert neighbors(real, fake.flip(0), 3, radii(real, 3)) == pytest.approx(expected)
    index, distance = nearest(real, fake)
    assert torch.equal(index, every.argmin(1)) and torch.allclose(distance, every.min(1).values)
    assert nearest(real[:1], torch.cat([real[:1]] * 20))[0].item() == 0  # the first of equal rows


def test_copies_of_real_images_are_near_and_precise() -> None:
    real = rows(40, 3)
    copies = neighbors(real, real.clone(), 2)
    assert (copies.precision, copies.recall, copies.coverage) == (1, 1, 1)
    assert nearest(real, real)[1].max() == pytest.approx(0, abs=1e-6)
