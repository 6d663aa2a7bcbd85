"""The pictures of a finished run in MLflow: a function and a folder for each kind."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fedflow.data.generated import FILE, load_generated
from fedflow.files import COUNTS
from fedflow.finished.clusters import clusters
from fedflow.finished.collect import read_run
from fedflow.finished.features import masks, predictions, series, sweep
from fedflow.finished.run import Run
from fedflow.local.local_training import LocalTraining
from fedflow.metrics.predictions import several
from fedflow.simulation.outcome import SERIES_CLIENTS

DRAWN_CLUSTERS = 20  # of a run, those with the lowest numbers
Draw = Callable[[Run, Path, Path], None]  # a run, the folder of its partition, and the folder of the pictures


def by_cluster(run: Run, partition: Path, out: Path) -> None:
    """The clusters by round, and how the server compared clients."""
    history = clusters(run)
    if not history.history:
        return
    from fedflow.pictures.clusters import Grouping, draw_clusters  # imports matplotlib, which is slow

    steps = {step["round"]: step["assignment"] for step in history.history}
    last, rounds = run.clients["cluster"].tolist(), run.metrics["rounds"]
    if steps[max(steps)] != last:
        steps[rounds] = last
    grouping = Grouping(steps, rounds, history.groups or None, history.dissimilarity, history.stable_ids)
    draw_clusters(out, grouping)


def cluster_labels(run: Run, partition: Path, out: Path) -> None:
    """The labels of every cluster's clients."""
    if not clusters(run).history or not (partition / COUNTS).is_file():
        return
    from fedflow.pictures.labels import draw_counts

    counts = pd.read_csv(partition / COUNTS).drop(columns="client").to_numpy()
    cluster = run.clients["cluster"].to_numpy()
    for j in sorted({*cluster.tolist()} - {-1})[:DRAWN_CLUSTERS]:
        heading = f"cluster {j} of {run.method} on {run.partition}, seed {run.seed}"
        draw_counts(counts[: len(cluster)][cluster == j], heading, out / f"cluster-{j}.png")


def calibration(run: Run, partition: Path, out: Path) -> None:
    """Confidence and accuracy of the kept predictions."""
    if len(kept := predictions(run)) and not several(kept):
        from fedflow.pictures.reliability import draw_reliability

        draw_reliability(out, kept)


def curricula(run: Run, partition: Path, out: Path) -> None:
    """Growing prefixes of samples and pools of clients."""
    if not run.params["training"].get("curriculum") and not run.params["run"].get("client_curriculum"):
        return
    from fedflow.pictures.curriculum import POLLED, draw_curricula

    training, sizes = LocalTraining.parse(run.params["training"]), run.clients["samples"].to_numpy()
    drawn = series(run)
    draw_curricula(out, training, sizes, run.rounds, drawn[drawn["name"] == POLLED])


def mixtures(run: Run, partition: Path, out: Path) -> None:
    """Scores of mixtures of global and personal models."""
    scores = sweep(run)
    if scores.empty:
        return
    from fedflow.pictures.mixtures import SCORES, Sweep
    from fedflow.pictures.mixtures import mixtures as draw

    label = run.metrics["method_label"]
    for column in (column for column in SCORES if scores[column].notna().any()):
        drawn = draw({label: [Sweep(label, scores)]}, {label: 0}, column, f"sweep-{column}")
        drawn.png(out / f"{column}.png")


def pruning(run: Run, partition: Path, out: Path) -> None:
    """Masks, and pruned shares by round."""
    compared, shown = masks(run), series(run)
    if compared is None and shown.empty:
        return
    from fedflow.pictures.masks import draw_masks

    clients = min(run.metrics["clients"], SERIES_CLIENTS)
    draw_masks(out, run.metrics["method_label"], compared, shown, clients, run.metrics["rounds"])


def images(run: Run, partition: Path, out: Path) -> None:
    """Generated images."""
    if file := run.file(FILE):
        from fedflow.pictures.images import draw_images

        draw_images(out, load_generated(file))


FOLDERS: tuple[tuple[str, Draw], ...] = (
    ("clusters", by_cluster),
    ("clusters", cluster_labels),
    ("calibration", calibration),
    ("curriculum", curricula),
    ("sweep", mixtures),
    ("masks", pruning),
    ("generated", images),
)


def drawn(
    results: Path, facts: Mapping[str, Any], partition: Path, out: Path
) -> Iterator[tuple[str, list[Path]]]:
    """Draw the pictures of a run below ``out``; yields the folder in MLflow and the files of every kind.

    ``results`` and ``partition`` are the folders of the run and its partition; ``facts`` identify the run.
    """
    run = read_run(results, facts)
    for name, draw in FOLDERS:
        folder = out / draw.__name__
        folder.mkdir()
        draw(run, partition, folder)
        if files := sorted(folder.iterdir()):
            yield name, files
