"""Scoring: the accuracy of every client with the model that it is served."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedflow.data import Examples
from fedflow.local.adaptation import Adaptation
from fedflow.local.client import Client, Update
from fedflow.metrics.predictions import CALIBRATION, by_client
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.seeding import torch_seed
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job, Parcel, Shard
from fedflow.simulation.levels import level, network
from fedflow.simulation.worker import TrainedClients, client_of, train_clients

ANSWERS = {"label": np.int32, "predicted": np.int32, "confidence": np.float32, "rank": np.int32}
PREDICTIONS = {"client": np.int32, "sample": np.int32} | ANSWERS  # columns of the table, and their types
# Columns of the table of mixtures: client, share of the personal model, scores, test samples.
SWEEP = {
    "client": np.int32, "value": np.float64, "accuracy": np.float64, "loss": np.float64, "ece": np.float64,
    "mce": np.float64, "samples": np.int32,
}  # fmt: skip
SERVED: dict[str, Any] = {"served": np.bool_}  # and whether this mixture is the one that the client is served
AT_ONCE = {"cpu": 128, "cuda": 512}  # samples: the activations of larger batches exceed a CPU's cache


@dataclass
class EvaluationShard(Shard):
    """One worker's share of an evaluation.

    ``received`` and ``kept`` have a single entry if all clients are served the same model.
    """

    adapt: Sequence[Adaptation] = ()  # also after each of these adaptations
    adapt_last: bool = False  # of the last of ``vectors`` in place of the model that the client is served
    full: bool = False  # also on the complete test set
    tune: bool = False  # also after one more local training
    trained: bool = False  # also the client's last trained model (kept as "trained")
    models: bool = False  # return the vectors too
    predictions: bool = False  # return the prediction of every test sample of every client too


@dataclass
class Scores(Parcel):
    """Per client of a shard, arrays [m]; NaN (cluster: -1) where not measured."""

    clients: list[int]
    cluster: np.ndarray
    test_samples: np.ndarray
    local_loss: np.ndarray
    local_accuracy: np.ndarray
    global_accuracy: np.ndarray
    global_loss: np.ndarray
    tuned_accuracy: np.ndarray
    trained_accuracy: np.ndarray
    maml_accuracy: np.ndarray
    proto_accuracy: np.ndarray
    models: list[Tensor]  # distinct served vectors, if requested
    model: np.ndarray  # index into models, -1 if absent
    predictions: pd.DataFrame | None = None  # `PREDICTIONS` of their test samples, if requested

    def among(self, partition: Partition, clients: int) -> "Scores":
        """These scores expanded to all ``clients`` (N); NaN where not evaluated."""
        if len(self.clients) == clients:
            return self
        spread: dict[str, Any] = {}
        for name, values in vars(self).items():
            if isinstance(values, np.ndarray):
                spread[name] = np.full(clients, np.nan if values.dtype.kind == "f" else -1, values.dtype)
                spread[name][self.clients] = values
        spread["test_samples"] = _test_sizes(partition, range(clients))
        return replace(self, clients=list(range(clients)), **spread)


def evaluate_shard(job: Job, shard: EvaluationShard) -> Scores:
    """Score every client of the shard with the model that it is served."""
    federation, asked = job.federation.open(), len(shard.received)
    vectors, networks = list[Tensor](), list[FlatModel]()
    places: dict[object, int] = {}
    model, cluster = (np.zeros(asked, dtype=np.int64) for _ in range(2))
    for i in range(asked):
        w, cluster[i], shared = _served(job, federation, shard, i)
        here = level(job.method, federation, shard.clients[i])
        key = ("cluster", int(cluster[i])) if shared else (here, w.data_ptr(), w.shape)
        if key not in places:
            places[key] = len(vectors)
            vectors.append(w)
            networks.append(network(job.method, federation, here))
        model[i] = places[key]
    # A single entry holds for all clients.
    model, cluster = (np.resize(array, len(shard.clients)) for array in (model, cluster))
    kept: list[pd.DataFrame] | None = [] if shard.predictions else None
    local, losses, full, full_losses = _score(
        federation, vectors, model, shard.clients, shard.full, kept, networks
    )
    tuned = trained = unmeasured = np.full(len(shard.clients), np.nan)
    adapted = {
        adaptation.name: _adapted(job, federation, shard, vectors, model, adaptation)
        for adaptation in shard.adapt
    }
    if shard.tune:
        tuned = _tuned(job, federation, shard, vectors, model)
    if shard.trained:
        own = [shard.vectors[own["trained"]] for own in shard.kept]
        networks = [network(job.method, federation, level(job.method, federation, k)) for k in shard.clients]
        trained = _score(federation, own, np.arange(len(own)), shard.clients, False, None, networks)[0]
    return Scores(
        clients=shard.clients,
        cluster=cluster,
        test_samples=_test_sizes(federation.partition, shard.clients),
        local_loss=losses,
        local_accuracy=local,
        global_accuracy=full,
        global_loss=full_losses,
        tuned_accuracy=tuned,
        trained_accuracy=trained,
        maml_accuracy=adapted.get("maml", unmeasured),
        proto_accuracy=adapted.get("proto", unmeasured),
        models=[w.cpu() for w in vectors] if shard.models else [],
        model=model if shard.models else np.full_like(model, -1),
        predictions=pd.concat(kept) if kept else None,
    )


def poll_shard(job: Job, shard: Shard) -> list[float]:
    """The mean loss of every client's training samples under the model that it is served.

    Of several models of which it would choose by its test data, the smallest.
    """
    federation, losses = job.federation.open(), list[float]()
    for i, k in enumerate(shard.clients):
        client = client_of(job, federation, shard, i, {})
        client.model.seed_noise(torch_seed(job.seed, "served noise", shard.round, k))
        served = job.method.model_for(client)
        w, number = served if isinstance(served, tuple) else (served, torch.zeros(()))
        losses.append(min(float(client.full_loss(w)) for w in (w if number is None else [w])))
    return losses


def sweep_shard(job: Job, shard: Shard) -> pd.DataFrame:
    """The table `SWEEP`, `SERVED` of every client of the shard that has test samples."""
    federation, tables = job.federation.open(), [pd.DataFrame(columns=[*SWEEP, *SERVED])]
    for i, k in enumerate(shard.clients):
        served, *_ = _served(job, federation, shard, i)
        client = client_of(job, federation, shard, i, {})
        client.model.seed_noise(torch_seed(job.seed, "served noise", shard.round, k))
        found = job.method.sweep(client)
        samples = int(_test_sizes(federation.partition, [k])[0])
        if found is None or not samples:
            continue
        values, models = found
        kept: list[pd.DataFrame] = []
        scores = _score(
            federation, [*models], np.arange(len(values)), [k] * len(values), False,
            kept if federation.labelled else None, [client.model] * len(values),
        )  # fmt: skip
        own: dict[str, Any] = {"client": k, "value": values, "accuracy": scores[0], "loss": scores[1]}
        own |= dict.fromkeys(CALIBRATION, np.nan)
        if kept:
            answers = pd.concat(kept).assign(client=np.repeat(np.arange(len(values)), samples))
            own |= {name: by_client(answers, name).to_numpy() for name in CALIBRATION}
        own |= {"samples": samples, "served": [torch.equal(w, served) for w in models]}
        tables.append(pd.DataFrame(own))
    return pd.concat(tables[1:] or tables).astype(SWEEP | SERVED)


def score_reports(job: Job, shard: Shard) -> list[tuple[float, float]]:
    """Accuracy and mean loss of each vector of the shard on the complete test set (`run.reports`).

    Each has the network of a client of the shard; the network of the run if there are none.
    """
    federation = job.federation.open()
    test, rows = federation.complete
    models = [network(job.method, federation, level(job.method, federation, k)) for k in shard.clients] or [
        federation.model
    ] * len(shard.vectors)
    scores = [predict(model, w, test, rows) for model, w in zip(models, shard.vectors, strict=True)]
    return [(float(hits[rows].mean()), float(losses[rows].mean())) for hits, losses, _ in scores]


def merged(parts: list[Scores]) -> Scores:
    """The scores of all shards as one, in client order."""
    clients = np.concatenate([part.clients for part in parts])
    order = np.argsort(clients)
    offsets = np.cumsum([0, *(len(part.models) for part in parts)])
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts])[order]
        for name in vars(parts[0])
        if name not in ("clients", "models", "model", "predictions")
    }
    kept = [part.predictions for part in parts if part.predictions is not None]
    predictions = pd.concat(kept).sort_values(["client", "sample"], ignore_index=True) if kept else None
    places = [np.where(part.model < 0, -1, part.model + offset) for part, offset in zip(parts, offsets)]
    model = np.concatenate(places)[order]
    models = [w for part in parts for w in part.models]
    return Scores(
        clients=clients[order].tolist(), models=models, model=model, predictions=predictions, **arrays
    )


def _served(job: Job, federation: Federation, shard: Shard, i: int) -> tuple[Tensor, int, bool]:
    """The model [D] that the i-th client of the shard is served, its cluster, and whether that shares it."""
    client = client_of(job, federation, shard, i, {})
    client.model.seed_noise(torch_seed(job.seed, "served noise", shard.round, shard.clients[i]))
    served = job.method.model_for(client)
    w, number = served if isinstance(served, tuple) else (served, torch.zeros(()))
    if number is None:
        best = _best_of(federation, w, shard.clients[i])
        # Not a view, which would keep all of the models in memory.
        w, number = w[best].clone(), best if job.method.serves == "cluster" else torch.zeros(())
    return w, int(number), isinstance(served, tuple) and job.method.serves == "cluster"


def _best_of(federation: Federation, models: Tensor, client: int) -> Tensor:
    """The index of the model [k, D] with the lowest loss on the client's test samples, 0 if it has none."""
    alone, first = [client], np.zeros(1, dtype=np.int64)
    losses = [_score(federation, [w], first, alone, False)[1][0] for w in models]
    return torch.tensor(losses).nan_to_num(torch.inf).argmin()


