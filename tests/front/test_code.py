"""Runs of other code are other rows of a comparison, and runs of the same code are one."""

import copy
import hashlib
import math
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from calls import SMALL, blobs, own
from torch import nn

import fedflow as ff
from fedflow.data import SOURCES
from fedflow.front.classes import code_of
from fedflow.front.result import Result
from fedflow.local.extensions.extension import REGISTERED
from fedflow.methods import METHODS
from fedflow.models import ARCHITECTURES
from fedflow.models.flat import FlatModel
from fedflow.partition import SCHEMES


class Scale:
    """An object that a method names."""

    def __init__(self, factor: float) -> None:
        self.factor = factor


def helper(step: float) -> ModuleType:
    """A module of the user."""
    module = ModuleType("helpers_of_the_user")
    exec(f"def double(): return {step}", vars(module))
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda step: (step,),
        lambda step: {"step": [step]},
        lambda step: {step},
        lambda step: np.array([step]),
        torch.tensor,
        lambda step: ff.Ditto(lam=step + 1),
        lambda step: lambda: step,
        lambda step: partial(max, step),
        lambda step: type("Inner", (), {"step": step, "__module__": __name__}),
        lambda step: property(lambda self: step),
        Scale,
        helper,
        [abs, math.sqrt].__getitem__,
    ],
)
def test_constants_of_any_kind_are_part_of_the_code(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(step: int) -> tuple[str, str, str]:
        value = make(step)
        monkeypatch.setitem(globals(), "VALUE", value)

        class Around(ff.FedAvg):
            def local(self, client: ff.Client) -> ff.Update:
                return client.update(model=value, weight=1.0)

        class Named(ff.FedAvg):
            def local(self, client: ff.Client) -> ff.Update:
                return client.update(model=VALUE.double, weight=1.0)  # type: ignore[name-defined] # noqa: F821

        held = type("Held", (ff.FedAvg,), {"value": value, "__module__": __name__})
        return code_of(Around), code_of(Named), code_of(held)

    first, again, other = of(0), of(0), of(1)
    named = len(set(first + other)) - len(set(first))
    assert first == again and named == (1 if make is helper else 3)


def test_what_a_run_changes_is_no_part_of_the_code() -> None:
    log, table, array, notes = [0.0], {"loss": [0.0]}, np.zeros(1), Scale(1.0)

    class Logging(ff.FedAvg):
        calls = 0
        seen: ClassVar[list] = []

        def local(self, client: ff.Client) -> ff.Update:
            log.append(1.0)
            table["loss"].append(1.0)
            self.seen.append(1.0)
            Logging.calls += 1
            return super().local(client)

        def aggregate(self, now: ff.Round, server: Any, cohort: ff.Cohort) -> tuple:
            array[0] = notes.factor = now.t
            return super().aggregate(now, server, cohort)

    results = [ff.run(own(), ff.iid(clients=3), Logging, seed=seed, **SMALL) for seed in (0, 1)]
    assert Logging.calls and notes.factor == 2 and len(ff.compare(results).results) == 1


def test_networks_of_other_code_or_attributes_are_different_networks() -> None:
    class Scaled(nn.Linear):
        def __init__(self, scale: float) -> None:
            super().__init__(5, 3)
            torch.nn.init.ones_(self.weight)
            torch.nn.init.zeros_(self.bias)
            self.scale = scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = float(len(x))
            return self.scale * super().forward(x)

    def go(model: Any, seed: int = 0) -> Result:
        return ff.run(own(), ff.iid(clients=3), model=model, seed=seed, **SMALL)

    rows = ff.compare(go(Scaled(1.0)), go(Scaled(1.0), 1), go(Scaled(2.0)), go(lambda: Scaled(3.0))).results
    assert [*map(len, rows.values())] == [2, 1, 1]
    plain = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    flat = FlatModel(partial(copy.deepcopy, plain))  # as before, as nothing of it is own code
    content = flat.architecture.encode() + flat.init(0).numpy().tobytes()
    assert go(plain).settings["model"]["hash"] == hashlib.blake2b(content, digest_size=4).hexdigest()


def test_registered_classes_after_a_change_of_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (METHODS, SCHEMES, ARCHITECTURES, SOURCES, REGISTERED):
        for name, entry in {"mine": None, **table}.items():
            monkeypatch.setitem(table, name, entry)

    def go(step: float, **given: Any) -> Result:
        @ff.register_method("mine", "Mine")
        class Mine(ff.FedAvg):
            def weight(self, client: ff.Client) -> float:
                return step

        @ff.register_scheme("mine")
        class Halves(ff.Scheme):
            def split(self, samples: ff.Samples, clients: int, rng: np.random.Generator) -> ff.Split:
                return ff.Split(np.array_split(np.arange(int(10 * step)), clients))

        @ff.register_network("mine", "a test")
        class Net(nn.Linear):
            def __init__(self, shape: tuple, classes: int) -> None:
                super().__init__(shape[0], classes, bias=step > 1)

        @ff.register_extension("mine")
        class Mined(ff.Extension):
            def loss(self, host: Any, inner: Any, w: Any, batch: Any) -> Any:
                loss, outputs = inner(w, batch)
                return step * loss, outputs

        options = type("Options", (ff.Settings,), {"section": "data", "__module__": __name__})
        (x, y), (x_test, y_test) = blobs(), blobs(30, 1)
        raw = ff.RawData(x[:, None] if step > 1 else 0 * x[:, None], y, x_test[:, None], y_test)
        facts = {"title": "", "about": "", "kind": "made", "origin": "", "classes": ("a", "b", "c")}
        ff.register_source(ff.Source(name="mine", options=options, fetch=lambda root, _: raw, **facts))
        return ff.run(**{"data": own(), "partition": ff.iid(clients=3), **SMALL} | given)

    for given in (
        {"method": "mine"},
        {"partition": {"scheme": "mine", "clients": 2}},
        {"model": "mine"},
        {"training": {"extensions": {"mine": {}}}},
        {"data": "mine", "model": "mlp"},
    ):
        first, again, other = go(1.0, **given), go(1.0, seed=1, **given), go(2.0, **given)
        assert [*map(len, ff.compare(first, again, other).results.values())] == [2, 1]
        assert first.settings == again.settings != other.settings
    assert not [values for values in go(1.0).settings.values() if "code" in values]
