"""IFCA with shared layers, and its initializations; the worked numbers are in test_oracles.py."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import Ran, by_hand, consecutive, failing, follow, prepare_run, quadratics, run
from torch import Tensor

from fedflow.data import Examples
from fedflow.data.synthetic import RegressionOptions, mixed_regression, true_models
from fedflow.errors import BadInput
from fedflow.methods import build_method
from fedflow.models.flat import FlatModel
from fedflow.models.linear import Linear
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation
from fedflow.simulation.loop import Simulation

SGD: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5}
HALF: dict[str, Any] = {"training": SGD, "participation": 0.5}


class Line(Linear):
    """y = w x + b of an input of one number; clusters may share w."""

    head_patterns = ("layer.bias",)

    def __init__(self) -> None:
        super().__init__((1,), 1)


def lines(points: list[tuple[float, float]]) -> Federation:
    """Clients with one sample (x, y) each."""
    federation = by_hand(Line, [[x] for x, _ in points], [1] * len(points))
    y = torch.tensor([y for _, y in points], dtype=torch.float64)
    examples = Examples(federation.train.x, y)
    return replace(federation, train=examples, test=examples)


# Shared layers


def test_the_shared_body_is_averaged_over_all_and_heads_over_their_clusters(cohort: str) -> None:
    """From w = 1 and b = 0 or 10: clients 0 and 1 choose 0, client 2 the other; F = (w x + b - y)^2."""
    points = [(1.0, 0.0), (2.0, 3.0), (1.0, 12.0)]
    start, step = {"models": torch.tensor([[0.0], [10.0]]).double(), "body": torch.ones(1).double()}, 0.1
    residuals = torch.tensor([1.0 - 0, 2.0 - 3, 11.0 - 12])
    by_w, by_b = 2 * residuals * torch.tensor([1.0, 2, 1]), 2 * residuals
    body, heads = 1 - step * by_w.mean(), [-step * by_b[:2].mean(), 10 - step * by_b[2]]
    for averaging in ("model", "gradient"):
        hyper = {"shared": "averaged", "averaging": averaging, "server_lr": step}
        hyper |= {"denominator": "cluster"} if averaging == "gradient" else {}
        training = {"epochs": 1, "lr": step}
        simulation = prepare_run("ifca", lines(points), hyper, training=training, rounds=1, cohort=cohort)
        simulation.state.server = replace(simulation.state.server, **start)
        ran = follow(simulation)
        assert ran.server("body") == pytest.approx([float(body)])
        assert ran.server("models")[0] == pytest.approx([float(b) for b in heads])
        assert ran.outcome().scores.cluster.tolist() == [0, 0, 1]


@pytest.mark.parametrize("shared", ["averaged", "frozen"])
def test_with_every_layer_in_the_head_nothing_is_shared(
    federation: Federation, shared: str, cohort: str
) -> None:
    """The initial heads are then the initial models."""
    one = run("ifca", federation, {"shared": shared, "own": ["*"]}, cohort=cohort, **HALF)
    plain = run("ifca", federation, cohort=cohort, **HALF)
    torch.testing.assert_close(one.servers[-1]["models"], plain.servers[-1]["models"], rtol=0, atol=1e-6)


def test_with_one_cluster_and_an_averaged_body_it_is_fedavg(federation: Federation, cohort: str) -> None:
    one = run("ifca", federation, {"clusters": 1, "shared": "averaged"}, cohort=cohort, **HALF)
    plain = run("fedavg", federation, {"weighting": "uniform"}, cohort=cohort, **HALF)
    head, server = federation.model.head(), one.servers[-1]
    assert torch.equal(head.join(server["models"][0], server["body"]), plain.servers[-1]["model"])


@pytest.mark.parametrize(("shared", "bodies"), [("averaged", 1), ("frozen", 0)])
def test_heads_travel_without_the_body_where_it_is_shared(
    federation: Federation, shared: str, bodies: int
) -> None:
    ran = run("ifca", federation, {"clusters": 3, "shared": shared}, rounds=1, **HALF)
    size, head = federation.model.size, len(federation.model.head().index)
    assert ran.rounds[0].values["bytes_down"] == 4 * 4 * (size - head + 3 * head)
    assert ran.rounds[0].values["bytes_up"] == 4 * 4 * (bodies * (size - head) + head + 1)


def test_a_frozen_body_never_moves(federation: Federation, cohort: str) -> None:
    ran = run("ifca", federation, {"shared": "frozen"}, keep_trained=True, cohort=cohort, **HALF)
    first, head = ran.simulation.job.method, federation.model.head()
    assert first.shared == "frozen" and torch.equal(ran.servers[0]["body"], ran.servers[-1]["body"])
    assert not torch.equal(ran.servers[0]["models"], ran.servers[-1]["models"])
    took_part = np.flatnonzero(ran.simulation.state.participations)
    for k in took_part:
        assert torch.equal(head.outside(ran.clients[-1]["trained"][k]), ran.servers[0]["body"])
    models = ran.outcome().models.values()
    assert all(torch.equal(head.outside(w), ran.servers[0]["body"]) for w in models)


# Pretraining, and parts


@pytest.mark.parametrize("shared", ["none", "averaged", "frozen"])
def test_pretraining_is_fedavg_and_each_part_trains_a_model_from_there(
    federation: Federation, shared: str, cohort: str
) -> None:
    """Two rounds of FedAvg, two with parts of four clients each, then clients choose."""
    hyper = {"shared": shared, "pretraining": 2, "random_assignment_rounds": 2}
    ran = run("ifca", federation, hyper, rounds=5, evaluate_every=1, cohort=cohort, **HALF)
    plain = run("fedavg", federation, {"weighting": "uniform"}, rounds=2, cohort=cohort, **HALF)
    assert torch.equal(ran.servers[0]["pretrained"], plain.servers[0]["model"])
    _, two, three, four, five = ran.servers
    w, head = plain.servers[1]["model"], federation.model.head()
    own = w if shared == "none" else head.of(w)
    assert torch.equal(two["models"], own.repeat(2, 1))
    assert shared == "none" or torch.equal(two["body"], head.outside(w))
    part = three["part"].tolist()
    assert sorted(part) == [0] * 4 + [1] * 4 and "part" not in four and "part" not in five
    trained = {part[k] for k in ran.rounds[2].cohort}
    moved = [not torch.equal(three["models"][j], own) for j in (0, 1)]
    assert [j in trained for j in (0, 1)] == moved
    assert torch.equal(two.get("body", own), five.get("body", own)) == (shared != "averaged")
    assert [r.values["clusters"] for r in ran.rounds[:2]] == [1, 1]


def test_heads_are_those_drawn_where_no_part_trains_them(federation: Federation) -> None:
    hyper = {"shared": "frozen", "pretraining": 1}
    ran = run("ifca", federation, hyper, rounds=2, **HALF)
    drawn = prepare_run("ifca", federation, {"shared": "frozen"}, **HALF).state.server
    assert torch.equal(ran.servers[0]["models"], drawn.models)
    assert not torch.equal(ran.servers[0]["body"], drawn.body)


@pytest.mark.parametrize("shared", ["none", "averaged", "frozen"])
def test_the_last_round_of_pretraining_may_fail(federation: Federation, shared: str) -> None:
    """Clients then start from the model of the round before."""
    parts = 1 if shared == "none" else 0
    hyper = {"shared": shared, "pretraining": 2, "random_assignment_rounds": parts}
    with pytest.warns(UserWarning, match="round 2: every client failed"):
        ran = run(failing("ifca", 2, **hyper), federation, rounds=4, evaluate_every=1, **HALF)
    w, head = ran.servers[0]["pretrained"], federation.model.head()
    assert "pretrained" not in ran.servers[1]
    assert torch.equal(
        *((w, ran.servers[1]["models"][0]) if parts else (head.outside(w), ran.servers[1]["body"]))
    )


# Starts


def test_models_that_start_equal_are_refused() -> None:
    with pytest.raises(BadInput, match=r"^method.clusters: 2 .* expected 1, as this network always starts"):
        run("ifca", quadratics())
    run("ifca", quadratics(), {"clusters": 1}, rounds=1)


FOUR = ((1, 0), (1, 0.4), (1, 5), (1, 5.6))
STARTS = torch.tensor([[[8.0], [-70]], [[1], [4]], [[20], [30]], [[0], [3]]], dtype=torch.float64)


def started(hyper: dict[str, Any], newcomers: int = 0, lost: Sequence[int] = (), **more: Any) -> Ran:
    """A run on four clients, whose starts are those above: good are the second, and then the last."""
    clients = quadratics((*FOUR, (1, 5.2))[: 4 + newcomers], (10,) * (4 + newcomers))
    object.__setattr__(clients.partition, "newcomers", newcomers)
    training = {"lr": 0.5, "epochs": 1}
    method = failing("ifca", *lost, **hyper)
    simulation = prepare_run(method, clients, training=training, **{"rounds": 1} | more)
    simulation.state.server = replace(simulation.state.server, models=STARTS[0], starts=STARTS[1:])
    return follow(simulation)


def test_a_start_is_redrawn_where_a_model_attracts_too_few() -> None:
    """One step of 0.5 from (1, 4) ends at (0.6, 4.65), as where this is the start."""
    ran = started({"min_init_share": 0.35}, newcomers=1)
    assert ran.server("models")[0] == pytest.approx([0.6, 4.65])
    assert ran.servers[0].keys() == {"models"}
    metrics, newcomers = ran.outcome().metrics, ran.outcome().newcomers
    assert metrics["onboarding_bytes_down"] == 8 * 4 * 8 and metrics["onboarding_bytes_up"] == 8 * 4 * 8
    assert newcomers is not None and newcomers.cluster.tolist() == [1]


def test_too_few_redraws_are_refused() -> None:
    message = r"^method.min_init_share: 0.6 .* at most 0.5, the share after 20 redraws$"
    with pytest.raises(BadInput, match=message):
        started({"min_init_share": 0.6})


def test_the_best_of_several_starts_is_kept(cohort: str) -> None:
    """After two rounds each: of the four, (0, 3) ends lower than (1, 4) before its second round."""
    hyper = {"restarts": 4, "trial": 2}
    ran = started(hyper, rounds=9, cohort=cohort)
    alone = [follow(from_start(start, rounds=2)).server("models") for start in STARTS]
    models = ran.server("models")
    assert models[::2][:4] == [pytest.approx(run[0]) for run in alone]
    losses = [best_losses(run[0]) for run in alone]
    best = int(np.argmin(losses))
    assert best in (1, 3) and models[7] == pytest.approx(alone[best][1])
    assert ran.servers[7].keys() == ran.servers[8].keys() == {"models"}
    assert models[8] == pytest.approx(follow(from_start(STARTS[best], rounds=3)).server("models")[2])


def test_a_start_whose_last_cohort_fails_is_not_kept() -> None:
    """Of the four, the second and the last are good."""
    alone = {i: follow(from_start(STARTS[i], rounds=2)).server("models") for i in (1, 3)}
    best, other = sorted(alone, key=lambda i: best_losses(alone[i][0]))
    with pytest.warns(UserWarning, match=f"round {2 * best + 2}: every client failed"):
        ran = started({"restarts": 4, "trial": 2}, rounds=8, lost=[2 * best + 2])
    assert ran.server("models")[7] == pytest.approx(alone[other][1])
    assert ran.servers[7].keys() == {"models"}


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        ({"restarts": 3, "trial": 3}, r"restarts: 3 .* at most 2: 8 rounds, 3 for each start"),
        ({"restarts": 2, "trial": 10}, r"restarts: 2 .* at most 1: 8 rounds, 10 for each start"),
        ({"shared": "frozen", "pretraining": 8}, "pretraining: 8 .* the run has 8 rounds"),
        (
            {"pretraining": 2, "random_assignment_rounds": 6},
            "random_assignment_rounds: 6 .* the run has 8 rounds",
        ),
    ],
)
def test_a_run_too_short_for_its_starts_is_refused(hyper: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=f"^method.{message}"):
        prepare_run("ifca", quadratics(FOUR, (10,) * 4), hyper, rounds=8)


def test_a_run_may_end_with_its_last_start() -> None:
    """It serves the best of all, here the second of three."""
    ran = started({"restarts": 3, "trial": 2}, rounds=6)
    best = follow(from_start(STARTS[1], rounds=2)).server("models")[-1]
    assert ran.server("models")[-1] == pytest.approx(best)


def from_start(start: Tensor, rounds: int) -> Simulation:
    training = {"lr": 0.5, "epochs": 1}
    simulation = prepare_run("ifca", quadratics(FOUR, (10,) * 4), training=training, rounds=rounds)
    simulation.state.server = replace(simulation.state.server, models=start)
    return simulation


def best_losses(models: list[float]) -> float:
    """sum_i min_j F_i(theta_j)"""
    return sum(min((theta - c) ** 2 for theta in models) for _, c in FOUR)


def test_the_test_data_may_choose_as_in_published_numbers() -> None:
    """Client 1 trains near the first model but is tested on sample 2; client 0 has no test samples."""
    clients = quadratics(((1, 0), (1, 0.4), (1, 5)), (1,) * 3)
    own = [np.array([], dtype=int), np.array([2]), np.array([2])]
    partition = Partition.from_lists(
        [np.array([k]) for k in range(3)], [np.arange(k, k + 1) for k in range(3)], own
    )
    clusters = []
    for name in ("ifca", "ifca_as_published"):
        simulation = prepare_run(name, replace(clients, partition=partition), rounds=1)
        models = torch.tensor([[1.0], [4.0]], dtype=torch.float64)
        simulation.state.server = replace(simulation.state.server, models=models)
        scores = follow(simulation).outcome().scores
        clusters.append(scores.cluster.tolist())
        assert scores.local_loss[1] == pytest.approx((scores.models[scores.model[1]].item() - 5) ** 2 / 2)
    assert clusters == [[0, 0, 1], [0, 1, 1]]


@pytest.mark.parametrize(
    ("hyper", "field"),
    [
        ({"restarts": 2, "shared": "frozen"}, "restarts"),
        ({"restarts": 2, "random_assignment_rounds": 1}, "restarts"),
        ({"pretraining": 5}, "pretraining"),
        ({"own": ["*"]}, "own"),
    ],
)
def test_incompatible_ways_to_start_are_refused(hyper: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput, match=f"^method.{field}: "):
        build_method("ifca", hyper)


@pytest.mark.parametrize("hyper", [{"server_lr": 0.5}, {"denominator": "all"}])
def test_an_option_of_gradients_is_refused_for_models(hyper: dict[str, Any]) -> None:
    (name,) = hyper
    with pytest.raises(BadInput, match=f"^method.{name}: .* its default, with averaging: model$"):
        build_method("ifca", hyper)
    build_method("ifca", hyper | {"averaging": "gradient"})


def test_scarce_data_need_others_with_the_same_truth() -> None:
    """Mixed regression, 8 samples of 20 unknowns: IFCA beats one-shot, that one model, that none in common.

    Mean distance to the client's true model; after some hundred rounds IFCA is at 0.06.
    """
    options = RegressionOptions.parse({"clients": 16, "dimension": 20, "samples": 8})
    raw, truths = mixed_regression(options), torch.from_numpy(true_models(options)).double()
    data = Examples(*(torch.from_numpy(a).double() for a in (raw.x_train, raw.y_train)))
    model = FlatModel(partial(Linear, (20,), 1, bias=False, init="bernoulli"), dtype=torch.float64)
    federation = Federation(model, data, data, consecutive([8] * 16))
    errors = []
    settings = {"training": {"epochs": 5, "lr": 0.1}, "rounds": 24}
    hypers = {"ifca": {"restarts": 2, "trial": 4}, "one_shot": {}, "fedavg": {}, "local": {}}
    for name, hyper in hypers.items():
        outcome = run(name, federation, hyper, **settings).outcome()
        found = torch.stack([outcome.scores.models[place] for place in outcome.scores.model])
        errors.append(float((found - truths.repeat_interleave(8, 0)).norm(dim=1).mean()))
    assert errors == sorted(errors) and errors[0] < 0.25 < errors[1], errors


@pytest.mark.parametrize(
    ("weighting", "denominator", "expected"),
    [
        ("uniform", "cohort", (1.925, 6.25)),
        ("samples", "cohort", (1.95, 6.26)),
        ("samples", "all", (1.95, 6.26)),
        ("samples", "cluster", (1.875, 6.43333333)),
    ],
)
def test_gradients_count_as_often_as_their_weights(
    weighting: str, denominator: str, expected: tuple[float, float]
) -> None:
    """n = 10, 30, 50, 10 and gradients 2, 1, -4, -6 at (2, 6): 2 - 0.1 * 50 / 100 and 6 + 0.1 * 260 / 100."""
    options = {"averaging": "gradient", "weighting": weighting, "denominator": denominator}
    method = build_method("ifca", {"clusters": 2, "server_lr": 0.1} | options)
    simulation = prepare_run(method, quadratics([(1, c) for c in (0, 1, 10, 12)], (10, 30, 50, 10)), rounds=1)
    models = torch.tensor([[2.0], [6.0]], dtype=torch.float64)
    simulation.state.server = replace(simulation.state.server, models=models)
    assert follow(simulation).servers[0]["models"].flatten().tolist() == pytest.approx(expected)