def _tuned(
    job: Job, federation: Federation, shard: Shard, vectors: list[Tensor], model: np.ndarray
) -> np.ndarray:
    """Accuracy [m] after one more local training from the served model ("+" of the published tables).

    Without a curriculum, side losses or adaptation, so that models are compared after the same training.
    """
    job = replace(job, training=replace(job.training, curriculum=None, objective=None, adaptation=None))
    received: list[dict[str, int]] = [{"model": int(place)} for place in model]
    start = Shard(shard.round, shard.clients, vectors, received, [{} for _ in model])

    def step(client: Client) -> Update:
        return client.update(model=client.fit(start=client.received["model"], stream="tune"))

    accuracy = dict.fromkeys(shard.clients, np.nan)
    for outcome in train_clients(job, start, step, {"tune": job.training.epochs}):
        if isinstance(outcome, TrainedClients):
            for k, w in zip(outcome.clients, outcome.update.vectors["model"]):
                accuracy[k] = _accuracy(
                    federation, w, k, network(job.method, federation, level(job.method, federation, k))
                )
    return np.array([accuracy[k] for k in shard.clients])


def _adapted(
    job: Job,
    federation: Federation,
    shard: EvaluationShard,
    vectors: list[Tensor],
    model: np.ndarray,
    adaptation: Adaptation,
) -> np.ndarray:
    """Accuracy [m] on the client's own test set after adaptation to all its training samples."""
    if shard.adapt_last:
        vectors, model = shard.vectors[-1:], np.zeros_like(model)
    received: list[dict[str, int]] = [{"model": int(place)} for place in model]
    start = Shard(shard.round, shard.clients, vectors, received, [{} for _ in model])
    found = []
    for i, k in enumerate(shard.clients):
        client = client_of(job, federation, start, i, {})
        w = client.adapted(client.received["model"], adaptation)
        found.append(_accuracy(federation, w, k, client.model))
    return np.array(found)


