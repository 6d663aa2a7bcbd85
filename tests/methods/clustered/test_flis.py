"""Both forms of FLIS: models that are one threshold, so that agreement is known; and real images.

A client with samples c moves its threshold to c in one step of 1. The server's inputs are 0.5, 1.5, ..., 9.5:
models of thresholds c_i and c_j agree on all except |c_i - c_j| of ten.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import (
    Ran,
    Workers,
    consecutive,
    last_server,
    one_client,
    prepare_run,
    quadratics,
    run,
    same,
    with_cohorts,
    with_newcomers,
)
from torch import Tensor, nn

from fedflow.config import load_params
from fedflow.data import Dataset, Examples
from fedflow.errors import BadInput, FedflowError
from fedflow.heterogeneity import LINKAGES
from fedflow.local.client import Client, Update
from fedflow.methods import build_method
from fedflow.methods.clustered._flis import infer, similarity
from fedflow.methods.clustered.flis_dc import FLISDC
from fedflow.metrics.clustering import clustering_error
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition, PartitionParams, Samples, load_partition, make_partition
from fedflow.simulation.extensions.clustering import Clusters
from fedflow.simulation.federation import Federation, random_examples
from fedflow.simulation.loop import Simulation
from fedflow.stages.experiment import Experiment
from fedflow.stages.partition import prepare_partition
from fedflow.stages.prepare import prepare_dataset

JUMP: dict[str, Any] = {"epochs": 1, "lr": 1}
HALFWAY: dict[str, Any] = {"epochs": 1, "lr": 0.5}
SGD: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5}
BOTH = ("flis_dc", "flis_hc")


class Threshold(nn.Module):
    """Class 0 from w on, class 1 below, from w = 3; F(w) = (w - c)^2 / 2 of a sample c."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([3.0], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        above = x[:, 0] - self.w
        return torch.stack([above, torch.zeros_like(above)], -1)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs[:, 0].square() / 2

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs[:, 0].abs() < 1


def thresholds(c: Sequence[float], sizes: Sequence[int] | None = None, newcomers: int = 0) -> Federation:
    sizes = sizes or [4] * len(c)
    x = torch.tensor(c, dtype=torch.float64).repeat_interleave(torch.tensor(sizes))[:, None]
    examples, asked = (Examples(x, torch.zeros(len(x))) for x in (x, torch.arange(10.0)[:, None] + 0.5))
    partition = replace(consecutive(sizes), newcomers=newcomers)
    return Federation(FlatModel(Threshold, dtype=torch.float64), examples, examples, partition, asked)


def flis(name: str, hyper: dict[str, Any], federation: Federation, **more: Any) -> Ran:
    cohorts = more.pop("cohorts", None)
    method, rounds = build_method(name, hyper), 1
    if cohorts is not None:
        method, rounds = with_cohorts(method, cohorts), len(cohorts)
    return run(method, federation, **{"training": JUMP, "rounds": rounds} | more)


# Inference similarity


def test_similarity_of_predicted_classes() -> None:
    """On six inputs 1 and 2 agree on five; as one-hot rows they have that cosine."""
    said = torch.tensor([[0, 0, 1, 1, 2, 2], [0, 0, 1, 2, 2, 2], [1, 1, 0, 0, 0, 0]])
    expected = torch.tensor([[1, 5 / 6, 0], [5 / 6, 1, 0], [0, 0, 1]], dtype=torch.float64)
    assert torch.equal(similarity(said, said), expected)
    one_hot = nn.functional.one_hot(said, 3).flatten(1).double()
    torch.testing.assert_close(similarity(one_hot, one_hot), expected)
    assert torch.equal(similarity(said[:1], said[1:]), expected[:1, 1:])


def test_similarity_of_probabilities() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1, 0.1, 0.8, 0.1]), torch.tensor([0.6, 0.3, 0.1, 0.2, 0.2, 0.6])
    assert similarity(p[None], q[None]).item() == pytest.approx(0.70244, abs=5e-6)
    assert similarity(p[None], p[None]).item() == pytest.approx(1)


