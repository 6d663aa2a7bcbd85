"""SuPerFed on given numbers (superfed.md, 2.6), its reductions, and the choice of lambda."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import support
import torch
from support import Ran, Workers, by_hand, follow, images, prepare_run, quadratics, refused, run, with_cohorts
from torch import Tensor, nn

from fedflow.data import Dataset
from fedflow.local.fast.compiled import compiled_gradient
from fedflow.local.schedule import STEP, Extra
from fedflow.methods import build_method
from fedflow.methods.personal._personal import TENTHS
from fedflow.methods.personal.superfed import SuPerFed, mixture, orthogonal, products
from fedflow.models.flat import FlatModel
from fedflow.simulation.extensions.mixtures import FILE, Mixtures
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation

HALF: dict[str, Any] = {
    "training": {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.01},
    "participation": 0.5,
    "rounds": 4,
}
FIXED = {"lam": "fixed"}
MIXINGS = ("model", "layer")


def near(value: Any, tolerance: float = 1e-8) -> Any:
    return pytest.approx(value, rel=0, abs=tolerance)


class Regression(nn.Module):
    """F(w) = 1/2 (<w, x> - 2)^2 of a sample x."""

    def __init__(self, w: Sequence[float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.w - 2).square() / 2

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs < 1


class Chain(nn.Module):
    """A scalar per layer: the outputs are their product with x."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))[:, 0]

    losses, hits = Regression.losses, Regression.hits


def drawing(patch: pytest.MonkeyPatch, numbers: Sequence[float]) -> None:
    """From here on, every local step draws these numbers."""
    plain = Job.schedule

    def schedule(self: Job, *about: Any) -> Any:
        drawn = plain(self, *about)
        given = torch.tensor(numbers, dtype=torch.float64).expand(len(drawn), -1)
        return drawn.having({"draws": Extra(given, STEP)})

    patch.setattr(Job, "schedule", schedule)


def with_local(simulation: Simulation, *values: float) -> Simulation:
    """Client 0 has this local model."""
    simulation.state.store.put(0, {"local": torch.tensor(values, dtype=torch.float64)})
    return simulation


# Worked numbers


@pytest.mark.parametrize("mixing", MIXINGS)
def test_a_step(monkeypatch: pytest.MonkeyPatch, cohort: str, mixing: str) -> None:
    """w_f = (1, 2) has moved from w_g = (0.8, 1.5); LM = MM for one layer (oracles 8 and 4)."""
    drawing(monkeypatch, [0.25])
    federation = by_hand(partial(Regression, (0.8, 1.5)), ((1, 1),), (4,))
    moved = torch.tensor([1.0, 2.0], dtype=torch.float64)

    class Moved(SuPerFed):
        """Starts at (1, 2) instead of the received model."""

        def local(self, client: Any) -> Any:
            plain = client.initial_state
            client.initial_state = lambda w: plain(moved if w is client.received["model"] else w)
            return super().local(client)

    method = Moved(mixing=mixing, nu=2, start=0, **FIXED)
    ran = follow(
        with_local(
            prepare_run(
                method, federation, training={"epochs": 1}, rounds=1, keep_trained=True, cohort=cohort
            ),
            2,
            -0.5,
        )
    )
    assert ran.server("model")[0] == near([0.91884265, 1.96906618])
    assert ran.kept("local")[0][0] == near([1.97440960, -0.55548659])
    assert ran.values("train_loss") == near([0.1953125])
    w_f, w_l = (
        torch.tensor(w, dtype=torch.float64) for w in (ran.server("model")[0], ran.kept("local")[0][0])
    )
    assert ran.values("client/cosine/mean") == near(
        [float(nn.functional.cosine_similarity(w_f, w_l, 0).abs())]
    )
    assert ran.kept("trained")[0][0] == near(((w_f + w_l) / 2).tolist(), 1e-12)


