"""From prepared samples to clients."""

import contextlib
import hashlib
import json
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fedflow.config import Params, digest
from fedflow.data import Dataset, load_prepared
from fedflow.data.files import reading
from fedflow.errors import BadInput
from fedflow.files import intact, make_writable, partition_folder, prepared_folder, read_fact
from fedflow.identity import code_digest, versions
from fedflow.local.expert import expert_losses
from fedflow.local.training import LocalTraining
from fedflow.models import ARCHITECTURES, build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition, PartitionParams, Samples, load_partition, make_partition
from fedflow.partition.after.difficulty import Difficulty


def prepare_partition(params: Params, name: str, root: Path = Path()) -> Path:
    """Make ``data/partitions/<name>`` unless it exists, intact, for the same data and parameters.

    Returns the folder. A note in ``.fedflow/partitions`` records what it was made from, code included, so
    that it need not be rebuilt for a comparison. It is not in the folder, where DVC would track it.
    """
    wanted, folder = params.partition(name), partition_folder(root, name)
    dataset = load_prepared(prepared_folder(root, wanted.dataset))
    there, note = intact(lambda: load_partition(folder)), root / ".fedflow" / "partitions" / f"{name}.json"
    origin = _origin(wanted, dataset, root)
    if there is not None and (read_fact(note, "partition"), read_fact(note, "origin")) == (
        there.hash,
        origin,
    ):
        return folder
    from fedflow.pictures.difficulty import draw_difficulty  # import matplotlib, which is slow
    from fedflow.pictures.labels import draw_labels

    samples = Samples.of(
        dataset, root=root, losses=lambda difficulty: _losses(difficulty, dataset, wanted.seed, root)
    )
    made = make_partition(wanted, samples, dataset.hash)
    if there is None or there.summary() != made.summary():
        draw_labels(made, folder / "labels.png")
        draw_difficulty(made, folder / "difficulty.png")
        made.save(folder)  # last: its summary marks a complete folder
    make_writable(note.parent)
    note.write_text(json.dumps({"partition": made.hash, "origin": origin}) + "\n")
    return folder


def _origin(wanted: PartitionParams, dataset: Dataset, root: Path) -> str:
    """A hash of all that a partition depends on: parameters, the files they name, data and code."""
    files = hashlib.blake2b()
    for name in wanted.files():
        with contextlib.suppress(OSError):  # reading it later raises the error
            files.update((root / name).read_bytes())
    about = wanted.as_dict(), dataset.hash, partition_code(wanted), files.hexdigest(), versions()
    return hashlib.blake2b(json.dumps(about).encode(), digest_size=8).hexdigest()


def partition_code(wanted: PartitionParams) -> str:
    """A digest of the code that makes a partition: its scheme, what follows it, and its expert, if any."""
    modules = [Partition.__module__, type(wanted.built).__module__]
    if not wanted.difficulty or wanted.difficulty.losses:
        return code_digest(*modules)
    network = ARCHITECTURES[wanted.difficulty.expert]
    code = code_digest(*modules, __name__, network.build.__module__)
    return digest({"code": code, "options": network.options})


def _losses(difficulty: Difficulty, dataset: Dataset, seed: int, root: Path) -> np.ndarray:
    """A loss per training sample [n]: from the file, or of an expert, on the CPU for reproducibility."""
    if difficulty.losses is not None:
        with reading(root / difficulty.losses):
            losses = np.load(root / difficulty.losses, allow_pickle=False)
        numbers = isinstance(losses, np.ndarray) and losses.dtype.kind in "fiu"
        if not numbers or losses.shape != dataset.y_train.shape[:1] or not np.isfinite(losses).all():
            accepted = f"an .npy file of {len(dataset.y_train)} finite numbers, one per training sample"
            raise BadInput(f"{difficulty.section}.losses", difficulty.losses, accepted)
        return losses
    torch.set_num_threads(1)
    try:
        model = FlatModel(partial(build, difficulty.expert, dataset.input_shape, dataset.num_classes))
    except BadInput as error:
        raise BadInput(f"{difficulty.section}.expert", difficulty.expert, error.accepted) from None
    training = LocalTraining.parse(
        {"epochs": difficulty.epochs, "batch_size": 64, "lr": difficulty.lr, "momentum": 0.9}
    )
    return expert_losses(model, dataset.train, training, seed)
