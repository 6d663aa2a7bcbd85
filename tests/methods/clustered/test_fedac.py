"""FedAC: its local step, LrCos, clusters and their number on given models, and what it reduces to."""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score, calinski_harabasz_score
from support import a_round, by_hand, one_client, prepare_run, quadratics, run, same, with_cohorts
from torch import Tensor, nn

from fedflow.data import Dataset
from fedflow.errors import BadInput
from fedflow.heterogeneity.number import SEPARATED, centroids, separation, spread
from fedflow.methods import build_method
from fedflow.methods.clustered.fedac import FedAC, Space, cosines
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import PartitionParams, Samples, make_partition
from fedflow.simulation.federation import Federation

SGD: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5}
JUMP = {"epochs": 1, "lr": 1}
FREE = {"mu": 0, "lam": 0}


class TwoParts(nn.Module):
    """F(phi, h) = <x, (phi, h)> of a sample x [3]: the gradient is x wherever it is."""

    head_patterns = ("h",)

    def __init__(self) -> None:
        super().__init__()
        self.phi = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.h = nn.Parameter(torch.tensor([3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.cat([self.phi, self.h])

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs < 1


class Target(nn.Module):
    """F(w) = |w - x|^2 / 2 of a sample x [n]: one step of 1 goes to x."""

    head_patterns = ("h",)

    def __init__(self, entries: int) -> None:
        super().__init__()
        self.phi = nn.Parameter(torch.ones(entries - 1, dtype=torch.float64))
        self.h = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (torch.cat([self.phi, self.h]) - x).square().sum(-1) / 2

    losses, hits = TwoParts.losses, TwoParts.hits


def planted(points: Sequence[Sequence[float]], newcomers: int = 0) -> Federation:
    """Clients whose one step of 1 ends at these points [n, P]."""
    federation = by_hand(functools.partial(Target, len(points[0])), points, [1] * len(points))
    object.__setattr__(federation.partition, "newcomers", newcomers)
    return federation


def rows(*values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Local step


@pytest.mark.parametrize(
    ("hyper", "end"),
    [
        ({"mu": 0.5, "lam": 0.2}, [0.96, 1.89, 2.84]),
        ({"mu": 0, "lam": 5}, [1.49, 1.99, 2.99]),
        ({"mu": 10, "lam": 0}, [-0.01, -0.01, -0.01]),
        ({"mu": 0, "lam": 5, "decision": ["*"]}, [0.99, 1.99, 2.99]),
    ],
    ids=["both", "lambda leaves h alone", "eta mu = 1: Omega - eta g", "all is decision"],
)
def test_local_step(hyper: dict[str, Any], end: list[float]) -> None:
    """omega = (1, 2, 3), Omega = 0, Phi = (2, 2), gradient 0.1 everywhere, eta = 0.1."""
    federation = by_hand(TwoParts, [[0.1] * 3], [1])
    phi = torch.tensor([2.0, 2.0] if "decision" not in hyper else [], dtype=torch.float64)
    client = one_client(federation, centroid=torch.zeros(3, dtype=torch.float64), embedding=phi)
    client.kept = {"model": rows([1, 2, 3])[0]}
    sent = build_method("fedac", hyper).local(client)
    assert sent.vectors["model"].tolist() == pytest.approx(end, abs=1e-7)
    assert sent.keep["model"] is sent.vectors["model"]


# LrCos

FIVE = rows([2, 0, 1, 0], [1.8, 0.2, 1, 0], [0, 2, 1, 0], [0.1, 1.9, 1, 0.1], [1.9, 0.1, 1, 0.05])
TWO = torch.tensor([0, 0, 1, 1, 0])


def test_lrcos() -> None:
    r, models = centroids(FIVE, TWO)
    torch.testing.assert_close(models, rows([1.9, 0.1, 1, 0.05 / 3], [0.05, 1.95, 1, 0.05]))
    space = FedAC.parse({}).space(FIVE)
    assert space.axes.shape == (4, 2)
    variances = (FIVE - FIVE.mean(0)) @ space.axes
    assert variances.norm(dim=0).tolist() == pytest.approx([2.874918, 0.082746], abs=1e-6)
    found = cosines(space.projected(FIVE), space.projected(models))
    expected = rows(
        [0.999914, -0.999308],
        [0.999914, -0.999308],
        [-0.999914, 0.999308],
        [-0.995817, 0.999151],
        [0.999658, -0.997078],
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert found.argmax(1).tolist() == TWO.tolist() == r.tolist()
    assert found.argmin(1).tolist() == (1 - TWO).tolist()  # as Eq. 4 prints it: everybody elsewhere


PLAIN = rows(
    [0.998670, 0.224361],
    [0.998452, 0.326272],
    [0.249668, 0.999428],
    [0.298730, 0.999382],
    [0.999880, 0.274178],
)


@pytest.mark.parametrize("axes", [None, torch.linalg.qr(FIVE[:4] + 3 * torch.eye(4).double())[0]])
def test_lrcos_in_all_directions_is_the_plain_cosine(axes: Tensor | None) -> None:
    space = Space(axes)
    _, models = centroids(FIVE, TWO)
    found = cosines(space.projected(FIVE), space.projected(models))
    torch.testing.assert_close(found, PLAIN, rtol=0, atol=1e-6)


def test_lrcos_ignores_the_length_of_models_and_the_signs_of_directions() -> None:
    _, models = centroids(FIVE, TWO)
    space = FedAC.parse({}).space(FIVE)
    found = cosines(space.projected(FIVE), space.projected(models))
    other = Space(space.axes * torch.tensor([-1.0, 1.0]))
    longer = cosines(other.projected(FIVE * 7), other.projected(models / 3))
    torch.testing.assert_close(found, longer)
    assert (found.abs() <= 1 + 1e-12).all()


def test_centered_projections() -> None:
    space = FedAC.parse({"center": True}).space(FIVE)
    torch.testing.assert_close(space.projected(FIVE).mean(0), torch.zeros(2, dtype=torch.float64))
    _, models = centroids(FIVE, TWO)
    found = cosines(space.projected(FIVE), space.projected(models))
    assert found.argmax(1).tolist() == TWO.tolist()


def test_equal_models_have_no_directions() -> None:
    assert FedAC.parse({}).space(FIVE[:1].repeat(3, 1)) == Space()


# The number of clusters

CNT = rows([0, 0], [0, 2], [10, 0], [10, 2], [13, 1])
THREE = torch.tensor([0, 0, 1, 1, 2])


def tune(w: Tensor, r: Tensor, **hyper: Any) -> list[int]:
    r, models = centroids(w, r)
    return FedAC.parse({"merge_below": 0.1} | hyper).tune(w, r, models, w, np.random.default_rng(0)).tolist()


def test_spread_of_clusters() -> None:
    intra, inter = spread(CNT, *centroids(CNT, THREE))
    assert (intra.tolist(), inter.tolist()) == ([1, 1, 0], [134.5, 54.5, 89])
    assert (intra / inter).tolist() == pytest.approx([0.00743494, 0.0183486, 0], abs=1e-7)


def test_the_tightest_cluster_joins_the_nearest() -> None:
    assert tune(CNT, THREE) == [0, 0, 1, 1, 1]
    assert tune(CNT, THREE, protect_singletons=True) == [1, 1, 1, 1, 2]
    assert tune(CNT, THREE, merge_below=0.005, protect_singletons=True) == [0, 0, 1, 1, 2]
    assert tune(CNT, THREE, merge_below=0) == [0, 0, 1, 1, 2]


def test_the_widest_cluster_is_split() -> None:
    """{0, 1 | 10, 11} has intra 25.25, its centroid 5.5 is 0.5 from 6; {5.9, 6.1} has 0.01."""
    w, r = rows([0], [1], [10], [11], [5.9], [6.1]), torch.tensor([0, 0, 0, 0, 1, 1])
    halves = tune(w, r, merge_below=0, split_above=1)
    assert halves in ([0, 0, 2, 2, 1, 1], [2, 2, 0, 0, 1, 1])
    assert tune(w, r, merge_below=0, split_above=102) == r.tolist()
    assert tune(w, r) == [0] * 6  # 0.01 / 0.25 of the other: a merge goes first


def test_variance_between_halves_over_that_within() -> None:
    """{0, 1 | 10, 11}: (10.5 - 0.5)^2 * 2 * 2 / 4 over (0.5 + 0.5) / 2, as scikit-learn has it."""
    w, halves = rows([0], [1], [10], [11]), torch.tensor([0, 0, 1, 1])
    assert separation(w, halves) == pytest.approx(200)
    assert separation(CNT, torch.tensor([0, 0, 1, 1, 1])) == pytest.approx(
        calinski_harabasz_score(CNT.numpy(), [0, 0, 1, 1, 1])
    )


def test_many_points_do_not_make_a_small_difference_count() -> None:
    w = torch.randn(400, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w[200:, 0] += 3
    halves = torch.arange(400) // 200
    assert calinski_harabasz_score(w.numpy(), halves) > SEPARATED > separation(w, halves)


def test_by_default_halves_must_be_separate_and_have_two_clients_or_more() -> None:
    """Clusters far from each other, one of a cross (F = 2), of one far point, or of two pairs."""
    far, r = rows([90, 0], [90, 1]), torch.tensor([0, 0, 0, 0, 1, 1])
    for whole, *points in (
        (True, [1, 0], [-1, 0], [0, 1], [0, -1]),
        (True, [0, 0], [1, 0], [0, 1], [9, 0]),
        (False, [0, 0], [0, 1], [9, 0], [9, 1]),
    ):
        w = torch.cat([rows(*points), far])
        assert (tune(w, r, merge_below=0) == r.tolist()) is whole
        assert tune(w, r, merge_below=0, split_above=1e-6) != r.tolist()


def test_by_default_clusters_as_near_as_their_members_are_not_split() -> None:
    w, r = rows([0], [1], [10], [11], [5.9], [6.1]), torch.tensor([0, 0, 0, 0, 1, 1])
    assert tune(w, r, merge_below=0) == r.tolist()  # G is 101
    assert tune(w + 90 * r[:, None], r, merge_below=0) != r.tolist()


def test_by_default_only_single_clients_are_merged() -> None:
    """The first two of three clusters have G of about 1e-8 and 1e-2."""
    assert tune(CNT, THREE, merge_below=None) == [0, 0, 1, 1, 1]
    w, r = rows([0], [0.002], [10], [12], [20], [22]), torch.tensor([0, 0, 1, 1, 2, 2])
    assert tune(w, r, merge_below=None) == r.tolist() != tune(w, r, merge_below=0.001)


def test_equal_models_are_not_split() -> None:
    w, r = rows([0], [0], [1], [1], [1], [1]), torch.tensor([0, 0, 0, 0, 1, 1])
    assert tune(w, r, merge_below=0, split_above=0.1) in ([0, 0, 2, 2, 1, 1], [2, 2, 0, 0, 1, 1])
    assert tune(torch.ones_like(w), r, merge_below=0, allow_split_from_one=True) == r.tolist()


def test_a_single_cluster_is_split_only_if_allowed() -> None:
    w, one = rows([0], [1], [10]), torch.zeros(3, dtype=torch.int64)
    assert tune(w, one) == [0, 0, 0]
    assert tune(w, one, allow_split_from_one=True, split_above=1) in ([0, 0, 1], [1, 1, 0])
    four = rows([0], [1], [10], [11])
    halves = tune(four, torch.zeros(4, dtype=torch.int64), allow_split_from_one=True)
    assert halves in ([0, 0, 1, 1], [1, 1, 0, 0])


def test_clusters_without_members_are_dropped_and_means_weigh_equally() -> None:
    r, models = centroids(CNT, torch.tensor([0, 0, 5, 5, 3]))
    assert r.tolist() == [0, 0, 2, 2, 1]
    torch.testing.assert_close(r.bincount().double() @ models, CNT.sum(0))


# Rounds

SIX: list[list[float]] = [[4.0, 1, 0], [4.2, 1, 0], [4.1, 1.1, 0], [-4, 1, 0], [-4.2, 1, 0], [-4.1, 1.1, 0]]


def test_clients_find_their_clusters(cohort: str) -> None:
    """Every client moves to its own point; clients that come later find the model of similar ones there."""
    hyper = FREE | {"tune_every": 0}
    federation = planted([*SIX, [3.9, 0.9, 0.1], [-3.8, 0.9, 0]], newcomers=2)
    ran = run("fedac", federation, hyper, training=JUMP, rounds=2, cohort=cohort)
    server = ran.servers[-1]
    a, b = server["assignment"][[0, 3]].tolist()
    assert server["assignment"].tolist() == [a] * 3 + [b] * 3 and {a, b} == {0, 1}
    torch.testing.assert_close(server["models"][a], rows(*SIX[:3]).mean(0))
    torch.testing.assert_close(server["embedding"], rows(*SIX).mean(0)[:2])
    torch.testing.assert_close(server["omega"], rows(*SIX))
    ran.outcome()
    method, state = ran.simulation.job.method, ran.simulation.state
    for k, z in ((6, a), (7, b)):
        sent = method.broadcast_for_evaluation(a_round(federation, 3), state.server, k)
        client = one_client(federation, k, **sent)
        w, number = method.model_for(client)
        assert torch.equal(w, server["models"][z]) and number == z


def test_an_absent_client_counts_with_its_last_model(cohort: str) -> None:
    """Clients 2 and 5 come in the second round, half their way from (1, 1, 1), and stay in their clusters."""
    method = with_cohorts(build_method("fedac", FREE | {"tune_every": 0}), [[0, 1, 3, 4], [2, 5]])
    half = {"epochs": 1, "lr": 0.5}
    simulation = prepare_run(method, planted(SIX), training=half, rounds=2, cohort=cohort)
    rounds = simulation.rounds()
    next(rounds)
    before = simulation.state.server
    assert before.assignment[[2, 5]].tolist() == [-1, -1]
    next(rounds)
    after = simulation.state.server
    torch.testing.assert_close(after.omega[[0, 1, 3, 4]], before.omega)
    torch.testing.assert_close(after.omega[2], (1 + rows(SIX[2])[0]) / 2)
    a, b = after.assignment[[0, 3]].tolist()
    assert after.assignment.tolist() == [a, a, a, b, b, b]
    torch.testing.assert_close(after.models[a], after.omega[:3].mean(0))


def test_directions_are_refreshed_every_few_rounds(federation: Federation) -> None:
    ran = run("fedac", federation, {"refresh_every": 2}, rounds=3, training=SGD)
    one, two, three = (server["axes"] for server in ran.servers)
    assert not torch.equal(one, two) and torch.equal(two, three)
    torch.testing.assert_close(one.T @ one, torch.eye(2), rtol=0, atol=1e-5)


def test_clusters_are_recorded_though_models_are_personal(federation: Federation) -> None:
    ran = run("fedac", federation, rounds=2, training=SGD, evaluate_every=1)
    outcome, assignment = ran.outcome(), ran.servers[-1]["assignment"].tolist()
    assert ran.rounds[0].assignment == ran.servers[0]["assignment"].tolist()
    assert outcome.scores.cluster.tolist() == assignment and ran.rounds[-1].values["clusters"] == len(
        {*assignment}
    )
    assert all(torch.equal(w, ran.clients[-1]["model"][k]) for k, w in outcome.models.items())
    assert "clustering_error" in ran.rounds[-1].values and len(outcome.models) == 8


def test_clusters_are_merged_every_few_rounds() -> None:
    hyper = FREE | {"clusters": 3, "tune_every": 2, "merge_below": 0.1}
    ran = run("fedac", planted([*SIX, [0, 9.0, 0]]), hyper, training=JUMP, rounds=4)
    assert [len(server["models"]) for server in ran.servers] == [3, 2, 2, 1]
    assert [r.values["method/merges"] for r in ran.rounds] == [0, 1, 0, 1]


def digits_of(digits: Dataset, **partition: Any) -> Federation:
    """20 clients of digits, and a small dense network."""
    params = PartitionParams.parse({"dataset": "digits", "clients": 20, **partition})
    made = make_partition(params, Samples.of(digits), digits.hash)
    model = FlatModel(functools.partial(build, "mlp", digits.input_shape, 10, hidden=(32,)))
    return Federation(model, digits.train, digits.test, made)


LOCAL = {"epochs": 5, "batch_size": 10, "lr": 0.05}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2))])
@pytest.mark.parametrize("pull", [0.1, pytest.param(1, marks=pytest.mark.full)])
def test_planted_groups_are_found_from_too_few_clusters(digits: Dataset, seed: int, pull: float) -> None:
    """Five groups of labels on a ring, 30 images a client; started at three, no group is split."""
    ring = {"scheme": "label_groups", "groups": 5, "labels_per_group": 3, "overlap": 1}
    federation = digits_of(digits, **ring, sampler="independent", samples_per_label=10)
    hyper = {"clusters": 3, "mu": pull}
    ran = run(
        "fedac", federation, hyper, training=LOCAL, rounds=40, participation=0.5, seed=seed, cohort="vmap"
    )
    last = ran.servers[-1]
    assert len(last["models"]) == 5
    assert adjusted_rand_score(federation.partition.groups, last["assignment"]) == 1
    assert all(len(server["models"]) <= 5 for server in ran.servers)


@pytest.mark.parametrize("participation", [pytest.param(0.2, marks=pytest.mark.full), 0.5])
def test_an_iid_federation_is_not_split(digits: Dataset, participation: float) -> None:
    """With low participation, models differ by rounds trained: after 10 rounds halves are separate (8.4)."""
    federation = digits_of(digits, scheme="iid")
    ran = run("fedac", federation, training=LOCAL, rounds=20, participation=participation, cohort="vmap")
    assert all(len(server["models"]) <= 2 for server in ran.servers)


# Reductions


def test_without_pulls_it_is_local_training(federation: Federation, cohort: str) -> None:
    settings: dict[str, Any] = {"training": SGD, "participation": 0.5, "cohort": cohort}
    free, local = (run(*of, **settings) for of in (("fedac", federation, FREE), ("local", federation)))
    assert same(*({"model": torch.stack(ran.clients[-1]["model"])} for ran in (free, local)))


def test_with_one_cluster_models_are_pulled_to_their_mean(cohort: str) -> None:
    """w_k <- w_k - eta (a_k (w_k - b_k) + mu (w_k - mean)), the mean over all models of the round before."""
    hyper = {"clusters": 1, "mu": 0.7, "lam": 0, "decision": []}
    ran = run("fedac", quadratics(), hyper, training={"epochs": 1}, cohort=cohort)
    w = mean = torch.tensor([0.5, 0.5], dtype=torch.float64)
    a, b = rows([1, 2], [1, -1])
    for kept in ran.kept("model"):
        w = w - 0.1 * (a * (w - b) + 0.7 * (w - mean))
        mean = w.mean()
        assert kept == pytest.approx(w.tolist(), abs=1e-9)


def test_bounds_must_be_in_order() -> None:
    with pytest.raises(BadInput, match=r"^method.merge_below: 2.0 .* less than split_above, 1.0"):
        build_method("fedac", {"merge_below": 2, "split_above": 1})


@pytest.mark.parametrize(
    "hyper",
    [{"merge_below": 0}, {"split_above": 1}, {"protect_singletons": True}, {"allow_split_from_one": True}],
)
def test_options_of_merges_and_splits_are_refused_without_any(hyper: dict[str, Any]) -> None:
    (name,) = hyper
    with pytest.raises(BadInput, match=f"^method.{name}: .* (null|false), its default, with tune_every: 0$"):
        build_method("fedac", hyper | {"tune_every": 0})
    build_method("fedac", hyper)


def test_a_run_too_short_to_change_the_number_of_clusters_warns(federation: Federation) -> None:
    with pytest.warns(UserWarning, match="neither merged nor split in 9 rounds, as tune_every is 10"):
        prepare_run("fedac", federation, {"tune_every": 10}, rounds=9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for every in (0, 9):
            prepare_run("fedac", federation, {"tune_every": every}, rounds=9)
