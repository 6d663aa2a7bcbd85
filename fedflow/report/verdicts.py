"""Verdicts on claims, from collected runs.

Methods are compared on the seeds that both have. The mean of the paired differences has a two-sided 95 %
interval of Student's t. A claim is confirmed if all of the interval is on its side, not confirmed if none of
it is (as in a tie with every seed), and not resolved otherwise, or with fewer than three seeds. A seed that
did not reach its target enters with a lower bound, and the interval has no end on the side that is unknown.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import t as student

from fedflow.errors import BadInput, unknown_name
from fedflow.methods import METHODS
from fedflow.naming import flat, say
from fedflow.report.claims import Arm, Check, Claim
from fedflow.report.measures import Measure, parse
from fedflow.report.run import Run
from fedflow.report.tables import Stat, by_method, write_csv
from fedflow.report.targets import NotMeasured, spacing

CONFIDENCE, SEEDS = 0.95, 3  # of the interval; the fewest seeds that resolve anything
SHOWN = 3  # comparisons that are printed beside a verdict
# From the best to the worst: a group of checks has the worst of `all`, the best of `any`.
CONFIRMED, NOT_RESOLVED, NOT_RUN, NOT_CONFIRMED = VERDICTS = (
    "confirmed",
    "not resolved",
    "not run",
    "not confirmed",
)
HELD = "held by a test"  # a claim with a test and no check


@dataclass(frozen=True)
class Values:
    """A measure of one method by seed; ``bounds`` are the seeds whose value is only a lower bound."""

    label: str
    stat: Stat
    bounds: frozenset[int]

    def on(self, seeds: Sequence[int]) -> "Values":
        """Those of these seeds."""
        stat = Stat({seed: self.stat.values[seed] for seed in seeds})
        return replace(self, stat=stat, bounds=self.bounds & set(seeds))

    def text(self, measure: Measure) -> str:
        """``TERM 87.0 ± 1.2``, with a "+" if a value is a lower bound."""
        unit, sign = measure.unit, "+" if self.bounds else ""
        spread = f" ± {self.stat.std * unit.factor:.{unit.digits}f}" if len(self.stat.values) > 1 else ""
        return f"{self.label} {self.stat.mean * unit.factor:.{unit.digits}f}{sign}{spread}"


@dataclass(frozen=True)
class Comparison:
    """A measure of one method, compared with another method or with limits, on one partition.

    ``difference`` is first minus second by seed (against limits, the first itself), ``low`` and ``high`` the
    95 % interval of its mean, nan with fewer than three seeds. ``reason``: why nothing is resolved. ``note``:
    what limits the numbers.
    """

    partition: str
    measure: Measure
    statement: str
    verdict: str
    reason: str = ""
    note: str = ""
    first: Values | None = None
    second: Values | None = None
    difference: Stat | None = None
    low: float = math.nan
    high: float = math.nan

    @property
    def numbers(self) -> str:
        """Means ± std, the difference with its interval, and the seeds; or the reason."""
        parts = [" against ".join(one.text(self.measure) for one in (self.first, self.second) if one)]
        if self.difference and self.second:
            parts.append(f"difference {self._signed(self.difference.mean)}")
        if not math.isnan(self.low):
            parts[-1] += f" [{self._signed(self.low)}, {self._signed(self.high)}]"
        if self.difference and not self.reason:
            parts.append(f"{len(self.difference.values)} seeds")
        return "; ".join(part for part in (*parts, self.reason, self.note) if part)

    def _signed(self, value: float) -> str:
        """With one digit more than the means; with a sign where it is a difference."""
        unit = self.measure.unit
        text = f"{value * unit.factor:{'+' if self.second else ''}.{unit.digits + 1}f}"
        return text.replace("-", "−").replace("inf", "∞")


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict and its comparisons."""

    claim: Claim
    verdict: str
    comparisons: list[Comparison]

    @property
    def deciding(self) -> list[Comparison]:
        """The first comparisons whose verdict is that of the claim."""
        return [one for one in self.comparisons if one.verdict == self.verdict][:SHOWN]

    @property
    def counts(self) -> str:
        """``5 comparisons: 3 confirmed, 2 not run``; empty if the deciding ones are all."""
        if len(self.deciding) == len(self.comparisons):
            return ""
        found = Counter(one.verdict for one in self.comparisons)
        words = ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS if found[verdict])
        return f"{len(self.comparisons)} comparisons: {words}"


