"""FLT and PCA+kM+HC on F_k(w) = (w - b_k)^2 / 2 of samples (1, b_k): a learning rate of 1 makes w_k = b_k.

Signatures of equal samples are the sample itself, (1, b_k), so that clients are |b_i - b_j| apart.
"""

import dataclasses
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score
from support import (
    Ran,
    Workers,
    follow,
    images,
    last_server,
    prepare_run,
    quadratics,
    run,
    same,
    with_cohorts,
    with_newcomers,
)

from fedflow.config import load_params
from fedflow.data import Dataset, Examples
from fedflow.errors import BadInput, FedflowError
from fedflow.finished.results import write_results
from fedflow.heterogeneity.relatedness import signature
from fedflow.local.encoder import autoencoder, embed, fine_tune, pretrain
from fedflow.methods import build_method
from fedflow.methods.clustered.pca_km_hc import components
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition, PartitionParams, Samples, make_partition
from fedflow.seeding import generator
from fedflow.simulation.extensions.clustering import Clusters
from fedflow.simulation.federation import Federation
from fedflow.simulation.loop import Simulation
from fedflow.stages.experiment import Experiment
from fedflow.stages.partition import prepare_partition
from fedflow.stages.prepare import prepare_dataset

JUMP = {"epochs": 1, "lr": 1}
SGD = {"epochs": 1, "batch_size": 8, "lr": 0.1}
CHAIN = (1, 2, 3)  # with gamma 1.5 the first and the last are not related


def points(
    centers: Sequence[float], sizes: Sequence[int] | None = None, newcomers: int = 0, start: float = 0
) -> Federation:
    return with_newcomers(
        quadratics([(1, b) for b in centers], sizes or [10] * len(centers), start), newcomers
    )


def flt(hyper: dict[str, Any], federation: Federation, **more: Any) -> Ran:
    settings = {"training": JUMP, "rounds": 1} | more
    return run("flt", federation, {"encoder": "pixels"} | hyper, **settings)


def held(ran: Ran) -> list[float]:
    """The model of every client after the last round."""
    server = ran.servers[-1]
    return server["models"][server["assignment"]].squeeze(1).tolist()


# Clients that are averaged together


@pytest.mark.parametrize(
    ("sizes", "expected"), [((10, 30, 60), (1.75, 2.5, 240 / 90)), ((10, 10, 10), (1.5, 2, 2.5))]
)
def test_a_graph_averages_every_client_over_its_relatives(
    sizes: tuple[int, ...], expected: tuple[float, ...], cohort: str
) -> None:
    """The chain 0 - 1 - 2: client 0 has (10 * 1 + 30 * 2) / 40 = 1.75."""
    ran = flt({"gamma": 1.5}, points(CHAIN, sizes), cohort=cohort)
    assert held(ran) == pytest.approx(expected)
    assert ran.server("related")[0] == [[True, True, False], [True, True, True], [False, True, True]]


def test_uniform_weights_leave_sizes_out() -> None:
    ran = flt({"gamma": 1.5, "weighting": "uniform"}, points(CHAIN, (10, 30, 60)))
    assert held(ran) == pytest.approx((1.5, 2, 2.5))


def test_all_relatives_get_the_same_mean_at_once() -> None:
    """Averaging one client after the other, in place, would give the last one 2.6125."""
    ran = flt({"gamma": 10}, points(CHAIN, (10, 30, 60)))
    assert held(ran) == pytest.approx([2.5] * 3) and len(ran.servers[-1]["models"]) == 1


def test_clusters_are_the_components_of_the_graph() -> None:
    ran = flt({"gamma": 1.5, "case": "clusters"}, points((*CHAIN, 9, 10)))
    assert ran.server("assignment") == [[0, 0, 0, 1, 1]] and held(ran) == pytest.approx([2, 2, 2, 9.5, 9.5])
    assert ran.outcome().scores.cluster.tolist() == [0, 0, 0, 1, 1]


