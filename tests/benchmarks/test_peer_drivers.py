"""Drivers of the benchmark that need no other simulator: they train what they say, and agree."""

import ast
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.peers import (
    compare,
    eager_driver,
    fedflow_driver,
    pfl_processes,
    streams_driver,
    vmap_driver,
    work,
)

HOME = Path(__file__).parents[2]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients a round, with 20 images each, one batch: the same whatever its order."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(80, 3, 32, 32, generator=rng), torch.arange(80) % 10
    monkeypatch.setattr(work, "SAMPLES", 20)
    for driver in (eager_driver, vmap_driver, streams_driver):
        for name, value in {"COHORT": 2, "SAMPLES": 20, "BATCH": 20, "STEPS": 2}.items():
            monkeypatch.setattr(driver, name, value, raising=False)
        monkeypatch.setattr(driver, "images", lambda: (x, y))
        monkeypatch.setattr(driver, "place", lambda k: slice(20 * k, 20 * k + 20))


def after_two_rounds(driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> tuple[dict, list[int]]:
    """The network at the end of two rounds, and the batches that were counted."""
    rounds: list[dict] = []

    class Laps(work.Laps):
        def lap(self, steps: int | None = None) -> None:
            super().lap(steps)
            server = sys._getframe(1).f_locals["server"]
            rounds.append({name: value.clone() for name, value in server.items()})

    laps = Laps()
    monkeypatch.setattr(work.Network, "steps", 0)
    driver.run(4, 2, laps)
    assert len(rounds) == 3
    return rounds[-1], laps.steps


@pytest.mark.parametrize("driver", [vmap_driver, streams_driver], ids=["vmap", "streams"])
def test_the_other_loops_train_as_the_plain_one(small, monkeypatch, driver) -> None:
    plain, counted = after_two_rounds(eager_driver, monkeypatch)
    other, also_counted = after_two_rounds(driver, monkeypatch)
    start = work.network().state_dict()
    assert counted == also_counted == [0, 2, 4]
    assert plain.keys() == other.keys()
    for name, value in plain.items():
        assert torch.allclose(value, other[name], atol=1e-6) and not torch.equal(value, start[name])


@pytest.mark.parametrize("cohort", ["loop", "vmap"])
def test_fedflow_counts_the_steps_of_every_client(monkeypatch, cohort) -> None:
    """A vmapped cohort calls the network once for all clients, and a replayed graph never."""
    for name, value in {"COHORT": 3, "SAMPLES": 20}.items():
        monkeypatch.setattr(fedflow_driver, name, value)
    monkeypatch.setattr(work, "SAMPLES", 20)
    monkeypatch.setattr(work, "IMAGES", 80)
    monkeypatch.setattr(work.Network, "steps", 0)
    laps = work.Laps()
    fedflow_driver.run(4, 2, laps, cohort=cohort)
    assert laps.steps == [0, 6, 12]


@pytest.mark.slow
@pytest.mark.parametrize("peer", compare.PEERS)
def test_a_peer_trains_what_it_says(peer, tmp_path) -> None:
    """In the environment that `python -m benchmarks peers` makes."""
    python = HOME / ".bench" / peer / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{peer} is not installed in .bench/{peer}")
    environment = os.environ | compare.OFFLINE | {"PYTHONPATH": str(HOME), "BENCH_WORK": "tiny"}
    command = [str(python), "-m", f"benchmarks.peers.{peer}_driver", "--clients", "10", "--rounds", "2"]
    ran = subprocess.run(
        command,
        env=environment | {"FLWR_HOME": str(tmp_path)},
        cwd=HOME,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["package"] and found["steps"] == [4, 4] and len(found["warm_up_seconds"]) == work.WARM_UP


def test_an_unknown_work_is_named(monkeypatch) -> None:
    monkeypatch.setenv("BENCH_WORK", "resnet")
    with pytest.raises(SystemExit, match="BENCH_WORK='resnet': one of lenet5, pfl, tiny"):
        runpy.run_path(work.__file__)


def test_processes_take_the_gpus_by_turns(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    environment = pfl_processes.place(
        {"BENCH_DEVICE": "cuda", "PFL_PYTORCH_DEVICE": "cuda", "LOCAL_RANK": "3"}
    )
    assert environment == {"BENCH_DEVICE": "cuda:1", "PFL_PYTORCH_DEVICE": "cuda:1", "LOCAL_RANK": "1"}
    assert not pfl_processes.place({"BENCH_DEVICE": "cpu", "LOCAL_RANK": "3"})


def test_batches_of_a_gpu_are_drawn_there(monkeypatch) -> None:
    monkeypatch.setattr(work, "DEVICE", torch.device("meta"))
    assert work.shuffled().device.type == "meta" and len(work.shuffled()) == work.SAMPLES
    for each in (HOME / "benchmarks/peers").glob("*_driver.py"):
        assert "randperm" not in each.read_text(), each.name


@pytest.mark.parametrize("driver", sorted(p.stem for p in (HOME / "benchmarks/peers").glob("*_driver.py")))
def test_every_driver_is_a_program_with_two_arguments(driver: str) -> None:
    """Those of simulators that are not installed are at least read."""
    tree = ast.parse((HOME / f"benchmarks/peers/{driver}.py").read_text())
    (run,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run")
    assert [each.arg for each in run.args.args][:3] == ["clients", "rounds", "laps"]
    assert "drive(" in ast.unparse(tree.body[-1])


def test_a_missing_number_of_clients_is_named(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["vmap_driver", "--rounds", "1"])
    with pytest.raises(SystemExit):
        work.drive(vmap_driver.run)
    assert "--clients" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_gpu_is_also_shared_by_several_processes_of_pfl(monkeypatch, device) -> None:
    """Nothing is installed for this test; compiled steps are those of CPUs."""
    monkeypatch.setattr(compare, "DEVICE", torch.device(device))
    monkeypatch.setattr(compare, "_environment", lambda peer: Path(f"/{peer}/python"))
    drivers, skipped = compare._drivers()
    ours = {"fedflow", "hand-written vmap", *compare.PEERS}
    if device == "cpu":
        assert drivers.keys() == ours | {"fedflow, compiled"}
    else:
        assert drivers.keys() == ours | {"hand-written streams", *(f"pfl, {n} processes" for n in (2, 4, 8))}
        assert drivers["pfl, 4 processes"][-3:] == ["4", "-m", "benchmarks.peers.pfl_processes"]
    assert not skipped


def test_the_device_of_all_drivers_is_in_the_environment() -> None:
    program = "from benchmarks.peers import compare, work; print(work.DEVICE, compare.OFFLINE)"
    environment = os.environ | {"BENCH_DEVICE": "meta", "PYTHONPATH": str(HOME)}
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    device, settings = said.split(maxsplit=1)
    assert device == "meta" and json.loads(settings.replace("'", '"'))["PFL_PYTORCH_DEVICE"] == "meta"
