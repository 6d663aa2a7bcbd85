"""PFLDyn, PFLScaf and P-Avg: their hosts on F_k(T_k(w)), and Per-FedAvg with exact second derivatives.

On quadratics F_k(w) = a_k / 2 (w - b_k)^2, T with one step of 0.1 makes F_k(T_k(w)) a quadratic with the same
b_k and the effective curvature a_k (1 - 0.1 a_k)^2: 0.81 and 1.47 for two clients (1, 0) and (3, 4).
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import Ran, images, one_client, prepare_run, quadratics, refused, run, same, with_newcomers

from fedflow.data import Dataset
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import PartitionParams, Samples, make_partition
from fedflow.simulation.federation import Federation

TWO = quadratics(((1, 0), (3, 4)), (10, 10), start=0)
MAML = {"adaptation": {"name": "maml", "lr": 0.1}}
SECOND = {"order": "second", "alpha": 0.1}
EXACT = {"epochs": 20, "lr": 0.45}  # steps that leave at most a fifth of the distance
OPTIMUM = 2.578947
NAMES = ["pfldyn", "pflscaf", "pavg"]
BATCHES: dict[str, Any] = {
    "training": {"epochs": 2, "batch_size": 8, "momentum": 0.5},
    "participation": 0.5,
    "rounds": 3,
}


def near(value: Any, tolerance: float = 1e-6) -> Any:
    return pytest.approx(value, rel=0, abs=tolerance)


# Worked numbers


@pytest.mark.parametrize("start", [0.0, 5.0])
def test_effective_curvatures(start: float) -> None:
    """Of the gradient that a client follows."""
    for (a, b), curvature in zip(((1, 0), (3, 4)), (0.81, 1.47)):
        alone = quadratics(((a, b),), (10,), start)
        ran = run("pavg", alone, MAML, training={"epochs": 1, "lr": 1}, rounds=1)
        assert ran.server("model") == near([start - curvature * (start - b)], 1e-12)


def test_pfldyn(cohort: str) -> None:
    """Whose limit minimizes the objective, where the gradients of F_k(T_k(w)) sum to 0.

    Those of F_k at the models that are served do not.
    """
    settings = {"training": EXACT, "cohort": cohort, "keep_trained": True}
    ran = run("pfldyn", TWO, MAML | {"alpha": 1}, rounds=30, **settings)
    assert ran.kept("trained")[:2] == [near([0, 2.380567]), near([1.315230, 2.380567])]
    assert ran.kept("g")[:2] == [near([0, -2.380567]), near([1.065337, -2.380567])]
    assert ran.server("h")[:2] == near([-1.190283, -0.657615])
    assert ran.server("model")[:2] == near([2.380567, 2.505514])
    assert (ran.server("model")[-1], ran.kept("g")[-1]) == (near(OPTIMUM), near([2.088947, -2.088947]))
    served = [float(w) for w in ran.outcome().models.values()]
    assert [a * (w - b) for w, (a, b) in zip(served, ((1, 0), (3, 4)))] == near([2.321053, -2.984211])


@pytest.mark.parametrize(("name", "hyper"), [("perfedavg", SECOND), ("pavg", MAML)])
def test_the_average_is_biased(name: str, hyper: dict[str, Any], cohort: str) -> None:
    ran = run(name, TWO, hyper, rounds=100, cohort=cohort)
    assert ran.server("model")[:2] == near([0.544782, 0.973027])
    assert ran.server("model")[-1] == near(2.546722)


def test_pflscaf_takes_k_steps(cohort: str) -> None:
    """By hand; divides by K times the rate, and ends at the optimum."""
    a, b, k, lr = np.array([0.81, 1.47]), np.array([0, 4]), 3, 0.1
    x, c, own, expected = 0.0, 0.0, np.zeros(2), []
    for _ in range(3):
        y = np.full(2, x)
        for _ in range(k):
            y -= lr * (a * (y - b) - own + c)
        new = own - c + (x - y) / (k * lr)
        x, c, own = y.mean(), c + (new - own).mean(), new
        expected.append((x, c, *own))
    ran = run("pflscaf", TWO, MAML, training={"epochs": 1, "steps": k}, rounds=100, cohort=cohort)
    found = [(x, c, *own) for x, c, own in zip(ran.server("model"), ran.server("c"), ran.kept("c"))]
    assert found[:3] == [near(row, 1e-9) for row in expected]
    assert found[-1] == near((OPTIMUM, 0, 2.088947, -2.088947))


@pytest.mark.parametrize("kind", ["loop", "vmap"])
@pytest.mark.parametrize("failed", ["exclude", "replace"])
def test_a_client_that_diverges_is_left_out_or_replaced_by_the_previous_mean(failed: str, kind: str) -> None:
    """Its g stays 0."""
    three = quadratics(((1, 0), (float("nan"), 1), (3, 4)), (10,) * 3, start=1)
    hyper = MAML | {"alpha": 1, "failed": failed}
    ran = run("pfldyn", three, hyper, training=EXACT, rounds=2, cohort=kind)
    assert [list(report.failed) for report in ran.rounds] == [[1], [1]]
    a, b, g, theta, h, mean = np.array([0.81, 1.47]), np.array([0, 4]), np.zeros(2), 1.0, 0.0, 1.0
    for t in range(2):
        w = (a * b + g + theta) / (a + 1)
        g, h = g - (w - theta), h - (w - theta).sum() / 3
        mean = (w.sum() + mean) / 3 if failed == "replace" else w.mean()
        theta = mean - h
        assert (ran.server("model")[t], ran.server("h")[t]) == near((theta, h))
        assert ran.kept("g")[t] == near([g[0], 0, g[1]])
        assert h == near(sum(ran.kept("g")[t]) / 3)


# Invariants and reductions, on real images


@pytest.mark.parametrize(("name", "common", "own"), [("pfldyn", "h", "g"), ("pflscaf", "c", "c")])
@pytest.mark.parametrize("hyper", [{}, MAML], ids=["proto", "maml"])
def test_the_server_has_the_mean_of_what_clients_keep(
    name: str, common: str, own: str, hyper: dict[str, Any], digits: Dataset, cohort: str
) -> None:
    """Also of those who did not take part, which keep it bit for bit."""
    ran = run(name, images(digits, dtype=torch.float64), hyper, cohort=cohort, **BATCHES)
    for t, (server, kept) in enumerate(zip(ran.servers, ran.clients)):
        mean = torch.stack(kept[own]).mean(0)
        torch.testing.assert_close(server[common], mean, rtol=0, atol=1e-12)
        for k in set(range(8)) - set(ran.rounds[t].cohort) if t else ():
            assert torch.equal(kept[own][k], ran.clients[t - 1][own][k])


@pytest.mark.parametrize(
    ("name", "host", "none", "more"),
    [
        ("pfldyn", "feddyn", {"steps": 0}, {}),
        ("pfldyn", "feddyn", {"lr": 0}, {"served": "mean"}),
        ("pflscaf", "scaffold", {"steps": 0}, {}),
        ("pflscaf", "scaffold", {"lr": 0}, {"weighting": "samples"}),
        ("pavg", "fedavg", {"steps": 0}, {"weighting": "uniform"}),
        ("perfedavg", "fedavg", {}, {"weighting": "uniform"}),
    ],
)
def test_without_adaptation_it_is_the_host_bit_for_bit(
    name: str, host: str, none: dict, more: dict, federation: Federation, cohort: str
) -> None:
    """What is served is then the model of the host too, but each client's own."""
    identity = {"adaptation": {"name": "maml", **none}} if none else {"order": "second", "adaptation": 0}
    ran = run(name, federation, identity | more, cohort=cohort, **BATCHES)
    plain = run(host, federation, more, cohort=cohort, **BATCHES)
    assert same(ran.state(), plain.state())
    assert ran.values("train_loss") == plain.values("train_loss")
    assert ran.values("bytes_up") == plain.values("bytes_up")
    personal, common = ran.outcome(), plain.outcome()
    assert all(torch.equal(w, common.models[0]) for w in personal.models.values())
    assert np.array_equal(personal.scores.local_loss, common.scores.local_loss)


