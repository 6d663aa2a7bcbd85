"""Checkpoints: one safetensors file, replaced atomically, with everything that a run needs to resume."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedflow.errors import FedflowError

FILE = "checkpoint.safetensors"


def save_checkpoint(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write the checkpoint; a kill at any moment leaves the old one or the new one, complete."""
    path = folder / FILE
    partial = path.with_suffix(".partial")
    whole, text = {name: t.contiguous().cpu() for name, t in tensors.items()}, json.dumps(facts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(whole, partial, {"facts": text, "digest": _digest(whole, text)})
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        raise FedflowError(f"cannot write the checkpoint {path}: {error}") from error


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and facts of the checkpoint, or None. Raises `FedflowError` if it is damaged."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in list(file.keys())}
            metadata = file.metadata()
        facts = json.loads(metadata["facts"])
        if metadata["digest"] != _digest(tensors, metadata["facts"]):
            raise ValueError("it does not hold what was saved")
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise FedflowError(
            f"the checkpoint {path} cannot be read ({error}); delete its folder to start over"
        ) from error
    return tensors, facts


def drop_checkpoint(folder: Path) -> None:
    (folder / FILE).unlink(missing_ok=True)  # first: without its other files, it must not be found
    shutil.rmtree(folder, ignore_errors=True)


def _digest(tensors: Mapping[str, Tensor], facts: str) -> str:
    """A hash of every tensor, with its name, type and shape, and of the facts."""
    digest = hashlib.blake2b(facts.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), tensor.shape]).encode())
        flat = tensor.as_strided((tensor.numel(),), (1,))  # a single entry may have another stride
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
