"""The bare reference: FedAvg as one would write it by hand, a plain module and ``torch.optim.SGD``."""

import random

import torch
from torch.nn import functional as F

from benchmarks.peers.work import BATCH, COHORT, LR, SEED, Laps, drive, images, network, place, shuffled


def run(clients: int, rounds: int, laps: Laps) -> None:
    x, y = images()
    module, draw = network(), random.Random(SEED)
    server = {name: value.clone() for name, value in module.state_dict().items()}
    laps.lap()
    for _ in range(rounds):
        total = {name: torch.zeros_like(value) for name, value in server.items()}
        for k in sorted(draw.sample(range(clients), COHORT)):
            module.load_state_dict(server)
            optimizer = torch.optim.SGD(module.parameters(), lr=LR)
            own_x, own_y = x[place(k)], y[place(k)]
            for batch in shuffled().split(BATCH):
                optimizer.zero_grad()
                F.cross_entropy(module(own_x[batch]), own_y[batch]).backward()
                optimizer.step()
            for name, value in module.state_dict().items():
                total[name] += value / COHORT
        server = total
        laps.lap()


if __name__ == "__main__":
    drive(run)