@pytest.mark.parametrize("soft", [False, True])
def test_inferences_are_those_of_the_network(federation: Federation, soft: bool) -> None:
    assert federation.public is not None
    w = federation.model.init(0)
    outputs = federation.model.outputs(w, federation.public.inputs(torch.arange(60)))
    expected = outputs.softmax(1).flatten() if soft else outputs.argmax(1)
    assert torch.equal(infer(federation.model, w, federation.public, soft), expected)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("inference", ["one_hot", "soft"])
def test_trained_models_are_compared(name: str, inference: str) -> None:
    c = torch.tensor([0.0, 1, 7, 9], dtype=torch.float64)
    compared = (
        flis(name, {"inference": inference}, thresholds(c.tolist())).simulation.extension(Clusters).compared()
    )
    asked = torch.arange(10, dtype=torch.float64) + 0.5
    above = torch.sigmoid(asked - c[:, None]) if inference == "soft" else (asked >= c[:, None]).double()
    said = torch.stack([above, 1 - above], -1).flatten(1)
    alike = said @ said.T / said.norm(dim=1) / said.norm(dim=1)[:, None]
    assert compared is not None and compared.unit == "1 − inference similarity"
    np.testing.assert_allclose(compared.matrix, 1 - alike.numpy(), atol=1e-12)


# The server's data


TWO_KINDS: dict[str, Any] = {"training": {"epochs": 3, "batch_size": 10, "lr": 0.1}, "rounds": 1}


def two_kinds(digits: Dataset) -> Federation:
    """Clients 0 to 2 have digits 0 to 4, the others 5 to 9; the server holds 80 images that no client has."""
    rng, labels = np.random.default_rng(0), digits.y_train.numpy()
    kinds = [rng.permutation(np.flatnonzero((labels >= 5) == high)) for high in (False, True)]
    rows = [np.sort(part) for kind in kinds for part in np.array_split(kind[:600], 3)]
    public = digits.train.only(torch.from_numpy(np.concatenate([kind[600:640] for kind in kinds])))
    network = FlatModel(partial(build, "mlp", digits.input_shape, 10, hidden=(16,)))
    partition = Partition.from_lists(rows, rows, [np.array([k]) for k in range(6)])
    return Federation(network, digits.train, digits.train, partition, public)


@pytest.mark.parametrize("source", ["held out", "test split", "another dataset", "noise"])
def test_clients_with_the_same_labels_agree_on_any_data(digits: Dataset, source: str) -> None:
    """Of random pixels, too."""
    clients = two_kinds(digits)
    negatives = Examples(255 - digits.x_train[:200].flip(-1), digits.y_train[:200], digits.mean, digits.std)
    public = {
        "held out": clients.public,
        "test split": digits.test,
        "another dataset": negatives,
        "noise": random_examples(digits.train, 200),
    }[source]
    ran = run("flis_hc", replace(clients, public=public), {"beta": 0.3}, participation=0.2, **TWO_KINDS)
    alike = 1 - ran.servers[-1]["proximity"]
    same = torch.arange(6)[:, None] // 3 == torch.arange(6) // 3
    assert alike[same & ~torch.eye(6, dtype=torch.bool)].min() > alike[~same].max() + 0.1
    assert ran.server("assignment") == [[0, 0, 0, 1, 1, 1]]


def test_a_low_bound_groups_too_many_and_a_high_one_too_few(digits: Dataset) -> None:
    """Three false companions of six at 0, two missing ones above 1, none at 0.3."""
    clients, labels, errors = two_kinds(digits), np.repeat(np.eye(2, dtype=bool), 3, axis=0), []
    for beta in (0, 0.3, 1.01):
        ran = run("flis_dc", clients, {"beta": beta}, **TWO_KINDS)
        errors.append(clustering_error(ran.servers[-1]["members"].numpy(), labels))
    assert errors == [3, 0, 2]