@pytest.mark.parametrize("hyper", [{}, MAML], ids=["proto", "maml"])
@pytest.mark.parametrize(
    ("name", "more", "model"), [("pfldyn", {"alpha": 1e-7}, "mean"), ("pflscaf", {}, "model")]
)
def test_the_first_step_of_clients_is_that_of_the_average(
    name: str, more: dict, model: str, hyper: dict[str, Any], digits: Dataset, cohort: str
) -> None:
    """While g_k, c_k and c are 0, and alpha vanishes; served is the mean, which theta overshoots."""
    exact, once = images(digits, dtype=torch.float64), BATCHES | {"rounds": 1, "cohort": cohort}
    ran, plain = run(name, exact, hyper | more, **once), run("pavg", exact, hyper, **once)
    torch.testing.assert_close(ran.servers[0][model], plain.servers[0]["model"], rtol=0, atol=1e-5)


def test_p_avg_with_maml_is_per_fedavg(federation: Federation, cohort: str) -> None:
    maml = {"adaptation": {"name": "maml", "lr": 0.05, "steps": 2}}
    second = {"order": "second", "alpha": 0.05, "adaptation": 2}
    ran, meta, plain = (
        run(name, federation, hyper, cohort=cohort, **BATCHES)
        for name, hyper in (("pavg", maml), ("perfedavg", second), ("fedavg", {}))
    )
    assert same(ran.state(), meta.state())
    assert same(*({str(k): w for k, w in each.outcome().models.items()} for each in (ran, meta)))
    assert ran.values("gradients") == [3 * n for n in plain.values("gradients")]


