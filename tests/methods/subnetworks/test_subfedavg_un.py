"""Sub-FedAvg (Un) on given numbers (curricula-and-pruning.md, B2 and B6), and its reductions."""

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import (
    SIZES,
    Ran,
    Workers,
    follow,
    forbid_fallback,
    images,
    prepare_run,
    quadratics,
    refused,
    run,
    same,
    with_newcomers,
)
from torch import Tensor, nn

from fedflow.data import Dataset, Examples
from fedflow.local.client import Client, Update
from fedflow.local.fast.compiled import compiled_gradient
from fedflow.methods import build_method
from fedflow.methods.method import Conditions
from fedflow.methods.subnetworks.subfedavg_un import SubFedAvgUn
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation

NAME = "subfedavg_un"
SGD: dict[str, Any] = {"epochs": 3, "batch_size": 8, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}
HALF: dict[str, Any] = {"training": SGD, "participation": 0.5, "rounds": 4}
ALWAYS = {"gate": "train", "threshold": 0}  # prunes in every round until the target


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[Update]:
    """The updates of the clients of a run, in turn."""
    found: list[Update] = []
    local = SubFedAvgUn.local

    def spy(method: SubFedAvgUn, client: Client) -> Update:
        found.append(update := local(method, client))
        return update

    monkeypatch.setattr(SubFedAvgUn, "local", spy)
    return found


def every_mask(ran: Ran) -> Tensor:
    """The masks of all clients after every round, [T, N, D]."""
    return torch.stack([torch.stack(kept["mask"]) for kept in ran.clients])


# Aggregation


A, B, C = [1.0, 2, 0, 0, 4], [3.0, 0, 0, 5, 0], [5.0, 4, 0, 0, 2]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("sent", "kept", "mean"),
    [
        ([A, B, C], [[1, 1, 0, 0, 1], [1, 0, 0, 1, 0], [1, 1, 0, 0, 1]], [3, 3, 9, 5, 3]),
        ([C, A, B], [[1, 1, 0, 0, 1], [1, 1, 0, 0, 1], [1, 0, 0, 1, 0]], [3, 3, 9, 5, 3]),
        ([A, B, C], [[1, 1, 0, 0, 1]] * 3, [3, 2, 9, 9, 2]),  # FedAvg on what all keep; 0 counts there
    ],
    ids=["worked", "permuted", "equal masks"],
)
def test_the_average_is_over_the_clients_that_keep_an_entry(
    sent: list[list[float]], kept: list[list[int]], mean: list[float], workers: int
) -> None:
    """Clients k = 0, 1, 2 have k + 1 samples; the server has 9 everywhere."""

    class Given(SubFedAvgUn):
        def local(self, client: Client) -> Update:
            k = int(client.samples) - 1
            return self.send(client, torch.tensor(sent[k]), torch.tensor(kept[k]) > 0, {})

    rows = [np.array([0]), np.array([1, 2]), np.array([3, 4, 5])]
    examples = Examples(torch.zeros(6, 5), torch.zeros(6, dtype=torch.int64))
    model = FlatModel(lambda: nn.Sequential(nn.Linear(5, 1, bias=False)))
    partition = Partition.from_lists(rows, rows, [np.array([k]) for k in range(3)])
    federation = Federation(model, examples, examples, partition)
    simulation = prepare_run(Given(gate="train"), federation, rounds=1, executor=Workers(workers))
    simulation.state.server.model.fill_(9)
    assert follow(simulation).servers[0]["model"].tolist() == pytest.approx(mean, rel=1e-6)


def test_equal_clients_have_equal_masks_and_the_global_model_on_them(digits: Dataset, cohort: str) -> None:
    """Full batches, so that their order is the same for all."""
    found = images(digits, (30,) * 3)
    rows = [found.partition.train(0)] * 3
    alike = replace(found, partition=Partition.from_lists(rows, [np.arange(9)], [np.array([0])] * 3))
    ran = run(NAME, alike, ALWAYS, rounds=4, cohort=cohort)
    masks = every_mask(ran)
    assert (masks == masks[:, :1]).all() and not masks[-1].all()
    w, mask = ran.servers[-1]["model"], masks[-1, 0]
    for own in ran.clients[-1]["model"]:
        torch.testing.assert_close(w[mask], own[mask], rtol=0, atol=1e-6)


# Pruning


