"""`Client.run_steps`: local steps that a method defines itself."""

import pytest
import torch
from support import images
from torch import Tensor

from fedflow.data import Dataset
from fedflow.local.client import Batch, Client, SGDState
from fedflow.local.training import LocalTraining, padded_batches
from fedflow.simulation.federation import Federation

TRAINING = LocalTraining.parse(
    {"epochs": 2, "batch_size": 5, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "clip_norm": 0.5}
)


@pytest.fixture(scope="module")
def federation(digits: Dataset) -> Federation:
    return images(digits, (12, 7), dtype=torch.float64)


def client(
    federation: Federation, k: int, streams: tuple[str, ...] = ("batches",), padded: int = 0
) -> Client:
    """Client k, as the loop sees it, or as a cohort that needs ``padded`` samples of each sees it."""
    index = torch.as_tensor(federation.partition.train(k))
    samples = [len(index)] + ([padded] if padded else [])
    both = {s: padded_batches(TRAINING, samples, 2, 0, s, 1, [k, k][: len(samples)]) for s in streams}
    schedule: dict = {s: {name: t[0] for name, t in own.items()} for s, own in both.items()}
    real = torch.arange(padded) < len(index) if padded else None
    if not padded:
        whole = torch.ones((), dtype=torch.bool)
        schedule = {
            s: [p[m] for p, m in zip(own["positions"], own.get("mask", whole.expand(own["positions"].shape)))]
            for s, own in schedule.items()
        }
    index = torch.cat([index, torch.zeros(max(padded - len(index), 0), dtype=index.dtype)])
    return Client(
        federation.model, federation.train, TRAINING, 0.1, index, real, schedule, {}, {}, vmapped=padded > 0
    )


def test_sgd_step_by_step_is_fit(federation: Federation) -> None:
    one, other = (client(federation, 0) for _ in range(2))
    w = federation.model.init(0)

    def step(now: SGDState, batch: Batch) -> tuple[SGDState, Tensor]:
        found = one.gradient(now.w, batch)
        return one.descend(now, found), found.loss

    assert torch.equal(one.run_steps(step, one.initial_state(w)).w, other.fit(start=w))
    assert torch.equal(one.train_loss, other.train_loss)


def test_a_walk_gets_a_batch_of_every_stream(federation: Federation) -> None:
    seen = []
    ours = client(federation, 0, ("batches", "others"))

    def step(now: tuple[Tensor], one: Batch, other: Batch) -> tuple[tuple[Tensor], Tensor]:
        seen.append((one.y, other.y))
        return now, torch.zeros(())

    ours.run_steps(step, (torch.zeros(()),), ("batches", "others"))
    assert [(len(one), len(other)) for one, other in seen] == [(5, 5), (5, 5), (2, 2)] * 2
    assert any(one.tolist() != other.tolist() for one, other in seen)  # drawn on their own


def test_steps_that_a_padded_client_has_not_change_nothing(federation: Federation) -> None:
    """Seven samples make four steps, of eight that a neighbour with twenty needs: state may be nested."""
    w = federation.model.init(0)

    def walked(ours: Client) -> tuple[SGDState, Tensor]:
        def step(now: tuple[SGDState, Tensor], batch: Batch) -> tuple[tuple[SGDState, Tensor], Tensor]:
            found = ours.gradient(now[0].w, batch)
            return (ours.descend(now[0], found), now[1] + 1), found.loss

        return ours.run_steps(step, (ours.initial_state(w), torch.zeros(())))

    (alone, steps), (among, counted) = (walked(client(federation, 1, padded=n)) for n in (0, 20))
    assert (int(steps), int(counted)) == (4, 4)
    torch.testing.assert_close(among, alone, rtol=0, atol=1e-12)
