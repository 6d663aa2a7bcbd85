"""Tasks as plain functions, and the executor with a runner that can be broken at will."""

import socket
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
from command import make_project, one_cell, one_line_error, prepared_project

from fedflow.config import EngineSettings
from fedflow.data.prepared import file_sum
from fedflow.errors import BadInput
from fedflow.simulation.federation import Stored
from fedflow.simulation.job import Shard
from fedflow.simulation.loop import Simulation
from fedflow.simulation.settings import RunSettings
from fedflow.stages.experiment import Experiment
from tasks import contents, shards
from tasks.gpu import OneGpu

NETWORK = "{name: mlp, options: {hidden: [4]}}"
JOB = SimpleNamespace(device="cpu")
SHARDS = [Shard(1, [0, 1], [], [], []), Shard(1, [2], [], [], [])]


def sizes(job, shard) -> int:
    return len(shard.clients)


class Runner:
    """Runs a task's function at once; the first ``losses`` submissions find the pool broken."""

    losses = 0
    started = 0
    failure: Exception | None = None  # of every submission
    titles: tuple = ()
    bytes: tuple = ()  # that each submission would send to another machine

    def __enter__(self):
        type(self).started += 1
        return self

    def __exit__(self, *error): ...

    def submit(self, task, parameters):
        future: Future = Future()
        type(self).titles += (task.task_run_name.format(**parameters),)
        type(self).bytes += (len(cloudpickle.dumps((task, parameters))),)
        if self.failure is not None:
            future.set_exception(self.failure)
            return future
        if type(self).losses:
            type(self).losses -= 1
            future.set_exception(BrokenProcessPool())
        else:
            future.set_result(task.fn(**parameters))
        return future


@pytest.fixture
def runner(monkeypatch):
    made = type("OneRunner", (Runner,), {})
    monkeypatch.setattr(shards.PrefectExecutor, "_new_runner", lambda self: made())
    monkeypatch.setattr(shards.torch.cuda, "is_available", lambda: False)
    return made


def train(*kind, **about) -> list[int]:
    with shards.PrefectExecutor(*kind, **about) as executor:
        return executor.map(sizes, JOB, SHARDS, "round 1 · train")


def test_results_come_in_the_order_of_the_shards(runner):
    assert train() == [2, 1]
    assert runner.titles == tuple(f"round 1 · train · worker {w} · {3 - w} clients" for w in (1, 2))


def test_only_the_lost_shards_of_a_broken_pool_run_again(runner):
    runner.losses = 1
    assert train() == [2, 1]
    assert (runner.started, len(runner.titles)) == (2, 3)


@dataclass
class Needing:
    """A job that needs a content."""

    data: Stored
    device: str = "cpu"


def test_shards_run_again_after_a_machine_was_sent_what_it_lacks(runner, monkeypatch, tmp_path):
    file, arrived, sent = tmp_path / "data.bin", set(), []
    file.write_bytes(b"data")

    class Carrier:
        here = staticmethod(lambda: "worker")

        def __init__(self, runner): ...

        def put(self, part):
            return part

        def store(self, workers, stored, files):
            sent.append((workers, files))
            arrived.add(stored)

    monkeypatch.setattr(shards.PrefectExecutor, "_carrier", Carrier)
    monkeypatch.setattr(shards.PrefectExecutor, "_lost", (BrokenProcessPool,))
    monkeypatch.setattr(contents, "_is_here", arrived.__contains__)
    with shards.PrefectExecutor("ray", address="head") as executor:
        for _ in range(2):
            job = Needing(Stored(str(file), file_sum(file)))
            assert executor.map(sizes, job, SHARDS, "round 1 · train") == [2, 1]
    assert sent == [(["worker"], {"": [b"data"]})]
    assert (runner.started, len(runner.titles)) == (1, 6)


