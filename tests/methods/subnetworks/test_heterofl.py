"""HeteroFL: nested channels, means over the holders of every entry, and its reduction to FedAvg."""

from typing import Any

import pytest
import torch
from support import images, prepare_run, refused, run

from fedflow.data import Dataset
from fedflow.methods import build_method
from fedflow.simulation.federation import Federation

SGD = {"epochs": 1, "batch_size": 8, "lr": 0.1}


def wide(digits: Dataset, **options: Any) -> Federation:
    return images(digits, network="cnn_exit", filters=(8, 8, 8), exits="none", **options)


def test_one_rate_is_uniform_fedavg(digits: Dataset, cohort: str) -> None:
    one = run("heterofl", wide(digits), {"rates": [1]}, cohort=cohort, training=SGD, participation=0.5)
    plain = run(
        "fedavg", wide(digits), {"weighting": "uniform"}, cohort=cohort, training=SGD, participation=0.5
    )
    assert torch.equal(one.servers[-1]["model"], plain.servers[-1]["model"])


def test_every_entry_is_the_mean_over_the_clients_that_hold_it(digits: Dataset) -> None:
    federation = wide(digits)
    settings = {"training": SGD, "keep_trained": True, "rounds": 1}
    ran = run("heterofl", federation, {"rates": [1, 0.5]}, **settings)
    trained = ran.clients[-1]["trained"]
    narrow = federation.model.variant(width=0.5)
    inside = narrow.within(federation.model)
    assert [len(w) for w in trained] == [narrow.size] * 4 + [federation.model.size] * 4
    expected = torch.stack(trained[4:]).double().mean(0)
    expected[inside] = (torch.stack(trained[:4]).double().sum(0) + 4 * expected[inside]) / 8
    torch.testing.assert_close(ran.servers[-1]["model"].double(), expected, rtol=0, atol=1e-6)
    # The kernels of the first layer are those of the first four channels.
    whole = federation.model.views(prepare_run("heterofl", federation).state.server.model)
    part = narrow.views(prepare_run("heterofl", federation).state.server.model[inside])
    assert torch.equal(part["trunk.0.conv.weight"], whole["trunk.0.conv.weight"][:4])
    assert torch.equal(part["trunk.1.conv.weight"], whole["trunk.1.conv.weight"][:4, :4])
    assert torch.equal(part["fc.weight"], whole["fc.weight"][:, :4])


def test_levels_have_no_exit_that_nothing_trains(digits: Dataset) -> None:
    """The first exit of the whole network stays at its start, in spite of weight decay."""
    both, alone = (images(digits, network="cnn_exit", filters=(8, 8, 8), exits=e) for e in ("last", "none"))
    training = SGD | {"weight_decay": 0.1}
    one, other = (run("heterofl", found, training=training) for found in (both, alone))
    assert one.values("bytes_up") == other.values("bytes_up")
    head, inside = both.model.part("exit.*"), alone.model.within(both.model)
    start = prepare_run("heterofl", both).state.server.model
    assert torch.equal(head.of(one.servers[-1]["model"]), head.of(start))
    assert not torch.equal(one.servers[-1]["model"][inside], start[inside])


def test_clients_are_dealt_equally_from_the_narrowest() -> None:
    method = build_method("heterofl")
    assert [*method.networks()] == ["c", "b", "a"]
    assert [method.level(k, 9) for k in range(9)] == ["c"] * 3 + ["b"] * 3 + ["a"] * 3
    newcomers = [method.level(9 + k, 9) for k in range(300)]
    assert all(newcomers.count(level) == pytest.approx(100, abs=2) for level in method.networks())


@pytest.mark.parametrize("rates", [[], [0.0, 1], [1.5], [1, 0.5, 0.5]])
def test_bad_rates_are_refused(rates: list[float]) -> None:
    with refused("method.rates"):
        build_method("heterofl", {"rates": rates})


def test_a_network_of_fewer_channels_cannot_hold_the_others(digits: Dataset) -> None:
    with refused("model.name: cnn_exit .*networks that nest"):
        run("heterofl", wide(digits, width=0.5))
    with refused("model.name: 'cnn_exit' .*divisible"):
        run("heterofl", wide(digits), {"rates": [1, 0.1]})
