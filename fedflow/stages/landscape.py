"""Draws the loss around or between recorded models; nothing is trained."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedflow.data import Examples, load_prepared
from fedflow.errors import BadInput, FedflowError, unknown_name
from fedflow.files import (
    check_output,
    finished_folders,
    make_writable,
    naming,
    partition_folder,
    prepared_folder,
)
from fedflow.finished.reading import read_json
from fedflow.finished.results import MARKER
from fedflow.local.precision import use_plain_products
from fedflow.models.flat import FlatModel
from fedflow.models.landscape import Landscape, Surface
from fedflow.partition import load_partition
from fedflow.partition.opened import opened
from fedflow.project.arguments import check_name
from fedflow.project.digest import shortened
from fedflow.project.terminal import say
from fedflow.seeding import generator
from fedflow.settings import Settings, option
from fedflow.stages.experiment import pick_device
from fedflow.tracking.models import attach, load_model, served_model, sought

FOLDER = Path("landscapes")  # DVC empties its outputs, such as report
LONGEST = 150  # bytes of the name of a file, without its ending
FORM = "PARTITION/METHOD/SEED, as below results/ or runs/, with :CLIENT for the model of a cluster or client"


class Grid(Settings):
    """The points at which models around or between recorded ones are scored."""

    points: int = option(21, "points along each axis", ge=3)
    radius: float = option(1.0, "half the width of a plane, relative to the norm of each filter", gt=0)
    samples: int = option(1000, "largest number of test samples; 0 = all", ge=0)
    rho: float = option(0.2, "relative distance at which sharpness is measured", gt=0)
    directions: int = option(10, "random directions for sharpness", ge=1)
    seed: int = option(0, "seed of directions and samples", ge=0)


@dataclass(frozen=True)
class RecordedModel:
    """A recorded model [D], and the test samples that it is scored on."""

    run: str
    label: str
    run_id: str
    network: FlatModel
    w: Tensor
    test: Examples
    data_hash: str


@dataclass(frozen=True)
class Sharpness:
    """Test loss and accuracy of a model, and mean and std of the rise of the loss over directions."""

    label: str
    loss: float
    accuracy: float
    rise: float
    spread: float


def draw_landscape(
    runs: Sequence[str],
    grid: Grid,
    between: bool = False,
    own: bool = False,
    name: str | None = None,
    root: Path = Path(),
) -> tuple[list[Sharpness], list[Path]]:
    """Write a picture (PNG, SVG) and its numbers (CSV) to landscapes, and log them with every run.

    It shows a plane around the model of each of ``runs``, side by side; or, ``between`` two or three models,
    the segment or the plane through them, scored on the test samples of the first. With ``own``, models are
    scored on the test samples of the run's client, not on the complete test set. Returns the sharpness of
    every model, and the files. Raises `FedflowError` for runs without recorded models, and for models that
    cannot be compared.
    """
    if between and len(runs) not in (2, 3):
        raise BadInput("--between", " ".join(runs), "two or three runs")
    if len(set(runs)) < len(runs):
        raise BadInput("runs", " ".join(runs), "different runs")
    stem = "-".join(["between" if between else "around", *runs]).replace("/", ".").replace(":", ".")
    stem = shortened(stem, LONGEST) if name is None else check_name("--name", name)
    files = [root / FOLDER / f"{stem}.{kind}" for kind in ("png", "svg", "csv")]
    for file in files:
        check_output("--name" if name else "run", file)
    models = [_recorded(run, own, grid, root) for run in runs]
    make_writable(root / FOLDER)
    _check_comparable(models, between)
    labels = [model.label for model in models]
    if len(set(labels)) < len(labels):
        labels = list(runs)
    landscapes = [Landscape(model.network, model.test) for model in models]
    measured = []
    for label, model, landscape in zip(labels, models, landscapes):
        say(f"{model.run}: {2 * grid.directions + 1} models, for its sharpness")
        rises = landscape.sharpness(model.w, grid.rho, grid.directions, grid.seed)
        measured.append(Sharpness(label, *landscape.score(model.w), rises.mean(), rises.std()))
    surfaces = {}
    if between:
        say(f"{' to '.join(runs)}: {grid.points ** (len(runs) - 1)} models")
        first, second, *third = (model.w for model in models)
        surfaces[" to ".join(labels)] = (
            landscapes[0].triangle(first, second, third[0], grid.points)
            if third
            else landscapes[0].line(first, second, grid.points)
        )
    else:
        for label, model, landscape in zip(labels, models, landscapes):
            say(f"{model.run}: {grid.points**2} models around it")
            surfaces[label] = landscape.plane(model.w, grid.points, grid.radius, grid.seed)
    _write(files, surfaces, measured, between)
    for run_id in {model.run_id: None for model in models}:
        attach(run_id, files, "landscapes", root)
    return measured, files


def _recorded(run: str, own: bool, grid: Grid, root: Path) -> RecordedModel:
    """The model that a finished run recorded, and the samples to score it on."""
    name, colon, number = run.partition(":")
    if colon and not number.isdecimal():
        raise BadInput("run", run, FORM)
    client = int(number) if colon else None
    files = [f / MARKER for f in finished_folders(root / "results", 2) if (f / MARKER).is_file()]
    if not files:
        raise BadInput("run", run, f"{FORM}; none has finished")
    names = {"/".join(file.parts[-4:-1]): file for file in reversed(files)}  # results before runs
    named = names | {"/".join(file.parts[-5:-1]): file for file in files}
    if name not in named:
        raise unknown_name("run", name, names)
    facts = read_json(named[name])
    try:
        run_id, which = served_model(*sought(facts), client, root)
        module = load_model(run_id, which, client, root)
    except BadInput as error:
        raise BadInput("run", run, f"{FORM}: {error.accepted}") from error
    use_plain_products()
    network = FlatModel(partial(copy.deepcopy, module), device=pick_device("auto"))
    label = facts["method_label"] + (f", client {client}" if colon else "")
    test = _test(facts, client, own, grid, root).to(network.device)
    return RecordedModel(run, label, run_id, network, network.from_module(module), test, facts["data_hash"])


def _test(facts: dict[str, Any], client: int | None, own: bool, grid: Grid, root: Path) -> Examples:
    """At most `Grid.samples` samples of the complete test set, or of the ``client``'s own."""
    dataset = load_prepared(prepared_folder(root, facts["dataset"]))
    partition = load_partition(partition_folder(root, facts.get("division", facts["partition"])))
    for what, content in (("data", dataset.hash), ("partition", partition.hash)):
        if content != facts[f"{what}_hash"]:
            raise FedflowError(
                f"the {what} of {facts['partition']} has changed since this run: `fedflow partition "
                f"{facts['partition']}` makes what params.yaml says, else run the experiment again"
            )
    train, examples, own_test = opened(dataset, partition)
    rows = np.arange(len(examples))
    if own:
        if client is None:
            raise BadInput("--own", True, f"runs with a client: {FORM}")
        if partition.held_out:
            examples = train
        elif own_test is not None:
            examples = own_test
        rows = partition.test(client)
    if not len(rows):
        raise BadInput("--own", True, f"a client with test samples; client {client} has none")
    if 0 < grid.samples < len(rows):
        rows = generator(grid.seed, "landscape samples").choice(rows, grid.samples, replace=False)
    return examples.only(torch.from_numpy(np.sort(rows)))


