"""Label flip: attackers train on wrong labels.

Source: Tolpegin et al., "Data Poisoning Attacks Against Federated Learning Systems", ESORICS 2020; y -> K-1-y
as in Karimireddy et al., "Learning from History for Byzantine Robust Optimization", ICML 2021.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.errors import BadInput
from fedflow.local.extensions.extension import Drawing, Extension, Host, register
from fedflow.local.samples import Batch
from fedflow.local.schedule import STEP, Extra, Schedule
from fedflow.models.flat import FlatModel
from fedflow.settings import option

FLIPS = "label_flip"


@register(FLIPS)
class LabelFlip(Extension):
    """Attackers take all local steps with wrong labels.

    Attackers are the clients whose place (`Drawing.place`) is below ``share``. ``reverse`` turns y into
    K - 1 - y, ``next`` into y + 1 modulo K. Losses over all samples, by which clients choose a cluster, see
    the true labels.
    """

    records: ClassVar[tuple[str, ...]] = (FLIPS,)
    for_samples: ClassVar[bool] = True
    needs_batches: ClassVar[bool] = True
    needs_clients: ClassVar[bool] = True

    share: float = option(0.2, "share of the clients that flip labels", ge=0, le=1)
    labels: str = option("reverse", "the wrong labels", choices=("reverse", "next"))
    classes: int = option(10, "classes of the data", symbol="K", ge=2)

    def check(self, model: FlatModel, examples: Examples, inputs: Mapping[str, Any]) -> None:
        need_classes(self, examples, "classes", self.classes)

    def draw(self, drawing: Drawing) -> Mapping[str, Extra]:
        return {FLIPS: Extra(torch.full((len(drawing.schedule),), drawing.place < self.share), STEP)}

    def begin(self, host: Host, schedules: list[Schedule], start: Tensor) -> list[Schedule]:
        host.records[FLIPS] = schedules[0].extra[FLIPS].values.any().double()
        return schedules

    def batch(self, batch: Batch) -> Batch:
        if FLIPS not in batch.extra:
            return batch
        wrong = self.classes - 1 - batch.y if self.labels == "reverse" else (batch.y + 1) % self.classes
        return replace(batch, y=torch.where(batch.extra[FLIPS], wrong, batch.y))


def need_classes(extension: Extension, examples: Examples, field: str, classes: int) -> None:
    """Raise `BadInput` unless the samples have one label each, of this number of classes."""
    if not examples.labeled:
        raise extension.refused("with samples that do not have one label each")
    if (there := int(examples.y.max()) + 1) != classes:
        raise BadInput(f"{extension.section}.{field}", classes, f"{there}, the classes of the data")
