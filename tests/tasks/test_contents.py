"""Contents that a machine lacks: a run sends them, and workers store them by hash."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import disk_of, one_cell, one_line_error, prepared_project
from distributed import Client

from fedflow.data.prepared import file_sum
from fedflow.simulation.federation import FederationFiles, Stored, StoredInput
from fedflow.stages.central_network import prepare_network
from fedflow.stages.experiment import Experiment
from tasks import contents
from tasks.contents import Lacking, send, store, with_contents
from tasks.dask import DaskCarrier

NETWORK = "central: {expert: {dataset: data, training: {epochs: 1, batch_size: 64, lr: 0.1}}}\n"
PARAMS = one_cell("{source: digits}", "{name: mlp, options: {hidden: [4]}}", "scheme: iid, clients: 3")
SHARD = SimpleNamespace(content="")


@dataclass
class Machine:
    """A worker in this process, and what was sent to it; ``damage`` changes parts on their way."""

    cache: Path
    patch: pytest.MonkeyPatch
    sent: list[bytes] = field(default_factory=list)
    damage: Callable[[bytes], bytes] = bytes

    def ask(self, job: object) -> object:
        return self._call(with_contents, lambda: "worker 1", lambda job, shard: "trained", job, SHARD)

    def put(self, part: bytes) -> bytes:
        self.sent.append(part)
        return self.damage(part)

    def store(self, workers: list[str], stored: Stored, files: contents.Files) -> None:
        assert workers == ["worker 1"]
        self._call(store, stored, files)

    def _call(self, function: Callable, *arguments: object) -> object:
        with self.patch.context() as patch:
            patch.setenv("FEDFLOW_CACHE", str(self.cache))
            patch.setattr(contents, "_found", set())
            return function(*arguments)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path / "worker", monkeypatch)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FederationFiles]:
    """The run's data folder, and the files of a job at paths that no machine has."""
    root = tmp_path_factory.mktemp("root")
    params = prepared_project(root, PARAMS + NETWORK, "few")
    prepare_network(params, "expert", root)
    experiment = Experiment(params, "few", "fedavg", 0, root)
    files = experiment.job.federation
    assert isinstance(files, FederationFiles)
    weights = root / "data" / "weights" / "start.bin"
    weights.parent.mkdir()
    weights.write_bytes(bytes(100))
    return root / "data", replace(
        files,
        prepared=gone(files.prepared),
        partition=gone(files.partition),
        start=gone(Stored(str(weights), file_sum(weights))),
        inputs=(StoredInput("teacher", gone(experiment.stored("central", "expert"))),),
    )


@pytest.fixture
def job(made: tuple[Path, FederationFiles], monkeypatch: pytest.MonkeyPatch) -> FederationFiles:
    """The files, in the process of the run, whose data folder has them by name."""
    monkeypatch.setenv("FEDFLOW_CACHE", str(made[0]))
    monkeypatch.setattr(contents, "_found", set())
    return made[1]


def gone(stored: Stored) -> Stored:
    return replace(stored, path=str(Path("/gone", *Path(stored.path).parts[-2:])))


def test_each_machine_gets_what_it_lacks_once(job, machine, monkeypatch):
    monkeypatch.setattr(contents, "PART", 1000)
    lacking = machine.ask(job)
    assert isinstance(lacking, Lacking)
    assert lacking.contents == (job.prepared, job.partition, job.inputs[0].stored, job.start)
    for stored in lacking.contents:
        send(stored, [lacking, replace(lacking, worker="worker 1")], machine)
    assert machine.ask(job) == "trained"
    assert len(machine.sent) > 100 and max(map(len, machine.sent)) == 1000
    for stored in lacking.contents:
        original, copy = stored.folders()[2], machine.cache / stored.hash
        files = [original] if original.is_file() else [file for file in original.iterdir() if file.is_file()]
        assert files
        for file in files:
            assert (copy if original.is_file() else copy / file.name).read_bytes() == file.read_bytes()
    monkeypatch.setenv("FEDFLOW_CACHE", str(machine.cache))
    assert replace(job, start=None, inputs=()).open().partition.hash == job.partition.hash


def test_a_division_of_a_seed_is_found_below_the_data_folder(monkeypatch):
    monkeypatch.setenv("FEDFLOW_CACHE", "/data")
    for name in ("prepared/digits", "partitions/digits-dir/3"):
        assert Path(f"/data/{name}") in Stored(f"/elsewhere/data/{name}", "0").folders()


def test_damage_on_the_way_ends_in_one_line_and_leaves_nothing(job, machine):
    lacking = machine.ask(job)
    machine.damage = lambda part: part[:-1] + bytes([part[-1] ^ 1])
    for stored in lacking.contents:
        with one_line_error(
            f"content {stored.hash} of {stored.path} arrived damaged at .*repeat the command"
        ):
            send(stored, [lacking], machine)
    assert not [path for path in machine.cache.iterdir() if path.suffix != ".lock"]
    assert machine.ask(job) == lacking


def test_a_full_disk_ends_in_one_line_and_leaves_nothing(job, machine):
    lacking = machine.ask(job)
    with disk_of(10_000), one_line_error(f"cannot store content {job.prepared.hash} .*File too large"):
        send(job.prepared, [lacking], machine)
    assert not [path for path in machine.cache.iterdir() if path.suffix != ".lock"]


def test_content_that_the_run_lacks_ends_in_one_line(job, machine, monkeypatch):
    lacking = machine.ask(job)
    monkeypatch.setenv("FEDFLOW_CACHE", str(machine.cache))
    with one_line_error(f"neither this machine nor a worker has content {job.prepared.hash}"):
        send(job.prepared, [lacking], machine)


def test_another_version_at_the_same_path_is_not_the_content(job, machine):
    """Its folder records another hash."""
    other = machine.cache / "prepared" / "data"
    other.mkdir(parents=True)
    (other / "meta.json").write_text(json.dumps({"hash": "0" * 16}))
    assert job.prepared in machine.ask(job).contents


def test_dask_carries_the_parts(job, machine, monkeypatch):
    with Client(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, set_as_default=False
    ) as client:
        carrier, workers = DaskCarrier(SimpleNamespace(client=client)), [*client.nthreads()]
        assert client.submit(carrier.here, workers=workers[:1], pure=False).result() == workers[0]
        images = (job.prepared.folders()[2] / "train.safetensors").read_bytes()
        files = {
            file.name: [carrier.put(file.read_bytes())]
            for file in sorted(job.prepared.folders()[2].iterdir())
        }
        monkeypatch.setenv("FEDFLOW_CACHE", str(machine.cache))  # of the workers, in this process
        contents._found.clear()
        carrier.store(workers, job.prepared, files)
    assert (machine.cache / job.prepared.hash / "train.safetensors").read_bytes() == images
