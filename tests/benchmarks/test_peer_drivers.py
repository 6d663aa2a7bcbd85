"""Drivers of the benchmark that need no other simulator: they train what they say, and agree."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.peers import compare, eager_driver, vmap_driver, work

HOME = Path(__file__).parents[2]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients a round, with 20 images each, one batch: the same whatever its order."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(80, 3, 32, 32, generator=rng), torch.arange(80) % 10
    for driver in (eager_driver, vmap_driver):
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


def test_the_vmapped_loop_trains_as_the_plain_one(small, monkeypatch) -> None:
    plain, counted = after_two_rounds(eager_driver, monkeypatch)
    vmapped, also_counted = after_two_rounds(vmap_driver, monkeypatch)
    start = work.network().state_dict()
    assert counted == also_counted == [0, 2, 4]
    assert plain.keys() == vmapped.keys()
    for name, value in plain.items():
        assert torch.allclose(value, vmapped[name], atol=1e-6) and not torch.equal(value, start[name])


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
        assert drivers.keys() == ours | {f"pfl, {n} processes" for n in (2, 4, 8)}
        assert drivers["pfl, 4 processes"][-3:] == ["4", "-m", "benchmarks.peers.pfl_processes"]
    assert not skipped


def test_the_device_of_all_drivers_is_in_the_environment() -> None:
    program = "from benchmarks.peers import compare, work; print(work.DEVICE, compare.OFFLINE)"
    environment = os.environ | {"BENCH_DEVICE": "meta", "PYTHONPATH": str(HOME)}
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    device, settings = said.split(maxsplit=1)
    assert device == "meta" and json.loads(settings.replace("'", '"'))["PFL_PYTORCH_DEVICE"] == "meta"
