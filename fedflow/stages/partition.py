"""Divides prepared samples among clients."""

import json
import os
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from fedflow.config import Params
from fedflow.data import Dataset, load_prepared
from fedflow.data.files import reading
from fedflow.errors import BadInput, FedflowError
from fedflow.files import (
    COUNTS,
    central_folder,
    intact,
    locked,
    make_writable,
    naming,
    partition_folder,
    prepared_folder,
    read_fact,
)
from fedflow.local.trained import load_network
from fedflow.partition import Partition, Samples, load_partition, make_partition
from fedflow.partition.after.difficulty import Difficulty
from fedflow.partition.params import UNDRAWN
from fedflow.project.identity import Identity
from fedflow.project.running import LOCKS, running
from fedflow.project.terminal import say
from fedflow.stages.experiment import contents

LARGEST = 2_000_000  # clients times labels in the table of labels


def prepare_partition(params: Params, name: str, root: Path = Path()) -> Path:
    """Make ``data/partitions/<name>`` unless it exists, intact, for the same data and parameters.

    Returns the folder. The key of its identity is in ``.fedflow/partitions``, because DVC tracks the folder.
    Raises `BadInput` for a seed's division that equals the entry's, if seeds draw the division only.
    """
    waiting = partial(say, f"{name}: waiting for another process that divides it")
    with locked(root / LOCKS / f"partition-{name}", waiting):
        return _prepared(params, name, root)


def _prepared(params: Params, name: str, root: Path) -> Path:
    """The folder of the partition; no other process writes into it now."""
    wanted, folder = params.partition(name), partition_folder(root, name)
    dataset = load_prepared(prepared_folder(root, wanted.dataset))
    existing = intact(lambda: load_partition(folder))
    if existing is not None and is_divided(params, name, root):
        _need_draw(params, name, existing, dataset, root)
        return folder
    made = _made(params, name, dataset, root)
    _need_draw(params, name, made, dataset, root)
    if existing is not None and existing.hash != made.hash:
        _need_unused(params, name, root)
        say(f"{folder}: replacing another division of this name")
    tabled = made.label_counts is None or (folder / COUNTS).exists()
    if existing is None or existing.summary() != made.summary() or not tabled:
        from fedflow.pictures.labels import draw_difficulty, draw_labels  # import matplotlib, which is slow

        draw_labels(made, folder / "labels.png")
        draw_difficulty(made, folder / "difficulty.png")
        _write_counts(made, folder / COUNTS)
        made.save(folder)  # last: its summary marks a complete folder
    note = _note(name, root)
    make_writable(note.parent)
    with naming(note):
        key = partition_identity(params, name, root).key
        note.write_text(json.dumps({"partition": made.hash, "identity": key}) + "\n")
    return folder


def _made(params: Params, name: str, dataset: Dataset, root: Path) -> Partition:
    samples = Samples.of(dataset, root=root, losses=lambda difficulty: losses_of(difficulty, dataset, root))
    return make_partition(params.partition(name), samples, dataset.hash)


def _need_draw(params: Params, name: str, division: Partition, dataset: Dataset, root: Path) -> None:
    """Refuse `grid.redraw: division` if the seed of ``name`` does not change the division of the entry.

    All seeds would then give the same runs, and a spread of 0.
    """
    entry = name.partition("@")[0]
    same_seed = params.partition(name).seed == params.partition(entry).seed
    if params.grid.redraw != "division" or same_seed:
        return
    if is_divided(params, entry, root):
        first = read_fact(partition_folder(root, entry) / "summary.json", "hash")
    else:
        first = _made(params, entry, dataset, root).hash
    if division.hash == first:
        raise BadInput("grid.redraw", "division", UNDRAWN)


def _need_unused(params: Params, name: str, root: Path) -> None:
    """Raise `FedflowError` if another process runs on the division of this name."""
    for run in running(root):
        if run.pid != os.getpid() and name in _divisions(params, run.name):
            accepted = "wait until it ends, or use another name in `partitions`"
            raise FedflowError(
                f"{run.name}, process {run.pid}, uses another division called {name}: {accepted}"
            )


def _divisions(params: Params, run: str) -> list[str]:
    """The divisions that a run (PARTITION/METHOD/SEED) or a procedure (NAME/SEED) reads."""
    name, *method, last = run.split("/")
    seed = int(last.partition("-")[0])
    with suppress(FedflowError):  # these params may lack the entry
        names = [name] if method else params.procedure(name).inputs().partitions
        return [params.division(part, seed) for part in names]
    return []


def is_divided(params: Params, name: str, root: Path = Path()) -> bool:
    """True if the partition was made from the same data, parameters and code, according to its note."""
    note, made = _note(name, root), read_fact(partition_folder(root, name) / "summary.json", "hash")
    noted = [read_fact(note, "partition"), read_fact(note, "identity")]
    return made is not None and noted == [made, partition_identity(params, name, root).key]


def _note(name: str, root: Path) -> Path:
    return root / ".fedflow" / "partitions" / f"{name}.json"


def _write_counts(made: Partition, path: Path) -> None:
    """Write a row per client with its training samples of every label, unless the table would be huge."""
    path.unlink(missing_ok=True)
    counts = made.label_counts
    if counts is not None and counts.size <= LARGEST:
        header = ",".join(["client", *map(str, range(counts.shape[1]))])
        rows = np.column_stack([np.arange(len(counts)), counts])
        np.savetxt(path, rows, "%d", delimiter=",", header=header, comments="")


def partition_identity(params: Params, name: str, root: Path = Path()) -> Identity:
    """The identity of a partition, from parameters, their files, data, an expert, and code."""
    wanted, expert = params.partition(name), params.expert(name)
    inputs = contents(root, [wanted.dataset], networks=[expert] if expert else [], files=wanted.files())
    settings = {"partition": wanted.as_dict()}
    return Identity.of(settings, None, inputs, [Partition.__module__], [wanted.parameters])


def losses_of(difficulty: Difficulty, dataset: Dataset, root: Path) -> np.ndarray:
    """The losses [n] of the training samples, from an expert or a file."""
    if difficulty.expert is not None:
        network = load_network(central_folder(root, difficulty.expert))
        network.need_data(dataset.hash, f"{difficulty.section}.expert")
        return network.losses
    assert difficulty.losses is not None
    with reading(root / difficulty.losses):
        losses = np.load(root / difficulty.losses, allow_pickle=False)
    numbers = isinstance(losses, np.ndarray) and losses.dtype.kind in "fiu"
    if not numbers or losses.shape != dataset.y_train.shape[:1] or not np.isfinite(losses).all():
        accepted = f"an .npy file of {len(dataset.y_train)} finite numbers, one per training sample"
        raise BadInput(f"{difficulty.section}.losses", difficulty.losses, accepted)
    return losses
