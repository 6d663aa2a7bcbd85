"""`fedflow.run`: data, divisions, networks and methods of all kinds, its errors, and what it imports."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from command import one_line_error
from support import refused
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fedflow as ff
from fedflow.errors import BadInput, FedflowError, RoundFailed
from fedflow.front.record import _absolute
from fedflow.front.runner import _in_turn
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.protocols import Adapting
from fedflow.partition import SCHEMES

SMALL: dict[str, Any] = {"rounds": 2, "progress": False, "compile": "never", "device": "cpu"}
FEW = {"clients": 4, "alpha": 0.5}


def blobs(rows: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that a linear model separates: features [rows, 5], labels [rows]."""
    labels = np.arange(rows) % 3
    noise = np.random.default_rng(seed).normal(scale=0.1, size=(rows, 5))
    return (noise + np.eye(3, 5)[labels]).astype(np.float32), labels


def own(**changes: Any) -> Any:
    (x, y), (x_test, y_test) = blobs(), blobs(30, 1)
    return ff.dataset(**{"x": x, "y": y, "x_test": x_test, "y_test": y_test} | changes)


class Halved(FedAvg):
    """FedAvg whose global model moves half of the way."""

    step: float = ff.option(0.5, "share of the way", gt=0, le=1)

    def aggregate(self, now: Any, server: Any, cohort: Any) -> Any:
        after, numbers = super().aggregate(now, server, cohort)
        return type(after)(server.model + self.step * (after.model - server.model)), numbers


class Faster(Adapting, FedAvg):
    """FedAvg with twice the learning rate of the run."""

    def trains(self, training: LocalTraining) -> LocalTraining:
        return replace(training, lr=2 * training.lr)


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def test_named_data() -> None:
    run = ff.run("digits", ff.dirichlet(**FEW), ff.Ditto(lam=0.5), **SMALL)
    assert len(run.rounds) == 2 and len(run.clients) == 4
    assert run.settings["method"]["lam"] == 0.5 and run.settings["data"]["source"] == "digits"
    assert run.settings["partition"]["alpha"] == 0.5 and run.settings["model"] == {"name": "mlp"}
    assert run.clients["samples"].sum() == 1438 and run.rounds["round"].tolist() == [1, 2]
    assert run.rounds.dtypes["bytes_up"] == "int64" and not run.rounds.isna().all().any()


