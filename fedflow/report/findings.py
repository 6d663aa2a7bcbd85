"""The findings that head the page, worded no more strongly than the seeds allow."""

from dataclasses import dataclass

from fedflow.report.cells import label, write
from fedflow.report.collect import Run
from fedflow.report.tables import best, by_method, verdict, yardstick

Methods = dict[str, list[Run]]
QUESTIONS = {
    "local_accuracy": "Best for the clients",
    "global_accuracy": "Best on the complete test set",
    "local_worst10": "Best for the worst-served 10 %",
    "loss": "Smallest loss of the clients",
}


@dataclass(frozen=True)
class Finding:
    """A question, the method that answers it, its number, and how sure that is."""

    question: str
    method: str
    label: str
    value: str
    spread: str
    unit: str
    detail: str


def findings(methods: Methods) -> list[Finding]:
    """Who is ahead on local, global and worst-10 % accuracy (without any: on the loss), and who moves least.

    The least traffic is that until the target is reached.
    """
    found = []
    loss = yardstick(methods) == "loss"
    for metric, question in QUESTIONS.items():
        ranked = best(methods, metric)
        if not ranked or (metric == "loss") != loss:
            continue
        first, value = ranked[0]
        detail = "The only method here."
        if len(ranked) > 1:
            detail = verdict(value, ranked[1][1], label(methods[ranked[1][0]]), metric)
        words, unit = (write(value, 1, 4), "") if loss else (write(value), "%")
        found.append(Finding(question, first, label(methods[first]), *words, unit, detail))
    return [*found, *_cheapest(methods)]


def summary(groups: dict[str, list[Run]]) -> list[str]:
    """The opening sentences: who leads where, over all partitions."""
    sentences = []
    for metric, words in (
        ("local_accuracy", "On the clients' own test sets"),
        ("global_accuracy", "On the complete test set"),
    ):
        leaders: dict[str, list[str]] = {}
        for partition, runs in groups.items():
            methods = by_method(runs)
            for first, _ in best(methods, metric)[:1]:
                leaders.setdefault(label(methods[first]), []).append(partition)
        if not leaders:
            continue
        if list(map(len, leaders.values())) == [len(groups)] and len(groups) > 1:
            sentences.append(f"{words}, {next(iter(leaders))} has the highest mean on every partition.")
        else:
            parts = [f"{name} on {', '.join(where)}" for name, where in leaders.items()]
            sentences.append(f"{words}, the highest mean is that of {'; '.join(parts)}.")
    return sentences


def _cheapest(methods: Methods) -> list[Finding]:
    question, targets = (
        "Least traffic to the target",
        {r.metrics["target_accuracy"] for g in methods.values() for r in g},
    )
    if len(targets) > 1 or None in targets:
        return []
    target = f"{100 * targets.pop():g} % local accuracy"
    reached = [(m, v) for m, v in best(methods, "bytes_to_target") if len(v.values) == len(methods[m])]
    if not reached:
        return [Finding(question, "", "No method", "", "", "", f"None reached {target} with every seed.")]
    name, value = reached[0]
    detail = f"To {target}; {len(reached)} of {len(methods)} methods get there with every seed."
    if value.mean == 0 and len(reached) > 1:
        other, needed = reached[1]
        least = f"{label(methods[other])} needs least: {' '.join(write(needed, 1e-6))} MB"
        detail += f" It moves nothing; of those that do, {least}."
    return [Finding(question, name, label(methods[name]), *write(value, 1e-6), "MB", detail)]
