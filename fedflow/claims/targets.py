"""Targets: when a run first reached a number, what that cost, and how much more it cost other methods.

Everything is computed from files of finished runs, so another target needs no new run. A run that has not
reached its target counts with its whole budget, and its numbers are lower bounds, written with a "+".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import pandas as pd

from fedflow.errors import BadInput, FedflowError, unknown_name
from fedflow.finished.run import Run
from fedflow.finished.tables import Stat
from fedflow.metrics.table import ADAPTED, LEVEL, METRICS, REPORTED, levels_of, metric_of
from fedflow.metrics.target import first_reaching


class NotMeasured(FedflowError):
    """A run lacks what a number is computed from; another run, with other settings, would have it."""


@dataclass(frozen=True)
class Reach:
    """When a run first reached a target, and what it cost until then (or until its end, if it never did).

    ``round``: the first evaluated round that reached it, None if there is none. ``rounds``: until then;
    ``budget``: of the whole run. ``transmissions``: traffic in rounds of FedAvg with the same cohorts, in
    which clients that fail count as if they had sent their updates.
    ``bytes``: both ways, with the onboarding and with what is shipped once (teacher and expert), which
    transmissions leave out, as published tables do. ``gradients``: samples whose gradient was computed.
    Transmissions and gradients are None in results that do not count them.
    """

    round: int | None
    budget: int
    rounds: int
    transmissions: float | None
    bytes: int
    gradients: float | None


def reached(rounds: pd.DataFrame, column: str, target: float, smooth: float = 0.0) -> int | None:
    """The first evaluated round in which ``column`` of ``rounds`` reaches ``target``; None if none does.

    The direction is that of the metric: accuracies from below, losses from above. ``smooth`` compares
    s_t = smooth s_(t-1) + (1 - smooth) x_t, s_1 = x_1, over evaluated rounds.
    """
    place = first_reaching(column, rounds[column], target, smooth)
    return None if place is None else int(rounds["round"].iloc[place])


def reach(run: Run, column: str, target: float, smooth: float = 0.0) -> Reach:
    """When ``run`` reached ``target``, and what it cost. Raises `NotMeasured` without the column."""
    column_of(run, column)
    found = reached(run.rounds, column, target, smooth)
    until = run.rounds if found is None else run.rounds[run.rounds["round"] <= found]
    last, budget = until.iloc[-1], int(run.rounds["round"].iloc[-1])
    down, up = (int(last[f"bytes_{way}"]) for way in ("down", "up"))
    before = sum(run.metrics.get(f"onboarding_bytes_{way}") or 0 for way in ("down", "up"))
    return Reach(
        round=found,
        budget=budget,
        rounds=int(last["round"]),
        transmissions=_transmissions(run, until, down, up, before),
        bytes=down + up + before + (run.metrics.get("shipped_bytes") or 0),
        gradients=float(last["gradients"]) if "gradients" in until else None,
    )


def _transmissions(run: Run, until: pd.DataFrame, down: int, up: float, before: int) -> float | None:
    """Traffic in rounds of FedAvg: the model, 4 P bytes, to and from every client of the same cohorts.

    Bytes ``down`` and ``up``, and both ways ``before`` the first round. Clients that failed sent nothing:
    they count with the mean of the others, or with what they received if all failed.
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
    """A column of ``rounds.csv``; raises `NotMeasured` where it is absent or empty."""
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
    """What a target cost over the seeds of one method.

    ``reached``: the cost by seed of those that reached it, if any. ``least``: the lowest cost of the others
    at their end, None if all reached it.
    """

    reached: Stat | None
    least: float | None
    seeds: int

    @property
    def number(self) -> float:
        """The mean of the seeds that reached the target, else a lower bound of all."""
        if self.reached is not None:
            return self.reached.mean
        assert self.least is not None
        return self.least

    @property
    def share(self) -> str:
        """``3 of 4``: how many seeds reached the target."""
        return f"{len(self.reached.values) if self.reached else 0} of {self.seeds}"

    @property
    def sign(self) -> str:
        """A "+" if the number is only a lower bound: a seed did not reach the target."""
        return "" if self.least is None else "+"

    def text(self, factor: float = 1.0) -> str:
        """``3``, ``3.5 ± 0.7`` or ``4+``."""
        several = self.reached is not None and len(self.reached.values) > 1
        spread = f" ± {number(self.reached.std * factor)}" if self.reached and several else ""
        return f"{number(self.number * factor)}{self.sign}{spread}"


