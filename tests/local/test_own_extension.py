"""An extension that the core does not know: smoothed labels, whose strength is drawn and recorded."""

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, ClassVar

import pytest
import torch
from support import Workers, follow, forbid_fallback, images, one_client, same
from torch import Tensor

from fedflow.data import Dataset
from fedflow.local.drawing import draw_schedule
from fedflow.local.extensions.extension import Drawing, Extension, Host, Losses
from fedflow.local.local_training import LocalTraining
from fedflow.local.samples import Batch
from fedflow.local.schedule import STEP, Extra, Schedule
from fedflow.methods import build_method
from fedflow.settings import option
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation
from fedflow.simulation.settings import RunSettings


class Smoothing(Extension):
    """(1 - s) CE + s mean_k CE(k), with s uniform in [0, ``most``) in every step."""

    section = "training.smoothing"
    minimizes: ClassVar[str] = "a smoothed loss"
    records: ClassVar[tuple[str, ...]] = ("strength",)

    most: float = option(0.5, "upper limit of the strength", symbol="s", ge=0, le=1)

    def draw(self, drawing: Drawing) -> Mapping[str, Extra]:
        strength = self.most * drawing.rng("strength").random(len(drawing.schedule))
        return {"strength": Extra(torch.from_numpy(strength), STEP)}

    def begin(self, host: Host, schedules: list[Schedule], start: Tensor) -> list[Schedule]:
        strength, active = schedules[0].extra["strength"].values, schedules[0].active  # 0 in padding
        host.records["strength"] = strength.mean() if active is None else strength.sum() / active.sum()
        return schedules

    def loss(self, host: Host, inner: Losses, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        value, outputs = inner(w, batch)
        assert outputs is not None
        strength = batch.extra["strength"]
        return (1 - strength) * value - strength * batch.mean(outputs.log_softmax(-1).mean(-1)), outputs


class Smoothed(LocalTraining):
    smoothing: Smoothing | None = option(None, "smoothed labels; null = none")

    @cached_property
    def extensions(self) -> tuple[Extension, ...]:
        return (*super().extensions, *([self.smoothing] if self.smoothing else []))


def simulation(digits: Dataset, most: float = 0.5, cohort: str = "loop", **more: Any) -> Simulation:
    sgd = {"epochs": 2, "batch_size": 8, "lr": 0.1, "augment": "flip_crop", "curriculum": {"a": 0.4}}
    training = Smoothed.parse(sgd | {"smoothing": {"most": most}})
    job = Job(images(digits, dtype=torch.float64), build_method("fedavg"), training, 0, cohort)
    return Simulation(job, RunSettings.parse({"rounds": 2, "participation": 0.5}), **more)


def test_it_runs_in_loop_and_cohorts_and_is_recorded(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = partial(simulation, digits)
    loop, workers, plain = map(follow, (go(), go(executor=Workers(3)), go(most=0)))
    forbid_fallback(monkeypatch)
    vmapped = follow(go(cohort="vmap"))
    assert same(loop.state(), workers.state()) and not same(loop.state(), plain.state())
    for name, vector in loop.state().items():
        torch.testing.assert_close(vmapped.state()[name], vector, rtol=0, atol=1e-9)
    (first, second), recorded = (ran.values("client/strength/mean") for ran in (loop, vmapped))
    assert 0 < first < 0.5 and 0 < second < 0.5 and first != second
    assert recorded == pytest.approx([first, second])
    assert loop.simulation.fingerprint != plain.simulation.fingerprint


def test_two_extensions_do_not_draw_under_one_name() -> None:
    class Twice(Smoothed):
        @cached_property
        def extensions(self) -> tuple[Extension, ...]:
            return (*super().extensions, *super().extensions)

    training = Twice.parse({"smoothing": {}})
    with pytest.raises(ValueError, match="Smoothing draws strength, which another one draws"):
        draw_schedule(training, 12, 1, 0, "batches", 1, 0)


def test_a_method_does_not_report_under_the_name_of_an_extension(digits: Dataset) -> None:
    client = one_client(images(digits), 3, Smoothed.parse({"smoothing": {}}))
    with pytest.raises(ValueError, match="'strength' is a name of the engine"):
        client.update(diagnostics={"strength": torch.zeros(())})
