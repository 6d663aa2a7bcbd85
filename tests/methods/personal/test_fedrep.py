"""FedRep on the test-bed T2, and its neighbors FedAvg and FedPer."""

from dataclasses import replace
from typing import Any

import torch
from support import Normed, Product, by_hand, images, near, products, quadratics, run

from fedflow.data import Dataset
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation

HALF: dict[str, Any] = {
    "training": {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5},
    "participation": 0.5,
}


def test_fedrep(cohort: str) -> None:
    """Two steps of each head, then one of each body."""
    ran = run("fedrep", products(), rounds=2, keep_trained=True, cohort=cohort)
    bodies = [[float(w[0]) for w in trained["trained"]] for trained in ran.clients]
    assert bodies[0] == near([1.0240975, 1.0953775])
    assert ran.server("body") == near([1.0775575, 1.1511671495])
    assert ran.kept("head") == near([[0.595, 0.785], [0.6678470935, 1.0192854262]])


def test_a_body_under_a_fixed_head_is_averaged_as_fedavg_does(cohort: str) -> None:
    """With a constant v = 1/2, F_k = (u - 2 c_k)^2 / 8."""
    hyper = {"head_epochs": 0, "body_epochs": 2}
    ran = run("fedrep", products(), hyper, cohort=cohort)
    plain = run("fedavg", quadratics(((0.25, 2), (0.25, 4)), start=1), cohort=cohort)
    assert ran.server("body") == near(plain.server("model"))
    assert ran.kept("head") == [[0.5, 0.5]] * 3


def test_without_private_parameters_it_is_fedavg(federation: Federation, cohort: str) -> None:
    hyper = {"private": [], "head_epochs": 0, "body_epochs": 2}
    shared, plain = (
        run(name, federation, options, cohort=cohort, **HALF)
        for name, options in (("fedrep", hyper), ("fedavg", {}))
    )
    assert torch.equal(shared.servers[-1]["body"], plain.servers[-1]["model"])


def test_weight_decay_does_not_change_the_fixed_part(cohort: str) -> None:
    """One client, whose head takes a step of 0.1 with decay 0.5, then its body with the new head."""
    client = by_hand(Product, ((1,),), (4,))
    hyper = {"head_epochs": 1}
    ran = run("fedrep", client, hyper, training={"weight_decay": 0.5}, rounds=1, cohort=cohort)
    v = 0.5 - 0.1 * (1 * (0.5 - 1) + 0.5 * 0.5)
    u = 1 - 0.1 * (v * (v - 1) + 0.5)
    assert (ran.kept("head"), ran.server("body")) == (near([[v]]), near([u]))


def test_statistics_of_a_fixed_body_do_not_change(digits: Dataset) -> None:
    """They change in the pass that trains the body, not in the head's passes before it."""
    normed = replace(images(digits, (16, 16)), model=FlatModel(Normed))
    bodies = [
        run("fedrep", normed, {"head_epochs": epochs}, rounds=1).servers[-1]["body"] for epochs in (0, 3)
    ]
    one, other = (body[-16:] for body in bodies)
    assert torch.equal(one, other)
    assert not torch.equal(one[:8], torch.zeros(8))
