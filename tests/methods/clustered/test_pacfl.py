"""PACFL: rays in the plane with known angles, and real images for signatures."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import Ran, consecutive, images, last_server, one_client, quadratics, run, with_newcomers

from fedflow.data import Dataset, Examples
from fedflow.errors import BadInput, FedflowError
from fedflow.heterogeneity import LINKAGES, MODES, merge, proximity, sweep
from fedflow.local.local_training import LocalTraining
from fedflow.methods.clustered._hierarchical import linkage_distances
from fedflow.methods.clustered.pacfl import PACFL, State
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.models.linear import Linear
from fedflow.partition import Partition
from fedflow.simulation.extensions.clustering import Clusters
from fedflow.simulation.federation import Federation

SGD: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5}
SOURCES = np.array(
    [[0, 6.13, 45.79, 66.26], [6.13, 0, 43.42, 64.86], [45.79, 43.42, 0, 43.36], [66.26, 64.86, 43.36, 0]]
)


def rays(degrees: Sequence[float], newcomers: int = 0, sizes: Sequence[int] | None = None) -> Federation:
    """Clients whose samples all point to one angle: F_k(w) = cos / 2 (w - sin)^2."""
    radians = np.radians(degrees)
    curves = [*zip(np.cos(radians), np.sin(radians))]
    return with_newcomers(quadratics(curves, sizes or [3] * len(degrees)), newcomers)


def clouds(samples: Sequence[np.ndarray]) -> Federation:
    """Clients with these samples [n_k, F] each, and any linear network."""
    x = torch.from_numpy(np.concatenate(samples)).double()
    examples = Examples(x, torch.zeros(len(x), dtype=torch.float64))
    model = FlatModel(partial(Linear, (x.shape[1],), 1), dtype=torch.float64)
    return Federation(model, examples, examples, consecutive([len(s) for s in samples]))


def pacfl(hyper: dict[str, Any], federation: Federation, **more: Any) -> Ran:
    return run("pacfl", federation, {"p": 1} | hyper, **{"rounds": 1} | more)


def joined(ran: Ran) -> list[int]:
    """The cluster of every client and newcomer."""
    ran.outcome()
    return last_server(ran).assignment.tolist()


def measured(matrix: np.ndarray, **known: Any) -> State:
    """The server's state with these dissimilarities; the common initial model is 9."""
    first = torch.tensor([9.0])
    return State(**{"models": first[None], "initial": first, "proximity": torch.from_numpy(matrix)} | known)


def formed(matrix: np.ndarray, **hyper: Any) -> list[int]:
    return PACFL(**hyper).form(measured(matrix)).assignment.tolist()


def line_distances(points: Sequence[float]) -> np.ndarray:
    """Distances of points on a line."""
    return np.abs(np.subtract.outer(points, points)).astype(float)


# Clusters


def test_each_cluster_trains_its_own_model(cohort: str) -> None:
    """Both start at 0.5. Weights are samples: w - 0.1 cos (w - sin) in the mean."""
    angles, sizes = np.radians((0, 10, 80, 85)), (1, 3, 2, 2)
    ran = pacfl({"beta": 20}, rays((0, 10, 80, 85), sizes=sizes), training={"epochs": 1}, cohort=cohort)
    assert ran.server("assignment") == [[0, 0, 1, 1]]
    steps = 0.5 - 0.1 * np.cos(angles) * (0.5 - np.sin(angles))
    expected = [np.average(steps[pair], weights=np.array(sizes)[pair]) for pair in ([0, 1], [2, 3])]
    assert ran.server("models")[0] == pytest.approx(expected)
    assert ran.outcome().scores.cluster.tolist() == [0, 0, 1, 1]


def test_a_cluster_without_cohort_members_keeps_its_model() -> None:
    ran = pacfl({"beta": 20}, rays((0, 10, 80)), participation=0.4, rounds=6)
    before = torch.full((2, 1), 0.5, dtype=torch.float64)
    for report, server in zip(ran.rounds, ran.servers):
        (k,) = report.cohort
        z = [0, 0, 1][k]
        assert torch.equal(server["models"][1 - z], before[1 - z]) and server["models"][z] != before[z]
        before = server["models"]
    assert {r.cohort[0] == 2 for r in ran.rounds} == {True, False}