def test_the_columns_of_a_table_are_printed_when_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise, sorted by class, with the index that pandas writes: it is no feature."""
    monkeypatch.setenv("FEDFLOW_CACHE", str(tmp_path / "cache"))
    rows = [f"{i},{np.sin(99 * i)},{i // 100}" for i in range(200)]
    (tmp_path / "noise.csv").write_text("\n".join([",a,label", *rows]))
    data = {"source": "table", "path": str(tmp_path / "noise.csv"), "target": "label"}
    run = ff.run(data, ff.iid(clients=2), model="logistic", **SMALL | {"rounds": 5})
    assert run.metrics["global_accuracy"] < 0.7
    words = "noise: 1 feature: a; target: label (2 classes: 0, 1); left out: Unnamed: 0 (without a name)"
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, np.ndarray.tolist])
def test_own_arrays_of_any_kind_are_the_same_data(kind: Any) -> None:
    (x, y), (x_test, y_test) = blobs(), blobs(30, 1)
    data = ff.dataset(*(kind(values) for values in (x, y, x_test, y_test)))
    run = ff.run(data, ff.iid(clients=3), training={"lr": 0.5, "epochs": 3}, **SMALL | {"rounds": 6})
    same = ff.run(own(), ff.iid(clients=3), training={"lr": 0.5, "epochs": 3}, **SMALL | {"rounds": 6})
    assert run.metrics == same.metrics and run.metrics["global_accuracy"] > 0.9
    assert data.classes == ("0", "1", "2")


def test_images_without_a_channel() -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 28, 28), dtype=np.uint8)
    run = ff.run(ff.dataset(images, np.arange(40) % 2, images, np.arange(40) % 2), ff.iid(clients=2), **SMALL)
    assert run.settings["model"]["name"] == "lenet5"
    assert run.model()(torch.zeros(1, 1, 28, 28)).shape == (1, 2)


def test_a_regression() -> None:
    (x, _), (x_test, _) = blobs(), blobs(30, 1)
    run = ff.run(own(y=x.sum(1), y_test=x_test.sum(1)), ff.iid(clients=3), **SMALL)
    assert run.metrics["loss"] < 10 and "loss" in repr(run).lower()


def test_own_lists_of_rows() -> None:
    run = ff.run(own(), [range(0, 30), np.arange(30, 60, 3), [31, 32]], **SMALL)
    assert run.clients["samples"].tolist() == [30, 10, 2]
    assert run.clients["test_samples"].tolist() == [30, 10, 20]  # the samples of their labels


def test_masks_are_lists_of_rows() -> None:
    client = np.arange(60) % 7 // 3
    rows = ff.run(own(), [np.flatnonzero(client == k) for k in range(3)], **SMALL)
    for masks in ([client == k for k in range(3)], np.stack([client == k for k in range(3)])):
        run = ff.run(own(), masks, **SMALL)
        assert run.partition.hash == rows.partition.hash and run.metrics == rows.metrics


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ff.dirichlet(0.1, 10), "^fedflow.dirichlet: 0.1, 10 .* alpha=0.1, clients=10$"),
        (lambda: ff.dirichlet(0.1, clients=10), "^fedflow.dirichlet: 0.1 .* alpha=0.1$"),
        (lambda: ff.dirichlet(10), "^fedflow.dirichlet: 10 .* clients=10$"),
        (lambda: ff.iid(10), "^fedflow.iid: 10 .* clients=10$"),
        (lambda: ff.scheme("iid", dataset="cifar10"), "^partition.dataset: 'cifar10' .* no dataset, as"),
    ],
)
def test_values_of_a_scheme_have_names(call: Any, match: str) -> None:
    with one_line_error(match, BadInput):
        call()


def test_a_division_as_a_mapping() -> None:
    named, mapping = (ff.run(own(), d, **SMALL) for d in (ff.iid(clients=3), {"scheme": "iid", "clients": 3}))
    assert named.metrics == mapping.metrics


def test_clients_have_the_names_of_the_caller() -> None:
    north = np.arange(60) < 20
    run = ff.run(own(), {"north": north, "south": ~north}, **SMALL)
    assert run.clients["name"].tolist() == ["north", "south"] and run.clients["samples"].tolist() == [20, 40]
    tested = {"train": [north, ~north], "test": [np.arange(30) < 9, list(range(9, 30))]}
    assert ff.run(own(), tested, **SMALL).clients["test_samples"].tolist() == [9, 21]
    x, y = blobs()
    data = ff.dataset({"b": (x[:40], y[:40]), "a": (x[40:], y[40:])}, test_share=0.2)
    assert ff.run(data, ff.natural(), **SMALL).clients["name"].tolist() == ["b", "a"]
    other = ff.scheme(
        "given", rows={"u": range(9), "v": range(9, 30), "w": range(30, 60)}, newcomers=0.3, seed=3
    )
    clients = ff.run(own(), other, **SMALL).clients
    assert dict(zip(clients["name"], clients["samples"])) == {"u": 9, "v": 21, "w": 30}


def linear_with(hits: Any) -> nn.Module:
    class Counting(nn.Linear):
        def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
            return hits(outputs, y)

    return Counting(5, 3)


@pytest.mark.parametrize(
    ("hits", "match"),
    [
        (lambda outputs, y: (outputs.argmax(1) == y).float().mean(), r"of \[\] for 2 samples"),
        (lambda outputs, y: 7 * (outputs.argmax(1) == y), "of 7 "),
        (lambda outputs, y: outputs.argmax(1) / 0 * y, "of (nan|inf) "),
        (lambda outputs, y: y.missing, "that raises AttributeError"),
    ],
)
def test_hits_of_a_network_are_shares(hits: Any, match: str) -> None:
    with one_line_error(rf"^model: hits\(outputs, y\) {match}.* a number from 0 to 1 per sample", BadInput):
        ff.run(own(), ff.iid(clients=3), model=linear_with(hits), **SMALL)
    top = linear_with(lambda outputs, y: (outputs.topk(2).indices == y[:, None]).any(1))
    assert ff.run(own(), ff.iid(clients=3), model=top, **SMALL).metrics["global_accuracy"] <= 1


def test_a_diverged_model_is_told(capsys: pytest.CaptureFixture) -> None:
    class Far(FedAvg):
        def aggregate(self, now: Any, server: Any, cohort: Any) -> Any:
            return replace(server, model=server.model * 1e38), {}

    ff.run(own(), ff.iid(clients=3), Far, fine_tune=False, **SMALL | {"rounds": 1})
    assert capsys.readouterr().out.endswith("not finite; the accuracies are of a diverged model\n")


def test_own_network() -> None:
    network = two_layers()
    before = [p.clone() for p in network.parameters()]
    run = ff.run(own(), ff.iid(clients=3), model=network, training={"lr": 1e-9}, **SMALL)
    trained = run.model()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(before, trained.parameters()))  # its start
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters()))  # and it does not change
    assert not trained.training and run.metrics["parameters"] == 39


def test_frozen_layers_of_an_own_network_stay_as_they_are() -> None:
    network = two_layers()
    network[0].requires_grad_(False)
    run = ff.run(own(), ff.iid(clients=3), model=network, **SMALL)
    trained = run.model()
    assert torch.equal(trained[0].weight, network[0].weight) and torch.equal(trained[0].bias, network[0].bias)
    assert not torch.equal(trained[2].weight, network[2].weight)
    assert run.metrics["parameters"] == 15 and run.metrics["bytes_up"] == 2 * 3 * 15 * 4
    network[0].weight.data[0] += 1
    other = ff.run(own(), ff.iid(clients=3), model=network, **SMALL)
    assert run.settings["model"]["hash"] != other.settings["model"]["hash"]


def test_patterns_say_what_is_trained_of_a_named_network() -> None:
    head = {"name": "mlp", "hidden": [4], "trainable": ["layers.last.*"]}
    run = ff.run(own(), ff.iid(clients=3), model=head, **SMALL)
    assert run.metrics["parameters"] == 15 and run.settings["model"]["trainable"] == ["layers.last.*"]
    with one_line_error(r"^model.trainable: 'head.*' .*one of layers.1.weight", BadInput):
        ff.run(own(), ff.iid(clients=3), model=head | {"trainable": ["head.*"]}, **SMALL)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(9, 3), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.embedding(x).flatten(1))


@pytest.mark.filterwarnings("error:.*not all costs")
def test_costs_of_an_own_network_on_tokens_are_counted() -> None:
    x, x_test = (torch.randint(9, (n, 4), dtype=torch.int32) for n in (60, 30))
    run = ff.run(own(x=x, x_test=x_test), ff.iid(clients=3), model=Words(), **SMALL)
    assert run.metrics["macs"] == 36


@pytest.mark.parametrize("network", [None, "mlp", nn.Linear(5, 2)])
def test_a_regression_of_several_targets(network: Any) -> None:
    (x, _), (x_test, _) = blobs(), blobs(30, 1)
    data = ff.dataset(x, x[:, :2], x_test, x_test[:, :2])
    run = ff.run(data, ff.iid(clients=3), model=network, training={"lr": 0.2}, **SMALL | {"rounds": 20})
    assert run.metrics["loss"] < 0.05 and "local_accuracy" not in run.rounds
    assert run.model()(torch.zeros(4, 5)).shape == (4, 2)


def test_a_network_that_cannot_be_made_is_named() -> None:
    def broken() -> nn.Module:
        raise RuntimeError("no weights\nhere")

    for network, match in {
        nn.Linear: r"^model: Linear is not accepted; expected an object such as Linear\(...\), .* missing 2",
        broken: r"^model: broken .* a function without arguments .*\(RuntimeError: no weights\)",
    }.items():
        with one_line_error(match, BadInput):
            ff.run(own(), ff.iid(clients=3), model=network, **SMALL)
    masked = two_layers()
    masked[0].weight.register_hook(lambda g: g * 0)
    with one_line_error("^model.0.weight: a hook", BadInput):
        ff.run(own(), ff.iid(clients=3), model=masked, **SMALL)


def test_a_network_is_made_once_per_seed() -> None:
    first, again, other = (
        ff.run(own(), ff.iid(clients=3), model=two_layers, seed=s, **SMALL) for s in (0, 0, 1)
    )
    assert first.metrics == again.metrics != other.metrics


@pytest.mark.parametrize("method", [Halved, Halved(), Halved(step=0.5)])
def test_own_method_needs_no_registration(method: Any) -> None:
    run = ff.run(own(), ff.iid(clients=3), method, **SMALL | {"rounds": 1})
    whole = ff.run(own(), ff.iid(clients=3), ff.FedAvg(), **SMALL | {"rounds": 1})
    start = ff.run(own(), ff.iid(clients=3), ff.FedAvg(), training={"lr": 1e-30}, **SMALL | {"rounds": 1})

    def flat(one: Any) -> Tensor:
        return nn.utils.parameters_to_vector(one.model().parameters())

    assert torch.allclose(flat(run), (flat(whole) + flat(start)) / 2, atol=1e-6)
    assert run.settings["method"]["name"] == "Halved" and "Halved" in repr(run)


def test_a_method_changes_the_local_training_of_the_run_once() -> None:
    run = ff.run(own(), ff.iid(clients=3), method=Faster(), training={"lr": 0.1}, **SMALL)
    assert run.settings["training"]["lr"] == 0.2


def test_every_method_and_scheme_is_reachable() -> None:
    for cls in METHODS.values():
        assert getattr(ff, cls.__name__) is cls and cls.__name__ in dir(ff)
    assert len({cls.__name__ for cls in METHODS.values()}) == len(METHODS)
    for name in SCHEMES:
        assert getattr(ff, name).__name__ == name and name in dir(ff)
    assert ff.Training is LocalTraining and "Smaller alpha" in ff.dirichlet.__doc__


def test_docstrings_tell_idea_and_keywords() -> None:
    assert "pulled towards" in ff.Ditto.__doc__ and "lam: pull" in ff.Ditto.__doc__


def table_of(rows: int) -> pd.DataFrame:
    return pd.DataFrame({"x": np.random.default_rng(0).normal(size=rows), "y": [0, 1] * (rows // 2)})


def test_a_relative_path_is_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"source": "table", "path": "t.csv", "target": "y"}
    for name, rows in (("a", 60), ("b", 40)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        table_of(rows).to_csv("t.csv", index=False)
    sizes = []
    for name in ("a", "b"):
        monkeypatch.chdir(tmp_path / name)
        sizes.append(sum(ff.run(table, ff.iid(clients=2), **SMALL).partition.sizes))
    assert sizes[0] > sizes[1]
    monkeypatch.chdir(tmp_path)
    with one_line_error("no file 't.csv'", FedflowError):
        ff.run(table, ff.iid(clients=2), **SMALL)


def test_recorded_tables_have_paths_that_hold_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a.csv", "b.csv"):
        table_of(40).to_csv(name, index=False)
    table = {"source": "table", "path": "a.csv", "test_path": "b.csv", "target": "y"}
    run = ff.run(table, ff.iid(clients=2), record="~/study", **SMALL)
    assert run.folder is not None and run.folder.is_relative_to(tmp_path / "study")
    entry = yaml.safe_load((tmp_path / "study" / "params.yaml").read_text())["data"]["a"]
    assert (entry["path"], entry["test_path"]) == (str(tmp_path / "a.csv"), str(tmp_path / "b.csv"))
    assert _absolute({"source": "huggingface", "path": "a/b"})["path"] == "a/b"  # a name on the Hub


def test_samples_are_dealt_by_losses_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = np.zeros((8, 2), np.float32), np.repeat([0, 1], 4)
    data = ff.dataset(x, y, x[:2], y[3:5])
    np.save("losses.npy", np.array([3.0, 0, 2, 1, 7, 5, 6, 4]))
    division = ff.iid(clients=2, difficulty={"losses": "losses.npy", "order": 1})
    made = ff.run(data, division, rounds=1, progress=False).partition
    assert set(made.train(0)) == {1, 3, 5, 7}
    with refused("^partition.difficulty.expert: 'e' .*null, as only projects have central networks"):
        ff.run(data, ff.iid(clients=2, difficulty={"expert": "e", "order": 1}), rounds=1, progress=False)


def test_rounds_of_numpy_are_numbers() -> None:
    runs = [ff.run(own(), ff.iid(clients=3), **SMALL | {"rounds": rounds}) for rounds in (40, np.int64(40))]
    assert runs[0].settings == runs[1].settings


def test_a_mistake_in_a_method_in_development_ends_its_first_round() -> None:
    class Unfinished(ff.Method):
        def local(self, client: ff.Client) -> ff.Update:
            return ff.Update({"model": client.fit(start=client.message["model"])})

    class Wrong(ff.FedAvg):
        def local(self, client: ff.Client) -> ff.Update:
            return client.nothing

    class New(Unfinished):
        aggregate = local = Wrong.local

    with one_line_error("method: Unfinished .* a class that defines aggregate$", BadInput):
        ff.run(own(), ff.iid(clients=3), Unfinished, **SMALL)
    words = (
        r"^round 1: every client failed \(client 0: AttributeError: .*'nothing' \(test_run.py, line \d+\); "
        r"and 2 more\)$"
    )
    for method, name in ((Wrong(), "fedavg"), (New, "New")):
        warned = pytest.warns(UserWarning, match=f"^{name}: round 1: every client failed")
        with warned, one_line_error(words, RoundFailed):
            ff.run(own(), ff.iid(clients=3), method, **SMALL)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"method": "dito"}, r"method.name: 'dito' .*\(did you mean 'ditto'\?\); expected one of .*ditto"),
        ({"method": 3}, "method: 3 .* a name such as 'ditto', or an object"),
        ({"method": "fedvag"}, r"method.name: 'fedvag' .*\(did you mean 'fedavg'\?\)"),
        ({"seeds": 3}, r"seeds: 3 .* a list of whole numbers, such as range\(3\)"),
        ({"seeds": []}, r"seeds: \[\] .* a list of whole numbers"),
        ({"seeds": 2.0}, r"seeds: 2.0 .* a list of whole numbers"),
        ({"record": True}, "record: True .* a folder"),
        ({"record": ""}, "record: '' .* a folder"),
        ({"method": {"method": "ditto", "lamb": 1}}, "lamb: .*did you mean 'lam'.* one of lam, "),
        ({"data": "digit"}, "data.source: .*did you mean 'digits'.* one of "),
        ({"data": 3}, "data: int .* the name of a source, a mapping, or fedflow.dataset"),
        ({"partition": "iid"}, "partition: 'iid' .* a scheme such as fedflow.dirichlet"),
        ({"partition": []}, "partition: list .* a list of row numbers per client"),
        ({"partition": [[0], []]}, r"partition\[1\]: an empty list .* one row number or more"),
        ({"partition": [[0], None]}, r"partition\[1\]: a NoneType .* row numbers of training samples"),
        (
            {"partition": [[0], {"train": [1], "test": [2]}]},
            r"partition.rows: .* train of client 1 holds no list",
        ),
        ({"partition": [[0], [[1, 2]]]}, r"partition\[1\]: a list .* row numbers"),
        ({"partition": [[0], ["a"]]}, r"partition\[1\]: a list .* row numbers"),
        ({"partition": [[0], [-1, 7]]}, r"partition\[1\]: \[-1\] .* whole numbers from 0 to 59"),
        ({"partition": [[0], [1, 2, 1]]}, r"partition\[1\]: 1 .* every training sample at most once"),
        (
            {"partition": [np.arange(50) < 9, np.arange(60) >= 9]},
            r"partition\[0\]: a mask of 50 .* of the 60 ",
        ),
        ({"partition": [np.arange(60) < 9, np.arange(60) < 0]}, r"partition\[1\]: an empty list"),
        ({"partition": [np.arange(60) < 9, np.arange(60) > 7]}, "partition: 8 .* clients 0 and 1 both"),
        ({"partition": [0, 1, 0]}, r"partition: list .* \[np.flatnonzero\(owner == k\) for k"),
        (
            {"partition": {0: [1], 1: [60]}},
            r"partition.rows: row 60 of client 1 .* training samples, 0 to 59",
        ),
        ({"partition": {0: [1], 1: []}}, r"partition.rows: client 1 without training rows"),
        ({"partition": {"alpha": 0.1}}, r"partition: a dict without `scheme` .* rows by client"),
        ({"model": nn.Linear}, r"model: Linear .* an object such as Linear\(\.\.\.\)"),
        (
            {"model": {"weight": torch.ones(9, 9)}},
            "model: a dict without `name` .* the name of an architecture",
        ),
        ({"model": [two_layers()]}, "model: a list .* a torch.nn.Module, or a function that makes one"),
        (
            {"data": {"x": np.ones((6, 2)), "y": [0, 1] * 3}},
            "data: a dict without `source` .* fedflow.dataset",
        ),
        ({"model": lambda d: nn.Linear(d, 3)}, "model: <lambda> .* a function without arguments"),
        ({"data": (np.ones((6, 2)), [0, 1] * 3)}, r"data: tuple .*: fedflow.dataset\(x, y, x_test, y_test\)"),
        ({"data": TensorDataset(torch.ones(6, 2))}, r"data: TensorDataset .* fedflow.dataset\(train, test\)"),
        (
            {"data": DataLoader(TensorDataset(torch.ones(6, 2)))},
            r"data: DataLoader .* fedflow.dataset\(train, test\)",
        ),
        ({"data": "here/table.csv"}, 'data: .*: fedflow.run.{"source": "table", "path": "here/table.csv"'),
        ({"data": Path("a.npz")}, 'data: PosixPath .*: fedflow.run.{"source": "npz", "path": "a.npz"'),
        ({"partition": [[0], [60]]}, r"partition\[1\]: \[60\] .* whole numbers from 0 to 59"),
        ({"partition": [[0], [0.5]]}, r"partition\[1\]: \[0.5\] .* whole numbers"),
        ({"partition": [[0, 1], [1]]}, "partition: 1 .* every training sample at most once; clients 0 and 1"),
        ({"model": "lenet"}, "model.name: 'lenet' .*did you mean 'lenet5'.* one of "),
        ({"model": "lenet5"}, "model.name: 'lenet5' .* that fit"),
        ({"model": {"hidden": [3]}}, "model: .* a mapping with the name of an architecture"),
        ({"model": lambda: 3}, r"model: 'int' .* returns a torch.nn.Module"),
        ({"rounds": 0}, "run.rounds: 0 .* a whole number >= 1"),
        ({"rouds": 3}, r"fedflow.run: 'rouds' .* \(did you mean 'rounds'\?\)"),
        ({"lr": 0.1}, "lr: 0.1 .* within training="),
        ({"learning_rate": 0.1}, r"learning_rate: 0.1 .*did you mean 'lr'.* within training={'lr': ...}"),
        ({"optimizer": "adam"}, "optimizer: 'adam' .* within training="),
        ({"optimiser": "adam"}, "optimiser: .*did you mean 'optimizer'.* within training={'optimizer': ...}"),
        ({"training": {"optimiser": "adam"}}, "^training.optimiser: .*did you mean 'optimizer'"),
        ({"method": {"method": "fesem", "centres": 2}}, "^method.centres: .*did you mean 'centers'"),
        ({"clients": 10}, r"clients: 10 .* within the partition, such as fedflow.dirichlet\(clients=...\)"),
        ({"num_rounds": 10}, "did you mean 'rounds'"),
        ({"fraction_fit": 1}, "did you mean 'participation'"),
        ({"strategy": "fedavg"}, "did you mean 'method'"),
        ({"method": "FedAvgX"}, "did you mean 'fedavg'.*`fedflow methods` lists them"),
        ({"training": []}, r"training: \[\] .* a mapping"),
        ({"model": ""}, "model.name: '' "),
        ({"training": {"lrr": 1}}, "training.lrr: .*did you mean 'lr'"),
        ({"min_cohort": 3, "participation": 0.7}, "run.min_cohort: 3 .* at most 2, the cohort at partic"),
        ({"participation": 2}, "run.participation: 2.0 .* a number > 0 and <= 1"),
        ({"seed": -1}, "seed: -1 .* a whole number >= 0"),
        ({"seed": "a"}, "seed: 'a' .* a whole number >= 0"),
        ({"device": "gpu"}, "device: 'gpu' .* one of auto, cpu, cuda"),
        ({"compile": True}, "compile: True .* one of auto, always, never"),
        ({"checkpoint_every": 2}, "^checkpoint_every: 2 .* no value without record="),
        ({"progress": "no"}, "progress: 'no' .* True or False"),
        (
            {"partition": ff.iid(clients=3, seed=5), "redraw": "both"},
            "partition.seed: 5 .* 0 with redraw='both'",
        ),
        (
            {"partition": {"a": range(9), "b": range(9, 60)}, "seeds": [0, 1], "redraw": "division"},
            "redraw: 'division' .* run, as no seed changes this division",
        ),
        ({"partition": {"a": [True] * 9, "b": range(9, 60)}}, "partition: a mask of 9 .* of the 60 training"),
    ],
)
def test_errors_name_what_is_accepted(given: dict[str, Any], match: str) -> None:
    with one_line_error(match, BadInput):
        ff.run(**{"data": own(), "partition": ff.iid(clients=3), **SMALL} | given)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("fedhen", "exits"),
        ("noside", "exits"),
        ("decouple", "exits"),
        ("heterofl", "width and the option exits"),
    ],
)
def test_a_network_without_levels_is_refused_before_anything_is_compiled(name: str, option: str) -> None:
    match = f"^model.name: mlp .* a network with the option {option}, which {name} changes"
    with one_line_error(match, BadInput):
        ff.run(own(), ff.iid(clients=3), name, **SMALL | {"compile": "always"})


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"method": "fedhen", "model": "mlp"}, "model.name: mlp .* the option exits, which fedhen changes"),
        ({"method": ff.CFL(warm_up=9), "rounds": 9}, "method.warm_up: 9 .*less than 9, the rounds"),
        ({"method": "flis_dc"}, "partition.public: 0 "),
        ({"method": "superfed"}, "partition.selection: 0 .*a share > 0, as superfed needs held-out samples"),
    ],
)
def test_settings_are_checked_before_data_are_downloaded(
    given: dict[str, Any], match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFLOW_DATA", str(tmp_path / "none"))
    with one_line_error(match, BadInput):
        ff.run({"source": "cifar10", "seed": 99}, ff.iid(clients=3), **SMALL | given)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"x": np.zeros((59, 5), np.float32)}, r"x: \(59, 5\) .* n = 60 > 0 targets"),
        ({"x_test": np.zeros((30, 4), np.float32)}, r"x_test: \(4,\) .* the shape \(5,\)"),
        ({"x": np.full((60, 5), np.nan, np.float32)}, "x: nan .* finite numbers"),
        ({"x": [["a"] * 5] * 60}, "x: 'list' .* an array or tensor of numbers"),
        ({"x": np.ones((60, 5), object)}, r"x: 'ndarray' .* as in x.astype\('float32'\); it holds object"),
        ({"x": np.ones((60, 5), bool)}, r"x: bool \[60, 5\] .* x.astype\('float32'\)"),
        ({"x": np.ones((60, 5), complex)}, "x: 'ndarray' .* it holds complex128"),
        ({"x": np.ones((60, 5))}, "x_test: float32 .* the type of x, float64"),
        ({"x": np.full((60, 5), 1e300), "x_test": np.ones((30, 5))}, "x: 1e.300 .* finite numbers"),
        (
            {"x": np.ma.masked_equal(np.arange(300.0).reshape(60, 5), 3)},
            "x: a masked array .* as in x.filled",
        ),
        ({"x": np.ones(60), "x_test": np.ones(30)}, r"x: \(60,\) .* of one feature: x\[:, None\]"),
        ({"x": np.ones((60, 5), np.uint8)}, r"x: \(60, 5\) .* a table: x.astype\('float32'\)"),
        ({"x": np.zeros((60, 8, 8), int)}, r"x: int64 \[60, 8, 8\] .* x.astype\('uint8'\)"),
        ({"x": np.zeros((60, 3, 8, 8), np.uint16)}, r"x: uint16 \[60, 3, 8, 8\] .* x.astype\('uint8'\)"),
        ({"x": np.full((60, 5), -1)}, "x: int64 -1 to -1 .* or tokens .n, L. from 0"),
        ({"x": TensorDataset(torch.ones(60, 5))}, "y: a ndarray .* None: x has the targets too"),
        (
            {"x": "here/data.csv"},
            'x: str .*: fedflow.run.{"source": "table", "path": "here/data.csv", "target"',
        ),
        ({"x_test": None}, r"x_test: None .* fedflow.dataset\(x\[:n\], y\[:n\], x\[n:\], y\[n:\]\)"),
        ({"y": np.full(60, 3), "classes": ["a", "b", "c"]}, "y: 3 .* 0 to 2"),
        ({"y": np.full(60, -1)}, "y: -1 .* 0 to 2"),
        ({"y": np.arange(60) % 3 + 1}, "y: 1, 2, 3 .* labels 0 to 2: subtract 1"),
        ({"y": np.arange(60) % 10 + 100}, "y: 100, .* labels 0 to 9: subtract 100"),
        ({"y": np.arange(60) % 3 - 1}, "y: -1, 0, 1 .* labels 0 to 2: add 1"),
        ({"y": np.arange(60) % 2 * 2 - 1}, r"y: -1, 1 .* labels 0 to 1: number them with .*np.unique\(y\)"),
        ({"y": np.arange(60) % 3 * 5}, "y: 0, 5, 10 .* `classes` names labels without training samples"),
        ({"y_test": np.arange(30) % 4}, "y_test: 3 .* labels 0 to 2; `classes` names labels without"),
        ({"y": np.zeros(60, int), "y_test": np.zeros(30, int)}, "y: own, .* all have the label '0', .* two"),
        ({"y": np.zeros(60, int), "classes": ["a", "b", "c"]}, "y: own, .* all have the label 'a', .* two"),
        ({"y": np.full(60, "cat")}, r"y: 'ndarray' .* names = np.unique\(y\)"),
        ({"y": np.zeros(60, "M8[s]")}, "y: 'ndarray' .* it holds datetime64"),
        ({"y": np.arange(60) % 3 * 1.0}, r"y: floats 0, 1, 2 .* y.astype\(int\); real .* y\[:, None\]"),
        ({"y": np.arange(60) % 3 + 1.0}, r"y: floats 1, 2, 3 .* y.astype\(int\); real .* y\[:, None\]"),
        ({"y": np.arange(60) % 2 * 2.0 - 1}, r"y: floats -1, 1 .* y.astype\(int\); real .* y\[:, None\]"),
        ({"y": np.array([0, 1, 2] * 20, object)}, r"y: 'ndarray' .* as in y.astype\(int\)"),
        ({"y": np.where(np.arange(60) == 3, np.nan, 0.5)}, "y: nan .* finite"),
        ({"y": (np.arange(60) % 3)[:, None]}, r"y: int64 \[60, 1\] .* labels \[n\].*: np.ravel\(y\)"),
        ({"y": np.eye(3, dtype=int)[np.arange(60) % 3]}, r"y: one-hot int64 \[60, 3\] .* y.argmax\(1\)"),
        ({"y": np.eye(3)[np.arange(60) % 3]}, r"y: one-hot float64 \[60, 3\] .* y.argmax\(1\)"),
        ({"y": np.ones((60, 3))}, r"y: multi-label float64 \[60, 3\] .* several, with loss=.bce"),
        ({"y": np.full((60, 3), 7)}, r"y: int64 \[60, 3\] .* labels \[n\], or float targets"),
        ({"y": np.linspace(0, 1, 60)}, r"y_test: int64 \[30\] .* targets as y, float64 \[n\]"),
        (
            {"y": np.linspace(0, 1, 120).reshape(60, 2), "y_test": np.linspace(0, 1, 30)},
            r"y_test: float64 \[30\] .* \[n, 2\]",
        ),
        ({"y": 3}, r"x: \(60, 5\) .* n = 0 > 0 targets"),
        ({"classes": "abc"}, "classes: 'abc' .* a list of different names"),
        ({"classes": ["a", "b", "b"]}, "classes: .* a list of different names"),
        ({"x": np.zeros((60, 8, 8, 4), np.uint8)}, r"x: \(60, 8, 8, 4\) .* \[n, C, H, W\] or \[n, H, W, C\]"),
        ({"x": np.zeros((60, 8, 8, 3), np.uint8)}, r"x: \(60, 8, 8, 3\) .* \[n, C, H, W\]"),
    ],
)
def test_arrays_that_do_not_fit(changes: dict[str, Any], match: str) -> None:
    with one_line_error(match, BadInput):
        own(**changes)


@pytest.mark.parametrize("shape", [(64,), (3,)])
@pytest.mark.parametrize("kind", [np.int64, np.uint16])
def test_whole_numbers_are_tokens_only_for_a_network_that_is_named(shape: tuple, kind: type) -> None:
    x = np.random.default_rng(0).integers(0, 3, (40, *shape)).astype(kind)
    data = ff.dataset(x, np.arange(40) % 3, x, np.arange(40) % 3)
    with one_line_error(r"x: whole numbers .* float features, x.astype\('float32'\)", BadInput):
        ff.run(data, ff.iid(clients=2), **SMALL)
    with one_line_error("x: whole numbers .* up to 2 .* float features for 'mlp'", BadInput):
        ff.run(data, ff.iid(clients=2), model="mlp", **SMALL)
    run = ff.run(data, ff.iid(clients=2), model={"name": "char_lstm", "hidden": 4}, **SMALL)
    assert run.settings["model"]["name"] == "char_lstm"


def test_named_data_of_tokens_have_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLOW_DATA", str(tmp_path))
    (tmp_path / "tinyshakespeare.txt").write_text("ANNA:\nthe quick fox\n\nBOB:\nthe lazy dog!\n")
    data = {"source": "tinyshakespeare", "length": 3}
    run = ff.run(data, {"scheme": "natural"}, training={"lr": 0.1}, **SMALL | {"rounds": 1})
    assert run.settings["model"]["name"] == "char_lstm"


def test_a_table_of_whole_numbers_is_one_of_floats() -> None:
    x = np.random.default_rng(0).integers(0, 99, (40, 3))
    data = ff.dataset(x, np.arange(40) % 3, x, np.arange(40) % 3)
    with one_line_error("x: whole numbers .3. up to .* or tokens 0 to 2; `classes` names them all", BadInput):
        ff.run(data, ff.iid(clients=2), model={"name": "char_lstm", "hidden": 4}, **SMALL)


def test_channels_last_are_said_to_be_so() -> None:
    x = np.zeros((20, 28, 28, 3), np.float32)
    data = ff.dataset(x, np.arange(20) % 2, x, np.arange(20) % 2)
    for model in (None, "lenet5", "resnet9_bn"):  # the last one would run
        with one_line_error(r"x: \[n, 28, 28, 3\] .* x.transpose\(0, 3, 1, 2\)", BadInput):
            ff.run(data, ff.iid(clients=2), model=model, **SMALL)
    assert ff.run(data, ff.iid(clients=2), model="mlp", **SMALL).metrics["parameters"]


def test_real_targets_of_several_columns_are_kept() -> None:
    (x, _), (x_test, _) = blobs(), blobs(30, 1)
    for size in (1, 2):
        data = own(y=x[:, :size] * 2, y_test=x_test[:, :size] * 2)
        assert data.y_train.shape == (60, size) and data.y_train.dtype == torch.float32 and not data.classes
    narrow = ff.run(own(y=x[:, :1], y_test=x_test[:, :1]), ff.iid(clients=3), **SMALL)
    flat = ff.run(own(y=x[:, 0], y_test=x_test[:, 0]), ff.iid(clients=3), **SMALL)
    assert narrow.metrics["loss"] == flat.metrics["loss"]


def test_real_targets_may_be_whole_numbers_in_a_column() -> None:
    counts = np.random.default_rng(0).poisson(50, 90).astype(float)
    assert not own(y=counts[:60], y_test=counts[60:]).classes  # many different ones, from no 0 or 1
    assert own(y=np.arange(60)[:, None] % 3.0, y_test=np.arange(30)[:, None] % 3.0).y_train.shape == (60, 1)


def test_data_frames_are_arrays_without_index_and_warning(recwarn: pytest.WarningsRecorder) -> None:
    (x, y), (x_test, y_test) = blobs(), blobs(30, 1)
    frame, tested = (pd.DataFrame(own, columns=list("abcde")) for own in (x, x_test))
    data = ff.dataset(frame, pd.Series(y), tested, pd.Series(y_test))
    assert not recwarn.list and data.hash == own().hash
    before = data.x_train.clone()
    frame.iloc[:] = 0
    assert torch.equal(data.x_train, before)
    with one_line_error(r"x: columns 'Unnamed: 0' .an index. .* x.drop\(columns", BadInput):
        own(x=frame.assign(**{"Unnamed: 0": 1.5}))
    with one_line_error(r"x: columns 'town' \('a' in row 1\), 'row' .* x.drop\(columns", BadInput):
        own(x=frame.assign(town="a", row=range(60)))
    with one_line_error("y: an index that differs from x.index .* y.loc", BadInput):
        own(x=frame, y=pd.Series(y).sample(frac=1, random_state=0))


def test_arrays_of_another_byte_order_or_width_are_read() -> None:
    (x, y), (x_test, y_test) = blobs(), blobs(30, 1)
    for kind in (">f4", np.float16, np.longdouble):
        data = ff.dataset(x.astype(kind), y.astype(np.uint64), x_test.astype(kind), y_test.astype(np.uint64))
        assert data.x_train.dtype == torch.float32 and data.y_train.dtype == torch.int64
        assert np.allclose(data.x_train, x, atol=1e-2)


def test_classes_without_training_samples_are_named() -> None:
    data = own(classes=["a", "b", "c", "d"])
    assert data.num_classes == 4 and own(y=np.arange(60) % 2 == 0, y_test=np.arange(30) > 3).num_classes == 2


def test_wrong_keywords_of_methods_and_schemes() -> None:
    with one_line_error(r"method.lamb: .* \(did you mean 'lam'\?\); expected one of ", BadInput):
        ff.Ditto(lamb=1)
    with one_line_error(r"partition.alpa: .* \(did you mean 'alpha'\?\); expected one of ", BadInput):
        ff.dirichlet(alpa=1)
    for name, right in {"fedavg": "FedAvg", "SCAFFOLD": "Scaffold"}.items():
        with pytest.raises(AttributeError, match=f"{name!r} .*did you mean {right!r}"):
            getattr(ff, name)
    with pytest.raises(AttributeError, match=r"'Dito' .*did you mean 'Ditto'.* one of "):
        _ = ff.Dito


def test_neither_params_nor_prefect_nor_mlflow(tmp_path: Path) -> None:
    program = """
import sys, pathlib, fedflow as ff
assert "torch" not in sys.modules
run = ff.run("digits", ff.iid(clients=3), ff.FedAvg(), rounds=1, compile="never")
run.rounds, run.clients, repr(run), run.model(client=2)
assert not {"prefect", "mlflow", "dvc", "matplotlib"} & {name.partition(".")[0] for name in sys.modules}
assert not list(pathlib.Path().iterdir())
"""
    command_line = [sys.executable, "-c", program]
    done = subprocess.run(command_line, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("FedAvg: round 1/1, local accuracy 0.")


def test_seeds_before_an_error_are_kept() -> None:
    def seeded(seed: int) -> Any:
        if seed == 2:
            raise ValueError("a mistake in a method")
        return SimpleNamespace(seed=seed)

    with pytest.raises(ValueError, match="a mistake") as error:
        _in_turn(seeded, [0, 1, 2, 3])
    assert [result.seed for result in error.value.results] == [0, 1]  # type: ignore[attr-defined]
    assert "The attribute `results` holds these seeds: 0, 1" in error.value.__notes__[0]
