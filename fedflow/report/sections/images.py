"""Generated images: quality, distance to training images, and pictures."""

from dataclasses import replace

from fedflow.data.generated import FILE, GeneratedImages, load_generated
from fedflow.finished.cells import metric_table
from fedflow.finished.run import Run, once
from fedflow.finished.tables import columns
from fedflow.metrics.generation import Neighbors, features_of
from fedflow.metrics.table import METRICS
from fedflow.naming import text
from fedflow.pictures.accuracy import curve, heading, measured
from fedflow.pictures.images import by_round, closest, grid
from fedflow.report.blocks import Block, Drawing, Heading, Panels
from fedflow.report.compared import ALONE, ComparedPartition, leading, not_drawn, partitioned

ACCURACIES = ("local_weighted", "global_accuracy")  # of the classifier that is trained on the images
BY_FEATURES = ("fid", *Neighbors._fields)
CURVES = ("fid", "global_accuracy")
GENERATION = """The server makes labeled images; clients are served a classifier that is trained on them. All
measures compare the images after the last round with the complete test set. The FID is a distance between
the means and covariances of features: inputs of the last layer of a central network (FID-c) or of
Inception v3, or pixels. It depends on the features and on the number of images, so values
are comparable only with equal features and numbers; the FID of as many real training images is what
perfect images would have.
Precision, recall, density and coverage count images within balls around others, up to the 5th neighbor. The
accuracy with real images is of the same classifier, trained in the same way on these real training
images."""
PRIVACY = """Distances between pixels in [0, 1], to the training images of all clients. If generated images
were copies of training images, they would be closer to these than test images are. The test images are as
new as images can be, so 5 % near copies are expected of new ones. A distance to the nearest test image is
larger for a small test set. Images far from all training images prove nothing about privacy: features,
attributes, or the membership of a client can leak without any copy, and a distance between pixels misses a
copy that is shifted or brighter. These numbers do not cover what clients send."""


@partitioned("images", "Generated images", GENERATION, "Images")
def section(p: ComparedPartition) -> list[Block]:
    """The quality of the images, and pictures of them."""
    methods = p.having(lambda run: generated(run).rounds)
    if not methods:
        return []
    compared = {(features_of(run.params["run"]), _count(run)) for runs in methods.values() for run in runs}
    kinds = {kind for (kind, _), _ in compared}
    title = f"FID{kinds.pop()}" if len(kinds) == 1 else "FID"
    shown = [METRICS[name] for name in ACCURACIES]
    for metric in columns("generation"):
        label = title if metric.name == "fid" else metric.label
        # Values with other features, or other numbers of images, do not compare.
        better = "" if metric.name in BY_FEATURES and len(compared) > 1 else metric.better
        shown.append(replace(metric, label=label, better=better))
    drawn = [
        Drawing(
            heading(METRICS[name], "round").replace("FID", title),
            curve(leading(methods), p.colors, name, "round", f"{p.key}-i-{name}").svg,
        )
        for name in CURVES
        if any(measured(runs, name) for runs in leading(methods).values())
    ]
    for i, runs in enumerate(leading(methods, ALONE).values()):
        drawn += _of_run(runs[0], f"{p.key}-i{i}")
    return [Heading(p.name), metric_table(methods, shown), *not_drawn(methods, ALONE), Panels(drawn)]


@partitioned("privacy", "Privacy of generated images", PRIVACY, "Privacy")
def privacy(p: ComparedPartition) -> list[Block]:
    """The distance of the images to training images."""
    if not (methods := p.having(lambda run: generated(run).rounds)):
        return []
    drawn = []
    for i, run in enumerate(runs[0] for runs in leading(methods, ALONE).values()):
        rounds, last = generated(run)
        assert last is not None, "in every run with images"
        picture = closest(rounds[max(rounds)], last, f"{p.key}-p{i}").svg
        note = f"Seed {run.seed}, after round {max(rounds)}."
        drawn.append(Drawing(f"{run.label}: the images closest to training images", picture, note))
    return [
        Heading(p.name),
        metric_table(methods, columns("privacy")),
        *not_drawn(methods, ALONE),
        Panels(drawn),
    ]


@once
def generated(run: Run) -> GeneratedImages:
    """The images that the server generated, none in runs of other methods."""
    file = run.file(FILE)
    return load_generated(file) if file else GeneratedImages({}, None)


def _count(run: Run) -> int:
    """The number of images after the last round."""
    rounds = generated(run).rounds
    return len(rounds[max(rounds)][1])


def _of_run(run: Run, key: str) -> list[Drawing]:
    """The pictures of one run: its last images, and images by round."""
    rounds, last = generated(run)
    assert last is not None, "in every run with images"
    classifier = run.params["method"].get("classifier") or {}
    note = (
        f"Seed {run.seed}, after round {max(rounds)}: {_count(run):,} images. In %: the accuracy of the "
        f"classifier on the complete test set, by class ({text(classifier.get('epochs'))} epochs). "
        f"The features are {features_of(run.params['run'])[1]}."
    )
    pictures = [("generated images", grid(rounds[max(rounds)], last.accuracy, f"{key}-grid"), note)]
    if len(rounds) > 1:
        drawn = by_round(rounds, f"{key}-rounds")
        pictures.append(("an image per class by round", drawn, f"Seed {run.seed}."))
    return [Drawing(f"{run.label}: {words}", drawn.svg, note) for words, drawn, note in pictures]
