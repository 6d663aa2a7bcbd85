"""All methods on six divisions of two datasets: ``make leaderboard``, a night on two cores.

Tunes each method that has no entry under ``tuned`` in params.yaml, makes the runs that results.csv does not
have, and fills the board into the README. Every registered method that can train the study's network takes
part, so that a new method is a new row; names after the command run only these. The same command resumes.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from fedflow.claims.results import CHANGES, read_results
from fedflow.claims.sources import NONE
from fedflow.config import Loaded, load_params
from fedflow.errors import FedflowError
from fedflow.methods import METHODS
from fedflow.pictures.drawing import INK, MUTED, SERIES, Drawing, drawing
from fedflow.report.sections.ranks import critical_difference
from fedflow.stages.experiment import experiments

HERE = Path(__file__).parent
LEFT_OUT = {
    "fedbn": "needs BatchNorm",
    "fedcgan": "its server makes images",
    "fedcvae": "its server makes images",
    "fedevg": "its server makes images",
}
SCORE, WORST, TUNED = "local_accuracy", "local_worst10", "tuned_accuracy"
SENT = ("bytes_down", "bytes_up", "onboarding_bytes_down", "onboarding_bytes_up")
BOARD, END = "<!-- board -->", "<!-- end of board -->"  # in the README
TUNED_SUFFIX = ", fine-tuned"
WIDTH = 6.4  # inches, of a picture


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


def finished() -> pd.DataFrame:
    """The rows of results.csv with the settings of params.yaml, also of runs elsewhere, numbers as numbers.

    FedAvg after fine-tuning counts as another method, without a worst tenth; others are tuned for claims.
    """
    runs = pd.DataFrame(row for row in read_results(HERE) if not row.get(CHANGES))
    numbers = [SCORE, WORST, *(name for name in (TUNED, *SENT) if name in runs)]
    runs[numbers] = runs[numbers].replace(NONE, None).apply(pd.to_numeric)
    if TUNED not in runs:
        return runs
    tuned = runs[runs[TUNED].notna() & (runs["method"] == "fedavg")]
    tuned = tuned.assign(**{SCORE: tuned[TUNED], WORST: float("nan")}, method=tuned["method"] + TUNED_SUFFIX)
    return pd.concat([runs, tuned], ignore_index=True)


def label(name: str) -> str:
    """The printed name of a method, also of one after fine-tuning."""
    method, tuned, _ = name.partition(TUNED_SUFFIX)
    return METHODS[method].label + tuned


def board(runs: pd.DataFrame, seeds: int) -> pd.DataFrame:
    """A row per method that ended with all seeds on every partition, best mean rank first.

    Columns: the mean rank by mean local accuracy of the seeds, that accuracy per partition, the accuracy of
    the worst tenth of the clients, in %, and the megabytes of a run with its onboarding.
    """
    ended = runs.dropna(subset=SCORE).pivot_table(SCORE, "method", "partition", aggfunc="count")
    whole = ended.index[(ended == seeds).all(axis=1)]
    scores = runs.pivot_table(SCORE, "method", "partition").loc[whole]
    ranks = scores.rank(ascending=False).mean(axis=1)
    sent = runs[[name for name in SENT if name in runs]].sum(axis=1)
    means = pd.DataFrame({"worst tenth": 100 * runs[WORST], "MB": sent / 1e6}).groupby(runs["method"]).mean()
    table = pd.concat([ranks.rename("mean rank"), 100 * scores, means], axis=1, join="inner")
    return table.rename(label).sort_values("mean rank", kind="stable")


def lines(table: pd.DataFrame, seeds: int, others: dict[str, str]) -> list[str]:
    """The board in Markdown, with the critical difference of Nemenyi's test at 5 %, and who is left out."""
    rows = ["| method | " + " | ".join(table.columns) + " |", "|---|" + "---:|" * table.shape[1]]
    for name, row in table.iterrows():
        rank, *scores, sent = row
        shares = ("–" if score != score else f"{score:.1f}" for score in scores)
        cells = [f"{rank:.2f}", *shares, f"{sent:.0f}"]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    names: dict[str, list[str]] = {}
    for name, why in sorted(others.items()):
        names.setdefault(why, []).append(f"`{name}`")
    return [
        f"Mean local accuracy in %, {seeds} seeds. Mean ranks differ significantly (Nemenyi, 5 %) from a "
        f"difference of {critical(table):.1f}, the bar above the ranks. The line joins the methods with the "
        "highest accuracy for their traffic.",
        "",
        "![Mean ranks](ranks.svg)",
        "![Accuracy by traffic](traffic.svg)",
        "",
        *rows,
        "",
        "Left out:",
        "",
        *(f"- {why}: {', '.join(those)}" for why, those in names.items()),
    ]


def critical(table: pd.DataFrame) -> float:
    return critical_difference(len(table), table.shape[1] - 3)


