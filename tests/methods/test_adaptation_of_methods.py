"""Every method trains for the model after adaptation, or refuses it."""

from functools import partial
from typing import Any

import pytest
import torch
from profiles import abilities
from support import DENSE, forbid_fallback, prepare_run, refused, run, same, suited

from fedflow.methods import METHODS
from fedflow.methods.protocols import Generative
from fedflow.simulation.federation import Federation

SGD: dict[str, Any] = {"epochs": 1, "batch_size": 8, "lr": 0.1, "momentum": 0.5}
QUICK: dict[str, dict[str, Any]] = {
    "flt": {"encoder": "pixels"},  # without an encoder to train
    **DENSE,  # traffic depends on what is pruned
}
FULL = ("cfl", "fedac", "fesem", "fedsgd", "qfedsgd")  # take gradients over all samples
OWN = ("pavg", "perfedavg", "pfldyn", "pflscaf")  # have an adaptation
IMAGES = tuple(name for name, method in METHODS.items() if issubclass(method, Generative))


@pytest.mark.by_profile(kind=abilities, also=FULL + OWN)
@pytest.mark.parametrize("name", METHODS)
def test_adaptation_of_every_method(
    name: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loop and vmap agree, an adaptation changes the result, and costs no traffic."""
    federation = suited(name, federation)
    about = [SGD | {"adaptation": {"name": each}} for each in ("maml", "proto")]
    settings: dict[str, Any] = {"participation": 0.5, "rounds": 2}
    if name in FULL + OWN + IMAGES:
        with refused(f"training.adaptation: .* null with {name}"):
            prepare_run(name, federation, training=about[0])
        return
    go = partial(run, name, federation, QUICK.get(name, {}), **settings)
    plain, *loops = (go(training=training) for training in (SGD, *about))
    forbid_fallback(monkeypatch)
    for training, loop in zip(about, loops):
        vmapped = go(training=training, cohort="vmap")
        torch.testing.assert_close(vmapped.state(), loop.state(), rtol=0, atol=5e-5)
        assert not same(loop.state(), plain.state())
        for traffic in ("bytes_up", "bytes_down"):
            assert loop.values(traffic) == plain.values(traffic)
