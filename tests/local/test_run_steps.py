"""`Client.run_steps`: local steps that a method defines itself."""

import pytest
import torch
from support import one_client
from torch import Tensor

from fedflow.local.client import Client
from fedflow.local.drawing import draw_schedule
from fedflow.local.local_training import LocalTraining
from fedflow.local.optimizer import Moving
from fedflow.local.samples import Batch, Samples
from fedflow.local.schedule import Schedule, pad_schedules
from fedflow.local.task import Task
from fedflow.simulation.federation import Federation

ALL = {"momentum": 0.9, "weight_decay": 0.1, "clip_norm": 0.5}
TRAINING = LocalTraining(epochs=2, batch_size=5, lr=0.1, **ALL)


def padded(federation: Federation, k: int, samples: int, training: LocalTraining = TRAINING) -> Client:
    """Client k, padded to ``samples`` samples as in a cohort."""
    own = torch.as_tensor(federation.partition.train(k))
    both = [draw_schedule(training, n, 2, 0, "batches", 1, k) for n in (len(own), samples)]
    schedule = Schedule.of_cohort({name: t[0] for name, t in pad_schedules(both).items()})
    index = torch.nn.functional.pad(own, (0, samples - len(own)))
    data = Samples(federation.train, index, torch.arange(samples) < len(own))
    task = Task(federation.model, training, training.lr, vmapped=True)
    return Client(task, data, {"batches": schedule}, {}, {})


def test_sgd_step_by_step_is_fit(federation: Federation) -> None:
    one, other = (one_client(federation, 0, TRAINING) for _ in range(2))
    w = federation.model.init(0)

    def step(now: Moving, batch: Batch) -> tuple[Moving, Tensor]:
        found = one.gradient(now.w, batch)
        return one.descend(now, found), found.loss

    assert torch.equal(one.run_steps(step, one.initial_state(w)).w, other.fit(start=w))
    assert torch.equal(one.train_loss, other.train_loss)


def test_a_step_gets_a_batch_of_every_stream(federation: Federation) -> None:
    seen = []
    ours = one_client(federation, 0, TRAINING, ("batches", "others"))

    def step(now: tuple[Tensor], one: Batch, other: Batch) -> tuple[tuple[Tensor], Tensor]:
        seen.append((one.y, other.y))
        return now, torch.zeros(())

    ours.run_steps(step, (torch.zeros(()),), ("batches", "others"))
    assert [(len(one), len(other)) for one, other in seen] == [(5, 5), (5, 5), (2, 2)] * 2
    assert any(one.tolist() != other.tolist() for one, other in seen)  # drawn independently


@pytest.mark.parametrize("optimizer", [ALL, {"optimizer": "adam", "lr_within": [1.0, 0.5]}], ids=str)
def test_padded_steps_have_no_effect(federation: Federation, optimizer: dict) -> None:
    """Seven samples make four of the eight steps that a neighbor with twenty needs; states are nested."""
    w, training = federation.model.init(0), LocalTraining(epochs=2, batch_size=5, lr=0.1, **optimizer)

    def trained(ours: Client) -> tuple[Moving, Tensor]:
        def step(now: tuple[Moving, Tensor], batch: Batch) -> tuple[tuple[Moving, Tensor], Tensor]:
            found = ours.gradient(now[0].w, batch)
            return (ours.descend(now[0], found), now[1] + 1), found.loss

        return ours.run_steps(step, (ours.initial_state(w), torch.zeros(())))

    clients = one_client(federation, 1, training), padded(federation, 1, 20, training)
    (alone, steps), (among, counted) = map(trained, clients)
    assert (int(steps), int(counted)) == (4, 4)
    torch.testing.assert_close(among[:3], alone[:3], rtol=0, atol=1e-12)  # not the number of Adam's steps
    torch.testing.assert_close(*(each.traveled() for each in clients), rtol=0, atol=1e-12)