@pytest.mark.parametrize("linkage", LINKAGES)
def test_raw_data_sets_of_mix4_hide_a_source_at_42_degrees(linkage: str) -> None:
    """Table 3.7: CIFAR-10 and SVHN are 6.13 apart, so four clusters need less than that."""
    assert formed(SOURCES, beta=42, linkage=linkage) == [0, 0, 1, 2]
    assert formed(SOURCES, beta=6.13, linkage=linkage) == [0, 0, 1, 2]
    assert formed(SOURCES, beta=6.12, linkage=linkage) == [0, 1, 2, 3]
    assert formed(SOURCES, linkage=linkage) == [0, 0, 1, 2]  # the largest gap
    assert formed(SOURCES, clusters=4, linkage=linkage) == [0, 1, 2, 3]


def test_the_default_beta_is_in_the_largest_gap_and_is_drawn() -> None:
    """Merges at 3, 4 and 41.5, the mean of 41, 38, 45 and 42."""
    ran = pacfl({}, rays((0, 3, 41, 45)))
    assert ran.server("assignment") == [[0, 0, 1, 1]]
    compared = ran.simulation.extension(Clusters).compared()
    assert compared is not None and compared.unit == "angle, degrees" and compared.linkage == "wpgma"
    assert compared.height == pytest.approx((4 + 41.5) / 2, abs=1e-6)
    np.testing.assert_allclose(compared.matrix, line_distances((0, 3, 41, 45)), atol=1e-5)


def test_the_number_of_clusters_falls_with_beta(federation: Federation) -> None:
    betas, counts = (0, 10, 20, 30, 40, 90), []
    for beta in betas:
        ran = run("pacfl", federation, {"beta": beta, "p": 2}, rounds=1, training={"epochs": 1})
        counts.append(ran.outcome().metrics["clusters"])
    tree = merge(ran.servers[-1]["proximity"].numpy())
    assert counts == sweep(tree, betas).tolist() == sorted(counts, reverse=True)
    assert counts[0] == 8 and counts[-1] == 1 and len(set(counts)) > 3


@pytest.mark.parametrize("beta", [5, 30, None])
def test_four_sources_are_found_at_any_threshold_between_them(beta: float | None) -> None:
    """R^64, a mean image and 5 directions of noise each: within 1.9 degrees at most, between 46 at least."""
    rng = np.random.default_rng(0)
    sources = [(rng.exponential(size=64) ** 2, rng.normal(size=(5, 64))) for _ in range(4)]
    samples = [mean + 0.1 * rng.normal(size=(100, 5)) @ noise for mean, noise in sources for _ in range(10)]
    planted = np.repeat(range(4), 10)
    ran = pacfl({"p": 3, "beta": beta}, clouds(samples), training={"lr": 1e-4}, participation=0.1)
    assert ran.server("assignment")[0] == planted.tolist()
    matrix, same = ran.servers[0]["proximity"].numpy(), planted[:, None] == planted
    assert matrix[same].max() < 5 and matrix[~same].min() > 30


# Reductions


def test_one_cluster_is_fedavg(federation: Federation, cohort: str) -> None:
    settings: dict[str, Any] = {"training": SGD, "participation": 0.5, "cohort": cohort}
    plain = run("fedavg", federation, **settings).servers[-1]["model"]
    for hyper in ({"beta": 90}, {"clusters": 1}):
        assert torch.equal(run("pacfl", federation, hyper, **settings).servers[-1]["models"][0], plain)


@pytest.mark.parametrize("hyper", [{"beta": 0}, {"clusters": 8}], ids=str)
def test_a_cluster_for_every_client_is_local_training_of_the_cohort(
    federation: Federation, hyper: dict[str, Any], cohort: str
) -> None:
    settings: dict[str, Any] = {"training": SGD, "participation": 0.5, "cohort": cohort}
    alone = run("pacfl", federation, hyper, **settings)
    local = run("local", federation, **settings)
    assert alone.server("assignment")[-1] == [*range(8)]
    # Not bit for bit: a mean of one is its model times and over its weight.
    torch.testing.assert_close(
        alone.servers[-1]["models"], torch.stack(local.clients[-1]["model"]), rtol=0, atol=1e-6
    )


# Signatures


