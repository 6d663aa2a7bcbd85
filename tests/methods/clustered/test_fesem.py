"""FeSEM: assignments and centers by hand, Lloyd's algorithm, its first round, and FedAvg with one center.

With curves (1, b), a learning rate of 1 and one step, every client sends W_k = b_k wherever it starts.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from support import Ran, a_round, follow, images, prepare_run, products, quadratics, run, with_cohorts
from torch import Tensor

from fedflow.data import Dataset
from fedflow.errors import BadInput
from fedflow.methods import build_method
from fedflow.methods.clustered.fesem import FeSEM, State
from fedflow.methods.method import Round
from fedflow.seeding import torch_seed
from fedflow.simulation.federation import Federation
from fedflow.simulation.gathered import Gathered
from fedflow.simulation.job import ClientResult, Trained
from fedflow.simulation.updates.path import UpdatePath

JUMP = {"epochs": 1, "lr": 1}


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def points(values: Sequence[float]) -> Federation:
    """Clients that send these."""
    return quadratics(tuple((1, b) for b in values), (1,) * len(values), start=0)


def fesem(
    values: Sequence[float],
    centers: Sequence[float],
    cohort: str = "loop",
    rounds: int = 2,
    assignment: Tensor | None = None,
    **hyper: Any,
) -> Ran:
    """From given centers, to which the clients are assigned, by default in turn."""
    method = build_method("fesem", {"centers": len(centers)} | hyper)
    simulation = prepare_run(method, points(values), rounds=rounds, training=JUMP, cohort=cohort)
    turns = torch.arange(len(values)) % len(centers)
    simulation.state.server = State(numbers(*centers, 0), turns if assignment is None else assignment)
    return follow(simulation)


def answers(w: Tensor, ids: Sequence[int], sizes: Sequence[int]) -> tuple[Round, Gathered]:
    """A later round in which clients ``ids``, of those with ``sizes`` [N], send models ``w`` [m, 2]."""
    now = replace(a_round(products(), 4), sizes=np.array(sizes))
    sent = [ClientResult(k, 0, 1.0, {}, {}, {}, {"model": row}, 0, 0.0) for k, row in zip(ids, w)]
    return now, Gathered([Trained(sent, [])], now, UpdatePath(build_method("fesem")))


def test_assignments_and_centers(cohort: str) -> None:
    """Stable from the first round on, with the objective 0.625."""
    ran = fesem([0, 1, 4, 6], [1, 3], cohort)
    for assignment, models in zip(ran.server("assignment"), ran.server("models")):
        assert assignment == [0, 0, 1, 1]
        assert models == [0.5, 5, 2.75]
    w, centers = numbers(0, 1, 4, 6), numbers(0.5, 5)
    distances = FeSEM.parse({}).distances(w, centers, points([0]).model)
    assert float(distances.amin(1).mean()) == 0.625
    assert ran.outcome().scores.cluster.tolist() == [0, 0, 1, 1]
    assert {j: float(w) for j, w in ran.outcome().models.items()} == {0: 0.5, 1: 5}


def test_squared_distances_of_models() -> None:
    """In the plane: of the models (0, 0), (1, 0), (4, 4) and (5, 5) to the centers (0, 1) and (3, 3)."""
    w = torch.tensor([[0, 0], [1, 0], [4, 4], [5, 5]])
    distances = FeSEM.parse({}).distances(w, torch.tensor([[0, 1], [3, 3]]), products().model)
    assert distances.tolist() == [[1, 18], [2, 13], [25, 2], [41, 8]]


def test_rounds_are_those_of_lloyd(cohort: str) -> None:
    """Scikit-learn's k-means from the same centers ends where FeSEM does."""
    values, centers = list(np.random.default_rng(0).normal(size=30) * 3), [-1.0, 0.2, 0.1]
    ran = fesem(values, centers, cohort, rounds=20)
    lloyd = KMeans(3, init=np.array(centers)[:, None], n_init=1).fit(np.array(values)[:, None])
    assert ran.server("models")[-1][:3] == pytest.approx(lloyd.cluster_centers_[:, 0].tolist(), abs=1e-9)
    w = numbers(*values)
    objectives = [float(torch.cdist(w, s["models"][:3]).square().amin(1).mean()) for s in ran.servers]
    assert all(later <= earlier for earlier, later in pairwise(objectives))
    assert objectives[-1] == pytest.approx(lloyd.inertia_ / 30)


def test_the_first_centers_are_far_apart(cohort: str) -> None:
    """The farthest from the mean 2.75 is 6, the farthest from that 0; one assignment makes 0, 1 | 4, 6."""
    ran = run("fesem", points([0, 1, 4, 6]), rounds=1, training=JUMP, cohort=cohort)
    assert ran.server("models") == [[5, 0.5, 2.75]]
    assert ran.server("assignment") == [[1, 1, 0, 0]]