def test_the_lost_block_of_a_procedure_is_computed_again(runner, tmp_path):
    from fedflow.config import load_params
    from fedflow.procedures.steps import Block, advance
    from fedflow.stages.procedure import ProcedureRun

    (tmp_path / "params.yaml").write_text("""
data: {}
models: {}
partitions: {}
procedures: {coreset: {graph: {nodes: 30}, picks: 2, methods: [giga, random], draws: 2}}
grid: {datasets: [], partitions: [], methods: [], seeds: [0], procedures: [coreset]}
""")
    job = ProcedureRun(load_params(tmp_path / "params.yaml"), "coreset", 0, tmp_path).job
    blocks, runner.losses = [Block([part], [0], [None], 60) for part in ("giga", "random")], 1
    with shards.PrefectExecutor() as executor:
        found = executor.map(advance, job, blocks, "pick 1")
    assert str([one.rows for (one,) in found]) == str([advance(job, block)[0].rows for block in blocks])
    assert runner.started == 2 and runner.titles[0] == "pick 1 · worker 1 · 1 part"


def test_workers_that_always_die_end_the_run_with_one_line(runner):
    runner.losses = 100
    with one_line_error("workers died 4 times"):
        train()
    assert runner.started == 1 + 1 + shards.LOST_WORKERS


