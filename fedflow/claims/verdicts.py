"""Verdicts on claims, from collected runs.

Methods are compared on the seeds that both have, by the two-sided 95 % interval (Student's t) of the mean
paired difference. With three or four seeds, its standard deviation counts as at least the median one of the
comparisons of the same measure on the same partition. A claim is confirmed if all of the interval is on its
side, not confirmed if none of it is (such as a tie with every seed), both only with a p-value of at most 0.05
that is adjusted for the number of comparisons in all claims together. Otherwise, or with fewer than three
seeds, it is not resolved. A seed that did not reach its target counts with a lower bound, and the interval is
open on the unknown side. An advantage or ratio is the one of every seed, and so is the least-squares slope of
a trend.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fedflow.claims.claims import Arm, Check, Claim
from fedflow.claims.measures import Measure, parse
from fedflow.claims.sources import NO_ROWS, OTHER_ROWS
from fedflow.claims.targets import NotMeasured, spacing
from fedflow.claims.values import Values, combined, divided, written
from fedflow.errors import BadInput, unknown_name
from fedflow.finished.bootstrap import CONFIDENCE, SEEDS, adjusted, chance, error, interval, typical
from fedflow.finished.collect import Labels
from fedflow.finished.contents import hashes
from fedflow.finished.run import Run
from fedflow.finished.tables import Stat, by_method
from fedflow.finished.variants import PLACES
from fedflow.methods import METHODS
from fedflow.metrics.table import Unit
from fedflow.naming import flat, say
from fedflow.procedures import PROCEDURES
from fedflow.project.digest import canonical

SHOWN = 3  # comparisons printed with a verdict
ROUNDS = "rounds_to("
RATIO = Unit(digits=2)
LEAST_CHANCE = 0.0001  # the lowest p-value that is printed
# From the best to the worst: a group of checks has the worst of `all`, the best of `any`.
VERDICTS = ("confirmed", "not resolved", "not run", "not confirmed")
CONFIRMED, NOT_RESOLVED, NOT_RUN, NOT_CONFIRMED = VERDICTS
HELD, REFUTED = BY_TESTS = "held by a test", "refuted by a test"  # claims with a test and no check


@dataclass(frozen=True)
class CheckResult:
    """A measure of a method, compared with another method or with limits, or its trend over methods.

    ``difference`` is the first minus the second method by seed (with limits, the first itself; for a trend,
    the slope), ``low`` and ``high`` are the 95 % interval of its mean, NaN with fewer than three seeds.
    ``adjusted`` is the adjusted p-value, NaN for the only comparison of all claims, without spread, and where
    the interval resolves nothing. ``reason`` explains a missing verdict, ``note`` limits the numbers.
    """

    check: Check
    partition: str
    measure: Measure
    statement: str
    verdict: str
    reason: str = ""
    note: str = ""
    runs: tuple[Run, ...] = ()
    values: tuple[Values, ...] = ()
    terms: int = 0  # values that the difference adds and subtracts
    difference: Stat | None = None
    open: tuple[bool, bool] = (False, False)  # the difference is only an upper, a lower bound
    slack: tuple[float, float] = (0.0, 0.0)  # below and above the difference: rounds that were not evaluated
    coarse: bool = False  # the slack is not known, so that it resolves nothing
    low: float = math.nan
    high: float = math.nan
    spread: bool = False  # between seeds: without any, they say nothing of chance
    adjusted: float = math.nan

    @property
    def testable(self) -> bool:
        """True if it has the seeds for an interval."""
        return self.difference is not None and not self.reason

    @property
    def counts(self) -> bool:
        """True if it is one of the comparisons for whose number p-values are adjusted."""
        return self.spread and not self.coarse

    @property
    def kind(self) -> tuple[str, str, int]:
        """The key of comparable results: values, differences, differences of these, and slopes."""
        return self.partition, self.measure.text, 0 if self.check.trend else self.terms

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
        if self.low < self.high:
            parts.append(f"[{self._signed(self.low)}, {self._signed(self.high)}]")
        if self.testable and not self.spread:
            parts.append("(no spread)")
        if not math.isnan(self.adjusted):
            parts.append(f"(adjusted p {_chance_in_words(self.adjusted)})")
        return " ".join(parts)

    def _signed(self, value: float) -> str:
        """A value with one digit more than the means, signed if it is a difference."""
        unit = self.measure.unit
        sign = "+" if len(self.values) > 1 else ""
        return written(value * unit.factor, f"{sign}z.{unit.digits + 1}f")


def _chance_in_words(p: float) -> str:
    """A p-value that does not seem to be on the other side of 0.05.

    >>> [_chance_in_words(p) for p in (0.0123, 0.0503, 3e-7)]
    ['0.012', '0.0503', '< 0.0001']
    """
    if p < LEAST_CHANCE:
        return f"< {LEAST_CHANCE}"
    texts = (f"{p:.{digits}g}" for digits in range(2, 18))
    return next(text for text in texts if (float(text) <= 1 - CONFIDENCE) is (p <= 1 - CONFIDENCE))


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict, its comparisons, and those from which the verdict follows."""

    claim: Claim
    verdict: str
    comparisons: list[CheckResult]
    deciding: list[CheckResult]

    @property
    def shown(self) -> list[CheckResult]:
        """The comparisons that are printed with the verdict."""
        return self.deciding[:SHOWN]

    @property
    def counts(self) -> str:
        """``5 comparisons: 3 confirmed, 2 not run``, or an empty text if all are shown."""
        if len(self.shown) == len(self.comparisons):
            return ""
        counted = Counter(result.verdict for result in self.comparisons)
        words = ", ".join(f"{counted[verdict]} {verdict}" for verdict in VERDICTS if counted[verdict])
        return f"{len(self.comparisons)} comparisons: {words}"


