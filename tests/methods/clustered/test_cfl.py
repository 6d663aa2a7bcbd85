"""CFL: when and how a cluster is split, which part newcomers join, and FedAvg before the first split.

With the clients of `lines`, whose one step is given, dw_k is the same in every round, wherever they start.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from lines import ONE_STEP, lines
from support import Ran, images, quadratics, run, suited, with_cohorts

from fedflow.data import Dataset
from fedflow.errors import BadInput
from fedflow.methods import build_method
from fedflow.methods.clustered.cfl import bipartition
from fedflow.simulation.federation import Federation

ANGLES = [(2 * np.cos(a), 2 * np.sin(a)) for a in np.radians([0, 40, 80, 120, 175])]
OPPOSED = [(2, 0.2), (1.8, -0.1), (-1.9, 0.1), (-2.1, -0.2)]


def cfl(
    dw: Sequence[Sequence[float]],
    hyper: dict[str, Any],
    cohorts: list[list[int]] | None = None,
    sizes: Sequence[int] | None = None,
    **more: Any,
) -> Ran:
    """From (1, 1), clients with these updates w_k - w_t."""
    method = build_method("cfl", hyper)
    if cohorts:
        method, more = with_cohorts(method, cohorts), more | {"rounds": len(cohorts)}
    clients = lines([0.0] * len(dw), [tuple(-x for x in update) for update in dw], sizes)
    return run(method, clients, **{"rounds": 1, "training": ONE_STEP} | more)


def cosines(dw: np.ndarray) -> np.ndarray:
    unit = dw / np.linalg.norm(dw, axis=1, keepdims=True)
    return unit @ unit.T


@pytest.mark.parametrize(
    ("linkage", "second", "across", "bound"),
    [("single", [4], 0.5735764364, 0.4617486132), ("complete", [2, 3, 4], 0.7660444431, 0.3420201433)],
)
def test_bipartition_of_given_angles(linkage: str, second: list[int], across: float, bound: float) -> None:
    """Three pairs are 40 degrees apart: complete linkage merges the first of them first."""
    angles = np.array([0, 40, 80, 120, 175])
    part, similarity = bipartition(np.cos(np.radians(angles[:, None] - angles)), linkage)
    assert np.flatnonzero(part).tolist() == second
    assert similarity == pytest.approx(across, abs=1e-9)
    assert np.sqrt((1 - similarity) / 2) == pytest.approx(bound, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_single_linkage_finds_the_best_bipartition(seed: int) -> None:
    similarity = cosines(np.random.default_rng(seed).normal(size=(6, 3)))
    splits = (np.array(part) for part in itertools.product([False, True], repeat=6) if 0 < sum(part) < 6)
    best = min(similarity[part][:, ~part].max() for part in splits)
    assert bipartition(similarity, "single")[1] == best
    assert bipartition(similarity, "complete")[1] >= best


def test_updates_that_disagree_split_a_cluster(cohort: str) -> None:
    """Norms up to 2.11, of the mean 0.05; each part continues from the mean of its updates."""
    ran = cfl(OPPOSED, {}, cohort=cohort)
    assert ran.server("assignment") == [[1, 1, 2, 2]]
    assert ran.servers[0]["children"].tolist() == [1, 0, 0]
    assert ran.servers[0]["models"].tolist() == [
        [1, 1],
        pytest.approx([2.9, 1.05]),
        pytest.approx([-1, 0.95]),
    ]
    assert ran.outcome().scores.cluster.tolist() == [1, 1, 2, 2]
    assert {z: w.tolist() for z, w in ran.outcome().models.items()} == {
        1: pytest.approx([2.9, 1.05]),
        2: pytest.approx([-1, 0.95]),
    }


@pytest.mark.parametrize(
    ("hyper", "split"),
    [
        ({}, True),
        ({"eps1": 0.051}, True),
        ({"eps1": 0.049}, False),
        ({"eps1": 0}, False),
        ({"eps2": 2.10}, True),
        ({"eps2": 2.11}, False),
        ({"warm_up": 1}, False),
        ({"min_size": 4}, True),
        ({"min_size": 5}, False),
    ],
    ids=str,
)
def test_a_cluster_is_split_only_under_all_conditions(hyper: dict, split: bool, cohort: str) -> None:
    """Norm of the mean 0.05, largest norm 2.1095, four members."""
    ran = cfl(OPPOSED, hyper, cohort=cohort, rounds=2)
    assert (ran.server("assignment")[0] == [1, 1, 2, 2]) is split
    if not split:
        assert ran.server("assignment")[0] == [0] * 4
        assert ran.servers[0]["models"].tolist() == [pytest.approx([0.95, 1])]


@pytest.mark.parametrize(
    ("dw", "hyper", "assignment"),
    [
        ([(1, 0.1), (0.9, -0.1), (-1, 0.2), (-0.8, 0)], {}, [0, 0, 0, 0]),  # norms 0.0559, 1.0198
        ([(1, 0.1), (0.9, -0.1), (-1, 0.2), (-0.8, 0)], {"eps2": 1}, [1, 1, 2, 2]),
        ([(1, 0.1), (1, -0.1), (-1, 0.05), (-0.9, 0)], {"eps1": 0.028, "eps2": 1.004}, [1, 1, 2, 2]),
        ([(1, 0.1), (1, -0.1), (-1, 0.05), (-0.9, 0)], {"eps1": 0.0279, "eps2": 1.004}, [0, 0, 0, 0]),
        ([(1, 0.1), (1, -0.1), (-1, 0.05), (-0.9, 0)], {"eps1": 0.028, "eps2": 1.005}, [0, 0, 0, 0]),
        ([(1, 0.1), (1, -0.1), (-1, 0.05), (-0.9, 0)], {"eps2": 1, "gamma": 0.9971}, [1, 1, 2, 2]),
        ([(1, 0.1), (1, -0.1), (-1, 0.05), (-0.9, 0)], {"eps2": 1, "gamma": 0.9973}, [0, 0, 0, 0]),
        (ANGLES, {"eps1": 1.048, "gamma": 0.46}, [1, 1, 1, 1, 2]),
        (ANGLES, {"eps1": 1.048, "gamma": 0.47}, [0] * 5),
        ([(2, 0.1), *ANGLES[1:]], {"eps1": 1.1, "linkage": "complete"}, [1, 1, 2, 2, 2]),
        (ANGLES, {"eps1": 1.047}, [0] * 5),
    ],
)
def test_given_updates(dw: list, hyper: dict, assignment: list[int]) -> None:
    assert cfl(dw, hyper).server("assignment") == [assignment]


def test_parts_are_split_again() -> None:
    """Once 1 and 2 are separate from the others, they disagree with each other."""
    dw = [(3, 0.1), (3, -0.1), (-3, 2), (-3, 2.1), (-3, -2), (-3, -2.1)]
    ran = cfl(dw, {"eps1": 3.1, "min_size": 3}, rounds=2)
    assert ran.server("assignment") == [[1, 1, 2, 2, 2, 2], [1, 1, 3, 3, 4, 4]]
    assert ran.servers[1]["children"].tolist() == [1, 0, 3, 0, 0]
    assert [r.values["method/clusters"] for r in ran.rounds] == [2, 3]


def test_parts_train_on_their_own(cohort: str) -> None:
    ran = cfl(OPPOSED, {"min_size": 4}, rounds=3, cohort=cohort)
    assert ran.servers[-1]["models"].tolist() == [
        [1, 1],
        pytest.approx([1 + 3 * 1.9, 1.15]),
        pytest.approx([1 - 3 * 2, 0.85]),
    ]


@pytest.mark.parametrize(("weighting", "mean"), [("uniform", 1.9), ("samples", 1.95)])
def test_weights_within_a_cluster(weighting: str, mean: float) -> None:
    ran = cfl(OPPOSED, {"weighting": weighting, "eps1": 1.2}, sizes=(3, 1, 1, 1))
    assert ran.server("assignment") == [[1, 1, 2, 2]]
    assert float(ran.servers[0]["models"][1, 0]) == pytest.approx(1 + mean)


# Absent clients


def test_an_absent_client_joins_its_part_by_its_next_update(cohort: str) -> None:
    """It trains the model before the split, which is not averaged; then it belongs to its part."""
    dw = [*OPPOSED, (-1.7, 0.3)]
    ran = cfl(dw, {"min_size": 4}, cohorts=[[0, 1, 2, 3], [4], [2, 4]], cohort=cohort)
    assert ran.server("assignment") == [[1, 1, 2, 2, 0], [1, 1, 2, 2, 2], [1, 1, 2, 2, 2]]
    first, second, third = (server["models"].tolist() for server in ran.servers)
    assert first == second
    assert third == [*first[:2], pytest.approx([-1 - 1.8, 0.95 + 0.2])]


def test_a_client_that_never_took_part_is_served_by_its_gradients() -> None:
    """Down two levels; the gradient steps of clients 6 and 7 point in the directions of 1 and 4."""
    dw = [(3, 0.1), (3, -0.1), (-3, 2), (-3, 2.1), (-3, -2), (-3, -2.1), (1, 0), (-1, -0.4)]
    ran = cfl(dw, {"eps1": 3.1}, cohorts=[list(range(6))] * 2)
    assert ran.server("assignment")[-1] == [1, 1, 3, 3, 4, 4, 0, 0]
    assert ran.outcome().scores.cluster.tolist() == [1, 1, 3, 3, 4, 4, 1, 4]
    assert sorted(ran.outcome().models) == [1, 3, 4]


def test_last_updates_of_absent_clients_may_count(cohort: str) -> None:
    """All clients have taken part once when the cluster is split; the mean of three rounds by hand."""
    cohorts = [[0, 1], [2], [3]]
    ran = cfl(OPPOSED, {"absent": "stale"}, cohorts=cohorts, cohort=cohort)
    assert ran.server("assignment") == [[0] * 4, [0] * 4, [1, 1, 2, 2]]
    w = np.ones(2) + np.mean(OPPOSED[:2], 0) + np.mean(OPPOSED[:3], 0)
    assert ran.servers[1]["models"][0].tolist() == pytest.approx(w)
    assert ran.servers[2]["models"][2].tolist() == pytest.approx(w + np.mean(OPPOSED[2:], 0))
    omitted = cfl(OPPOSED, {}, cohorts=cohorts, cohort=cohort)
    assert omitted.server("assignment")[-1] == [0] * 4
    alone = np.ones(2) + np.mean(OPPOSED[:2], 0) + np.sum(OPPOSED[2:], 0)
    assert omitted.servers[-1]["models"][0].tolist() == pytest.approx(alone)


# Short runs


def test_a_warm_up_as_long_as_the_run_is_refused() -> None:
    message = r"^method.warm_up: 3 is not accepted; expected less than 3, the rounds of the run"
    with pytest.raises(BadInput, match=message):
        cfl(OPPOSED, {"warm_up": 3}, rounds=3)
    ran = cfl(OPPOSED, {"warm_up": 2}, rounds=3)
    assert ran.server("assignment") == [[0] * 4, [0] * 4, [1, 1, 2, 2]]


# Reductions


@pytest.mark.parametrize("hyper", [{"warm_up": 2}, {"eps1": 0}], ids=["warming up", "eps1 = 0"])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_before_the_first_split_it_is_fedavg(
    federation: Federation, hyper: dict, weighting: str, cohort: str
) -> None:
    """Except for the rounding of w + (w_k - w)."""
    half: dict[str, Any] = {"participation": 0.5, "training": {"batch_size": 8}, "cohort": cohort}
    ran, plain = (
        run(name, federation, {"weighting": weighting, "server_lr": 0.7} | more, **half)
        for name, more in (("cfl", hyper), ("fedavg", {}))
    )
    assert ran.servers[-1]["models"].shape[0] == 1
    torch.testing.assert_close(ran.servers[-1]["models"][0], plain.servers[-1]["model"], rtol=0, atol=1e-6)


def test_two_worlds_are_separated(cohort: str) -> None:
    """Clients towards 1 and -1: once FedAvg stands still between them, each part gets a model."""
    clients = quadratics(((1, 1), (1, 1.2), (1, 0.8), (1, -1), (1, -1.2), (1, -0.8)), (10,) * 6)
    hyper = {"eps1": 0.05, "eps2": 0.1, "warm_up": 3}
    ran = run("cfl", clients, hyper, rounds=60, cohort=cohort)
    found = ran.server("assignment")[-1]
    assert found[:3] == [1] * 3 and found[3:] == [2] * 3
    models = ran.server("models")[-1]
    assert models[1:] == [pytest.approx(1, abs=1e-3), pytest.approx(-1, abs=1e-3)]


def test_running_statistics_of_absent_clients_count_once(digits: Dataset) -> None:
    """As they are: as differences, which every round would add again, variances became negative."""
    federation = suited("fedbn", images(digits, sizes=(20, 21, 22, 23, 24, 25, 26, 27)))
    settings = {"participation": 0.125, "rounds": 4, "training": {"epochs": 10, "batch_size": 5, "lr": 0.01}}
    ran = run("cfl", federation, {"absent": "stale", "eps1": 0}, seed=1, **settings)
    variances = [where for name, where in federation.model.slices.items() if name.endswith("running_var")]
    assert variances
    for server in ran.servers:
        assert all(server["models"][0][where].min() > 0 for where in variances)