def judge(claims: Iterable[Claim], runs: Sequence[Run]) -> list[Judged]:
    """The verdicts of ``claims`` on ``runs``. Raises `BadInput` for ``where`` that selects no one setting."""
    judged = []
    for claim in claims:
        try:
            verdict, found = _judge(claim, claim.partitions, {}, runs)
        except BadInput as error:
            raise BadInput(f"claim {claim.id}.{error.field}", error.value, error.accepted) from None
        judged.append(Judged(claim, verdict, found))
    return judged


def _judge(
    check: Check, partitions: list[str], where: Mapping[str, Any], runs: Sequence[Run]
) -> tuple[str, list[Comparison]]:
    """The verdict on a check and its comparisons; partitions and settings are inherited."""
    partitions, where = check.partitions or partitions, {**where, **check.where}
    if check.measure is not None:
        found = [
            _compare(check, other, [run for run in runs if run.partition == partition], partition, where)
            for partition in partitions
            for other in (*check.above, *check.below, *check.equal) or (None,)
        ]
        return max((one.verdict for one in found), key=VERDICTS.index), found
    inner = [_judge(one, partitions, where, runs) for one in check.all or check.any]
    choose = max if check.all else min
    verdict = choose((one for one, _ in inner), key=VERDICTS.index, default=HELD)
    return verdict, [one for _, found in inner for one in found]


def _compare(
    check: Check, other: Arm | None, runs: Sequence[Run], partition: str, where: Mapping[str, Any]
) -> Comparison:
    """One comparison on one partition."""
    assert check.measure is not None and check.of is not None
    measure = parse(check.measure)
    arms = [_select(arm, runs, where) for arm in (check.of, other) if arm]
    labels = [label for label, _ in arms]
    blank = Comparison(partition, measure, _statement(check, measure, labels), NOT_RUN)
    if absent := [label for label, found in arms if not found]:
        return replace(blank, reason=f"no results of {' and '.join(absent)}")
    try:
        values = [_values(measure, *arm) for arm in arms]
    except NotMeasured as error:
        results = Path(*runs[0].folder.parts[:-3])  # left out: where a project is does not change its report
        return replace(blank, reason=str(error).replace(f"{results}/", ""))
    shared = sorted(set.intersection(*(set(one.stat.values) for one in values)))
    if not shared:
        reason = "no shared seeds" if all(one.stat.values for one in values) else "no values"
        return replace(blank, reason=reason)
    values = [one.on(shared) for one in values]
    first, second = values[0], values[1] if other else None
    bases = second.stat.values if second else dict.fromkeys(shared, 0.0)
    difference = Stat({seed: first.stat.values[seed] - bases[seed] for seed in shared})
    done = replace(blank, first=first, second=second, difference=difference, note=_note(measure, arms))
    done = replace(done, verdict=NOT_RESOLVED)
    if len(shared) < SEEDS:
        seeds = f"{len(shared)} {'seed' if len(shared) == 1 else 'shared seeds'}"
        return replace(done, reason=f"{seeds}, of at least {SEEDS}")
    low, high = interval(difference)
    low, high = -math.inf if second and second.bounds else low, math.inf if first.bounds else high
    return replace(done, low=low, high=high, verdict=_side(check, low, high))


def interval(difference: Stat) -> tuple[float, float]:
    """The two-sided 95 % interval of the mean of paired differences, by Student's t."""
    n = len(difference.values)
    half = float(student.ppf((1 + CONFIDENCE) / 2, n - 1)) * difference.std / math.sqrt(n)
    return difference.mean - half, difference.mean + half


def _side(check: Check, low: float, high: float) -> str:
    """On which side of the claim an interval is."""
    if check.above or check.below:
        low, high = (low, high) if check.above else (-high, -low)
        return CONFIRMED if low > check.by else NOT_CONFIRMED if high <= check.by else NOT_RESOLVED
    least, most = check.limits()
    if least <= low and high <= most:
        return CONFIRMED
    return NOT_CONFIRMED if high < least or low > most else NOT_RESOLVED


