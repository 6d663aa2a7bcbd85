"""FedJAX: ``federated_averaging``, whose compiled local training runs client after client.

With several devices it runs one client on each (``pmap``). Images are given by torch, as to all drivers.
"""

import random
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


def conv(w: dict[str, Array], name: str, x: Array) -> Array:
    return (
        lax.conv_general_dilated(x, w[f"{name}.weight"], (1, 1), "VALID") + w[f"{name}.bias"][:, None, None]
    )


def dense(w: dict[str, Array], name: str, x: Array) -> Array:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def pool(x: Array) -> Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def dropout(x: Array, rate: float, rng: Array | None) -> Array:
    return x if rng is None else jnp.where(jax.random.bernoulli(rng, 1 - rate, x.shape), x / (1 - rate), 0)


def lenet5(w: dict[str, Array], x: Array, rng: Array | None) -> Array:
    for name in ("conv1", "conv2"):
        x = jax.nn.relu(pool(conv(w, name, x)))
    x = x.reshape(len(x), -1)
    for name in ("fc1", "fc2"):
        x = jax.nn.relu(dense(w, name, x))
    return dense(w, "fc3", x)


def simple_cnn(w: dict[str, Array], x: Array, rng: Array | None) -> Array:
    """Layers are named by their places in `SimpleCNN`; without ``rng`` nothing is dropped."""
    first, second = (None, None) if rng is None else jax.random.split(rng)
    for name in ("0", "2"):
        x = jax.nn.relu(conv(w, name, x))
    x = dropout(pool(x), 0.25, first).reshape(len(x), -1)
    return dense(w, "10", dropout(jax.nn.relu(dense(w, "7", x)), 0.5, second))


def logits(w: dict[str, Array], x: Array, rng: Array | None = None) -> Array:
    """The network on images [B, 3, 32, 32]."""
    return (simple_cnn if WORK == "pfl" else lenet5)(w, x, rng)


def loss(w: dict[str, Array], batch: dict[str, Array], rng: Array) -> Array:
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(w, batch["x"], rng)), batch["y"][:, None], 1)
    return -chosen.mean()


def run(clients: int, rounds: int, laps: Laps) -> None:
    x, y = (tensor.cpu().numpy() for tensor in images())
    draw, key = random.Random(SEED), jax.random.PRNGKey(SEED)

    def gradient(w: Any, batch: Any, rng: Any) -> Any:
        return jax.grad(loss)(w, batch, rng)

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
