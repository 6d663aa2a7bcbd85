"""FedHeN, NoSide and Decouple: worked means, reductions to FedAvg, failed clients, traffic, newcomers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import a_round, by_hand, images, prepare_run, refused, run, same, with_cohorts, with_newcomers
from torch import Tensor, nn

from fedflow.data import Dataset, Examples
from fedflow.methods import build_method
from fedflow.methods.subnetworks.fedhen import FedHeN
from fedflow.models.exits import TwoExits
from fedflow.simulation.federation import Federation
from fedflow.simulation.gathered import Gathered
from fedflow.simulation.job import ClientResult, Trained
from fedflow.simulation.updates.path import UpdatePath

NAMES = ("fedhen", "noside", "decouple")
SGD = {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5}
COHORTS = [[0, 2, 5, 6], [1, 6, 7], [0, 3, 4, 7]]  # of clients 0-3 simple, 4-7 complex


def exits(digits: Dataset, which: str = "last") -> Federation:
    return images(digits, network="cnn_exit", filters=(4, 4, 6), exits=which)


class Scalar(nn.Module):
    """x -> v x."""

    def __init__(self) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.v * x


class Scalars(TwoExits):
    """M has two entries (trunk, first head), the rest of the network one (last head)."""

    def __init__(self, exits: str = "last") -> None:
        super().__init__(exits, Scalar(), Scalar(), nn.Identity(), Scalar())  # type: ignore[arg-type]


def scalars() -> Federation:
    """Clients 0 and 1 are simple, 2 and 3 are complex."""
    return by_hand(Scalars, [[1.0]] * 4, [1] * 4)


def aggregated(
    name: str, sent: Mapping[int, Sequence[float]], lost: Sequence[int] = (), **hyper: Any
) -> dict[str, list[float]]:
    """The server after a round from (7, 8 | 9), by the models that clients sent."""
    method, now = build_method(name, hyper), a_round(scalars())
    start = torch.tensor([7.0, 8.0, 9.0], dtype=torch.float64)
    server = method.setup(now.model, lambda i: start)
    results = [
        ClientResult(k, int(k > 1), 1.0, {}, {}, {}, {"model": torch.tensor(w).double()}, 0, 0.0)
        for k, w in sent.items()
    ]
    cohort = Gathered([Trained(results, [(k, "NaN") for k in lost])], now, UpdatePath(method))
    after, _ = method.aggregate(now, server, cohort)
    return {field: w.tolist() for field, w in after.tensors().items()}


ROUND = {0: (1, 2), 2: (3, 4, 10), 3: (5, 6, 20)}
DECOUPLED = {0: (1, 2), 2: (3, 10), 3: (5, 20)}  # complex clients have no first head


def test_the_worked_means() -> None:
    for name in ("fedhen", "noside"):
        assert aggregated(name, ROUND) == {"model": [3, 4, 15]}
    assert aggregated("noside", ROUND, head_average="simple_only") == {"model": [3, 2, 15]}
    assert aggregated("decouple", DECOUPLED) == {"simple": [1, 2], "complex": [4, 15]}


def test_entries_that_nobody_holds_stay() -> None:
    assert aggregated("fedhen", {0: (1, 2)}) == {"model": [1, 2, 9]}
    assert aggregated("fedhen", {2: (3, 4, 10)}) == {"model": [3, 4, 10]}
    assert aggregated("noside", {2: (3, 4, 10)}, head_average="simple_only") == {"model": [3, 8, 10]}
    assert aggregated("decouple", {0: (1, 2)}) == {"simple": [1, 2], "complex": [7, 9]}
    assert aggregated("decouple", {2: (3, 10)}) == {"simple": [7, 8], "complex": [3, 10]}


def test_failed_clients_are_left_out_or_count_with_what_they_received() -> None:
    whole = {0: (1, 2), 2: (4, 5, 11)}
    assert aggregated("fedhen", whole, [1, 3]) == {"model": [2.5, 3.5, 11]}
    assert aggregated("fedhen", whole, [3], failed="replace") == {"model": [4, 5, 10]}
    assert aggregated("fedhen", {0: (1, 2)}, [1, 3], failed="replace") == {"model": [5, 6, 9]}
    both = {"simple": [4, 5], "complex": [3, 10]}
    assert aggregated("decouple", {0: (1, 2), 2: (3, 10)}, [1], failed="replace") == both


def run_levels(name: str, federation: Federation, hyper: Mapping[str, Any], **settings: Any) -> Any:
    return run(with_cohorts(build_method(name, hyper), COHORTS), federation, **{"training": SGD} | settings)


@pytest.mark.parametrize(
    ("name", "simple", "which"),
    [
        ("fedhen", 1, "first"),
        ("noside", 1, "first"),
        ("fedhen", 0, "both"),
        ("noside", 0, "last"),
        ("decouple", 1, "first"),
        ("decouple", 0, "none"),
    ],
)
@pytest.mark.parametrize("cohort", ["vmap", pytest.param("loop", marks=pytest.mark.full)], indirect=True)
def test_one_level_alone_is_uniform_fedavg(
    digits: Dataset, cohort: str, name: str, simple: int, which: str
) -> None:
    """On the simple network, or on the complex one: with the sum of both losses for FedHeN."""
    leveled = run_levels(name, exits(digits), {"simple": simple}, cohort=cohort)
    alone = exits(digits, which)
    plain = run_levels("fedavg", alone, {"weighting": "uniform"}, cohort=cohort)
    for ours, theirs in zip(leveled.servers, plain.servers, strict=True):
        if name == "decouple":
            w = ours["simple" if simple else "complex"]
        else:
            w = ours["model"][alone.model.within(leveled.simulation.federation.model)]
        assert torch.equal(w, theirs["model"])


def test_decouple_is_two_runs_of_fedavg(digits: Dataset, cohort: str) -> None:
    both = run_levels("decouple", exits(digits), {}, cohort=cohort)
    for level, which, clients in (("simple", "first", range(4)), ("complex", "none", range(4, 8))):
        own = with_cohorts(
            build_method("fedavg", {"weighting": "uniform"}),
            [[k for k in chosen if k in clients] for chosen in COHORTS],
        )
        alone = run(own, exits(digits, which), cohort=cohort, training=SGD)
        assert all(
            torch.equal(a[level], b["model"]) for a, b in zip(both.servers, alone.servers, strict=True)
        )


def test_fedhen_without_the_side_objective_is_noside(digits: Dataset, cohort: str) -> None:
    """In every bit; without weight decay, the first exit of complex clients does not move."""
    last = type("Last", (FedHeN,), {"complex_exits": "last"})
    settings: dict[str, Any] = {"training": SGD, "cohort": cohort}
    ours = run(with_cohorts(last(), COHORTS), exits(digits), **settings)
    assert same(ours.servers[-1], run_levels("noside", exits(digits), {}, **settings).servers[-1])


def test_the_head_that_noside_does_not_train_keeps_its_values(digits: Dataset, cohort: str) -> None:
    """Weight decay shrinks it in FedAvg, but not here."""
    federation, decay = exits(digits), {"training": SGD | {"weight_decay": 0.1}, "cohort": cohort}
    head = federation.model.part("exit.*")
    start = head.of(prepare_run("noside", federation).state.server.model)
    kept = run_levels("noside", federation, {"simple": 0}, **decay, keep_trained=True)
    assert torch.equal(head.of(kept.servers[-1]["model"]), start)
    assert torch.equal(head.of(kept.clients[-1]["trained"][5]), start)
    plain = run_levels("fedavg", federation, {"weighting": "uniform"}, **decay)
    assert head.of(plain.servers[-1]["model"]).norm() < start.norm()
    rest = [head.outside(ran.servers[-1]["model"]) for ran in (kept, plain)]
    assert torch.equal(*rest)
    hyper = {"head_average": "simple_only"}
    literal, simple_only = (
        run_levels("noside", federation, h, **decay, rounds=1).servers[-1]["model"] for h in ({}, hyper)
    )
    # Two of the four clients of the first round are simple.
    torch.testing.assert_close(head.of(literal) - start, (head.of(simple_only) - start) / 2)


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_of_the_networks(digits: Dataset, name: str) -> None:
    ran = run_levels(name, exits(digits), {}, evaluate_every=1, reports=["active", "all"], keep_trained=True)
    complex = {"fedhen": "last", "noside": "last", "decouple": "none"}[name]
    sizes = {"simple": exits(digits, "first").model.size, "complex": exits(digits, complex).model.size}
    counts = {"simple": (2, 3, 5), "complex": (2, 4, 6)}
    for level, sums in counts.items():
        for way in ("down", "up"):
            assert ran.values(f"level/bytes_{way}/{level}") == [4 * n * sizes[level] for n in sums]
    total = [4 * (s * sizes["simple"] + c * sizes["complex"]) for s, c in zip(*counts.values())]
    assert ran.values("bytes_down") == ran.values("bytes_up") == total
    for level in counts:
        for kind in ("active", "all"):
            assert all(0 <= value <= 1 for value in ran.values(f"level/{kind}_accuracy/{level}"))
    assert [len(w) for w in ran.clients[-1]["trained"]] == [sizes["simple"]] * 4 + [sizes["complex"]] * 4


@pytest.mark.filterwarnings("ignore:.*the curriculum of")
@pytest.mark.parametrize("name", NAMES)
def test_a_run_with_vectors_of_two_lengths_resumes(digits: Dataset, name: str, tmp_path: Any) -> None:
    settings: dict[str, Any] = {
        "training": SGD | {"clip_norm": 10, "curriculum": {"score": "both"}},
        "rounds": 4,
        "participation": 0.5,
        "keep_trained": True,
        "reports": ["active", "all"],
        "evaluate_every": 1,
    }
    straight = run(name, exits(digits), **settings)
    about = settings | {"checkpoints": tmp_path, "checkpoint_every": 1}
    rounds = prepare_run(name, exits(digits), **about).rounds()
    next(rounds), next(rounds)
    again = run(name, exits(digits), **about)
    assert [r.replayed for r in again.rounds] == [True, True, False, False]
    assert same(again.servers[-1], straight.servers[-1])
    assert all(map(torch.equal, again.clients[-1]["trained"], straight.clients[-1]["trained"]))
    assert [r.values for r in again.rounds] == [r.values for r in straight.rounds]


def test_levels_of_clients_and_newcomers() -> None:
    """The first ones are simple; newcomers are dealt in turns, in the same shares."""
    for simple, count in ((0, 0), (0.3, 30), (0.5, 50), (1, 100)):
        method = build_method("fedhen", {"simple": simple})
        levels = [method.level(k, 100) for k in range(100 + 64)]
        assert levels[:100] == ["simple"] * count + ["complex"] * (100 - count)
        assert levels[100:].count("simple") == pytest.approx(64 * simple, abs=1)
    assert levels.count("complex") == 0
    halves = [build_method("fedhen").level(k, 100) for k in range(100, 104)]
    assert halves == ["simple", "complex"] * 2


@pytest.mark.parametrize("name", NAMES)
def test_newcomers_are_served_the_network_of_their_level(digits: Dataset, name: str) -> None:
    federation = with_newcomers(exits(digits), 2)
    ran = run(name, federation, training=SGD, rounds=2)
    scores = ran.outcome().newcomers
    assert scores is not None and scores.local_accuracy.shape == (2,)
    # Of six clients, three are simple; then a simple and a complex newcomer.
    assert [ran.simulation.level(k) for k in range(8)] == ["simple"] * 3 + ["complex"] * 3 + [
        "simple",
        "complex",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_failed_client_of_a_run_is_left_out_or_replaced(digits: Dataset, name: str) -> None:
    federation = exits(digits)
    x = federation.train.x.clone()
    x[torch.as_tensor(federation.partition.train(6))] = torch.nan
    spoiled = replace(federation, train=Examples(x, federation.train.y))
    found = {
        hyper: run_levels(name, spoiled, {"failed": hyper}, rounds=1).servers[-1]
        for hyper in ("exclude", "replace")
    }
    method = with_cohorts(build_method(name), [[0, 2, 5]])
    assert same(found["exclude"], run(method, federation, training=SGD, rounds=1).servers[-1])
    start = prepare_run(name, federation).state.server.tensors()
    for field, w in found["replace"].items():
        moved, all_of_it = w - start[field], found["exclude"][field] - start[field]
        if name == "decouple":  # one of two complex clients failed
            shares = torch.full_like(w, {"simple": 1.0, "complex": 0.5}[field])
        else:  # of the cohort of four, two hold every entry
            shares = torch.full_like(w, 0.5)
            shares[exits(digits, "first").model.within(federation.model)] = 0.75
        torch.testing.assert_close(moved, shares * all_of_it, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        ({"simple": 1.5}, "method.simple: 1.5 .*>= 0 and <= 1"),
        ({"simple": -0.1}, "method.simple"),
        ({"failed": "ignore"}, "method.failed"),
    ],
)
def test_bad_hyper_parameters_are_refused(hyper: dict[str, Any], message: str) -> None:
    with refused(message):
        build_method("fedhen", hyper)


@pytest.mark.parametrize("name", [*NAMES, "heterofl"])
def test_networks_that_do_not_fit_are_refused(digits: Dataset, name: str) -> None:
    option = "width and the option exits" if name == "heterofl" else "exits"
    with refused(f"model.name: mlp .* a network with the option {option}, which {name} changes"):
        run(name, images(digits))
    if name != "heterofl":
        for which in ("first", "none"):
            with refused("model.name: cnn_exit .*networks that nest"):
                run(name, exits(digits, which))
