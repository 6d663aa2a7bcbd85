"""The first checks on a GPU: ``python -m benchmarks first_gpu [PART ...]``, at most ten minutes a call.

Checks what no CPU can show, then compares times with predictions. A time is predicted as the operations,
bytes and launches that `benchmarks.counts` finds, one after the other, at the rates that the part
``ceilings`` measures on the same card. Each part is a process with a time limit: one that crashes or runs out
of memory loses nothing of the others. ``results/gpu-first-<part>.json`` has measurements, predictions,
checks, and under "off" what differs by more than 30 %: find out why before anything is tuned.

A part starts only if its time limit fits into what is left of BENCH_SECONDS (560, at least the 300 of the
longest part). Later calls skip parts with a result of this machine and code, unless they are named. The exit
status is 2 if parts are left for the next call, and otherwise 1 if something is to explain.

Needs the core of fedflow only, not Prefect, MLflow or DVC. With BENCH_WORK=tiny every part that can
runs on a CPU. BENCH_RESULTS is another folder for the results.
"""

import functools
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import fedflow
from benchmarks import cohorts, headline, machine
from benchmarks.counts import WORKLOADS, Workload, count, prepared
from benchmarks.workload import CLASSES, SHAPE, TRAINING, random_images, significant
from fedflow.data import Examples
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS, build_method
from fedflow.methods.generative._generative import Classifier, ImageMethod
from fedflow.methods.protocols import Leveled, Noisy
from fedflow.methods.subnetworks._pruned import Pruned
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.project.digest import SETTINGS, digest
from fedflow.simulation.exact import ExactSum
from fedflow.simulation.federation import Federation
from fedflow.simulation.graphs import Call, Captured, Cohorts, Pool
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation
from fedflow.simulation.settings import RunSettings
from fedflow.simulation.updates.step import STEPS
from fedflow.simulation.worker import WARNED_METHODS

Found = dict[str, Any]
SECONDS = float(os.environ.get("BENCH_SECONDS") or 560)  # of a call
TINY = os.environ.get("BENCH_WORK") == "tiny"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OFF = 0.3  # a difference from the prediction that must be explained
NODE = 1.2e-6  # seconds per node of a graph, without its work [predicted]; 0.94e-6 on an H200
SIZES = (1, 7, 12, 20, 33, 13, 5, 40)  # images of the clients with which methods are checked: ragged
NETWORKS = ("lenet5", "lenet5_bn", "cnn_pfl", "simple_cnn", "resnet9", "resnet9_bn", "mlp")  # trained twice
APART = 1e-6  # of the largest entry, between a loop and a vmapped cohort of the same run, in float64
MOSTLY = 0.999  # share of the entries that are compared after update steps, whose thresholds amplify rounding
KERNELS = 25  # kinds that are stored, those that take longest
SIDE_BY_SIDE, METHOD_SECONDS = 12, 90  # methods that are checked at once, and the limit of each
STEP_OPTIONS: dict[str, dict[str, Any]] = {  # of update steps; others are checked with their defaults
    "bulyan": {"attackers": 0.1},
    "centered_clipping": {"radius": 0.01},
    "clip": {"norm": 0.01},
    "norm_bound": {"factor": 0.9},
    "privacy": {"norm": 0.1, "noise": 1.0, "delta": 1e-3},
    "qsgd": {"levels": 4, "feedback": True},
    "random_k": {"share": 0.1},
    "sign": {"feedback": True, "direction": "both"},
    "top_k": {"share": 0.1, "feedback": True, "direction": "both"},
}


def ceilings() -> Found:
    """Rates of a matrix product and a copy, and the time of a node of a graph."""
    rates = cohorts.matrix_rates(DEVICE, 64 if TINY else None)
    source = torch.ones((1 << 16) if TINY else (1 << 28), device=DEVICE)
    target, few = torch.empty_like(source), torch.zeros(32, device=DEVICE)
    nodes = 10 if TINY else 1000

    def launches() -> None:
        for _ in range(nodes):
            few.add_(1)

    if DEVICE == "cuda":
        launches()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launches()
    copy = min(cohorts.timed(lambda: target.copy_(source), DEVICE))
    node = min(cohorts.timed(graph.replay if DEVICE == "cuda" else launches, DEVICE)) / nodes
    measured = {f"{name} FLOP/s": rate for name, rate in rates.items()}
    measured |= {"bytes/s": 2 * source.nbytes / copy, "s of a node": node}
    return {"measured": measured, "predicted": {"s of a node": NODE} if DEVICE == "cuda" else {}}


