"""Back-door: attackers teach the model to answer a patch of pixels with a class of their choice.

The attack on the training and the score of its success are in one file, so that runs with the attack, and no
others, depend on all of it.

Sources: Gu et al., "BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain", arXiv
1708.06733 (the patch); Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020 (a part of
every batch).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.errors import BadInput
from fedflow.local.extensions.extension import Drawing, Extension, Host, register
from fedflow.local.samples import Batch
from fedflow.local.schedule import SAMPLE, STEP, Extra, Schedule
from fedflow.models.flat import FlatModel
from fedflow.seeding import place
from fedflow.settings import option
from fedflow.simulation.extensions.extension import ROUND, Run, RunExtension, register_run_extension
from fedflow.simulation.outcome import RoundReport, mean_or_none

if TYPE_CHECKING:  # plug-ins import this package while methods are imported
    from fedflow.simulation.evaluation import Measure, Scores, Served

BACKDOOR, POISONED, SUCCESS = "backdoor", "poisoned", "backdoor_success"


@register(BACKDOOR)
class Backdoor(Extension):
    """Attackers poison samples in all local steps.

    Attackers are the clients whose place (`Drawing.place`) is below ``share``. Every sample of a batch is
    poisoned with probability ``poisoned``, independently: it gets the trigger, a square of ``size`` x
    ``size`` pixels in the lower right corner with the value ``value``, and the label ``target``. The trigger
    comes after augmentation. Losses over all samples see them as they are.
    """

    records: ClassVar[tuple[str, ...]] = (BACKDOOR,)
    for_samples: ClassVar[bool] = True
    needs_batches: ClassVar[bool] = True
    needs_clients: ClassVar[bool] = True

    share: float = option(0.2, "share of the clients that poison samples", ge=0, le=1)
    target: int = option(0, "label of poisoned samples", ge=0)
    poisoned: float = option(0.5, "share of an attacker's samples that are poisoned", ge=0, le=1)
    size: int = option(3, "side of the trigger in pixels", ge=1)
    value: float = option(3.0, "value of the trigger's pixels, as networks see them (normalized)")

    def check(self, model: FlatModel, examples: Examples, inputs: Mapping[str, Any]) -> None:
        if not examples.labeled or examples.x.ndim != 4:
            raise self.refused("with samples that are not images with one label each")
        if self.target > (last := int(examples.y.max())):
            raise BadInput(f"{self.section}.target", self.target, f"a class, at most {last}")
        if self.size > (most := min(examples.x.shape[-2:])):
            raise BadInput(f"{self.section}.size", self.size, f"at most {most}, the side of the images")

    def draw(self, drawing: Drawing) -> Mapping[str, Extra]:
        drawn = drawing.rng(POISONED).random(tuple(drawing.schedule.positions.shape)) < self.poisoned
        attacks = torch.full((len(drawing.schedule),), drawing.place < self.share)
        return {BACKDOOR: Extra(attacks, STEP), POISONED: Extra(torch.from_numpy(drawn), SAMPLE)}

    def begin(self, host: Host, schedules: list[Schedule], start: Tensor) -> list[Schedule]:
        host.records[BACKDOOR] = schedules[0].extra[BACKDOOR].values.any().double()
        return schedules

    def batch(self, batch: Batch) -> Batch:
        if BACKDOOR not in batch.extra:
            return batch
        poisoned = batch.extra[BACKDOOR] & batch.extra[POISONED]
        x = torch.where(poisoned[:, None, None, None], self.triggered(batch.x), batch.x)
        return replace(batch, x=x, y=batch.y.masked_fill(poisoned, self.target))

    def triggered(self, x: Tensor) -> Tensor:
        """Images ``x`` [B, C, H, W] with the trigger."""
        rows, columns = (torch.arange(side, device=x.device) >= side - self.size for side in x.shape[-2:])
        return x.masked_fill(rows[:, None] & columns, self.value)


@dataclass(frozen=True)
class Success:
    """The share of an honest client's test samples of other classes that get ``target`` with the trigger."""

    backdoor: Backdoor
    name: str = SUCCESS
    kept: tuple[str, ...] = ()

    def of(self, served: "Served") -> np.ndarray:
        from fedflow.simulation.evaluation import network_of, score

        job, federation, clients = served.job, served.federation, served.shard.clients
        tests, partition, target = federation.own_test, federation.partition, self.backdoor.target
        others = (tests.y != target).cpu().numpy()[partition.pool_indices]
        fewer = replace(
            partition,
            pool_indices=partition.pool_indices[others],
            pool_offsets=np.append(0, np.cumsum(others))[partition.pool_offsets],
            held_out=False,
        )
        rows = torch.arange(len(tests), device=tests.device)
        x = self.backdoor.triggered(tests.inputs(rows, federation.model.dtype))
        test = Examples(x, torch.full_like(tests.y, target))
        first = dict(zip(served.model[::-1].tolist(), reversed(clients), strict=True))  # client of each model
        networks = [network_of(job, federation, first[i]) for i in range(len(served.vectors))]
        federation = replace(federation, test=test, own=None, partition=fewer)
        success = score(federation, served.vectors, served.model, clients, networks=networks)[0]
        honest = [place(job.seed, k, job.clients) >= self.backdoor.share for k in clients]
        return np.where(honest, success, np.nan)


@register_run_extension
class BackdoorSuccess(RunExtension):
    """The success of the back-door at every evaluation: the mean over honest clients."""

    @classmethod
    def wanted(cls, run: Run) -> bool:
        return BACKDOOR in run.job.training.extensions

    def measures(self, when: str) -> Sequence["Measure"]:
        backdoor = self.run.job.training.extensions[BACKDOOR]
        assert isinstance(backdoor, Backdoor)
        return [Success(backdoor)] if when == ROUND else []

    def evaluate(self, report: RoundReport, scores: "Scores") -> Mapping[str, float | None]:
        return {f"method/{SUCCESS}": mean_or_none(scores.column(SUCCESS))}
