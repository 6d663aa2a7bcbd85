"""FedJAX: ``federated_averaging``, whose compiled local training runs client after client.

With several devices it runs one client on each (``pmap``). Images are given by torch, as to all drivers.
"""

import random
import sys
from typing import Any

import fedjax
import jax
from fedjax.algorithms.fed_avg import federated_averaging
from jax import Array, lax
from jax import numpy as jnp

from benchmarks.peers.work import (
    BATCH,
    COHORT,
    LR,
    SAMPLES,
    SEED,
    STEPS,
    WORK,
    Laps,
    drive,
    images,
    network,
    place,
)


def logits(w: dict[str, Array], x: Array) -> Array:
    """LeNet-5 on images [B, 3, 32, 32]."""
    for name in ("conv1", "conv2"):
        x = (
            lax.conv_general_dilated(x, w[f"{name}.weight"], (1, 1), "VALID")
            + w[f"{name}.bias"][:, None, None]
        )
        x = jax.nn.relu(lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"))
    x = x.reshape(len(x), -1)
    for name in ("fc1", "fc2", "fc3"):
        x = x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
        x = x if name == "fc3" else jax.nn.relu(x)
    return x


def loss(w: dict[str, Array], batch: dict[str, Array]) -> Array:
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(w, batch["x"])), batch["y"][:, None], 1)
    return -chosen.mean()


def run(clients: int, rounds: int, laps: Laps) -> None:
    if WORK != "lenet5":
        sys.exit("the network of this driver is LeNet-5")
    x, y = (tensor.cpu().numpy() for tensor in images())
    draw, key = random.Random(SEED), jax.random.PRNGKey(SEED)

    def gradient(w: Any, batch: Any, rng: Any) -> Any:
        return jax.grad(loss)(w, batch)

    algorithm = federated_averaging(
        gradient,
        client_optimizer=fedjax.optimizers.sgd(LR),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1),
    )
    start = {name: jnp.asarray(value.cpu().numpy()) for name, value in network().state_dict().items()}
    state, trained = algorithm.init(start), 0
    laps.lap(0)
    for _ in range(rounds):
        key, *keys = jax.random.split(key, 1 + COHORT)
        cohort = sorted(draw.sample(range(clients), COHORT))
        data = [fedjax.ClientDataset({"x": x[place(k)], "y": y[place(k)]}) for k in cohort]
        state, seen = algorithm.apply(state, list(zip(cohort, data, keys, strict=True)))
        jax.block_until_ready(state.params)
        trained += len(seen) * SAMPLES // BATCH
        laps.lap(trained)
    assert trained == rounds * STEPS


if __name__ == "__main__":
    jax.config.update("jax_default_matmul_precision", "float32")
    drive(run, "fedjax")
