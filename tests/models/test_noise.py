"""Dropout by keys: the loop, cohorts and padding drop the same units, which are as good as random."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedflow.data import Dataset
from fedflow.errors import FedflowError
from fedflow.models.flat import FlatModel
from fedflow.models.noise import KeyedDropout, Noise, noise_key
from tests.support import forbid_fallback, images, refused, run, run_without_values

SCALES = 4_000, 1_000


def kept(seed: int, *, passes: int = 0, step: int = 0, shape: tuple[int, ...] = (2000,)) -> torch.Tensor:
    noise = Noise()
    noise.seed(noise_key(seed))
    for _ in range(passes):
        noise.next_pass()
    noise.at_step(step)
    noise.start_call()
    return noise.kept(torch.empty(shape), 0.5)


def correlations(masks: list[torch.Tensor]) -> torch.Tensor:
    """Of all pairs, in standard deviations of independent ones."""
    signs = torch.stack(masks).float() * 2 - 1
    found = signs @ signs.T / signs.shape[1] ** 0.5
    return found[*torch.triu_indices(*found.shape, offset=1)]


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_every_unit_and_every_sample_is_dropped_at_the_rate(p: float) -> None:
    """The spread of the shares by unit and by sample is that of independent draws, within a tenth."""
    noise = Noise()
    noise.seed(noise_key(0))
    noise.start_call()
    found, spread = noise.kept(torch.empty(SCALES), p).float(), (p * (1 - p)) ** 0.5
    assert float(found.mean()) == pytest.approx(1 - p, abs=5 * spread / found.numel() ** 0.5)
    for dim, count in enumerate(SCALES):
        assert float(found.mean(dim).std()) * count**0.5 / spread == pytest.approx(1, abs=0.1)


def test_noise_of_keys_passes_and_steps_is_uncorrelated() -> None:
    for masks in (
        [kept(seed) for seed in range(200)],
        [kept(seed << 32) for seed in range(200)],  # the upper half of the key counts too
        [kept(0, passes=n) for n in range(200)],
        [kept(0, step=n) for n in range(200)],
    ):
        found = correlations(masks)
        assert float(found.std()) == pytest.approx(1, abs=0.05)
        assert float(found.abs().max()) < 5.5


def test_calls_and_layers_of_a_step_differ_and_a_step_can_be_repeated() -> None:
    noise = Noise()
    noise.seed(noise_key(0))
    found = []
    for _ in range(2):
        noise.at_step(3)
        for _ in range(2):
            noise.start_call()
            found += [noise.kept(torch.empty(99), 0.5) for _ in range(2)]
    assert all(map(torch.equal, found[:4], found[4:]))
    assert not any(torch.equal(found[i], found[j]) for i in range(4) for j in range(i))


def test_padding_does_not_change_the_noise_of_real_samples() -> None:
    assert torch.equal(kept(0, shape=(10, 7))[:6], kept(0, shape=(6, 7)))


def test_a_key_in_a_tensor_under_vmap_is_that_key() -> None:
    def of(key: torch.Tensor) -> torch.Tensor:
        noise = Noise()
        first, second = key.unbind()
        noise.seed((first, second))
        noise.at_step(0)
        noise.start_call()
        return noise.kept(torch.empty(2000), 0.5)

    seeds = 0, 1, -1, 1 << 62
    keys = torch.tensor([noise_key(seed) for seed in seeds], dtype=torch.int32)
    assert torch.equal(torch.func.vmap(of)(keys), torch.stack([kept(seed) for seed in seeds]))


@pytest.mark.parametrize(
    "method",
    [
        "scaffold",
        "ditto",
        "perfedavg",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("fedavg", "fedprox", "apfl", "fedsgd")),
    ],
)
def test_cohorts_with_dropout_equal_the_loop(method: str, digits: Dataset, monkeypatch) -> None:
    """Two dropouts, ragged clients, one of a single sample, and several passes in a round."""
    forbid_fallback(monkeypatch)
    make = partial(images, digits, network="cnn", dtype=torch.float64)
    federation = make(filters=(4,), hidden=(16,), feature_dropout=0.25, dropout=0.5)
    batch = 0 if method == "fedsgd" else 5
    settings = {"training": {"batch_size": batch, "epochs": 2}, "rounds": 2}
    loop, vmap = (run(method, federation, cohort=cohort, **settings).state() for cohort in ("loop", "vmap"))
    torch.testing.assert_close(vmap, loop, rtol=0, atol=1e-9)
    none = replace(federation, model=make(filters=(4,), hidden=(16,)).model)
    assert not torch.equal(run(method, none, **settings).state()["server/model"], loop["server/model"])


def test_noise_in_a_cohort_belongs_to_the_client_whoever_takes_part(digits: Dataset) -> None:
    federation = images(digits, network="mlp", dropout=0.5, dtype=torch.float64)
    settings = {"training": {"batch_size": 5, "epochs": 1}, "rounds": 2, "participation": 0.5}
    loop, vmap = (run("fedavg", federation, cohort=how, **settings).state() for how in ("loop", "vmap"))
    torch.testing.assert_close(vmap["server/model"], loop["server/model"], rtol=0, atol=1e-9)


def test_a_graph_can_hold_dropout(digits: Dataset, monkeypatch) -> None:
    """No operation reads a value of the device on the host."""
    federation = images(digits, network="mlp", dropout=0.5)
    run_without_values("fedavg", federation, monkeypatch, training={"batch_size": 5, "epochs": 1})


class Channels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.again = nn.Conv2d(1, 6, 3), nn.Dropout2d(0.5), nn.Dropout2d(0.5)
        self.last = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.again(self.drop(self.first(x))).mean((2, 3)))


def test_whole_channels_are_dropped_by_the_same_keys(digits: Dataset) -> None:
    """Two layers of equal size drop other channels; cohorts drop those of the loop."""
    layer = KeyedDropout(0.5, noise := Noise(), channels=True)
    noise.seed(noise_key(0))
    noise.start_call()
    shares = torch.stack([layer(torch.ones(40, 50, 3, 4)) for _ in range(2)])
    assert set(shares.unique().tolist()) == {0, 2} and (shares == shares[..., :1, :1]).all()
    assert shares.mean() == pytest.approx(1, abs=0.1) and (shares[0] != shares[1]).float().mean() > 0.4
    federation = replace(images(digits), model=FlatModel(Channels, dtype=torch.float64))
    loop, vmap = (run("fedavg", federation, cohort=how).state()["server/model"] for how in ("loop", "vmap"))
    torch.testing.assert_close(vmap, loop, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "layer",
    [nn.AlphaDropout(0.1), nn.RReLU(), nn.LSTM(2, 2, 2, dropout=0.1), nn.MultiheadAttention(2, 1, 0.1)],
)
def test_noise_that_would_depend_on_the_workers_is_refused(layer: nn.Module) -> None:
    with refused(f"{type(layer).__name__} with its own noise", FedflowError):
        FlatModel(lambda: nn.Sequential(layer))
