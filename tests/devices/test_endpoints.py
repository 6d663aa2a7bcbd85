"""A server and clients that only exchange messages have the results of one process, for every method."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support import refused
from torch import nn

import fedflow as ff
from fedflow.devices.endpoints import ClientEnd, ServerEnd, check_remote, device
from fedflow.devices.messages import Answer
from fedflow.front.inputs import federation
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS
from fedflow.methods.method import GlobalModel, Round
from fedflow.methods.protocols import Phased
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation
from fedflow.simulation.settings import RunSettings


def accepted(name: str) -> bool:
    try:
        check_remote(METHODS[name].parse({}))
    except ff.BadInput:
        return False
    return True


NAMES = [name for name in METHODS if accepted(name)]


def data() -> ff.Dataset:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(160, 6)).astype("float32"), rng.integers(0, 3, 160)
    return ff.dataset(x[:120], y[:120], x[120:], y[120:])


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


@pytest.mark.by_profile
@pytest.mark.parametrize("name", NAMES)
def test_ends_have_the_results_of_one_process(name: str) -> None:
    method = METHODS[name].parse({"channel_rate": 0} if name == "subfedavg_hy" else {})
    training = LocalTraining.parse({"epochs": 2, "lr": 0.1})
    division = ff.scheme("dirichlet", alpha=0.5, clients=6, selection=0.2)
    network = normed if name == "fedbn" else "mlp"
    whole = federation(data(), division, network, method, "cpu")
    run = RunSettings.parse({"rounds": 5, "participation": 0.5, "evaluate_every": 5, "fine_tune": False})
    simulation = Simulation(Job(whole, method, training, 3), run)
    last = [*simulation.rounds()][-1]

    server = ServerEnd(
        method, whole.model, simulation.sizes, training=training, rounds=5, participation=0.5, seed=3
    )
    kept: dict[int, dict[str, torch.Tensor]] = {}
    client = ClientEnd(whole, method, training, 3)
    for t in range(1, 6):
        answers = []
        for k in server.cohort(t):
            answer, kept[k] = client.train(*server.message(t, k), kept.get(k, {}))
            answers.append(answer)
        server.receive(t, answers)
    there, here = server.state.tensors(), simulation.state.server.tensors()
    torch.testing.assert_close(there, here, rtol=0, atol=0, equal_nan=True)
    scores = [client.evaluate(*server.served(5, k), kept.get(k, {})) for k in range(6)]
    accuracies = [score["accuracy"] for score in scores if not np.isnan(score["accuracy"])]
    assert np.mean(accuracies) == pytest.approx(last.values["local_accuracy"], rel=1e-12)


def test_a_client_with_only_its_own_samples_trains_the_same() -> None:
    method, training = ff.Scaffold(), LocalTraining.parse({"epochs": 2, "lr": 0.1})
    whole = federation(data(), ff.scheme("iid", clients=4), "mlp", method, "cpu")
    partition = whole.partition
    server = ServerEnd(method, whole.model, partition.sizes, training=training, rounds=2)
    orders, message = server.message(1, 2)
    rows, tested = (torch.as_tensor(r) for r in (partition.train(2), np.arange(len(whole.test))))
    alone = device(whole.model, whole.train.only(rows), whole.test.only(tested), orders)
    (here, keep), (there, kept) = (
        ClientEnd(data, method, training, 0).train(orders, message, {}) for data in (whole, alone)
    )
    torch.testing.assert_close(there.vectors | kept, here.vectors | keep, rtol=0, atol=0)


def test_attackers_attack_on_devices_too() -> None:
    method, ends = METHODS["fedavg"].parse({}), []
    for share in (0.5, 0.0):
        flips = {"label_flip": {"share": share, "classes": 3}} if share else {}
        training = LocalTraining.parse({"lr": 0.1, "extensions": flips})
        whole = federation(data(), ff.scheme("iid", clients=6), "mlp", method, "cpu")
        run = RunSettings.parse({"rounds": 1, "evaluate_every": 1, "participation": 1.0, "fine_tune": False})
        simulation = Simulation(Job(whole, method, training, 0), run)
        assert len([*simulation.rounds()]) == 1
        server = ServerEnd(method, whole.model, simulation.sizes, training=training, rounds=1)
        client = ClientEnd(whole, method, training, 0)
        server.receive(1, [client.train(*server.message(1, k), {})[0] for k in server.cohort(1)])
        ends.append(server.state.tensors()["model"])
        assert torch.equal(ends[-1], simulation.state.server.tensors()["model"])
    assert not torch.equal(*ends)


def test_stragglers_are_refused() -> None:
    training = LocalTraining.parse({"epochs": 2, "stragglers": 0.5})
    whole = federation(data(), ff.scheme("iid", clients=2), "mlp", METHODS["fedavg"].parse({}), "cpu")
    with pytest.raises(ff.BadInput, match=r"training\.stragglers: 0\.5 is not accepted; expected 0: devices"):
        ServerEnd(METHODS["fedavg"].parse({}), whole.model, [80, 40], training=training, rounds=2)


def test_methods_that_need_more_than_one_exchange_are_refused() -> None:
    for name in ("pacfl", "fedbuff", "fedhen", "fedevg"):
        with pytest.raises(ff.BadInput, match=f"method: '{name}' is not accepted; expected a method without"):
            check_remote(METHODS[name].parse({}))


SETTINGS = {"epochs": 1, "lr": 0.1}


def ends(method: ff.Method, **run: Any) -> tuple[ServerEnd, Federation, list[Answer]]:
    """A server, the data of its clients, and their answers of the first round."""
    whole = federation(data(), ff.scheme("iid", clients=3), "mlp", method, "cpu")
    training = LocalTraining.parse(SETTINGS)
    server = ServerEnd(method, whole.model, whole.partition.sizes, training=training, rounds=9, **run)
    client = ClientEnd(whole, method, training, 0)
    return server, whole, [client.train(*server.message(1, k), {})[0] for k in server.cohort(1)]


def shortened(vectors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: vector[:5] for name, vector in vectors.items()}


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
@pytest.mark.parametrize("at", [0, 1])
def test_answers_that_are_not_valid_are_left_out(name: str, at: int) -> None:
    server, _, good = ends(METHODS[name].parse({}))
    state, first = server.state, min(good[at].vectors)
    bad = {
        "NaN or infinite": {"vectors": {n: v * float("nan") for n, v in good[at].vectors.items()}},
        "holds NaN": {"train_loss": float("inf")},
        "weight is -5, not a number >= 0": {"weight": -5.0},
        rf"'{first}' has the shape \[5\], not \[2003\]": {"vectors": shortened(good[at].vectors)},
        f"did not send '{first}'": {"vectors": {}},
        "sent 'more', which is not expected": {"scalars": {"more": 1.0}},
    }
    server.receive(1, [answer for answer in good if answer is not good[at]])
    expected, server.state = server.state, state
    for reason, changes in bad.items():
        answers = [*good[:at], replace(good[at], **changes), *good[at + 1 :]]
        with pytest.warns(UserWarning, match=rf"{name}: round 1: left out: client {at}: .*{reason}"):
            server.receive(1, answers)
        assert [*server.failed] == [at]
        for field, value in server.state.tensors().items():
            assert torch.equal(value, expected.tensors()[field])
        server.state = state


def test_wrong_shapes_of_the_first_answer_are_not_expected_of_the_others() -> None:
    server, _, (first, *others) = ends(ff.Scaffold())
    with pytest.warns(UserWarning, match="left out: client 0: its 'dc' has the shape"):
        server.receive(1, [replace(first, vectors=shortened(first.vectors)), *others])


def test_answers_that_all_have_weight_0_are_left_out() -> None:
    server, _, good = ends(METHODS["fedavg"].parse({}))
    with pytest.warns(
        UserWarning, match="every client failed, .*client 0: its weight is 0, like all weights"
    ):
        server.receive(1, [replace(answer, weight=0.0) for answer in good])
    assert len(server.failed) == len(good)


def test_rounds_without_updates_keep_the_state_until_there_are_too_many_in_a_row() -> None:
    server, _, good = ends(ff.FedAvg(), participation=0.4)
    lost, before = [Answer(good[0].client, failure="no reply")], server.state
    reason = rf"client {good[0].client}: no reply"
    for t in (1, 2):
        with pytest.warns(UserWarning, match=rf"round {t}: every client failed, .* \({reason}\)"):
            assert not server.receive(t, lost)
    assert server.state is before
    server.receive(3, good)
    for t in (4, 5):
        with pytest.warns(UserWarning, match="every client failed"):
            server.receive(t, lost)
    with pytest.raises(ff.FedflowError, match="round 6: every client failed in 3 rounds in a row, the limit"):
        server.receive(6, lost)


def test_a_phase_ends_in_a_round_without_updates_too() -> None:
    class Counted(ff.FedAvg, Phased):
        def without_updates(self, now: Round, server: GlobalModel) -> GlobalModel:
            return GlobalModel(server.model + now.t)

    server, _, _ = ends(Counted())
    before = server.state.tensors()["model"]
    with pytest.warns(UserWarning, match="every client failed"):
        server.receive(1, [Answer(0, failure="no reply")])
    assert torch.equal(server.state.tensors()["model"], before + 1)


@pytest.mark.parametrize(
    "text, method, settings, seed",
    [
        ("training.lr: 0.5 is not accepted; expected 0.1, as the server has it", {}, {"lr": 0.5}, 0),
        ("seed: 9 is not accepted; expected 0, as the server has it", {}, {}, 9),
        ("method.mu: 0.5 is not accepted; expected 0.25, as the server has it", {"mu": 0.5}, {}, 0),
        ("method: 'fedavg' is not accepted; expected fedprox, as the server has it", None, {}, 0),
    ],
)
def test_clients_refuse_orders_of_a_server_with_other_settings(
    text: str, method: dict[str, float] | None, settings: dict[str, float], seed: int
) -> None:
    server, whole, _ = ends(ff.FedProx(mu=0.25))
    other = ff.FedAvg() if method is None else ff.FedProx(**{"mu": 0.25, **method})
    client = ClientEnd(whole, other, LocalTraining.parse(SETTINGS | settings), seed)
    with refused(text):
        client.train(*server.message(1, 0), {})
    with refused(text):
        client.evaluate(*server.served(1, 0), {})


def test_clients_refuse_orders_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    server, whole, _ = ends(ff.FedAvg())
    client = ClientEnd(whole, ff.FedAvg(), LocalTraining.parse(SETTINGS), 0)
    orders, sent = server.message(1, 0)
    monkeypatch.setattr("fedflow.devices.messages.__version__", "0.0.9")
    with refused(f"fedflow: '0.0.9' is not accepted; expected {ff.__version__}, as the server has it"):
        client.train(orders, sent, {})
