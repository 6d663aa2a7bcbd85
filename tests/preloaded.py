"""Programs whose processes begin with all libraries imported: ``preloaded.py SOCKET SESSION``.

The libraries take three times as long to import as a small run takes. The package itself is imported by every
command from its current folder, which may hold an edited copy.
"""

import gc
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from select import select

# Each program: it hands its arguments, environment, folder, and output to the process that has the imports.
COMMAND = """#!{python} -S
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as here:
    here.connect({address!r})
    given = json.dumps([sys.argv, dict(os.environ), os.getcwd()]) + "\\n"
    socket.send_fds(here, [given.encode()], [1, 2])
    code = int(here.recv(16))
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def serve(folder: Path, session: int) -> None:
    """Let the folder have the programs ``fedflow``, ``dvc`` and ``python`` (``python -c``).

    They work until the process ``session`` ends.
    """
    address = str(folder / "socket")
    for name in ("fedflow", "dvc", "python"):
        (folder / name).write_text(COMMAND.format(python=sys.executable, address=address))
        (folder / name).chmod(0o755)
    server = subprocess.Popen([sys.executable, __file__, address, str(session)], stdin=subprocess.DEVNULL)
    while not Path(address).exists():
        assert server.poll() is None, "it ended early"
        time.sleep(0.05)
    server.returncode = 0  # it outlives this process, which must not wait for it


def _import() -> None:
    import dvc.cli
    import dvc.repo  # noqa: F401
    import filelock  # noqa: F401
    import jinja2  # noqa: F401
    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_svg  # noqa: F401
    import mlflow.pyfunc.model
    import mlflow.store.model_registry.sqlalchemy_store
    import mlflow.store.tracking.sqlalchemy_store
    import mlflow.system_metrics.system_metrics_monitor
    import mlflow.tracking  # noqa: F401
    import networkx  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import rich.progress  # noqa: F401
    import safetensors.torch  # noqa: F401
    import scipy.cluster.hierarchy
    import scipy.io
    import scipy.optimize  # noqa: F401
    import sklearn.datasets
    import sklearn.metrics  # noqa: F401
    import torch  # noqa: F401
    import typer  # noqa: F401


def _call(arguments: list[str], environment: dict[str, str], folder: str, output: list[int]) -> None:
    """What a new process does with these arguments."""
    for number, given in enumerate(output, 1):
        os.dup2(given, number)
    os.chdir(folder)
    program, sys.argv[:] = Path(arguments[0]).name, arguments
    own = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = [folder, *own]
    os.environ.clear()
    os.environ.update(environment)
    if program == "python":
        sys.argv[:] = ["-c", *arguments[3:]]
        exec(arguments[2], {"__name__": "__main__"})
    elif program == "dvc":
        from dvc.cli import main as dvc

        sys.exit(dvc(arguments[1:]))
    else:
        from fedflow.cli import main as fedflow

        fedflow()


def _answer(caller: socket.socket) -> None:
    """Run what the caller asks for, and tell it the exit code."""
    given, output, *_ = socket.recv_fds(caller, 1 << 20, 2)
    while not given.endswith(b"\n"):
        given += caller.recv(1 << 20)
    process = get_context("fork").Process(target=_call, args=(*json.loads(given), output))
    process.start()
    for each in output:
        os.close(each)
    process.join()
    caller.send(str(process.exitcode).encode())


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _serve(address: str, session: int) -> None:
    _import()
    gc.collect()
    gc.freeze()  # what the collector leaves alone stays shared with the processes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{address}.new")
        listener.listen()
        Path(f"{address}.new").rename(address)
        while _lives(session):  # until the tests end, however they do
            if not select([listener], [], [], 1)[0]:
                continue
            caller = listener.accept()[0]
            if os.fork() == 0:  # as one program may call another
                _answer(caller)
                os._exit(0)
            caller.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
