"""Sub-FedAvg (Hy) on given numbers (curricula-and-pruning.md, B3 and B6), and its reduction."""

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from support import (
    NETWORKS,
    Ran,
    Workers,
    forbid_fallback,
    images,
    one_client,
    prepare_run,
    refused,
    run,
    same,
)
from torch import Tensor

from fedflow.data import Dataset
from fedflow.local.client import Client
from fedflow.local.masks import pruned_share
from fedflow.methods import build_method
from fedflow.methods.method import Conditions
from fedflow.methods.subnetworks._pruned import Trained
from fedflow.methods.subnetworks.subfedavg_hy import NETWORKS as ACCEPTED
from fedflow.methods.subnetworks.subfedavg_hy import SubFedAvgHy
from fedflow.models import ARCHITECTURES, build
from fedflow.models.channels import expand, kept_channels, smaller
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation

NAME = "subfedavg_hy"
SGD: dict[str, Any] = {"epochs": 3, "batch_size": 8, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}
HALF: dict[str, Any] = {"training": SGD, "participation": 0.5, "rounds": 4}
ALWAYS = {"gate": "train", "threshold": 0}  # prunes in every round in which masks still move
OFF = {"target": 0, "channel_rate": 0}
NORMED: dict[str, Any] = {"filters": (6, 10), "kernel": 3, "padding": 1, "hidden": (16,), "batch_norm": True}


def with_batch_norm(digits: Dataset, **more: Any) -> Federation:
    """Clients of several sizes, none of whose batches is a single sample; 6 and 10 channels."""
    return images(digits, (16, 12, 20, 36, 7, 40), "cnn", **NORMED | more)


@pytest.fixture(scope="module")
def normed(digits: Dataset) -> Federation:
    return with_batch_norm(digits)


@pytest.fixture(scope="module")
def lenet() -> FlatModel:
    return FlatModel(lambda: build("lenet5_bn", (3, 32, 32), 10))


def gammas(model: FlatModel, *values: Tensor) -> Tensor:
    """A vector of 1 with these gammas, layer by layer."""
    w = torch.ones(model.size)
    for layer, own in zip(model.channels, values, strict=True):
        w[model.slices[f"{layer.norm}.weight"]] = own
    return w


def masks_of(ran: Ran) -> Tensor:
    """The masks of all clients after every round, [T, N, D]."""
    return torch.stack([torch.stack(kept["mask"]) for kept in ran.clients])


def channels_of(model: FlatModel, mask: Tensor) -> list[int]:
    """The number of channels of each layer that a mask keeps."""
    return [int(own.sum()) for own in kept_channels(model, mask).values()]


def shuffled(size: int) -> Tensor:
    """Different values of both signs."""
    return (torch.randperm(size, generator=torch.Generator().manual_seed(size)) + 1) * (-1.0) ** torch.arange(
        size
    )


# Channels


@pytest.mark.parametrize(
    ("network", "shape", "left", "pruned"),
    [
        ("lenet5_bn", (3, 32, 32), [3, 8], 26_058 / 62_050),
        ("cnn_mnist_bn", (1, 28, 28), [5, 10], 11_920 / 21_900),
    ],
)
def test_one_step_halves_every_layer_and_then_it_stops(network, shape, left, pruned):
    """42.0 % of LeNet-5 and 54.4 % of the network for MNIST go; those with the largest |gamma| stay."""
    method, model = SubFedAvgHy(), FlatModel(lambda: build(network, shape, 10))
    mask = torch.ones(model.size, dtype=torch.bool)
    assert pruned_share(model, mask) == 0
    w = gammas(model, *(shuffled(2 * count) for count in left))
    chosen = method._ranked(model, w, kept_channels(model, mask))
    for (conv, own), count in zip(chosen.items(), left, strict=True):
        assert own.tolist() == (shuffled(2 * count).abs() > count).tolist(), conv
    fewer = expand(model, chosen)
    assert channels_of(model, fewer) == left
    assert float(pruned_share(model, fewer)) == pytest.approx(pruned, abs=1e-12)
    again = expand(model, method._ranked(model, w, kept_channels(model, fewer)))
    assert torch.equal(fewer & again, fewer)


