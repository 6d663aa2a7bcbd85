"""The ``fedflow`` command within this process, on a small project, and what its MLflow store holds."""

import resource
import socket
import sqlite3
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PARAMS = """
data:
  digits: {source: digits}
  arrays: {source: npz, path: arrays.npz}
  pictures: {source: folder, path: pictures.tar}
  cifar10: {source: cifar10}
models: {digits: {name: mlp, options: {hidden: [8]}}, arrays: mlp, pictures: mlp}
partitions:
  skewed: {dataset: digits, scheme: label_skew, fraction: 0.5, clients: 6}
  mixed: {dataset: digits, scheme: dirichlet, alpha: 0.5, clients: 6}
  grouped: {dataset: digits, scheme: label_groups, groups: 2, clients: 6}
training: {epochs: 1, batch_size: 64, lr: 0.1}
run: {rounds: 2, participation: 0.5, evaluate_every: 1, checkpoint_every: 1}
methods: {fedavg: {}, ifca: {clusters: 2}}
grid: {datasets: [digits], partitions: [skewed], methods: [fedavg], seeds: [0]}
engine: {executor: inline, device: cpu}
"""


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


def fedflow(capsys: pytest.CaptureFixture[str], *arguments: object) -> Done:
    """Run ``fedflow ARGUMENTS`` as a terminal of 100 columns would."""
    from fedflow import cli
    from fedflow.cli.printing import console

    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedflow", *map(str, arguments)])
        patch.setenv("COLUMNS", "100")
        patch.setattr(console, "width", 100)
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return Done(code, *capsys.readouterr())


def make_project(root: Path, text: str = PARAMS) -> Path:
    """A folder with nothing but params.yaml."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_text(text)
    return root


def one_cell(data: str, network: str, partition: str) -> str:
    """The params.yaml of one partition, ``few``, of one dataset, ``data``."""
    return f"""
data: {{data: {data}}}
models: {{data: {network}}}
partitions: {{few: {{dataset: data, {partition}}}}}
grid: {{datasets: [data], partitions: [few], methods: [fedavg], seeds: [0]}}
engine: {{device: cpu}}
"""


def prepared_project(root: Path, text: str, partition: str, changes: Sequence[str] = ()) -> Any:
    """The parameters of a project whose dataset and partition are prepared."""
    from fedflow.config import load_params
    from fedflow.stages.partition import prepare_partition
    from fedflow.stages.prepare import prepare_dataset

    params = load_params(make_project(root, text) / "params.yaml", changes)
    prepare_dataset(params, params.partition(partition).dataset, root)
    prepare_partition(params, partition, root)
    return params


def install(folder: Path, package: Path) -> None:
    """What ``pip install`` does, without building: the module, and its entry points."""
    about = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    (module,) = package.glob("fedflow_*.py")
    (folder / module.name).write_bytes(module.read_bytes())
    info = folder / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {about['name']}\nVersion: {about['version']}\n")
    points = about["entry-points"]["fedflow.plugins"]
    lines = "\n".join(f"{name} = {value}" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[fedflow.plugins]\n{lines}\n")


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Within this context no file can grow beyond ``size`` bytes (Python ignores the signal: EFBIG)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def one_line_error(match: str, kind: type[Exception] | None = None) -> Iterator[None]:
    """An error of this kind, by default any of fedflow's, ends the context with one line that matches."""
    from fedflow.errors import FedflowError

    with pytest.raises(kind or FedflowError, match=match) as error:
        yield
    assert "\n" not in str(error.value)


def files_below(folder: Path) -> dict[str, bytes]:
    """The files in a folder and its subfolders, by their paths in it."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def recorded_runs(root: Path) -> list[Any]:
    """The recorded runs of all experiments of a project."""
    from fedflow.tracking.store import open_store

    client = open_store(root).client()
    return client.search_runs([e.experiment_id for e in client.search_experiments()])


def recorded(store: Path) -> dict[str, list]:
    """Experiments, runs with their state, and how many parameters, metrics and tags ``mlflow.db`` holds."""
    queries = {name: f"SELECT count(*) FROM {name}" for name in ("params", "metrics", "tags")}
    queries["experiments"] = "SELECT name FROM experiments ORDER BY name"
    queries["runs"] = "SELECT run_uuid, name, status FROM runs ORDER BY start_time"
    if not store.exists():
        return {}
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as database:
        return {name: database.execute(query).fetchall() for name, query in queries.items()}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
