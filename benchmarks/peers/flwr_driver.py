"""Flower: ``run_simulation`` on Ray with one CPU and one client at a time, FedAvg without evaluation."""

import itertools
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional as F

from benchmarks.peers.work import (
    BATCH,
    COHORT,
    DEVICE,
    LR,
    SAMPLES,
    Laps,
    drive,
    images,
    network,
    place,
    shuffled,
)

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One local epoch; the reply also counts its batches."""
    torch.set_num_threads(1)
    x, y = images()
    mine = place(int(context.node_config["partition-id"]))
    own_x, own_y = x[mine], y[mine]
    module = network()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer, steps = torch.optim.SGD(module.parameters(), lr=LR), 0
    for batch in shuffled().split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(module(own_x[batch]), own_y[batch]).backward()
        optimizer.step()
        steps += 1
    metrics = MetricRecord({"num-examples": SAMPLES, "steps": steps})
    content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def run(clients: int, rounds: int, laps: Laps) -> None:
    server_app, trained = ServerApp(), [0]

    class Timed(FedAvg):
        """FedAvg that notes when each round begins: where the one before it ends."""

        def configure_train(self, *given: Any) -> Any:
            laps.lap(trained[0])
            return super().configure_train(*given)

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            counted, passed = itertools.tee(replies)
            trained[0] += sum(int(reply.content["metrics"]["steps"]) for reply in counted)
            return super().aggregate_train(server_round, passed)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(fraction_train=COHORT / clients, fraction_evaluate=0.0, min_available_nodes=clients)
        strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=rounds)
        laps.lap(trained[0])

    run_simulation(
        server_app,
        client_app,
        num_supernodes=clients,
        backend_name="ray",
        backend_config={
            "init_args": {"num_cpus": 1, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": float(DEVICE.type == "cuda")},
        },
    )


if __name__ == "__main__":
    drive(run, "flwr")