@pytest.mark.parametrize(
    ("hyper", "gamma", "left"),
    [
        ({}, shuffled(6), 3),
        ({"floors": [1, 8]}, shuffled(6), 3),
        ({"floors": [4, 8]}, shuffled(6), 6),  # 3 would be fewer than its floor: it stays as it is
        ({"floors": [6, 16]}, shuffled(6), 6),
        ({"floors": [1, 8], "channel_rate": 0.05}, shuffled(6), 5),  # position int(0.3): the smallest goes
        ({"floors": [1, 8], "channel_rate": 0.99}, shuffled(6), 6),  # position 5: none is larger
        ({"floors": [1, 8], "channel_rate": 0.9}, shuffled(6), 6),
        ({"floors": [1, 8], "channel_rate": 0.8}, shuffled(6), 1),
        ({}, torch.tensor([1.0, 2, 2, 2, 2, 3]), 6),  # equal ones go together: 1 would stay
    ],
    ids=str,
)
def test_a_layer_never_falls_below_its_floor(lenet, hyper, gamma, left):
    whole = kept_channels(lenet, torch.ones(lenet.size, dtype=torch.bool))
    w = gammas(lenet, gamma, shuffled(16))
    assert int(SubFedAvgHy(**hyper)._ranked(lenet, w, whole)["conv1"].sum()) == left


@pytest.mark.parametrize(("before", "distance"), [([6, 16], 2 / 22), ([3, 8], 2 / 11)])
def test_the_distance_of_channels_is_over_all_that_are_left(lenet, before, distance):
    """One swap: 2 of 22 channels, and 2 of the 11 that are left later, where floors are lower."""
    method, mask = SubFedAvgHy(**ALWAYS, floors=[1, 1]), torch.ones(lenet.size, dtype=torch.bool)
    if before == [3, 8]:
        first = gammas(lenet, shuffled(6), shuffled(16))
        mask = expand(lenet, method._ranked(lenet, first, kept_channels(lenet, mask)))
    alive = mask[lenet.slices["norm1.weight"]].nonzero().squeeze(1)
    gamma = torch.zeros(6)
    gamma[alive] = torch.arange(1.0, 1 + len(alive))
    swapped = gamma.clone()
    place = int(0.45 * len(alive))  # the largest that goes
    swapped[alive[[place, place + 1]]] = gamma[alive[[place + 1, place]]]

    class Blind(SubFedAvgHy):
        def accuracy(self, client: Client, w: Tensor) -> Tensor:
            return torch.tensor(1.0)

    at = type("At", (), {"model": lenet})()
    trained = Trained(*(gammas(lenet, own, shuffled(16)) for own in (gamma, swapped)))
    for least in (distance + 1e-9, distance - 1e-9):
        fewer, found = Blind(**method.as_dict() | {"channel_distance": least})._prune_channels(
            at, trained, mask
        )
        assert float(found["distance_channels"]) == pytest.approx(distance, abs=1e-12)
        assert torch.equal(fewer, mask) == (least > distance)


def test_the_rate_of_dense_layers_on_the_way_to_the_target():
    """(p - pruned) / (1 - pruned) once it is near, less 5 % if above 16 %."""
    method, at = SubFedAvgHy(target=0.9), torch.tensor([0.0, 0.42, 0.805, 0.895, 0.91], dtype=torch.float64)
    expected = [0.1, 0.1, 0.095 / 0.195 - 0.05, 0.005 / 0.105, 0]
    assert method.next_rate(at).tolist() == pytest.approx(expected, abs=1e-12)
    assert SubFedAvgHy(target=0.5).next_rate(torch.tensor(0.45)).item() == pytest.approx(0.05 / 0.55)


def test_l1_moves_every_gamma_by_its_sign(normed):
    """One full-gradient step of 0.1, before which all gammas are 1; nothing else moves."""
    alone = {"training": {"epochs": 1, "steps": 1}, "rounds": 1}
    none, some = (run(NAME, normed, OFF | {"l1": s}, **alone) for s in (0, 0.01))
    model = normed.model
    moved = torch.stack(some.clients[0]["model"]) - torch.stack(none.clients[0]["model"])
    expected = -0.1 * 0.01 * (gammas(model, torch.full((6,), 2.0), torch.full((10,), 2.0)) - 1)
    torch.testing.assert_close(moved, expected.expand_as(moved), rtol=0, atol=2e-7)
    assert none.values("train_loss") == some.values("train_loss")  # the penalty is not recorded


