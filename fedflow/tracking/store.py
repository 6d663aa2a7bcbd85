"""The MLflow store of a project: a SQLite database and an artifact folder in ``mlruns/``, or any server.

MLflow takes seconds to import, so it is imported inside functions; its telemetry is switched off before. The
environment variable ``MLFLOW_TRACKING_URI`` chooses another store.

The database holds absolute addresses of artifacts, so a copied or renamed project would write into the folder
of the original. MLflow resolves relative addresses against the working directory, and ``mlflow-artifacts:``
needs a running server. So `open_store` refuses a store whose artifacts are elsewhere, and `move_store`
rewrites their addresses.
"""

import contextlib
import logging
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit
from uuid import uuid4

from filelock import FileLock, Timeout

from fedflow.errors import FedflowError
from fedflow.project.digest import shortened
from fedflow.project.distribution import require
from fedflow.project.waiting import held
from fedflow.tracking.addresses import (
    absolute,
    ask,
    database,
    is_database,
    is_server,
    server_address,
    shown,
    sqlite_url,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

LOCK_TIMEOUT = 120.0  # seconds; making the schema takes a few
LONGEST = 200  # bytes of the name of an artifact folder; file systems allow 255
PORT = 5000  # of the pages that `ui_command` serves
BUSY_TIMEOUT = 20.0  # seconds for another process to finish its transaction, as in MLflow
BRIEF = 5  # seconds for which other runs may keep it locked
REACH_TIMEOUT = 10.0  # seconds for a tracking server to answer
ASKED = "/api/2.0/mlflow/experiments/get?experiment_id=0"  # needs the server's database

BACKEND = "MLFLOW_BACKEND_STORE_URI"  # the variable of MLflow's server
REMOTE = ("azure", "boto3", "botocore", "google", "s3transfer")  # packages of artifact stores

ADDRESSES = (  # all columns of MLflow's tables that say where artifacts are
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)

TABLES = {"alembic_version", "experiments", "runs"}  # of every MLflow database

CHATTY = ("mlflow.pyfunc", "alembic")  # loggers
# They log tracebacks of errors that are also raised.
REPEATING = ("mlflow.store.db.utils", "mlflow.system_metrics")

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")  # for jobs, which runs here never have


@dataclass(frozen=True)
class Store:
    """An MLflow store. ``folder`` holds lock files and, with SQLite, everything else."""

    uri: str
    folder: Path

    def client(self) -> "MlflowClient":
        """A client of this store only; no global state of MLflow is used or changed."""
        require("the record of runs", "mlflow")
        from mlflow import MlflowClient

        _quiet()
        return MlflowClient(self.uri, registry_uri=self.uri)

    def reach(self) -> None:
        """Raise `FedflowError` within seconds if a server or database does not answer.

        MLflow would retry for minutes.
        """
        if is_server(self.uri):
            _reach(self.uri)
        elif is_database(self.uri):
            ask(self.uri)

    def away(self) -> str:
        """The reason why a server or database does not answer, or a file is locked; empty if it answers."""
        if file := database(self.uri):
            return _held(file)
        try:
            self.reach()
        except FedflowError as error:
            return str(error)
        return ""

    @property
    def is_file(self) -> bool:
        return database(self.uri) is not None

    @property
    def artifact_folder(self) -> Path:
        return self.folder / "artifacts"

    @property
    def artifact_root(self) -> str:
        """The parent address of the artifacts of new experiments, unless the store is a server.

        ``MLFLOW_DEFAULT_ARTIFACT_ROOT`` for a database, by default the project's folder.
        """
        given = "" if self.is_file else os.environ.get("MLFLOW_DEFAULT_ARTIFACT_ROOT", "")
        if "://" in given:
            return given.rstrip("/")
        return (absolute(given) if given else self.artifact_folder).as_uri()

    def artifacts(self, experiment: str) -> str | None:
        """The address of the artifacts of a new experiment, or None if a server decides."""
        if is_server(self.uri):
            return None
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in experiment)
        return f"{self.artifact_root}/{quote(shortened(name, LONGEST))}"

    def query(self, statement: str) -> list[tuple]:
        """Rows of a SQLite store, read without MLflow."""
        # Not read-only: SQLite may have to undo an incomplete transaction of a killed process.
        file = database(self.uri)
        if file is None:
            raise FedflowError(f"MLflow store {shown(self.uri)}: not a SQLite database")
        with contextlib.closing(
            sqlite3.connect(f"{file.as_uri()}?mode=rw", BUSY_TIMEOUT, uri=True)
        ) as connection:
            return connection.execute(statement).fetchall()

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Within this context, no other process on this machine holds the lock ``name``."""
        lock = self.file_lock(name)
        limit = f"at most {LOCK_TIMEOUT:g} s; lock: {lock.lock_file}"
        with held(lock, f"another process that writes to MLflow ({limit})"):
            yield

    def file_lock(self, name: str, timeout: float = LOCK_TIMEOUT) -> FileLock:
        """A lock that is released when its process ends, however it ends."""
        folder = self.folder / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / f"{name}.lock", timeout=timeout)


def tracking_uri(root: Path | str = ".") -> str:
    """The store of a checkout: ``MLFLOW_TRACKING_URI``, or SQLite in ``<root>/mlruns/``."""
    return os.environ.get("MLFLOW_TRACKING_URI") or sqlite_url(absolute(root) / "mlruns" / "mlflow.db")


def open_store(root: Path | str = ".") -> Store:
    """The store of a checkout, with its schema; created if necessary, by one process at a time.

    Raises `FedflowError` if it cannot be created or reached, leaving no partial store; also if its artifacts
    are elsewhere, because it was moved or copied (`move_store`).
    """
    store = locate(root)
    uri, file = store.uri, database(store.uri)
    with reporting(uri):
        store.reach()
        if file is None and not is_server(uri):
            with store.lock("schema"):
                store.client().search_experiments(max_results=1)  # MLflow makes or checks the tables
        elif file is not None and not file.exists():
            with store.lock("schema"):
                if not file.exists():
                    _create(file, store)
        elif file is not None:
            _sweep(file, store)
            _check_place(store)
    return store


def check_store(root: Path | str = ".") -> None:
    """Raise `FedflowError` for a database that cannot be read or a store that was moved; creates nothing."""
    store = locate(root)
    with reporting(store.uri):
        if is_database(store.uri):
            ask(store.uri)
        _check_place(store)


def move_store(root: Path | str = ".") -> tuple[int, Path]:
    """Rewrite the addresses of a moved or copied store to the artifacts next to it, in one transaction.

    Returns the number of changed addresses, and their folder. Raises `FedflowError` if there is no SQLite
    store, or if its artifacts were left behind.
    """
    store = locate(root)
    file, here, changed = database(store.uri), store.artifact_folder.as_uri(), 0
    if file is None or not file.exists():
        raise FedflowError(f"MLflow store {shown(store.uri)}: no SQLite database to move")
    with reporting(store.uri), store.lock("experiments"), store.lock("registry"):
        elsewhere = _elsewhere(store)
        left = [folder for folder in elsewhere.values() if folder.is_dir()]
        if left and not store.artifact_folder.is_dir():
            raise FedflowError(f"the artifacts are still in {left[0]}; copy them to {store.artifact_folder}")
        with contextlib.closing(sqlite3.connect(file, BUSY_TIMEOUT)) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            for uri in elsewhere:
                for table, column in ADDRESSES:
                    moved = f"? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?"
                    values = (here, len(uri) + 1, len(uri) + 1, f"{uri}/")
                    changed += connection.execute(f"UPDATE {table} SET {column} = {moved}", values).rowcount
    return changed, store.artifact_folder


def ui_command(root: Path | str = ".", port: int = PORT) -> list[str]:
    """The command line of a server of MLflow's pages at http://127.0.0.1:<port>.

    The server reads the address of the store, which may hold a password, from the variable `BACKEND`.
    Raises `FedflowError` for a store that is a server already.
    """
    store = open_store(root)
    if is_server(store.uri):
        raise FedflowError(f"the runs are recorded by a server; open {shown(store.uri)} in a browser")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1"]
    # MLflow's own list also takes names that begin like private addresses, such as 10.evil.example.
    command += ["--allowed-hosts", f"127.0.0.1:{port},localhost:{port}"]
    command += ["--cors-allowed-origins", f"http://127.0.0.1:{port}"]
    return [*command, "--default-artifact-root", store.artifact_root]


def _held(file: Path) -> str:
    """The reason if another program keeps this database locked; empty if it can be written."""
    try:
        connection = sqlite3.connect(f"{file.as_uri()}?mode=rw", timeout=BRIEF, uri=True)
        with contextlib.closing(connection):
            connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        return f"MLflow store {file}: {error}" if "locked" in str(error) else ""
    return ""


@contextmanager
def reporting(uri: str) -> Iterator[None]:
    """Turn errors of the store into a `FedflowError` that names it."""
    try:
        yield
    except FedflowError:
        raise
    except (OSError, Timeout, sqlite3.Error) as error:
        file = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        raise _failed(uri, f"{file}{getattr(error, 'strerror', None) or error}") from error
    except Exception as error:
        from mlflow.exceptions import MlflowException
        from safetensors import SafetensorError
        from sqlalchemy.exc import SQLAlchemyError

        ours = isinstance(error, MlflowException | SQLAlchemyError | SafetensorError | ImportError)
        if not ours and type(error).__module__.partition(".")[0] not in REMOTE:
            raise
        raise _failed(uri, _reason(error, database(uri))) from error


def _failed(uri: str, reason: str) -> FedflowError:
    """The error of a store, without the password that addresses in ``reason`` may have."""
    return FedflowError(f"MLflow store {shown(uri)}: {shown(reason.replace(uri, shown(uri)))}")


def _reason(error: Exception, file: Path | None) -> str:
    """The first line of the database's error, or of the error itself."""
    if getattr(error, "error_code", "") == "UNAUTHENTICATED":
        return "the server refuses MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    cause: BaseException | None = error
    while cause is not None and not hasattr(cause, "orig"):
        cause = cause.__cause__
    text = str(getattr(cause, "orig", error))
    if "Current state is deleted" in text:
        return "the run was deleted there; rerun the command to record it again"
    # SQLite's messages for a deleted file, through an old connection or through a new one.
    emptied = file is not None and not (file.exists() and file.stat().st_size)
    if emptied and ("readonly database" in text or "no such table" in text):
        return "the database was deleted while a run was being recorded"
    return next(iter(text.splitlines()), type(error).__name__)