def test_ward_cuts_the_graph_into_the_given_number_of_clusters() -> None:
    """Three components, the chain (1, 2, 3) among them, where rows of the graph differ."""
    blocks = points((1, 9, 2, 20, 3, 10, 21))
    three, two = (flt({"gamma": 1.5, "case": "clusters", "clusters": c}, blocks) for c in (3, 2))
    assert three.server("assignment") == [[0, 1, 0, 2, 0, 1, 2]]
    assert two.outcome().metrics["clusters"] == 2


def test_the_share_of_relatives_in_other_clusters_is_recorded(tmp_path: Path) -> None:
    """(1, 2 | 9, 10), where nothing is cut; the chain 1 - 2 - 3 - 4, whose cut severs 2 of 10 relations."""
    for centers, error in (((1, 2, 9, 10), 0), ((1, 2, 3, 4), 0.2)):
        federation = points(centers)
        ran = flt({"gamma": 1.5, "case": "clusters", "clusters": 2}, federation)
        outcome = ran.outcome()
        write_results(tmp_path, {}, {}, ran.rounds, outcome, federation.partition.sizes, None)
        about = json.loads((tmp_path / "clusters.json").read_text())["proximity"]
        assert about["decomposition_error"] == pytest.approx(error)
    compared = flt({"gamma": 1.5}, points(CHAIN)).simulation.extension(Clusters).compared()
    assert compared is not None and compared.decomposition_error is None


@pytest.mark.parametrize("case", ["graph", "clusters"])
def test_without_gamma_the_largest_gap_decides(case: str) -> None:
    ran = flt({"case": case}, points((1, 1.2, 9, 9.3)))
    assert ran.server("assignment") == [[0, 0, 1, 1]] and held(ran) == pytest.approx([1.1, 1.1, 9.15, 9.15])
    assert ran.simulation.extension(Clusters).compared().height == pytest.approx((0.3 + 7.8) / 2)  # type: ignore[union-attr]


# Clients that do not take part


def once(absent: str, centers: tuple[float, ...] = (1, 0, 3, 0), gamma: float = 10) -> list[float]:
    """Clients 0 and 2 take part; the others still have w = 0."""
    method = build_method("flt", {"encoder": "pixels", "gamma": gamma, "absent": absent})
    federation = points(centers, (10, 30, 60, 100))
    return held(run(with_cohorts(method, [[0, 2]]), federation, training=JUMP, rounds=1))


def test_absent_clients_are_left_out_or_count_with_their_last_model() -> None:
    """(10 * 1 + 60 * 3) / 70, and over all 200 samples 0.95; the paper's oracle has client 2 of 30."""
    assert once("omit") == pytest.approx([190 / 70] * 4)
    assert once("stale") == pytest.approx([190 / 200] * 4)


def test_clients_unrelated_to_the_cohort_keep_their_model() -> None:
    assert once("omit", (1, 20, 3, 40), gamma=5) == pytest.approx([190 / 70, 0, 190 / 70, 0])
    assert once("stale", (1, 20, 3, 40), gamma=5) == pytest.approx([190 / 70, 0, 190 / 70, 0])


# Faults of the authors' code


def test_averages_in_place_use_the_means_of_earlier_clients(cohort: str) -> None:
    """(10 + 30 * 2 + 60 * 4) / 100 = 3.1, then with 3.1 in place of 1, and with 3.31 in place of 2."""
    faulty = {"gamma": 10, "absent": "stale", "averaging": "in_place"}
    ran = flt(faulty, points((1, 2, 4), (10, 30, 60)), cohort=cohort)
    assert held(ran) == pytest.approx([3.1, 3.31, 3.703])
    assert ran.outcome().metrics["clusters"] == 3
    right = flt(faulty | {"averaging": "at_once"}, points((1, 2, 4), (10, 30, 60)), cohort=cohort)
    assert held(right) == pytest.approx([3.1] * 3)


