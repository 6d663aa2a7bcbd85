"""Masks of pruned networks: worked numbers (curricula-and-pruning.md, B2 and B6, with its errata)."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedflow.local.masks import mask_distance, next_rate, pruned_share, without_smallest
from fedflow.models import build
from fedflow.models.flat import FlatModel

TRAJECTORIES = {  # LeNet-5 with random weights, per cent after every step
    0.3: [9.962, 18.930, 27.002, 29.987, 30.007],
    0.5: [9.962, 18.930, 27.002, 34.268, 40.807, 43.752, 46.550, 49.207, 49.997, 50.006],
    0.7: [9.962, 18.930, 27.002, 34.268, 40.807, 46.692, 51.989, 56.754, 61.041, 62.975, 64.811, 66.553,
          68.210, 69.784, 70.001],
}  # fmt: skip


def line(*sizes: int) -> FlatModel:
    """Linear layers with ``sizes`` weights each, without biases."""
    return FlatModel(lambda: nn.Sequential(*(nn.Linear(size, 1, bias=False) for size in sizes)))


@pytest.fixture(scope="module")
def lenet() -> FlatModel:
    return FlatModel(partial(build, "lenet5", (3, 32, 32), 10))


def test_the_worked_numbers() -> None:
    """The percentile at 30 % is .24; 0 among the weights is one that was pruned before."""
    w = torch.tensor([0.5, -0.1, 0.3, -0.8, 0.05, 0.2, -0.6, 0.9, 0, -0.4])
    model, mask = line(10), torch.ones(10, dtype=torch.bool)
    mask[8] = False
    fewer = without_smallest(model, w, mask, 0.3, model.weights)
    assert fewer.int().tolist() == [1, 0, 1, 1, 0, 0, 1, 1, 0, 1]
    one, other = torch.tensor([[1, 1, 0, 1, 0, 1, 1, 1], [1, 0, 1, 1, 0, 1, 1, 1]]) > 0
    assert mask_distance(line(8), one, other, ["0.weight"]) == 0.25
    two = line(2, 6)
    assert mask_distance(two, one, other, two.weights) == pytest.approx((1 / 2 + 1 / 6) / 2)


@pytest.mark.parametrize("target", TRAJECTORIES)
def test_the_way_to_a_target(lenet: FlatModel, target: float) -> None:
    w, shares = lenet.init(0), list[float]()
    mask = torch.ones_like(w, dtype=torch.bool)
    while (pruned := pruned_share(lenet, mask)) < target:
        before, rate = mask, next_rate(0.1, target, pruned)
        mask = without_smallest(lenet, w, mask, rate, lenet.weights)
        w = w.where(mask, 0)
        shares.append(100 * float(pruned_share(lenet, mask)))
        assert not (mask & ~before).any()
    assert shares == pytest.approx(TRAJECTORIES[target], abs=5e-4)
    biases = torch.cat([mask[cut] for name, cut in lenet.slices.items() if name.endswith("bias")])
    assert biases.all() and len(biases) == 236


@pytest.mark.parametrize("rate", [0.001, 0.05, 0.1, 0.5, 0.99])
def test_masks_are_those_of_numpy_for_every_client_of_a_cohort(lenet: FlatModel, rate: float) -> None:
    """In every tensor, ceil(rate (n - 1)) of n weights fall: at least one, however small the rate."""
    ws = torch.stack([lenet.init(seed) for seed in range(3)])
    masks = torch.rand(ws.shape, generator=torch.Generator().manual_seed(0)) < 0.7
    cut = torch.func.vmap(lambda w, mask: without_smallest(lenet, w, mask, rate, lenet.weights))(ws, masks)
    for w, mask, fewer in zip(ws, masks, cut, strict=True):
        assert torch.equal(fewer, without_smallest(lenet, w, mask, rate, lenet.weights))
        for name, place in lenet.slices.items():
            own, kept = w[place].abs().double().numpy(), mask[place].numpy()
            expected = kept & (own >= np.percentile(own[kept], 100 * rate)) if "weight" in name else kept
            assert np.array_equal(fewer[place].numpy(), expected)
            dropped = np.ceil(round(rate * (kept.sum() - 1), 9)) if "weight" in name else 0
            assert kept.sum() - expected.sum() == dropped


def test_a_tensor_without_weights_to_drop_stays() -> None:
    """All are 0 or pruned; a rate of 0 drops none; a single weight is its own percentile."""
    model = line(3, 1)
    w, mask = torch.tensor([0.0, 0, 5, 7]), torch.tensor([True, True, False, True])
    for rate in (0, 0.5):
        assert torch.equal(without_smallest(model, w, mask, rate, model.weights), mask)


def test_weights_are_those_of_convolutions_and_linear_layers() -> None:
    layers = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.GroupNorm(1, 2), nn.Linear(2, 2), nn.LSTM(2, 2)
    assert FlatModel(lambda: nn.Sequential(*layers)).weights == ["0.weight", "3.weight"]


@pytest.mark.parametrize(
    ("pruned", "rate"), [(0, 0.1), (0.19, 0.1), (0.25, 0.05), (0.28, 0.02 / 0.72), (0.3, 0), (0.4, 0)]
)
def test_the_rate_falls_close_to_the_target(pruned: float, rate: float) -> None:
    """A target of 30 % and steps of 10 %; the last rate is at most 5 %."""
    assert float(next_rate(0.1, 0.3, torch.tensor(pruned, dtype=torch.float64))) == pytest.approx(rate)
