"""`fedflow.run` with data, divisions, networks and methods of all kinds, and what it imports."""

import inspect
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
from calls import SMALL, Faster, Halved, blobs, own, two_layers
from command import one_line_error
from support import refused
from torch import Tensor, nn

import fedflow as ff
from fedflow.errors import BadInput, FedflowError
from fedflow.front.record import _absolute
from fedflow.front.runner import _in_turn
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.partition import SCHEMES

FEW = {"clients": 4, "alpha": 0.5}


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
    every = inspect.signature(ff.run).parameters["evaluate_every"]
    assert every.default is None and every.annotation == int | None
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
