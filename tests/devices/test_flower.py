"""A method in Flower's simulation has the results of `fedflow.run`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support import refused
from torch import nn

import fedflow as ff
from fedflow.devices.endpoints import ServerEnd

CHECKOUT = Path(__file__).parents[2]
METHODS = ("fedavg", "fedprox", "scaffold", "ditto", "own:scaffold")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_methods_in_flower_have_the_results_of_one_process(tmp_path: Path) -> None:
    """In an environment of its own, as Flower needs older packages than the lock file has."""
    uv, python = Path(sys.executable).parent / "uv", tmp_path / "venv" / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv"], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", python, f"{CHECKOUT}[flower]"]
    subprocess.run(install, check=True, env=os.environ | {"UV_SYSTEM_CERTS": "1"})
    script = Path(__file__).with_name("flower_federation.py")
    command = [python, script, *METHODS]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = {name: [float(one) for one in rest] for name, *rest in map(str.split, done.stdout.splitlines())}
    assert list(found) == list(METHODS)
    assert all(model == 0 and accuracy < 1e-12 for model, accuracy in found.values()), found


def test_without_flower_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedflow.project.distribution.find_spec", lambda package: None)
    with pytest.raises(
        ff.FedflowError, match=r"^fedflow.flower needs flwr, not installed here: .*\[flower\]"
    ):
        _ = ff.flower.Strategy


@pytest.fixture
def strategy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The class `Strategy`, where Flower is not installed: its modules have empty classes."""
    names = {
        "flwr": "",
        "flwr.app": "ArrayRecord ConfigRecord Context Message MetricRecord RecordDict",
        "flwr.clientapp": "ClientApp",
        "flwr.serverapp": "Grid",
        "flwr.serverapp.strategy": "Result Strategy",
    }
    for module, classes in names.items():
        stub = ModuleType(module)
        for name in classes.split():
            setattr(stub, name, type(name, (), {}))
        monkeypatch.setitem(sys.modules, module, stub)
    monkeypatch.delitem(sys.modules, "fedflow.devices.flower_apps", raising=False)
    yield import_module("fedflow.devices.flower_apps").Strategy
    sys.modules.pop("fedflow.devices.flower_apps")


def test_evaluations_in_no_round_and_too_many_nodes_are_one_line(strategy: Any) -> None:
    with refused("evaluate_every: 0 is not accepted; expected a whole number >= 1"):
        strategy(clients=2, like="digits", evaluate_every=0)
    grid = SimpleNamespace(get_node_ids=lambda: [1, 2, 3])
    with refused("clients: 2 is not accepted; expected the number of connected nodes, 3"):
        strategy(clients=2, like="digits").start(grid)


def test_a_strategy_for_fewer_clients_than_the_partition_has_is_refused(strategy: Any) -> None:
    apps = import_module(strategy.__module__)
    server = strategy("fedavg", clients=2, like="digits", model="mlp")
    end = ServerEnd(server.method, server.model, [80, 40], training=server.training, rounds=2)
    clients = apps.Clients("digits", ff.iid(clients=4), "fedavg", "mlp", None, 0)
    with refused("clients: 2 is not accepted; expected 4, as the partition of the ClientApp has"):
        clients.end(SimpleNamespace(), end.message(1, 0)[0])


def test_a_round_without_replies_has_no_mean_loss(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    apps = import_module(strategy.__module__)
    for record in ("ArrayRecord", "MetricRecord"):
        monkeypatch.setattr(apps, record, dict)
    server = strategy("fedavg", clients=2, model=nn.Linear(6, 3))
    server.server = ServerEnd(server.method, server.model, [80, 40], training=server.training, rounds=2)
    server._asked = {7: 0, 8: 1}
    with pytest.warns(UserWarning, match=r"round 1: every client failed, .*client 1: no reply"):
        _, numbers = server.aggregate_train(1, [])
    assert numbers == {"participants": 0, "failed": 2}


def test_incomplete_replies_are_left_out(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    apps = import_module(strategy.__module__)
    for record in ("ArrayRecord", "MetricRecord"):
        monkeypatch.setattr(apps, record, dict)

    def reply(node: int, **content: Any) -> Any:
        return SimpleNamespace(
            metadata=SimpleNamespace(src_node_id=node), has_error=lambda: False, content=content
        )

    server = strategy("fedavg", clients=2, model=nn.Linear(6, 3))
    server.server = ServerEnd(server.method, server.model, [80, 40], training=server.training, rounds=2)
    server._asked = {7: 0, 8: 1}
    with pytest.warns(UserWarning, match="client 0: its reply has no 'numbers'; .*no 'train_loss'"):
        server.aggregate_train(1, [reply(7), reply(8, numbers={"weight": 1.0, "group": 0})])
    assert server.aggregate_evaluate(1, [reply(7), reply(8, metrics={"accuracy": 0.5})]) is None
    grid = SimpleNamespace(get_node_ids=lambda: [7, 8], send_and_receive=lambda asked, timeout: [reply(7)])
    monkeypatch.setattr(apps, "Message", lambda *_, **__: None)
    monkeypatch.setattr(apps, "RecordDict", dict)
    with pytest.raises(ff.FedflowError, match=r"^node 7: its app is not fedflow's client_app$"):
        strategy("fedavg", clients=2, model=nn.Linear(6, 3)).start(grid)
