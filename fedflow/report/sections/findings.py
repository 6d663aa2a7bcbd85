"""Headline findings, with their support by the seeds."""

from collections.abc import Sequence
from typing import Any

from fedflow.finished.bootstrap import MEASURES, SEEDS, Difference, difference, few_seeds, shared
from fedflow.finished.cells import Methods, finer, write
from fedflow.finished.contents import hashes
from fedflow.finished.run import Run
from fedflow.finished.tables import Stat, best, stat, verdict, yardstick
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
    cards = []
    order = yardstick(methods)
    for asked in yardstick_first(metric for metric in METRICS.values() if metric.question):
        metric, unit = asked.name, asked.unit
        ranked = best(methods, metric)
        if not ranked or (metric == "loss") != (order == "loss"):
            continue
        first, value = ranked[0]
        same = [name for name, other in ranked if _printed(other, metric) == _printed(value, metric)]
        answer, detail = _names(methods, same), "The only method."
        if len(same) > 1:
            level = len(same) == len(ranked)
            answer = "All level" if level else answer
            detail = f"{'All' if level else f'{len(same)} of {len(ranked)}'} methods have this mean."
        elif len(ranked) > 1:
            near = _level(methods, ranked, metric)
            rival = ranked[1][0] if len(near) == 1 else near[1]
            ours, theirs = _on_shared_seeds(methods, first, rival, metric)
            name = methods[rival][0].label
            detail = f"Not ahead of {name} on the seeds that both have."
            if _ahead(ours, theirs, metric):
                detail = verdict(ours, theirs, name, metric)
            paired = difference(methods[first], methods[rival], metric) if metric in MEASURES else None
            detail += _certainty(paired) if paired is not None else ""
        cards.append(Card(asked.question, answer, *write(value, unit), unit.sign, detail))
    return [*cards, *_cheapest(methods)]


def _certainty(paired: Difference) -> str:
    """The interval of a difference in words, or a note that there are too few seeds."""
    if paired.seeds < SEEDS:
        return f" {few_seeds(paired.seeds).capitalize()}: too few for a reliable interval."
    if paired.interval is None:
        return ""
    low, high = (f"{100 * end:.1f}" for end in paired.interval)
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
                level = _level(p.methods, ranked, metric)
                words = f"{_names(p.methods, level)} {'leads' if len(level) == 1 else 'are level'}"
                leaders.setdefault(words, []).append(p.name)
        if list(map(len, leaders.values())) == [len(c.partitions)] and len(c.partitions) > 1:
            sentences.append(f"{on}, {next(iter(leaders))} on every partition.")
        elif leaders:
            parts = [f"{words} on {' and '.join(names)}" for words, names in leaders.items()]
            sentences.append(f"{on}, {'; '.join(parts)}.")
    return sentences


def _level(methods: Methods, ranked: Sequence[tuple[str, Stat]], metric: str) -> list[str]:
    """The best of ``ranked`` (best first) and all methods that are not separated from it.

    Methods are not separated if their printed means are equal or their ranges over seeds overlap, unless both
    have a single seed. If they share seeds on the same data, only those count.
    """
    leader = ranked[0][0]

    def level(name: str) -> bool:
        first, value = _on_shared_seeds(methods, leader, name, metric)
        several = max(len(methods[leader]), len(methods[name])) > 1
        overlap = value.low <= first.high and first.low <= value.high
        equal = _printed(value, metric) == _printed(first, metric) or not _ahead(first, value, metric)
        return equal or (several and overlap)

    return [name for name, _ in ranked if name == leader or level(name)]


def _ahead(first: Stat, second: Stat, metric: str) -> bool:
    """True if the mean of ``first`` is better."""
    lower = METRICS[metric].better == "lower"
    return first.mean < second.mean if lower else first.mean > second.mean


def _on_shared_seeds(methods: Methods, first: str, second: str, metric: str) -> tuple[Stat, Stat]:
    """The metric of two methods with the seeds that they share on the same data; without any, with all."""
    pairs = [
        pair
        for pair in shared(methods[first], methods[second])
        if all(run.metrics.get(metric) is not None for run in pair)
    ]
    sides = zip(*pairs) if pairs else (methods[first], methods[second])
    ours, theirs = (stat(runs, metric) for runs in sides)
    assert ours is not None and theirs is not None  # both are ranked
    return ours, theirs


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
        warnings.append(f"Runs stopped after {rounds_of(p.runs)}: their final accuracies do not compare.")
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
        warnings.append(f"Their {why} changed since: {count} of {_names(methods, [*methods])}.")
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
