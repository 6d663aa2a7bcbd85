"""A Prefect API server that all runs of a checkout share.

The first run starts it in the background on a free local port; later runs find it. It stops when no run has
used it for a while, or with ``python -m flows.server --stop``. Requests need its password
(docs/security.md). If `PREFECT_API_URL` is set, that server is used instead.
"""

import argparse
import itertools
import json
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import psutil
from filelock import FileLock, Timeout

from fedflow.errors import BadInput, FedflowError, Unanswered
from fedflow.files import replace_text
from fedflow.project.arguments import check_address, check_port
from fedflow.project.telemetry import NO_TELEMETRY
from fedflow.project.waiting import announced
from fedflow.tracking.addresses import sqlite_url

START_TIMEOUT = 600.0  # seconds; a first start also makes the database, and a busy machine takes minutes
PATIENCE = "FEDFLOW_SERVER_TIMEOUT"  # replaces it
STOP_TIMEOUT = 15.0  # seconds between SIGTERM and SIGKILL
PAGES = 4200  # port of the pages of `python -m flows.serve`
CERTIFICATES = "PREFECT_API_SSL_CERT_FILE"
PASSWORD = "PREFECT_API_AUTH_STRING"
REFUSED = (401, 403)  # of a request with a wrong password, or with none
DATABASE = "PREFECT_API_DATABASE_CONNECTION_URL"
UI = "PREFECT_UI_URL"  # target of links
ALIVE, USERS = "alive.lock", "user-{}.lock"  # locks of the server, and of every process that uses it
PROBE = 0.05  # seconds of waiting for a lock, which another process may hold shortly to probe it
HOSTS = ("127.0.0.1", "localhost")  # accepted host names
DIRECT = "no_proxy"  # hosts that are reached without a proxy
ITSELF = "prefect-in-memory"  # host name of calls of automations to the API
LEASES = "prefect.server.concurrency.lease_storage.filesystem"  # a new server knows who holds a limit
IDLE = 180.0  # seconds without a user after which the server stops


def home() -> Path:
    """The private Prefect home of this checkout: its database, logs and server state."""
    return Path(os.environ.get("PREFECT_HOME", ".prefect")).resolve()


@contextmanager
def prefect_api(port: int = 0) -> Iterator[str]:
    """Within this context a Prefect API server runs and ``PREFECT_API_URL`` names it; yields its URL.

    ``port`` is the port of a new server; 0 is any free port. Enter the context before Prefect is imported:
    Prefect reads its settings once, and its threads (which forward events of worker processes) ignore later
    changes.
    """
    names = ("PREFECT_API_URL", CERTIFICATES, DATABASE, PASSWORD, UI, DIRECT)
    before = {name: os.environ.get(name) for name in names}
    folder = home()
    try:
        if url := os.environ.get("PREFECT_API_URL"):
            _check_password(check_address("PREFECT_API_URL", url))
            yield url
            return
        os.environ[DIRECT] = _direct()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # an older one may be readable by others
        with _using(folder):
            url = running(folder) or _start(folder, check_port("--port", port))
            os.environ |= private(folder) | {
                "PREFECT_API_URL": url,
                CERTIFICATES: str(_few_certificates(folder)),
                PASSWORD: password_file(folder).read_text(),
                UI: os.environ.get(UI) or (_state(folder) or {}).get("pages", url.removesuffix("/api")),
            }
            yield url
    except BaseException:
        Unanswered.seen |= "prefect" in sys.modules and bool(url) and not _healthy(url or "")
        raise
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def private(folder: Path) -> dict[str, str]:
    """Variables for a Prefect process of this checkout: a private home, and no telemetry.

    Prefect would put the path of its database unquoted into a URL.
    """
    return {
        "PREFECT_HOME": str(folder),
        DATABASE: os.environ.get(DATABASE) or sqlite_url(folder / "prefect.db", "aiosqlite"),
        **NO_TELEMETRY,
    }


