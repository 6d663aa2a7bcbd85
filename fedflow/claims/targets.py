"""Targets: the round in which a run first reached a number, its cost, and the gain over other methods.

Everything is computed from files of finished runs, so another target needs no new run. A run that did not
reach its target counts with its whole budget, and its numbers are lower bounds, written with a "+".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import pandas as pd

from fedflow.errors import BadInput, FedflowError, unknown_name
from fedflow.finished.run import Run
from fedflow.finished.tables import Stat
from fedflow.metrics.table import ADAPTED, LEVEL, METRICS, REPORTED, levels_of, metric_of
from fedflow.metrics.target import first_reaching


class NotMeasured(FedflowError):
    """A run lacks the data for a number; a run with other settings would have it."""


@dataclass(frozen=True)
class Reach:
    """The first round that reached a target, and the cost until then, or until the end if none did.

    ``transmissions`` is the traffic in rounds of FedAvg with the same cohorts, as if failed clients had sent
    their updates. ``bytes`` include onboarding and networks that are shipped once (teacher and expert);
    transmissions leave these out, as published tables do.
    """

    round: int | None  # the first evaluated round that reached it
    budget: int  # rounds of the whole run
    rounds: int
    transmissions: float | None  # None if the results do not count them
    bytes: int
    gradients: float | None  # samples whose gradient was computed, None if not counted
    clock: float | None  # simulated time, None if not counted


def reached(rounds: pd.DataFrame, column: str, target: float, smooth: float = 0.0) -> int | None:
    """The first evaluated round in which ``column`` of ``rounds`` reaches ``target``, or None.

    Accuracies reach it from below, losses from above. With ``smooth``, it compares
    s_t = smooth s_(t-1) + (1 - smooth) x_t, s_1 = x_1, over evaluated rounds.
    """
    i = first_reaching(column, rounds[column], target, smooth)
    return None if i is None else int(rounds["round"].iloc[i])


def reach(run: Run, column: str, target: float, smooth: float = 0.0) -> Reach:
    """The round in which ``run`` reached ``target``, and its cost. Raises `NotMeasured`."""
    column_of(run, column)
    first = reached(run.rounds, column, target, smooth)
    until = run.rounds if first is None else run.rounds[run.rounds["round"] <= first]
    last, budget = until.iloc[-1], int(run.rounds["round"].iloc[-1])
    down, up = (int(last[f"bytes_{way}"]) for way in ("down", "up"))
    before = sum(run.metrics.get(f"onboarding_bytes_{way}") or 0 for way in ("down", "up"))
    return Reach(
        round=first,
        budget=budget,
        rounds=int(last["round"]),
        transmissions=_transmissions(run, until, down, up, before),
        bytes=down + up + before + (run.metrics.get("shipped_bytes") or 0),
        gradients=float(last["gradients"]) if "gradients" in until else None,
        clock=float(last["clock"]) if "clock" in until else None,
    )


def _transmissions(run: Run, until: pd.DataFrame, down: int, up: float, before: int) -> float | None:
    """Traffic in rounds of FedAvg, which sends the model, 4 P bytes, to and from every client of a cohort.

    Traffic is in bytes ``down``, ``up``, and both ways ``before`` the first round. A failed client sent
    nothing and counts as the mean of the others, or as its download if all failed.
    """
    if "participants" not in until:
        return None
    asked = int(until["participants"].sum())
    arrived = asked - int(until["failed"].sum() if "failed" in until else 0)
    if arrived < asked:
        up = up * asked / arrived if arrived else down
    whole = 8 * run.metrics["parameters"] * asked
    return len(until) * (down + up + before) / whole if whole else 0.0


def column_of(run: Run, column: str) -> pd.Series:
    """A column of ``rounds.csv``. Raises `NotMeasured` if it is absent or empty."""
    if column in run.rounds and run.rounds[column].notna().any():
        return run.rounds[column]
    metric = metric_of(column)
    report = (metric.name if metric else column).rpartition("_")[0]
    levels = levels_of(run.rounds)
    if levels and column.startswith(LEVEL) and levels_of([column])[0] not in levels:
        advice = f"the levels are {', '.join(levels)}"
    elif report in [name for name, *_ in REPORTED]:
        advice = f"set run.reports: [{report}]"
    elif report in dict(ADAPTED):
        advice = f"set run.adapt: [{{name: {report}}}]"
    else:
        filled = [str(name) for name in run.rounds if run.rounds[name].notna().any()]
        advice = f"it has {', '.join(name for name in filled if name != 'round')}"
    state = "an empty" if column in run.rounds else "no"
    raise NotMeasured(f"{run.folder / 'rounds.csv'} has {state} column {column}: {advice}")


def check_target(column: str, target: float, smooth: float = 0.0) -> None:
    """Raise `BadInput` unless ``column`` is a metric of rounds with a direction, within its bounds."""
    directed = [metric.name for metric in METRICS.values() if metric.rounds and metric.better]
    metric = metric_of(column)
    if metric is None or metric.name not in directed:
        raise unknown_name("column", column, directed)
    if metric.unit.sign == "%" and not 0 <= target <= 1:
        raise BadInput("target", target, "a share from 0 to 1, such as 0.8")
    if not math.isfinite(target):
        raise BadInput("target", target, "a finite number")
    if not 0 <= smooth < 1:
        raise BadInput("smooth", smooth, "a number >= 0 and < 1")


@dataclass(frozen=True)
class Cost:
    """The cost of a target over the seeds of one method.

    ``reached`` has the costs of seeds that reached it, if any; ``least`` is the lowest cost of the others at
    their end, or None if all reached it.
    """

    reached: Stat | None
    least: float | None
    seeds: int

    @property
    def number(self) -> float:
        """The mean over seeds that reached the target, or a lower bound if none did."""
        if self.reached is not None:
            return self.reached.mean
        assert self.least is not None
        return self.least

    @property
    def share(self) -> str:
        """``3 of 4`` seeds reached the target."""
        return f"{len(self.reached.values) if self.reached else 0} of {self.seeds}"

    @property
    def sign(self) -> str:
        """A "+" if a seed did not reach the target, so that the number is a lower bound."""
        return "" if self.least is None else "+"

    def text(self, factor: float = 1.0) -> str:
        """``3``, ``3.5 ± 0.7`` or ``4+``."""
        several = self.reached is not None and len(self.reached.values) > 1
        spread = f" ± {number(self.reached.std * factor)}" if self.reached and several else ""
        return f"{number(self.number * factor)}{self.sign}{spread}"


def cost(by_seed: dict[int, tuple[float | None, bool]]) -> Cost | None:
    """The cost of a target from number and success by seed, or None if a seed has no number."""
    measured = {seed: (value, arrived) for seed, (value, arrived) in by_seed.items() if value is not None}
    if len(measured) < len(by_seed):
        return None
    arrived = {seed: value for seed, (value, done) in measured.items() if done}
    others = [value for value, done in measured.values() if not done]
    return Cost(Stat(arrived) if arrived else None, min(others, default=None), len(by_seed))


def number(value: float) -> str:
    """A number with one decimal unless it is whole."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def gain(baseline: Cost, best: Cost) -> str:
    """The baseline's cost over ``best``, exact halves rounded to even: ``2.7``, ``>1.3``.

    Empty if ``best`` is a lower bound or a cost is 0.
    """
    if best.sign or not best.number or not baseline.number:
        return ""
    ratio = round(Fraction(baseline.number) / Fraction(best.number), 1)
    return f"{'>' if baseline.sign else ''}{float(ratio):.1f}"


