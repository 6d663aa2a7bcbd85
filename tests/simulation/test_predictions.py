"""The predictions that a run keeps: of every client's own test samples, as they were scored."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from support import Workers, images, quadratics, refused, run, with_newcomers
from torch import nn

from fedflow.data import Dataset, Examples
from fedflow.metrics.predictions import by_client
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.simulation.evaluation import PREDICTIONS
from fedflow.simulation.executors import Executor
from fedflow.simulation.federation import Federation

SGD = {"batch_size": 8, "epochs": 2, "lr": 0.1}


def held_out(federation: Federation) -> Federation:
    """Every client is tested on half of its training samples; the client of one sample has none."""
    whole = list(map(federation.partition.train, range(8)))
    train, test = (
        [rows[part(len(rows) // 2)] for rows in whole] for part in (lambda n: slice(n, None), slice)
    )
    partition = Partition.from_lists(train, test, list(np.arange(8)[:, None]), held_out=True)
    return replace(federation, partition=partition)


def kept(
    method: str, federation: Federation, executor: Executor | None = None, **settings: object
) -> pd.DataFrame:
    """The table, after a check that its accuracies are those of the clients, bit for bit."""
    ran = run(
        method, federation, training=SGD, rounds=2, keep_predictions=True, executor=executor, **settings
    )
    scores = ran.outcome().scores
    table = scores.answers
    assert table is not None and dict(table.dtypes) == PREDICTIONS
    right = (table["predicted"] == table["label"]).groupby(table["client"]).mean()
    assert np.array_equal(right.reindex(scores.clients), scores.local_accuracy, equal_nan=True)
    return table


@pytest.mark.parametrize("own", ["pools", "held out"])
@pytest.mark.parametrize("method", ["fedavg", "ifca", "ditto"])
def test_every_client_is_scored_by_what_is_kept_however_many_work(
    federation: Federation, method: str, own: str
) -> None:
    federation = held_out(federation) if own == "held out" else federation
    table = kept(method, federation)
    for k, rows in table.groupby("client"):
        assert rows["sample"].tolist() == sorted(federation.partition.test(k))
        assert np.array_equal(rows["label"], federation.own_test.y[rows["sample"].tolist()])
    assert (table["rank"].eq(1) == table["predicted"].eq(table["label"])).all()
    assert table["rank"].between(1, 10).all() and table["confidence"].between(0.1, 1).all()
    for workers in (2, 3):
        pd.testing.assert_frame_equal(table, kept(method, federation, Workers(workers)), check_exact=True)
    vmapped = kept(method, federation, cohort="vmap")
    pd.testing.assert_frame_equal(table, vmapped, atol=1e-5)


class Shifted(nn.Module):
    """Outputs that are the inputs plus one weight, which changes no probability and has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.w


def test_confidences_and_ranks_of_worked_outputs() -> None:
    """Of equal outputs the first is the prediction. The second client shares a pool with the first."""
    outputs = torch.tensor([[4, 2, 2], [1, 3, 6], [5, 5, 0], [5, 5, 0]], dtype=torch.float64).log()
    examples = Examples(outputs, torch.tensor([0, 0, 0, 1]))
    pools, owned = [np.array([3, 1]), np.array([0, 2])], [np.array([1]), np.array([0, 1])]
    federation = Federation(
        FlatModel(Shifted, dtype=torch.float64), examples, examples, Partition.from_lists(pools, pools, owned)
    )
    table = run("fedavg", federation, rounds=1, keep_predictions=True).outcome().scores.answers
    assert table is not None and table.drop(columns="confidence").to_numpy().tolist() == [
        [0, 0, 0, 0, 1],
        [0, 2, 0, 0, 1],
        [1, 0, 0, 0, 1],
        [1, 1, 0, 2, 3],
        [1, 2, 0, 0, 1],
        [1, 3, 1, 0, 2],
    ]
    assert table["confidence"].tolist() == pytest.approx([0.5, 0.5, 0.5, 0.6, 0.5, 0.5])


def test_probabilities_of_all_classes_are_kept_if_asked_for(federation: Federation) -> None:
    """Next to the same predictions, and the same for any workers."""
    plain = kept("ditto", federation)
    with_all = [
        run("ditto", federation, training=SGD, rounds=2, keep_probabilities=True, executor=executor)
        .outcome()
        .scores.answers
        for executor in (None, Workers(3))
    ]
    pd.testing.assert_frame_equal(*with_all, check_exact=True)
    table, names = with_all[0], [f"p{c}" for c in range(10)]
    pd.testing.assert_frame_equal(table[[*PREDICTIONS]], plain, check_exact=True)
    probabilities = table[names].to_numpy()
    assert [*table.columns] == [*PREDICTIONS, *names] and probabilities.dtype == np.float32
    assert np.array_equal(probabilities[range(len(table)), table["predicted"]], table["confidence"])
    assert probabilities.sum(1) == pytest.approx(np.ones(len(table)), abs=1e-5)
    areas = by_client(table, "auroc").dropna()
    assert len(areas) and areas.between(0, 1).all()


def test_nothing_is_kept_of_newcomers_of_clients_that_are_not_scored_nor_by_default(digits: Dataset) -> None:
    federation, late = images(digits), with_newcomers(images(digits), 2)
    assert run("fedavg", federation, rounds=1).outcome().scores.answers is None
    assert set(kept("fedavg", late)["client"]) == set(range(6))
    some = run("fedavg", federation, rounds=1, keep_predictions=True, evaluate_clients=3)
    assert set(some.outcome().scores.answers["client"]) == set(some.simulation.scoring.scored)


def test_a_regression_has_no_predictions_to_keep() -> None:
    with refused("run.keep_predictions: True is not accepted; expected false, as the samples do not have"):
        run("fedavg", quadratics(), keep_predictions=True)
    with refused("run.keep_probabilities: True is not accepted; expected false, as the samples do not have"):
        run("fedavg", quadratics(), keep_probabilities=True)