class Names(NamedTuple):
    """Labels of methods by name, registered procedures by entry, and how runs differ from params.yaml."""

    labels: dict[str, str]
    procedures: dict[str, str]
    changed: Callable[[Run], Mapping[str, Any]] | None


def judge(
    claims: Iterable[Claim],
    runs: Sequence[Run],
    labels: Labels | None = None,
    procedures: Mapping[str, str] | None = None,
    changed: Callable[[Run], Mapping[str, Any]] | None = None,
) -> list[Judged]:
    """The verdicts of ``claims`` on ``runs``, which may include rows of outcomes.

    ``labels`` are of the entries of ``methods`` in params.yaml, ``procedures`` the registered procedures of
    the entries of ``procedures``. ``changed`` names the sections in which a run differs from params.yaml: it
    counts only for methods whose ``where`` names settings of them all; without it, those in variants named
    after their method count. Raises `BadInput` for a ``where`` that selects several settings.
    """
    names = Names(
        {name: method.label for name, method in METHODS.items()} | dict(labels or {}),
        {name: name for name in PROCEDURES} | dict(procedures or {}),
        changed,
    )
    names.labels.update({run.method: run.metrics["method_label"] for run in runs if not run.procedure})
    names.procedures.update({run.partition: run.procedure for run in runs if run.procedure})
    groups: list[tuple[Claim, Group]] = []
    for claim in claims:
        try:
            groups.append((claim, _compared(claim, claim.partitions, {}, runs, names)))
        except BadInput as error:
            raise error.renamed(f"claim {claim.id}.{error.field}") from None
    left, judged = iter(_decided([result for _, group in groups for result in group])), []
    for claim, group in groups:
        results = list(islice(left, len([*group])))
        verdict, deciding = group.verdict(iter(results))
        judged.append(Judged(claim, REFUTED if claim.refuted else verdict, results, deciding))
    return judged


