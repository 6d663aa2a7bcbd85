"""All methods on six divisions of two data sets: ``make leaderboard``, a night on two cores.

Tunes each method that has no entry under ``tuned`` in params.yaml, runs the grid, and writes the report and
``leaderboard.md``. Every registered method that can train the study's network takes part, so that a new
method is a new row. The same command resumes.
"""

import subprocess
import sys
from pathlib import Path

import pandas as pd

from fedflow.config import Loaded, load_params
from fedflow.errors import FedflowError
from fedflow.methods import METHODS
from fedflow.report.sections.ranks import critical_difference
from fedflow.stages.experiment import experiments

HERE = Path(__file__).parent
LEFT_OUT = {
    "fedbn": "needs BatchNorm",
    "fedcgan": "its server makes images",
    "fedcvae": "its server makes images",
    "fedevg": "its server makes images",
}
SCORE, WORST = "local_accuracy", "local_worst10"


def entrants(params: Loaded) -> tuple[list[str], dict[str, str]]:
    """Methods that take part, and why the others do not."""
    published = [name for name in METHODS if name.endswith("_as_published")]
    names, others = [], LEFT_OUT | dict.fromkeys(published, "repeats the defects of published code")
    for name in sorted(METHODS.keys() - others.keys()):
        try:
            experiments(params, HERE, "leaderboard", methods=[name])
            names.append(name)
        except FedflowError as error:
            others[name] = str(error).splitlines()[0]
    return names, others


def board(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per method, best mean rank first, from the rows of runs.csv.

    Columns: the mean rank by mean local accuracy of the seeds, that accuracy per partition, the accuracy of
    the worst tenth of the clients, in %, and the megabytes of a run with its onboarding.
    """
    scores = runs.pivot_table(SCORE, "method_label", "partition").dropna()
    ranks = scores.rank(ascending=False).mean(axis=1)
    sent = [name for name in runs if name.removeprefix("onboarding_") in ("bytes_up", "bytes_down")]
    bytes_sent = runs[sent].sum(axis=1)
    means = pd.DataFrame({"worst tenth": 100 * runs[WORST], "MB": bytes_sent / 1e6}).groupby(
        runs["method_label"]
    )
    table = pd.concat([ranks.rename("mean rank"), 100 * scores, means.mean()], axis=1, join="inner")
    return table.sort_values("mean rank", kind="stable")


def page(table: pd.DataFrame, seeds: int, others: dict[str, str]) -> str:
    """The board in Markdown, with the critical difference of Nemenyi's test at 5 %."""
    partitions = table.shape[1] - 3
    critical = critical_difference(len(table), partitions)
    rows = ["| method | " + " | ".join(table.columns) + " |", "|---|" + "---:|" * table.shape[1]]
    for name, row in table.iterrows():
        rank, *scores, sent = row
        cells = [f"{rank:.2f}", *(f"{score:.1f}" for score in scores), f"{sent:.0f}"]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(
        [
            "# Leaderboard",
            "",
            f"Mean local accuracy in %, {seeds} seeds; 20 clients, 5 a round, 20 rounds, LeNet-5. Mean ranks "
            f"differ significantly (Nemenyi, 5 %) from a difference of {critical:.1f}. Commits and "
            "processors are in [results.csv](results.csv).",
            "",
            *rows,
            "",
            "Left out:",
            "",
            *(f"- `{name}`: {why}" for name, why in sorted(others.items())),
            "",
        ]
    )


def call(*arguments: str) -> int:
    """Run a fedflow command on this study; returns its exit status."""
    return subprocess.run(["fedflow", *arguments, "--root", str(HERE)], check=False).returncode


def main() -> None:
    params = load_params(HERE / "params.yaml")
    names, others = entrants(params)
    for partition in params.grid.partitions:
        left = [name for name in names if name not in (params.tuned.get(partition) or {})]
        while left and call("tune", "--partition", partition, *(f"--method={name}" for name in left)):
            tuned = load_params(HERE / "params.yaml").tuned.get(partition) or {}
            left = [name for name in left if name not in tuned][1:]  # it ended at the first of these
    params = load_params(HERE / "params.yaml")
    for name in names:
        tuned = {partition for partition, entries in params.tuned.items() if name in (entries or {})}
        if untuned := [partition for partition in params.grid.partitions if partition not in tuned]:
            others[name] = f"no trial ended on {', '.join(untuned)}"
    names = [name for name in names if name not in others]
    call("sweep", "--set", f"grid.methods=[{', '.join(names)}]")  # diverged runs are left out below
    if status := call("report", "--verdicts"):  # writes results.csv, to be committed
        sys.exit(status)
    runs = pd.read_csv(HERE / "report" / "runs.csv")
    table = board(runs)
    ended = set(runs.loc[runs["method_label"].isin(table.index), "method"])
    others |= {name: "a run failed or diverged" for name in names if name not in ended}
    (HERE / "leaderboard.md").write_text(page(table, len(params.grid.seeds), others))
    print(HERE / "leaderboard.md")


if __name__ == "__main__":
    main()