@dataclass(frozen=True)
class Costs:
    """The costs of a target over the seeds of one method, and the gain of the cheapest method over it.

    A number is None if the results do not count it.
    """

    runs: Sequence[Run]
    rounds: Cost
    transmissions: Cost | None
    bytes: Cost
    gradients: Cost | None
    gain: str = ""


def costs(runs: Sequence[Run], column: str, target: float, smooth: float = 0.0) -> Costs:
    """The costs of a target over ``runs``, the seeds of one method. Raises `NotMeasured`."""
    by_seed = {run.seed: reach(run, column, target, smooth) for run in runs}

    def of(name: str) -> Cost | None:
        return cost({seed: (getattr(r, name), r.round is not None) for seed, r in by_seed.items()})

    rounds, sent = of("rounds"), of("bytes")
    assert rounds is not None and sent is not None
    return Costs(runs, rounds, of("transmissions"), sent, of("gradients"))


def compared(rows: Sequence[Costs]) -> list[Costs]:
    """``rows`` with the gain in transmissions of the cheapest method.

    It has the fewest transmissions of the methods that send something and reached the target with every seed.
    """
    sent = [row.transmissions for row in rows if row.transmissions is not None]
    best = min((c for c in sent if not c.sign and c.number), key=lambda c: c.number, default=None)
    return [
        replace(row, gain=gain(row.transmissions, best) if best and row.transmissions else "") for row in rows
    ]


def spacing(runs: Sequence[Run], column: str) -> int:
    """The largest number of rounds until an evaluation of ``column``; for rows, as it was set."""
    tables = (run.rounds for run in runs if column in run.rounds)
    evaluated = ([0, *table["round"][table[column].notna()]] for table in tables)
    gaps = [after - before for rounds in evaluated for before, after in pairwise(rounds)]
    if METRICS.get(column) is not METRICS["train_loss"]:  # which every round has
        gaps += [run.params["run"]["evaluate_every"] for run in runs if run.committed]
    return int(max(gaps, default=1))


def cost_table(partition: str, rows: Sequence[Costs]) -> pd.DataFrame:
    """A row per method: seeds, seeds that reached the target, mean and sample std of every cost, gain.

    Means and stds are over the seeds that reached it; if none did, the mean is the lowest cost at the end.
    """
    table = []
    for row in rows:
        first, arrived = row.runs[0], row.rounds.reached
        names = {name: getattr(first, name) for name in ("method", "label", "settings")}
        counts = {"seeds": row.rounds.seeds, "reached": len(arrived.values) if arrived else 0}
        numbers: dict[str, float | None] = {}
        for name in ("rounds", "transmissions", "bytes", "gradients"):
            of_kind: Cost | None = getattr(row, name)
            numbers[name] = of_kind.number if of_kind else None
            arrived = of_kind.reached if of_kind else None
            numbers[f"{name}_std"] = arrived.std if arrived and len(arrived.values) > 1 else None
        table.append({"partition": partition, **names, **counts, **numbers, "gain": row.gain})
    return pd.DataFrame(table)