@pytest.mark.parametrize(("iterations", "centers"), [(1, [12, 4]), (2, [11, 8 / 3]), (5, [10.2, 0.5])])
def test_the_first_round_has_several_iterations(
    iterations: int, centers: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """18, 9, 9, 8, 7 | 1, 0 in the end; rounds of one iteration end the same if updates are the same."""
    values = [7, 18, 1, 9, 9, 0, 8]
    monkeypatch.setattr(FeSEM, "first_iterations", iterations)
    one = run("fesem", points(values), rounds=1, training=JUMP)
    monkeypatch.setattr(FeSEM, "first_iterations", 1)
    more = run("fesem", points(values), rounds=iterations, training=JUMP)
    assert one.server("models")[-1][:2] == pytest.approx(centers)
    assert one.server("models")[-1] == pytest.approx(more.server("models")[-1])


def test_a_center_without_clients_goes_to_the_farthest_model() -> None:
    """Three clients share both centers' places: 0.9 is far from 0 and 0.1, and gets the empty one."""
    ended = {}
    for empty in ("farthest", "keep"):
        ran = fesem(
            [0, 0.1, 0.9], [0, 50], rounds=1, assignment=torch.zeros(3, dtype=torch.int64), empty=empty
        )
        ended[empty] = ran.server("models")[0][:2]
        assert ran.rounds[0].values["method/empty_clusters"] == (empty == "keep")
    assert ended["farthest"] == pytest.approx([0.05, 0.9])
    assert ended["keep"] == pytest.approx([1 / 3, 50])


def test_centers_beyond_the_cohort_size_are_filled_later() -> None:
    method = with_cohorts(build_method("fesem"), [[0], [1, 2]])
    ran = run(method, points([0, 1, 9]), rounds=2, training=JUMP)
    assert ran.server("assignment") == [[0, 2, 2], [0, 0, 1]]
    assert ran.server("models")[-1] == pytest.approx([1, 9, 11 / 3])


def test_absent_clients_keep_their_center(cohort: str) -> None:
    """0, 1 | 4, 6 first; then only 1 and 6 train, and the centers are theirs."""
    method = with_cohorts(build_method("fesem"), [[0, 1, 2, 3], [1, 3]])
    ran = run(method, points([0, 1, 4, 6]), rounds=2, training=JUMP, cohort=cohort)
    assert ran.server("models")[-1] == [6, 1, 3.5]
    assert ran.server("assignment")[-1] == [1, 1, 0, 0]


def test_weights_of_a_center() -> None:
    clients = quadratics(((1, 0), (1, 1), (1, 8)), (10, 30, 10), start=0)
    for weighting, center in (("samples", 0.75), ("uniform", 0.5)):
        ran = run("fesem", clients, {"weighting": weighting}, rounds=1, training=JUMP)
        assert sorted(ran.server("models")[0][:2]) == pytest.approx([center, 8])


def test_a_newcomer_chooses_with_one_step() -> None:
    """From the mean 2.75 a step of 1 ends at what it would send."""
    method = with_cohorts(build_method("fesem"), [[0, 1, 2, 3]])
    ran = run(method, points([0, 1, 4, 6, 4.5, -7]), rounds=1, training=JUMP)
    assert ran.outcome().scores.cluster.tolist() == [1, 1, 0, 0, 0, 1]
    assert {j: float(w) for j, w in ran.outcome().models.items()} == {0: 5, 1: 0.5}


def test_it_trains_from_the_mean_of_all_centers(cohort: str) -> None:
    """Client 3 joins in the second round, from (2 * 0.5 + 6) / 3, and goes half its way to 1."""
    method = with_cohorts(build_method("fesem"), [[0, 1, 2], [3]])
    half = run(method, points([0, 2, 12, 1]), rounds=2, training={"epochs": 1, "lr": 0.5}, cohort=cohort)
    assert half.server("models")[0] == pytest.approx([6, 0.5, 7 / 3])
    assert half.server("models")[1][:2] == pytest.approx([6, 5 / 3])
    assert half.server("assignment")[1] == [1, 1, 0, 1]


def test_only_some_parameters_can_be_compared(federation: Federation) -> None:
    """Of zeros and ones, whose squared distance is the number of what counts; buffers never do."""
    model = federation.model
    w = torch.stack([torch.zeros(model.size), torch.ones(model.size)])
    for compared, count in ((None, model.size), (["*"], model.size), (["layers.last.*"], 170)):
        distances = FeSEM.parse({"compared": compared}).distances(w, w[:1], model)
        assert distances[:, 0].tolist() == [0, count]


@pytest.mark.parametrize("compared", [[], ["*running_*"]])
def test_no_parameters_to_compare_are_refused(compared: list[str], digits: Dataset) -> None:
    """All distances would be 0, and all clients in the first cluster."""
    model = images(digits, network="cnn", kernel=3, padding=1, batch_norm=True).model
    with pytest.raises(BadInput, match=r"^method.compared: .* parameters: buffers are not compared$"):
        FeSEM.parse({"compared": compared}).setup(model, model.init)


def test_with_one_center_it_is_uniform_fedavg(federation: Federation, cohort: str) -> None:
    half: dict[str, Any] = {"participation": 0.5, "training": {"batch_size": 8}, "cohort": cohort}
    one = run("fesem", federation, {"centers": 1}, **half)
    plain = run("fedavg", federation, {"weighting": "uniform"}, **half)
    center, w = one.servers[-1]["models"][0], plain.servers[-1]["model"]
    torch.testing.assert_close(center, w, rtol=0, atol=1e-6)


def test_centers_in_the_plane() -> None:
    """(0, 0), (1, 0) | (4, 4), (5, 5) from (0, 1) and (3, 3): the objective goes from 3.25 to 0.375."""
    w = torch.tensor([[0.0, 0], [1, 0], [4, 4], [5, 5]])
    now, cohort = answers(w, range(4), [1] * 4)
    server = State(torch.tensor([[0.0, 1], [3, 3], [0, 0]]), torch.tensor([0, 1, 0, 1]))
    after, reported = build_method("fesem").aggregate(now, server, cohort)
    assert after.assignment.tolist() == [0, 0, 1, 1] and reported["reassigned"] == 2
    assert after.models.tolist() == [[0.5, 0], [4.5, 4.5], [2.5, 2.25]]
    objectives = [float(torch.cdist(w, c[:2]).square().amin(1).mean()) for c in (server.models, after.models)]
    assert objectives == pytest.approx([3.25, 0.375])


def test_assignments_follow_the_centers(cohort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the centers 18 and 0, and then to 12 and 4."""
    monkeypatch.setattr(FeSEM, "first_iterations", 1)
    ran = run("fesem", points([7, 18, 1, 9, 9, 0, 8]), rounds=3, training=JUMP, cohort=cohort)
    assert ran.server("assignment")[1:] == [[1, 0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 1, 0]]


# FedSEM as FLT ran it


def test_all_models_are_clustered_and_weighted_by_samples() -> None:
    """In the plane, from the means (0, 0) and (4, 4); clients 0 and 3 are absent."""
    w = torch.tensor([[0.2, 0.0], [4, 4], [0.1, 0.3]])
    now, cohort = answers(w, (1, 2, 4), [10, 30, 20, 20, 40])
    models, means = torch.tensor([[0.0, 0], [4.2, 4.2], [1, 1]]), torch.tensor([[0.0, 0], [4, 4]])
    server = State(models, torch.tensor([0, 1, 0, 1, 1]), means)
    for weighting, first in (("uniform", [0.1, 0.1]), ("samples", [0.125, 0.15])):
        method = build_method("fesem", {"cluster_over": "all", "weighting": weighting})
        after, _ = method.aggregate(now, server, cohort)
        assert after.assignment.tolist() == [0, 0, 1, 1, 0]
        torch.testing.assert_close(after.models[:2], torch.tensor([first, [4.1, 4.1]]))
        torch.testing.assert_close(after.means, torch.tensor([[0.1, 0.1], [4.1, 4.1]]))


def test_the_absent_start_with_the_common_model(cohort: str) -> None:
    """From 0, clients 0 and 1 go to 9 and 8: the absent client 2 is alone with the initial model."""
    method = with_cohorts(build_method("fesem", {"cluster_over": "all"}), [[0, 1], [2]])
    ran = run(method, points([9, 8, 7]), rounds=2, training=JUMP, cohort=cohort)
    assert ran.server("assignment")[0] == [1, 1, 0]
    assert ran.server("models")[0] == pytest.approx([0, 8.5, 17 / 3])
    assert ran.server("assignment")[1] == [1, 1, 0]  # of 8.5, 8.5, 7
    assert ran.server("models")[1] == pytest.approx([7, 8.5, 8])


def test_with_one_center_of_all_clients_it_is_damped_fedavg(federation: Federation, cohort: str) -> None:
    """w + sum over the cohort of p_k (w_k - w), p_k = n_k over all clients' samples."""
    more: dict[str, Any] = {
        "participation": 0.5,
        "training": {"batch_size": 8},
        "rounds": 1,
        "cohort": cohort,
    }
    hyper = {"centers": 1, "cluster_over": "all", "weighting": "samples"}
    one = run("fesem", federation, hyper, **more)
    plain = run("fedavg", federation, **more)
    sizes = federation.partition.sizes
    share = sizes[one.rounds[0].cohort].sum() / sizes.sum()
    first = federation.model.init(torch_seed(0, "initial model", 0))
    expected = first + share * (plain.servers[0]["model"] - first)
    torch.testing.assert_close(one.servers[0]["models"][0], expected, rtol=0, atol=1e-6)


def test_options_of_the_cohort_are_refused_where_all_are_clustered() -> None:
    with pytest.raises(BadInput, match=r"method.empty: 'keep' .* farthest where cluster_over is all"):
        build_method("fesem", {"cluster_over": "all", "empty": "keep"})
    with pytest.raises(BadInput, match=r"method.centers: 3 .* at most 2, the clients"):
        run("fesem", points([1, 2]), {"cluster_over": "all", "centers": 3}, training=JUMP)