@pytest.mark.parametrize("source", ["raw", "normalized"])
@pytest.mark.parametrize("kind", ["whole", "per_class"])
def test_a_signature_is_the_leading_singular_vectors(digits: Dataset, source: str, kind: str) -> None:
    """Of pixels 0..255 or of what the network gets, not centered; up to their signs."""
    clients = replace(images(digits), train=digits.train)
    rows = torch.from_numpy(clients.partition.train(7))
    x = digits.train.x[rows].double() if source == "raw" else digits.train.inputs(rows).double()
    y = digits.train.y[rows]
    assert len(y.unique()) > 1
    parts = [x] if kind == "whole" else [x[y == label] for label in y.unique()]
    bases = [torch.linalg.svd(part.flatten(1).T, full_matrices=False).U[:, :3] for part in parts]
    expected = torch.cat(bases, 1).T
    sent = (
        PACFL(signature=kind, input=source).onboarding_local(0, one_client(clients, 7)).vectors["signature"]
    )
    assert sent.shape == expected.shape
    cosines = (sent.double() * expected).sum(1).abs()
    torch.testing.assert_close(cosines, torch.ones_like(cosines), rtol=0, atol=1e-6)


PLANES = {
    "equal": [(2, 0, 0, 0), (0, 1, 0, 0)],
    "W": [(3**0.5, 0, 1, 0), (0, 0.5, 0, 0.75**0.5)],
    "swapped": [(0.75**0.5, 0, 0.5, 0), (0, 1, 0, 3**0.5)],
}
ANGLES = {
    "equal": (0, 0, 0, 0, 0, 0, 0),
    "W": (30, 90, 30, 30, 90, 90, 60),
    "swapped": (30, 90, 30, 30, 180, 180, 60),
}


@pytest.mark.parametrize("other", PLANES)
@pytest.mark.parametrize("mode", MODES)
def test_angles_between_signatures(mode: str, other: str) -> None:
    """One client has twice e_1 and e_2, the other data with the signature W = [30 degrees off, 60 off]."""
    planes = clouds([np.array(PLANES["equal"], dtype=float), np.array(PLANES[other])])
    matrix = pacfl({"p": 2, "clusters": 1, "proximity": mode}, planes).servers[0]["proximity"]
    expected = dict(zip(MODES, ANGLES[other]))[mode]
    assert matrix.flatten().tolist() == pytest.approx([0, expected, expected, 0], abs=1e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["whole", "per_class"])
def test_newcomers_extend_the_matrix_to_that_of_all(digits: Dataset, mode: str, kind: str) -> None:
    """Also where the signatures have different numbers of columns: one client has a single sample."""
    clients, hyper = images(digits), {"signature": kind, "proximity": mode, "clusters": 2}
    some, whole = (
        run("pacfl", f, hyper, rounds=1, training={"epochs": 1})
        for f in (with_newcomers(clients, 3), clients)
    )
    some.outcome()
    found, expected = last_server(some).proximity, whole.servers[0]["proximity"]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert torch.equal(expected, expected.T) and not expected.diagonal().any()


# Newcomers


@pytest.mark.parametrize(
    ("beta", "together"),
    [
        *((beta, set()) for beta in (20, 69.99)),
        *((beta, {"single"}) for beta in (70.01, 72)),
        (75.01, {"single", "wpgma", "upgma"}),
        (80.01, set(LINKAGES)),
    ],
)
@pytest.mark.parametrize("linkage", LINKAGES)
@pytest.mark.parametrize("assign", ["attach", "rehc"])
def test_a_newcomer_at_80_degrees(beta: float, together: set[str], linkage: str, assign: str) -> None:
    """The others are at 0 and 10: distances 80 and 70, 75 in the mean."""
    ran = pacfl({"beta": beta, "linkage": linkage, "assign": assign}, rays((0, 10, 80), newcomers=1))
    assert ran.server("assignment") == [[0, 0]]
    assert joined(ran) == ([0, 0, 0] if linkage in together else [0, 0, 1])
    expected = torch.tensor([[0.0, 10, 80], [10, 0, 70], [80, 70, 0]], dtype=torch.float64)
    torch.testing.assert_close(last_server(ran).proximity, expected, rtol=0, atol=1e-4)


