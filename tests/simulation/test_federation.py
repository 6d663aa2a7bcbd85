"""Federations located by content, wherever a worker has it."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from command import one_cell, one_line_error, prepared_project

from fedflow.config import load_params
from fedflow.errors import FedflowError
from fedflow.simulation import federation
from fedflow.simulation.federation import FederationFiles
from fedflow.stages.experiment import Experiment
from fedflow.stages.prepare import prepare_dataset

PARAMS = one_cell("{source: digits}", "mlp", "scheme: iid, clients: 3")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FederationFiles:
    """The files sent to a worker, which runs in an empty folder on a machine named "node7"."""
    root, worker = tmp_path / "root", tmp_path / "worker"
    worker.mkdir()
    params = prepared_project(root, PARAMS, "few")
    monkeypatch.chdir(worker)
    monkeypatch.delenv("FEDFLOW_CACHE", raising=False)
    monkeypatch.setattr(federation.socket, "gethostname", lambda: "node7")
    files = Experiment(params, "few", "fedavg", 0, root).job.federation
    assert isinstance(files, FederationFiles)
    return files


def elsewhere(files: FederationFiles) -> FederationFiles:
    """The same content on another machine: none of its paths exists here."""
    gone = {part: replace(getattr(files, part), path=f"/gone/{part}/x") for part in ("prepared", "partition")}
    return replace(files, **gone)


@pytest.mark.parametrize("place", ["cache by hash", "cache by name", "working folder"])
def test_a_worker_finds_the_content_in_its_own_folder(files, tmp_path, monkeypatch, place):
    root = tmp_path / ("worker/data" if place == "working folder" else "cache")
    if place != "working folder":
        monkeypatch.setenv("FEDFLOW_CACHE", str(root))
    for part in ("prepared", "partition"):
        stored = getattr(files, part)
        shutil.copytree(stored.path, root / (stored.hash if place == "cache by hash" else f"{part}/x"))
    opened, there = elsewhere(files).open(), files.open()
    assert opened is not there
    assert opened.train.x.equal(there.train.x)
    assert opened.partition.hash == files.partition.hash


def test_other_content_at_the_path_is_ignored(files, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFLOW_CACHE", str(tmp_path / "cache"))
    expected, own = files.open(), files.prepared
    shutil.copytree(own.path, tmp_path / "cache" / own.hash)
    params = load_params(tmp_path / "root" / "params.yaml", ["data.data.train_limit=500"])
    prepare_dataset(params, "data", tmp_path / "root")
    federation._open.cache_clear()
    assert files.open().train.x.equal(expected.train.x)


@pytest.mark.parametrize(("anonymous", "outputs"), [("false", 10), ("true", 3)])
def test_the_network_has_an_output_for_every_class_name(tmp_path, anonymous, outputs):
    """Ten in ACID, three in ALID, whose clients have three classes each."""
    scheme = f"scheme: acid, clients: 10, classes_per_client: 3, anonymous: {anonymous}"
    params = prepared_project(tmp_path, one_cell("{source: digits}", "mlp", scheme), "few")
    opened = Experiment(params, "few", "pavg", 0, tmp_path).job.federation.open()
    assert opened.model.shapes[-1] == (outputs,)
    assert int(opened.train.y.max()) == outputs - 1


def test_content_that_is_nowhere_ends_in_one_line_that_says_what_to_do(files):
    own, gone = files.prepared.hash, "/gone/prepared/x"
    places = f"there is no {gone}.*worker/data/{own}.*worker/data/prepared/x"
    with one_line_error(f"node7 lacks content {own}.*{places}.*Copy {gone}.*FEDFLOW_CACHE.*dvc pull"):
        elsewhere(files).open()


def test_damaged_content_is_named_and_never_used(files):
    images = Path(files.prepared.path) / "train.safetensors"
    data = bytearray(images.read_bytes())
    data[-1] ^= 1
    images.write_bytes(data)
    with pytest.raises(FedflowError, match=r"train\.safetensors: wrong checksum"):
        files.open()