@dataclass(frozen=True)
class Group:
    """The comparisons of a check, or of the checks within it, of which all or ``any`` have to hold."""

    results: list[CheckResult] = field(default_factory=list)
    parts: list["Group"] = field(default_factory=list)
    any: bool = False

    def __iter__(self) -> Iterator[CheckResult]:
        yield from self.results
        for part in self.parts:
            yield from part

    def verdict(self, decided: Iterator[CheckResult]) -> tuple[str, list[CheckResult]]:
        """The verdict, and the comparisons that give it, from the same ones once they are ``decided``."""
        parts = [(result.verdict, [result]) for result in islice(decided, len(self.results))]
        parts += [part.verdict(decided) for part in self.parts]
        choose = min if self.any else max
        verdict = choose((verdict for verdict, _ in parts), key=VERDICTS.index, default=HELD)
        return verdict, [result for part, results in parts for result in results if part == verdict]


def _compared(
    check: Check, partitions: list[str], where: Mapping[str, Any], runs: Sequence[Run], names: Names
) -> Group:
    """The comparisons of a check; checks within it inherit partitions and settings."""
    partitions, where = check.partitions or partitions, {**where, **check.where}
    if check.arms:
        if all(arm.partition for arm in check.arms):
            partitions = [""]
        first = [check.of] if check.of else check.trend
        sets = [[*first, other] for other in (*check.above, *check.below, *check.equal)]
        sets = sets or [[b, a] for a, b in pairwise(check.rising)] or [first]
        pairs = [(partition, arms) for partition in partitions for arms in sets]
        return Group([_compare(check, arms, runs, partition, where, names) for partition, arms in pairs])
    parts = [replace(part, measure=part.measure or check.measure) for part in check.all or check.any]
    return Group([], [_compared(part, partitions, where, runs, names) for part in parts], bool(check.any))


def _compare(
    check: Check,
    arms: Sequence[Arm],
    runs: Sequence[Run],
    partition: str,
    where: Mapping[str, Any],
    names: Names,
) -> CheckResult:
    """One comparison, on one partition unless the methods have their own; `_decided` has its verdict."""
    measure = _measured(arms[0], check, arms[0].partition or partition, names)
    sides = [_side_of(arm, check, runs, partition, where, names, measure) for arm in arms]
    labels = [side.label for side in sides]
    if sides[0].ratio:
        text, label = f"ratio of {measure.text}", f"Ratio: {measure.label}"
        measure = replace(measure, text=text, label=label, unit=RATIO)
    partitions = dict.fromkeys(arm.partition or partition for arm in arms)
    blank = CheckResult(check, ", ".join(partitions), measure, _statement(check, measure, labels), NOT_RUN)
    terms = [term for side in sides for term in side.terms]
    if absent := dict.fromkeys(term.label for term in terms if not term.runs):
        other = OTHER_ROWS if any(term.others_ran for term in terms) else ""
        return replace(blank, reason=f"{NO_ROWS}{' and '.join(absent)}{other}")
    clash, slack = _on_other_data(terms), _slack(sides, bool(check.trend))
    blank = replace(blank, runs=tuple(run for term in terms for run in term.runs))
    sides = [side.without(clash) for side in sides]
    try:
        values, note = [side.values for side in sides], _note(terms, clash, slack)
    except NotMeasured as error:
        results = Path(*terms[0].runs[0].folder.parts[:-3])  # the project's path must not change its report
        return replace(blank, reason=str(error).replace(f"{results}/", ""))
    difference = combined("", list(zip(_factors(len(arms), bool(check.trend)), values, strict=True)))
    shared = difference.stat.values
    if not shared:
        reason = "no shared seeds" if all(side.stat.values for side in values) else "no values"
        return replace(blank, reason="other data of the same name" if clash else reason)
    done = replace(blank, verdict=NOT_RESOLVED, note=note, difference=difference.stat)
    done = replace(done, values=tuple(side.on(shared) for side in values), terms=len(terms))
    if len(shared) < SEEDS:
        seeds = f"{len(shared)} {'seed' if len(shared) == 1 else 'shared seeds'}"
        return replace(done, reason=f"{seeds}, of at least {SEEDS}")
    bounds = (bool(difference.upper), bool(difference.lower))
    return replace(done, open=bounds, coarse=slack is None, slack=slack or (0.0, 0.0))


