"""What FedCGAN and FedCVAE share: averages of networks, and images from one of them."""

from functools import partial
from typing import Any

import pytest
import torch
from support import a_round, images, prepare_run, refused, run, suited, with_pixels

from fedflow.data import Dataset
from fedflow.local.client import Client, Update
from fedflow.methods import METHODS, build_method

pytestmark = pytest.mark.parametrize("name", ["fedcgan", "fedcvae"])


def test_all_entries_are_averaged_by_samples(name: str, digits: Dataset) -> None:
    """Clients that answer n_k everywhere, then clients that change nothing."""

    class Marked(METHODS[name]):  # type: ignore[misc, valid-type]
        def local(self, client: Client) -> Update:
            if client.t > 1:
                return client.update(**client.received)
            sizes = {part: torch.full_like(w, float(client.samples)) for part, w in client.received.items()}
            return client.update(**sizes)

    federation = suited(name, images(digits, sizes=(10, 30)))
    ran = run(Marked(spc=1), federation, rounds=2)
    networks = build_method(name).trained_networks(federation.model)
    for server in ran.servers:
        assert {part: len(w) for part, w in server.items()} == {k: net.size for k, net in networks.items()}
        assert all((w == (10 * 10 + 30 * 30) / 40).all() for w in server.values())
    traffic = build_method(name).published_bytes(federation.model, rounds=2, cohort=2)
    assert traffic == sum(ran.values("bytes_down")[-1:] + ran.values("bytes_up")[-1:])


def test_images_are_those_of_the_averaged_network(name: str, digits: Dataset) -> None:
    federation = suited(name, images(digits))
    method, simulation = build_method(name, {"spc": 3}), prepare_run(name, federation, {"spc": 3})
    server, now = simulation.state.server, partial(a_round, federation)
    made = method.images(now(), server)
    assert made.x.shape == (30, *federation.model.input_shape)
    assert made.x.min() >= 0 and made.x.max() <= 1
    assert made.y.tolist() == [label for label in range(10) for _ in range(3)]
    again, other = method.images(now(), server), method.images(now(seed=1), server)
    assert torch.equal(made.x, again.x) and not torch.equal(made.x, other.x)
    network = method.trained_networks(federation.model)[method.maker].to_module(server.vectors[method.maker])
    generator = torch.Generator().manual_seed(int(now().rng.integers(1 << 62)))
    inputs = torch.cat([method.noise(30, generator), torch.eye(10)[made.y]], 1)
    torch.testing.assert_close(method.pixels(network(inputs)), made.x)


def test_other_sides_are_refused(name: str, padded: Dataset) -> None:
    with refused("data.resize: None .*one of 8, 16, 32, 64 with"):
        prepare_run(name, with_pixels(images(padded, network="lenet5"))).state  # noqa: B018


@pytest.mark.parametrize(
    "training",
    [
        {"curriculum": {"score": "global"}},
        {"adaptation": {"name": "maml", "lr": 0.1}},
        {"objective": {"name": "robust"}, "augment": "flip_crop"},
    ],
)
def test_settings_without_use_are_refused(name: str, training: dict[str, Any], digits: Dataset) -> None:
    federation = suited(name, images(digits))
    with refused(f"training.{next(iter(training))}: .*null with {name}"):
        prepare_run(name, federation, training=training).state  # noqa: B018


def test_rates_within_a_round_reach_both_networks(name: str, digits: Dataset) -> None:
    """With [1, 200] the second step is too small to see, so that it is as if there were only one."""
    federation = suited(name, images(digits, sizes=(60,)))
    one, two = (
        run(
            name,
            federation,
            training={"lr": 1e-3, "optimizer": "adam", "lr_within": [1.0, 200.0]} | more,
            rounds=1,
        )
        for more in ({"epochs": 1}, {"epochs": 2})
    )
    networks = build_method(name).trained_networks(federation.model)
    for part, network in networks.items():
        torch.testing.assert_close(
            one.servers[0][part][: network.parameters],
            two.servers[0][part][: network.parameters],
            rtol=0,
            atol=0,
        )