def test_members_may_be_read_in_the_order_of_the_leaves() -> None:
    """The leaves of (1 | 9 | 2 | 10) are 0, 2, 1, 3: the clusters 0, 1, 0, 1 are taken for theirs."""
    blocks, hyper = points((1, 9, 2, 10)), {"gamma": 1.5, "case": "clusters", "clusters": 2}
    assert flt(hyper, blocks).server("assignment") == [[0, 1, 0, 1]]
    faulty = flt(hyper | {"members": "leaf_order"}, blocks)
    assert faulty.server("assignment") == [[0, 0, 1, 1]]


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        ({"members": "leaf_order"}, "members: "),
        ({"averaging": "in_place"}, "averaging: "),
        ({"dimensions": 3}, "dimensions: 3 .* 2, its default, with reducer: none"),
        *(({"encoder": e, "latent": 4}, f"latent: 4 .* with encoder: {e}") for e in ("pixels", "labels")),
        *(
            ({"encoder": e, "finetune": "central"}, f"finetune: 'central' .* per_client where encoder is {e}")
            for e in ("pixels", "labels")
        ),
    ],
)
def test_incompatible_options_are_refused(hyper: dict[str, Any], message: str) -> None:
    """Such as bugs in settings where the code cannot have them, or a shared encoder with none to train."""
    with pytest.raises(BadInput, match=f"^method.{message}"):
        build_method("flt", hyper)


# Limits


@pytest.mark.parametrize("name", ["flt", "pca_km_hc"])
@pytest.mark.parametrize("case", ["graph", "clusters"])
def test_with_all_related_it_is_fedavg(name: str, case: str, federation: Federation, cohort: str) -> None:
    more = {"training": SGD, "participation": 0.5, "rounds": 2, "cohort": cohort}
    one = run(name, federation, {"gamma": 1e9, "case": case}, **more)
    plain = run("fedavg", federation, **more)
    assert torch.equal(one.servers[-1]["models"][0], plain.servers[-1]["model"])


@pytest.mark.parametrize("absent", ["omit", "stale"])
def test_with_no_two_related_it_is_local_training(absent: str, federation: Federation, cohort: str) -> None:
    more = {"training": SGD, "participation": 0.5, "rounds": 2, "cohort": cohort}
    alone = run("flt", federation, {"gamma": 1e-9, "absent": absent}, **more)
    local = run("local", federation, **more)
    server = alone.servers[-1]
    assert torch.equal(server["models"][server["assignment"]], torch.stack(local.clients[-1]["model"]))


def test_disjoint_relatives_are_clusters() -> None:
    blocks = points((1, 2, 20, 21), (10, 30, 20, 5))
    one, other = (flt({"gamma": 1.5, "case": case}, blocks) for case in ("graph", "clusters"))
    assert held(one) == held(other) == pytest.approx([1.75, 1.75, 20.2, 20.2])


# Encoders


def test_clients_send_means_of_what_the_encoder_makes_of_their_images(federation: Federation) -> None:
    """8 clients; the first has a single sample, and so a single mean. J = 0 sends the encoder alone."""
    means = 1 + 7 * 5
    model = autoencoder("conv", (1, 8, 8), 128)
    for epochs, size in ((5, model.size), (0, len(model.part("encoder.*").index))):
        ran = run("flt", federation, {"finetuning": epochs, "pretraining": 1}, rounds=1, training=SGD)
        metrics = ran.outcome().metrics
        assert metrics["onboarding_bytes_down"] == 8 * 4 * size
        assert metrics["onboarding_bytes_up"] == 4 * 128 * means
        assert ran.server("means")[0] == [1] + [5] * 7


def test_the_number_of_means_may_be_that_of_labels(federation: Federation) -> None:
    ran = run("flt", federation, {"encoder": "pixels", "k": None}, rounds=1, training=SGD)
    train, partition = federation.train, federation.partition
    labels = [len(train.y[torch.as_tensor(partition.train(k))].unique()) for k in range(8)]
    assert ran.server("means")[0] == labels


