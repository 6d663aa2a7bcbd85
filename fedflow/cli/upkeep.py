"""Commands that maintain a project: ``doctor``, ``ui`` and ``store move``."""

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedflow.cli.options import Json, Root
from fedflow.cli.printing import console, print_json, print_line
from fedflow.errors import BadInput


def doctor(as_json: Json = False, root: Root = Path()) -> None:
    """Check versions, plug-ins, devices, data, params.yaml, claims.yaml, store and server; suggest fixes.

    Example: `fedflow doctor`. The exit code is 2 if a check fails.
    """
    from fedflow.plugins import Failures

    Failures.collected = {}  # before methods, and with them plug-ins, are imported
    try:
        from fedflow.doctor import examine

        findings = examine(root)
    finally:
        Failures.collected = None  # a later command of the same process raises them again
    colors = {"ok": "green", "note": "yellow", "bad": "red"}
    table = Table(show_header=False, box=None, pad_edge=False)
    for finding in findings:
        table.add_row(Text(finding.status, colors[finding.status]), finding.what, finding.detail)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        console.print(table)
    if any(finding.status == "bad" for finding in findings):
        raise typer.Exit(2)


def ui(
    port: Annotated[int, typer.Option(help="Port on localhost.", min=1, max=65535)] = 5000,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the first link in a browser.")] = False,
    root: Root = Path(),
) -> None:
    """Serve the MLflow UI with all runs on localhost.

    Example: `fedflow ui --open`. It prints a link to the runs of every experiment, the newest first.
    """
    from fedflow.project.arguments import check_port
    from fedflow.tracking.pages import runs_pages
    from fedflow.tracking.store import BACKEND, tracking_uri, ui_command

    if not root.is_dir():
        raise BadInput("--root", str(root), "a folder")
    files = [root / "params.yaml", root / "mlruns"]
    if not os.environ.get("MLFLOW_TRACKING_URI") and not any(path.exists() for path in files):
        from fedflow.config.changing import read_yaml  # imports torch

        read_yaml(files[0])  # raises: no project
    command = ui_command(root, port)
    check_port("--port", port)
    pages = runs_pages(root, port)
    listed = "the runs of:" if pages else "no runs are recorded yet"
    print_line(f"MLflow UI: http://127.0.0.1:{port}  (Ctrl-C stops it); {listed}")
    for name, address in pages.items():
        print_line(f"  {name}  {address}")
    sys.stdout.flush()
    if open_browser:
        first = next(iter(pages.values()), f"http://127.0.0.1:{port}/")
        subprocess.Popen([sys.executable, "-m", "fedflow.cli.browser", first])
    os.environ[BACKEND] = tracking_uri(root)  # not in the command, which all users can list
    os.execv(command[0], command)  # so that signals reach MLflow, which ends its processes


def move(root: Root = Path()) -> None:
    """Update the artifact addresses in the record of a moved or copied project.

    Example: `fedflow store move --root copy`, after `mv` or `cp -r`.
    """
    from fedflow.tracking.store import move_store

    changed, folder = move_store(root)
    print_line(f"{changed} addresses changed; artifacts: {folder}")
