"""Verdicts on claims, from collected runs.

Methods are compared on the seeds that both have. The mean of the paired differences has a two-sided 95 %
interval of Student's t. A claim is confirmed if all of the interval is on its side, not confirmed if none of
it is (as in a tie with every seed), and not resolved otherwise, or with fewer than three seeds. A seed that
did not reach its target enters with a lower bound, and the interval has no end on the side that is unknown.
An advantage is a paired difference itself; a trend is the least-squares slope of every seed.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fedflow.claims.claims import Arm, Check, Claim
from fedflow.claims.measures import Measure, parse
from fedflow.claims.targets import NotMeasured, spacing
from fedflow.errors import BadInput, unknown_name
from fedflow.files import naming
from fedflow.finished.bootstrap import SEEDS, interval
from fedflow.finished.collect import Labels
from fedflow.finished.run import Run
from fedflow.finished.tables import Stat, by_method, write_csv
from fedflow.methods import METHODS
from fedflow.naming import flat, say
from fedflow.procedures import PROCEDURES

SHOWN = 3  # comparisons that are printed beside a verdict
# From the best to the worst: a group of checks has the worst of `all`, the best of `any`.
CONFIRMED, NOT_RESOLVED, NOT_RUN, NOT_CONFIRMED = VERDICTS = (
    "confirmed",
    "not resolved",
    "not run",
    "not confirmed",
)
HELD, REFUTED = BY_TESTS = "held by a test", "refuted by a test"  # claims with a test and no check


@dataclass(frozen=True)
class Values:
    """A measure by seed. At the seeds in ``lower`` (``upper``) the value is only a lower (upper) bound."""

    label: str
    stat: Stat
    lower: frozenset[int]
    upper: frozenset[int] = frozenset()

    def on(self, seeds: Iterable[int]) -> "Values":
        """Those of these seeds."""
        stat = Stat({seed: self.stat.values[seed] for seed in seeds})
        return Values(self.label, stat, self.lower & stat.values.keys(), self.upper & stat.values.keys())

    def text(self, measure: Measure) -> str:
        """``TERM 87.0 ± 1.2``; with "+" or "or less" after the mean if a value is only a bound."""
        unit, sign = measure.unit, "+" * bool(self.lower) + " or less" * bool(self.upper)
        spread = f" ± {self.stat.std * unit.factor:.{unit.digits}f}" if len(self.stat.values) > 1 else ""
        mean = f"{self.stat.mean * unit.factor:.{unit.digits}f}".replace("-", "−")
        return f"{self.label} {mean}{sign}{spread}"


def combined(label: str, terms: Sequence[tuple[float, Values]]) -> Values:
    """The sum of factors times values, over the seeds that all of them have."""
    seeds = sorted(set.intersection(*(set(values.stat.values) for _, values in terms)))
    stat = Stat({seed: sum(factor * values.stat.values[seed] for factor, values in terms) for seed in seeds})
    lower = [values.lower if factor > 0 else values.upper for factor, values in terms if factor]
    upper = [values.upper if factor > 0 else values.lower for factor, values in terms if factor]
    return Values(label, stat, *(frozenset(seeds) & frozenset().union(*bounds) for bounds in (lower, upper)))


@dataclass(frozen=True)
class CheckResult:
    """A measure of a method, compared with another method or with limits, or its trend over methods.

    ``values``: of the methods. ``difference``: first minus second by seed (against limits, the first itself;
    of a trend, the slope), ``low`` and ``high`` the 95 % interval of its mean, nan with fewer than three
    seeds.
    ``reason``: why nothing is resolved. ``note``: what limits the numbers.
    """

    partition: str
    measure: Measure
    statement: str
    verdict: str
    reason: str = ""
    note: str = ""
    values: tuple[Values, ...] = ()
    difference: Stat | None = None
    low: float = math.nan
    high: float = math.nan

    @property
    def numbers(self) -> str:
        """Means ± std, the difference or slope with its interval, and the seeds; or the reason."""
        between = " " if len(self.values) == 1 else "; "
        parts = [between.join(text for text in (self.means, self.span) if text)]
        if self.difference and not self.reason:
            parts.append(f"{len(self.difference.values)} seeds")
        return "; ".join(part for part in (*parts, self.reason, self.note) if part)

    @property
    def means(self) -> str:
        """Mean ± std of each method."""
        separator = ", " if len(self.values) > 2 else " against "
        return separator.join(one.text(self.measure) for one in self.values)

    @property
    def span(self) -> str:
        """The difference or slope, unless there is one value, and its interval."""
        several = len(self.values) > 2
        parts = []
        if self.difference and len(self.values) > 1:
            parts.append(f"{'slope' if several else 'difference'} {self._signed(self.difference.mean)}")
        if not math.isnan(self.low):
            parts.append(f"[{self._signed(self.low)}, {self._signed(self.high)}]")
        return " ".join(parts)

    def _signed(self, value: float) -> str:
        """With one digit more than the means; with a sign where it is a difference."""
        unit = self.measure.unit
        text = f"{value * unit.factor:{'+' if len(self.values) > 1 else ''}.{unit.digits + 1}f}"
        return text.replace("-", "−").replace("inf", "∞")


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict and its comparisons."""

    claim: Claim
    verdict: str
    comparisons: list[CheckResult]

    @property
    def deciding(self) -> list[CheckResult]:
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


