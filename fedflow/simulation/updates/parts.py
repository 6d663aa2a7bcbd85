"""The parts of the way of an update that every run has."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from fedflow.local.client import Update
from fedflow.local.wire import Size, masked
from fedflow.settings import option
from fedflow.simulation.updates.step import UpdateStep


class Finite(UpdateStep):
    """No update with a NaN or an infinite value reaches the server."""

    fault: ClassVar[str] = "its update holds NaN or infinite values"

    def accepts(self, update: Update, received: Mapping[str, Tensor]) -> Tensor:
        return update.finite()


class Masked(UpdateStep):
    """Of vectors under a mask, only the entries of the sub-network cross (`Pruning.masks`)."""

    masks: dict[str, Any] = option(factory=dict)

    def size(self, name: str, vectors: Mapping[str, Tensor], size: Size) -> Size:
        return masked(self.masks)(name, vectors, size)
