"""Numbers from a table of predictions: worked numbers; scikit-learn and torchmetrics as oracles."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import (
    balanced_accuracy_score,
    f1_score,
    precision_recall_fscore_support,
    roc_auc_score,
    top_k_accuracy_score,
)
from support import refused
from torchmetrics.functional.classification import multiclass_auroc, multiclass_calibration_error

from fedflow.metrics.distribution import summarize
from fedflow.metrics.predictions import auroc, by_class, by_client, ece, mce, reliability, sizes, summary


def table_of(probabilities: np.ndarray, labels: np.ndarray, clients: np.ndarray) -> pd.DataFrame:
    """What a run keeps of probabilities [n, K]."""
    rank = 1 + (probabilities > probabilities[np.arange(len(labels)), labels][:, None]).sum(1)
    return pd.DataFrame(
        {
            "client": clients,
            "sample": np.arange(len(labels)),
            "label": labels,
            "predicted": probabilities.argmax(1),
            "confidence": probabilities.max(1),
            "rank": rank,
        }
    )


def drawn(classes: int, n: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities [n, classes] with ties between samples, labels and clients."""
    rng = np.random.default_rng(classes)
    parts = rng.integers(1, 9, (n, classes)) + rng.random(classes) / 10
    return parts / parts.sum(1, keepdims=True), rng.integers(0, classes, n), rng.integers(0, 4, n)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k_is_that_of_scikit_learn(k: int) -> None:
    probabilities, labels, clients = drawn(7)
    found = by_client(table_of(probabilities, labels, clients), f"top{k}")
    for client in range(4):
        own = clients == client
        expected = top_k_accuracy_score(labels[own], probabilities[own], k=k, labels=range(7))
        assert found[client] == pytest.approx(expected, abs=1e-12)


def test_auroc_is_that_of_scikit_learn_and_a_client_of_one_class_has_none() -> None:
    probabilities, labels, clients = drawn(2)
    labels[clients == 2] = 1
    table = table_of(probabilities, labels, clients)
    found = by_client(table, "auroc")
    for client in (0, 1, 3):
        own = clients == client
        expected = roc_auc_score(labels[own], probabilities[own, 1])
        assert found[client] == pytest.approx(expected, abs=1e-12)
    assert np.isnan(found[2])
    spread = summary(found, sizes(table))
    assert (spread["clients"], spread["left_out"]) == (3, 1)
    assert spread["mean"] == pytest.approx(found[[0, 1, 3]].mean())


def with_probabilities(probabilities: np.ndarray, labels: np.ndarray, clients: np.ndarray) -> pd.DataFrame:
    """What a run keeps with the probability of every class."""
    table = table_of(probabilities, labels, clients)
    return table.assign(**{f"p{c}": p for c, p in enumerate(probabilities.astype("float32").T)})


def test_auroc_of_several_classes_is_the_mean_over_classes_against_the_rest() -> None:
    """scikit-learn and torchmetrics, where a client has all classes; else over the classes that it has.

    More than ten classes, so that the columns p2 and p10 must not change places.
    """
    probabilities, labels, clients = drawn(12, n=2000)
    probabilities = probabilities.astype("float32").astype(float)
    few = (clients == 3) & ~np.isin(labels, (2, 10))
    clients[few] = 0
    labels[clients == 2] = 7
    table = with_probabilities(probabilities, labels, clients)
    found = by_client(table, "auroc")
    for client in (0, 1):
        own = clients == client
        assert set(labels[own]) == set(range(12))
        expected = np.mean([roc_auc_score(labels[own] == k, probabilities[own, k]) for k in range(12)])
        assert found[client] == pytest.approx(expected, abs=1e-12)
        of_torch = multiclass_auroc(torch.tensor(probabilities[own]), torch.tensor(labels[own]), 12)
        assert found[client] == pytest.approx(float(of_torch), abs=1e-6)
        normalized = probabilities[own] / probabilities[own].sum(1, keepdims=True)
        whole = roc_auc_score(labels[own], normalized, multi_class="ovr", average="macro")
        assert found[client] == pytest.approx(whole, abs=1e-4)
    own = clients == 3
    of_two = [roc_auc_score(labels[own] == k, probabilities[own, k]) for k in (2, 10)]
    assert found[3] == pytest.approx(np.mean(of_two), abs=1e-12)
    assert np.isnan(found[2]) and summary(found, sizes(table))["left_out"] == 1
    assert auroc(table[own]) == found[3] and np.isnan(auroc(table[:0]))
    assert by_class(table[own])["auroc"].dropna().to_dict() == pytest.approx(dict(zip((2, 10), of_two)))
    table.loc[np.flatnonzero(own)[0], [f"p{c}" for c in range(12)]] = np.nan  # a model that diverged
    assert np.isnan(by_client(table, "auroc")[3]) and not np.isnan(by_client(table, "auroc")[0])