class Known(NamedTuple):
    """``labels`` of methods by name, and the registered ``procedures`` by the name of their entry."""

    labels: dict[str, str]
    procedures: dict[str, str]


def judge(
    claims: Iterable[Claim],
    runs: Sequence[Run],
    labels: Labels | None = None,
    procedures: Mapping[str, str] | None = None,
) -> list[Judged]:
    """The verdicts of ``claims`` on ``runs``. Raises `BadInput` for ``where`` that selects no one setting.

    ``runs`` may have rows of outcomes among them. ``labels``: the names under ``methods`` in params.yaml, and
    their labels. ``procedures``: the names under ``procedures``, and the registered procedures.
    """
    known = Known(
        {name: method.label for name, method in METHODS.items()} | dict(labels or {}),
        {name: name for name in PROCEDURES} | dict(procedures or {}),
    )
    known.labels.update({run.method: run.metrics["method_label"] for run in runs if not run.procedure})
    known.procedures.update({run.partition: run.procedure for run in runs if run.procedure})
    judged = []
    for claim in claims:
        try:
            verdict, found = _judge(claim, claim.partitions, {}, runs, known)
            verdict = REFUTED if claim.refuted else verdict
        except BadInput as error:
            raise error.renamed(f"claim {claim.id}.{error.field}") from None
        judged.append(Judged(claim, verdict, found))
    return judged


def _judge(
    check: Check, partitions: list[str], where: Mapping[str, Any], runs: Sequence[Run], known: Known
) -> tuple[str, list[CheckResult]]:
    """The verdict on a check and its comparisons; partitions, measure and settings are inherited."""
    partitions, where = check.partitions or partitions, {**where, **check.where}
    if check.arms:
        if all(arm.partition for arm in check.arms):
            partitions = [""]
        first = [check.of] if check.of else check.trend
        sets = [[*first, other] for other in (*check.above, *check.below, *check.equal)]
        sets = sets or [[b, a] for a, b in pairwise(check.rising)] or [first]
        found = [
            _compare(check, arms, runs, partition, where, known) for partition in partitions for arms in sets
        ]
        return max((one.verdict for one in found), key=VERDICTS.index), found
    within = [replace(one, measure=one.measure or check.measure) for one in check.all or check.any]
    inner = [_judge(one, partitions, where, runs, known) for one in within]
    choose = max if check.all else min
    verdict = choose((one for one, _ in inner), key=VERDICTS.index, default=HELD)
    return verdict, [one for _, found in inner for one in found]


