"""Frozen parameters, with every method: no client and no server changes, sends or counts them."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from profiles import abilities
from support import Ran, forbid_fallback, images, run, suited
from torch import Tensor, nn

from fedflow.data import Dataset
from fedflow.methods import METHODS
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation
from fedflow.simulation.levels import networks

QUICK: dict[str, dict[str, Any]] = {"flt": {"encoder": "pixels"}}
SETTINGS: dict[str, Any] = {
    "training": {"epochs": 1, "batch_size": 8, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.1},
    "participation": 0.5,
    "rounds": 2,
    "fine_tune": True,
}


@pytest.fixture(scope="module")
def deep(digits: Dataset) -> Federation:
    return images(digits, (23, 7, 12, 20), hidden=(8, 8))


def first_frozen(federation: Federation) -> Federation:
    """The same with the first layer frozen, at the values that it has with seed 0."""
    model = federation.model
    first = model.names[0].rpartition(".")[0]
    names = [name for name in model.names if name.rpartition(".")[0] == first]
    views = model.views(model.init(0))
    frozen = FlatModel(model.factory, dtype=model.dtype, frozen={name: views[name] for name in names})
    return dataclasses.replace(federation, model=frozen)


def served(ran: Ran) -> list[nn.Module]:
    """The models that clients are served at the end, as modules."""
    job, outcome = ran.simulation.job, ran.outcome()
    models = list(networks(job.method, ran.simulation.federation).values())
    sizes = {model.size: model for model in models}
    return [sizes[len(w)].to_module(w) for w in outcome.models.values()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.by_profile(kind=abilities)
@pytest.mark.parametrize("name", METHODS)
def test_frozen_parameters_are_neither_changed_nor_sent(
    name: str, deep: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, part = suited(name, deep), first_frozen(suited(name, deep))
    values = copy.deepcopy(part.model.frozen)
    before = run(name, whole, QUICK.get(name), **SETTINGS)
    loop = run(name, part, QUICK.get(name), **SETTINGS)
    models = [dict(module.named_parameters()) for module in served(loop)]
    assert models and all(torch.equal(own[n], fit(values[n], own[n])) for own in models for n in values)
    one, other = lengths(before), lengths(loop)
    assert whole.model.size not in other.values() and one.keys() == other.keys()
    for way in ("bytes_up", "bytes_down"):
        sent, all_of_it = loop.values(way)[-1], before.values(way)[-1]
        assert sent < all_of_it or not all_of_it or whole.model.size not in one.values()
    assert loop.outcome().metrics["parameters"] == part.model.size
    forbid_fallback(monkeypatch)
    cohort = run(name, part, QUICK.get(name), cohort="vmap", **SETTINGS).state()
    torch.testing.assert_close(cohort, loop.state(), rtol=0, atol=1e-5)


def fit(whole: Tensor, own: Tensor) -> Tensor:
    """The leading part of ``whole`` with the shape of ``own``, which may be that of a level."""
    return whole[tuple(slice(n) for n in own.shape)]


def lengths(ran: Ran) -> dict[str, int]:
    """The entries of every vector of server and clients at the end."""
    return {name: w.shape[-1] if w.ndim else 1 for name, w in ran.state().items()}
