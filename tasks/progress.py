"""Progress and results as Prefect artifacts, so that a run can be followed in the Prefect UI."""

from collections.abc import Sequence
from typing import Any, Self

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from fedflow.experiment import Experiment
from fedflow.simulation.outcome import Round


class PrefectProgress:
    """A progress bar over the rounds, a table of evaluations, and a summary at the end."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.key = f"{experiment.partition}-{experiment.method}-{experiment.seed}".lower().replace("_", "-")
        self.rows: list[dict[str, Any]] = []
        self.done = 0.0

    def __enter__(self) -> Self:
        self.artifact = create_progress_artifact(
            0.0, key=f"{self.key}-rounds", description=self.experiment.title
        )
        return self

    def __exit__(self, *error: object) -> None: ...

    def round(self, report: Round, rounds: int) -> None:
        """Take note of one round; the artifact moves in steps of at least 5 %."""
        percent = 100 * report.round / rounds
        if report.local_accuracy is not None:
            self.rows.append({
                "round": report.round,
                "local accuracy": f"{report.local_accuracy:.4f}",
                "global accuracy": "" if report.global_accuracy is None else f"{report.global_accuracy:.4f}",
                "train loss": f"{report.train_loss:.4f}",
                "failed": len(report.failed),
            })  # fmt: skip
        if percent - self.done >= 5 or percent == 100:
            update_progress_artifact(artifact_id=self.artifact, progress=percent)  # type: ignore[arg-type]
            self.done = percent

    def finish(self, metrics: dict[str, Any]) -> None:
        """Leave the table of evaluations and a summary."""
        create_table_artifact(table=self.rows, key=f"{self.key}-accuracy", description="Accuracy by round")
        lines = [f"| {name} | {value} |" for name, value in metrics.items() if value is not None]
        create_markdown_artifact(
            "\n".join(["| metric | value |", "|---|---|", *lines]), key=f"{self.key}-summary"
        )


def comparison(name: str, results: Sequence[dict[str, Any]]) -> None:
    """One table over all runs of a sweep."""
    columns = (
        "partition",
        "method",
        "seed",
        "local_accuracy",
        "global_accuracy",
        "tuned_accuracy",
        "bytes_up",
    )
    table = [{column: result[column] for column in columns} for result in results]
    create_table_artifact(table=table, key=f"{name}-comparison".lower(), description="Every run of the sweep")
