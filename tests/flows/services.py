"""Servers as their commands start them, each in its own process."""

import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import psutil
from command import free_port

PATIENCE = 240.0  # seconds for what takes a few on a machine that is not busy


def wait_for(condition: Callable[[], object], process: subprocess.Popen | None = None) -> None:
    """Wait until the condition holds; ``process`` must live until then."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process is None or process.poll() is None, "it ended early"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def family(process: subprocess.Popen) -> list[psutil.Process]:
    """The process and all that it has started."""
    first = psutil.Process(process.pid)
    return [first, *first.children(recursive=True)]


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def started(
    *command: str, environment: dict[str, str] | None = None, **options: Any
) -> Iterator[subprocess.Popen]:
    """A program of which nothing is left afterwards; ``options`` of its process."""
    process = subprocess.Popen(command, env=environment, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            for left in reversed(family(process)):
                left.kill()
            process.wait()


@contextmanager
def fedflow_ui(root: Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """``fedflow ui``, when it answers, and its address."""
    port = free_port()
    command = (sys.executable, "-m", "fedflow.cli", "ui", "--port", str(port), "--root", str(root))
    with started(*command) as process:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/health"), process)
        yield process, f"http://127.0.0.1:{port}"


class Relay:
    """Passes connections on to a server; closed, it is a server that was stopped, on the same port."""

    def __init__(self, port: int) -> None:
        self.server, self.port = port, free_port()
        self.url = f"http://127.0.0.1:{self.port}/api"

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def open(self) -> None:
        self.sockets = [socket.create_server(("127.0.0.1", self.port))]
        threading.Thread(target=self._accept, args=self.sockets, daemon=True).start()

    def close(self) -> None:
        for each in self.sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near = listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.server))
                self.sockets += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