# ACID and ALID


def own_classes(dataset: Dataset, anonymous: bool, clients: int = 10) -> Federation:
    """Clients with three classes each, and a network with ten outputs for both kinds of names."""
    entry = {"dataset": "d", "scheme": "acid", "clients": clients, "classes_per_client": 3}
    entry |= {"anonymous": anonymous}
    known = Samples(dataset.y_train.numpy(), dataset.y_test.numpy())
    partition = make_partition(PartitionParams.parse(entry), known)
    model = FlatModel(partial(build, "mlp", dataset.input_shape, 10, hidden=(16,)), dtype=torch.float64)
    train, test = (
        dataset.train.relabeled(partition.train_labels),
        dataset.test.relabeled(partition.test_labels),
    )
    return Federation(model, train, test, partition)


def accuracies(ran: Ran) -> list[float]:
    return ran.outcome().scores.local_accuracy.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_prototypes_do_not_depend_on_the_names_of_classes(name: str, digits: Dataset, cohort: str) -> None:
    """Up to the order of sums, and with equally many outputs."""
    calm: dict[str, Any] = {"training": {"epochs": 1, "batch_size": 20}, "participation": 0.5}
    acid, alid = (run(name, own_classes(digits, each), cohort=cohort, **calm) for each in (False, True))
    torch.testing.assert_close(alid.state(), acid.state(), rtol=0, atol=1e-12)
    assert accuracies(acid) == accuracies(alid)


@pytest.mark.slow
def test_one_model_is_near_chance_where_names_are_random(digits: Dataset) -> None:
    """It may know the most frequent name of each class; prototypes need no names."""
    long: dict[str, Any] = {"training": {"epochs": 3, "batch_size": 12}, "participation": 0.5, "rounds": 10}
    acid, alid = (own_classes(digits, each, clients=40) for each in (False, True))
    for name in ("feddyn", "scaffold", "fedavg", "pfldyn"):
        both = (run(name, each, cohort="vmap", **long) for each in (acid, alid))
        found = [float(np.mean(accuracies(ran))) for ran in both]
        expected = (0.95, 0.95) if name == "pfldyn" else (0.89, 1 / 3)
        assert found == [near(value, 0.1) for value in expected], name


def test_a_newcomer_has_prototypes_of_classes_that_nobody_had(digits: Dataset) -> None:
    clients = with_newcomers(images(digits, (30, 30, 30)), 1)
    ran = run("pfldyn", clients, training={"epochs": 5, "batch_size": 10}, rounds=5)
    labels = [set(clients.train.y[clients.partition.train(k)].tolist()) for k in range(3)]
    unseen = labels[2] - labels[0] - labels[1]
    assert unseen
    w = ran.simulation.job.method.model_for(one_client(clients, 2, model=ran.servers[-1]["model"]))
    rows = torch.as_tensor(clients.partition.test(2))
    hits = clients.model.hits(clients.model.outputs(w, clients.test.inputs(rows)), clients.test.targets(rows))
    assert float(hits.double().mean()) == near(ran.outcome().newcomers.local_accuracy[0])
    of_unseen = torch.isin(clients.test.y[rows], torch.tensor(sorted(unseen)))
    assert hits[of_unseen].double().mean() > 0.6


# What is refused


@pytest.mark.parametrize("name", NAMES)
def test_another_adaptation_of_training_is_refused(name: str, federation: Federation) -> None:
    with refused(rf"^training\.adaptation: a mapping .* null with {name}, which has method\.adaptation"):
        prepare_run(name, federation, MAML, training={"adaptation": {"name": "proto"}})
    prepare_run(name, federation, training={"adaptation": {"name": "proto"}})


@pytest.mark.parametrize(
    ("hyper", "training", "message"),
    [
        ({}, {}, r"^method\.adaptation\.name: 'proto' .* maml, as the samples do not have one label each"),
        ({"adaptation": {"name": "none"}}, {}, r"^method\.adaptation\.name: 'none'"),
        ({"adaptation": {"name": "proto", "steps": 2}}, {}, r"^method\.adaptation\.steps: 2 .* 1 with proto"),
        ({"alpha": 0}, {}, r"^method\.alpha: 0"),
        (MAML, {"curriculum": {}}, r"^training\.curriculum: .* null with pfldyn, .* method\.adaptation$"),
    ],
)
def test_bad_input(hyper: dict, training: dict, message: str) -> None:
    with refused(message):
        prepare_run("pfldyn", TWO, hyper, training=training)


def test_pflscaf_has_variate_ii(federation: Federation) -> None:
    with refused(r"^method\.variate: 'I' .* II: with method\.adaptation"):
        prepare_run("pflscaf", federation, {"variate": "I"})
