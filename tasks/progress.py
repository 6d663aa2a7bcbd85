"""Progress and results as Prefect artifacts, so that a run can be followed in the Prefect UI."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pandas as pd
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from fedflow.experiment import Experiment
from fedflow.metrics.table import heading, headlines, printed
from fedflow.simulation.outcome import RoundReport
from fedflow.stages.central import TABLE
from fedflow.stages.procedure import ProcedureRun, read_summary


def artifact_key(*parts: object) -> str:
    """A key that Prefect accepts: lower case, digits and dashes, with a digest of other names.

    >>> artifact_key("mnist5k-dir", "lg_fedavg", 0)
    'mnist5k-dir-lg-fedavg-0'
    >>> artifact_key("my.part", "rounds")
    'my-part-rounds-aee7c5'
    """
    text = "-".join(map(str, parts))
    key = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")
    if not re.fullmatch("[A-Za-z0-9_-]+", text):  # names may differ only in replaced characters
        key = f"{key}-{hashlib.blake2b(text.encode(), digest_size=3).hexdigest()}".strip("-")
    return key


class ProgressBar:
    """A progress artifact, which moves in steps of at least 5 %. Its key is of these ``parts``."""

    def __init__(self, description: str, *parts: object) -> None:
        self.artifact = create_progress_artifact(0.0, key=artifact_key(*parts), description=description)
        self.done = 0.0

    def step(self, number: int, total: int) -> None:
        """Move to step ``number``, from 1, of ``total``."""
        percent = 100 * number / total
        if abs(percent - self.done) >= 5 or percent == 100:  # back, if another network starts
            update_progress_artifact(artifact_id=self.artifact, progress=percent)  # type: ignore[arg-type]
            self.done = percent


class PrefectProgress:
    """A progress bar over the rounds, a table of evaluations, and a summary at the end."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.evaluated: list[RoundReport] = []

    @property
    def _about(self) -> tuple[object, ...]:
        return self.experiment.partition, self.experiment.method, self.experiment.seed

    def _key(self, what: str) -> str:
        return artifact_key(*self._about, what)

    def __enter__(self) -> Self:
        self.bar = ProgressBar(self.experiment.title, *self._about, "rounds")
        return self

    def __exit__(self, *error: object) -> None: ...

    def round(self, report: RoundReport, rounds: int) -> None:
        """Record one round."""
        if "local_accuracy" in report.values:
            self.evaluated.append(report)
        self.bar.step(report.round, rounds)

    def finish(self, metrics: dict[str, Any]) -> None:
        """Publish the table of evaluations and a summary."""
        table = evaluations(self.evaluated)
        create_table_artifact(table=table, key=self._key("accuracy"), description="Accuracy by round")
        lines = [f"| {name} | {value} |" for name, value in metrics.items() if value is not None]
        create_markdown_artifact(
            "\n".join(["| metric | value |", "|---|---|", *lines]), key=self._key("summary")
        )


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
        table=table, key=artifact_key(name, "comparison"), description="Every run of the sweep"
    )