def running(folder: Path) -> str | None:
    """The URL of this checkout's server, or None if no server responds.

    Raises `FedflowError` if it runs on another machine.
    """
    state = _here(folder)
    return state["url"] if state and _healthy(state["url"]) else None


def used(folder: Path) -> bool:
    """True if a process uses the server of this checkout."""
    return any(map(_locked, folder.glob(USERS.format("*"))))


def password_file(folder: Path) -> Path:
    """The file with the API's ``user:password``; only its owner can read it."""
    return folder / "password"


def stop() -> bool:
    """Stop the server of this checkout and wait until it has ended; False if none was running.

    Raises `FedflowError` if it runs on another machine.
    """
    state = _here(home())
    if state is None:
        return False
    with suppress(psutil.NoSuchProcess):
        server = psutil.Process(state["pid"])
        server.terminate()
        try:
            server.wait(STOP_TIMEOUT)
        except psutil.TimeoutExpired:
            server.kill()
    return True


def _direct() -> str:
    """The hosts that need no proxy, and this machine, whose server no proxy can reach."""
    given = os.environ.get(DIRECT) or os.environ.get(DIRECT.upper()) or ""
    return given if given == "*" else ",".join([*filter(None, [given]), *HOSTS])


def _few_certificates(folder: Path) -> Path:
    """A file with one certificate: the server needs none, and to read all takes 40 ms per task."""
    import certifi

    few = folder / "certificates.pem"
    if not few.exists():
        end = "-----END CERTIFICATE-----\n"
        replace_text(few, Path(certifi.where()).read_text().partition(end)[0] + end)
    return few


def _state(folder: Path) -> dict[str, Any] | None:
    """The address and process of a running server, which holds a lock, or None without one."""
    try:
        state = json.loads((folder / "server.json").read_text())
        return state if _locked(folder / ALIVE) else None
    except (OSError, ValueError):
        return None


def _here(folder: Path) -> dict[str, Any] | None:
    """`_state`; raises `FedflowError` if the server runs on another machine, which shares the folder."""
    state = _state(folder)
    if state and not _is_server(state["pid"]):
        reason = f"the Prefect server of {folder} runs on {state.get('host', 'another machine')}"
        raise FedflowError(f"{reason}; set PREFECT_HOME to another folder, or PREFECT_API_URL to a server")
    return state


def _is_server(pid: int) -> bool:
    """True if a process of this machine with this number is a server of fedflow."""
    try:
        return "flows.server" in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


def _locked(file: Path) -> bool:
    """True if a living process holds the lock on this file."""
    try:
        with FileLock(file).acquire(timeout=PROBE, poll_interval=PROBE / 5):
            return False
    except Timeout:
        return True


@contextmanager
def _using(folder: Path) -> Iterator[None]:
    """Hold the first lock of a user that is free."""
    for number in itertools.count():
        lock = FileLock(folder / USERS.format(number))
        with suppress(Timeout):
            lock.acquire(timeout=0)
            break
    try:
        yield
    finally:
        lock.release()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as reply:
            return reply.status == 200
    except (OSError, ValueError, HTTPException):
        return False


def _check_password(url: str) -> None:
    """Raise `FedflowError` if the server asks for another password.

    Prefect, whose import takes a second, checks a refusal: it also knows profiles, keys and other headers.
    """
    if not _refuses(url):
        return
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    try:
        with get_client(sync_client=True) as api:
            api.api_version()
    except PrefectHTTPStatusError as error:
        if error.response.status_code in REFUSED:
            raise FedflowError(f"the Prefect server at {url} refuses {PASSWORD} (user:password)") from None


def _refuses(url: str) -> bool:
    """True if the server refuses the password in the environment."""
    login = b64encode(os.environ.get(PASSWORD, "").encode()).decode()
    headers = {"Authorization": f"Basic {login}"}
    request = urllib.request.Request(f"{url.rstrip('/')}/admin/version", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=2):
            return False
    except HTTPError as error:
        return error.code in REFUSED
    except (OSError, ValueError, HTTPException):
        return False