def test_close_newcomers_form_one_cluster_from_the_initial_model() -> None:
    ran = pacfl({"beta": 20}, rays((0, 5, 80, 84, 12), newcomers=3))
    assert joined(ran) == [0, 0, 1, 1, 0]
    models = last_server(ran).models
    assert models.tolist() == [ran.servers[-1]["models"][0].tolist(), [0.5]]
    newcomers = ran.outcome().newcomers
    assert newcomers is not None and newcomers.cluster.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("points", "beta", "linkage", "attached", "again"),
    [
        ((0, 1, 2, 10, 11, 6), 5, "single", [0, 0, 0, 1, 1, 0], [0] * 6),
        ((0, 1, 2, 10, 11, 6), 5, "complete", [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1]),
        ((0, 1, 2, 10, 11, 6), 5, "upgma", [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1]),
        ((0, 1, 2, 10, 11, 6), 5, "wpgma", [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1]),
        ((0, 10, 5), 6, "single", [0, 1, 0], [0, 0, 0]),
        ((0, 10, 5), 6, "complete", [0, 1, 0], [0, 1, 0]),
        ((0, 10, 5), 6, "upgma", [0, 1, 0], [0, 1, 0]),
    ],
)
def test_clustering_again_can_move_others_and_attaching_cannot(
    points: tuple[int, ...], beta: float, linkage: str, attached: list[int], again: list[int]
) -> None:
    """The last point is new. A warning counts moved clients; merged clusters leave a model unused."""
    matrix, clients = line_distances(points), len(points) - 1
    before = np.array(formed(matrix[:clients, :clients], beta=beta, linkage=linkage))
    models = torch.tensor([[3.0], [4.0]])
    server = measured(matrix, assignment=torch.from_numpy(before), models=models)
    assert before.tolist() == attached[:clients]
    for assign, expected in (("attach", attached), ("rehc", again)):
        method = PACFL(beta=beta, linkage=linkage, assign=assign)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            after = method.join(server, clients)
        assert after.assignment.tolist() == expected and torch.equal(after.models, models)
        moved = sum(old != new for old, new in zip(before, expected))
        assert [str(w.message) for w in caught] == (
            [f"pacfl: {moved} clients changed their cluster as newcomers joined"] if moved else []
        )


def test_parts_of_a_split_cluster_start_from_its_model() -> None:
    """0, 4 and 8 are one cluster at 6 in the mean; with 12, 8 leaves it: 0 and 4 keep the number."""
    matrix = line_distances((0, 4, 8.1, 12))
    together, models = torch.zeros(3, dtype=torch.int64), torch.tensor([[3.0]])
    server = measured(matrix, assignment=together, models=models)
    with pytest.warns(UserWarning, match="1 clients changed"):
        after = PACFL(beta=6.2, assign="rehc").join(server, 3)
    assert after.assignment.tolist() == [0, 0, 1, 1] and after.models.tolist() == [[3], [3]]


@pytest.mark.parametrize("linkage", LINKAGES)
def test_a_newcomer_is_as_far_from_a_cluster_as_the_height_at_which_it_would_merge(linkage: str) -> None:
    """Far from all others, it merges last."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        x = rng.normal(size=(7, 3))
        x[6] += 20
        matrix = np.linalg.norm(x[:, None] - x, axis=2)
        clients = merge(matrix[:6, :6], linkage)
        found = linkage_distances(matrix[6:, :6], np.zeros(6, dtype=int), clients, linkage)
        assert found.tolist() == [[pytest.approx(merge(matrix, linkage)[-1, 2])]]


@pytest.mark.parametrize(
    ("name", "hyper", "rounds"), [("pacfl", {"clusters": 2}, 2), ("flis_hc", {"beta": 0.9}, 1)]
)
def test_a_newcomer_tunes_the_model_of_its_cluster_for_all_local_epochs(
    digits: Dataset, name: str, hyper: dict, rounds: int
) -> None:
    """The last client has the data of client 3: 5 epochs from that cluster's model."""
    four = images(digits, (60,) * 4)
    train, pools = ([of(k) for k in (0, 1, 2, 3, 3)] for of in (four.partition.train, four.partition.test))
    partition = Partition.from_lists(train, pools, [np.array([k]) for k in range(5)], newcomers=1)
    clients = replace(four, partition=partition)
    ran = run(name, clients, hyper, training={"epochs": 5}, rounds=rounds)
    newcomers, server = ran.outcome().newcomers, last_server(ran)
    assert newcomers is not None and newcomers.cluster.tolist() == [server.assignment[3]]
    served = server.models[server.assignment[3]]
    tuned = one_client(clients, 4, LocalTraining(epochs=5, batch_size=0, lr=0.1)).fit(start=served)
    rows = torch.from_numpy(partition.test(4))
    inputs, labels = clients.test.inputs(rows), clients.test.targets(rows)
    for w, score in ((served, newcomers.local_accuracy), (tuned, newcomers.more["tuned_accuracy"])):
        hits = clients.model.hits(clients.model.outputs(w, inputs), labels)
        assert score.tolist() == [pytest.approx(hits.double().mean().item())]