def _compare(
    check: Check,
    arms: Sequence[Arm],
    runs: Sequence[Run],
    partition: str,
    where: Mapping[str, Any],
    known: Known,
) -> CheckResult:
    """One comparison, on one partition unless the methods name theirs."""
    measure = _measured(arms[0], check, arms[0].partition or partition, known)
    sides = [_side_of(arm, check, runs, partition, where, known, measure) for arm in arms]
    labels = [side.label for side in sides]
    places = dict.fromkeys(arm.partition or partition for arm in arms)
    blank = CheckResult(", ".join(places), measure, _statement(check, measure, labels), NOT_RUN)
    terms = [term for side in sides for term in side.terms]
    if absent := dict.fromkeys(term.label for term in terms if not term.runs):
        return replace(blank, reason=f"no results of {' and '.join(absent)}")
    try:
        values = [side.values for side in sides]
    except NotMeasured as error:
        results = Path(*terms[0].runs[0].folder.parts[:-3])  # where a project is does not change its report
        return replace(blank, reason=str(error).replace(f"{results}/", ""))
    factors = [1.0, -1.0][: len(arms)]
    if check.trend:
        middle = (len(arms) - 1) / 2
        squares = sum((place - middle) ** 2 for place in range(len(arms)))
        factors = [(place - middle) / squares for place in range(len(arms))]
    difference = combined("", list(zip(factors, values, strict=True)))
    shared = difference.stat.values
    if not shared:
        reason = "no shared seeds" if all(one.stat.values for one in values) else "no values"
        return replace(blank, reason=reason)
    done = replace(blank, verdict=NOT_RESOLVED, note=_note(terms), difference=difference.stat)
    done = replace(done, values=tuple(one.on(shared) for one in values))
    if len(shared) < SEEDS:
        seeds = f"{len(shared)} {'seed' if len(shared) == 1 else 'shared seeds'}"
        return replace(done, reason=f"{seeds}, of at least {SEEDS}")
    low, high = interval(difference.stat)
    low, high = -math.inf if difference.upper else low, math.inf if difference.lower else high
    return replace(done, low=low, high=high, verdict=_verdict(check, low, high))


def _verdict(check: Check, low: float, high: float) -> str:
    """On which side of the claim an interval is."""
    if check.above or check.below or check.rising or check.trend:
        low, high = (-high, -low) if check.below else (low, high)
        return CONFIRMED if low > check.by else NOT_CONFIRMED if high <= check.by else NOT_RESOLVED
    least, most = check.limits()
    if least <= low and high <= most:
        return CONFIRMED
    return NOT_CONFIRMED if high < least or low > most else NOT_RESOLVED


class Term(NamedTuple):
    """What is measured of the runs of one method; its label has the measure, if others have another."""

    label: str
    runs: list[Run]
    measure: Measure


@dataclass(frozen=True)
class Side:
    """A method, or its advantage over another: the label, and the terms of both."""

    label: str
    terms: list[Term]

    @property
    def values(self) -> Values:
        """The measure by seed; of an advantage, the paired difference."""
        return combined(self.label, [(f, _values(term)) for f, term in zip((1, -1), self.terms)])


def _side_of(
    arm: Arm,
    check: Check,
    runs: Sequence[Run],
    partition: str,
    where: Mapping[str, Any],
    known: Known,
    first: Measure,
) -> Side:
    """What ``arm`` names: one or two methods on its partition; ``first``: the measure of the first arm."""
    terms = []
    for one in (arm, arm.minus):
        if one:
            place = one.partition or arm.partition or partition
            there = [run for run in runs if run.partition == place]
            if place in known.procedures:  # a partition may have the same name
                there = [run for run in there if run.procedure]
            label, found = _select(one, place, there, where, known)
            measure = _measured(replace(one, measure=one.measure or arm.measure), check, place, known)
            label += f" [{measure.label}]" if measure.text != first.text else ""
            terms.append(Term(label, found, measure))
    on = f" on {arm.partition}" if arm.partition else ""
    return Side(" − ".join(term.label for term in terms) + on, terms)


def _measured(arm: Arm, check: Check, place: str, known: Known) -> Measure:
    """What is compared of a method on this partition, or of a row of this procedure."""
    return parse(arm.measure or check.measure or "", procedure=known.procedures.get(place, ""))


