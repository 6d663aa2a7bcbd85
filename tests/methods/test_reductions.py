"""Each method at its neutral setting is the method that it extends.

Bit for bit where both compute the same operations; where the formulas differ, within rounding: twenty
float32 steps on weights below 1 agree to 1e-5.
"""

from dataclasses import replace

import pytest
import torch
from support import Ran, follow, images, prepare_run, run, suited
from torch import Tensor

from fedflow.data import Dataset
from fedflow.errors import BadInput
from fedflow.methods.personal.fedbn import FedBN
from fedflow.seeding import torch_seed
from fedflow.simulation.federation import Federation

SGD = {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5}
HALF = {"training": SGD, "participation": 0.5}  # four of eight clients, others in every round


def model(ran: Ran, name: str = "model") -> Tensor:
    return ran.servers[-1][name]


@pytest.mark.parametrize(
    ("hyper", "fedavg"),
    [({"mu": 0}, {}), ({"mu": 0, "weighting": "uniform"}, {"weighting": "uniform"})],
    ids=["samples", "uniform"],
)
def test_fedprox_without_mu_is_fedavg(federation: Federation, hyper: dict, fedavg: dict, cohort: str) -> None:
    with_mu, plain = (
        run(name, federation, options, cohort=cohort, **HALF)
        for name, options in (("fedprox", hyper), ("fedavg", fedavg))
    )
    assert torch.equal(model(with_mu), model(plain))


def test_fednova_with_equal_steps_is_fedavg(digits: Dataset, cohort: str) -> None:
    equal = images(digits, (16, 16, 16, 16))
    nova, plain = (run(name, equal, cohort=cohort, **HALF) for name in ("fednova", "fedavg"))
    torch.testing.assert_close(model(nova), model(plain), rtol=0, atol=1e-5)


def test_ifca_with_one_model_is_uniform_fedavg(federation: Federation, cohort: str) -> None:
    one = run("ifca", federation, {"clusters": 1}, cohort=cohort, **HALF)
    plain = run("fedavg", federation, {"weighting": "uniform"}, cohort=cohort, **HALF)
    assert torch.equal(model(one, "models")[0], model(plain))


def test_ifca_with_models_permuted_gives_the_same_models(federation: Federation) -> None:
    forth, back = (prepare_run("ifca", federation, {"clusters": 3}, **HALF) for _ in range(2))
    order = [2, 0, 1]
    back.state.server = replace(back.state.server, models=back.state.server.models[order])
    there, here = model(follow(forth), "models")[order], model(follow(back), "models")
    # Not bit for bit: the sums of a matrix product depend on where in memory its rows begin.
    torch.testing.assert_close(here, there, rtol=0, atol=1e-5)


def test_fedper_that_shares_everything_is_fedavg(federation: Federation, cohort: str) -> None:
    shared = run("fedper", federation, {"private": []}, cohort=cohort, **HALF)
    plain = run("fedavg", federation, cohort=cohort, **HALF)
    assert torch.equal(model(shared, "body"), model(plain))


def test_fedper_that_shares_nothing_is_local(federation: Federation, cohort: str) -> None:
    private, local = (
        run(name, federation, hyper, cohort=cohort, **HALF)
        for name, hyper in (("fedper", {"private": ["*"]}), ("local", {}))
    )
    assert torch.equal(torch.stack(private.clients[-1]["head"]), torch.stack(local.clients[-1]["model"]))


def test_fedbn_is_fedper_with_private_batch_norm(federation: Federation, cohort: str) -> None:
    normed = suited("fedbn", federation)
    patterns = [f"{name}.*" for name in normed.model.batch_norms]
    ours, theirs = (
        run(name, normed, hyper, cohort=cohort, **HALF)
        for name, hyper in (("fedbn", {}), ("fedper", {"private": patterns}))
    )
    assert len(patterns) == 2 and torch.equal(model(ours, "body"), model(theirs, "body"))
    statistics = normed.model.part("*running_mean", "*running_var")
    assert not (statistics.mask & ~FedBN().head(normed.model).mask).any()
    with pytest.raises(BadInput, match=r"^model.name: mlp is not .*; expected a network with BatchNorm"):
        run("fedbn", federation, cohort=cohort, **HALF)


def test_first_round_of_scaffold_is_uniform_fedavg(federation: Federation, cohort: str) -> None:
    first = {"rounds": 1, "cohort": cohort, **HALF}
    plain = run("fedavg", federation, {"weighting": "uniform"}, **first)
    for variate in ("I", "II"):
        ran = run("scaffold", federation, {"variate": variate}, **first)
        torch.testing.assert_close(model(ran), model(plain), rtol=0, atol=1e-6)


def test_ditto_without_pull_is_local(federation: Federation, cohort: str) -> None:
    """With full batches, because the two draw their batches from different streams."""
    full = HALF | {"training": SGD | {"batch_size": 0}, "cohort": cohort}
    ditto, local = (run("ditto", federation, {"lam": 0}, **full), run("local", federation, **full))
    personal, alone = torch.stack(ditto.clients[-1]["personal"]), torch.stack(local.clients[-1]["model"])
    torch.testing.assert_close(personal, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "hyper"),
    [("fedprox", {"mu": 0}), ("ditto", {"lam": 0, "personal_epochs": None}), ("apfl", {"alpha": 1})],
)
def test_variants_as_published_have_the_reductions_of_the_method(
    name: str, hyper: dict, federation: Federation, cohort: str
) -> None:
    fixed = {"adaptive": False, "weighting": "samples"} if name == "apfl" else {}
    published = run(f"{name}_as_published", federation, hyper, cohort=cohort, **HALF)
    plain = run(name, federation, hyper | fixed, cohort=cohort, **HALF)
    torch.testing.assert_close(model(published), model(plain), rtol=0, atol=1e-6)
    for one, other in zip(published.clients[-1].get("personal", []), plain.clients[-1].get("personal", [])):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_global_part_of_ditto_is_fedavg(federation: Federation, cohort: str) -> None:
    ditto, plain = (run(name, federation, cohort=cohort, **HALF) for name in ("ditto", "fedavg"))
    assert torch.equal(model(ditto), model(plain))


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fednova", "scaffold"])
def test_server_learning_rate_scales_the_first_update(federation: Federation, method: str) -> None:
    def update(server_lr: float) -> Tensor:
        ran = run(method, federation, {"server_lr": server_lr}, rounds=1, **HALF)
        return model(ran) - federation.model.init(torch_seed(0, "initial model", 0))

    torch.testing.assert_close(update(0.5), update(1) / 2, rtol=0, atol=1e-6)


def test_a_single_client_needs_no_federation(digits: Dataset) -> None:
    alone = images(digits, (30,))
    fedavg, local = (run(name, alone, training=SGD) for name in ("fedavg", "local"))
    assert torch.equal(model(fedavg), local.clients[-1]["model"][0])