def _check_comparable(models: Sequence[RecordedModel], between: bool) -> None:
    """Raise `FedflowError` unless the models have the same dataset and, if ``between``, the same network."""
    first = models[0]
    for other in models[1:]:
        if other.data_hash != first.data_hash:
            raise FedflowError(
                f"{first.run} and {other.run} have different datasets: their losses are not comparable"
            )
        if between and other.network.architecture != first.network.architecture:
            raise FedflowError(f"{first.run} and {other.run} have different networks: no line connects them")


def _write(
    files: Sequence[Path], surfaces: dict[str, Surface], measured: Sequence[Sharpness], between: bool
) -> None:
    """Write the picture of the surfaces (PNG, SVG) and the table of their points (CSV) to ``files``."""
    from fedflow.pictures import drawing  # imports matplotlib, which is slow
    from fedflow.pictures import landscape as pictures

    labels = [sharpness.label for sharpness in measured]
    if not between:
        titles = [f"{sharpness.label}\nsharpness {sharpness.rise:.3g}" for sharpness in measured]
        axes = ("relative distance, direction 1", "relative distance, direction 2")
        figure = pictures.planes(dict(zip(titles, surfaces.values())), axes)
    elif len(measured) == 2:
        figure = pictures.segment(next(iter(surfaces.values())), labels)
    else:
        axes = ("distance between parameters", "distance")
        figure = pictures.planes({"": next(iter(surfaces.values()))}, axes, labels)
    png, svg, csv = files
    drawing.save_png(figure, png, drawing.PNG_DPI)
    drawing.save_svg(figure, svg, svg.stem)
    parts = []
    for label, surface in surfaces.items():
        x, y = (axis.ravel() for axis in np.meshgrid(surface.x, surface.y))
        scores = {"loss": surface.loss.ravel(), "accuracy": surface.accuracy.ravel()}
        parts.append(pd.DataFrame({"models": label, "x": x, "y": y, **scores}))
    with naming(csv):
        pd.concat(parts).to_csv(csv, index=False, float_format="%.9g", lineterminator="\n")
