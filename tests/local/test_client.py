"""What local training offers to methods: the round, a selection of samples, training on the server."""

from typing import Any

import numpy as np
import torch
from support import Workers, images, one_client, quadratics, run, same
from torch import Tensor, nn

from fedflow.data import Dataset
from fedflow.local.client import Client, Update
from fedflow.local.local_training import LocalTraining
from fedflow.local.samples import Batch
from fedflow.local.schedule import Pass, shuffled
from fedflow.local.trainer import Trainer
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Cohort, Diagnostics, GlobalModel, Round
from fedflow.seeding import generator, torch_seed
from fedflow.simulation.federation import Federation


def test_a_client_knows_the_round(cohort: str) -> None:
    class Clocked(FedAvg):
        def local(self, client: Client) -> Update:
            assert (client.rounds, client.t.dtype, client.t.shape) == (3, torch.int64, ())
            return client.update(model=client.received["model"] + client.t)

    ran = run(Clocked(), quadratics(start=0), cohort=cohort, rounds=3)
    assert ran.server("model") == [1, 1 + 2, 1 + 2 + 3]


class EasySamples(FedAvg):
    """FedAvg on the samples whose loss under the received model is below the mean."""

    def local(self, client: Client) -> Update:
        start = client.received["model"]
        losses = client.losses(start)
        easy = losses < losses.nanmean()

        def loss(w: Tensor, batch: Batch) -> Tensor:
            return client.loss(w, batch.only(easy[batch.positions]))

        return client.update(model=client.fit(loss, start=start), weight=self.weight(client))


def test_a_selection_of_samples(federation: Federation, cohort: str) -> None:
    """A full batch of all samples, of which the easy ones count, is a full batch of the easy ones."""
    ran = run(EasySamples(), federation, cohort=cohort, rounds=1, training={"epochs": 1})
    w, expected = federation.model.init(torch_seed(0, "initial model", 0)), []
    for k in range(3):
        client = one_client(federation, k)
        x, y = client.data()
        easy = client.losses(w) < client.full_loss(w)
        assert 0 < easy.sum() < len(y)
        g = client.gradient(w, Batch(x[easy], y[easy])).gradient
        expected.append(len(y) / 28 * (w - 0.1 * g))
    torch.testing.assert_close(ran.servers[0]["model"], sum(expected), rtol=0, atol=1e-12)


class Refined(FedAvg):
    """FedAvg whose server trains the mean on its own data."""

    def aggregate(self, now: Round, server: Any, cohort: Cohort) -> tuple[Any, Diagnostics]:
        training = LocalTraining(epochs=2, batch_size=16, lr=0.05)
        trainer = Trainer.central(now.model, now.public, training, now.rng)
        w = trainer.fit(start=self.average(cohort))
        return GlobalModel(w), {"loss": float(trainer.train_loss)}


def test_a_server_trains_on_its_own_data(federation: Federation) -> None:
    """The same bits for any number of workers, and the steps of ``torch.optim`` in the same order."""
    alone, shared = (run(Refined(), federation, executor=Workers(n), rounds=2) for n in (1, 3))
    assert same(alone.state(), shared.state())
    plain = run("fedavg", federation, rounds=1).servers[0]["model"]
    public = federation.public
    module = federation.model.to_module(plain).train()
    sgd = torch.optim.SGD(module.parameters(), lr=0.05)
    order = shuffled(generator(0, "server", 1, 0), len(public), 16, [Pass(len(public), 4)] * 2)
    for rows, *_ in order.batches():
        sgd.zero_grad()
        nn.functional.cross_entropy(module(public.x[rows].double()), public.y[rows]).backward()
        sgd.step()
    expected = federation.model.from_module(module)
    torch.testing.assert_close(alone.servers[0]["model"], expected, rtol=0, atol=1e-12)


def test_the_noise_of_a_server_is_drawn_from_its_generator(digits: Dataset) -> None:
    """Without a seed, dropout would repeat or depend on that of the last client."""
    model = images(digits, (12,), "mlp", dropout=0.5).model
    ends, once = [], LocalTraining(batch_size=0)
    for seed in (0, 0, 1):
        trainer = Trainer.central(model, digits.train, once, np.random.default_rng(seed))
        ends.append(trainer.fit(start=model.init(0)))
        model.seed_noise(7)
    assert torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])