def _start(folder: Path, port: int) -> str:
    """Start the server, unless another run is starting it: two would corrupt the database."""
    server: subprocess.Popen | None = None
    log = folder / "server.log"
    patience = _patience()
    limit = f"at most {patience:g} s, {PATIENCE}; log: {log}"
    with announced(f"the Prefect API server to answer ({limit})"), FileLock(folder / "server.lock"):
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if url := running(folder):
                return url
            if server is None and _state(folder) is None:
                print("starting the Prefect API server (once; later runs share it) ...", flush=True)
                log.touch(mode=0o600)
                with log.open("wb") as out:
                    server = subprocess.Popen(
                        [sys.executable, "-m", "flows.server", "--serve", str(folder), "--port", str(port)],
                        stdout=out,
                        stderr=out,
                        stdin=subprocess.DEVNULL,
                        start_new_session=True,
                    )
            if server is not None and server.poll() is not None and _state(folder) is None:
                reason = (log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
                raise FedflowError(f"the Prefect API server did not start: {reason} (see {log})")
            time.sleep(0.3)
    raise FedflowError(
        f"the Prefect API server did not answer within {patience:g} s ({PATIENCE} in seconds); see {log}"
    )


def _patience() -> float:
    """The seconds within which the server must start."""
    given = os.environ.get(PATIENCE) or START_TIMEOUT
    try:
        patience = float(given)
    except ValueError:
        patience = 0.0
    if not 0 < patience < math.inf:
        raise BadInput(PATIENCE, given, "a number of seconds > 0")
    return patience


def _serve(folder: Path, port: int) -> None:
    """Run the server until no run has used it for `IDLE` seconds."""
    os.umask(0o077)  # its files are private
    alive = FileLock(folder / ALIVE, timeout=STOP_TIMEOUT)  # released when this process ends
    try:
        alive.acquire()
    except Timeout as error:
        raise FedflowError("another server of this folder is running") from error
    listener = socket.socket()  # bound before Prefect starts, so that no other process takes the port
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        raise BadInput("--port", port, f"a free port ({error.strerror})") from error
    pages = f"http://127.0.0.1:{port or PAGES}"
    port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    password, state = password_file(folder), folder / "server.json"
    if not password.exists():
        replace_text(password, f"fedflow:{secrets.token_urlsafe(32)}")
    facts = {"url": url, "pages": pages, "pid": os.getpid(), "host": socket.gethostname()}
    replace_text(state, json.dumps(facts))
    os.environ |= private(folder) | {
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_UI_API_URL": url,
        "PREFECT_SERVER_API_AUTH_STRING": password.read_text(),
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": LEASES,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{host}:{port}" for host in HOSTS),
    }
    import uvicorn
    from prefect.server.api.server import create_app
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    app = create_app(final=True)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*HOSTS, ITSELF])
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)

    def end_when_idle() -> None:
        last_use = time.monotonic()
        while time.monotonic() - last_use < IDLE:
            if used(folder):
                last_use = time.monotonic()
            time.sleep(1)
        server.should_exit = True

    # After its shutdown uvicorn raises the signal again: exit through the `finally` below.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Thread(target=end_when_idle, daemon=True).start()
    try:
        server.run(sockets=[listener])
    finally:
        state.unlink(missing_ok=True)


def main() -> None:
    """``--stop`` stops the server of this checkout."""
    parser = argparse.ArgumentParser(prog="python -m flows.server", description=__doc__)
    parser.add_argument("--stop", action="store_true", help="stop the server of this checkout")
    parser.add_argument("--serve", type=Path, metavar="HOME", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ[DIRECT] = _direct()
    if options.serve:
        try:
            _serve(options.serve, options.port)
        except FedflowError as error:
            sys.exit(str(error))
    elif options.stop:
        print("stopped" if stop() else "no server was running")
    else:
        print(running(home()) or "no server is running; the first run starts one")


if __name__ == "__main__":
    main()