# Two gates


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("channels", [True, False])
def test_the_gates_decide_by_themselves_the_second_on_the_result_of_the_first(normed, dense, channels):
    seen: list[Tensor] = []

    class Scripted(SubFedAvgHy):
        def accuracy(self, client: Client, w: Tensor) -> Tensor:
            seen.append(w)
            return torch.tensor(float(channels if len(seen) > 1 else dense))

    model, w = normed.model, normed.model.init(0)
    client = one_client(normed, 3, model=w)
    client.kept = {"model": w, "mask": torch.ones(model.size, dtype=torch.bool)}
    client._schedules = prepare_schedules(normed, 3)
    update = Scripted(gate="train", distance=0, channel_distance=0).local(client)
    mask, dense_weights = update.vectors["mask"], model.slices["classifier.weight"]
    assert len(seen) == 3 and torch.equal(seen[2], update.vectors["model"])
    assert bool((mask[dense_weights]).all()) != dense
    assert channels_of(model, mask) == ([3, 5] if channels else [6, 10])
    first, second = (int((w[dense_weights] == 0).sum()) for w in seen[:2])
    assert first == 16 and second == (16 if dense else 0)
    assert channels_of(model, seen[1] != 0) == [3, 5]
    share = {name: float(value) for name, value in update.diagnostics.items()}
    assert share["pruned_channels"] == (0.5 if channels else 0)
    assert (share["gate"], share["gate_channels"], share["gate_kept"]) == (dense, channels, channels)
    assert (share["pruned"] > 0) == (dense or channels)
    assert share["pruned"] == pytest.approx(float(pruned_share(model, mask)))
    assert (update.vectors["model"][~mask] == 0).all() and torch.equal(
        update.vectors["model"], update.keep["model"]
    )


def prepare_schedules(federation: Federation, k: int) -> Any:
    """Three epochs of full batches."""
    from fedflow.local.local_training import LocalTraining

    return one_client(federation, k, LocalTraining(batch_size=0, lr=0.1, epochs=3))._schedules


@pytest.mark.parametrize(
    ("hyper", "words"),
    [({"distance": 1.1}, "no dense layer is pruned"), ({"channel_distance": 1.1}, "no channel is removed")],
)
def test_each_kind_of_pruning_can_be_off(normed, hyper, words):
    name = next(iter(hyper))
    with pytest.warns(UserWarning, match=f"^{NAME}: {words}, as method.{name} is above 1$"):
        ran = run(NAME, normed, ALWAYS | hyper, **HALF)
    off, on = (
        ("pruned_dense", "pruned_channels") if name == "distance" else ("pruned_channels", "pruned_dense")
    )
    if name == "distance":  # dense weights that read removed channels go too
        assert torch.equal(
            masks_of(ran)[..., normed.model.slices["classifier.weight"]].all(), torch.tensor(True)
        )
    else:
        assert ran.values(f"client/{off}/max") == [0] * 4
    assert ran.values(f"client/{on}/max")[-1] > 0
    structured = run(NAME, normed, ALWAYS | {"rate": 0}, **HALF)
    assert masks_of(structured)[..., normed.model.slices["classifier.weight"]].all()
    assert structured.values("client/pruned_channels/max")[-1] == 0.5


# The reduction


def test_without_pruning_it_is_uniform_fedavg_with_statistics_of_each_client(normed):
    """Structured only, with floors of the full width: nothing is pruned."""
    none = ALWAYS | {"rate": 0, "floors": [6, 10]}
    model = normed.model
    ours, plain = (
        run(name, normed, hyper, **HALF)
        for name, hyper in ((NAME, none), ("fedavg", {"weighting": "uniform"}))
    )
    assert masks_of(ours).all()
    for one, other in zip(ours.servers, plain.servers, strict=True):
        assert torch.equal(one["model"][: model.parameters], other["model"][: model.parameters])
    assert ours.values("train_loss") == plain.values("train_loss")
    everyone = HALF | {"participation": 1.0}
    shared = {"shared": ["*.weight", "*.bias"], "weighting": "uniform"}
    ours, local = run(NAME, normed, none, **everyone), run("lg_fedavg", normed, shared, **everyone)
    for one, other in zip(ours.servers, local.servers, strict=True):
        assert torch.equal(one["model"][: model.parameters], other["head"])
    for one, other in zip(ours.clients, local.clients, strict=True):
        statistics = [w[model.parameters :] for w in one["model"]]
        assert all(map(torch.equal, statistics, other["body"]))
    averaged = torch.stack([w.double() for w in statistics]).mean(0).float()
    torch.testing.assert_close(ours.servers[-1]["model"][model.parameters :], averaged, rtol=1e-6, atol=1e-6)


# The engine


def test_masks_lose_entries_in_loop_and_cohort(digits, monkeypatch):
    """In every bit, with a network that cohorts can share."""
    network, options = NETWORKS[NAME]
    federation = images(digits, network=network, **options)
    settings = HALF | {"rounds": 8}
    loop = run(NAME, federation, ALWAYS | {"target": 0.7}, **settings)
    forbid_fallback(monkeypatch)
    vmapped = run(NAME, federation, ALWAYS | {"target": 0.7}, cohort="vmap", **settings)
    masks, models = masks_of(loop), torch.stack([torch.stack(kept["model"]) for kept in loop.clients])
    assert torch.equal(masks_of(vmapped), masks)
    assert not (masks[1:] & ~masks[:-1]).any() and (models[~masks] == 0).all()
    channels = {tuple(channels_of(federation.model, mask)) for mask in masks[-1]}
    assert (2, 2) in channels and len(channels) > 1