def failed_capture() -> Found:
    """A capture that fails leaves the stream, the allocator and other graphs as they were."""

    def synchronizes(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"out": inputs["x"] * float(torch.ones(3, device=DEVICE).sum().item())}

    graphs = Cohorts()
    before = _calls(graphs, _tripled, "before")[0]
    told = _calls(graphs, synchronizes, "fails")[1]
    stream = torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.empty_cache()
    again = _calls(graphs, _tripled, "before")[0]
    after, silent = _calls(graphs, _tripled, "after")
    captured = sum(isinstance(kind.run, Captured) for kind in graphs.kinds.values())
    return {
        "checks": {
            "the failure is told": len(told) == 1,
            "the default stream is current": stream,
            "an earlier graph is right": before and again,
            "a later one is captured, and right": after and not silent and captured == 2,
        }
    }


def pool() -> Found:
    """Graphs can be captured again when all earlier ones are gone."""
    checks = {}
    for turn in ("first", "second"):
        graphs = Cohorts()
        right, told = _calls(graphs, _tripled, "check")
        captured = all(isinstance(kind.run, Captured) for kind in graphs.kinds.values())
        checks[f"{turn} graphs: captured, equal, no warning"] = captured and right and not told
        del graphs
        gc.collect()
    return {"checks": checks}


def precision() -> Found:
    """tf32 of local steps does not outlive them."""
    _trained("fedavg", "vmap", precision="tf32")
    after = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    return {"checks": {"products are in float32 again": not after}}


def sums() -> Found:
    """Exact sums on the GPU are one kernel, and have the bits of those on a CPU."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(7, 3001, generator=rng) * torch.logspace(-6, 3, 3001)
    checks = {}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for kind, weights in {
            "whole": [3.0, 50, 1, 9, 8, 2, 1],
            "other": [0.37, 50, 1, 9, 0.1, 2, 1e-3],
        }.items():
            here, there = ExactSum(), ExactSum()
            here.add_rows(rows, weights)
            there.add_rows(rows.to(DEVICE)[:, ::2], weights)
            checks[f"{kind} weights"] = torch.equal(
                here.mean(torch.float32)[::2], there.mean(torch.float32).cpu()
            )
    return {
        "checks": checks | {"no warning": not heard},
        "reasons": {"no warning": [str(w.message) for w in heard]},
    }


def methods() -> Found:
    """Every method: a vmapped cohort, captured, gives the loop's numbers up to rounding.

    In float64, as some methods amplify rounding: adaptive steps, masks, and images made by networks.
    """
    names = ["fedavg", "fesem"] if TINY else sorted(METHODS)
    if DEVICE == "cuda":  # in processes, to use all cores
        with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
            found = dict(zip(names, threads.map(_compared_alone, names)))
    else:
        found = {name: compared(name) for name in names}
    reasons = {name: own["reasons"] for name, own in found.items() if own["reasons"]}
    return {
        "checks": {name: name not in reasons and own["apart"] < APART for name, own in found.items()},
        "apart": {name: own["apart"] for name, own in found.items() if "apart" in own},
        "graphs": {name: own["graphs"] for name, own in found.items() if "graphs" in own},
        "reasons": reasons,
    }


def compared(name: str) -> Found:
    """Compare a method's loop with its vmapped cohort: distance, number of graphs, warnings."""
    WARNED_METHODS.clear()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        try:
            (loop, _), (vmapped, graphs) = (_trained(name, how) for how in ("loop", "vmap"))
        except Exception as error:
            return {"reasons": [_reason(error)]}
    apart = _most_apart(loop, vmapped)
    told: list[str] = []
    if not Noisy.of(METHODS[name]()).alone:  # whose clients train one by one
        told = cohorts.slower_than_asked(heard)
        if DEVICE == "cuda" and not graphs:
            told.append("no graph was captured")
    return {"apart": apart, "graphs": graphs, "reasons": told}


