"""Recorded networks, built from their card and one row of their weights.

Recorded models contain a copy of this package (`fedflow.tracking.shipped`), so it imports nothing else.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import nn

from fedflow.errors import FedflowError
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.models.start import SETTINGS
from fedflow.models.tensors import FROZEN


def factory(card: Mapping[str, Any], frozen: bool = False) -> Callable[[], nn.Module]:
    """A function that builds the untrained network of ``card``, with frozen parameters if ``frozen``."""
    shape, classes = tuple(card["input_shape"]), card.get("outputs") or len(card["classes"]) or 1
    left_out = () if frozen else ("trainable", *SETTINGS)  # recorded weights replace them
    options = {name: value for name, value in card["options"].items() if name not in left_out}
    return partial(build, card["architecture"], shape, classes, **options)


def rebuild(card: Mapping[str, Any], weights: Path, row: int) -> nn.Module:
    """The network of ``card`` with the values in one row of the weights file.

    Raises `FedflowError` if the number of values does not fit the network.
    """
    with safe_open(weights, "pt") as file:
        w = file.get_slice("models")[row]
        names = [name for name in file.keys() if name.startswith(FROZEN)]  # noqa: SIM118
        frozen = {name.removeprefix(FROZEN): file.get_tensor(name) for name in names}
    model = FlatModel(factory(card), dtype=w.dtype, frozen=frozen)
    if w.numel() != model.size:
        raise FedflowError(f"{weights}: holds {w.numel()} values, {card['architecture']} has {model.size}")
    return model.to_module(w)
