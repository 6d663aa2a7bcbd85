"""A hand-written loop over rounds that trains the clients of a cohort at once, with ``torch.func.vmap``."""

import random

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from benchmarks.peers.work import (
    BATCH,
    COHORT,
    LR,
    SEED,
    STEPS,
    Laps,
    drive,
    images,
    network,
    place,
    shuffled,
)


def run(clients: int, rounds: int, laps: Laps) -> None:
    x, y = images()
    module, draw = network(), random.Random(SEED)
    server = {name: value.detach() for name, value in module.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(module, parameters, (x,)), y)

    gradient = vmap(grad(loss), randomness="different")  # dropout of each client
    laps.lap(0)
    for t in range(rounds):
        cohort = sorted(draw.sample(range(clients), COHORT))
        rows = torch.stack([place(k).start + shuffled() for k in cohort])
        each = {name: value.expand(COHORT, *value.shape) for name, value in server.items()}
        for batch in rows.split(BATCH, 1):
            change = gradient(each, x[batch], y[batch])
            each = {name: value - LR * change[name] for name, value in each.items()}
        server = {name: value.mean(0) for name, value in each.items()}
        laps.lap((t + 1) * STEPS)  # the network itself is called once for all clients


if __name__ == "__main__":
    drive(run)
