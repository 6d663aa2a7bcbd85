"""Scoring: which accuracy every client gets from the model that it is served."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedflow.data import Examples
from fedflow.local.client import EVALUATION_BATCH, Client, Update
from fedflow.simulation.federation import Federation
from fedflow.simulation.worker import Job, Shard, _client, solve


@dataclass
class EvaluationShard(Shard):
    """One worker's share of an evaluation."""

    full: bool = False  # also on the complete test set
    tune: bool = False  # also after one more local training
    trained: bool = False  # also the client's last trained model (kept as "trained")
    models: bool = False  # return the vectors too


@dataclass
class Scores:
    """Per client of a shard, arrays [m]; nan where not measured."""

    clients: list[int]
    cluster: np.ndarray
    test_samples: np.ndarray
    local_loss: np.ndarray
    local_accuracy: np.ndarray
    global_accuracy: np.ndarray
    tuned_accuracy: np.ndarray
    trained_accuracy: np.ndarray
    models: list[Tensor]  # distinct served vectors, when asked for
    model: np.ndarray  # place in models


def evaluate_shard(job: Job, shard: EvaluationShard) -> Scores:
    """Score every client of the shard with the model its method serves it."""
    federation = job.federation.open()
    vectors: list[Tensor] = []
    places: dict[object, int] = {}
    model = np.zeros(len(shard.clients), dtype=np.int64)
    cluster = np.zeros(len(shard.clients), dtype=np.int64)
    for i in range(len(shard.clients)):
        served = job.method.model_for(_client(job, federation, shard, i, {}))
        w, number = served if isinstance(served, tuple) else (served, torch.zeros(()))
        if number is None:
            number = _best_of(federation, w, shard.clients[i])
            w = w[number]
        cluster[i] = int(number)
        shared = isinstance(served, tuple) and job.method.serves == "cluster"
        key = ("cluster", int(number)) if shared else (w.data_ptr(), w.shape)
        if key not in places:
            places[key] = len(vectors)
            vectors.append(w)
        model[i] = places[key]
    local, full, losses = _score(federation, vectors, model, shard.clients, shard.full)
    nothing = np.full(len(shard.clients), np.nan)
    tuned = trained = nothing
    if shard.tune:
        tuned = _tuned(job, federation, shard, vectors, model)
    if shard.trained:
        own = [shard.vectors[kept["trained"]] for kept in shard.kept]
        trained, _, _ = _score(federation, own, np.arange(len(own)), shard.clients, False)
    return Scores(
        clients=shard.clients,
        cluster=cluster,
        test_samples=np.array([federation.partition.test_size(k) for k in shard.clients]),
        local_loss=losses,
        local_accuracy=local,
        global_accuracy=full,
        tuned_accuracy=tuned,
        trained_accuracy=trained,
        models=[w.cpu() for w in vectors] if shard.models else [],
        model=model,
    )


def merged(parts: list[Scores]) -> Scores:
    """The scores of all shards as one, in client order."""
    clients = [k for part in parts for k in part.clients]
    order = np.argsort(clients)
    offsets = np.cumsum([0, *(len(part.models) for part in parts)])
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts])[order]
        for name in vars(parts[0])
        if name not in ("clients", "models", "model")
    }
    model = np.concatenate([part.model + offset for part, offset in zip(parts, offsets)])[order]
    models = [w for part in parts for w in part.models]
    return Scores(clients=sorted(clients), models=models, model=model, **arrays)


def _best_of(federation: Federation, models: Tensor, client: int) -> Tensor:
    """Which of ``models`` [k, D] has the least loss on the client's own test samples, 0 if it has none."""
    alone, first = [client], np.zeros(1, dtype=np.int64)
    losses = [_score(federation, [w], first, alone, False)[2][0] for w in models]
    return torch.tensor(losses).nan_to_num(torch.inf).argmin()


def _tuned(
    job: Job, federation: Federation, shard: Shard, vectors: list[Tensor], model: np.ndarray
) -> np.ndarray:
    """Accuracy [m] after one more local training from the served model ("+" of the published tables)."""
    start = replace(
        shard, vectors=vectors, received=[{"model": int(p)} for p in model], kept=[{} for _ in model]
    )
    start = Shard(start.round, start.clients, start.vectors, start.received, start.kept)

    def step(client: Client) -> Update:
        return client.update(model=client.fit(start=client.received["model"], stream="tune"))

    accuracy = dict.fromkeys(shard.clients, np.nan)
    for k, update in solve(job, start, step, {"tune": job.training.epochs}):
        if isinstance(update, Update):
            scores, _, _ = _score(
                federation, [update.vectors["model"]], np.zeros(1, dtype=np.int64), [k], False
            )
            accuracy[k] = scores[0]
    return np.array([accuracy[k] for k in shard.clients])


def _score(
    federation: Federation, vectors: Sequence[Tensor], model: np.ndarray, clients: list[int], full: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Local accuracy, complete-test accuracy and local loss, [m] each.

    Each distinct model sees each test sample once; its clients are scored from the counts per pool.
    """
    partition, shared = federation.partition, not federation.partition.held_out
    local, everywhere, losses = (np.full(len(clients), np.nan) for _ in range(3))
    for place, w in enumerate(vectors):
        members = np.flatnonzero(model == place).tolist()
        pools = {
            p: partition.pool(p)
            for p in sorted({int(p) for i in members for p in partition.test_pools(clients[i])})
        }
        needed = np.zeros(len(federation.own_test), dtype=bool)
        for rows in pools.values():
            needed[rows] = True
        if full and shared:
            needed[:] = True
        hits, loss = _predict(federation, w, federation.own_test, np.flatnonzero(needed))
        counts = {p: (hits[rows].sum(), loss[rows].sum(), len(rows)) for p, rows in pools.items()}
        for i in members:
            own = [counts[int(p)] for p in partition.test_pools(clients[i])]
            right, lost, size = np.sum(own, axis=0) if own else (0, 0, 0)
            if size:  # a client without test samples stays nan
                local[i], losses[i] = right / size, lost / size
        if full:
            complete = federation.test
            over_all = hits if shared else _predict(federation, w, complete, np.arange(len(complete)))[0]
            everywhere[members] = over_all.mean()
    return local, everywhere, losses


@torch.no_grad()
def _predict(
    federation: Federation, w: Tensor, test: Examples, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Hits and losses of one model, arrays over the examples ``test`` (0 where not evaluated)."""
    model = federation.model
    hits, losses = (torch.zeros(len(test), dtype=torch.float64, device=model.device) for _ in range(2))
    for chunk in torch.as_tensor(rows, device=model.device).split(EVALUATION_BATCH):
        outputs, y = model.outputs(w, test.inputs(chunk, model.dtype)), test.targets(chunk)
        hits[chunk] = model.hits(outputs, y).double()
        losses[chunk] = model.losses(outputs, y).double()
    return hits.cpu().numpy(), losses.cpu().numpy()