def test_random_inputs_are_uniform_pixels_or_within_the_range_of_features(digits: Dataset) -> None:
    pixels = random_examples(digits.train, 500)
    assert pixels.x.dtype == torch.uint8 and pixels.x.shape == (500, 1, 8, 8)
    assert (pixels.x.min(), pixels.x.max()) == (0, 255)
    assert pixels.x.double().mean().item() == pytest.approx(127.5, abs=2)
    assert pixels.mean == digits.train.mean and len(pixels) == 500
    features = random_examples(Examples(torch.tensor([[-2.0, 3.0]]), torch.zeros(1)), 500).x
    assert -2 <= features.min() < -1.9 and 2.9 < features.max() <= 3
    tokens = random_examples(Examples(torch.tensor([[2, 5, 3]]), torch.zeros(1)), 500).x
    assert set(tokens.flatten().tolist()) == {2, 3, 4, 5}


PARAMS = """
data:
  digits: {source: digits, train_limit: 200, test_limit: 60}
  other: {source: digits, train_limit: 50, test_limit: 60}
models: {digits: {name: mlp, options: {hidden: [8]}}}
partitions:
  held: {dataset: digits, scheme: iid, clients: 3, public: 20}
  plain: {dataset: digits, scheme: iid, clients: 3}
methods:
  flis_dc: HYPER
grid: {datasets: [digits, other], partitions: [plain], methods: [flis_dc], seeds: [0]}
"""


