"""Headline findings, with their support by the seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedflow.finished.bootstrap import (
    MEASURES,
    SEEDS,
    Difference,
    apart,
    difference,
    few_seeds,
    rounded,
    shared,
)
from fedflow.finished.cells import Methods, finer, write
from fedflow.finished.contents import hashes
from fedflow.finished.run import Run
from fedflow.finished.tables import Stat, best, stat, yardstick
from fedflow.metrics.table import MB, METRICS, yardstick_first
from fedflow.naming import counted, flat, listed, spoken, text
from fedflow.pictures import accuracy
from fedflow.project.identity import changed
from fedflow.report.blocks import Block, Card, Cards, Heading, Text
from fedflow.report.compared import Compared, ComparedPartition, leading, not_drawn, partitioned, rounds_of

COMMON = ("run", "model", "partition")  # settings that rows of one partition should share
MANY = 4  # other values of a setting that a warning lists
LEAD = """In each picture the dot is local accuracy (every client on its own test set), the ring global
accuracy (the complete test set); bars extend from the lowest to the highest seed."""


@partitioned("findings", "Findings", LEAD)
def section(p: ComparedPartition) -> list[Block]:
    first, scheme = p.runs[0].metrics, f", {p.scheme}" if p.scheme else ""
    small = f"{first['dataset']}{scheme}, {counted(first['clients'], 'client')}, {rounds_of(p.runs)}"
    picture = accuracy.glance(leading(p.rated), p.colors, f"{p.key}-glance") if p.rated else None
    warned = [Text(warning, "warning") for warning in _warnings(p)]
    return [Heading(p.name, small), *warned, *not_drawn(p.rated), Cards(findings(p.methods), picture)]


def findings(methods: Methods) -> list[Card]:
    """The methods with the best local, global and worst-10 % accuracy (without any, the best loss), and with
    the least traffic to the target.
    """
    order, cards = yardstick(methods), list[Card]()
    for asked in yardstick_first(metric for metric in METRICS.values() if metric.question):
        ranked = best(methods, asked.name)
        if ranked and (asked.name == "loss") == (order == "loss"):
            answer, detail = _answer(methods, ranked, asked.name)
            number = write(ranked[0][1], asked.unit)
            cards.append(Card(asked.question, answer, *number, asked.unit.sign, detail))
    return [*cards, *_cheapest(methods)]


def _answer(methods: Methods, ranked: Sequence[tuple[str, Stat]], metric: str) -> tuple[str, str]:
    """The best methods, and their lead over the others in words."""
    first, value = ranked[0]
    same = [name for name, other in ranked if _printed(other, metric) == _printed(value, metric)]
    if len(ranked) == 1:
        return _names(methods, same), "The only method."
    if len(same) == len(ranked):
        return "All level", "All methods have this mean."
    if len(same) > 1:
        return _names(methods, same), f"{len(same)} of {len(ranked)} methods have this mean."
    leads = _leads(methods, ranked, metric)
    rival, lead = next((pair for pair in leads.items() if pair[1].level), next(iter(leads.items())))
    name = methods[rival][0].label
    detail = f"Not ahead of {name} on the seeds that both have."
    paired = difference(methods[first], methods[rival], metric) if metric in MEASURES else None
    if lead.mean > 0:
        detail = _supported(lead, name, metric)
    return _names(methods, same), detail + (_certainty(paired) if paired is not None else "")


def _certainty(paired: Difference) -> str:
    """The interval of a difference in words, or a note that there are too few seeds."""
    if paired.seeds < SEEDS:
        return f" {few_seeds(paired.seeds).capitalize()}: too few for a reliable interval."
    if paired.interval is None:
        return ""
    low, high = (f"{100 * end:z.1f}" for end in paired.interval)
    return f" {paired.origin[0].upper()}{paired.origin[1:]}, 95 %: [{low}, {high}] points."


def summary(c: Compared) -> list[str]:
    """The opening sentences: leading methods by partition, or methods that the seeds do not separate."""
    sentences = []
    for metric, on in (
        ("local_accuracy", "On the clients' own test sets"),
        ("global_accuracy", "On the complete test set"),
    ):
        leaders: dict[str, list[str]] = {}
        for p in c.partitions:
            ranked = best(p.methods, metric)
            if len(ranked) > 1:
                leads = _leads(p.methods, ranked, metric)
                level = [ranked[0][0], *(name for name, lead in leads.items() if lead.level)]
                fewest = min(lead.seeds for lead in leads.values())
                certain = all(lead.significant for lead in leads.values())
                always = all(lead.wins == lead.seeds for lead in leads.values())
                ahead = "leads" if certain else "is ahead with every seed" if always else "is ahead"
                ahead = ahead if fewest >= SEEDS else f"is ahead ({few_seeds(fewest)})"
                words = f"{_names(p.methods, level)} {ahead if len(level) == 1 else 'are level'}"
                few = [name for name, lead in leads.items() if lead.seeds < SEEDS and name not in level]
                words += f" ({_names(p.methods, few)}: too few seeds)" if few and len(level) > 1 else ""
                leaders.setdefault(words, []).append(p.name)
        if list(map(len, leaders.values())) == [len(c.partitions)] and len(c.partitions) > 1:
            sentences.append(f"{on}, {next(iter(leaders))} on every partition.")
        elif leaders:
            parts = [f"{words} on {' and '.join(names)}" for words, names in leaders.items()]
            sentences.append(f"{on}, {'; '.join(parts)}.")
    return sentences


@dataclass(frozen=True)
class Lead:
    """The lead of a method over another one, by seed that both have on the same data, if any.

    Without shared seeds, ``mean`` compares the means over all seeds. ``significant`` is true if it is more
    than chance: by the rule for claims, given the number of leads, or the same with every seed, and if the
    bootstrap interval, where there is one, excludes 0.
    """

    gains: Stat
    mean: float
    equal: bool  # the means are printed alike
    significant: bool = False

    @property
    def seeds(self) -> int:
        return len(self.gains.values)

    @property
    def wins(self) -> int:
        """The seeds with which the method is ahead."""
        return sum(gain > 0 for gain in self.gains.values.values())

    @property
    def level(self) -> bool:
        """True if the other method is not behind, or not with every one of `SEEDS` or more seeds."""
        some = self.seeds >= SEEDS and self.wins < self.seeds
        return self.equal or self.mean <= 0 or (some and not self.significant)


def _leads(methods: Methods, ranked: Sequence[tuple[str, Stat]], metric: str) -> dict[str, Lead]:
    """The leads of the best of ``ranked`` (best first) over every other method."""
    leader, *others = (name for name, _ in ranked)
    leads = {name: _lead(methods, leader, name, metric) for name in others}
    significant = apart([lead.gains for lead in leads.values()])

    def certain(name: str, lead: Lead, told: bool) -> bool:
        if not told and (lead.seeds < SEEDS or not lead.gains.low == lead.gains.high != 0):
            return False
        paired = difference(methods[leader], methods[name], metric) if metric in MEASURES else None
        if paired is None or paired.interval is None or not paired.clients:
            return True
        return not paired.interval[0] <= 0 <= paired.interval[1]

    judged = zip(leads.items(), significant, strict=True)
    return {name: replace(lead, significant=certain(name, lead, told)) for (name, lead), told in judged}


def _lead(methods: Methods, first: str, second: str, metric: str) -> Lead:
    pairs = [
        pair
        for pair in shared(methods[first], methods[second])
        if all(run.metrics.get(metric) is not None for run in pair)
    ]
    sides = zip(*pairs) if pairs else (methods[first], methods[second])
    ours, theirs = (stat(runs, metric) for runs in sides)
    assert ours is not None and theirs is not None  # both are ranked
    sign = -1 if METRICS[metric].better == "lower" else 1
    values = {run.seed: (ours.values[run.seed], theirs.values[run.seed]) for run, _ in pairs}
    gains = {seed: rounded(sign * (one - other), (one, other)) for seed, (one, other) in values.items()}
    equal = _printed(ours, metric) == _printed(theirs, metric)
    return Lead(Stat(gains), sign * (ours.mean - theirs.mean), equal)


def _supported(lead: Lead, name: str, metric: str) -> str:
    """The lead over ``name`` in words, with its support by the seeds, by the rule for claims."""
    share = METRICS[metric].unit.sign == "%"
    on = f"{lead.mean * 100:.1f} points" if share else f"{lead.mean:.3g}"
    on = f"{on} ahead of {name}"
    if not lead.seeds:
        return f"{on} on average; they share no seed on the same data: the effect of chance is unknown."
    if lead.seeds == 1:
        return f"{on}, on one seed: the effect of chance is unknown."
    on = f"{on} on average, and ahead on {lead.wins} of {lead.seeds} shared seeds"
    if lead.seeds < SEEDS:
        return f"{on}: the effect of chance is unknown."
    if lead.significant:
        return f"{on}: more than chance."
    return f"{on}: {'no clear winner' if lead.level else 'chance is not ruled out'}."


def _printed(value: Stat, metric: str) -> str:
    """The mean as printed on the page."""
    return write(value, METRICS[metric].unit)[0]


def _names(methods: Methods, names: Sequence[str]) -> str:
    """The labels in words: "Ditto, IFCA and 3 others"."""
    labels = [methods[name][0].label for name in names]
    return listed(labels if len(labels) <= 3 else [*labels[:2], f"{len(labels) - 2} others"])


def _cheapest(methods: Methods) -> list[Card]:
    """The least traffic to the target among methods that communicate."""
    question = "Least traffic to the target"
    targets: set[Any] = {r.metrics.get("target_accuracy") for g in methods.values() for r in g}
    methods = {m: g for m, g in methods.items() if any(r.metrics["bytes_up"] for r in g)}
    if len(targets) > 1 or None in targets or not methods:
        return []
    target = f"{100 * targets.pop():g} % local accuracy"
    reached = [(m, v) for m, v in best(methods, "bytes_to_target") if len(v.values) == len(methods[m])]
    if not reached:
        return [Card(question, "No method", "", "", "", f"None reached {target} with every seed.")]
    value = reached[0][1]
    unit = finer(MB, value.mean)
    same = [m for m, v in reached if write(v, unit)[0] == write(value, unit)[0]]
    share = f"{len(reached)} of {len(methods)} communicating methods"
    detail = f"To {target}, which {share} reach with every seed."
    return [Card(question, _names(methods, same), *write(value, unit), unit.sign, detail)]


def _warnings(p: ComparedPartition) -> list[str]:
    """Reasons why the rows of one partition are not fully comparable."""
    shared = {variant: _shared(repeats[0]) for variant, repeats in p.methods.items()}
    warnings = []
    for name in dict.fromkeys(name for values in shared.values() for name in values):
        rows: dict[str, list[str]] = {}
        for variant, values in shared.items():
            rows.setdefault(text(values.get(name)), []).append(p.methods[variant][0].label)
        usual, *others = sorted(rows, key=lambda value: -len(rows[value]))
        if len(others) > MANY:
            warnings.append(f"Not all rows have the same {spoken(name)}, but {len(rows)} different ones.")
        elif others:
            differ = "; ".join(f"{value} for {', '.join(rows[value])}" for value in others)
            warnings.append(f"Not all rows have the same {spoken(name)}: {usual}, but {differ}.")
    if _stopped_apart(p.runs):
        warnings.append(f"Runs stopped after {rounds_of(p.runs)}: their final accuracies are not comparable.")
    warnings += [
        f"{run.label}, seed {run.seed} has two results: {run.repeated} is not shown."
        for run in p.runs
        if run.repeated
    ]
    outdated: dict[str, dict[str, list[Run]]] = {}
    for run in p.runs:
        if why := changed(run.folder, run.metrics, p.now):
            outdated.setdefault(why, {}).setdefault(run.variant, []).append(run)
    for why, methods in outdated.items():
        count = counted(sum(map(len, methods.values())), "run")
        warnings.append(f"Outdated ({why} changed): {count} of {_names(methods, [*methods])}.")
    seeds, lacking = {run.seed for run in p.runs}, dict[str, list[str]]()
    for repeats in p.methods.values():
        if gone := seeds - {run.seed for run in repeats}:
            lacking.setdefault(", ".join(map(str, sorted(gone))), []).append(repeats[0].label)
    return warnings + [f"No result for seed {gone}: {listed(some)}." for gone, some in lacking.items()]


def _stopped_apart(runs: Sequence[Run]) -> bool:
    """True if `run.stop_at` ended runs after different numbers of rounds."""
    targets = any(run.params["run"].get("stop_at") for run in runs)
    return targets and len({run.metrics["rounds"] for run in runs}) > 1


def _shared(run: Run) -> dict[str, Any]:
    """The settings and data that compared methods should share, without the settings of methods.

    A client curriculum is left out: it follows from ``run.sampling``.
    """
    params = {name: run.params[name] for name in COMMON}
    params["run"] = {name: value for name, value in params["run"].items() if name != "client_curriculum"}
    params["data"] = {run.metrics["dataset"]: run.params["data"].get(run.metrics["dataset"], {})}
    return flat(params) | {name: value[:8] for name, value in hashes(run.metrics).items()}
