"""FedSGD is gradient descent, and its step on all local samples is that of `Client.fit` on one full batch."""

from typing import Any

import pytest
import torch
from support import images, one_client, quadratics, run

from fedflow.data import Dataset
from fedflow.local.local_training import LocalTraining
from fedflow.simulation.federation import Federation


def test_fedsgd_is_a_step_on_the_weighted_loss(cohort: str) -> None:
    """0.5 - 0.1 * (0.25 * -0.5 + 0.75 * 3) = 0.2875; gradients of the sum shrink by 1 - 0.1 * 1.75."""
    ran = run("fedsgd", quadratics(), cohort=cohort)
    optimum, w = -5 / 7, [0.5]
    for _ in range(3):
        w.append(optimum + (1 - 0.175) * (w[-1] - optimum))
    assert w[1] == pytest.approx(0.2875)
    assert ran.server("model") == pytest.approx(w[1:], abs=1e-12)


def test_fedsgd_ends_at_the_weighted_optimum() -> None:
    assert run("fedsgd", quadratics(), rounds=120).server("model")[-1] == pytest.approx(-5 / 7, abs=1e-9)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedsgd_is_fedavg_with_one_full_batch(federation: Federation, weighting: str, cohort: str) -> None:
    """Whatever the number of batches and epochs, and the momentum; equal up to the order of float32 sums."""
    sgd = {"lr": 0.1, "weight_decay": 0.01, "clip_norm": 0.5, "lr_decay": 0.9}
    several = sgd | {"epochs": 3, "batch_size": 4, "momentum": 0.9}
    both = {"participation": 0.5, "cohort": cohort}
    ran = run("fedsgd", federation, {"weighting": weighting}, training=several, **both)
    one = sgd | {"epochs": 1, "batch_size": 0}
    plain = run("fedavg", federation, {"weighting": weighting}, training=one, **both)
    torch.testing.assert_close(ran.servers[-1]["model"], plain.servers[-1]["model"], rtol=0, atol=1e-6)
    losses = [each.values("train_loss") for each in (ran, plain)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_a_full_step_in_chunks_is_the_same_step(digits: Dataset, monkeypatch: Any) -> None:
    federation = images(digits, (23,), dtype=torch.float64)
    client = one_client(federation, training=LocalTraining(batch_size=0, lr=0.1, epochs=1))
    w = federation.model.init(0)
    expected = client.fit(start=w), float(client.train_loss)
    monkeypatch.setattr("fedflow.local.samples.EVALUATION_BATCH", 10)
    assert torch.equal(client.full_step(w), client.trained)
    torch.testing.assert_close(client.trained, expected[0], rtol=0, atol=1e-12)
    assert float(client.train_loss) == pytest.approx(expected[1], abs=1e-12)


def test_a_full_step_carries_the_statistics_along(padded: Dataset) -> None:
    """One chunk leaves them where one full batch does."""
    federation = images(padded, (23,), "lenet5_bn", dtype=torch.float64)
    client = one_client(federation, training=LocalTraining(batch_size=0, epochs=1, lr=0.1))
    w, trained = federation.model.init(0), federation.model.parameters
    stepped, expected = client.full_step(w), client.fit(start=w)
    torch.testing.assert_close(stepped, expected, rtol=0, atol=1e-12)
    assert not torch.equal(stepped[trained:], w[trained:])
