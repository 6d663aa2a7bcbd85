"""Clients with part of a network on the page: what they prune, and those of networks of several sizes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from markupsafe import Markup

from fedflow.finished.cells import Methods, Table, metric_table, of_clients
from fedflow.finished.run import Run
from fedflow.metrics.table import METRICS, SHARE, Metric, heading, level_metric, levels_of
from fedflow.metrics.target import first_reaching
from fedflow.pictures.accuracy import curve, measured
from fedflow.pictures.accuracy import heading as curve_heading
from fedflow.pictures.masks import accuracy_by_share, by_shared_labels, layers, matrix, pruned
from fedflow.simulation.extensions.recording import GATE, PRUNED
from fedflow.simulation.outcome import SERIES_CLIENTS

COSTS = (
    "kept",
    "macs",
    "macs_ratio",
    "macs_convolutions",
    "macs_convolutions_ratio",
    "bytes_down",
    "bytes_up",
    "paper_bytes",
)
SHARES = {  # of diagnostics: heading and explanation
    "pruned": ("Pruned, %", "of all parameters"),
    "pruned_channels": ("Channels, %", "pruned"),
    "pruned_dense": ("Linear layers, %", "pruned weights of linear layers"),
}
GATED = "Accuracy of the network that the client keeps, on the samples of method.gate."
REACHED = "rounds_to_target"
LEVEL_TARGET = "first evaluated round in which the all-client mean reaches it; else local accuracy"
BY_LEVEL = (
    "local_accuracy",
    "global_accuracy",
    "active_accuracy",
    "all_accuracy",
    REACHED,
    "bytes_down",
    "bytes_up",
)


@dataclass(frozen=True)
class Section:
    """What the page shows of one partition."""

    table: Table
    figures: list[tuple[str, Markup, str]]  # heading, picture, note


def pruning(methods: Methods, places: Mapping[str, int], key: str) -> Section | None:
    """Accuracy, pruned shares and costs of all methods, and pictures of masks; None if no run has masks."""
    masked = {variant: found for variant, runs in methods.items() if (found := [r for r in runs if r.masks])}
    if not masked:
        return None
    shares = [
        Metric(f"client/{name}/mean", label, f"{of}, mean over the clients of the last round", SHARE, "")
        for name, (label, of) in SHARES.items()
    ]
    costs = [METRICS[name] for name in COSTS]
    table = metric_table(methods, [METRICS["local_accuracy"], METRICS["global_accuracy"], *shares, *costs])
    labeled = {variant: runs for variant, runs in masked.items() if all(map(_labeled, runs))}
    figures = []
    if labeled:
        drawn = by_shared_labels(labeled, places, f"{key}-shared-labels").svg
        correlations = ", ".join(f"{_correlation(runs)} for {runs[0].label}" for runs in labeled.values())
        note = f"Rank correlation over pairs of clients, mean over seeds: {correlations}."
        if any(_first(run) for runs in labeled.values() for run in runs):
            note += " Masks are those of the first clients only."
        figures.append(("Mask IoU by number of shared labels", drawn, note))
    for place, runs in enumerate(masked.values()):
        figures += _of_run(runs[0], f"{key}-m{place}")
    return Section(table, figures)


def _of_run(run: Run, key: str) -> list[tuple[str, Markup, str]]:
    """The pictures of one run."""
    found, masks, names, note = [], run.masks, set(run.series["name"]), of_clients(run)
    assert masks is not None, "only of runs with masks"
    if PRUNED in names:
        shown = min(run.metrics["clients"], SERIES_CLIENTS)
        drawn = pruned(run.series, shown, run.metrics["rounds"], f"{key}-pruned")
        found.append(("pruned share by round", drawn, note))
    if {PRUNED, GATE} <= names:
        drawn = accuracy_by_share(run.series, f"{key}-gate")
        found.append(("accuracy by pruned share", drawn, f"{note} {GATED}"))
    note = f"Seed {run.seed}, {len(masks.clients):,} clients that took part{_first(run)}."
    found.append(("overlap of masks, IoU in %", matrix(masks, f"{key}-overlap"), note))
    if masks.layers:
        found.append(("what clients keep of each layer", layers(masks, f"{key}-layers"), note))
    return [(f"{run.label}: {words}", drawn.svg, note) for words, drawn, note in found]


def _first(run: Run) -> str:
    """The number of clients that took part, if only the first of them have recorded masks; else empty."""
    took_part = int((run.clients["participations"] > 0).sum())
    return f", the first of {took_part:,}" if run.masks and len(run.masks.clients) < took_part else ""


def _labeled(run: Run) -> bool:
    return run.masks is not None and run.masks.labels is not None


def _correlation(runs: list[Run]) -> str:
    """Of the masks' IoU and the labels that clients share: the mean over seeds that have one."""
    found = [value for run in runs if run.masks and (value := run.masks.correlation()) is not None]
    return f"{sum(found) / len(found):.2f}" if found else "none"


def levels(methods: Methods, places: Mapping[str, int], key: str) -> Section | None:
    """Accuracy, rounds to the target and traffic of every level; None without levels."""
    found = {v: levels_of(name for run in runs for name in run.rounds) for v, runs in methods.items()}
    every = sorted({level for own in found.values() for level in own})
    if not every:
        return None
    leveled = {v: [_with_targets(run, own) for run in methods[v]] for v, own in found.items() if own}
    names = [(level_metric(level, name), METRICS[name]) for name in BY_LEVEL for level in every]
    table = metric_table(
        leveled,
        [
            replace(of, name=name, label=heading(name), hint=LEVEL_TARGET if of.name == REACHED else of.hint)
            for name, of in names
        ],
    )
    figures = [
        (
            f"{curve_heading(metric, 'round')}, {level}",
            curve(leveled, places, name, "round", f"{key}-l{place}-{metric.name}").svg,
            "",
        )
        for metric in METRICS.values()
        for place, level in enumerate(every)
        if "round" in metric.curves
        if any(measured(runs, name := level_metric(level, metric.name)) for runs in leveled.values())
    ]
    return Section(table, figures)


def _with_targets(run: Run, levels: Iterable[str]) -> Run:
    """The run, with the first evaluated round in which a level reaches the target.

    That is the accuracy of the mean of its models, as FedHeN publishes it, or else the local one.
    """
    target, metrics = run.metrics.get("target_accuracy"), dict[str, int | None]()
    for level in levels:
        accuracies = [level_metric(level, name) for name in ("all_accuracy", "local_accuracy")]
        name = next((name for name in accuracies if name in run.rounds), None)
        if target is not None and name is not None:
            place = first_reaching(name, run.rounds[name], target)
            reached = None if place is None else int(run.rounds["round"].iloc[place])
            metrics[level_metric(level, REACHED)] = reached
    return replace(run, metrics=run.metrics | metrics)