def _accuracy(federation: Federation, w: Tensor, client: int, model: FlatModel) -> float:
    """Accuracy of one model [D] on one client's own test set."""
    return _score(federation, [w], np.zeros(1, dtype=np.int64), [client], False, None, [model])[0][0]


def _score(
    federation: Federation,
    vectors: Sequence[Tensor],
    model: np.ndarray,
    clients: Sequence[int],
    full: bool,
    kept: list[pd.DataFrame] | None = None,
    networks: Sequence[FlatModel] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Accuracy and mean loss on the client's own test set, then on the complete one; [m] each.

    Each distinct model sees each test sample once; its clients are scored from the counts per pool. A network
    with the statistics of a batch sees the samples of one client at a time, so that no score depends on who
    else is scored here. The predictions that clients are scored by are appended to ``kept``, if given.
    ``networks`` are those of the vectors, by default that of the run.
    """
    partition, (complete, rows) = federation.partition, federation.complete
    alone = federation.model.batch_statistics
    shared = complete is federation.own_test and not alone
    local, losses, everywhere, full_losses = (np.full(len(clients), np.nan) for _ in range(4))
    ids, by_model = np.asarray(clients), np.argsort(model, kind="stable")
    ends = np.searchsorted(model[by_model], np.arange(len(vectors)), side="right")
    networks = networks or [federation.model] * len(vectors)
    groups = list(zip(networks, vectors, np.split(by_model, ends[:-1])))
    for net, w, members in (
        [(net, w, each[None]) for net, w, own in groups for each in own] if alone else groups
    ):
        own, owner = _rows(partition.own_offsets, partition.own_pools, ids[members])
        pools, own = np.unique(own, return_inverse=True)
        samples, pool = _rows(partition.pool_offsets, partition.pool_indices, pools)
        needed = np.zeros(len(federation.own_test), dtype=bool)
        needed[samples] = True
        if full and shared:
            needed[rows] = True
        hits, loss, answers = predict(net, w, federation.own_test, np.flatnonzero(needed), kept is not None)
        counts = (np.bincount(pool, each[samples], len(pools)) for each in (hits, loss, np.ones_like(hits)))
        right, lost, size = (np.bincount(owner, count[own], len(members)) for count in counts)
        if kept is not None:
            of_clients, place = _rows(partition.pool_offsets, partition.pool_indices, pools[own])
            columns = {"client": ids[members][owner[place]], "sample": of_clients}
            columns |= {name: values[of_clients] for name, values in answers.items()}
            kept.append(pd.DataFrame(columns).astype(PREDICTIONS))
        tested = members[size > 0]  # clients without test samples stay NaN
        local[tested], losses[tested] = (sums[size > 0] / size[size > 0] for sums in (right, lost))
        if full and shared:
            everywhere[members], full_losses[members] = hits[rows].mean(), loss[rows].mean()
    for net, w, members in groups if full and not shared else ():
        hits, loss, _ = predict(net, w, complete, rows)
        everywhere[members], full_losses[members] = hits[rows].mean(), loss[rows].mean()
    return local, losses, everywhere, full_losses


def _rows(offsets: np.ndarray, values: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ``chosen`` rows of compressed ``values``, concatenated, and the place of each value's row."""
    starts, sizes = offsets[chosen], offsets[chosen + 1] - offsets[chosen]
    owner = np.repeat(np.arange(len(chosen)), sizes)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return values[starts[owner] + within], owner


def _test_sizes(partition: Partition, clients: Sequence[int]) -> np.ndarray:
    """Number of test samples of each of ``clients`` [m]."""
    pools, owner = _rows(partition.own_offsets, partition.own_pools, np.asarray(clients))
    return np.bincount(owner, np.diff(partition.pool_offsets)[pools], len(clients)).astype(np.int64)


@torch.no_grad()
def predict(
    model: FlatModel, w: Tensor, test: Examples, rows: np.ndarray, keep: bool = False
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Hits and losses of one model, arrays over the examples ``test`` (0 where not evaluated).

    With ``keep``, also its `ANSWERS`.
    """
    hits, losses = (torch.zeros(len(test), dtype=torch.float64, device=model.device) for _ in range(2))
    answers = {name: np.zeros(len(test), kind) for name, kind in ANSWERS.items()} if keep else {}
    alone = model.batch_statistics
    at_once = AT_ONCE["cpu" if alone else model.device.type]  # the statistics must not depend on the device
    if (
        keep and not alone
    ):  # whole batches: the last bits of a small one depend on its size, and so on the workers
        rows = np.append(rows, np.repeat(rows[-1:], -len(rows) % at_once))
    index, parts = torch.as_tensor(rows, device=model.device), -(-len(rows) // at_once)
    # Of nearly equal sizes where statistics are those of a batch: those of a few samples are poor.
    for chunk in index.tensor_split(parts) if alone and parts else index.split(at_once):
        outputs, y = model.outputs(w, test.inputs(chunk, model.dtype)), test.targets(chunk)
        hits[chunk] = model.hits(outputs, y).double()
        losses[chunk] = model.losses(outputs, y).double()
        for name, values in _answers(outputs, y).items() if keep else ():
            answers[name][chunk.cpu()] = values.cpu()
    return hits.cpu().numpy(), losses.cpu().numpy(), answers


def _answers(outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Of outputs [B, K] and labels [B]: prediction, its probability, and the rank of the label from 1."""
    predicted = outputs.argmax(-1)
    confidence = outputs.softmax(-1).gather(-1, predicted[:, None]).squeeze(-1)
    # Stable: the first of equal outputs is the prediction, so that rank 1 is a hit.
    order = outputs.argsort(dim=-1, descending=True, stable=True)
    rank = 1 + (order == y[:, None]).int().argmax(-1)
    return {"label": y, "predicted": predicted, "confidence": confidence, "rank": rank}
