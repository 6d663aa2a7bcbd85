"""Several labels per sample: loss, accuracy, methods, schemes, and all ways in and out."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, hamming_loss, roc_auc_score
from support import build_method, consecutive, follow, forbid_fallback, prepare_run, refused, run, same
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import fedflow as ff
from fedflow.data import Examples, load_prepared, prepare
from fedflow.data.params import DatasetParams
from fedflow.errors import FedflowError
from fedflow.methods import METHODS
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Samples, make_partition
from fedflow.partition.params import PartitionParams
from fedflow.report.page import build_report
from fedflow.simulation.federation import Federation

rng = np.random.default_rng(0)
X = rng.normal(size=(160, 6)).astype(np.float32)
Y = X @ rng.normal(size=(6, 4)) + 0.3 * rng.normal(size=(160, 4)) > 0.8
STEPS = {"epochs": 2, "batch_size": 8, "lr": 0.5}
NAMES = ("cough", "fever", "rash", "pain")


def federation(y: np.ndarray = Y) -> Federation:
    examples = Examples(torch.from_numpy(X), torch.from_numpy(y))
    model = FlatModel(partial(build, "mlp", (6,), 4, hidden=[8]))
    return Federation(model, examples, examples, consecutive([32, 28, 40, 60]))


@pytest.fixture
def own() -> Any:
    return partial(ff.dataset, X[:120], Y[:120], X[120:], Y[120:], loss="bce")


def test_the_loss_and_the_accuracy_are_means_over_labels(own: Any) -> None:
    network = nn.Linear(6, 4)
    scored = ff.run(
        own(), [range(120)], "fedavg", model=network, rounds=1, training={"lr": 1e-9}, progress=False
    )
    with torch.no_grad():
        logits, y = network(torch.from_numpy(X[120:])), torch.from_numpy(Y[120:])
    expected = binary_cross_entropy_with_logits(logits, y.float()).item()
    assert scored["loss"] == pytest.approx(expected, rel=1e-5)
    assert scored["local_accuracy"] == pytest.approx(1 - hamming_loss(y, logits > 0))


def test_a_network_learns_and_one_label_is_a_binary_task(cohort: str) -> None:
    ran = run("fedavg", federation(), cohort=cohort, training=STEPS, rounds=12)
    assert ran.outcome().metrics["local_accuracy"] > 0.9 > max(Y.mean(), 1 - Y.mean())
    single = replace(federation(Y[:, :1]), model=FlatModel(partial(build, "mlp", (6,), 1, hidden=[])))
    assert run("fedavg", single, cohort=cohort, training=STEPS, rounds=8).outcome().metrics["loss"] < 0.4


@pytest.mark.parametrize("method", ["scaffold", "ditto", "ifca"])
def test_a_cohort_learns_as_its_clients_do(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_fallback(monkeypatch)
    settings: dict[str, Any] = {"training": STEPS, "rounds": 2}
    together = run(method, federation(), cohort="vmap", **settings).state()
    monkeypatch.undo()
    alone = run(method, federation(), cohort="loop", **settings).state()
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)


def test_a_run_resumes_with_the_same_bits(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "training": STEPS,
        "rounds": 4,
        "checkpoint_every": 1,
        "keep_predictions": True,
    }
    whole = run("ditto", federation(), **settings)
    killed = prepare_run("ditto", federation(), checkpoints=tmp_path, **settings).rounds()
    next(killed), next(killed)
    resumed = prepare_run("ditto", federation(), checkpoints=tmp_path, **settings)
    assert resumed.state.history
    again = follow(resumed)
    assert same(again.state(), whole.state())
    assert again.outcome().metrics == whole.outcome().metrics


CLASSES = {  # methods that need classes, or one label per sample
    "fedsc": "their labels, and these targets are not classes",
    **dict.fromkeys(
        ("flis_dc", "flis_hc"), "another method, as FLIS compares classes, and samples have several"
    ),
    **dict.fromkeys(("pavg", "pfldyn", "pflscaf"), "maml, as the samples do not have one label each"),
}
OTHERS = {  # networks and data that these methods need, which only images have here
    *("decouple", "fedbn", "fedcgan", "fedcvae", "fedevg", "fedhen", "flt", "heterofl", "noside"),
    *("subfedavg_hy", "subfedavg_un", "superfed"),
}


@pytest.mark.parametrize("method", sorted(METHODS.keys() - OTHERS))
def test_every_method_trains_or_refuses(method: str) -> None:
    settings: dict[str, Any] = {"training": STEPS | {"epochs": 1}, "rounds": 2}
    if method in CLASSES:
        with refused(CLASSES[method], FedflowError):
            run(method, federation(), **settings)
        return
    metrics = run(method, federation(), **settings).outcome().metrics
    assert np.isfinite(metrics["loss"]) and 0 < metrics["local_accuracy"] < 1


def test_methods_that_make_images_or_compare_labels_refuse() -> None:
    x = torch.rand(160, 1, 32, 32)
    images = replace(
        federation(), train=Examples(x, torch.from_numpy(Y)), test=Examples(x, torch.from_numpy(Y))
    )
    images = replace(images, model=FlatModel(partial(build, "cnn_energy", (1, 32, 32), 4)))
    for method in ("fedevg", "fedcgan", "fedcvae"):
        with refused(f"data.source: .* labeled images with {method}"):
            prepare_run(method, images)
    with refused("whole, as samples do not have one label each|not classes", FedflowError):
        run(build_method("one_shot", {"features": "logistic"}), federation(), rounds=1)
    with refused("training.objective: .* one label each"):
        run("fedavg", images, rounds=1, training={"objective": {"name": "robust"}, "augment": "flip_crop"})


def test_predictions_give_the_numbers_of_scikit_learn(own: Any) -> None:
    two = ff.run(own(), ff.iid(clients=2), rounds=3, keep_predictions=True, training=STEPS, progress=False)
    table = predictions(two.partition.test, two.model())
    by_client = partial(ff.predictions.by_client, table)
    expected: dict[str, list[float]] = {}
    for _, rows in table.groupby("client"):
        y, p = (rows[[f"{letter}{c}" for c in range(4)]].to_numpy() for letter in "yp")
        values = {
            "label_accuracy": 1 - hamming_loss(y, p > 0.5),
            "exact": accuracy_score(y, p > 0.5),
            "micro_f1": f1_score(y, p > 0.5, average="micro"),
            "macro_f1": f1_score(y, p > 0.5, average="macro", zero_division=np.nan),
            "auroc": roc_auc_score(y, p, average="macro"),
        }
        for name, value in values.items():
            expected.setdefault(name, []).append(value)
    for name, numbers in expected.items():
        assert by_client(name).tolist() == pytest.approx(numbers, abs=1e-12)
        recorded = two["local_accuracy" if name == "label_accuracy" else name]
        assert recorded == pytest.approx(np.mean(numbers), abs=1e-6)


def predictions(test_of: Any, network: nn.Module) -> pd.DataFrame:
    """The table that a run keeps, computed apart from it."""
    tables = []
    for k in range(2):
        rows = test_of(k)
        with torch.no_grad():
            p = network(torch.from_numpy(X[120:][rows])).sigmoid().numpy()
        columns = {"client": k, "sample": rows} | {f"y{c}": Y[120:][rows, c] for c in range(4)}
        tables.append(pd.DataFrame(columns | {f"p{c}": p[:, c] for c in range(4)}))
    return pd.concat(tables, ignore_index=True)


def test_scores_of_labels_without_samples_are_left_out() -> None:
    y = np.array([[1, 0, 0], [1, 0, 0], [0, 0, 1]], bool)
    p = np.array([[0.9, 0.1, 0.2], [0.4, 0.2, 0.6], [0.1, 0.3, 0.7]])
    table = pd.DataFrame({"client": 0, "sample": range(3)})
    table = table.assign(**{f"y{c}": y[:, c] for c in range(3)}, **{f"p{c}": p[:, c] for c in range(3)})
    measured = {m: ff.predictions.by_client(table, m)[0] for m in ("exact", "macro_f1", "micro_f1", "auroc")}
    assert measured == pytest.approx({"exact": 2 / 3, "macro_f1": 2 / 3, "micro_f1": 2 / 3, "auroc": 1})
    scores = ff.predictions.by_class(table)
    assert scores["samples"].tolist() == [2, 0, 1] and scores["recall"].tolist()[::2] == [0.5, 1]
    assert scores.loc[1, ["recall", "precision", "f1", "auroc"]].isna().all()
    assert ff.predictions.auroc(table) == 1
    with refused("'?top1'? is not accepted; expected label_accuracy, exact, .* several labels"):
        ff.predictions.by_client(table, "top1")
    one = pd.DataFrame({"client": [0], "label": 1, "predicted": 1, "confidence": 0.9, "rank": 1})
    with refused("'?exact'? is not accepted; .* as samples have one label each"):
        ff.predictions.by_client(one, "exact")


@pytest.mark.parametrize("y", [Y, Y.astype(int), Y.astype(np.float64), torch.from_numpy(Y), Y.tolist()])
def test_truth_values_and_numbers_are_the_same_labels(y: Any) -> None:
    parts = y[:120], y[120:]
    data = ff.dataset(X[:120], parts[0], X[120:], parts[1], loss="bce")
    assert data.y_train.dtype == torch.bool and np.array_equal(data.y_train.numpy(), Y[:120])
    assert data.classes == ("0", "1", "2", "3") and data.num_classes == 4


def test_names_of_labels_are_given_or_of_columns(own: Any) -> None:
    frame = pd.DataFrame(Y.astype(int), columns=list(NAMES))
    assert ff.dataset(X[:120], frame[:120], X[120:], frame[120:], loss="bce").classes == NAMES
    assert own(classes=NAMES).classes == NAMES
    assert ff.dataset(X, frame, test_share=0.25, loss="bce").y_test.shape == (40, 4)
    with refused("classes: .* different names of the 4 labels"):
        own(classes=NAMES[:3])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": "bce", "y": Y[:, 0].astype(int)}, r"y: int64 \[160\] .* \[n, labels\] of 0 and 1"),
        ({"loss": "bce", "y": Y * 2}, r"y: int64 \[160, 4\] .* of 0 and 1"),
        ({"loss": "mse", "y": Y.astype(int)}, r"y: int64 \[160, 4\] .* real targets, y.astype"),
        ({"loss": "hinge", "y": Y}, "loss: 'hinge' .* None or one of mse, bce"),
        ({"y": Y.astype(float)}, 'y: multi-label .* several, with loss="bce"'),
        ({"loss": "bce", "y": np.ones((160, 2), int)}, "training samples all have the same labels"),
    ],
)
def test_other_targets_are_refused(given: dict[str, Any], message: str) -> None:
    with refused(message):
        ff.dataset(X, x_test=X, y_test=given["y"], **given)


def test_labels_as_real_targets_are_taken_when_asked_for() -> None:
    grades = np.arange(160) % 5.0
    data = ff.dataset(X, grades, X, grades, loss="mse")
    assert data.y_train.dtype == torch.float32 and data.classes == ()
    assert ff.dataset(X, Y.astype(float), X, Y.astype(float), loss="mse").num_classes == 4


def test_networks_without_a_logit_per_label_are_refused(own: Any) -> None:
    for network, message in (
        (nn.Linear(6, 3), r"gives \[n, 3\], and 4 labels need \[n, 4\] logits"),
        (nn.Sequential(nn.Linear(6, 4), nn.Sigmoid()), "probabilities, .* remove the last sigmoid"),
    ):
        with refused(message):
            ff.run(own(), ff.iid(clients=2), model=network, rounds=1, progress=False)
    two = ff.dataset(X[:120], Y[:120, :2], X[120:], Y[120:, :2], loss="bce")
    with refused("its one logit is for two classes, and several labels need an output each"):
        ff.run(two, ff.iid(clients=2), model="logistic_one_logit", rounds=1, progress=False)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(6)]).assign(**dict(zip(NAMES, Y.T.astype(int))))
    frame.assign(hospital=np.arange(160) % 4).to_csv(tmp_path / "patients.csv", index=False)
    return tmp_path / "patients.csv"


def test_columns_of_a_table_are_labels(table: Path, tmp_path: Path) -> None:
    entry = {"source": "table", "path": str(table), "target": [*NAMES], "user": "hospital", "loss": "bce"}
    data = prepare(DatasetParams.parse(entry), tmp_path / "prepared")
    assert data.classes == NAMES and data.y_train.dtype == torch.bool and data.input_shape == (6,)
    assert torch.cat([data.y_train, data.y_test]).sum(0).tolist() == Y.sum(0).tolist()
    meta = json.loads((tmp_path / "prepared" / "meta.json").read_text())
    assert meta["class_counts"]["train"] == data.y_train.sum(0).tolist() and meta["params"]["loss"] == "bce"
    assert "target: cough, fever, rash, pain (several labels per sample)" in meta["notes"][0]
    assert torch.equal(load_prepared(tmp_path / "prepared", verify=True).y_train, data.y_train)
    reals = {"loss": None, "task": "regression", "target": ["x0", "x1"], "ignore": [*NAMES]}
    real = prepare(DatasetParams.parse(entry | reals), tmp_path / "real")
    assert real.y_train.dtype == torch.float32 and real.num_classes == 2
    for change, message in (
        ({"loss": None}, r"several labels per sample need loss: bce"),
        ({"target": "cough", "ignore": [*NAMES[1:]]}, r"y_train is int64 \[128\]; needs 0 and 1 by label"),
        (
            {"target": ["x0", "cough"], "ignore": [*NAMES[1:]]},
            "data.target: .* columns of 0 and 1, for loss: bce",
        ),
        ({"task": "regression"}, "data.loss: 'bce' .* mse or null, with task: regression"),
        ({"target": []}, r"data.target: \[\] .* one column or more"),
        ({"target": ["cough", "none"]}, "data.target: 'none' .* a column of"),
        ({"keep_labels": [0]}, "data.keep_labels: .* an empty list"),
    ):
        with refused(message, FedflowError):
            prepare(DatasetParams.parse(entry | change), tmp_path / "refused")


def test_arrays_of_medmnist_have_several_labels(tmp_path: Path) -> None:
    images = rng.integers(0, 256, (160, 28, 28)).astype(np.uint8)
    named = {"train_images": images[:120], "train_labels": Y[:120].astype(np.uint8)}
    named |= {"test_images": images[120:], "test_labels": Y[120:].astype(np.uint8)}
    np.savez(tmp_path / "chest.npz", **named)
    entry = {"source": "npz", "path": str(tmp_path / "chest.npz")}
    data = prepare(DatasetParams.parse(entry | {"loss": "bce", "train_limit": 50}), tmp_path / "prepared")
    assert data.y_train.shape == (50, 4) and data.y_train.dtype == torch.bool
    with refused("needs whole numbers .* several labels per sample need loss: bce", FedflowError):
        prepare(DatasetParams.parse(entry), tmp_path / "none")
    with refused(r"data.parts\[0\].loss: 'bce' .* null within another entry"):
        DatasetParams.parse({"source": "mix", "parts": [entry | {"loss": "bce"}]})


def test_lists_of_hugging_face_are_several_labels(tmp_path: Path) -> None:
    frame = pd.DataFrame({"input": list(X.astype(float)), "labels": list(Y.astype(int))})
    frame.to_parquet(tmp_path / "train.parquet")
    entry = {
        "source": "huggingface",
        "path": str(tmp_path / "train.parquet"),
        "input": "input",
        "loss": "bce",
    }
    data = prepare(DatasetParams.parse(entry), tmp_path / "prepared")
    assert torch.cat([data.y_train, data.y_test]).sum(0).tolist() == Y.sum(0).tolist()


@pytest.mark.parametrize("targets", ["several", "real"])
def test_a_recorded_run_gives_its_models_and_probabilities(targets: str, table: Path, tmp_path: Path) -> None:
    """Of several real targets, the network has as many outputs, although there are no classes."""
    import mlflow

    entry: dict[str, Any] = {"source": "table", "path": str(table), "target": [*NAMES], "user": "hospital"}
    several = targets == "several"
    entry |= {"loss": "bce"} if several else {"loss": "mse", "task": "regression"}
    settings: dict[str, Any] = {"rounds": 2, "progress": False, "keep_predictions": several}
    ran = ff.run(entry, ff.natural(), "ditto", training={"lr": 0.05}, record=tmp_path / "project", **settings)
    assert ran.folder is not None
    facts = json.loads((ran.folder / "metrics.json").read_text())
    expected = {"local_accuracy", "exact", "micro_f1", "macro_f1", "auroc"} if several else {"loss"}
    assert {name for name in expected if 0 < facts[name] < 1} == expected
    (run_id,) = mlflow.MlflowClient(f"sqlite:///{tmp_path}/project/mlruns/mlflow.db").search_runs(["1"])
    own = ff.load_model(run_id.info.run_id, "personal", client=2, root=tmp_path / "project")
    with torch.no_grad():
        logits = own(torch.from_numpy(X[:5]))
        assert torch.equal(logits, ran.model(2)(torch.from_numpy(X[:5])))
    (folder,) = (tmp_path / "project" / "mlruns").rglob("models/m-*/artifacts")
    served = mlflow.pyfunc.load_model(str(folder))
    np.testing.assert_allclose(served.predict(X[:5], params={"client": 2}), logits, rtol=1e-5)
    if several:
        p = served.predict(X[:5], params={"client": 2, "probabilities": True})
        np.testing.assert_allclose(p, logits.sigmoid(), rtol=1e-5)
        page = build_report(tmp_path / "project" / "results", tmp_path, tmp_path / "report").read_text()
        assert "Exact match, %" in page and "AUROC, %" in page and 'id="calibration"' not in page


def test_settings_without_a_loss_are_as_before() -> None:
    assert "loss" not in DatasetParams.parse({"source": "digits"}).as_dict()


FREE = {  # schemes that do not divide by label
    "iid": {"clients": 3},
    "given": {"rows": [[0, 1], [2, 3]]},
    "natural": {},
    "domains": {"clients": 4},
}
BY_LABEL = {
    "acid": {"classes_per_client": 1},
    **{f"dirichlet{kind}": {} for kind in ("", "_clients", "_disjoint", "_exact")},
    **{name: {} for name in ("kway", "label_groups", "shards")},
    "label_shares": {"shares": [[1]]},
    **{name: {"fraction": 0.5} for name in ("label_skew", "noniid1")},
    "structured": {"labels_per_group": 1},
    "super_clusters": {"clusters": [[0], [1]]},
}


@pytest.mark.parametrize(("name", "options"), [*FREE.items(), *BY_LABEL.items()])
def test_schemes_divide_without_labels_or_refuse(name: str, options: dict[str, Any], own: Any) -> None:
    column = ff.dataset(
        [(X[:60], Y[:60]), (X[60:120], Y[60:120])], [(X[:9], Y[:9]), (X[9:20], Y[9:20])], loss="bce"
    )
    column.columns["domain"] = column.columns["user"]
    params = PartitionParams.parse({"dataset": "own", "scheme": name, "clients": 2} | options)
    if name in BY_LABEL:
        with refused("several labels per sample, or numbers, not classes; choose a scheme", FedflowError):
            make_partition(params, Samples.of(column))
        return
    made = make_partition(params, Samples.of(column))
    assert made.sizes.sum() > 0 and made.label_counts is None


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("logistic_one_logit", "its one logit .* real targets need an output each"),
        ("cnn_exit", "one label per"),
    ],
)
def test_networks_for_labels_are_refused_with_two_real_targets(network: str, message: str) -> None:
    x, y = np.random.default_rng(0).random((40, 3, 16, 16), np.float32), np.ones((40, 2), np.float32)
    x = x.reshape(40, -1) if network == "logistic_one_logit" else x
    data = ff.dataset(x[:30], y[:30] / 3, x[30:], y[30:] / 3)
    with refused(message):
        ff.run(data, ff.iid(clients=2), model=network, rounds=1, progress=False)
