"""`run.adapt`: scores after adaptation to all training samples of a client."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import Ran, Workers, failing, prepare_run, quadratics, refused, run, same, with_newcomers

from fedflow.simulation.evaluation import Scores
from fedflow.simulation.extensions.trained_means import TrainedMeans
from fedflow.simulation.federation import Federation

MAML: dict[str, Any] = {"name": "maml", "lr": 0.05, "steps": 2}
BOTH: list[dict[str, Any]] = [{"name": "proto"}, MAML]
SETTINGS: dict[str, Any] = {
    "training": {"epochs": 1, "batch_size": 8, "lr": 0.1},
    "participation": 0.4,
    "rounds": 4,
    "evaluate_every": 1,
    "adapt": BOTH,
}


def expected(federation: Federation, w: torch.Tensor, k: int) -> list[float]:
    """Accuracy of client k after both adaptations of ``w``, by nearest means and by plain autograd."""
    rows, model = torch.as_tensor(federation.partition.train(k)), federation.model
    x, y = federation.train.x[rows], federation.train.y[rows]
    classes = y.unique()
    test = torch.isin(federation.test.y, classes)
    queries, truth = federation.test.x[test], federation.test.y[test]
    near, own = model.features(w, queries), model.features(w, x)
    centers = torch.stack([own[y == label].mean(0) for label in classes])
    proto = classes[torch.cdist(near, centers).argmin(1)] == truth
    for _ in range(MAML["steps"]):
        leaf = w.clone().requires_grad_()
        (g,) = torch.autograd.grad(model.loss(model.outputs(leaf, x), y), leaf)
        w = w - MAML["lr"] * g
    maml = model.outputs(w, queries).argmax(1) == truth
    return [float(hits.double().mean()) for hits in (maml, proto)]


def columns(scores: Scores) -> np.ndarray:
    """Accuracies after adaptation [N, 2]."""
    return np.stack([scores.column("maml_accuracy"), scores.column("proto_accuracy")], 1)


def measured(ran: Ran) -> list[dict[str, float]]:
    return [
        {n: v for n, v in report.values.items() if n.startswith(("maml", "proto"))} for report in ran.rounds
    ]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("fedavg", "served"),
        ("fedavg", "active"),
        ("feddyn", "all"),
        ("perfedavg", "all"),
        ("ifca", "served"),
        ("ditto", "served"),
        ("fedper", "served"),
    ],
)
def test_every_client_is_scored_after_adaptation(federation: Federation, name: str, source: str) -> None:
    """Of the model that it is served, be it of a cluster or its own, or of a mean."""
    ran = run(name, federation, **SETTINGS, adapt_from=source)
    outcome, model = ran.outcome(), federation.model
    if source != "served":
        mean = ran.simulation.extension(TrainedMeans).models(model.dtype)[source]
    for k in range(8):
        owner = {"global": 0, "cluster": int(outcome.scores.cluster[k]), "personal": k}
        served = outcome.models[owner[ran.simulation.job.method.serves]]
        start = served if source == "served" else mean
        assert columns(outcome.scores)[k].tolist() == pytest.approx(expected(federation, start, k), abs=1e-9)
    for adaptation, values in zip(("maml", "proto"), columns(outcome.scores).T):
        numbers = {"accuracy": values.mean(), "min": values.min(), "max": values.max()}
        for what, value in numbers.items():
            assert outcome.metrics[f"{adaptation}_{what}"] == pytest.approx(value)
            assert ran.values(f"{adaptation}_{what}")[-1] == pytest.approx(value)


@pytest.mark.parametrize(
    "source",
    [pytest.param("served", marks=pytest.mark.full), pytest.param("active", marks=pytest.mark.full), "all"],
)
def test_scores_do_not_depend_on_workers_or_on_a_kill(
    federation: Federation, source: str, tmp_path: Path
) -> None:
    """Also not on one between the last round and the final scores."""
    settings = SETTINGS | {"adapt_from": source, "checkpoint_every": 2}
    straight = run("feddyn", federation, **settings)
    final = columns(straight.outcome().scores)
    shared = run("feddyn", federation, executor=Workers(3), **settings)
    assert measured(shared) == measured(straight) and len(measured(straight)[0]) == 6
    assert np.array_equal(columns(shared.outcome().scores), final)
    for stop in (1, 3, 4):
        folder = tmp_path / str(stop)
        killed = prepare_run("feddyn", federation, checkpoints=folder, **settings).rounds()
        for _ in range(stop):
            next(killed)
        again = run("feddyn", federation, checkpoints=folder, **settings)
        assert measured(again) == measured(straight)
        assert np.array_equal(columns(again.outcome().scores), final)


def test_they_change_no_result_and_cost_nothing_when_off(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = run("scaffold", federation, **SETTINGS)
    monkeypatch.delattr("fedflow.local.extensions.adaptation.Adaptation.adapted")
    plain = run("scaffold", federation, **SETTINGS | {"adapt": []})
    assert same(scored.state(), plain.state()) and not any(measured(plain))
    assert np.isnan(columns(plain.outcome().scores)).all()
    assert not plain.simulation.job.keep_trained
    names = scored.rounds[0].values.keys() - plain.rounds[0].values.keys()
    assert names == {f"{name}_{what}" for name in ("maml", "proto") for what in ("accuracy", "min", "max")}


def test_newcomers_are_adapted_too_and_clients_that_are_not_scored_are_not(federation: Federation) -> None:
    ran = run("fedavg", with_newcomers(federation, 2), **SETTINGS, evaluate_clients=3)
    outcome = ran.outcome()
    assert np.isfinite(columns(outcome.scores)).all(1).sum() == 3
    assert outcome.newcomers is not None
    for k, found in zip((6, 7), columns(outcome.newcomers)):
        assert found.tolist() == pytest.approx(expected(federation, outcome.models[0], k), abs=1e-9)


def test_what_cannot_be_scored_is_refused(federation: Federation) -> None:
    with refused(r"run.adapt: \[maml, maml\] .* every name once"):
        prepare_run("fedavg", federation, adapt=[MAML, MAML])
    for only, value in (("order", "first"), ("weight_decay", 0.1)):
        with refused(rf"run.adapt\[1\].{only}: {value!r} .*, its default, as it is for training only"):
            prepare_run("fedavg", federation, adapt=[{"name": "proto"}, MAML | {only: value}])
    with refused(r"run.adapt\[1\].steps: -1 .* a whole number >= 0"):
        prepare_run("fedavg", federation, adapt=[{"name": "proto"}, MAML | {"steps": -1}])
    with refused(r"run.adapt\[0\].name: 'proto' .* maml, as the samples do not have one label each"):
        prepare_run("fedavg", quadratics(), adapt=[{"name": "proto"}])
    with refused("run.adapt_from: 'all' .* served with run.adapt: \\[\\]"):
        prepare_run("fedavg", federation, adapt_from="all")
    with refused("run.adapt_from: 'mean' .* one of active, all, served"):
        prepare_run("fedavg", federation, adapt=BOTH, adapt_from="mean")
    for name in ("ditto", "ifca", "fedper"):
        with refused(
            f"run.adapt_from: 'all' .* served with {name}, whose clients do not train one common model"
        ):
            prepare_run(name, federation, adapt=BOTH, adapt_from="all")


@pytest.mark.parametrize(
    ("name", "hyper", "adapted"),
    [
        ("pavg", {}, True),
        ("perfedavg", {}, True),
        ("perfedavg", {"adaptation": 0}, False),
        ("pfldyn", {"adaptation": MAML | {"steps": 0}}, False),
        ("fedavg", {}, False),
    ],
)
def test_served_models_that_are_adapted_twice_are_said_to_be(
    federation: Federation, name: str, hyper: dict, adapted: bool
) -> None:
    with warnings.catch_warnings(record=True) as lines:
        warnings.simplefilter("always")
        prepare_run(name, federation, hyper, **SETTINGS | {"adapt_from": "all"})
        assert not lines
        prepare_run(name, federation, hyper, **SETTINGS)
    said = f"{name}: run.adapt adapts the served models, which are adapted already; .* can be active or all"
    assert len(lines) == adapted and all(re.fullmatch(said, str(line.message)) for line in lines)


def test_the_mean_over_a_cohort_that_failed_is_not_adapted(federation: Federation) -> None:
    """The round before it and the one after it have scores."""
    ran = run(failing("fedavg", 2), federation, **SETTINGS | {"adapt_from": "active", "rounds": 3})
    assert [value is None for value in ran.values("maml_accuracy")] == [False, True, False]
    last = run(failing("fedavg", 2), federation, **SETTINGS | {"adapt_from": "active", "rounds": 2}).outcome()
    assert last.metrics["maml_accuracy"] is None