def test_clients_may_be_related_by_their_labels() -> None:
    federation = gaussians([(0, 1), (2, 3)], 0, per_cluster=2)
    ran = run("flt", federation, {"encoder": "labels"}, rounds=1)
    assert ran.server("assignment") == [[0, 0, 1, 1]]
    assert ran.outcome().metrics["onboarding_bytes_up"] == 4 * 4 * 10


def gaussians(labels: Sequence[tuple[int, ...]], seed: int, per_cluster: int = 4) -> Federation:
    """Classes N(m_c, I) in 16 dimensions, m_c ~ 0.4 N(0, I): 60 samples a client, 200 to test of a class."""
    rng = generator(seed, "Gaussian classes")
    means = 0.4 * rng.standard_normal((10, 16))

    def draw(y: np.ndarray) -> Examples:
        x = means[y] + rng.standard_normal((len(y), 16))
        return Examples(torch.from_numpy(x).float(), torch.from_numpy(y))

    own = [own for own in labels for _ in range(per_cluster)]
    y = np.concatenate([np.repeat(label, 60 // len(label)) for label in own])
    pools = [np.arange(200 * c, 200 * (c + 1)) for c in range(10)]
    train = np.split(np.arange(len(y)), np.arange(60, len(y), 60))
    return Federation(
        FlatModel(partial(build, "mlp", (16,), 10, hidden=(64,), dropout=0.0)),
        draw(y),
        draw(np.repeat(np.arange(10), 200)),
        Partition.from_lists(train, pools, [np.array(label) for label in own]),
    )


@pytest.mark.slow
def test_clusters_beat_local_training_which_beats_averages_over_them() -> None:
    """Labels on a ring. Published run, 3 seeds: FLT 70.3, Local 66.4, ring 37.5, FedAvg 30.6 per cent."""
    ring = [(0, 1, 2), (2, 3, 4), (4, 5, 6), (6, 7, 8), (8, 9, 0)]
    settings = {
        "training": {"epochs": 2, "batch_size": 10, "lr": 0.01, "momentum": 0.5},
        "rounds": 30,
        "participation": 0.3,
    }
    # Neighbors on the ring differ in 4 labels, others in 6: they are 2 and 2.45 apart.
    stale = {"encoder": "labels", "absent": "stale"}
    found = {
        title: [
            run(name, gaussians(ring, seed), hyper, **settings).outcome().metrics["local_accuracy"]
            for seed in range(3)
        ]
        for title, name, hyper in (
            ("FLT", "flt", stale),
            ("Local", "local", {}),
            ("ring", "flt", stale | {"gamma": 2.2}),
            ("FedAvg", "flt", stale | {"gamma": 9.0}),
        )
    }
    flt, local, neighbors, fedavg = (float(np.mean(scores)) for scores in found.values())
    assert flt > local + 0.02 > neighbors + 0.2 and neighbors > fedavg


def test_an_encoder_needs_images_of_the_server(federation: Federation) -> None:
    with pytest.raises(BadInput, match=r"partition.public: 0 .* or method.encoder to pixels"):
        prepare_run("flt", dataclasses.replace(federation, public=None))
    with pytest.raises(BadInput, match=r"method.encoder: 'conv for inputs \(2,\)' .* images with sides"):
        data = points(CHAIN)
        run("flt", dataclasses.replace(data, public=data.train))
    small = Examples(torch.rand(3, 1, 4, 4), torch.zeros(3))
    for finetune, error in (
        ("per_client", FedflowError),
        ("central", BadInput),
    ):  # by a client; by the server
        with pytest.raises(error, match=r"method.public: None .* images of the clients' shape, \[1, 8, 8\]"):
            run("flt", dataclasses.replace(federation, public=small), SMALL | {"finetune": finetune})


def test_residual_encoders_are_made_for_color(digits: Dataset) -> None:
    """On gray images too: three clients, so that one is nearer."""
    federation = images(digits, (4, 4, 4))
    ran = run("flt", federation, {"encoder": "residual", "latent": 4, "pretraining": 1, "finetuning": 1})
    model = autoencoder("residual", tuple(federation.train.x.shape[1:]), 4)
    assert ran.servers[-1]["encoder"].shape == (model.size,) and model.buffers > 0


def test_the_encoder_is_made_for_the_channels_of_the_images(federation: Federation) -> None:
    method, model = build_method("flt", {"pretraining": 1, "latent": 4}), federation.model
    for channels, name in ((1, "conv"), (3, "residual")):
        images = Examples(federation.train.x.expand(-1, channels, -1, -1), federation.train.y)
        learnt = method.pretrain_server(method.setup(model, model.init), images, 0).encoder
        assert learnt.shape == (autoencoder(name, (channels, 8, 8), 4).size,)


# One encoder for all clients


TOGETHER = ("sequential", "central")
SMALL: dict[str, Any] = {"pretraining": 1, "latent": 4, "finetuning": 2}


def own_images(federation: Federation, k: int) -> torch.Tensor:
    return federation.train.x[torch.as_tensor(federation.partition.train(k))]


def trained_by_hand(federation: Federation, finetune: str, clients: int) -> tuple[FlatModel, torch.Tensor]:
    """Sequential: over the clients in the order that the seed of the run draws; central: on all at once."""
    assert federation.public is not None
    model = autoencoder("conv", (1, 8, 8), 4)
    w = pretrain(model, federation.public.x, 1, seed=0)
    order = generator(0, "turns", 0).permutation(clients)
    shares = [own_images(federation, k) for k in (order if finetune == "sequential" else range(clients))]
    for x in shares if finetune == "sequential" else [torch.cat(shares)]:
        w = fine_tune(model, w, x, 2)
    return model, w


@pytest.mark.parametrize("finetune", TOGETHER)
def test_one_encoder_may_be_trained_for_all(federation: Federation, finetune: str) -> None:
    model, w = trained_by_hand(federation, finetune, 8)
    ran = run("flt", federation, SMALL | {"finetune": finetune}, rounds=1, training=SGD)
    server, encoder = ran.servers[-1], model.part("encoder.*")
    assert torch.equal(server["encoder"], encoder.of(w)) and torch.equal(
        server["decoder"], encoder.outside(w)
    )
    for k in range(8):
        points = embed(model, w, own_images(federation, k))
        expected = signature(points, 5, generator(0, "signature"))
        assert torch.equal(server["signatures"][k, : len(expected)], expected)


def test_the_order_of_the_turns_comes_from_the_seed(federation: Federation) -> None:
    orders, encoders = [], []
    for seed in (0, 1):
        hyper = SMALL | {"finetune": "sequential"}
        simulation = prepare_run("flt", federation, hyper, rounds=1, training=SGD, seed=seed)
        now, server = simulation.round(0, "turns", 0), simulation.state.server
        orders.append(simulation.job.method.onboarding_turns(now, 0, server, range(8)))
        encoders.append(follow(simulation).servers[0]["encoder"])
    assert orders[0] != orders[1] and sorted(orders[0]) == [[k] for k in range(8)]
    assert not torch.equal(*encoders)


def test_traffic_of_one_encoder_for_all(federation: Federation) -> None:
    """An auto-encoder both ways, or float32 images of 8 x 8 up; then the encoder down, and the means up."""
    model = autoencoder("conv", (1, 8, 8), 4)
    encoder, means = len(model.part("encoder.*").index), 4 * (1 + 7 * 5)
    images = 64 * int(federation.partition.sizes.sum())
    for finetune, down, up in (("sequential", 8 * model.size, 8 * model.size), ("central", 0, images)):
        ran = run("flt", federation, SMALL | {"finetune": finetune}, rounds=1, training=SGD)
        metrics = ran.outcome().metrics
        assert metrics["onboarding_bytes_down"] == 4 * (down + 8 * encoder)
        assert metrics["onboarding_bytes_up"] == 4 * (up + means)


@pytest.mark.parametrize("finetune", TOGETHER)
@pytest.mark.parametrize("workers", [2, 4])
def test_one_encoder_for_all_does_not_depend_on_the_workers(
    federation: Federation, finetune: str, workers: int
) -> None:
    one, other = (
        run("flt", federation, SMALL | {"finetune": finetune}, rounds=2, training=SGD, executor=Workers(n))
        for n in (1, workers)
    )
    assert same(one.state(), other.state()) and one.outcome().metrics == other.outcome().metrics


@pytest.mark.parametrize("finetune", TOGETHER)
def test_one_encoder_for_all_survives_a_resume(
    federation: Federation, finetune: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"rounds": 3, "training": SGD, "checkpoint_every": 1}
    straight = run("flt", federation, SMALL | {"finetune": finetune}, **settings)
    settings |= {"checkpoints": tmp_path}
    next(prepare_run("flt", federation, SMALL | {"finetune": finetune}, **settings).rounds())
    monkeypatch.delattr(Simulation, "onboard")  # clients are onboarded once
    again = run("flt", federation, SMALL | {"finetune": finetune}, **settings)
    assert [r.replayed for r in again.rounds] == [True, False, False]
    assert same(again.state(), straight.state())


@pytest.mark.parametrize("finetune", TOGETHER)
def test_newcomers_use_the_encoder_as_it_is(federation: Federation, finetune: str) -> None:
    model, w = trained_by_hand(federation, finetune, 6)
    hyper = SMALL | {"finetune": finetune, "gamma": 1e9}
    ran = run("flt", with_newcomers(federation, 2), hyper, rounds=1, training=SGD)
    assert ran.outcome().newcomers.clients == [6, 7]  # type: ignore[union-attr]
    server = last_server(ran)
    assert torch.equal(server.encoder, model.part("encoder.*").of(w))
    # Related to all six by gamma, and so served their mean.
    torch.testing.assert_close(server.models[server.assignment[6]], server.models[0])


PARAMS = """
data: {digits: {source: digits, train_limit: 120, test_limit: 60}}
models: {digits: {name: mlp, options: {hidden: [8]}}}
partitions: {few: {dataset: digits, scheme: label_groups, clients: 5, public: 20, newcomers: 0.2}}
methods: {flt: {finetune: HOW, pretraining: 1, finetuning: 1, latent: 4, k: 2}}
run: {rounds: 2, participation: 0.5}
grid: {datasets: [digits], partitions: [few], methods: [flt], seeds: [0]}
"""


@pytest.mark.parametrize("finetune", TOGETHER)
def test_one_encoder_for_all_from_a_file_of_parameters(finetune: str, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(PARAMS.replace("HOW", finetune))
    params = load_params(tmp_path / "params.yaml")
    prepare_dataset(params, "digits", tmp_path)
    prepare_partition(params, "few", tmp_path)
    simulation = Simulation(Experiment(params, "few", "flt", 0, tmp_path).job, params.run)
    assert len(list(simulation.rounds())) == 2
    metrics = simulation.outcome().metrics
    model = autoencoder("conv", (1, 8, 8), 4)
    up = 4 * 4 * model.size if finetune == "sequential" else 64 * int(simulation.sizes.sum())  # uint8 pixels
    assert metrics["onboarding_bytes_up"] == up + 4 * 4 * 2 * 4 and metrics["newcomers"] == 1


def test_without_epochs_nothing_is_trained_for_all(federation: Federation) -> None:
    plain, *others = (
        run("flt", federation, SMALL | {"finetuning": 0, "finetune": finetune}, rounds=1, training=SGD)
        for finetune in ("per_client", *TOGETHER)
    )
    assert all(same(other.state(), plain.state()) for other in others)


@pytest.mark.parametrize("reducer", ["none", "tsne"])
def test_relating_clients_again_changes_nothing(federation: Federation, reducer: str) -> None:
    """Neither between rounds nor after the last, although models change: so FLT has no such option."""
    hyper = SMALL | {"finetune": "per_client", "reducer": reducer}
    simulation = prepare_run("flt", federation, hyper, rounds=2, training=SGD, participation=0.5)
    for _ in simulation.rounds():
        before = simulation.state.server
        simulation.onboard(range(8))
        after, simulation.state.server = simulation.state.server, before
        assert not torch.equal(before.models, after.models)  # the first ones again
        assert same(before.tensors() | {"models": after.models}, after.tensors())


# Newcomers


def test_newcomers_of_a_graph_get_the_mean_of_their_relatives() -> None:
    """Models 1.75, 2.5 and 8 / 3 as above; the newcomer at 1.2 is related to 0 and 1; the other to none."""
    ran = flt({"gamma": 1.5}, points((*CHAIN, 1.2, 50), (10, 30, 60, 10, 10), newcomers=2))
    assert ran.outcome().newcomers.cluster.tolist() == [3, 4]  # type: ignore[union-attr]
    server = last_server(ran)
    assert server.models.squeeze(1).tolist() == pytest.approx([1.75, 2.5, 8 / 3, (17.5 + 75) / 40, 0])


def test_a_newcomer_changes_nothing_for_another() -> None:
    """Gamma is 5, the middle of the largest gap between the clients that train."""
    for more in ((), (300,)):
        ran = flt({}, points((0, 0.5, 10, 10.5, 0.2, *more), newcomers=1 + len(more)))
        assert ran.outcome().newcomers is not None
        models = last_server(ran).models.squeeze(1).tolist()
        assert models == pytest.approx([0.25, 10.25, 0.25, *[0] * len(more)])


def test_newcomers_of_clusters_join_the_nearest() -> None:
    """6.4 is nearer to (8, 9) than to (1, 5) in the mean, though not to 5."""
    ran = flt({"gamma": 4.5, "case": "clusters", "clusters": 2}, points((1, 5, 10, 11, 6.4, 2), newcomers=2))
    assert ran.server("assignment") == [[0, 0, 1, 1]]
    assert ran.outcome().newcomers.cluster.tolist() == [0, 0]  # type: ignore[union-attr]
    nearer = flt({"gamma": 4.5, "case": "clusters"}, points((1, 5, 10, 11, 8), newcomers=1))
    assert nearer.outcome().newcomers.cluster.tolist() == [1]  # type: ignore[union-attr]


@pytest.mark.parametrize("case", ["graph", "clusters"])
def test_with_newcomers_all_may_be_related_again(case: str) -> None:
    """The newcomer at 3.5 links (1, 2) and (5, 6); a cluster of newcomers only has the first model."""
    clients = points((1, 2, 5, 6, 3.5, 90), newcomers=2, start=0.5)
    ran = flt({"gamma": 1.6, "case": case, "assign": "all"}, clients)
    assert held(ran) == pytest.approx([1.5, 1.5, 5.5, 5.5])
    cluster = ran.outcome().newcomers.cluster.tolist()  # type: ignore[union-attr]
    models = last_server(ran).models.squeeze(1)
    assert models[cluster].tolist() == pytest.approx([3.5, 0.5])
    assignment = last_server(ran).assignment.tolist()
    assert len(set(assignment)) == (2 if case == "clusters" else 6)


# PCA+kM+HC


def test_components_are_those_of_scikit_learn(digits: Dataset) -> None:
    x = digits.train.x[:40]
    found = components(x, 5)
    flat = x.float().flatten(1) / 255
    reference = PCA(5, svd_solver="full").fit(flat.double().numpy())
    np.testing.assert_allclose(found[:-1].numpy(), reference.components_, atol=1e-5)
    np.testing.assert_allclose(found[-1].numpy(), reference.mean_, atol=1e-6)


def test_components_beyond_the_rank_of_the_data_are_zero() -> None:
    found = components(torch.tensor([[1.0, 2, 3], [1, 2, 5]]), 4)
    assert found.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0], [1, 2, 4]]
    assert not components(torch.rand(1, 6), 4)[:-1].any()


def test_own_components_hide_the_location_of_data_but_shared_ones_do_not() -> None:
    """Scores are centered: equal samples are at 0, wherever they are."""
    blocks = points((1, 2, 20, 21))
    own = run("pca_km_hc", blocks, {"gamma": 1.5, "p": 2}, training=JUMP, rounds=1)
    assert own.server("assignment") == [[0, 0, 0, 0]]
    held_by_server = dataclasses.replace(blocks, public=blocks.train)
    shared = run(
        "pca_km_hc", held_by_server, {"gamma": 1.5, "p": 2, "basis": "shared"}, training=JUMP, rounds=1
    )
    assert shared.server("assignment") == [[0, 0, 1, 1]]
    assert shared.outcome().metrics["onboarding_bytes_down"] == 4 * (2 + 1) * 2 * 4


@pytest.mark.parametrize("scale", [0.01, 1, 100])
def test_without_gamma_the_scale_of_the_inputs_does_not_matter(scale: float) -> None:
    """1.2, the authors' gamma, relates all at 0.01 and none at 100."""
    blocks = points([scale * b for b in (1, 2, 20, 21, 3)])
    blocks = dataclasses.replace(blocks, public=blocks.train)
    ran = run("pca_km_hc", blocks, {"p": 2, "basis": "shared"}, training=JUMP, rounds=1)
    assert ran.server("assignment") == [[0, 0, 1, 1, 0]]


def test_groups_are_found_on_small_images(digits: Dataset) -> None:
    """Images of 8 x 8 pixels, labels on a ring."""
    params = PartitionParams.parse(
        {
            "dataset": "digits",
            "scheme": "label_groups",
            "groups": 5,
            "labels_per_group": 3,
            "overlap": 1,
            "clients": 20,
            "public": 100,
        }
    )
    made = make_partition(params, Samples.of(digits), digits.hash)
    federation = Federation(
        FlatModel(partial(build, "mlp", digits.input_shape, 10, hidden=(8,))),
        digits.train,
        digits.test,
        made,
        digits.train.only(torch.as_tensor(made.public)),
    )
    ran = run("pca_km_hc", federation, {"basis": "shared"}, rounds=1, training=SGD)
    assert adjusted_rand_score(made.groups, ran.servers[0]["assignment"]) > 0.8


def test_a_shared_basis_needs_data_of_the_server(federation: Federation) -> None:
    with pytest.raises(BadInput, match=r"partition.public: 0 .* or method.basis to per_client"):
        prepare_run("pca_km_hc", dataclasses.replace(federation, public=None), {"basis": "shared"})
    other = Examples(torch.rand(3, 4), torch.zeros(3))
    with pytest.raises(FedflowError, match=r"method.public: None .* inputs of 64 numbers"):
        run("pca_km_hc", dataclasses.replace(federation, public=other), {"basis": "shared"})


# What cannot be


def test_values_that_do_not_fit_the_clients() -> None:
    with pytest.raises(BadInput, match=r"method.clusters: 4 .* at most 3"):
        flt({"gamma": 1, "case": "clusters", "clusters": 4}, points(CHAIN))
    with pytest.raises(BadInput, match=r"method.clusters: 2 .* null where case is graph"):
        flt({"clusters": 2}, points(CHAIN))
    with pytest.raises(BadInput, match=r"method.gamma: None .* a number where there are 2 clients"):
        flt({}, points((1, 2)))