@pytest.mark.parametrize("hyper", [{"target": 0}, {"threshold": 1.1}, {"distance": 1.1}], ids=str)
def test_without_pruning_it_is_uniform_fedavg(
    federation: Federation, hyper: dict[str, float], cohort: str
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = run(NAME, federation, hyper, cohort=cohort, **HALF)
    plain = run("fedavg", federation, {"weighting": "uniform"}, cohort=cohort, **HALF)
    for one, other in zip(ours.servers, plain.servers, strict=True):
        assert torch.equal(one["model"], other["model"])
    for name in ("train_loss", "bytes_down", "gradients"):
        assert ours.values(name) == plain.values(name)
    assert every_mask(ours).all()
    told = [f"{NAME}: no client prunes, as method.{name} is above 1" for name in hyper if name != "target"]
    assert [str(w.message) for w in caught] == told


def test_a_round_by_hand(federation: Federation, updates: list[Update]) -> None:
    """From the models of FedAvg after one epoch and after all, which start in the same way."""
    first, last = (
        run("fedavg", federation, training=SGD | {"epochs": epochs}, rounds=1, keep_trained=True).clients[0]
        for epochs in (1, 3)
    )
    weights = [place for name, place in federation.model.slices.items() if name.endswith("weight")]

    def kept(w: Tensor) -> list[np.ndarray]:
        sizes = [w[place].abs().double().numpy() for place in weights]
        return [size >= np.percentile(size, 10) for size in sizes]

    moved, masks = list[float](), list[list[np.ndarray]]()
    for start, end in zip(first["trained"], last["trained"], strict=True):
        masks.append(kept(end))
        shares = [(one != other).mean() for one, other in zip(kept(start), masks[-1], strict=True)]
        moved.append(float(np.mean(shares)))
    least = float(np.median(moved))
    run(NAME, federation, ALWAYS | {"distance": least}, training=SGD, rounds=1)
    for k, update in enumerate(updates):
        assert float(update.diagnostics["distance"]) == pytest.approx(moved[k], abs=1e-12)
        expected = masks[k] if moved[k] >= least else [own | True for own in masks[k]]
        for place, own in zip(weights, expected, strict=True):
            assert np.array_equal(update.vectors["mask"][place].numpy(), own)
        dropped = sum((~own).sum() for own in expected)
        assert float(update.diagnostics["pruned"]) == pytest.approx(dropped / federation.model.parameters)
        assert torch.equal(update.vectors["model"], last["trained"][k].where(update.vectors["mask"], 0))


OPTIMIZERS = {"sgd": SGD, "adam": SGD | {"optimizer": "adam", "momentum": 0.0, "lr": 0.01}}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_masks_lose_entries_until_the_target_in_loop_and_cohort(
    federation: Federation, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every bit; pruned weights stay 0 under momentum, weight decay and Adam."""
    settings = HALF | {"training": OPTIMIZERS[optimizer], "rounds": 8}
    hyper = ALWAYS | {"target": 0.3}
    loop = run(NAME, federation, hyper, **settings)
    forbid_fallback(monkeypatch)
    vmapped = run(NAME, federation, hyper, cohort="vmap", **settings)
    masks, models = every_mask(loop), torch.stack([torch.stack(kept["model"]) for kept in loop.clients])
    assert torch.equal(every_mask(vmapped), masks) and masks.dtype == torch.bool
    assert not (masks[1:] & ~masks[:-1]).any() and (models[~masks] == 0).all()
    shares = (~masks[-1]).double().mean(-1)
    assert 0.25 < shares.max() < 0.31 and len(shares.unique()) > 2
    tensors = len(federation.model.weights) / federation.model.parameters
    assert shares.max() <= 0.3 + tensors


@pytest.mark.parametrize("gate", ["selection", "train", "test"])
def test_a_client_prunes_if_the_smaller_network_is_accurate_enough(
    federation: Federation, gate: str, updates: list[Update]
) -> None:
    """The accuracy that decides is that of the smaller network, on the samples of the gate."""
    hyper, settings = {"gate": gate, "threshold": 0.85}, {"training": SGD, "rounds": 2}
    ran = run(NAME, federation, hyper, **settings)
    partition, model, due = federation.partition, federation.model, set()
    for k, update in enumerate(updates[-len(SIZES) :]):
        before, after = (kept["mask"][k] for kept in ran.clients)
        if gate == "test":
            examples, rows = federation.test, partition.test(k)
        else:
            examples, rows = federation.train, getattr(partition, gate)(k)
        found = torch.as_tensor(rows)
        found_by = model.outputs(update.vectors["model"], examples.inputs(found))
        accuracy = model.hits(found_by, examples.targets(found)).double().mean().item()
        pruned = not torch.equal(before, after)
        due.add(pruned)
        assert pruned == (float(update.diagnostics["gate"]) >= 0.85)
        if pruned:
            assert float(update.diagnostics["gate"]) == pytest.approx(accuracy)
        assert float(update.diagnostics["gate_kept"]) == pytest.approx(accuracy)
    vmapped = run(NAME, federation, hyper, cohort="vmap", **settings)
    assert torch.equal(every_mask(vmapped), every_mask(ran))
    assert due == {False, True}


# The engine


def test_bytes_are_those_of_kept_entries_and_a_bit_of_mask_for_each(federation: Federation) -> None:
    ran, size = run(NAME, federation, ALWAYS, executor=Workers(2), **HALF), federation.model.size
    up, sent = 0, []
    for report, kept in zip(ran.rounds, ran.clients, strict=True):
        up += sum(4 * int(kept["mask"][k].sum()) + -(-size // 8) for k in report.cohort)
        sent.append(up)
    assert ran.values("bytes_up") == sent and len({*np.diff(sent)}) == 3
    assert ran.values("bytes_down") == [4 * (t + 1) * 4 * size for t in range(4)]


def test_masks_survive_a_kill_with_any_workers(federation: Federation, tmp_path: Any) -> None:
    """Killed with masks in the checkpoint only, and with masks in the files."""
    settings = HALF | {"rounds": 5, "checkpoint_every": 2}
    straight = run(NAME, federation, ALWAYS, **settings)
    assert not every_mask(straight)[1].all()
    for stop in (3, 4):
        folder = {"checkpoints": tmp_path / str(stop), "executor": Workers(2)}
        rounds = prepare_run(NAME, federation, ALWAYS, **folder, **settings).rounds()
        for _ in range(stop):
            next(rounds)
        again = run(NAME, federation, ALWAYS, **folder, **settings)
        assert [r.replayed for r in again.rounds] == [n < stop // 2 * 2 for n in range(5)]
        assert same(again.state(), straight.state())
        assert again.state()["clients/mask"].dtype == torch.bool


def test_newcomers_are_served_the_global_model_unpruned(federation: Federation) -> None:
    ran = run(NAME, with_newcomers(federation, 1), ALWAYS, rounds=2, training=SGD)
    late = ran.outcome().newcomers
    w = ran.servers[-1]["model"]
    assert late is not None and late.clients == [7]
    found = torch.as_tensor(federation.partition.test(7))
    outputs = federation.model.outputs(w, federation.test.inputs(found))
    hits = federation.model.hits(outputs, federation.test.targets(found)).double().mean().item()
    assert late.local_accuracy.tolist() == pytest.approx([hits])


@pytest.mark.slow  # a compilation
def test_compiled_steps_are_plain_ones_up_to_rounding(federation: Federation, tmp_path: Any) -> None:
    settings = {"training": SGD | {"batch_size": 4}, "rounds": 3}
    training = prepare_run(NAME, federation, **settings).job.training
    if compiled_gradient(federation.model, federation.train, training, str(tmp_path)) is None:
        pytest.skip("this machine has no compiler")
    plain, compiled = (prepare_run(NAME, federation, ALWAYS, **settings) for _ in range(2))
    compiled.job = replace(compiled.job, compiled=str(tmp_path))
    one, other = follow(plain).state(), follow(compiled).state()
    assert not torch.equal(one["server/model"], other["server/model"])
    assert torch.equal(one["clients/mask"], other["clients/mask"]) and not one["clients/mask"].all()
    torch.testing.assert_close(other["clients/model"], one["clients/model"], rtol=0, atol=1e-5)


# What is refused

PREPARE = partial(prepare_run, NAME)


@pytest.mark.parametrize(
    ("error", "go"),
    [
        (r"training\.steps: 9 .* null with subfedavg_un", {"training": {"epochs": 1, "steps": 9}}),
        (r"method\.target: 30.0 .* a number >= 0 and < 1", {"hyper": {"target": 30}}),
        (r"method\.rate: 10.0 .* a number > 0 and < 1", {"hyper": {"rate": 10}}),
        (r"method\.threshold: -1.0 ", {"hyper": {"threshold": -1}}),
    ],
)
def test_what_cannot_prune_is_refused(federation: Federation, error: str, go: dict[str, Any]) -> None:
    with refused(f"^{error}"):
        PREPARE(federation, go.pop("hyper", {}), **go)


def test_a_single_epoch_is_refused() -> None:
    method = build_method(NAME)
    training = prepare_run("fedavg", quadratics(), training={"epochs": 1}).job.training
    with refused(r"^training\.epochs: 1 .* at least 2 with subfedavg_un, which compares the masks"):
        method.check(Conditions(20, training))
    build_method(NAME, {"target": 0}).check(Conditions(20, training))


def test_networks_and_partitions_that_do_not_fit_are_refused(federation: Federation) -> None:
    with refused(r"^method\.target: 0\.5 .* 0, as the network has no weights that subfedavg_un prunes"):
        run(NAME, quadratics(), {"gate": "train"})
    partition = replace(federation.partition, selection_offsets=None, selection_indices=None)
    without = replace(federation, partition=partition)
    with refused(r"^partition\.selection: 0 .* or set method\.gate to train or test"):
        PREPARE(without)
    for hyper in ({"gate": "test"}, {"gate": "train"}, {"target": 0}):
        PREPARE(without, hyper)
    assert build_method(NAME, {"gate": "test"}).selects_on_test()
    assert not build_method(NAME, {"gate": "test", "target": 0}).selects_on_test()
