"""An extension that the core does not know: smoothed labels, whose strength is drawn and recorded."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from support import Workers, follow, forbid_fallback, images, one_client, prepare_run, refused, run, same
from torch import Tensor

from fedflow.config import load_params
from fedflow.config.schema import params_schema
from fedflow.data import Dataset
from fedflow.local.drawing import draw_schedule
from fedflow.local.extensions.curriculum import Curriculum
from fedflow.local.extensions.extension import REGISTERED, Drawing, Extension, Host, Losses, register
from fedflow.local.local_training import LocalTraining
from fedflow.local.samples import Batch
from fedflow.local.schedule import STEP, Extra, Schedule
from fedflow.methods import build_method
from fedflow.project.code import modules_of
from fedflow.settings import option
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation
from fedflow.simulation.settings import RunSettings

PARAMS = Path(__file__).parents[2] / "params.yaml"


class Smoothing(Extension):
    """(1 - s) CE + s mean_k CE(k), with s uniform in [0, ``most``) in every step."""

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


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    before = dict(REGISTERED)
    register("smoothing")(Smoothing)
    yield
    REGISTERED.clear()
    REGISTERED.update(before)


def training(most: float | None = 0.5, **more: Any) -> LocalTraining:
    own = None if most is None else {"most": most}
    return LocalTraining.parse({"extensions": {"smoothing": own}} | more)


def simulation(digits: Dataset, most: float | None = 0.5, cohort: str = "loop", **more: Any) -> Simulation:
    sgd = {"epochs": 2, "batch_size": 8, "lr": 0.1, "augment": "flip_crop", "curriculum": {"a": 0.4}}
    job = Job(images(digits, dtype=torch.float64), build_method("fedavg"), training(most, **sgd), 0, cohort)
    return Simulation(job, RunSettings.parse({"rounds": 2, "participation": 0.5}), **more)


def test_it_runs_in_loop_and_cohorts_and_is_recorded(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = partial(simulation, digits)
    loop, workers, plain = map(follow, (go(), go(executor=Workers(3)), go(most=0)))
    forbid_fallback(monkeypatch)
    vmapped = follow(go(cohort="vmap"))
    assert same(loop.state(), workers.state()) and not same(loop.state(), plain.state())
    torch.testing.assert_close(vmapped.state(), loop.state(), rtol=0, atol=1e-9)
    (first, second), recorded = (ran.values("client/strength/mean") for ran in (loop, vmapped))
    assert 0 < first < 0.5 and 0 < second < 0.5 and first != second
    assert recorded == pytest.approx([first, second])
    assert loop.simulation.fingerprint != plain.simulation.fingerprint


def test_null_is_no_extension_and_settings_stay_as_they_are(digits: Dataset) -> None:
    assert training(None) == LocalTraining() and LocalTraining().as_dict()["extensions"] == {}
    without = follow(simulation(digits, None))
    assert same(without.state(), follow(simulation(digits, 0)).state())
    assert "client/strength/mean" not in without.rounds[0].values


def test_it_is_checked_recorded_and_part_of_the_identity() -> None:
    assert training(0.25).as_dict()["extensions"] == {"smoothing": {"most": 0.25}}
    assert __name__ in modules_of(training())
    for given, message in (
        ({"smoothing": {"most": 2}}, r"^training.extensions.smoothing.most: 2.0 .*<= 1"),
        ({"smoothing": {"mst": 1}}, r"^training.extensions.smoothing.mst: 'mst' .*did you mean 'most'"),
        ({"smothing": {}}, r"^training.extensions.smothing: 'smothing' .*did you mean 'smoothing'"),
        ({"smoothing": 1}, r"^training.extensions.smoothing: 1 .*a mapping"),
        (
            {"smoothing": Curriculum()},
            r"^training.extensions.smoothing: Curriculum .*registered as smoothing",
        ),
    ):
        with refused(message):
            LocalTraining.parse({"extensions": given})
    REGISTERED.clear()
    with refused("^training.extensions.smoothing: 'smoothing' .*there is none"):
        training()
    register("smoothing")(Smoothing)
    with refused("^name: 'smoothing' .*another name than an extension of"):
        register("smoothing")(Curriculum)


def test_params_name_it_and_a_method_changes_or_drops_it() -> None:
    changes = [
        "training.extensions={smoothing: {most: 0.2}}",
        "methods.ditto.training.extensions.smoothing=null",
    ]
    params = load_params(PARAMS, [*changes, "methods.ifca.training.extensions={smoothing: {most: 0.1}}"])
    found = [params.method(name)[1].extensions for name in ("fedavg", "ifca", "ditto")]
    assert found == [{"smoothing": Smoothing(most=0.2)}, {"smoothing": Smoothing(most=0.1)}, {}]
    properties = params_schema()["properties"]["training"]["properties"]["extensions"]["properties"]
    assert "most" in properties["smoothing"]["anyOf"][0]["properties"]


def test_two_extensions_do_not_draw_under_one_name() -> None:
    register("again")(type("Again", (Smoothing,), {"__module__": __name__}))
    twice = LocalTraining.parse({"extensions": {"smoothing": {}, "again": {}}})
    with pytest.raises(ValueError, match="Smoothing draws strength, which another one draws"):
        draw_schedule(twice, 12, 1, 0, "batches", 1, 0)


def test_a_method_does_not_report_under_the_name_of_an_extension(digits: Dataset) -> None:
    client = one_client(images(digits), 3, training())
    with pytest.raises(ValueError, match="'strength' is a name of the engine"):
        client.update(diagnostics={"strength": torch.zeros(())})


def test_its_place_is_named() -> None:
    with refused(r"^training\.smoothing: .* expected it as training\.extensions\.smoothing"):
        LocalTraining.parse({"smoothing": {"most": 0.1}})


def test_methods_on_full_gradients_refuse_what_records_at_the_start(digits: Dataset) -> None:
    settings = {"extensions": {"smoothing": {}}}
    with refused(r"smoothing: .* expected null with fedsgd, which trains on full gradients"):
        prepare_run("fedsgd", images(digits), training=settings)


class Black(Extension):
    """Changes batches without drawing anything."""

    def batch(self, batch: Batch) -> Batch:
        return replace(batch, x=batch.x * 0)


@pytest.mark.parametrize("cohort", ["loop", "vmap"])
def test_batches_are_changed_though_nothing_is_drawn(digits: Dataset, cohort: str) -> None:
    register("black")(Black)
    values = {"batch_size": 8, "epochs": 1, "lr": 0.5}
    plain, black = (
        run("fedavg", images(digits), rounds=2, training=values | more, cohort=cohort).values("train_loss")
        for more in ({}, {"extensions": {"black": {}}})
    )
    assert black[-1] > plain[-1] + 0.1