def ranks_drawn(table: pd.DataFrame) -> Drawing:
    """Mean ranks, a row per method, and the critical difference as a bar."""
    means = table["mean rank"]
    with drawing("ranks", "Mean ranks", 0.19 * len(table) + 0.6, (1.9, 0.45, 0.2, 0.15), WIDTH) as work:
        axes, rows = work.axes, range(len(table))
        axes.plot(means, rows, "o", ms=4.5, color=SERIES[0])
        axes.plot([means.min(), means.min() + critical(table)], [-0.8, -0.8], color=INK, lw=2)
        axes.set_yticks(rows, table.index)
        axes.set(ylim=(len(table) - 0.5, -1.3), xlim=(0.5, len(table) + 0.5), xlabel="Mean rank")
    return work


def traffic_drawn(table: pd.DataFrame) -> Drawing:
    """Accuracy, a mean over the partitions, by megabytes; names for the best with at most their traffic."""
    scores = table[table.columns[1:-2]].mean(axis=1)
    ordered = pd.DataFrame({"MB": table["MB"], "score": -scores}).sort_values(["MB", "score"]).index
    with drawing("traffic", "Accuracy by traffic", 3.4, (0.6, 0.5, 1.0, 0.25), WIDTH) as work:
        axes, by_traffic = work.axes, scores[ordered]
        best = by_traffic[by_traffic > by_traffic.cummax().shift(fill_value=-1)]
        axes.plot(table["MB"], scores, "o", ms=4, color=MUTED)
        axes.plot(table["MB"][best.index], best, "o-", ms=5, color=SERIES[0])
        sent = table["MB"][best.index]
        for name, score, after in zip(best.index, best, [*sent[1:], np.inf]):
            away = {"xytext": (3, -4), "va": "top"}  # the line rises to the right
            if after < 2 * sent[name]:  # the next name is on the right of a point close to this one
                away = {"xytext": (-5, 4), "ha": "right"}
            elif after == np.inf:
                away = {"xytext": (3, 4)}
            axes.annotate(name, (sent[name], score), textcoords="offset points", **away)
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set(xlabel="MB of a run", ylabel="Local accuracy, %", xlim=(-0.1, None))
    return work


def write(table: pd.DataFrame, seeds: int, others: dict[str, str]) -> None:
    """Update the board in the README and its two pictures."""
    (HERE / "ranks.svg").write_text(ranks_drawn(table).file)
    (HERE / "traffic.svg").write_text(traffic_drawn(table).file)
    readme = (HERE / "README.md").read_text()
    before, _, rest = readme.partition(BOARD)
    _, end, after = rest.partition(END)
    assert end, f"README.md needs the lines {BOARD} and {END}"
    board = "\n".join([BOARD, *lines(table, seeds, others), END])
    (HERE / "README.md").write_text(before + board + after)


def call(*arguments: str) -> int:
    """Run a fedflow command on this study; returns its exit status."""
    return subprocess.run(["fedflow", *arguments, "--root", str(HERE)], check=False).returncode


def parts(names: Iterable[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Methods whose local steps are compiled, and those with second derivatives, each with arguments."""
    adapted = {
        name for name in names if "adaptation" in getattr(METHODS.get(name), "__dataclass_fields__", ())
    }
    for chosen, arguments in ((False, []), (True, ["--set", "engine.compile=auto"])):
        if part := [name for name in names if (name in adapted) == chosen]:
            yield part, arguments


def main(asked: list[str]) -> None:
    """Fill the board, with runs of all methods or of those asked for."""
    params = load_params(HERE / "params.yaml")
    entered, others = entrants(params)
    if unknown := sorted(set(asked) - set(entered)):
        sys.exit(f"not in the leaderboard: {', '.join(unknown)}; choose from {', '.join(entered)}")
    names = asked or entered
    for partition, (part, compiling) in product(params.grid.partitions, parts(names)):
        left = [name for name in part if name not in (params.tuned.get(partition) or {})]
        tune = ("tune", "--partition", partition, *compiling)
        while left and call(*tune, *(f"--method={name}" for name in left)):
            tuned = load_params(HERE / "params.yaml").tuned.get(partition) or {}
            left = [name for name in left if name not in tuned][1:]  # it ended at the first of these
    params = load_params(HERE / "params.yaml")
    for name in names:
        tuned = {partition for partition, entries in params.tuned.items() if name in (entries or {})}
        if untuned := [partition for partition in params.grid.partitions if partition not in tuned]:
            others[name] = f"no trial ended on {', '.join(untuned)}"
    names = [name for name in names if name not in others]
    for part, compiling in parts(names):  # diverged runs are left out below
        call("sweep", "--rest", *compiling, "--set", f"grid.methods=[{', '.join(part)}]")
    if status := call("report", "--verdicts"):  # writes results.csv, to be committed
        sys.exit(status)
    table, seeds = board(finished(), len(params.grid.seeds)), len(params.grid.seeds)
    others = dict.fromkeys(entered, "not run yet") | dict.fromkeys(names, "a run failed or diverged") | others
    write(table, seeds, {name: why for name, why in others.items() if label(name) not in table.index})
    print(HERE / "README.md")


if __name__ == "__main__":
    main(sys.argv[1:])
