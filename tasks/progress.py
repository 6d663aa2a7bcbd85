"""Progress and results as Prefect artifacts, so that a run can be followed in the Prefect UI."""

import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pandas as pd
from prefect import get_client, get_run_logger
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.context import FlowRunContext
from prefect.runtime import flow_run

from fedflow.finished.results import MARKER
from fedflow.metrics.table import heading, headlines, metric_of, printed
from fedflow.project.digest import digest
from fedflow.project.terminal import say
from fedflow.simulation.outcome import RoundReport
from fedflow.stages.central_network import TABLE
from fedflow.stages.experiment import Experiment
from fedflow.stages.grid import Cell, is_finished
from fedflow.stages.procedure import ProcedureRun, read_summary
from fedflow.tracking.record import Record
from tasks.outages import asking

BETWEEN = 10  # seconds between two updates of a table during a run
EVALUATED = {"local_accuracy", "global_loss"}  # one of them is measured in every evaluation


def artifact_key(*parts: object) -> str:
    """A key that Prefect accepts: lower case, digits and dashes, with a digest where names may be confused.

    >>> artifact_key("mnist5k-dir", "fedavg", 0)
    'mnist5k-dir-fedavg-0'
    >>> artifact_key("mnist5k", "dir-fedavg", 0)
    'mnist5k-dir-fedavg-0-fc5c37'
    """
    first, *rest = names = [str(part) for part in parts]
    key = re.sub("[^a-z0-9]+", "-", "-".join(names).lower()).strip("-")
    # Only the first name of a key without a digest has dashes, so that its parts are known.
    if not (
        re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", first)
        and all(re.fullmatch("[a-z0-9]+", name) for name in rest)
    ):
        key = f"{key}-{digest(names, 6)}".strip("-")
    return key


class ProgressBar:
    """A progress artifact, which moves in steps of at least 5 %, with a key of these ``parts``."""

    def __init__(self, description: str, *parts: object) -> None:
        self.artifact = create_progress_artifact(0.0, key=artifact_key(*parts), description=description)
        self.done = 0.0

    @asking()
    def step(self, number: int, total: int) -> None:
        """Move to step ``number``, from 1, of ``total``."""
        percent = 100 * number / total
        if abs(percent - self.done) >= 5 or percent == 100:  # back, if another network starts
            update_progress_artifact(artifact_id=self.artifact, progress=percent)  # type: ignore[arg-type]
            self.done = percent


class PrefectProgress:
    """A progress bar over the rounds, a log line and a table of evaluations, and a summary at the end.

    The flow run gets the names of the experiment as tags, by which the page of all runs can be filtered.
    """

    def __init__(self, experiment: Experiment, out: str | None = None) -> None:
        self.experiment = experiment
        self.named = shlex.quote(out or experiment.address)  # for `fedflow show`
        self.evaluated: list[RoundReport] = []
        self._shown, self._rows = time.monotonic(), 0  # when the table was last updated, and its rows

    @property
    def _about(self) -> tuple[object, ...]:
        return self.experiment.partition, self.experiment.method, self.experiment.seed

    def _key(self, what: str) -> str:
        return artifact_key(*self._about, what)

    def __enter__(self) -> Self:
        self.bar = ProgressBar(self.experiment.title, *self._about, "rounds")
        self._log = get_run_logger()
        partition, method, seed = self._about
        add_tags(self.experiment.dataset, str(partition), str(method), f"seed {seed}")
        return self

    def __exit__(self, *error: object) -> None: ...

    def opened(self, record: Record) -> None:
        """Link the flow run and the run in MLflow."""
        link_record(record, self._about)

    @asking()
    def round(self, report: RoundReport, rounds: int) -> None:
        """Record one round."""
        if was_evaluated(report):
            self.evaluated.append(report)
            numbers = (name for name in headlines(report.values) if metric_of(name))
            words = ", ".join(f"{heading(name)} {printed(name, report.values[name])}" for name in numbers)
            self._log.info(f"round {report.round} of {rounds}: {words}")
            # Prefect keeps every version of the table: fewer and fewer keep its database small.
            if time.monotonic() - self._shown > BETWEEN and len(self.evaluated) >= 1.1 * self._rows:
                self._table()
        for client, why in report.failed.items():
            self._log.warning(f"round {report.round}: client {client} is left out: {why}")
        self.bar.step(report.round, rounds)

    def finish(self, metrics: dict[str, Any]) -> None:
        """Publish the table of evaluations and a summary."""
        self._table()
        lines = [f"| {name} | {value} |" for name, value in metrics.items() if value is not None]
        create_markdown_artifact(
            "\n".join(
                ["| metric | value |", "|---|---|", *lines, "", f"Details: `fedflow show {self.named}`"]
            ),
            key=self._key("summary"),
            description=f"Final metrics of {self.experiment.title}",
        )

    def _table(self) -> None:
        table, title = evaluations(self.evaluated), f"Evaluations of {self.experiment.title}"
        create_table_artifact(table=table, key=self._key("accuracy"), description=title)
        self._shown, self._rows = time.monotonic(), len(table)


