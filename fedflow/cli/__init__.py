"""The ``fedflow`` command: thin commands that import modules when they run."""

import logging
import os
import signal
import sys
import threading
import warnings
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from fedflow import __version__
from fedflow.cli import (
    catalogue,
    coreset,
    experiments,
    finished,
    init,
    landscape,
    new,
    stages,
    sweep,
    targets,
    upkeep,
)
from fedflow.cli.startup import interrupted
from fedflow.errors import SECTIONS, FedflowError, Unanswered
from fedflow.project import distribution
from fedflow.project.telemetry import NO_TELEMETRY
from fedflow.project.terminal import replace_characters


def _version(wanted: bool) -> None:
    if wanted:
        print(f"{distribution.name()} {__version__}")
        raise typer.Exit


app = typer.Typer(
    help="Federated learning under data heterogeneity: run, compare and explain experiments.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
partitions = typer.Typer(invoke_without_command=True, callback=catalogue.partitions)
partitions.command()(catalogue.compare)
partitions.command()(catalogue.export)
store = typer.Typer()
store.command()(upkeep.move)
app.add_typer(partitions, name="partitions")
app.add_typer(store, name="store", help="Maintain the MLflow store: `fedflow store move`.")
for command in (
    init.init, experiments.run, sweep.sweep, experiments.tune,
    stages.prepare, stages.central, stages.partition, stages.procedure, stages.fingerprint, stages.report,
    stages.cite,
    finished.ls, finished.show, finished.compare, finished.stop, finished.export,
    targets.targets, landscape.landscape, coreset.coreset,
    catalogue.methods, catalogue.procedures, catalogue.schemes, catalogue.datasets, catalogue.models,
    catalogue.published, catalogue.settings, catalogue.schema, new.new,
    upkeep.ui, upkeep.doctor,
):  # fmt: skip
    app.command()(command)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# No telemetry, and progress in the terminal instead of a line per task.
QUIET = {
    **NO_TELEMETRY,
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_HANDLERS_DEBUG_LEVEL": "CRITICAL",  # of its services, which cannot send events
}

# Of Click in releases of typer before 0.28, which Flower needs.
MISTAKE: Any = getattr(typer, "TyperException", None) or import_module("click").ClickException
INTERRUPTED = 130  # the exit code after Ctrl-C


def main() -> None:
    """Run the command line; errors that a user can fix are one line on stderr with exit code 2."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    logging.raiseExceptions = False  # Prefect's handler reports that it cannot send lines to its server
    warnings.formatwarning = _warning
    replace_characters()
    Unanswered.seen = False  # by this command, not by an earlier one of this process
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupted)
    try:
        given = [_at_home(text) for text in sys.argv[1:]]
        code = app(given or ["--help"], prog_name="fedflow", standalone_mode=False)
    except FedflowError as error:
        _fail(str(error))
    except MISTAKE as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "fedflow"
        message = error.format_message().rstrip(".")
        if context and any("--set" in parameter.opts for parameter in context.command.params):
            message = _setting(getattr(error, "option_name", "")) or message
        _fail(f"{message}; see `{command} --help`")
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except OSError as error:  # a full disk, or a folder without write permission
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
    if code == INTERRUPTED:
        _fail("stopped; rerun the command to resume from the last checkpoint", code)
    if code:
        sys.exit(code)


def _at_home(text: str) -> str:
    """An argument with the home folder in place of ~, which shells leave in --out=~/x."""
    head, sign, value = text.partition("=") if text.startswith("--") else ("", "", text)
    return head + sign + (str(Path(value).expanduser()) if f"{value}/".startswith("~/") else value)


def _setting(option: str) -> str:
    """The message for an option that is a setting of params.yaml, such as --rounds; empty for others."""
    name = option.lstrip("-").replace("-", "_")
    sections = (section for section, names in SECTIONS.items() if name in names.split())
    return "".join(f"No such option: {option}; use --set {section}.{name}=..." for section in sections)


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning in one line, without its source line."""
    return f"fedflow: warning: {' '.join(str(message).split())}\n"


def _fail(message: str, code: int = 2) -> NoReturn:
    stderr = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
    stderr.print(f"fedflow: {' '.join(message.split())}")
    if Unanswered.seen:
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)