# Traffic, in Mb = 10^6 bits


PER_CLASS = {"p": 3, "signature": "per_class"}


@pytest.mark.parametrize(
    ("labels", "hyper", "megabits"),
    [(2, {"p": 3}, 0.2949), (2, {"p": 5}, 0.4915), (2, PER_CLASS, 0.59), (20, PER_CLASS, 5.90)],
)
def test_a_signature_of_color_images_is_paid_once(
    labels: int, hyper: dict[str, Any], megabits: float
) -> None:
    x = torch.randint(0, 256, (3 * labels, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    examples = Examples(x.byte(), torch.arange(3 * labels) % labels)
    network = FlatModel(partial(build, "mlp", (3, 32, 32), labels, hidden=(2,)))
    client = one_client(Federation(network, examples, examples, consecutive([3 * labels])))
    (sent,) = PACFL(**hyper).onboarding_local(0, client).vectors.values()
    assert sent.numel() * sent.element_size() * 8 / 1e6 == pytest.approx(megabits, abs=5e-3)


def test_onboarding_costs_a_signature_and_rounds_a_model_each_way(federation: Federation) -> None:
    """Client 0 has one sample, and so one direction; the others three."""
    metrics = run("pacfl", federation, {"clusters": 2}, rounds=2, participation=0.5).outcome().metrics
    assert metrics["onboarding_bytes_down"] == 0
    assert metrics["onboarding_bytes_up"] == 4 * 64 * (1 + 7 * 3)
    assert metrics["bytes_down"] == metrics["bytes_up"] == 2 * 4 * 4 * federation.model.size


def test_published_traffic_of_lenet() -> None:
    """Tables 3.4 and 3.5: r R 2 P 32 bits a client, to the 0.2 % that the thesis rounds."""
    x = torch.randint(0, 256, (20, 3, 32, 32), generator=torch.Generator().manual_seed(0)).byte()
    examples = Examples(x, torch.arange(20) % 10)
    lenet = FlatModel(partial(build, "lenet5", (3, 32, 32), 10))
    ten = Federation(lenet, examples, examples, consecutive([2] * 10))
    values = run("pacfl", ten, {"clusters": 2, "p": 2}, rounds=1, participation=0.1).rounds[0].values
    megabits = (values["bytes_down"] + values["bytes_up"]) * 8 / 1e6 / 10
    assert [19 * megabits, 26 * megabits, 22 * megabits] == pytest.approx([7.53, 10.31, 8.73], rel=2e-3)


# What it refuses


@pytest.mark.parametrize(
    ("degrees", "hyper", "message"),
    [
        ((0, 50), {}, r"method.beta: None .* a number where there are 2 clients"),
        ((0, 50, 80), {"clusters": 4}, r"method.clusters: 4 .* at most 3, the clients"),
        ((0, 50, 80), {"clusters": 2, "beta": 4}, r"method.clusters: 2 .* null where beta is given"),
        ((0, 50, 80), {"signature": "per_class"}, r"method.signature: 'per_class' .* whole, as samples"),
    ],
)
def test_bad_input_is_named(degrees: tuple[float, ...], hyper: dict[str, Any], message: str) -> None:
    with pytest.raises((BadInput, FedflowError), match=message):
        pacfl(hyper, rays(degrees))


def test_a_single_client_is_a_cluster() -> None:
    assert pacfl({}, rays((30,))).server("assignment") == [0]


def test_pairs_agree_with_the_matrix(federation: Federation) -> None:
    """The matrix follows from the signatures that the server keeps."""
    server = run("pacfl", federation, {"signature": "per_class"}, rounds=1).servers[0]
    kept = [u[:q].numpy().T for u, q in zip(server["signatures"], server["columns"])]
    np.testing.assert_allclose(proximity(kept), server["proximity"].numpy(), atol=1e-9)
