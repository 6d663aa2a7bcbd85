"""The first values of a network, from a safetensors file of parameters and buffers by name."""

import fnmatch
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from fedflow.errors import BadInput, reason
from fedflow.models.tensors import floating, shared

SETTINGS = ("start", "fresh")  # of a network; they are used once, when training starts


def without_start(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a network that are not about its first values."""
    return {name: value for name, value in options.items() if name not in SETTINGS}


def start_from(module: nn.Module, file: str, fresh: Sequence[str]) -> str:
    """Write the values in ``file`` into ``module``, except the names that match a pattern in ``fresh``.

    Returns a digest of the file. Raises `BadInput` if the file does not have exactly the other names and
    shapes of the module.
    """
    try:
        content = Path(file).read_bytes()
        given = load(content)
    except (OSError, SafetensorError, ValueError) as error:
        raise BadInput("model.start", file, f"a safetensors file ({reason(error)})") from error
    prefix = getattr(module, "published", "")
    if prefix and not any(name.startswith(prefix) for name in given):
        given = {f"{prefix}{name}": tensor for name, tensor in given.items()}
    again = shared(module)
    given |= {first: given[name] for name, first in again.items() if name in given and first not in given}
    kept = module.state_dict()
    for pattern in fresh:
        if not fnmatch.filter(kept, pattern):
            raise BadInput("model.fresh", pattern, f"a pattern that matches one of {', '.join(kept)}")
    drawn = {name for pattern in fresh for name in fnmatch.filter({*kept, *given}, pattern)}
    for name in sorted(given.keys() - kept.keys() - drawn):
        raise BadInput("model.start", file, f"only tensors of the network, which has no {name}")
    with torch.no_grad():
        for name, tensor in floating(module).items():
            if name not in kept or name in drawn:
                continue
            if name not in given:
                raise BadInput("model.start", file, f"a file with {name}, or this name in `fresh`")
            if given[name].shape != tensor.shape:
                shapes = f"{name} of shape {list(tensor.shape)}, not {list(given[name].shape)}"
                raise BadInput("model.start", file, f"{shapes}, or this name in `fresh`")
            tensor.copy_(given[name])
    return hashlib.blake2b(content, digest_size=12).hexdigest()
