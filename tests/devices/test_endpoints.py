"""A server and clients that only exchange messages have the results of one process, for every method."""

import numpy as np
import pytest
import torch
from torch import nn

import fedflow as ff
from fedflow.devices.endpoints import ClientEnd, ServerEnd, check_remote, device
from fedflow.front.inputs import federation
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS
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
    whole = federation(data(), division, network, method, "cpu", "matmul")
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
    for field, value in simulation.state.server.tensors().items():
        torch.testing.assert_close(server.state.tensors()[field], value, rtol=0, atol=0, equal_nan=True)
    scores = [client.evaluate(*server.served(5, k), kept.get(k, {})) for k in range(6)]
    accuracies = [score["accuracy"] for score in scores if not np.isnan(score["accuracy"])]
    assert np.mean(accuracies) == pytest.approx(last.values["local_accuracy"], rel=1e-12)


def test_a_client_with_only_its_own_samples_trains_the_same() -> None:
    method, training = ff.Scaffold(), LocalTraining.parse({"epochs": 2, "lr": 0.1})
    whole = federation(data(), ff.scheme("iid", clients=4), "mlp", method, "cpu", "matmul")
    partition = whole.partition
    server = ServerEnd(method, whole.model, partition.sizes, training=training, rounds=2)
    orders, message = server.message(1, 2)
    rows, tested = (torch.as_tensor(r) for r in (partition.train(2), np.arange(len(whole.test))))
    alone = device(whole.model, whole.train.only(rows), whole.test.only(tested), orders)
    (here, keep), (there, kept) = (
        ClientEnd(data, method, training, 0).train(orders, message, {}) for data in (whole, alone)
    )
    for name, vector in (here.vectors | keep).items():
        torch.testing.assert_close((there.vectors | kept)[name], vector, rtol=0, atol=0)


def test_attackers_attack_on_devices_too() -> None:
    method, ends = METHODS["fedavg"].parse({}), []
    for share in (0.5, 0.0):
        flips = {"label_flip": {"share": share, "classes": 3}} if share else {}
        training = LocalTraining.parse({"lr": 0.1, "extensions": flips})
        whole = federation(data(), ff.scheme("iid", clients=6), "mlp", method, "cpu", "matmul")
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
    whole = federation(
        data(), ff.scheme("iid", clients=2), "mlp", METHODS["fedavg"].parse({}), "cpu", "matmul"
    )
    with pytest.raises(ff.BadInput, match=r"training\.stragglers: 0\.5 is not accepted; expected 0: devices"):
        ServerEnd(METHODS["fedavg"].parse({}), whole.model, [80, 40], training=training, rounds=2)


def test_methods_that_need_more_than_one_exchange_are_refused() -> None:
    for name in ("pacfl", "fedbuff", "fedhen", "fedevg"):
        with pytest.raises(ff.BadInput, match=f"method: '{name}' is not accepted; expected a method without"):
            check_remote(METHODS[name].parse({}))