def test_two_classes_have_one_auroc_with_and_without_all_probabilities() -> None:
    without, with_all = table_of(*drawn(2)), with_probabilities(*drawn(2))
    pd.testing.assert_series_equal(
        by_client(without, "auroc"), by_client(with_all, "auroc"), check_exact=True
    )
    assert by_class(with_all)["auroc"].tolist() == pytest.approx([auroc(without)] * 2, abs=1e-3)  # ties


@pytest.mark.parametrize("classes", [2, 7])
def test_scores_of_classes_are_those_of_scikit_learn(classes: int) -> None:
    """Of clients too that lack a class, or whose model predicts a class that they lack."""
    probabilities, labels, clients = drawn(classes)
    labels[clients == 2] = 1
    probabilities[(clients == 1) & (probabilities.argmax(1) == 0)] = np.eye(classes)[1]
    table = table_of(probabilities, labels, clients)
    f1, balanced = by_client(table, "macro_f1"), by_client(table, "balanced_accuracy")
    for client in range(4):
        own = clients == client
        y, predicted = labels[own], probabilities[own].argmax(1)
        assert f1[client] == pytest.approx(f1_score(y, predicted, average="macro"), abs=1e-12)
        if np.isin(predicted, y).all():  # scikit-learn warns otherwise
            assert balanced[client] == pytest.approx(balanced_accuracy_score(y, predicted), abs=1e-12)
        scores, names = by_class(table[own]), np.union1d(y, predicted)
        expected = precision_recall_fscore_support(y, predicted, labels=names, zero_division=np.nan)
        assert scores.index.tolist() == names.tolist() and scores.index.name == "class"
        assert scores["samples"].tolist() == expected[3].tolist()
        for name, values in zip(("precision", "recall"), expected):
            assert scores[name].to_numpy() == pytest.approx(values, abs=1e-12, nan_ok=True)
        assert balanced[client] == pytest.approx(scores["recall"].mean())
        assert f1[client] == pytest.approx(scores["f1"].mean())
        whole = f1_score(y, predicted, labels=names, average=None, zero_division=0)
        assert scores["f1"].to_numpy() == pytest.approx(whole, abs=1e-12)
    with refused("'?macro_f1'? is not accepted; expected top1, ece or mce in batches"):
        by_client(table, "macro_f1", batch=10)


def test_scores_of_classes_of_a_worked_example() -> None:
    """Class 3 is only predicted, class 1 never; no prediction of client 5 is right."""
    table = pd.DataFrame(
        {
            "client": [4, 4, 4, 4, 5],
            "label": [0, 0, 1, 2, 2],
            "predicted": [0, 3, 0, 2, 0],
            "rank": [1, 2, 2, 1, 3],
        }
    )
    scores = by_class(table[table["client"] == 4])
    assert scores["samples"].tolist() == [2, 1, 1, 0]
    assert scores["recall"].tolist() == pytest.approx([0.5, 0, 1, np.nan], nan_ok=True)
    assert scores["precision"].tolist() == pytest.approx([0.5, np.nan, 1, 0], nan_ok=True)
    assert scores["f1"].tolist() == pytest.approx([0.5, 0, 1, 0])
    assert by_client(table, "macro_f1").to_dict() == pytest.approx({4: 0.375, 5: 0})
    assert by_client(table, "balanced_accuracy").to_dict() == pytest.approx({4: 0.5, 5: 0})
    assert by_class(table)["samples"].tolist() == [2, 1, 2, 0]


def test_calibration_of_the_worked_example_whole_and_in_batches() -> None:
    """SuPerFed's definition; the short last batch counts as much as the others."""
    table = pd.DataFrame({"client": 3, "confidence": [0.95, 0.92, 0.62, 0.65, 0.35], "rank": [1, 1, 2, 1, 4]})
    assert (ece(table), mce(table)) == (pytest.approx(0.15), pytest.approx(0.35))
    assert ece(table, batch=2) == pytest.approx(0.183333, abs=1e-6)
    assert mce(table, batch=2) == pytest.approx(0.188333, abs=1e-6)
    other = table.assign(client=1, rank=1, confidence=0.9)  # the batches of clients are separate
    both = pd.concat([table.iloc[:3], other, table.iloc[3:]], ignore_index=True)
    for measure, whole, by_batch in (("ece", 0.15, 0.55 / 3), ("mce", 0.35, 0.565 / 3), ("top1", 0.6, 0.5)):
        assert by_client(both, measure)[3] == pytest.approx(whole)
        assert by_client(both, measure, batch=2)[3] == pytest.approx(by_batch)
        assert by_client(both, measure, batch=2)[1] == pytest.approx(1 if measure == "top1" else 0.1)


