"""A central network as its stage stores it: weights, losses of all training samples, facts.

Runs use it as a teacher or expert, partitions as an expert. The hash of its content identifies it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedflow.data.prepared import file_sum
from fedflow.errors import BadInput, FedflowError, reason
from fedflow.files import Write, replace_files, write_json
from fedflow.local.teacher import Teacher
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.models.tensors import FROZEN

MARKER, WEIGHTS, LOSSES = "metrics.json", "model.safetensors", "losses.npy"
IDENTITY = ("model", "options", "input_shape", "outputs", "data_hash")  # facts that the hash covers


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """A network trained on all training samples of a dataset.

    ``w`` [D] is its vector, ``losses`` [n] its loss on every training sample, float64, without label
    smoothing. ``facts`` are the content of ``metrics.json``, ``frozen`` the parameters that were not trained.
    """

    w: Tensor
    losses: np.ndarray
    facts: dict[str, Any]
    frozen: dict[str, Tensor] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        return str(self.facts["hash"])

    @property
    def data_hash(self) -> str:
        return str(self.facts["data_hash"])

    @property
    def size(self) -> int:
        return self.w.numel() * self.w.element_size()

    def need_data(self, hash: str, field: str) -> None:
        """Raise `BadInput` of ``field`` unless it was trained on the dataset with this hash."""
        if self.data_hash != hash:
            name = self.facts["name"]
            accepted = f"a network trained on the dataset as it is now; `fedflow central {name}` trains it"
            raise BadInput(field, name, accepted)

    def read(self, losses: bool, device: torch.device, dtype: torch.dtype) -> Teacher | Tensor:
        """The input of training (`Reads`): the network, or its ``losses`` [n] on all training samples."""
        return torch.from_numpy(self.losses).to(device, dtype) if losses else self.teacher(device)

    def teacher(self, device: torch.device) -> Teacher:
        """This network, on ``device``, for clients that learn from it."""
        name, shape = self.facts["model"], tuple(self.facts["input_shape"])
        network = partial(build, name, shape, self.facts["outputs"], **self.facts["options"])
        model = FlatModel(network, device=device, frozen=self.frozen)
        if model.size != self.w.numel():
            raise FedflowError(f"{name} has {model.size} values, not {self.w.numel()}")
        return Teacher(model, self.w.to(device))


def save_network(
    folder: Path,
    w: Tensor,
    losses: np.ndarray,
    facts: dict[str, Any],
    more: dict[str, Write],
    frozen: Mapping[str, Tensor],
) -> TrainedNetwork:
    """Write a network into ``folder``, in place of an earlier one; the hash does not cover ``more`` files.

    ``facts`` must have the ones in `IDENTITY`. Equal content gives equal bytes. Raises `FedflowError`.
    """
    facts = dict(facts)

    def write_facts(path: Path) -> None:  # the last file, so that the others are there
        facts["hash"] = _hash(path.parent, facts)
        facts["files"] = {name: file_sum(path.parent / name) for name in more}
        write_json(path, facts)

    tensors = {"w": w.cpu().contiguous()} | {f"{FROZEN}{name}": p for name, p in frozen.items()}
    files: dict[str, Write | None] = {
        WEIGHTS: lambda path: path.write_bytes(save(tensors)),
        LOSSES: partial(np.save, arr=losses, allow_pickle=False),
        **more,
        MARKER: write_facts,
    }
    replace_files(folder, files, MARKER)
    return TrainedNetwork(w, losses, facts, dict(frozen))


def load_network(folder: Path) -> TrainedNetwork:
    """The network in ``folder``. Raises `FedflowError` if a file is missing or damaged."""
    if not (folder / MARKER).is_file():
        raise FedflowError(f"{folder / MARKER}: missing; `fedflow central {folder.name}` trains this network")
    try:
        facts = json.loads((folder / MARKER).read_text())
        if facts["hash"] != _hash(folder, facts):
            raise ValueError("files and facts do not match their hash")
        if any(file_sum(folder / name) != digest for name, digest in facts.get("files", {}).items()):
            raise ValueError(f"{', '.join(facts['files'])} does not match its hash")
        tensors = load((folder / WEIGHTS).read_bytes())
        w, losses = tensors.pop("w"), np.load(folder / LOSSES, allow_pickle=False)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise FedflowError(
            f"{folder}: damaged ({reason(error)}); `fedflow central {folder.name}` trains this network again"
        ) from error
    return TrainedNetwork(w, losses, facts, {n.removeprefix(FROZEN): p for n, p in tensors.items()})


def _hash(folder: Path, facts: dict[str, Any]) -> str:
    """16 hexadecimal digits of weights, losses and the facts in `IDENTITY`."""
    parts = [[facts[name] for name in IDENTITY], *(file_sum(folder / name) for name in (WEIGHTS, LOSSES))]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