def test_the_gradient_of_the_cosine() -> None:
    """Of the worked step; orthogonal to its vector, 0 where they are orthogonal or parallel (oracle 5)."""
    model = FlatModel(partial(Regression, (0, 0)), dtype=torch.float64)
    w_f, w_l = (torch.tensor(w, dtype=torch.float64) for w in ((1, 2), (2, -0.5)))
    s, a, b = products(model, w_f, w_l)
    assert float(s**2 / (a * b)) == near(0.0470588235)
    assert orthogonal(model, w_f, w_l).tolist() == near([0.16941176, -0.08470588])
    assert orthogonal(model, w_l, w_f).tolist() == near([0.04982699, 0.19930796])
    model = FlatModel(partial(Regression, [0.0] * 20), dtype=torch.float64)
    u, v = torch.randn(2, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    g = orthogonal(model, u, v)
    assert float(g @ u) == near(0, 1e-12) and float(g.norm()) > 1e-3
    s, a, b = products(model, u, v)
    assert 0 <= float(s**2 / (a * b)) <= 1
    for other in (v - (s / a) * u, 3 * u, 0 * u):
        assert float(orthogonal(model, u, other).norm()) == near(0, 1e-12)


def test_layers_have_their_own_lambda(monkeypatch: pytest.MonkeyPatch, cohort: str) -> None:
    """f = (1, 2), l = (3, -1): W = (1.5, -0.25) has output -0.375; with equal lambdas, 1.875 (oracle 9)."""
    found = []
    for numbers in ([0.25, 0.75], [0.25, 0.25]):
        drawing(monkeypatch, numbers)
        federation = by_hand(Chain, ((1,),), (4,))
        simulation = prepare_run(
            "superfed",
            federation,
            {"mixing": "layer", "start": 0, **FIXED},
            training={"epochs": 1},
            rounds=1,
            cohort=cohort,
        )
        simulation.state.server = replace(
            simulation.state.server, model=torch.tensor([1.0, 2.0], dtype=torch.float64)
        )
        found += follow(with_local(simulation, 3, -1)).values("train_loss")
    assert found == near([-0.375, 1.875])


def test_a_linear_model_averages_its_outputs(digits: Dataset) -> None:
    """A network does not (oracle 10)."""
    for network, equal in (("logistic", True), ("mlp", False)):
        model = images(digits, network=network, dtype=torch.float64).model
        x, one, other = digits.test.inputs(torch.arange(9)).double(), model.init(0), model.init(1)
        mixed = model.outputs(mixture(0.3, one, other), x)
        assert torch.allclose(mixed, 0.7 * model.outputs(one, x) + 0.3 * model.outputs(other, x)) is equal


@pytest.mark.parametrize("k", [1, 3])
def test_the_other_proximal_term(k: int) -> None:
    """The sum of norms over tensors: steps of length mu in each; 0 at 0 (errata B8)."""
    method = build_method("superfed", {"prox": "official"})
    model = FlatModel(lambda: nn.Sequential(nn.Linear(3, k), nn.BatchNorm1d(k)), dtype=torch.float64)
    assert not method.proximal(model, torch.zeros(model.size, dtype=torch.float64)).any()
    moved = torch.arange(1.0, model.size + 1, dtype=torch.float64)
    parts = method.proximal(model, moved).split(model.sizes)
    assert [float(part.norm()) for part in parts] == near([1, 1, 1, 1, 0, 0])


# Reductions


def test_before_mixing_starts_it_is_fedprox(federation: Federation, cohort: str) -> None:
    """With mu' = 2 mu; without mu, FedAvg; first local models stay as they are (oracles 1 and 3)."""
    first = None
    for mu, name, hyper in ((0, "fedavg", {}), (0.01, "fedprox", {"mu": 0.02})):
        ran = run("superfed", federation, {"mu": mu, "start": 0.99}, cohort=cohort, **HALF | {"rounds": 5})
        plain = run(name, federation, hyper, cohort=cohort, **HALF | {"rounds": 5})
        assert [s["model"].equal(p["model"]) for s, p in zip(ran.servers, plain.servers)] == [True] * 4 + [
            False
        ]
        first = first or ran.clients[0]["local"]
        assert all(map(torch.equal, ran.clients[3]["local"], first))
        assert len({tuple(w.tolist()) for w in first}) == len(first)
        assert not any(torch.equal(w, ran.servers[0]["model"]) for w in first)


@pytest.mark.parametrize("mixing", MIXINGS)
def test_with_lambda_0_it_is_fedavg(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, cohort: str, mixing: str
) -> None:
    drawing(monkeypatch, [0.0] * (1 if mixing == "model" else federation.model.layers))
    for mu, name, hyper in ((0, "fedavg", {}), (0.01, "fedprox", {"mu": 0.02})):
        ours = {"mu": mu, "nu": 0, "start": 0, "mixing": mixing}
        ran = run("superfed", federation, ours, cohort=cohort, **HALF)
        assert torch.equal(
            ran.servers[-1]["model"], run(name, federation, hyper, cohort=cohort, **HALF).servers[-1]["model"]
        )


def test_with_lambda_1_the_global_model_stays(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, cohort: str
) -> None:
    """And local models train alone (oracle 2)."""
    drawing(monkeypatch, [1.0])
    settings = HALF | {"training": HALF["training"] | {"weight_decay": 0}}
    ran = run("superfed", federation, {"mu": 0, "nu": 0, "start": 0}, cohort=cohort, **settings)
    assert torch.equal(ran.servers[-1]["model"], prepare_run("superfed", federation).state.server.model)
    local = prepare_run("local", federation, cohort=cohort, **settings)
    for k, w in enumerate(prepare_run("superfed", federation).state.store.get(k)["local"] for k in range(8)):
        local.state.store.put(k, {"model": w})
    assert all(map(torch.equal, ran.clients[-1]["local"], follow(local).clients[-1]["model"]))


def test_equal_lambdas_are_one(federation: Federation, monkeypatch: pytest.MonkeyPatch, cohort: str) -> None:
    """LM = MM (oracle 4)."""
    runs = []
    for mixing, count in (("model", 1), ("layer", federation.model.layers)):
        drawing(monkeypatch, [0.3] * count)
        runs.append(
            run("superfed", federation, {"mixing": mixing, "nu": 1, "start": 0}, cohort=cohort, **HALF)
        )
    assert torch.equal(runs[0].servers[-1]["model"], runs[1].servers[-1]["model"])
    assert all(map(torch.equal, runs[0].clients[-1]["local"], runs[1].clients[-1]["local"]))


# Rounds, clients and messages


def test_only_sampled_clients_change_and_send_one_model(federation: Federation, cohort: str) -> None:
    """Oracles 6 and 7: P up, nothing of w_l; a cohort of one decides the model."""
    ran = run("superfed", federation, {"start": 0}, cohort=cohort, **HALF | {"participation": 0.125})
    before, size = prepare_run("superfed", federation).state.store, 4 * federation.model.size
    previous = [before.get(k)["local"] for k in range(8)]
    for report, kept in zip(ran.rounds, (kept["local"] for kept in ran.clients)):
        changed = [k for k in range(8) if not torch.equal(kept[k], previous[k])]
        assert changed == report.cohort and len(changed) == 1
        previous = kept
    assert ran.values("bytes_up") == ran.values("bytes_down") == [size * t for t in range(1, 5)]


def test_identical_uploads_are_the_next_model(digits: Dataset) -> None:
    """With the weights of 1 to 1 and with those of 1 to 0."""
    clients = images(digits, (16, 16))
    twins = replace(clients.partition, indices=np.tile(clients.partition.train(0), 2))
    both, one = (
        run("superfed", replace(clients, partition=partition), {"start": 0.9}, rounds=2).servers[0]["model"]
        for partition in (twins, replace(twins, newcomers=1))
    )
    torch.testing.assert_close(both, one, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("start", "rounds", "before"), [(0.29, 100, 29), (0.57, 100, 57), (0, 5, 0), (0.4, 5, 2), (0.999, 10, 9)]
)
def test_mixing_starts_after_this_many_rounds(start: float, rounds: int, before: int) -> None:
    """0.29 * 100 is 28.999... in floating point (errata B10)."""
    assert build_method("superfed", {"start": start}).rounds_before(rounds) == before


@pytest.mark.parametrize(("mixing", "share", "rounds"), [("model", "0.4", 2), ("layer", "0.6", 1)])
def test_a_run_too_short_for_the_default_start_says_so(mixing: str, share: str, rounds: int) -> None:
    method = build_method("superfed", {"mixing": mixing, **FIXED})
    what = rf"^superfed: mixing starts in round 1, as {share} of {rounds} rounds? is less than one$"
    with pytest.warns(UserWarning, match=what):
        prepare_run(method, quadratics(), rounds=rounds)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare_run(method, quadratics(), rounds=3)
        prepare_run("superfed", quadratics(), {"start": 0, **FIXED}, rounds=1)


def test_a_run_killed_on_either_side_of_the_switch_resumes(federation: Federation, tmp_path: Any) -> None:
    settings = HALF | {"rounds": 4, "checkpoint_every": 1}
    hyper = {"start": 0.5, "mixing": "layer", "aggregation": "official"}
    straight = run("superfed", federation, hyper, executor=Workers(2), **settings)
    for stop in (2, 3):
        rounds = prepare_run(
            "superfed", federation, hyper, checkpoints=tmp_path / str(stop), **settings
        ).rounds()
        for _ in range(stop):
            next(rounds)
        again = run("superfed", federation, hyper, checkpoints=tmp_path / str(stop), **settings)
        assert sum(report.replayed for report in again.rounds) == stop
        assert torch.equal(again.servers[-1]["model"], straight.servers[-1]["model"])
        assert all(map(torch.equal, again.clients[-1]["local"], straight.clients[-1]["local"]))
        assert again.outcome().metrics == straight.outcome().metrics


def test_official_aggregation_resets_biases(federation: Federation) -> None:
    ran = run("superfed", federation, {"aggregation": "official", "start": 0}, **HALF)
    plain = run("superfed", federation, {"start": 0}, **HALF)
    model, first = federation.model, prepare_run("superfed", federation).state.server.model
    for name, place in model.slices.items():
        one, other = (ran.servers[0]["model"][place], plain.servers[0]["model"][place])
        assert torch.equal(one, other if "weight" in name else first[place])
    with refused("^parameter pattern: '\\*weight\\*' "):
        run("superfed", support.products(), {"aggregation": "official", **FIXED})


@pytest.mark.slow  # a compilation
@pytest.mark.parametrize("mixing", MIXINGS)
def test_compiled_steps_are_plain_ones_up_to_rounding(
    federation: Federation, mixing: str, tmp_path: Any
) -> None:
    """At W, between two models, in both phases."""
    settings = {"training": {"epochs": 2, "batch_size": 4, "lr": 0.1}, "rounds": 3}
    training = prepare_run("superfed", federation, **settings).job.training
    if compiled_gradient(federation.model, federation.train, training, str(tmp_path)) is None:
        pytest.skip("this machine has no compiler")
    hyper = {"start": 0.5, "mixing": mixing}
    plain, compiled = (prepare_run("superfed", federation, hyper, **settings) for _ in range(2))
    compiled.job = replace(compiled.job, compiled=str(tmp_path))
    one, other = follow(plain).state(), follow(compiled).state()
    assert not torch.equal(one["server/model"], other["server/model"])
    torch.testing.assert_close(other, one, rtol=0, atol=1e-5)


# The lambda that is served, and the sweep


def at_ends(ran: Ran, lam: float) -> list[Tensor]:
    """W(lambda) of every client at the end."""
    return [mixture(lam, ran.servers[-1]["model"], w) for w in ran.clients[-1]["local"]]


def everyone(**hyper: Any) -> dict[str, Any]:
    return {"hyper": {"start": 0, **hyper}, "training": HALF["training"], "rounds": 2}


def test_the_global_model_is_served_until_local_ones_are_trained(federation: Federation, cohort: str) -> None:
    """Also to clients that took part before mixing starts only (2, 3), and to those that never did."""
    method = build_method("superfed", {"start": 0.5, **FIXED})
    cohorts = [[0, 2], [1, 3], [0, 4], [1, 5]]
    simulation = prepare_run(with_cohorts(method, cohorts), federation, cohort=cohort, **HALF)
    mixed = set[int]()
    for report in simulation.rounds():
        mixed |= set(report.cohort) if report.round > 2 else set()
        scores = simulation.scoring.scores("", report.round, range(8), models=True)
        w, store = simulation.state.server.model, simulation.state.store
        for k, model in simulation.scoring.served_models(scores).items():
            expected = mixture(0.5, w, store.get(k)["local"]) if k in mixed else w
            assert torch.equal(model, expected)
    assert mixed == {0, 1, 4, 5}


def test_lambda_is_chosen_by_loss(federation: Federation) -> None:
    """On held-out samples, or, as an oracle, on the test samples; fixed, it is the same for all."""
    by = {lam: run("superfed", federation, **everyone(lam=lam)) for lam in ("validated", "oracle")}
    outcomes = {lam: ran.outcome() for lam, ran in by.items()}
    model, table = federation.model, by["oracle"].simulation.extension(Mixtures).table()
    candidates = [at_ends(by["oracle"], lam) for lam in TENTHS]
    assert torch.equal(by["oracle"].servers[-1]["model"], by["validated"].servers[-1]["model"])
    for k in range(8):
        own = table[table["client"] == k]
        best = int(own["loss"].to_numpy().argmin())
        assert torch.equal(outcomes["oracle"].models[k], candidates[best][k])
        assert np.flatnonzero(own["served"]).tolist() == [best]
        assert outcomes["oracle"].scores.local_loss[k] == near(own["loss"].min(), 1e-12)
        rows = torch.as_tensor(federation.partition.selection(k))
        x, y = federation.train.inputs(rows), federation.train.y[rows]
        losses = [float(model.loss(model.outputs(each[k], x), y)) for each in candidates]
        assert torch.equal(outcomes["validated"].models[k], candidates[int(np.argmin(losses))][k])
    assert outcomes["oracle"].metrics["clusters"] == 1
    losses_of = {lam: outcome.scores.local_loss for lam, outcome in outcomes.items()}
    assert (losses_of["oracle"] <= losses_of["validated"] + 1e-9).all()
    fixed = run("superfed", federation, **everyone(lam="fixed"))
    assert all(map(torch.equal, fixed.outcome().models.values(), at_ends(fixed, 0.5)))
    whole = run("superfed", federation, **everyone(served="global"))
    assert torch.equal(whole.outcome().models[0], whole.servers[-1]["model"])


def test_the_sweep_scores_every_mixture(federation: Federation) -> None:
    """Of each client, as it would be scored with that mixture; a served global model has one too."""
    ran = run("superfed", federation, executor=Workers(2), keep_predictions=True, **everyone(served="global"))
    table = ran.simulation.extension(Mixtures).table()
    assert list(table["client"].unique()) == list(range(8)) and len(table) == 88
    fixed = run("superfed", federation, **everyone(lam="fixed")).outcome().scores
    own = table[np.isclose(table["value"], 0.5)]
    assert own["accuracy"].tolist() == fixed.local_accuracy.tolist()
    assert own["loss"].tolist() == near(fixed.local_loss.tolist(), 1e-6)
    assert own["samples"].tolist() == fixed.test_samples.tolist()
    assert own["ece"].between(0, 1).all() and (own["mce"] >= own["ece"]).all()
    alpha = run("apfl", federation, {"alpha": 0.3, "adaptive": False}, training=HALF["training"], rounds=2)
    table = alpha.simulation.extension(Mixtures).table()
    own = table[np.isclose(table["value"], 0.3)]
    assert own["accuracy"].tolist() == alpha.outcome().scores.local_accuracy.tolist()
    off = run("apfl", federation, training=HALF["training"], rounds=2, sweep=False)
    assert FILE not in off.outcome().files and FILE not in run("fedavg", federation).outcome().files


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        ({"start": 1}, r"^method.start: 1(.0)? .* a number >= 0 and < 1"),
        ({"start": 0.3}, r"^method.start: 0.3 .* 0, or at least 0.333333: one of 3 rounds$"),
        ({"lam": "oracle", "served": "global"}, r"^method.lam: 'oracle' .* validated, .* served: global$"),
        ({}, r"^partition.selection: 0 .* a share > 0, .*; or set method.lam to fixed or oracle$"),
    ],
)
def test_bad_settings_are_refused(hyper: dict, message: str) -> None:
    with refused(message):
        prepare_run("superfed", quadratics(), hyper)
