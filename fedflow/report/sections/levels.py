"""Networks of several sizes: accuracy, rounds to the target and traffic by level."""

from collections.abc import Iterable
from dataclasses import replace

from fedflow.finished.cells import metric_table
from fedflow.finished.run import Run
from fedflow.metrics.table import METRICS, heading, level_metric, levels_of
from fedflow.metrics.target import first_reaching
from fedflow.pictures.accuracy import curve, measured
from fedflow.pictures.accuracy import heading as curve_heading
from fedflow.report.blocks import Block, Drawing, Heading, Panels
from fedflow.report.compared import ComparedPartition, leading, not_drawn, partitioned

REACHED = "rounds_to_target"
LEVEL_TARGET = "first evaluated round in which the all-client mean reaches it; else local accuracy"
ACCURACIES = ("local_accuracy", "global_accuracy", "active_accuracy", "all_accuracy")
BY_LEVEL = (*ACCURACIES, REACHED, "bytes_down", "bytes_up")
LEAD = """Clients hold networks of several sizes. A number of one level is the mean over its clients. For
the rounds to the target, the mean of its models counts where it is evaluated, else the local accuracy."""


@partitioned("levels", "Levels", LEAD)
def section(p: ComparedPartition) -> list[Block]:
    by_variant = {v: levels_of(name for run in runs for name in run.rounds) for v, runs in p.methods.items()}
    every = sorted({level for levels in by_variant.values() for level in levels})
    if not every:
        return []
    leveled = {
        v: [_with_targets(run, levels) for run in p.methods[v]] for v, levels in by_variant.items() if levels
    }
    metrics = []
    for metric in map(METRICS.__getitem__, BY_LEVEL):
        hint = LEVEL_TARGET if metric.name == REACHED else metric.hint
        names = [level_metric(level, metric.name) for level in every]
        metrics += [replace(metric, name=name, label=heading(name), hint=hint) for name in names]
    drawn = [
        Drawing(
            f"{curve_heading(metric, 'round')}, {level}",
            curve(leading(leveled), p.colors, name, "round", f"{p.key}-l{i}-{metric.name}").svg,
        )
        for metric in METRICS.values()
        for i, level in enumerate(every)
        if "round" in metric.curves
        if any(measured(runs, name := level_metric(level, metric.name)) for runs in leading(leveled).values())
    ]
    return [Heading(p.name), *not_drawn(leveled), metric_table(leveled, metrics), Panels(drawn)]


def _with_targets(run: Run, levels: Iterable[str]) -> Run:
    """The run with the first evaluated round in which each level reaches the target.

    The accuracy is of the mean of its models, as FedHeN publishes it, or else the local accuracy.
    """
    target, metrics = run.metrics.get("target_accuracy"), dict[str, int | None]()
    for level in levels:
        accuracies = [level_metric(level, name) for name in ("all_accuracy", "local_accuracy")]
        name = next((name for name in accuracies if name in run.rounds), None)
        if target is not None and name is not None:
            at = first_reaching(name, run.rounds[name], target)
            reached = None if at is None else int(run.rounds["round"].iloc[at])
            metrics[level_metric(level, REACHED)] = reached
    return replace(run, metrics=run.metrics | metrics)