def locate(root: Path | str) -> Store:
    """The store of a checkout, whether or not it exists."""
    uri = tracking_uri(root)
    file = database(uri)
    return Store(uri, file.parent if file else absolute(root) / "mlruns")


def _check_place(store: Store) -> None:
    """Raise `FedflowError` if the database names artifacts elsewhere."""
    for folder in _elsewhere(store).values():
        raise FedflowError(
            f"MLflow store {shown(store.uri)} was moved or copied: its artifacts are recorded in {folder}; "
            "run `fedflow store move` to use those next to it"
        )


def _elsewhere(store: Store) -> dict[str, Path]:
    """Artifact folders of other stores that experiments of this database name: address and path.

    They have the names that `Store.artifacts` gives; experiments that were put elsewhere on purpose have
    others.
    """
    file = database(store.uri)
    if file is None or not file.exists():
        return {}
    tables = {name for (name,) in store.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return {}  # MLflow fills an empty file
    if not tables >= TABLES:
        named = ", ".join(sorted(tables)[:3])
        raise FedflowError(
            f"MLflow store {shown(store.uri)}: a SQLite database of another program (tables: {named})"
        )
    folders = {}
    for name, location in store.query("SELECT name, artifact_location FROM experiments"):
        uri, _, last = str(location).rpartition("/")
        ours = last == str(store.artifacts(name)).rpartition("/")[2]
        if ours and uri.startswith("file:///") and uri.endswith("/artifacts"):
            folder = Path(unquote(urlsplit(uri).path))
            if folder.resolve() != store.artifact_folder.resolve():
                folders[uri] = folder
    return folders


def _drafts(file: Path) -> list[Path]:
    """The files of a `_create` in progress, and of killed processes."""
    return list(file.parent.glob(f".{file.name}.*.draft*"))


def _sweep(file: Path, store: Store) -> None:
    """Delete the drafts of killed processes; a living one holds the lock."""
    if _drafts(file):
        with contextlib.suppress(OSError, Timeout), store.file_lock("schema", timeout=0):
            for leftover in _drafts(file):
                leftover.unlink(missing_ok=True)


def _create(file: Path, store: Store) -> None:
    """Make the database under another name and rename it when it is complete."""
    require("the record of runs", "mlflow")
    # A new name for every attempt, because MLflow keeps connections to a database that failed.
    draft = file.with_name(f".{file.name}.{uuid4().hex}.draft")
    try:
        draft.touch()  # a folder that cannot be written to fails here, before seconds of imports
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        _quiet()
        made = SqlAlchemyStore(sqlite_url(draft), store.artifact_folder.as_uri())
        made.engine.dispose()
        draft.replace(file)
    finally:
        for leftover in _drafts(file):  # of killed processes too
            leftover.unlink(missing_ok=True)


def _reach(uri: str) -> None:
    """Raise `FedflowError` at once if no server answers, or if it has lost its database.

    Certificates are checked as MLflow checks them.
    """
    require("the record of runs", "mlflow")
    import requests

    address = server_address(uri)  # errors show it
    insecure = os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1")
    trusted = os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or True
    certificate = os.environ.get("MLFLOW_TRACKING_CLIENT_CERT_PATH")
    try:
        verify: str | bool = not insecure and trusted
        answer = requests.get(f"{address}{ASKED}", timeout=REACH_TIMEOUT, verify=verify, cert=certificate)
    except (OSError, ValueError) as error:
        cause: BaseException = error
        while (deeper := cause.__cause__ or cause.__context__) is not None:
            cause = deeper  # the socket's error is short, those around it are not
        raise _failed(uri, f"no server answers ({cause})") from error
    if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise _failed(uri, f"the server answers {answer.status_code} {answer.reason}")


def _quiet() -> None:
    """Silence MLflow's messages on its steps, except warnings."""
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in REPEATING:
        logging.getLogger(name).setLevel(logging.CRITICAL)