@pytest.mark.parametrize(
    ("hyper", "partition", "count"),
    [("{}", "held", 20), ("{public: other}", "held", 50), ("{noise: 30}", "held", 30), ("{}", "plain", None)],
)
def test_sources_of_the_server_data(hyper: str, partition: str, count: int | None, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(PARAMS.replace("HYPER", hyper))
    params = load_params(tmp_path / "params.yaml")
    experiment = Experiment(params, partition, "flis_dc", 0, tmp_path)
    for name in experiment.datasets:
        prepare_dataset(params, name, tmp_path)
    prepare_partition(params, partition, tmp_path)
    clients = experiment.job.federation.open()
    assert (None if clients.public is None else len(clients.public)) == count
    if hyper == "{}" and clients.public is not None:
        set_aside = load_partition(experiment.partition_folder).public
        assert torch.equal(clients.public.x, clients.train.x[torch.from_numpy(set_aside)])
        assert not set(set_aside) & set(clients.partition.indices)


@pytest.mark.parametrize("name", BOTH)
def test_a_server_without_data_is_refused_before_any_training(federation: Federation, name: str) -> None:
    with pytest.raises(BadInput, match=r"partition.public: 0 .* method.public .* or method.noise"):
        prepare_run(name, replace(federation, public=None))


@pytest.mark.parametrize("name", BOTH)
def test_bad_input_is_named(federation: Federation, name: str) -> None:
    with pytest.raises(BadInput, match=r"method.noise: 5 .* 0 where public names a dataset"):
        build_method(name, {"noise": 5, "public": "mnist"})
    with pytest.raises(FedflowError, match=r"method.public: .*inputs \[3\].* that the clients' network can"):
        run(name, replace(federation, public=Examples(torch.zeros(4, 3), torch.zeros(4))))
    regression = quadratics()
    with pytest.raises(FedflowError, match=r"method.name: 'flis' .* there are none"):
        run(name, replace(regression, public=regression.train))


# FLIS (DC)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_clients_are_averaged_with_those_that_agree(weighting: str, cohort: str) -> None:
    """Thresholds up to 2 apart agree on 0.8: one cluster per client of the cohort, and they overlap."""
    c, sizes = np.array([0.0, 2, 4, 9]), np.array([1, 3, 2, 2])
    hyper = {"beta": 0.8, "weighting": weighting}
    ran = flis("flis_dc", hyper, thresholds(c.tolist(), sizes.tolist()), cohort=cohort)
    members = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    assert ran.servers[0]["members"].int().tolist() == members
    weights = sizes if weighting == "samples" else np.ones(4)
    assert ran.server("models")[0] == pytest.approx([np.average(c, weights=weights * row) for row in members])


def test_later_rounds_start_from_the_model_with_the_lowest_loss_of_the_last(cohort: str) -> None:
    """Two of four take part; those absent from the last round choose as well, the first of equal ones."""
    c, cohorts = np.array([0.0, 1, 7, 9]), [[0, 1, 2], [2, 3], [0, 3], [1, 2]]
    ran = flis(
        "flis_dc", {"beta": 0.7}, thresholds(c.tolist()), cohorts=cohorts, training=HALFWAY, cohort=cohort
    )
    models, asked = np.array([3.0]), np.arange(10) + 0.5
    for ids, server in zip(cohorts, ran.servers):
        starts = models[np.abs(models - c[ids][:, None]).argmin(1)]
        trained = (starts + c[ids]) / 2
        said = asked >= trained[:, None]
        alike = (said[:, None] == said).mean(2)
        models = (alike >= 0.7) @ trained / (alike >= 0.7).sum(1)
        assert server["models"].squeeze(1).tolist() == pytest.approx(models.tolist())
    chosen = np.abs(models - c[:, None]).argmin(1)
    assert ran.outcome().scores.cluster.tolist() == chosen.tolist()
    assert ran.values("bytes_down") == [8 * d for d in (3, 3 + 2 * 3, 9 + 2 * 2, 13 + 2 * 2)]
    assert ran.values("bytes_up") == [8 * d for d in (3, 5, 7, 9)]


def test_models_of_all_are_of_the_last_round_only() -> None:
    ran = flis("flis_dc", {}, thresholds((0, 1, 7, 9)), cohorts=[[0, 1, 2, 3], [1, 3]])
    assert [len(server["models"]) for server in ran.servers] == [4, 2]
    compared = ran.simulation.extension(Clusters).compared()
    assert compared is not None and compared.clients == [1, 3] and compared.matrix.shape == (2, 2)


def test_a_run_that_lost_all_clients_compares_none(federation: Federation) -> None:
    class Lost(FLISDC):
        def local(self, client: Client) -> Update:
            raise ValueError("out of order")

    with pytest.warns(UserWarning, match="round 1: every client failed"):
        ran = run(Lost(), federation, rounds=1, participation=0.5)
    assert ran.simulation.extension(Clusters).compared() is None
    assert ran.outcome().metrics["clusters"] == 1


def test_dc_without_a_bound_is_fedavg(federation: Federation, cohort: str) -> None:
    settings: dict[str, Any] = {"training": SGD, "participation": 0.5, "cohort": cohort}
    for weighting in ("samples", "uniform"):
        all_one = run("flis_dc", federation, {"beta": 0, "weighting": weighting}, **settings)
        plain = run("fedavg", federation, {"weighting": weighting}, **settings).servers[-1]["model"]
        assert torch.equal(all_one.servers[-1]["models"], plain.expand(4, -1))
        assert all_one.outcome().metrics["clusters"] == 1


def test_dc_with_a_bound_above_one_averages_no_models_and_clients_choose_among_them() -> None:
    """At 1, equal predictors are still averaged: thresholds 7 and 7.2 agree on all ten inputs."""
    c = (0.0, 1.0, 7.0, 7.2)
    one, none = (flis("flis_dc", {"beta": beta}, thresholds(c)) for beta in (1, 1.01))
    assert one.server("models") == [pytest.approx([0, 1, 7.1, 7.1])]
    assert none.server("models") == [pytest.approx(c)]
    onwards = flis("flis_dc", {"beta": 1.01}, thresholds(c), cohorts=[[0, 2], [1, 3]], training=HALFWAY)
    assert onwards.server("models") == [pytest.approx([1.5, 5]), pytest.approx([1.25, 6.1])]


def holding_out(federation: Federation, chosen_by: Sequence[float], sizes: Sequence[int]) -> Federation:
    """The same, but client k chooses by ``sizes[k]`` more samples ``chosen_by[k]``."""
    train, partition = federation.train, federation.partition
    more = torch.tensor(chosen_by, dtype=torch.float64).repeat_interleave(torch.tensor(sizes))[:, None]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    selection = {"selection_offsets": offsets, "selection_indices": len(train) + np.arange(len(more))}
    examples = Examples(torch.cat([train.x, more]), torch.cat([train.y, torch.zeros(len(more))]))
    return replace(federation, train=examples, partition=replace(partition, **selection))


def test_a_client_may_choose_by_samples_that_it_holds_out(cohort: str) -> None:
    """Trained on 0, 1 and 9, choosing by 9, 8 and 0, of which clients hold out 1, 3 and 600.

    They end half way between what they choose and what they train on.
    """
    clients = holding_out(thresholds((0, 1, 9), (4, 2, 7)), (9, 8, 0), (1, 3, 600))
    hyper = {"beta": 1.01, "select_on": "heldout"}
    more: dict[str, Any] = {"training": HALFWAY, "cohort": cohort}
    ran = flis("flis_dc", hyper, clients, cohorts=[[0, 1, 2], [0, 1, 2], [0, 2]], **more)
    assert ran.server("models") == [
        pytest.approx([1.5, 2, 6]),
        pytest.approx([3, 3.5, 5.25]),
        pytest.approx([2.625, 6]),
    ]
    assert ran.outcome().scores.cluster.tolist() == [1, 1, 0]
    usual = flis("flis_dc", {"beta": 1.01}, clients, cohorts=[[0, 1, 2]] * 2, **more)
    assert usual.server("models")[-1] == pytest.approx([0.75, 1.25, 7.5])


def test_choosing_by_held_out_samples_does_not_depend_on_the_workers(digits: Dataset) -> None:
    params = PartitionParams.parse(
        {
            "dataset": "digits",
            "scheme": "dirichlet",
            "alpha": 0.5,
            "clients": 8,
            "public": 60,
            "selection": 0.2,
            "newcomers": 0.25,
        }
    )
    made = make_partition(params, Samples.of(digits), digits.hash)
    network = FlatModel(partial(build, "mlp", digits.input_shape, 10, hidden=(8,)))
    public = digits.train.only(torch.as_tensor(made.public))
    clients = Federation(network, digits.train, digits.test, made, public)
    one, two = (
        run("flis_dc", clients, {"select_on": "heldout"}, training=SGD, executor=Workers(n)) for n in (1, 2)
    )
    metrics = one.outcome().metrics
    assert same(one.state(), two.state()) and metrics == two.outcome().metrics
    assert metrics["newcomers"] == 2 and metrics["local_accuracy"] > 0.3


@pytest.mark.parametrize("partition", ["held", "choosing"])
def test_held_out_samples_of_a_stored_partition_reach_the_clients(partition: str, tmp_path: Path) -> None:
    text = PARAMS.replace("HYPER", "{select_on: heldout, public: other}")
    text += "run: {rounds: 2, participation: 1, fine_tune: false}\n"
    (tmp_path / "params.yaml").write_text(
        text.replace(
            "  held:", "  choosing: {dataset: digits, scheme: iid, clients: 3, selection: 0.2}\n  held:"
        )
    )
    params = load_params(tmp_path / "params.yaml")
    experiment = Experiment(params, partition, "flis_dc", 0, tmp_path)
    for name in experiment.datasets:
        prepare_dataset(params, name, tmp_path)
    prepare_partition(params, partition, tmp_path)
    if partition == "held":
        with pytest.raises(BadInput, match=r"^partition.selection: 0 "):
            Simulation(experiment.job, params.run)
        return
    simulation = Simulation(experiment.job, params.run)
    assert simulation.federation.partition.sizes.tolist() == [54, 54, 53]
    assert len(list(simulation.rounds())) == 2 and simulation.outcome().metrics["local_accuracy"] > 0


def test_missing_samples_to_choose_by_are_refused_before_any_training(federation: Federation) -> None:
    partition = replace(federation.partition, selection_offsets=None, selection_indices=None)
    federation = replace(federation, partition=partition)
    with pytest.raises(
        BadInput, match=r"^partition.selection: 0 .* a share > 0, .* method.select_on to train$"
    ):
        prepare_run("flis_dc", federation, {"select_on": "heldout"})


def test_a_client_may_be_served_the_model_that_its_test_samples_choose() -> None:
    """Trained on 0 and 9, tested on 9 and 0: each is served the other's model but trains its own."""
    clients = thresholds((0, 9))
    swapped = replace(clients, test=Examples(clients.test.x.flip(0), clients.test.y))
    found = {
        select_on: flis("flis_dc", {"beta": 1.01, "select_on": select_on}, swapped, cohorts=[[0, 1]] * 2)
        for select_on in ("train", "test")
    }
    assert [ran.outcome().scores.cluster.tolist() for ran in found.values()] == [[0, 1], [1, 0]]
    assert found["train"].server("models") == found["test"].server("models")


def test_ties_go_to_the_first_model() -> None:
    client = one_client(thresholds((4,)), models=torch.tensor([[9.0], [3], [5], [3]], dtype=torch.float64))
    assert int(FLISDC().choose(client)) == 1


def test_a_newcomer_of_dc_takes_the_model_with_the_lowest_loss() -> None:
    """The clusters of the last round have 0.5 and 8."""
    newcomers = (
        flis("flis_dc", {"beta": 0.8}, thresholds((0, 1, 7, 9, 6, 2), newcomers=2)).outcome().newcomers
    )
    assert newcomers is not None and newcomers.clients == [4, 5] and newcomers.cluster.tolist() == [2, 0]


# FLIS (HC)


def test_hc_clusters_once_and_discards_the_trained_models(cohort: str) -> None:
    """From 3 halfway to the samples' mean; weights are samples. The onboarding ends at 1.5, 2, 5 and 6."""
    c, sizes = (0.0, 1.0, 7.0, 9.0), (1, 3, 2, 2)
    clients, cohorts = thresholds(c, sizes), [[0, 1, 2, 3], [2]]
    ran = flis("flis_hc", {"beta": 0.8}, clients, training=HALFWAY, cohorts=cohorts, cohort=cohort)
    first = [(3 + 0.75) / 2, (3 + 8) / 2]
    assert ran.server("assignment") == [[0, 0, 1, 1]] * 2
    assert ran.server("models") == [pytest.approx(first), pytest.approx([first[0], (first[1] + 7) / 2])]
    assert ran.outcome().scores.cluster.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("linkage", LINKAGES)
def test_clusters_merge_up_to_one_minus_beta(linkage: str) -> None:
    """0, 2 and 4: 0.2 apart; then 0.2, 0.3 or 0.4 to the third."""
    needed = {"single": 0.8, "complete": 0.6, "upgma": 0.7, "wpgma": 0.7}[linkage]
    for beta, one in ((needed - 0.01, True), (needed + 0.01, False)):
        hyper = {"beta": beta, "linkage": linkage}
        found = flis("flis_hc", hyper, thresholds((0, 2, 4))).server("assignment")[0]
        assert found == ([0, 0, 0] if one else [0, 1, 2] if linkage == "single" else [0, 0, 1])


@pytest.mark.parametrize(("beta", "assignment"), [(0.59, [0, 0, 0]), (0.61, [0, 1, 2])])
def test_neighbors_are_at_most_one_minus_beta_apart(beta: float, assignment: list[int]) -> None:
    ran = flis("flis_hc", {"beta": beta, "variant": "neighborhood"}, thresholds((0, 2, 4)))
    assert ran.server("assignment") == [assignment]


def test_hc_without_a_bound_is_fedavg(federation: Federation, cohort: str) -> None:
    settings: dict[str, Any] = {"training": SGD, "participation": 0.5, "cohort": cohort}
    one = run("flis_hc", federation, {"beta": 0}, **settings).servers[-1]["models"]
    assert torch.equal(one, run("fedavg", federation, **settings).servers[-1]["model"][None])


@pytest.mark.parametrize("variant", ["clusters", "neighborhood"])
def test_hc_with_a_bound_above_one_is_local_training_of_the_cohort(
    federation: Federation, variant: str, cohort: str
) -> None:
    settings: dict[str, Any] = {"training": SGD, "participation": 0.5, "cohort": cohort}
    alone = run("flis_hc", federation, {"beta": 1.01, "variant": variant}, **settings).servers[-1]
    local = run("local", federation, **settings)
    assert alone["assignment"].tolist() == [*range(8)]
    # Not bit for bit: a mean of one is its model times and over its weight.
    torch.testing.assert_close(alone["models"], torch.stack(local.clients[-1]["model"]), rtol=0, atol=1e-6)


def test_at_one_equal_predictors_belong_together() -> None:
    """Thresholds 7 and 7.2 agree on all ten inputs."""
    for variant in ("clusters", "neighborhood"):
        ran = flis("flis_hc", {"beta": 1, "variant": variant}, thresholds((7, 0, 7.2, 1)))
        assert ran.server("assignment") == [[0, 1, 0, 2]]


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_neighbors_start_from_the_mean_of_their_last_models(weighting: str, cohort: str) -> None:
    """First models and stale ones included; 0, 2 and 4 are a chain of neighbors at 0.8."""
    c, sizes, cohorts = np.array([0.0, 2, 4, 9]), np.array([1, 3, 2, 2]), [[0, 2], [1, 3], [0, 1]]
    hyper = {"beta": 0.8, "variant": "neighborhood", "weighting": weighting}
    ran = flis("flis_hc", hyper, thresholds(c.tolist(), sizes.tolist()), cohorts=cohorts, cohort=cohort)
    near = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]])
    shares = near * (sizes if weighting == "samples" else np.ones(4))
    latest = np.full(4, 3.0)
    for ids, server in zip(cohorts, ran.servers):
        latest[ids] = c[ids]
        assert server["latest"].squeeze(1).tolist() == pytest.approx(latest.tolist())
        held = server["models"][server["assignment"]].squeeze(1).tolist()
        assert held == pytest.approx((shares @ latest / shares.sum(1)).tolist())
    assert ran.server("assignment") == [[0, 1, 2, 3]] * 3
    compared = ran.simulation.extension(Clusters).compared()
    assert compared is not None and compared.height is None  # no tree is cut