def _select(
    arm: Arm, place: str, runs: Sequence[Run], where: Mapping[str, Any], known: Known
) -> tuple[str, list[Run]]:
    """The runs of a method on ``place`` that have these settings, and their label.

    If several settings do, those of params.yaml count; it is an error if they are not among them.
    """
    where = {**where, **arm.where}
    # Which rows the summary of a procedure has is known from its outcomes only.
    rows = {run.method: run.method for run in runs} or {arm.method: arm.method}
    labels = rows if place in known.procedures else known.labels
    runs = [run for run in runs if run.method == arm.method]
    if not runs and arm.method not in labels:
        raise unknown_name("of", arm.method, labels)
    label = runs[0].metrics["method_label"] if runs else labels[arm.method]
    for name in where:
        if runs and not any(name in flat(run.params) for run in runs):
            raise BadInput("where", name, f"a setting of {arm.method}, such as training.lr")
    fits = by_method([r for r in runs if all(flat(r.params).get(n) == value for n, value in where.items())])
    if len(fits) > 1 and arm.method not in fits:
        raise BadInput("where", dict(where), f"more settings: {', '.join(fits)} have these")
    found = fits.get(arm.method) or next(iter(fits.values()), [])
    own = ", ".join(say(*item) for item in arm.where.items())
    return f"{label} ({own})" if own else label, found


def _values(term: Term) -> Values:
    """The measure by seed, a lower bound where a seed did not reach its target."""
    label, runs, measure = term
    reached = {run.seed: value for run in runs if (value := measure.of(run)) is not None}
    bounds = {
        run.seed: value
        for run in runs
        if run.seed not in reached and (value := measure.least(run)) is not None
    }
    return Values(label, Stat(dict(sorted((reached | bounds).items()))), frozenset(bounds))


def _note(terms: Iterable[Term]) -> str:
    """Seeds without a value, such as those that diverged, and how late a target may be noticed."""
    notes, every = [], 1
    for label, runs, measure in terms:
        lacking = [str(run.seed) for run in runs if measure.of(run) is measure.least(run) is None]
        notes += [f"{label} has no value with seed {', '.join(lacking)}"] if lacking else []
        every = max(every, spacing(runs, measure.reaches) if measure.reaches else 1)
    notes += [f"evaluated every {every} rounds"] if every > 1 else []
    return "; ".join(notes)


def _statement(check: Check, measure: Measure, labels: Sequence[str]) -> str:
    """What a comparison claims: ``Worst tenth, %: TERM above FedAvg by more than 1``."""
    factor, (kind,) = measure.unit.factor, check.kinds
    by = f" by more than {check.by * factor:g}" if check.by else ""
    if kind == "trend":
        words = f"rises over {', '.join(labels)}{by and f'{by} a step'}"
        return f"{measure.label}: {words}"
    words = f"{'below' if kind == 'below' else 'above'} {labels[-1]}{by}"
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
    with naming(page):
        page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _rows(judged: Judged) -> list[dict[str, Any]]:
    """A row per comparison of a claim; a single row without them."""
    claim = judged.claim
    about = {"id": claim.id, "source": claim.source, "claim": claim.claim, "verdict": judged.verdict}
    return [
        about
        | {
            "partition": one.partition,
            "comparison": one.statement,
            "measure": one.measure.text,
            "holds": one.verdict,
            "seeds": len(one.difference.values) if one.difference else 0,
            **_moments("", one.values[0] if one.values else None),
            **_moments("other_", one.values[-1] if len(one.values) > 1 else None),
            "difference": one.difference.mean if one.difference and len(one.values) > 1 else None,
            "low": one.low,
            "high": one.high,
            "reason": one.reason,
            "note": one.note,
        }
        for one in judged.comparisons
    ] or [about | {"reason": claim.test}]


def _moments(prefix: str, values: Values | None) -> dict[str, float | None]:
    """Mean and sample std over seeds."""
    stat = values and values.stat
    return {f"{prefix}mean": stat.mean if stat else None, f"{prefix}std": stat.std if stat else None}