def _factors(count: int, trend: bool) -> list[float]:
    """The factors of the methods in their difference, or in the least-squares slope by place."""
    if not trend:
        return [1.0, -1.0][:count]
    middle = (count - 1) / 2
    squares = sum((i - middle) ** 2 for i in range(count))
    return [(i - middle) / squares for i in range(count)]


def _slack(sides: Sequence["Side"], trend: bool) -> tuple[float, float] | None:
    """The amounts by which a difference may be lower and higher, if targets were reached between evaluations.

    None if that is unknown, as of traffic, gradients, simulated time and ratios.
    """
    late = [
        (factor * sign, _late(term))
        for factor, side in zip(_factors(len(sides), trend), sides, strict=True)
        for sign, term in zip((1, -1), side.terms)
    ]
    if not any(rounds for _, rounds in late):
        return 0.0, 0.0
    in_rounds = all(term.measure.text.startswith(ROUNDS) for side in sides for term in side.terms)
    if not in_rounds or any(side.ratio for side in sides):
        return None
    low = sum(factor * rounds for factor, rounds in late if factor > 0)
    return low, -sum(factor * rounds for factor, rounds in late if factor < 0)


def _late(term: "Term") -> int:
    """The rounds by which the cost of a target may be too high, as they were not evaluated."""
    return spacing(term.runs, term.measure.reaches) - 1 if term.measure.reaches else 0


def _decided(results: Sequence[CheckResult]) -> list[CheckResult]:
    """The same comparisons with intervals and verdicts, which depend on all of them."""
    kinds: dict[tuple[str, str, int], dict[str, Stat]] = {}
    for result in results:
        if result.difference:
            kinds.setdefault(result.kind, {})[_compared_runs(result)] = result.difference
    least = {kind: typical(differences.values()) for kind, differences in kinds.items()}
    told = [_interval(result, least[result.kind]) if result.testable else result for result in results]
    chances = {_question(result): _chance(result, least[result.kind]) for result in told if result.counts}
    values = dict(zip(chances, adjusted([*chances.values()]), strict=True))
    return [
        _corrected(result, values[_question(result)], len(values)) if result.counts else result
        for result in told
    ]


def _compared_runs(result: CheckResult) -> str:
    """Equal texts for comparisons of the same runs with the same numbers, the methods swapped or not."""
    assert result.difference
    runs = {(run.partition, run.method, run.variant, run.seed) for run in result.runs}
    values = [value for _, value in sorted(result.difference.values.items())]
    return canonical([sorted(runs), min([sign * value + 0.0 for value in values] for sign in (1, -1))])


def _question(result: CheckResult) -> str:
    """Equal texts for comparisons that ask the same of the same numbers, with the methods swapped or not."""
    assert result.difference
    limits = [limit for limit in _bounds(result.check) if math.isfinite(limit)]
    seeds, values = zip(*sorted(result.difference.values.items()), strict=True)
    ends = result.open, result.slack
    # Adding zero turns -0.0 into 0.0.
    forms = (
        [[sign * x + 0.0 for x in row] for row in (limits[::sign], values)] + [end[::sign] for end in ends]
        for sign in (1, -1)
    )
    partitions = sorted(result.kind[0].split(", "))
    return canonical([partitions, *result.kind[1:], seeds, min(forms)])


def _interval(result: CheckResult, least: float) -> CheckResult:
    """A comparison with its interval, and the verdict by it."""
    assert result.difference
    low, high = interval(result.difference, least)
    low, high = low - result.slack[0], high + result.slack[1]
    low, high = -math.inf if result.open[0] else low, math.inf if result.open[1] else high
    verdict = NOT_RESOLVED if result.coarse else _verdict(result.check, low, high)
    spread = error(result.difference, least) > 0
    return replace(result, low=low, high=high, spread=spread, verdict=verdict)


