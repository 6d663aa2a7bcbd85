"""Run methods in Flower and in this process; prints the largest differences of model and accuracy.

``python flower_federation.py METHOD ...``; ``own:METHOD`` gives every node its own samples only.
"""

import sys

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

import fedflow as ff

ROUNDS, CLIENTS = 5, 4
OPTIONS = {"model": "mlp", "training": {"lr": 0.1, "batch_size": 64}, "seed": 1}
BACKEND = {"init_args": {"num_cpus": 2, "log_to_driver": False}, "client_resources": {"num_cpus": 1}}


def digits() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 8)).astype("float32"), rng.integers(0, 3, 200)
    return x[:160], y[:160], x[160:], y[160:]


def of_node(context: Context) -> ff.Dataset:
    x, y, x_test, y_test = digits()
    rows = np.arange(int(context.node_config["partition-id"]), len(x), CLIENTS)
    return ff.dataset(x[rows], y[rows], x_test, y_test)


def compare(name: str, own: bool) -> tuple[float, float]:
    data, division = "digits", ff.scheme("dirichlet", alpha=0.5, clients=CLIENTS)
    if own:
        data, division = ff.dataset(*digits()), [np.arange(k, 160, CLIENTS) for k in range(CLIENTS)]
    run = {"rounds": ROUNDS, "participation": 0.5, "evaluate_every": 1, "progress": False}
    here = ff.run(data, division, name, **run, **OPTIONS)
    server, ended = ServerApp(), []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = ff.flower.Strategy(name, clients=CLIENTS, like=data, participation=0.5, **OPTIONS)
        ended.append((strategy, strategy.start(grid, num_rounds=ROUNDS)))

    client = ff.flower.client_app(*([of_node, None] if own else [data, division]), name, **OPTIONS)
    run_simulation(server, client, num_supernodes=CLIENTS, backend_name="ray", backend_config=BACKEND)
    strategy, result = ended[0]
    state, there = here._simulation.state.server.tensors(), strategy.server.state.tensors()
    expected, found = here.rounds["local_accuracy"], result.evaluate_metrics_clientapp
    return (
        max(float((there[field] - state[field]).abs().max()) for field in state),
        max(abs(found[t + 1]["local_accuracy"] - expected.iloc[t]) for t in range(ROUNDS)),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for given in sys.argv[1:]:
        own, _, name = given.rpartition(":")
        print(given, *compare(name, bool(own)), flush=True)
