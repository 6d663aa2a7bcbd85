"""fluke: its ``FedAVG`` in memory, without evaluation."""

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver

from benchmarks.peers.work import BATCH, COHORT, DEVICE, LR, SEED, Laps, drive, images, network, place


class Timed(FederationObserver):
    """Notes when each round ends."""

    def __init__(self, laps: Laps) -> None:
        self.laps = laps

    def end_round(self, round: int) -> None:
        self.laps.lap()


def run(clients: int, rounds: int, laps: Laps) -> None:
    environment = FlukeENV()
    environment.set_seed(SEED)
    environment.set_device(str(DEVICE))
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    x, y = images()
    optimizer = OptimizerConfigurator(DDict(name="SGD", lr=LR))
    everyone = [
        Client(
            index=k,
            train_set=FastDataLoader(x[place(k)], y[place(k)], num_labels=10, batch_size=BATCH, shuffle=True),
            test_set=None,
            optimizer_cfg=optimizer,
            loss_fn=torch.nn.CrossEntropyLoss(),
            local_epochs=1,
        )
        for k in range(clients)
    ]
    server = Server(network(), None, everyone, weighted=True)
    federation = FedAVG(clients, None, DDict(), clients=everyone, server=server)
    federation.set_callbacks([Timed(laps)])
    laps.lap()
    federation.run(rounds, COHORT / clients)


if __name__ == "__main__":
    drive(run, "fluke-fl")