def finished_by_an_earlier_try(cell: Cell, folder: Path) -> bool:
    """True if this run of a flow is a retry, and the one before failed after it had written its results."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.run_count < 2:
        return False
    made, file = context.flow_run.created, folder / MARKER
    written = made and file.exists() and file.stat().st_mtime > made.timestamp()
    finished = bool(written) and is_finished(cell, folder)
    if finished:
        say(f"{cell.title}: already finished")
    return finished


def add_tags(*tags: str) -> None:
    """Add tags to the flow run of this context."""
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(flow_run.id)
        client.update_flow_run(run.id, tags=[*dict.fromkeys([*run.tags, *tags])])


@asking()
def link_record(record: Record, parts: Sequence[object]) -> None:
    """Link the flow run and MLflow's run both ways; ``parts`` make the key of the artifact."""
    record.link(flow_run.id, flow_run.ui_url)
    get_run_logger().info(f"MLflow run: {record.page} (served by `fedflow ui`)")
    create_link_artifact(
        link=record.page,
        link_text="MLflow run",
        key=artifact_key(*parts, "mlflow"),
        description="Parameters, metrics by step, files and models; served by `fedflow ui`",
    )


def was_evaluated(report: RoundReport) -> bool:
    """True if the models were evaluated after this round; a regression has no accuracy."""
    return not EVALUATED.isdisjoint(report.values)


def evaluations(rounds: Sequence[RoundReport]) -> list[dict[str, Any]]:
    """A row per round with its headline metrics and diagnostics, as text."""
    names = headlines({name for report in rounds for name in report.values})
    return [
        {"round": report.round}
        | {heading(name): printed(name, report.values.get(name)) for name in names}
        | {"failed": len(report.failed)}
        for report in rounds
    ]


def network_table(name: str, folder: Path) -> None:
    """The epochs of a central network as a table."""
    epochs = pd.read_csv(folder / TABLE)
    table = [dict(zip(map(str, epochs), row)) for row in epochs.to_numpy().tolist()]
    create_table_artifact(
        table=table, key=artifact_key("central", name, "epochs"), description="Loss and accuracy by epoch"
    )


def outcome_table(run: ProcedureRun) -> None:
    """The summary of a procedure as a table."""
    columns, rows = read_summary(run)
    table = [dict(zip(("row", *columns), row, strict=True)) for row in rows]
    key = artifact_key("procedure", run.name, run.seed, "summary")
    create_table_artifact(table=table, key=key, description=f"Summary of {run.title}")


def comparison(name: str, results: Sequence[dict[str, Any]]) -> None:
    """One table of all runs of a sweep."""
    measured = headlines(dict.fromkeys(name for result in results for name in result))
    columns = ("partition", "method", "seed", *measured)
    table = [{column: result.get(column) for column in columns} for result in results]
    create_table_artifact(
        table=table, key=artifact_key(name, "comparison"), description="All runs of the sweep"
    )