def test_a_task_carries_no_data_however_much_there_is(runner, tmp_path):
    def sent(samples: int) -> int:
        """Bytes of the largest task of a run of one round."""
        root = make_project(tmp_path / f"{samples:05}")
        x, y = np.zeros((samples, 8, 8), np.uint8), np.arange(samples) % 10
        np.savez(root / "arrays.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
        source = f"{{source: npz, path: {root / 'arrays.npz'}}}"
        params = prepared_project(root, one_cell(source, NETWORK, "scheme: iid, clients: 4"), "few")
        job, runner.bytes = Experiment(params, "few", "fedavg", 0, root).job, ()
        with shards.PrefectExecutor() as executor:
            list(Simulation(job, RunSettings(rounds=1, participation=1.0), executor).rounds())
        return max(runner.bytes)

    few, many = sent(100), sent(10_000)
    assert Path(tmp_path / "10000/data/prepared/data/train.safetensors").stat().st_size > 700_000
    assert abs(many - few) < 16  # counts have more digits
    assert many < 100_000


def test_a_gpu_is_waited_for_on_this_machine_and_left_to_a_cluster(runner, monkeypatch):
    in_turn = []
    monkeypatch.setattr(runner, "submit", lambda self, task, given: in_turn.append(given["in_turn"]))
    job = SimpleNamespace(device="cuda")
    for kind, address in (("processes", None), ("dask", None), ("dask", "scheduler-without-port")):
        with shards.PrefectExecutor(kind, address=address) as executor:
            executor._submit(sizes, job, SHARDS[0], "round 1 · train", 1)
    assert in_turn == [True, True, False]


@pytest.mark.parametrize(
    ("kind", "device", "gpu", "whole"),
    [
        ("auto", "auto", True, True),
        ("auto", "auto", False, False),
        ("threads", "auto", True, True),
        ("threads", "cuda", True, True),
        ("threads", "cpu", True, False),
        ("threads", "auto", False, False),
        ("processes", "auto", True, False),
    ],
)
def test_only_threads_on_a_gpu_leave_the_cohort_whole(runner, monkeypatch, kind, device, gpu, whole):
    monkeypatch.setattr(shards.torch.cuda, "is_available", lambda: gpu)
    with shards.executor_for(EngineSettings(executor=kind, workers=3, device=device)) as executor:
        assert isinstance(executor, OneGpu) is whole and executor.workers == (1 if whole else 3)


@pytest.mark.parametrize("gpus", [1, 4])
def test_gpus_that_are_left_out_are_told(runner, monkeypatch, capsys, gpus):
    monkeypatch.setattr(shards.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(shards.torch.cuda, "device_count", lambda: gpus)
    with shards.executor_for(EngineSettings(executor="auto")) as executor:
        assert isinstance(executor, OneGpu)
    said = "engine.executor auto: trains on 1 of 4 GPUs; dask trains on all of them\n"
    assert capsys.readouterr().out == (said if gpus > 1 else "")


@pytest.mark.parametrize(("workers", "seconds", "kinds"), [(2, 0.0, 2), (2, 99.0, 1), (1, 0.0, 1)])
def test_a_long_run_continues_on_processes(runner, monkeypatch, capsys, workers, seconds, kinds):
    monkeypatch.setattr(shards, "LONG", seconds)
    with shards.PrefectExecutor("auto", workers) as executor:
        found = []
        for n in range(3):
            assert executor.map(sizes, JOB, SHARDS, f"round {n}") == [2, 1]
            found.append(executor.kind)
    assert found == ["threads", *(["processes"] * 2 if kinds == 2 else ["threads"] * 2)]
    assert runner.started == kinds and capsys.readouterr().out.count("round 1: continuing") == kinds - 1


def test_a_long_run_whose_processes_die_returns_to_threads(runner, monkeypatch, capsys):
    monkeypatch.setattr(shards, "LONG", 0.0)
    with shards.PrefectExecutor("auto") as executor:
        executor.map(sizes, JOB, SHARDS, "round 1")
        runner.losses = 1
        for n in (2, 3):
            assert executor.map(sizes, JOB, SHARDS, f"round {n}") == [2, 1]
        assert executor.kind == "threads"
    assert "round 2: a process died; continuing on threads" in capsys.readouterr().out


def test_ray_gives_every_shard_a_gpu_and_keeps_its_process(runner, monkeypatch):
    from prefect_ray.context import RemoteOptionsContext

    asked, options = [], RemoteOptionsContext.get
    monkeypatch.setattr(runner, "submit", lambda *_: asked.append(options().current_remote_options))
    for device in ("cuda", "cpu"):
        with shards.PrefectExecutor("ray", address="auto") as executor:
            job = SimpleNamespace(device=device)
            executor._submit(sizes, job, SHARDS[0], "round 1 · train", 1)
    assert asked == [{"num_gpus": 1, "max_calls": 0}, {}]


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:{}", "127.0.0.1:{}", "ray://127.0.0.1:{}", "tcp://h:x"])
def test_an_address_where_nobody_listens_ends_the_run_at_once(address):
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        address = address.format(bound.getsockname()[1])
        with one_line_error(r"engine\.address: .* a ray cluster that answers", BadInput):
            shards.PrefectExecutor("ray", address=address).__enter__()


def test_a_cluster_that_stops_answering_is_named_in_one_line(runner, monkeypatch):
    def submit(self, task, parameters):
        raise OSError("Timed out trying to connect\nafter 30 s")

    monkeypatch.setattr(runner, "submit", submit)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with one_line_error(rf"engine.address: '{address}' .*Timed out", BadInput):
            train("dask", address=address)


def test_a_shard_that_cannot_be_sent_is_not_called_a_wrong_address(runner, monkeypatch):
    def submit(self, task, parameters):
        raise ValueError("cannot be serialized")

    monkeypatch.setattr(runner, "submit", submit)
    with pytest.raises(ValueError, match=r"^cannot be serialized$"):
        train("dask", address="scheduler-without-port")


def test_other_failures_of_a_worker_keep_their_own_words(runner):
    runner.failure = FileNotFoundError(2, "No such file or directory", "/data/x")
    with pytest.raises(FileNotFoundError, match="/data/x"):
        train("ray", address="cluster-without-port")


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError("Failed to reach API at http://127.0.0.1:4200/api/"),
        FileNotFoundError(2, "No such file or directory"),  # the driver's certificates
    ],
    ids=["address", "certificates"],
)
def test_workers_that_cannot_reach_the_prefect_server_fail_with_one_line(runner, failure):
    runner.failure = failure
    with one_line_error(r"(reach API|No such file).*PREFECT_API_URL"):
        train("ray", address="cluster-without-port")