def _select(arm: Arm, runs: Sequence[Run], where: Mapping[str, Any]) -> tuple[str, list[Run]]:
    """The runs of a method that have these settings, and their label.

    If several settings do, those of params.yaml count; it is an error if they are not among them.
    """
    where = {**where, **arm.where}
    runs = [run for run in runs if run.method == arm.method]
    if not runs and arm.method not in METHODS:
        raise unknown_name("of", arm.method, METHODS)
    label = runs[0].metrics["method_label"] if runs else METHODS[arm.method].label
    for name in where:
        if runs and not any(name in flat(run.params) for run in runs):
            raise BadInput("where", name, f"a setting of {arm.method}, such as training.lr")
    fits = by_method([r for r in runs if all(flat(r.params).get(n) == value for n, value in where.items())])
    if len(fits) > 1 and arm.method not in fits:
        raise BadInput("where", dict(where), f"more settings: {', '.join(fits)} have these")
    found = fits.get(arm.method) or next(iter(fits.values()), [])
    own = ", ".join(say(*item) for item in arm.where.items())
    return f"{label} ({own})" if own else label, found


def _values(measure: Measure, label: str, runs: Sequence[Run]) -> Values:
    """The measure by seed, a lower bound where a seed did not reach its target."""
    reached = {run.seed: value for run in runs if (value := measure.of(run)) is not None}
    bounds = {
        run.seed: value
        for run in runs
        if run.seed not in reached and (value := measure.least(run)) is not None
    }
    return Values(label, Stat(reached | bounds), frozenset(bounds))


def _note(measure: Measure, arms: Iterable[tuple[str, list[Run]]]) -> str:
    """Seeds without a value, such as those that diverged, and how late a target may be noticed."""
    notes = []
    for label, runs in arms:
        lacking = [str(run.seed) for run in runs if measure.of(run) is measure.least(run) is None]
        notes += [f"{label} has no value with seed {', '.join(lacking)}"] if lacking else []
    every = spacing([run for _, runs in arms for run in runs], measure.reaches) if measure.reaches else 1
    notes += [f"evaluated every {every} rounds"] if every > 1 else []
    return "; ".join(notes)


def _statement(check: Check, measure: Measure, labels: Sequence[str]) -> str:
    """What a comparison claims: ``Worst tenth, %: TERM above FedAvg by more than 1``."""
    factor, (kind,) = measure.unit.factor, check.kinds
    words = f"{kind} {labels[-1]}" + (f" by more than {check.by * factor:g}" if check.by else "")
    if kind == "equal":
        words = f"equal to {labels[-1]}" + (f" within {check.limits()[1] * factor:g}" if check.within else "")
    elif kind == "within":
        low, high = (limit * factor for limit in check.limits())
        words = f"at least {low:g}" if high == math.inf else f"at most {high:g}"
        words = f"from {low:g} to {high:g}" if math.isfinite(low) and math.isfinite(high) else words
    return f"{measure.label}: {labels[0]} {words}"


def write_claims(judged: Sequence[Judged], out_dir: Path) -> None:
    """Write ``claims.csv``, a row per comparison, and ``claims.md``, a table to paste; or remove both."""
    csv, page = out_dir / "claims.csv", out_dir / "claims.md"
    if not judged:
        csv.unlink(missing_ok=True)
        page.unlink(missing_ok=True)
        return
    write_csv(pd.DataFrame([row for one in judged for row in _rows(one)]), csv)
    lines = ["| claim | source | verdict | numbers |", "|---|---|---|---|"]
    for one in judged:
        numbers = [f"{c.partition}, {c.statement}: {c.numbers}" for c in one.deciding]
        numbers = [text for text in (*numbers, one.counts, one.claim.test) if text]
        cells = (one.claim.claim, one.claim.source, f"**{one.verdict}**", "<br>".join(numbers))
        plain = (" ".join(cell.split()).replace("|", r"\|") for cell in cells)  # YAML may fold lines
        lines.append(f"| {' | '.join(plain)} |")
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _rows(judged: Judged) -> list[dict[str, Any]]:
    """A row per comparison of a claim; a single row without them."""
    claim = judged.claim
    about = {"id": claim.id, "source": claim.source, "claim": claim.claim, "verdict": judged.verdict}
    return [
        about | {
            "partition": one.partition, "comparison": one.statement, "measure": one.measure.text,
            "holds": one.verdict, "seeds": len(one.difference.values) if one.difference else 0,
            **_moments("", one.first), **_moments("other_", one.second),
            "difference": one.difference.mean if one.difference and one.second else None,
            "low": one.low, "high": one.high, "reason": one.reason, "note": one.note,
        }
        for one in judged.comparisons
    ] or [about | {"reason": claim.test}]  # fmt: skip


def _moments(prefix: str, values: Values | None) -> dict[str, float | None]:
    """Mean and sample std over seeds."""
    stat = values and values.stat
    return {f"{prefix}mean": stat.mean if stat else None, f"{prefix}std": stat.std if stat else None}