def _chance(result: CheckResult, least: float) -> float:
    """The p-value of what the interval shows, 1 if it resolves nothing."""
    assert result.difference
    lowest, highest = _bounds(result.check)
    low, high = result.difference.mean - result.slack[0], result.difference.mean + result.slack[1]
    within, beyond = min(low - lowest, highest - high), max(lowest - high, low - highest)
    margin = within if result.verdict == CONFIRMED else beyond
    return 1.0 if result.verdict == NOT_RESOLVED else chance(result.difference, margin, least)


def _corrected(result: CheckResult, value: float, count: int) -> CheckResult:
    """A comparison that is resolved only if the adjusted p-value of ``count`` comparisons says so, too."""
    if count == 1 or result.verdict == NOT_RESOLVED:
        return result
    return replace(
        result, adjusted=value, verdict=result.verdict if value <= 1 - CONFIDENCE else NOT_RESOLVED
    )


def _bounds(check: Check) -> tuple[float, float]:
    """The lowest and highest difference, slope or value with which a check holds."""
    if check.below:
        return -math.inf, -check.by
    if check.above or check.rising or check.trend:
        return check.by, math.inf
    return check.limits()


def _verdict(check: Check, low: float, high: float) -> str:
    """The verdict of an interval; a difference has to exceed its limit, other values may equal it."""
    least, most = _bounds(check)
    if check.above or check.below or check.rising or check.trend:
        low, high = (-high, -low) if check.below else (low, high)
        return CONFIRMED if low > check.by else NOT_CONFIRMED if high <= check.by else NOT_RESOLVED
    if least <= low and high <= most:
        return CONFIRMED
    return NOT_CONFIRMED if high < least or low > most else NOT_RESOLVED


class Term(NamedTuple):
    """A measure of the runs of one method; the label names the measure if it is not the first one's."""

    label: str
    runs: list[Run]
    measure: Measure
    others_ran: bool  # there are runs, but none with the settings of params.yaml


@dataclass(frozen=True)
class Side:
    """A method, or its advantage or ratio over another: the label, and the terms of both."""

    label: str
    terms: list[Term]
    ratio: bool = False

    @property
    def values(self) -> Values:
        """The measure by seed; for an advantage or ratio, the one of every seed."""
        if self.ratio:
            return divided(self.label, *map(_values, self.terms))
        return combined(self.label, [(f, _values(term)) for f, term in zip((1, -1), self.terms)])

    def without(self, seeds: Set[int]) -> "Side":
        """The same without these seeds."""
        kept = ([run for run in term.runs if run.seed not in seeds] for term in self.terms)
        return replace(self, terms=[term._replace(runs=runs) for term, runs in zip(self.terms, kept)])


def _side_of(
    arm: Arm,
    check: Check,
    runs: Sequence[Run],
    partition: str,
    where: Mapping[str, Any],
    names: Names,
    first: Measure,
) -> Side:
    """The one or two methods of ``arm`` on its partition; ``first`` is the measure of the first arm."""
    terms = []
    for side in filter(None, (arm, arm.other)):
        home = side.partition or arm.partition or partition
        there = [run for run in runs if run.partition == home]
        if home in names.procedures:  # a partition may have the same name
            there = [run for run in there if run.procedure]
        label, selected = _select(side, home, there, where, names)
        measure = _measured(replace(side, measure=side.measure or arm.measure), check, home, names)
        label += f" [{measure.label}]" if measure.text != first.text else ""
        others_ran = not selected and any(run.method == side.method for run in there)
        terms.append(Term(label, selected, measure, others_ran))
    on = f" on {arm.partition}" if arm.partition else ""
    sign = " / " if arm.over else " − "
    return Side(sign.join(term.label for term in terms) + on, terms, arm.over is not None)


def _measured(arm: Arm, check: Check, partition: str, names: Names) -> Measure:
    """The measure of a method on this partition, or of a row of this procedure."""
    return parse(arm.measure or check.measure or "", procedure=names.procedures.get(partition, ""))


