"""The settings that all clients of a round share, and the parts of a local step that follow from them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedflow.local.fast.compiled import Gradient
from fedflow.local.local_training import LocalTraining
from fedflow.local.optimizer import AdamState, Moving, SGDState
from fedflow.local.samples import Batch
from fedflow.models.flat import FlatModel

Loss = Callable[[Tensor, Batch], Tensor]
Cost = Callable[[Tensor], Tensor]  # of the loss of a batch, scalar


@dataclass(frozen=True)
class Task:
    """The settings that all clients of a round share.

    ``lr`` and ``t``, the number of the round, are scalar tensors if a cohort call reads them as inputs. The
    number of ``rounds`` of the run, the ``phase`` of the method and the ``level`` of the clients' network
    (`Leveled`) are static. ``mean_samples`` is the mean of n_k over all clients (None: the client's n_k).
    ``inputs`` are the inputs of extensions, by name.
    """

    model: FlatModel
    training: LocalTraining
    lr: float | Tensor
    t: int | Tensor = 0
    rounds: int = 0
    phase: str = ""
    level: str = ""
    mean_samples: float | None = None
    vmapped: bool = False
    compiled: Gradient | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def initial_state(self, w: Tensor) -> Moving:
        """``w`` [D] at the start of its training."""
        if self.training.optimizer == "adam":
            return AdamState.of(w)
        return SGDState(w, torch.zeros_like(w) if self.training.momentum else None)

    def autocast(self, x: Tensor) -> AbstractContextManager[None]:
        """The precision in which the network is applied to inputs ``x``."""
        if self.training.precision != "bf16":
            return nullcontext()
        return torch.autocast(x.device.type, torch.bfloat16)

    def mean_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The mean data loss of ``outputs`` [B, .] over the samples of the batch that count, scalar."""
        if batch.mask is None:
            return self.model.loss(outputs, batch.y)
        return batch.mean(self.model.losses(outputs, batch.y))

    def compiled_for(self, batch: Batch) -> Gradient | None:
        """The compiled gradient of the data loss, or None if the batch needs a plain one."""
        compiled = None if self.training.with_hook("loss") else self.compiled
        return compiled if compiled and batch.mask is None and compiled.takes(batch.x, batch.y) else None
