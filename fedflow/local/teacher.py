"""A trained network that clients learn from: it is sent once, and never changes."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedflow.models.flat import FlatModel


class Teacher(NamedTuple):
    """A network and its vector ``w`` [D], on the device of the data."""

    model: FlatModel
    w: Tensor

    def outputs(self, x: Tensor) -> Tensor:
        """Its outputs [B, K] for inputs ``x`` [B, ...], in evaluation mode, without gradients."""
        with torch.no_grad():
            return self.model.outputs(self.w, x)
