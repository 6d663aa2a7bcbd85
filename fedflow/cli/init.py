"""``init``: a new project in a folder, or an upgrade by a newer fedflow."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedflow import __version__
from fedflow.cli.printing import console, print_line
from fedflow.errors import BadInput, FedflowError
from fedflow.files import make_writable
from fedflow.project.distribution import require
from fedflow.project.templates import KEPT, OWN, ProjectFile, write, write_plots

QUIET = "    analytics = false\n    check_update = false\n"  # in .dvc/config: DVC sends nothing


def init(
    folder: Annotated[Path, typer.Argument(help="The project's folder; created if missing.")] = Path(),
    git: Annotated[bool, typer.Option(help="Make a git repository, unless the folder is in one.")] = True,
    dvc: Annotated[bool, typer.Option(help="Initialize DVC.")] = True,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Rewrite dvc.yaml and prefect.yaml of a project, unless edited.")
    ] = False,
) -> None:
    """Create a project: params.yaml with a small grid, dvc.yaml, prefect.yaml, .gitignore.

    Example: `fedflow init study && cd study && dvc repro`. A folder that has files is refused. After an
    upgrade of fedflow, `fedflow init --upgrade` updates the files of a project and keeps params.yaml.
    """
    if upgrade:
        if not (git and dvc):
            given, accepted = "with --no-git or --no-dvc", "--upgrade alone: it initializes nothing"
            raise BadInput("--upgrade", given, accepted)
        return _upgrade(folder)
    if dvc:
        require("fedflow init (without --no-dvc)", "dvc")
    _check_free(folder)
    make_writable(folder)
    names = (*OWN, *KEPT)
    write(folder, *names)
    for name in names:
        print_line(folder / name)
    repository = _repository(folder)
    if git and repository is None:
        repository = _make_repository(folder)
    if dvc:
        _initialize_dvc(folder, repository)
    if repository is not None:
        print_line("commit these files, so that every run records the commit of its settings")
    go = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    run = "dvc repro, then fedflow ui, fedflow report" if dvc else "fedflow sweep && fedflow report"
    print_line(f"next: {go}{run}; python -m flows.serve for deployments")


def _upgrade(root: Path) -> None:
    """Write missing files and rewrite files that were not edited; show differences of edited files."""
    if not (root / "params.yaml").is_file():
        raise FedflowError(f"{root} is not a project (no params.yaml); `fedflow init FOLDER` creates one")
    for name in KEPT:
        file = ProjectFile.read(root / name) if (root / name).is_file() else None
        if file is None or file.state in ("same", "older"):
            write(root, name)
            print_line(f"{root / name}: as fedflow {__version__} writes it")
        elif file.state == "edited":
            print_line(
                f"{root / name}: edited; it is based on fedflow {__version__}, so there is nothing to upgrade"
            )
        else:
            print_line(f"{root / name}: edited, so it is kept; to get the new one, delete it and rerun:")
            console.print(file.difference, highlight=False, soft_wrap=True, end="")
    if (root / ".dvc").is_dir():
        write_plots(root)
    else:
        print_line(f"{root}: DVC is not initialized; `dvc init` does that, for `dvc repro`")


def _check_free(folder: Path) -> None:
    """Raise `BadInput` if the folder has visible files, or files that would be overwritten."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    taken = [name for name in names if not name.startswith(".") or name in OWN or name == ".dvc"]
    if taken or (folder.exists() and not folder.is_dir()):
        named = ", ".join(taken[:3]) + (", ..." if len(taken) > 3 else "")
        accepted = "a new or empty folder" + (f"; it has {named}" if taken else "")
        raise BadInput("folder", str(folder), f"{accepted} (`fedflow init --upgrade` updates a project)")


def _repository(folder: Path) -> Path | None:
    """The git repository of the folder, if any."""
    here = folder.resolve()
    return next((parent for parent in (here, *here.parents) if (parent / ".git").exists()), None)


def _make_repository(folder: Path) -> Path | None:
    if shutil.which("git") is None:
        print_line("git is not installed: no repository was made")
        return None
    _call("git init", folder, "git", "init", "--quiet")
    return folder.resolve()


def _initialize_dvc(folder: Path, repository: Path | None) -> None:
    options = ["--no-scm"] if repository is None else ["--subdir"] if repository != folder.resolve() else []
    _call("dvc init", folder, sys.executable, "-m", "dvc", "init", *options)
    config = folder / ".dvc" / "config"
    config.write_text((config.read_text() or "[core]\n") + QUIET)
    write_plots(folder)
    if repository is not None:  # DVC has staged its own files
        _call("git add", folder, "git", "add", ".dvc")


def _call(what: str, folder: Path, *command: str) -> None:
    """Run a command in the folder; raises `FedflowError` with its last line if it fails."""
    environment = os.environ | {"DVC_NO_ANALYTICS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        why = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise FedflowError(
            f"the files are written, but `{what}` failed: {why}; you can repeat it in {folder}"
        )
