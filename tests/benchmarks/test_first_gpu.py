"""The first checks on a GPU, as far as a CPU can show them: parts, predictions, lost parts."""

import json
import math
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as entry
from benchmarks import cohorts, first_gpu, headline, machine
from benchmarks.counts import WORKLOADS
from fedflow.simulation.updates.step import STEPS

HOME = Path(__file__).parents[2]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The sizes of BENCH_WORK=tiny, for this test only, and a folder for the results."""
    for module, names in {
        headline: ("CLIENTS", "COHORT", "NETWORK", "_images", "compiling"),
        cohorts: ("STEPS", "WARM_UPS", "CALLS", "VARIED", "LOOP_CLIENTS", "IMAGES", "FORMS"),
    }.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setitem(WORKLOADS, "headline", WORKLOADS["headline"])
    monkeypatch.setattr(first_gpu, "TINY", True)
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    return tmp_path


def kept(folder: Path, name: str) -> dict:
    return json.loads((folder / f"cpu-first-{name}.json").read_text())["measured"]


def test_times_stand_beside_predictions_and_large_differences_are_marked(tiny, capsys) -> None:
    first_gpu.part("ceilings")
    assert kept(tiny, "ceilings")["measured"].keys() == {"fp32 FLOP/s", "bytes/s", "s of a node"}
    first_gpu.part("headline-float32")
    found = kept(tiny, "headline-float32")
    ratio = found["measured"]["s a round"] / found["predicted"]["s a round"]
    assert found["predicted"]["s a round"] > 0 and found["all"]["rounds_run"] == 4
    assert ("s a round" in found["off"]) == (abs(ratio - 1) > first_gpu.OFF)
    assert found["checks"] == {"neither one by one nor without a graph": True}
    assert "predicted" in capsys.readouterr().out


def test_a_prediction_is_what_is_counted_at_the_rates_of_the_ceilings(tiny, monkeypatch) -> None:
    first_gpu.shrink()
    workload, rates = WORKLOADS["headline"], {"fp32 FLOP/s": 2e9, "bytes/s": 1e9, "s of a node": 1e-6}
    assert first_gpu._predicted(workload, "float32") is None
    machine.keep("cpu", "first-ceilings", {"measured": rates})
    counted = first_gpu.count(workload)
    operations = workload.clients * 1 * cohorts.flops(workload.network, 10)  # one step of each client
    expected = operations / 2e9 + counted.bytes / 1e9 + counted.launches.total() / 1e6
    assert first_gpu._predicted(workload, "float32") == pytest.approx(expected)


def test_methods_are_compared_with_the_loop(tiny, monkeypatch) -> None:
    found = first_gpu.methods()
    assert found["checks"] == {"fedavg": True, "fesem": True} and found["apart"]["fedavg"] < 1e-5

    def other(name: str, cohort: str) -> tuple[dict[str, torch.Tensor], int]:
        return {"model": torch.ones(2) + (cohort == "vmap")}, 0

    monkeypatch.setattr(first_gpu, "_trained", other)
    assert first_gpu.methods()["checks"] == {"fedavg": False, "fesem": False}


def test_every_update_step_is_compared_with_a_cpu(tiny, monkeypatch) -> None:
    found = first_gpu.updates()
    assert all(found["checks"].values()), found["reasons"]
    assert found["checks"].keys() == {f"{step} {how}" for step in STEPS for how in ("loop", "vmap")}

    def other(name: str, cohort: str, device: str = "cuda", **_: object) -> tuple[dict, int]:
        return {"model": torch.arange(4000) + 1.0 * (torch.arange(4000) < (8 if device == "cpu" else 0))}, 0

    monkeypatch.setattr(first_gpu, "_trained", other)
    assert not any(first_gpu.updates()["checks"].values())  # two entries in a thousand differ


def found_or_lost(name: str) -> dict:
    """In the place of `first_gpu.compared`."""
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"apart": math.nan if name == "nan" else 0.0, "graphs": 2, "reasons": []}


def send(sender: Connection, name: str) -> None:
    sender.send(found_or_lost(name))


def test_on_a_gpu_every_method_is_a_process(tiny, monkeypatch) -> None:
    monkeypatch.setattr(first_gpu, "_send", send)
    monkeypatch.setattr(first_gpu, "DEVICE", "cuda")
    monkeypatch.setattr(first_gpu, "TINY", False)
    monkeypatch.setattr(first_gpu, "METHODS", dict.fromkeys(["fine", "nan", "killed"]))
    found = first_gpu.methods()
    assert found["checks"] == {"fine": True, "killed": False, "nan": False}
    assert found["graphs"] == {"fine": 2, "nan": 2}
    assert found["reasons"] == {"killed": ["exit status -9"]}


def test_kernels_are_counted_by_kind(tiny) -> None:
    first_gpu.shrink()
    found = first_gpu.kernels()
    assert found["measured"]["kernels"] > 0 and "aten::bmm" in found["times and microseconds"]["kernels"]


@pytest.mark.parametrize(("ratio", "marked"), [(0.6, True), (0.75, False), (1.25, False), (1.4, True)])
def test_more_than_thirty_per_cent_is_off(ratio: float, marked: bool) -> None:
    found = {
        "off": first_gpu.off({"s": 2 * ratio, "other": 1.0}, {"s": 2.0}),
        "checks": {"a": True, "b": False},
    }
    assert found["off"] == ({"s": ratio} if marked else {})
    assert first_gpu.problems(found) == ["FAIL b", *[f"s is {ratio} times the prediction"] * marked]


def test_a_part_that_crashes_or_hangs_loses_no_other(tiny, monkeypatch, capsys) -> None:
    """Real processes, without torch: one is killed, one hangs, one stores a result."""
    text = json.dumps({"machine": {}, "measured": {"off": {"s": 2.0}}})
    programs = {
        "killed": "import os; os.kill(os.getpid(), 9)",
        "hangs": "import time; time.sleep(60)",
        "stores": f"open({str(tiny / 'cpu-first-stores.json')!r}, 'w').write({text!r})",
    }
    start = subprocess.run
    limits = {name: 1 if name == "hangs" else 60 for name in programs}
    monkeypatch.setattr(first_gpu, "PARTS", {name: (dict, limit) for name, limit in limits.items()})

    def instead(command: list[str], **how: object) -> subprocess.CompletedProcess:
        return start([sys.executable, "-c", programs[command[-1]]], **how)

    monkeypatch.setattr(first_gpu.subprocess, "run", instead)
    monkeypatch.setattr(machine, "describe", dict)
    machine.keep("cpu", "first-killed", {"off": {"old": 3.0}})
    with pytest.raises(SystemExit, match="1"):
        first_gpu.main([*programs])
    assert kept(tiny, "killed") == {"off": {"old": 3.0}}  # until there is a new result
    said = capsys.readouterr().out.partition("== to explain\n")[2].splitlines()
    assert said == [
        "killed: ended with exit status -9",
        "hangs: did not finish in 1 s",
        "stores: s is 2.0 times the prediction",
    ]


def test_later_calls_measure_what_earlier_ones_left(tiny, monkeypatch, capsys) -> None:
    ran: list[str] = []

    def run(name: str) -> str:
        ran.append(name)
        machine.keep("cpu", f"first-{name}", {"code": first_gpu.code(), "checks": {"fine": name == "a"}})
        return ""

    monkeypatch.setattr(first_gpu, "PARTS", {"a": (dict, 5), "long": (dict, 50), "b": (dict, 5)})
    monkeypatch.setattr(first_gpu, "run", run)
    for seconds, status, last in [
        (20, 2, "== skipped, call again: long, whose limits did not fit into 20 s"),
        (60, 1, "long: FAIL fine"),
        (60, 1, "long: FAIL fine"),
    ]:
        monkeypatch.setattr(first_gpu, "SECONDS", seconds)
        with pytest.raises(SystemExit) as ended:
            first_gpu.main()
        said = capsys.readouterr().out
        assert ended.value.code == status and last in said and "b: FAIL fine" in said
    assert ran == ["a", "b", "long"]
    monkeypatch.setattr(first_gpu, "code", lambda: "other")
    with pytest.raises(SystemExit):
        first_gpu.main()
    assert ran == ["a", "b", "long", "a", "long", "b"]


def test_without_rates_nothing_is_as_predicted(tiny, monkeypatch, capsys) -> None:
    monkeypatch.setattr(first_gpu, "PARTS", {"rounds": (dict, 5)})
    monkeypatch.setattr(first_gpu, "run", lambda _: "")
    machine.keep("cpu", "first-rounds", {"measured": {"s": 1.0}, "predicted": {}})
    with pytest.raises(SystemExit, match="1"):
        first_gpu.main(["rounds"])
    assert capsys.readouterr().out.endswith("rounds: no predictions: run ceilings first\n")


def test_results_can_be_in_a_new_folder(monkeypatch, tmp_path) -> None:
    for module in (machine, entry):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "a" / "b")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "first_gpu"])
    with monkeypatch.context() as patch:
        patch.setattr(first_gpu, "main", lambda _: (tmp_path / "a" / "b").rmdir())  # made before
        entry.main()
    (tmp_path / "a").rmdir()
    machine.keep("cpu", "part", 1)
    assert json.loads((tmp_path / "a" / "b" / "cpu-part.json").read_text())["measured"] == 1


def test_parts_are_named_on_the_command_line(monkeypatch) -> None:
    """``python -m benchmarks first_gpu pool sums``; a name that is none is refused, with the names."""
    monkeypatch.setattr(sys, "argv", ["benchmarks", "first_gpu", "pool", "sums"])
    ran: list[list[str]] = []
    with monkeypatch.context() as patch:
        patch.setattr(first_gpu, "main", ran.append)
        entry.main()
    assert ran == [["pool", "sums"]]
    monkeypatch.setattr(first_gpu, "TINY", True)
    with pytest.raises(SystemExit, match="unknown part 'pools'; one of ceilings, "):
        first_gpu.main(["pools"])


@pytest.mark.slow
def test_every_part_runs_with_the_core_alone(tmp_path) -> None:
    for name in ("prefect", "mlflow", "dvc", "typer", "fastapi", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise ImportError(__name__)")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{HOME}", "BENCH_WORK": "tiny"}
    environment |= {"BENCH_RESULTS": str(tmp_path), "BENCH_SECONDS": "2000"}
    command = [sys.executable, "-m", "benchmarks", "first_gpu"]
    subprocess.run(command, cwd=HOME, env=environment, check=False, timeout=900)
    names = {path.stem.removeprefix("cpu-first-") for path in tmp_path.glob("cpu-first-*.json")}
    assert names == first_gpu.PARTS.keys() - set(first_gpu.GPU_ONLY)
    assert all(all(kept(tmp_path, name).get("checks", {}).values()) for name in names)