def _compared_alone(name: str) -> Found:
    """The same in a process, which starts with everything imported and without CUDA."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["benchmarks.cohorts", "benchmarks.counts"])
    receiver, sender = forks.Pipe(duplex=False)
    process = forks.Process(target=_send, args=(sender, name))
    process.start()
    sender.close()
    try:
        if receiver.poll(METHOD_SECONDS):
            return receiver.recv()
        return {"reasons": [f"did not finish in {METHOD_SECONDS} s"]}
    except EOFError:
        process.join()
        return {"reasons": [f"exit status {process.exitcode}"]}
    finally:
        process.kill()


def _send(sender: Connection, name: str) -> None:
    torch.set_num_threads(1)
    sender.send(compared(name))


def updates() -> Found:
    """Every step of `run.updates`: a loop and a vmapped cohort give the numbers of a CPU, in float64."""
    apart, reasons = dict[str, float](), dict[str, list[str]]()
    for step in sorted(STEPS):
        run = {"rounds": 2, "updates": [{"step": step, **STEP_OPTIONS.get(step, {})}]}
        trained = partial(_trained, "fedavg", network="logistic", given={"weighting": "uniform"}, run=run)
        for how in ("loop", "vmap"):
            try:
                expected = trained(cohort="loop", device="cpu")[0]
                apart[f"{step} {how}"] = _most_apart(expected, trained(cohort=how)[0], MOSTLY)
            except Exception as error:
                reasons[f"{step} {how}"] = [_reason(error)]
    checks = {case: distance < APART for case, distance in apart.items()}
    return {"checks": checks | dict.fromkeys(reasons, False), "apart": apart, "reasons": reasons}


def repeats() -> Found:
    """A run in float32 has the same bits again: networks in loops and cohorts, FLT's encoders.

    Cohorts of another width are measured only: products of other shapes are added in another order.
    """
    networks = NETWORKS[: 1 if TINY else None]
    cases = [("fedavg", network, how) for network in networks for how in ("loop", "vmap")]
    again, narrow = dict[str, float](), dict[str, float]()
    for name, network, how in [*cases, ("flt", "lenet5", "vmap")]:
        case = f"{name} {network} {how}"
        first, second = (_trained(name, how, network, torch.float32)[0] for _ in range(2))
        again[case] = _most_apart(first, second)
        if how == "vmap":
            narrow[case] = _most_apart(first, _trained(name, how, network, torch.float32, width=3)[0])
    checks = {name: distance == 0 for name, distance in again.items()}
    return {"checks": checks, "apart": again, "apart with 3 clients at once": narrow}


def kernels() -> Found:
    """The kernels of one call of the headline: launched one by one, and captured."""
    workload = WORKLOADS["headline"]
    _, work, _, prepare = prepared(workload, DEVICE)
    call = prepare()
    with work.model.for_cohorts():
        call()
        found = {"kernels": _profiled(call)}
        if DEVICE == "cuda":
            graph = Captured(call, Pool())
            found["kernels of the graph"] = _profiled(lambda: graph(call))
    measured = {name: sum(times for times, _ in kinds.values()) for name, kinds in found.items()}
    predicted = dict.fromkeys(measured, count(workload).launches.total()) if DEVICE == "cuda" else {}
    longest = {name: sorted(kinds.items(), key=lambda each: -each[1][1]) for name, kinds in found.items()}
    return {
        "measured": measured,
        "predicted": predicted,
        "times and microseconds": {name: dict(kinds[:KERNELS]) for name, kinds in longest.items()},
    }


def rounds(precision: str, seconds: float) -> Found:
    """Rounds of the headline setting, and all 1,500 where they take no longer than ``seconds``."""
    how = {"rounds": 4} if TINY else {"seconds": seconds}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        found = headline.measure(DEVICE, precision=precision, **how)
    predicted = _predicted(WORKLOADS["headline"], precision)
    return {
        "measured": {"s a round": found["seconds_per_round"]["median"]},
        "predicted": {"s a round": predicted} if predicted else {},
        "checks": {"neither one by one nor without a graph": not cohorts.slower_than_asked(heard)},
        "all": found,
    }


def widths(model: str, seconds: float) -> Found:
    """Clients of a cohort at once against one by one."""
    sizes = (1, 2) if TINY else (1, 16, 64, 256)
    found = cohorts.measure(DEVICE, model, TRAINING.batch_size, sizes, seconds)
    measured, predicted = dict[str, float](), dict[str, float]()
    for cell in found["cells"]:
        if "skipped" in cell:
            continue
        clients, form, kind = cell["clients"], cell["convolution"], cell["precision"]
        name = f"client steps/s: {cell['way']}, {clients} clients, {form}, {kind}"
        measured[name] = cell["client_steps_per_second"]["median"]
        if cell["way"] == "vmap" and form == "matmul" and cell["width"] == clients:
            steps = cohorts.STEPS[model]
            if call := _predicted(Workload(model, clients, steps * TRAINING.batch_size), kind):
                predicted[name] = clients * steps / call
    checks = {"no cell fell back": not any("fell_back" in cell for cell in found["cells"])}
    return {"measured": measured, "predicted": predicted, "checks": checks, "all": found}


# Functions and their time limits in seconds, the most valuable parts first.
PARTS: dict[str, tuple[Callable[[], Found], int]] = {
    "ceilings": (ceilings, 90),
    "failed-capture": (failed_capture, 60),
    "pool": (pool, 60),
    "precision": (precision, 60),
    "sums": (sums, 60),
    "methods": (methods, 300),
    "updates": (updates, 120),
    "repeats": (repeats, 120),
    "headline-float32": (partial(rounds, "float32", 60), 120),
    "kernels": (kernels, 120),
    "cohorts-lenet5": (partial(widths, "lenet5", 120), 180),
    **{f"headline-{kind}": (partial(rounds, kind, 60), 120) for kind in ("tf32", "bf16")},
    "cohorts-resnet9": (partial(widths, "resnet9", 150), 240),
    "headline-complete": (partial(rounds, "float32", 240), 300),
}
GPU_ONLY = ("failed-capture", "pool")


def main(names: list[str] | None = None) -> None:
    """Run these parts, all by default, each in a process, and say at the end what is off."""
    if DEVICE != "cuda" and not TINY:
        print("no CUDA device here: no measurements (BENCH_WORK=tiny tries the parts on a CPU)")
        return
    if unknown := set(names or []) - PARTS.keys():
        sys.exit(f"unknown part {min(unknown)!r}; one of {', '.join(PARTS)}")
    print("  ".join(f"{name}: {value}" for name, value in machine.describe().items()), flush=True)
    possible = [name for name in PARTS if DEVICE == "cuda" or name not in GPU_ONLY]
    kept = [] if names else [name for name in possible if _stored(name).get("code") == code()]
    if kept:
        print(f"measured before, with the same code: {', '.join(kept)}", flush=True)
    started, lines, skipped = time.perf_counter(), list[str](), list[str]()
    for name in names or possible:
        ended = ""
        if name not in kept:
            if PARTS[name][1] > SECONDS - (time.perf_counter() - started):
                skipped.append(name)
                continue
            print(f"== first_gpu {name}", flush=True)
            ended = run(name)
            print(f"{time.perf_counter() - started:.0f} s so far", flush=True)
        # The result of an earlier call says nothing about a part that failed in this one.
        lines += [f"{name}: {line}" for line in ([ended] if ended else problems(_stored(name)))]
    if lines:
        print("\n".join(["== to explain", *lines]), flush=True)
    if skipped:
        listed = ", ".join(skipped)
        print(f"== skipped, call again: {listed}, whose limits did not fit into {SECONDS:.0f} s", flush=True)
    if lines or skipped:
        sys.exit(2 if skipped else 1)
    print("== all checks and predictions hold", flush=True)


def run(name: str) -> str:
    """Run a part in a process; returns how it failed, or nothing."""
    command = [sys.executable, "-m", "benchmarks.first_gpu", name]
    try:
        status = subprocess.run(command, check=False, timeout=PARTS[name][1]).returncode
    except subprocess.TimeoutExpired:
        return f"did not finish in {PARTS[name][1]} s"
    return f"ended with exit status {status}" if status else ""


def part(name: str) -> None:
    """Run a part in this process and store what it found."""
    torch.set_num_threads(1)
    if TINY:
        shrink()
    found = PARTS[name][0]()
    found["code"] = code()
    found["off"] = off(found.get("measured", {}), found.get("predicted", {}))
    machine.keep(_kind(), f"first-{name}", found)
    for key, value in found.get("measured", {}).items():
        expected = found.get("predicted", {}).get(key)
        beside = "" if expected is None else f"   predicted {expected:.4g}"
        print(f"{key}: {value:.4g}{beside}{'   OFF' if key in found['off'] else ''}", flush=True)
    for key, fine in found.get("checks", {}).items():
        print(f"{'ok  ' if fine else 'FAIL'} {key} {found.get('reasons', {}).get(key, '')}", flush=True)


def off(measured: dict[str, float], predicted: dict[str, float]) -> dict[str, float]:
    """Measured over predicted, where they differ by more than `OFF`."""
    ratios = {name: measured[name] / value for name, value in predicted.items()}
    return {name: significant(ratio) for name, ratio in ratios.items() if abs(ratio - 1) > OFF}


def problems(found: Found) -> list[str]:
    """A line for every check that failed and every measurement that is off, or if no rates are stored."""
    lines = [f"FAIL {name}" for name, fine in found.get("checks", {}).items() if not fine]
    if "predicted" in found and not found["predicted"] and not _stored("ceilings"):
        lines.append("no predictions: run ceilings first")
    return lines + [f"{name} is {ratio} times the prediction" for name, ratio in found.get("off", {}).items()]


@functools.cache
def code() -> str:
    """A digest of the sources of fedflow and of the benchmarks, and of the size of the parts."""
    folders = [Path(__file__).parent, Path(fedflow.__file__).parent]
    sources = [file.read_text() for folder in folders for file in sorted(folder.rglob("*.py"))]
    return digest([TINY, *sources], SETTINGS)


def shrink() -> None:
    """Sizes at which a CPU runs every part in a second or two; nothing is compiled."""
    headline.CLIENTS, headline.COHORT, headline.NETWORK = 8, 2, "lenet5"
    headline._images = lambda: ((random_images(80), random_images(20)), False)
    headline.compiling = lambda *_: {}
    WORKLOADS["headline"] = Workload("lenet5", 2, 10, headline.TRAINING)
    cohorts.STEPS, cohorts.WARM_UPS, cohorts.CALLS = {"lenet5": 1, "resnet9": 1}, 0, 1
    cohorts.VARIED, cohorts.LOOP_CLIENTS, cohorts.IMAGES = 2, 1, 40
    cohorts.FORMS = (("grouped", "float32"),)


def _predicted(workload: Workload, precision: str) -> float | None:
    """Seconds of a call of this cohort; None where the part ``ceilings`` found nothing."""
    rates = _stored("ceilings").get("measured")
    if not rates:
        return None
    found, training = count(workload), workload.training
    steps = workload.clients * training.workload(workload.samples).steps
    operations = steps * cohorts.flops(workload.network, training.batch_size)
    kind = {"float32": "fp32"}.get(precision, precision)
    seconds = operations / rates.get(f"{kind} FLOP/s", rates["fp32 FLOP/s"])
    return seconds + found.bytes / rates["bytes/s"] + found.launches.total() * rates["s of a node"]


def _trained(
    name: str,
    cohort: str,
    network: str | None = None,
    dtype: torch.dtype = torch.float64,
    width: int | None = None,
    device: str | None = None,
    given: Found | None = None,
    run: Found | None = None,
    **training: Any,
) -> tuple[dict[str, Tensor], int]:
    """The server's tensors after five rounds with all clients, and how many graphs were captured.

    The fourth and the fifth are replayed. ``network`` defaults to one that the method can train. ``given``
    are options of the method, and ``run`` other settings of the run.
    """
    device = device or DEVICE
    given = given or ({"pretraining": 2} if name == "flt" else {})
    method, options = build_method(name, given), dict[str, Any]()
    network = network or getattr(method, "example", "lenet5")
    ends = np.cumsum(SIZES)
    lists = [np.arange(end - n, end) for n, end in zip(SIZES, ends)]
    partition = Partition.from_lists(
        lists, [np.arange(50)], [np.zeros(1, np.int64)] * len(SIZES), [rows[:2] for rows in lists]
    )
    train, test, public = (random_images(n).to(device) for n in (int(ends[-1]), 50, 30))
    if isinstance(method, Leveled):
        network, options = "cnn_exit", {"filters": [8, 8, 8]}
    elif isinstance(method, ImageMethod):  # its images have pixels in [0, 1], and are few here
        network, method = "cnn_energy", replace(method, classifier=Classifier(epochs=1))
        train, test = (Examples(own.x, own.y) for own in (train, test))
    elif name == "subfedavg_hy":  # removes channels after a norm
        network, options = "cnn", {"filters": [8, 8], "groups": 8, "hidden": [16]}
    factory = partial(build, network, SHAPE, CLASSES, **options)
    model = FlatModel(factory, device=device, dtype=dtype)
    work = Federation(model, train, test, partition, public)
    epochs = 2 if isinstance(method, Pruned) else 1
    local = LocalTraining.parse({"epochs": epochs, "batch_size": 10, "lr": 0.02, **training})
    job = Job(work, method, local, seed=0, cohort=cohort, width=width)
    last = 2 if TINY else 5
    wanted = {"rounds": last, "participation": 1.0, "evaluate_every": last, "fine_tune": False}
    settings = RunSettings.parse(wanted | (run or {}))
    simulation = Simulation(job, settings)
    for _ in simulation.rounds():
        pass
    captured = [isinstance(kind.run, Captured) for kind in work.cohorts.kinds.values()]
    return simulation.state.server.tensors(), sum(captured)


def _most_apart(one: dict[str, Tensor], other: dict[str, Tensor], share: float = 1.0) -> float:
    """The largest distance of these tensors, without the entries above the ``share`` that differ most."""
    each = [_apart(own, other[key], share) for key, own in one.items() if own.is_floating_point()]
    return float(np.max(each, initial=0.0))  # nan where one is


def _apart(own: Tensor, other: Tensor, share: float) -> float:
    if not own.numel():
        return 0.0
    distances = (own.double() - other.double().to(own.device)).abs().flatten().sort().values  # nan is last
    largest = own.double().abs().max().clamp(min=1e-9)
    return float(distances[int(share * (len(distances) - 1))] / largest)


def _reason(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__}: {error}".splitlines()[0] + f" ({line})"


def _tripled(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"out": inputs["x"] * 3}


def _calls(
    graphs: Cohorts, one: Callable[[dict[str, Tensor]], dict[str, Tensor]], about: str
) -> tuple[bool, list[str]]:
    """Five calls: whether the last result equals a plain call, and the warnings."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for i in range(5):
            call = Call((about,), one, {"x": torch.full((4, 8), float(i), device=DEVICE)}, frozenset("x"))
            out = graphs.run(call)["out"].clone()
    return bool(torch.equal(out, call()["out"])), [str(each.message) for each in heard]


def _profiled(run: Callable[[], Any]) -> dict[str, tuple[int, float]]:
    """How many times every kernel ran, and its microseconds in all; operations on a CPU."""
    gpu = DEVICE == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as recorded:
        run()
        cohorts._wait(DEVICE)
    return {
        each.key: (each.count, each.self_device_time_total if gpu else each.self_cpu_time_total)
        for each in recorded.key_averages()
        if not gpu or each.self_device_time_total
    }


def _kind() -> str:
    return "gpu" if DEVICE == "cuda" else "cpu"


def _place(name: str) -> Any:
    return machine.RESULTS / f"{_kind()}-first-{name}.json"


def _stored(name: str) -> Found:
    """What a part found on this machine."""
    kept = json.loads(_place(name).read_text()) if _place(name).exists() else {}
    return kept["measured"] if kept.get("machine") == machine.describe() else {}


if __name__ == "__main__":
    part(sys.argv[1])