def _select(
    arm: Arm, partition: str, runs: Sequence[Run], where: Mapping[str, Any], names: Names
) -> tuple[str, list[Run]]:
    """Label and runs of a method on ``partition`` with these settings.

    Only runs count that have the settings of params.yaml in all sections that ``where`` does not name. If
    several variants have these settings, the one as in params.yaml counts; without it, that is an error.
    """
    where = {**where, **arm.where}
    # Only outcomes tell the rows in the summary of a procedure.
    rows = {run.method: run.method for run in runs} or {arm.method: arm.method}
    labels = rows if partition in names.procedures else names.labels
    runs = [run for run in runs if run.method == arm.method]
    if not runs and arm.method not in labels:
        raise unknown_name("of", arm.method, labels)
    label = runs[0].metrics["method_label"] if runs else labels[arm.method]
    for name in where:
        if runs and not any(name in flat(run.params) for run in runs):
            raise BadInput("where", name, f"a setting of {arm.method}, such as training.lr")
    free = {name.partition(".")[0] for name in where}
    fits = [run for run in runs if all(flat(run.params).get(name) == value for name, value in where.items())]
    if names.changed is None:
        plain = [run for run in fits if run.variant == arm.method]
    else:
        fits = [run for run in fits if names.changed(run).keys() <= free]
        plain = [run for run in fits if not names.changed(run)]
    variants = by_method(plain or (fits if where else []))
    if where and not plain and len(variants) > 1:
        raise BadInput("where", dict(where), f"more settings: {', '.join(variants)} have these")
    selected = variants.get(arm.method) or max(variants.values(), key=len, default=[])
    settings = ", ".join(say(*item) for item in arm.where.items())
    return f"{label} ({settings})" if settings else label, selected


def _values(term: Term) -> Values:
    """The measure by seed, with lower bounds for seeds that did not reach their targets."""
    label, runs, measure, _ = term
    reached = {run.seed: value for run in runs if (value := measure.of(run)) is not None}
    others = [run for run in runs if run.seed not in reached]
    bounds = {run.seed: value for run in others if (value := measure.least(run)) is not None}
    return Values(label, Stat(dict(sorted((reached | bounds).items()))), frozenset(bounds))


def _on_other_data(terms: Iterable[Term]) -> set[int]:
    """The seeds with which runs of one partition with equal settings had other data, as far as they tell."""
    data: dict[tuple[int | str, ...], set[str]] = {}
    for run in (run for term in terms for run in term.runs if not run.procedure):
        settings = canonical([run.params.get(section) for section in PLACES])
        for name, value in hashes(run.metrics).items():
            data.setdefault((run.seed, run.partition, settings, name), set()).add(value)
    return {int(seed) for (seed, *_), values in data.items() if len(values - {""}) > 1}


def _note(terms: Sequence[Term], clash: Iterable[int], slack: tuple[float, float] | None) -> str:
    """Seeds that do not count, as runs diverged, failed or had other data; and what makes costs coarse."""
    notes, seeds = [], {run.seed for term in terms for run in term.runs}
    for label, runs, measure, _ in terms:
        has = {run.seed for run in runs if (measure.of(run), measure.least(run)) != (None, None)}
        lacking = ", ".join(map(str, sorted(seeds - has)))
        notes += [f"{label} has no run or value with seed {lacking}"] if lacking else []
    notes += [f"other data with seed {', '.join(map(str, sorted(clash)))}"] if clash else []
    if (late := max(map(_late, terms))) > 0:
        words = "too coarse for this claim" if slack is None else "the interval allows for it"
        notes.append(f"evaluated every {late + 1} rounds: {words}")
    return "; ".join(notes)


def _statement(check: Check, measure: Measure, labels: Sequence[str]) -> str:
    """The claim of a comparison: ``Worst tenth, %: TERM above FedAvg by more than 1``."""
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