def test_weights_of_neighbors_are_in_double_precision() -> None:
    """A third of 9 and two thirds of 0.1, where a third in single precision is off by 1e-8."""
    hyper = {"beta": 0, "variant": "neighborhood"}
    ran = flis("flis_hc", hyper, thresholds((9, 0.1), (1, 2)))
    assert ran.server("models")[0] == pytest.approx((9 + 2 * 0.1) / 3, rel=1e-15, abs=0)


def test_all_as_neighbors_under_full_participation_are_fedavg(federation: Federation, cohort: str) -> None:
    hyper = {"beta": 0, "variant": "neighborhood"}
    one = run("flis_hc", federation, hyper, training=SGD, cohort=cohort).servers[-1]["models"]
    plain = run("fedavg", federation, training=SGD, cohort=cohort).servers[-1]["model"]
    torch.testing.assert_close(one, plain[None], rtol=0, atol=1e-6)


def test_neighborhoods_have_no_server_learning_rate() -> None:
    with pytest.raises(BadInput, match=r"method.server_lr: 0.5 .* 1 where variant is neighborhood"):
        build_method("flis_hc", {"variant": "neighborhood", "server_lr": 0.5})


@pytest.mark.parametrize("hyper", [{"linkage": "single"}, {"assign": "rehc"}])
def test_options_of_the_tree_are_refused_for_neighborhoods(hyper: dict[str, Any]) -> None:
    (name,) = hyper
    with pytest.raises(BadInput, match=f"^method.{name}: .* its default, with variant: neighborhood$"):
        build_method("flis_hc", hyper | {"variant": "neighborhood"})