def cost(found: dict[int, tuple[float | None, bool]]) -> Cost | None:
    """The cost of a target over seeds: by seed, the number and whether the target was reached.

    None if a seed has no number.
    """
    known = {seed: (value, arrived) for seed, (value, arrived) in found.items() if value is not None}
    if len(known) < len(found):
        return None
    arrived = {seed: value for seed, (value, done) in known.items() if done}
    others = [value for value, done in known.values() if not done]
    return Cost(Stat(arrived) if arrived else None, min(others, default=None), len(found))


def number(value: float) -> str:
    """A whole number as it is, another with one decimal."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def gain(baseline: Cost, best: Cost) -> str:
    """How many times ``best`` the baseline costs, exact halves rounded to even: ``2.7``, ``>1.3``.

    Empty if ``best`` is a lower bound, or a cost is 0.
    """
    if best.sign or not best.number or not baseline.number:
        return ""
    ratio = round(Fraction(baseline.number) / Fraction(best.number), 1)
    return f"{'>' if baseline.sign else ''}{float(ratio):.1f}"


@dataclass(frozen=True)
class Costs:
    """What a target cost the seeds of one method, and the gain of the cheapest method over it.

    A number is None if the results do not count it.
    """

    runs: Sequence[Run]
    rounds: Cost
    transmissions: Cost | None
    bytes: Cost
    gradients: Cost | None
    gain: str = ""


def costs(runs: Sequence[Run], column: str, target: float, smooth: float = 0.0) -> Costs:
    """What a target cost ``runs``, the seeds of one method. Raises `NotMeasured` without the column."""
    found = {run.seed: reach(run, column, target, smooth) for run in runs}

    def of(name: str) -> Cost | None:
        return cost({seed: (getattr(one, name), one.round is not None) for seed, one in found.items()})

    rounds, sent = of("rounds"), of("bytes")
    assert rounds is not None and sent is not None
    return Costs(runs, rounds, of("transmissions"), sent, of("gradients"))


def compared(rows: Sequence[Costs]) -> list[Costs]:
    """``rows`` with gains: transmissions in those of the cheapest method that sends something.

    That is the one with the fewest on average, of those whose every seed reached the target.
    """
    known = [row.transmissions for row in rows if row.transmissions is not None]
    best = min((c for c in known if not c.sign and c.number), key=lambda c: c.number, default=None)
    return [
        replace(row, gain=gain(row.transmissions, best) if best and row.transmissions else "") for row in rows
    ]


def spacing(runs: Sequence[Run], column: str) -> int:
    """The most rounds from one evaluation of ``column`` to the next."""
    gaps = (
        run.rounds["round"][run.rounds[column].notna()].diff().max() for run in runs if column in run.rounds
    )
    return int(max((gap for gap in gaps if gap == gap), default=1))


def cost_table(partition: str, rows: Sequence[Costs]) -> pd.DataFrame:
    """A row per method: seeds, how many reached the target, mean and sample std of every cost, the gain.

    Means and stds are over the seeds that reached it; if none did, the mean is the lowest cost at the end.
    """
    found = []
    for row in rows:
        first, arrived = row.runs[0], row.rounds.reached
        names = {
            "partition": partition,
            "method": first.method,
            "label": first.label,
            "settings": first.settings,
        }
        counts = {"seeds": row.rounds.seeds, "reached": len(arrived.values) if arrived else 0}
        numbers: dict[str, float | None] = {}
        for name in ("rounds", "transmissions", "bytes", "gradients"):
            one: Cost | None = getattr(row, name)
            numbers[name] = one.number if one else None
            numbers[f"{name}_std"] = one.reached.std if one and one.reached else None
        found.append({**names, **counts, **numbers, "gain": row.gain})
    return pd.DataFrame(found)
