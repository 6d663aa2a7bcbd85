"""Where runs are recorded: a SQLite database and an artifact folder in ``mlruns/``, or any MLflow server.

MLflow takes seconds to import, so it is imported inside functions; its telemetry is switched off
before that. The environment variable ``MLFLOW_TRACKING_URI`` chooses another store.
"""

import logging
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from filelock import FileLock, Timeout

from fedflow.errors import FedflowError

if TYPE_CHECKING:
    from mlflow import MlflowClient

LOCK_TIMEOUT = 120.0  # seconds; making the schema takes a few
REACH_TIMEOUT = 10.0  # seconds for a tracking server to answer

CHATTY = ("mlflow.pyfunc", "alembic")  # loggers
# They write tracebacks of errors that are raised as well; and a store that fails the monitor fails the run.
REPEATING = ("mlflow.store.db.utils", "mlflow.system_metrics")

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")  # for jobs that runs here never have


@dataclass(frozen=True)
class Store:
    """An MLflow store that exists. ``folder`` holds lock files and, with SQLite, everything else."""

    uri: str
    folder: Path

    def client(self) -> "MlflowClient":
        """A client of this store only; no global state of MLflow is used or changed."""
        from mlflow import MlflowClient

        _quiet()
        return MlflowClient(self.uri, registry_uri=self.uri)

    def artifacts(self, experiment: str) -> str | None:
        """Where a new experiment keeps its artifacts; None = where the server wants them."""
        if database(self.uri) is None:
            return None
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in experiment)
        return (self.folder / "artifacts" / name).as_uri()

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Within this context no other process of this machine holds the lock ``name``."""
        with self.file_lock(name):
            yield

    def file_lock(self, name: str, timeout: float = LOCK_TIMEOUT) -> FileLock:
        """A lock that ends with the process which holds it, however that ends."""
        folder = self.folder / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / f"{name}.lock", timeout=timeout)


def tracking_uri(root: Path | str = ".") -> str:
    """The store of a checkout: ``MLFLOW_TRACKING_URI``, or SQLite in ``<root>/mlruns/``."""
    return (
        os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path(root).resolve() / 'mlruns' / 'mlflow.db'}"
    )


def database(uri: str) -> Path | None:
    """The file of a SQLite store, None for any other store."""
    return Path(uri.removeprefix("sqlite:///")).resolve() if uri.startswith("sqlite:///") else None


def open_store(root: Path | str = ".") -> Store:
    """The store of a checkout, with its schema; made if need be, by one process even if many ask.

    Raises `FedflowError` when it cannot be made or reached; then nothing half-made is left.
    """
    uri = tracking_uri(root)
    file = database(uri)
    store = Store(uri, file.parent if file else Path(root).resolve() / "mlruns")
    with reporting(uri):
        if uri.startswith(("http://", "https://")):
            _reach(uri)
        elif file is None or not file.exists():
            with store.lock("schema"):
                if file is None:
                    store.client().search_experiments(max_results=1)
                elif not file.exists():
                    _create(file, store)
    return store


def initialise(root: Path | str = ".") -> str:
    """`open_store`, and its URI: call it once before any fan-out."""
    return open_store(root).uri


def ui_command(root: Path | str = ".", port: int = 5000) -> list[str]:
    """The command line that shows this store's runs at http://127.0.0.1:<port>.

    Raises `FedflowError` for a store that is a server already.
    """
    store = open_store(root)
    if store.uri.startswith(("http://", "https://")):
        raise FedflowError(f"the runs are recorded by a server; open {store.uri} in a browser")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", store.uri]
    # MLflow's own list also takes names that begin like private addresses, such as 10.evil.example.
    command += ["--allowed-hosts", f"127.0.0.1:{port},localhost:{port}"]
    command += ["--cors-allowed-origins", f"http://127.0.0.1:{port}"]
    return [*command, "--default-artifact-root", (store.folder / "artifacts").as_uri()]


@contextmanager
def reporting(uri: str) -> Iterator[None]:
    """Turn what goes wrong in the store into one `FedflowError` that names it."""
    try:
        yield
    except FedflowError:
        raise
    except (OSError, Timeout) as error:
        raise FedflowError(f"MLflow store {uri}: {getattr(error, 'strerror', None) or error}") from error
    except Exception as error:
        if not _of_the_store(error):
            raise
        raise FedflowError(f"MLflow store {uri}: {_reason(error, database(uri))}") from error


def _of_the_store(error: Exception) -> bool:
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return isinstance(error, MlflowException | SQLAlchemyError)


def _reason(error: Exception, file: Path | None) -> str:
    """The first line of what the database said, if it said something; else of the error itself."""
    cause: BaseException | None = error
    while cause is not None and not hasattr(cause, "orig"):
        cause = cause.__cause__
    text = str(getattr(cause, "orig", error))
    # SQLite's words for a file that is no more: a connection from before and a new one say different things.
    emptied = file is not None and not (file.exists() and file.stat().st_size)
    if emptied and ("readonly database" in text or "no such table" in text):
        return "the database was deleted while a run was being recorded"
    return next(iter(text.splitlines()), type(error).__name__)


def _create(file: Path, store: Store) -> None:
    """Make the database beside its final place and move it there when it is complete."""
    # A name of its own for every attempt, because MLflow keeps connections to a database that failed.
    draft = file.with_name(f".{file.name}.{uuid4().hex}.draft")
    try:
        draft.touch()  # a folder that cannot be written to fails here, before seconds of imports
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        _quiet()
        made = SqlAlchemyStore(f"sqlite:///{draft}", (store.folder / "artifacts").as_uri())
        made.engine.dispose()
        draft.replace(file)
    finally:
        for leftover in file.parent.glob(f".{file.name}.*.draft*"):  # of a killed process too
            leftover.unlink(missing_ok=True)


def _reach(uri: str) -> None:
    """Fail at once when no server answers; MLflow itself would retry for minutes."""
    try:
        urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=REACH_TIMEOUT).close()
    except urllib.error.HTTPError:
        pass  # it answers; whether it lets us in, MLflow will say
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise FedflowError(f"MLflow store {uri}: no server answers ({reason})") from error


def _quiet() -> None:
    """Without the lines that MLflow writes about its own steps; warnings stay."""
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in REPEATING:
        logging.getLogger(name).setLevel(logging.CRITICAL)
