"""Generated images on the page: how good they are, how close to training images, and what they look like."""

from collections.abc import Mapping
from dataclasses import replace

from markupsafe import Markup

from fedflow.finished.cells import Methods, metric_table
from fedflow.finished.run import Run
from fedflow.finished.tables import columns
from fedflow.metrics.generation import Neighbors, features_of
from fedflow.metrics.table import METRICS
from fedflow.naming import text
from fedflow.pictures.accuracy import curve, heading, measured
from fedflow.pictures.images import by_round, closest, grid
from fedflow.report.subnetworks import Section

BESIDE = ("local_weighted", "global_accuracy")  # of the classifier that is trained on the images
BY_FEATURES = ("fid", *Neighbors._fields)
CURVES = ("fid", "global_accuracy")


def generation(methods: Methods, places: Mapping[str, int], key: str) -> Section | None:
    """Measures of images of all methods that generate some, and pictures of them; None without any."""
    found = _generating(methods)
    if not found:
        return None
    of = {(features_of(run.params["run"]), _count(run)) for runs in found.values() for run in runs}
    kinds = {kind for (kind, _), _ in of}
    title = f"FID{kinds.pop()}" if len(kinds) == 1 else "FID"
    shown = [METRICS[name] for name in BESIDE]
    for metric in columns("generation"):
        label = title if metric.name == "fid" else metric.label
        # Values of other features, or of another number of images, do not compare.
        better = "" if metric.name in BY_FEATURES and len(of) > 1 else metric.better
        shown.append(replace(metric, label=label, better=better))
    table = metric_table(found, shown)
    figures = [
        (
            heading(METRICS[name], "round").replace("FID", title),
            curve(found, places, name, "round", f"{key}-i-{name}").svg,
            "",
        )
        for name in CURVES
        if any(measured(runs, name) for runs in found.values())
    ]
    for place, runs in enumerate(found.values()):
        figures += _of_run(runs[0], f"{key}-i{place}")
    return Section(table, figures)


def privacy(methods: Methods, key: str) -> Section | None:
    """How close images are to training images; None without images."""
    found = _generating(methods)
    if not found:
        return None
    figures = []
    for place, runs in enumerate(found.values()):
        run = runs[0]
        assert run.images.last is not None, "of every run with images"
        drawn = closest(run.images.rounds[max(run.images.rounds)], run.images.last, f"{key}-p{place}")
        note = f"Seed {run.seed}, after round {max(run.images.rounds)}."
        figures.append((f"{run.label}: the images closest to training images", drawn.svg, note))
    return Section(metric_table(found, columns("privacy")), figures)


def _generating(methods: Methods) -> Methods:
    """The methods with images, of their runs that have some."""
    found = {variant: [run for run in runs if run.images.rounds] for variant, runs in methods.items()}
    return {variant: runs for variant, runs in found.items() if runs}


def _count(run: Run) -> int:
    """The number of images after the last round."""
    return len(run.images.rounds[max(run.images.rounds)][1])


def _of_run(run: Run, key: str) -> list[tuple[str, Markup, str]]:
    """The pictures of one run: its last images, and images by round."""
    rounds, last = run.images.rounds, run.images.last
    assert last is not None, "of every run with images"
    classifier = run.params["method"].get("classifier") or {}
    note = (
        f"Seed {run.seed}, after round {max(rounds)}: {_count(run):,} images. In %: the accuracy of the "
        f"classifier on the complete test set, by class ({text(classifier.get('epochs'))} epochs). "
        f"The features are {features_of(run.params['run'])[1]}."
    )
    found = [("generated images", grid(rounds[max(rounds)], last.accuracy, f"{key}-grid"), note)]
    if len(rounds) > 1:
        found.append(("an image per class by round", by_round(rounds, f"{key}-rounds"), f"Seed {run.seed}."))
    return [(f"{run.label}: {words}", drawn.svg, about) for words, drawn, about in found]
