"""Checkpoints: one safetensors file, replaced atomically, that holds all a run needs to go on."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedflow.errors import FedflowError

FILE = "checkpoint.safetensors"


def save_checkpoint(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write the checkpoint; a kill at any moment leaves the old one or the new one, whole."""
    path = folder / FILE
    partial = path.with_suffix(".partial")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: t.contiguous().cpu() for name, t in tensors.items()}, partial, {"facts": json.dumps(facts)}
        )
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        raise FedflowError(f"cannot write the checkpoint {path}: {error}") from error


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and facts of the checkpoint, None if there is none; `FedflowError` if it cannot be read."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            return {name: file.get_tensor(name).clone() for name in names}, json.loads(
                file.metadata()["facts"]
            )
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise FedflowError(
            f"the checkpoint {path} cannot be read ({error}); delete its folder to start over"
        ) from error
