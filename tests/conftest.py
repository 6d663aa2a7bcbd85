import atexit
import gc
import os
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from hypothesis import settings
from preloaded import serve
from profiles import representatives
from support import way

from fedflow.data import Dataset, DatasetParams, prepare
from fedflow.tracking import store
from fedflow.tracking.addresses import sqlite_url

settings.register_profile("full", deadline=None)  # a busy machine is no fault
settings.register_profile("default", deadline=None, max_examples=30)
gc.disable()  # while tests are collected

LONGEST = (
    "test_pipeline.py",
)  # files that take minutes begin first: else one process ends long after the others


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """One thread per worker, as a run has it: this is what makes runs bit-identical."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a session share."""
    return _common(tmp_path_factory)


def _common(factory: pytest.TempPathFactory) -> Path:
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis tries fewer examples where further forms of tests are left out."""
    settings.load_profile("default" if "not full" in config.option.markexpr else "full")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Stop the Prefect server of tests/flows at exit, after Prefect has sent what it holds back."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        atexit.register(_stop_server, session.config._tmp_path_factory)


def _stop_server(factory: pytest.TempPathFactory) -> None:
    home = _common(factory) / "prefect"
    if home.exists():
        from flows.server import stop

        os.environ["PREFECT_HOME"] = str(home)
        stop()


@pytest.fixture(scope="session")
def preloaded(session_folder: Path) -> Path:
    """A folder with ``fedflow``, ``dvc`` and ``python``, whose processes begin with all imports done.

    The first process of the session that needs it makes it, for all of them.
    """
    folder = session_folder / "bin"
    with FileLock(session_folder / "bin.lock"):
        if not (folder / "socket").exists():
            folder.mkdir(exist_ok=True)
            serve(folder, os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid())
    return folder


@pytest.fixture(scope="session", autouse=True)
def disks() -> Iterator[None]:
    """Nothing in a test must survive a power cut: files and databases do not wait for the disk."""
    from sqlalchemy import Engine, event

    def asynchronous(connection: Any, _: Any) -> None:
        if "sqlite3" in type(connection).__module__:
            connection.execute("PRAGMA synchronous = OFF")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        event.listen(Engine, "connect", asynchronous)
        yield
        event.remove(Engine, "connect", asynchronous)


@pytest.fixture(scope="session", autouse=True)
def stores(session_folder: Path) -> Iterator[Callable]:
    """MLflow's tables are made once and then copied: to make them takes a second. Yields what makes them."""
    make, folder = store._create, session_folder / "record"
    made = folder / "mlflow.db"
    first = store.Store(sqlite_url(made), folder)

    def copy(file: Path, here: store.Store) -> None:
        with first.lock("schema"):
            if not made.exists():
                make(made, first)
        draft = shutil.copy(made, file.with_suffix(".copied"))
        moved = (str(first.artifact_folder), str(here.artifact_folder))
        with closing(sqlite3.connect(draft)) as database, database:
            database.execute(
                "UPDATE experiments SET artifact_location = replace(artifact_location, ?, ?)", moved
            )
        Path(draft).rename(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_create", copy)
        yield make


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Real images, 8x8 gray: 1,438 for training and 359 for testing."""
    folder: Path = tmp_path_factory.mktemp("digits")
    return prepare(DatasetParams(source="digits"), folder)


@pytest.fixture(scope="session")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Real digits, padded to the 28x28 that convolutions need."""
    return prepare(DatasetParams(source="digits", pad=10), tmp_path_factory.mktemp("padded"))


@pytest.fixture(params=["loop", "vmap"])
def cohort(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way to train clients; "vmap" must not fall back to the loop unnoticed."""
    return way(request.param, monkeypatch)


@pytest.hookimpl(tryfirst=True)  # before the selection by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests marked ``by_profile`` to `make test-full`, except for one method of every profile.

    The marker may name methods that stay, in ``also``, and a function for the ``kind`` of a method instead.
    """
    tests = defaultdict(list)
    for item in items:
        if marker := item.get_closest_marker("by_profile"):
            tests[item.nodeid.split("[")[0]].append((item, item.callspec.params["name"], marker.kwargs))  # type: ignore[attr-defined]
    for cases in tests.values():
        asked = dict(cases[0][2])
        stay = {*asked.pop("also", ())} | representatives((name for _, name, _ in cases), **asked)
        for item, name, _ in cases:
            if name not in stay:
                item.add_marker(pytest.mark.full)
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_collection_finish() -> None:
    """Collect garbage from here on: the many objects that tests are stay to the end of the process.

    They are freed then, as Triton's bindings print what was not. pytest's own end collects five times.
    """
    gc.enable()
    gc.freeze()
    atexit.register(gc.unfreeze)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Functions by name: an address in memory would differ between the processes that run the tests."""
    return getattr(val, "__name__", None) if callable(val) else None