# Newcomers of FLIS (HC)


@pytest.mark.parametrize("assign", ["attach", "rehc"])
def test_a_newcomer_joins_the_most_similar_cluster_or_forms_a_new_one(assign: str) -> None:
    """At 0.7, clusters have a mean width of 0.3."""
    c = np.array([1.0, 0, 9, 10, 8, 2, 5, 5])
    clients = thresholds(c.tolist(), newcomers=4)
    ran = flis("flis_hc", {"beta": 0.7, "assign": assign}, clients)
    newcomers = ran.outcome().newcomers
    assert newcomers is not None and newcomers.cluster.tolist() == [1, 0, 2, 2]
    assert last_server(ran).models.tolist() == [[0.5], [9.5], [3]]
    matrix = last_server(ran).proximity.numpy()
    np.testing.assert_allclose(matrix, np.abs(c[:, None] - c) / 10, atol=1e-12)


@pytest.mark.parametrize("inference", ["one_hot", "soft"])
def test_newcomers_extend_the_matrix_to_that_of_all(federation: Federation, inference: str) -> None:
    hyper = {"inference": inference}
    whole, some = (run("flis_hc", f, hyper, rounds=1) for f in (federation, with_newcomers(federation, 3)))
    some.outcome()
    found, expected = last_server(some).proximity, whole.servers[0]["proximity"]
    assert expected.max() > 0.01 and torch.equal(expected, expected.T)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_a_newcomer_starts_from_the_mean_of_its_neighbors() -> None:
    """Or from the first model without any; clusters of clients keep their numbers."""
    clients = thresholds((9, 1, 0, 8, 2, 5, 9), sizes=(1, 3, 2, 2, 1, 1, 1), newcomers=3)
    ran = flis("flis_hc", {"beta": 0.85, "variant": "neighborhood"}, clients)
    assert ran.server("assignment") == [[0, 1, 1, 0]]
    newcomers, server = ran.outcome().newcomers, last_server(ran)
    assert newcomers is not None
    assert server.assignment.tolist() == [0, 1, 1, 0, 2, 3, 0]
    assert newcomers.cluster.tolist() == [2, 3, 0]
    assert server.models.squeeze(1).tolist() == pytest.approx([25 / 3, 0.6, 1, 3])


