"""Every method has side losses, unless it trains on full gradients: then it may still be taught."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from profiles import abilities
from support import DENSE, forbid_fallback, refused, run, same, suited

from fedflow.local.local_training import LocalTraining
from fedflow.local.teacher import Teacher
from fedflow.methods import METHODS, build_method
from fedflow.methods.protocols import Generative
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation

VIEWS: dict[str, Any] = {"epochs": 1, "batch_size": 8, "lr": 0.1, "momentum": 0.5, "augment": "flip_crop"}
QUICK: dict[str, dict[str, Any]] = {
    "flt": {"encoder": "pixels"},  # without an encoder to train
    **DENSE,  # traffic depends on what is pruned
    **{name: {"adaptation": {"name": "maml"}} for name in ("pavg", "pfldyn", "pflscaf")},  # proto: no teacher
}


@pytest.fixture(scope="module")
def taught(federation: Federation) -> Federation:
    model = FlatModel(partial(build, "mlp", (1, 8, 8), 10, hidden=(12, 8)))
    return replace(federation, inputs={"teacher": Teacher(model, 3 * model.init(1))})


@pytest.mark.by_profile(kind=abilities)
@pytest.mark.parametrize("name", METHODS)
def test_side_losses_on_every_method(name: str, taught: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loop and vmap agree, side losses change the result, and cost no traffic."""
    taught = suited(name, taught)
    batches = bool(build_method(name).streams(LocalTraining()))
    settings: dict[str, Any] = {"participation": 0.5, "rounds": 2}
    plain = VIEWS if batches else VIEWS | {"augment": "none"}
    both, distil = ({"objective": {"name": name, "teacher": "large"}} for name in ("both", "distil"))
    if not batches:
        with refused(f"training.augment: 'flip_crop' .* none with {name}"):
            run(name, taught, training=plain | both | VIEWS, **settings)
    if issubclass(METHODS[name], Generative):
        with refused(f"training.objective: 'both' .* null with {name}"):
            run(name, taught, training=VIEWS | both, **settings)
        return
    go = partial(run, name, taught, QUICK.get(name, {}), **settings)
    side = plain | (both if batches else distil)
    loop, without = (go(training=training) for training in (side, plain))
    forbid_fallback(monkeypatch)
    vmapped = go(training=side, cohort="vmap")
    torch.testing.assert_close(vmapped.state(), loop.state(), rtol=1e-5, atol=1e-5)
    assert not same(loop.state(), without.state())
    for traffic in ("bytes_up", "bytes_down"):
        assert loop.values(traffic) == without.values(traffic)