def test_bytes_workers_and_exports_of_a_run(normed):
    """Kept entries and a bit of mask for each travel; every client's network without its removed channels."""
    ran, pair = (run(NAME, normed, ALWAYS, executor=Workers(count), **HALF) for count in (1, 2))
    assert same(ran.state(), pair.state())
    model, up, sent = normed.model, 0, []
    for report, kept in zip(ran.rounds, ran.clients, strict=True):
        up += sum(4 * int(kept["mask"][k].sum()) + -(-model.size // 8) for k in report.cohort)
        sent.append(up)
    assert ran.values("bytes_up") == sent
    assert ran.values("bytes_down") == [4 * (t + 1) * 3 * model.size for t in range(4)]
    x = normed.test.x[:20]
    for w, mask in zip(ran.clients[-1]["model"], ran.clients[-1]["mask"], strict=True):
        small = smaller(model.to_module(w))
        torch.testing.assert_close(small(x), model.outputs(w, x), rtol=0, atol=1e-6)
        assert small.size.kept == pytest.approx(1 - float(pruned_share(model, mask)))
        assert small.size.parameters < model.parameters


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
import test_subfedavg_hy as here
from fedflow.data import DatasetParams, prepare
calls, decide = 0, here.SubFedAvgHy._prune_channels

def killed(*given):
    global calls
    calls += 1
    if calls == 8:  # of the second client in round 3, after its first gate
        os.kill(os.getpid(), signal.SIGKILL)
    return decide(*given)

here.SubFedAvgHy._prune_channels = killed
digits = prepare(DatasetParams(source="digits"), Path(sys.argv[1]))
federation = here.with_batch_norm(digits)
here.run(here.NAME, federation, here.ALWAYS, checkpoints=Path(sys.argv[2]), **here.SAVED)
"""
SAVED = HALF | {"checkpoint_every": 1}


@pytest.mark.full
def test_a_run_killed_between_the_two_gates_of_a_client_resumes_to_the_same_end(normed, tmp_path):
    folders = [str(tmp_path / "digits"), str(tmp_path / "run")]
    places = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    killed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, *folders, *places],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = run(NAME, normed, ALWAYS, checkpoints=tmp_path / "run", **SAVED)
    straight = run(NAME, normed, ALWAYS, **HALF)
    assert [r.replayed for r in again.rounds] == [True, True, False, False]
    assert same(again.state(), straight.state()) and not masks_of(straight)[1].all()
    assert again.outcome().metrics == straight.outcome().metrics


# What is refused


@pytest.mark.parametrize(
    ("hyper", "error"),
    [
        ({"floors": [0, 10]}, r"method\.floors: 0 .* a whole number >= 1"),
        (
            {"floors": [7, 10]},
            r"method\.floors: \[7, 10\] .* null, or numbers from 1 to \[6, 10\], one per layer",
        ),
        ({"floors": [3]}, r"method\.floors: \[3\] "),
        ({"floors": [3, 5], "channel_rate": 0}, r"method\.floors: \[3, 5\] .* null with channel_rate: 0"),
        ({"channel_rate": 1}, r"method\.channel_rate: 1\.0 .* a number >= 0 and < 1"),
        ({"target": 1.5}, r"method\.target: 1\.5 "),
    ],
    ids=str,
)
def test_floors_and_shares_that_cannot_be_are_refused(normed, hyper, error):
    with refused(f"^{error}"):
        run(NAME, normed, ALWAYS | hyper, **HALF)


def test_a_network_without_channels_is_refused_with_the_names_of_those_that_have_them(digits):
    dense = images(digits)
    with refused(
        rf"^model\.name: mlp .* a network whose channels {NAME} can remove: lenet5_bn, cnn_mnist_bn, m5, "
    ):
        build_method(NAME, ALWAYS).setup(dense.model, dense.model.init)
    with refused(rf"^method\.l1: 0\.01 .* 0, as mlp has no channels that {NAME} can remove"):
        build_method(NAME, OFF | {"l1": 0.01}).setup(dense.model, dense.model.init)
    names = [word for word in ACCEPTED.replace(",", "").split() if word in ARCHITECTURES and word != "cnn"]
    declared = [build(n, ARCHITECTURES[n].shape, ARCHITECTURES[n].classes).channels for n in names]
    assert len(names) == 3 and all(declared)
    with refused(r"^training\.epochs: 1 .* or method\.target: 0 and method\.channel_rate: 0"):
        training = prepare_run("fedavg", dense, training={"epochs": 1}).job.training
        build_method(NAME).check(Conditions(20, training))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(NAME, dense, OFF, rounds=1)