# Traffic, in Mb = 10^6 bits


def test_published_traffic_of_lenet() -> None:
    """3.97 Mb a client before the first round; then as FedAvg, and (DC) one more model a participant down."""
    x = torch.randint(0, 256, (20, 3, 32, 32), generator=torch.Generator().manual_seed(0)).byte()
    examples = Examples(x, torch.arange(20) % 10)
    lenet = FlatModel(partial(build, "lenet5", (3, 32, 32), 10))
    ten = Federation(lenet, examples, examples, consecutive([2] * 10), examples)
    settings: dict[str, Any] = {"rounds": 2, "training": {"epochs": 1}}
    metrics = run("flis_hc", ten, {}, participation=0.1, **settings).outcome().metrics
    onboarding = metrics["onboarding_bytes_down"] + metrics["onboarding_bytes_up"]
    assert onboarding * 8 / 1e6 / 10 == pytest.approx(3.97, abs=5e-3)
    megabits = (metrics["bytes_down"] + metrics["bytes_up"]) * 8 / 1e6 / 10 / 2
    assert [19 * megabits, 26 * megabits, 22 * megabits] == pytest.approx([7.53, 10.31, 8.73], rel=2e-3)
    dc = run("flis_dc", ten, {}, participation=0.3, **settings)
    transfers = [(r.values["bytes_down"] + r.values["bytes_up"]) / 4 / lenet.size / 3 for r in dc.rounds]
    assert transfers == [2, 2 + 3 + 1] and "onboarding_bytes_up" not in dc.outcome().metrics
