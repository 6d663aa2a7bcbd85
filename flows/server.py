"""A Prefect API server that all runs of a checkout share, so that its start is paid once.

The first run starts it in the background on a free local port; later runs find it; it stops by
itself when nobody has used it for a while. A `PREFECT_API_URL` of your own always wins.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from fedflow.errors import FedflowError

START_TIMEOUT = 180.0  # seconds; a first start also makes the database
IDLE = 180.0  # seconds without a user after which the server stops


def home() -> Path:
    """The private Prefect home of this checkout: its database, logs and server state."""
    return Path(os.environ.get("PREFECT_HOME", ".prefect")).resolve()


@contextmanager
def prefect_api() -> Iterator[str]:
    """Within this context a Prefect API server runs and ``PREFECT_API_URL`` names it; yields its URL.

    Enter it before Prefect is imported: Prefect reads its settings once, and threads of its own
    (those that forward events of worker processes) see no later change.
    """
    if url := os.environ.get("PREFECT_API_URL"):
        yield url
        return
    folder = home()
    mark = folder / "users" / str(os.getpid())
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    try:
        os.environ["PREFECT_API_URL"] = _running(folder) or _start(folder)
        yield os.environ["PREFECT_API_URL"]
    finally:
        os.environ.pop("PREFECT_API_URL", None)
        mark.unlink(missing_ok=True)


def stop() -> bool:
    """Stop the server of this checkout; False when none was running."""
    try:
        os.kill(json.loads((home() / "server.json").read_text())["pid"], signal.SIGTERM)
    except (OSError, ValueError, KeyError):
        return False
    return True


def _running(folder: Path) -> str | None:
    try:
        url = json.loads((folder / "server.json").read_text())["url"]
    except (OSError, ValueError, KeyError):
        return None
    return url if _healthy(url) else None


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as reply:
            return reply.status == 200
    except OSError:
        return False


def _start(folder: Path) -> str:
    with FileLock(folder / "server.lock"):
        if url := _running(folder):  # another run was faster
            return url
        log = folder / "server.log"
        with log.open("ab") as out:
            subprocess.Popen(
                [sys.executable, "-m", "flows.server", str(folder)],
                stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        print("starting the Prefect API server (once; later runs share it) ...", flush=True)
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if url := _running(folder):
                return url
            time.sleep(0.3)
    raise FedflowError(f"the Prefect API server did not start within {START_TIMEOUT:.0f} s; see {log}")


def free_port() -> int:
    """A port on localhost that nobody listens to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _serve(folder: Path) -> None:
    """Run the server as a child, and end it when no run has used it for `IDLE` seconds."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    server = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
        env=environment(folder) | {"PREFECT_UI_API_URL": url},
    )
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    state = folder / "server.json"
    state.write_text(json.dumps({"url": url, "pid": os.getpid()}))
    last_use = time.monotonic()
    try:
        while server.poll() is None:
            if any(_alive(mark) for mark in (folder / "users").glob("*")):
                last_use = time.monotonic()
            if time.monotonic() - last_use > IDLE:
                server.terminate()
            time.sleep(1)
    finally:
        server.terminate()
        state.unlink(missing_ok=True)


def environment(folder: Path) -> dict[str, str]:
    """Variables for a Prefect process of this checkout: its own home, nothing sent to anybody."""
    return dict(os.environ) | {
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
    }


def _alive(mark: Path) -> bool:
    with suppress(ProcessLookupError, PermissionError, ValueError):
        os.kill(int(mark.name), 0)
        return True
    mark.unlink(missing_ok=True)
    return False


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