@pytest.mark.parametrize("measure", ["ece", "mce"])
def test_a_confidence_of_a_diverged_model_makes_its_client_nan(measure: str) -> None:
    """In whichever batch it is, and never 0; the other clients have theirs."""
    table = pd.DataFrame({"client": [4] * 5 + [2] * 5, "confidence": 0.9, "rank": 1}).astype(
        {"confidence": "float32"}
    )
    table.loc[3, "confidence"] = np.nan
    for batch in (None, 2, 5):
        found = by_client(table, measure, batch)
        assert np.isnan(found[4]) and found[2] == pytest.approx(0.1)
        assert by_client(table, "top1", batch).tolist() == [1, 1]
    assert np.isnan({"ece": ece, "mce": mce}[measure](table))
    assert reliability(table)["samples"].tolist() == [9]


@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("batch", [None, 10, 64])
def test_calibration_is_that_of_torchmetrics(classes: int, batch: int | None) -> None:
    """By client, whole and in batches; its bins are [low, high), which differ at their edges only."""
    probabilities, labels, clients = drawn(classes)
    table = table_of(probabilities, labels, clients)
    for measure, norm in (("ece", "l1"), ("mce", "max")):
        found = by_client(table, measure, batch)
        for client in range(4):
            own = np.flatnonzero(clients == client)
            expected = [
                multiclass_calibration_error(
                    torch.tensor(probabilities[rows]),
                    torch.tensor(labels[rows]),
                    classes,
                    n_bins=15,
                    norm=norm,
                )
                for rows in np.split(own, range(batch or len(own), len(own), batch or len(own)))
            ]
            assert found[client] == pytest.approx(np.mean(expected), abs=1e-6)  # float32


def test_the_bins_of_a_reliability_diagram() -> None:
    """Of all clients; empty bins are left out, and a confidence of 1 is in the last one."""
    table = pd.DataFrame({"client": [0, 1, 1, 0], "confidence": [1, 0.95, 0.62, 0.65], "rank": [1, 2, 2, 1]})
    bins = reliability(table.astype({"confidence": "float32"}))
    assert bins.index.tolist() == [9, 14] and bins["samples"].tolist() == [2, 2]
    assert bins["accuracy"].tolist() == [0.5, 0.5]
    assert bins["confidence"].tolist() == pytest.approx([0.635, 0.975])


def test_clients_are_averaged_by_test_samples_and_the_tenths_too() -> None:
    values = pd.Series(np.arange(25) / 100, range(25)).sample(frac=1, random_state=0)
    weights = pd.Series(np.arange(25) + 1, range(25))  # in another order
    spread = summary(values, weights)
    assert spread["worst10"] == pytest.approx((0 * 1 + 0.01 * 2) / 3)
    assert spread["best10"] == pytest.approx((0.23 * 24 + 0.24 * 25) / 49)
    assert spread["gap"] == spread["best10"] - spread["worst10"]
    assert spread["mean"] == pytest.approx(0.12)
    assert spread["std"] == pytest.approx(np.sqrt(52) / 100)
    assert spread["weighted"] == pytest.approx(np.average(np.arange(25) / 100, weights=np.arange(25) + 1))
    alike = summary(values, weights * 0 + 7)
    assert {n: alike[n] for n in ("worst10", "best10", "gini")} == pytest.approx(
        {n: summarize(values.to_numpy())[n] for n in ("worst10", "best10", "gini")}, abs=1e-12
    )


@pytest.mark.parametrize(
    ("values", "gini", "gap"), [((0.5, 0.6, 0.9, 1), 0.15, 0.5), ((0.4,) * 3, 0, 0), ((0, 0, 0, 1), 0.75, 1)]
)
def test_few_clients_have_one_worst_and_one_best(values: tuple[float, ...], gini: float, gap: float) -> None:
    spread = summary(pd.Series(values, dtype=float), pd.Series(range(1, 1 + len(values))))
    assert spread["gini"] == pytest.approx(gini, abs=1e-12) and spread["gap"] == pytest.approx(gap)
    assert (spread["worst10"], spread["best10"]) == pytest.approx((min(values), max(values)))


def test_what_is_not_measured_is_refused() -> None:
    table = table_of(*drawn(3))
    for name in ("top0", "top", "accuracy", "auroc5"):
        with refused(f"measure: '?{name}'? is not accepted; expected top1, top5"):
            by_client(table, name)
    with refused("'?auroc'? is not accepted; expected top1, ece or mce, as there are more than two classes"):
        by_client(table, "auroc")
    with refused("'?auroc'? is not accepted; expected top1, ece or mce in batches"):
        by_client(table, "auroc", batch=10)
