"""One client as methods see it: its data, messages and kept vectors, and its training."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedflow.local import measures
from fedflow.local.local_training import EXTENSIONS
from fedflow.local.samples import Samples
from fedflow.local.schedule import Schedule
from fedflow.local.task import Task
from fedflow.local.trainer import Trainer

TRAIN_LOSS = "train_loss"  # added to diagnostics by the engine, like the records of extensions
TRAINED = "trained"  # added to the kept vectors
NAMED = ("vectors", "scalars", "keep", "diagnostics")  # the dictionaries of an `Update`


def check_diagnostic(name: str) -> None:
    """Raise `ValueError` unless files, MLflow and pages can have a number of this name."""
    if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
        raise ValueError(f"{name!r} is not the name of a number: use letters, digits, _, - and .")


@dataclass
class Update:
    """The vectors and numbers that a client sends and keeps.

    ``vectors`` are sent to the server and averaged with ``weight`` within ``group`` (the cluster);
    ``scalars`` are sent too; ``keep`` becomes the client's state. ``diagnostics`` are scalars that are
    recorded and not sent.
    """

    vectors: dict[str, Tensor]
    weight: Tensor
    group: Tensor
    scalars: dict[str, Tensor] = field(default_factory=dict)
    keep: dict[str, Tensor] = field(default_factory=dict)
    diagnostics: dict[str, Tensor] = field(default_factory=dict)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Update":
        """This update with ``change`` applied to every tensor."""
        named = {kind: {name: change(t) for name, t in getattr(self, kind).items()} for kind in NAMED}
        return Update(weight=change(self.weight), group=change(self.group), **named)

    def finite(self) -> Tensor:
        """True if no tensor that is sent or kept, nor the training loss, is NaN or infinite, scalar bool."""
        numbers = [self.weight, *self.vectors.values(), *self.scalars.values(), *self.keep.values()]
        numbers += [t for name, t in self.diagnostics.items() if name == TRAIN_LOSS]
        return torch.stack([_finite(t) for t in numbers]).all()


def _detached(t: Tensor) -> Tensor:
    """``t`` without its gradient; the same tensor if it has none."""
    return t.detach() if t.requires_grad else t


def _finite(t: Tensor) -> Tensor:
    """True if no entry is NaN or infinite, scalar: by the extremes, which take one pass."""
    if not t.is_floating_point() or not t.numel():
        return t.isfinite().all()
    return torch.stack(torch.aminmax(t)).isfinite().all()


class Client(Trainer):
    """One client in one round: a `Trainer` on its samples, with messages.

    Attributes, in addition to the trainer's: ``received`` and ``kept`` (name -> vector), ``mean_samples``
    (mean of n_k over all N clients), ``phase`` (`Phased.phase` of this round), ``level`` (of its network,
    `Leveled`), ``times`` (in the onboarding only: of its download, epoch and upload, tensor [3]), ``noise``
    (generator of a method that trains clients ``alone``, on the device, keyed by seed, round and client).
    """

    times: Tensor
    noise: torch.Generator

    def __init__(
        self,
        task: Task,
        own: Samples,
        schedules: Mapping[str, Schedule],
        received: Mapping[str, Tensor],
        kept: Mapping[str, Tensor],
        selection: Samples | None = None,
    ) -> None:
        super().__init__(task, own, schedules)
        self.received, self._selection = received, selection
        self.kept = {name: vector for name, vector in kept.items() if name != TRAINED}
        self.last = kept.get(TRAINED)
        self.phase, self.level = task.phase, task.level
        mean = task.mean_samples
        self.mean_samples = self.samples if mean is None else self._scalar(mean)

    def data(self, raw: bool = False) -> tuple[Tensor, Tensor]:
        """All inputs [n_k, ...] and targets [n_k] of this client; ``raw``: pixels 0..255 as they are stored.

        For the onboarding only: ragged data cannot be stacked in a cohort.
        """
        rows, examples = self.own.rows, self.own.examples
        inputs = examples.x[rows] if raw else examples.inputs(rows, self.model.dtype)
        return inputs, examples.targets(rows)

    def selection_loss(self, w: Tensor) -> Tensor:
        """Mean loss of ``w`` [D] over the samples held out for model selection (`Selecting.selects`)."""
        assert self._selection is not None, "provided by the engine if Selecting.selects()"
        return measures.mean(self.model, self._selection, w, self.model.losses)

    def selection_accuracy(self, w: Tensor) -> Tensor:
        """Share of these samples that ``w`` [D] predicts correctly, scalar, in evaluation mode."""
        assert self._selection is not None, "provided by the engine if Selecting.selects()"
        return measures.mean(self.model, self._selection, w, self.model.hits)

    def update(
        self,
        *,
        weight: Tensor | float | None = None,
        group: Tensor | int = 0,
        scalars: Mapping[str, Tensor] | None = None,
        keep: Mapping[str, Tensor] | None = None,
        diagnostics: Mapping[str, Tensor] | None = None,
        **vectors: Tensor,
    ) -> Update:
        """The update of this client; ``weight`` defaults to its number of samples.

        Tensors on the host are moved to the device, without their gradients.
        """
        scalars, diagnostics = (
            {n: v if isinstance(v, Tensor) else self._scalar(v) for n, v in (of or {}).items()}
            for of in (scalars, diagnostics)
        )
        for name, value in {**scalars, **diagnostics}.items():
            check_diagnostic(name)
            if value.ndim:
                raise ValueError(f"{name!r} must be a scalar and has shape {list(value.shape)}")
        of_engine = {TRAIN_LOSS}.union(*(kind.records for kind in EXTENSIONS))
        of_engine = of_engine.union(*(extension.records for extension in self.training.in_use))
        for name in of_engine & (diagnostics or {}).keys() | {TRAINED} & (keep or {}).keys():
            raise ValueError(f"{name!r} is a name of the engine: the method needs another")
        named = {"vectors": vectors, "scalars": scalars, "keep": keep, "diagnostics": diagnostics}
        return Update(
            weight=_detached(self._scalar(self.samples if weight is None else weight)),
            group=_detached(self._scalar(group, torch.int64)),
            **{
                kind: {n: _detached(t).to(self.model.device) for n, t in (of or {}).items()}
                for kind, of in named.items()
            },
        )
