"""Scoring: the accuracy of every client with the model that it is served."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.extensions.adaptation import Adaptation
from fedflow.methods.protocols import Mixing
from fedflow.metrics.predictions import CALIBRATION, by_client
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.seeding import torch_seed
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job, Parcel, Shard
from fedflow.simulation.levels import level, network
from fedflow.simulation.predict import ANSWERS, Asked, predict, predict_all
from fedflow.simulation.worker import TrainedClients, client_of, train_clients, vmapped

PREDICTIONS = {"client": np.int32, "sample": np.int32} | ANSWERS  # columns of the table, and their types
# Columns of the table of mixtures: client, share of the personal model, scores, test samples.
SWEEP = {
    "client": np.int32,
    "value": np.float64,
    "accuracy": np.float64,
    "loss": np.float64,
    "ece": np.float64,
    "mce": np.float64,
    "samples": np.int32,
}
SERVED: dict[str, Any] = {"served": np.bool_}  # and whether this mixture is the one that the client is served


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
    at_once = vmapped(job, federation)
    local, losses, full, full_losses = _score(
        federation, vectors, model, shard.clients, shard.full, kept, networks, at_once
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
        place = np.arange(len(own))
        trained = _score(federation, own, place, shard.clients, False, None, networks, at_once)[0]
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
        if not (samples := int(_test_sizes(federation.partition, [k])[0])):
            continue
        values, models = Mixing.of(job.method).sweep(client)
        kept: list[pd.DataFrame] = []
        scores = _score(
            federation,
            [*models],
            np.arange(len(values)),
            [k] * len(values),
            False,
            kept if federation.labeled else None,
            [client.model] * len(values),
        )
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
    return [(float(found.hits.mean()), float(found.losses.mean())) for found in scores]


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
    losses = _score(federation, [*models], np.arange(len(models)), [client] * len(models), False)[1]
    return torch.from_numpy(losses).nan_to_num(torch.inf).argmin()


def _tuned(
    job: Job, federation: Federation, shard: Shard, vectors: list[Tensor], model: np.ndarray
) -> np.ndarray:
    """Accuracy [m] after one more local training from the served model ("+" of the published tables).

    Without extensions that belong to training only, so that models are compared after the same training.
    """
    job = replace(job, training=job.training.tuning)

    def step(client: Client) -> Update:
        return client.update(model=client.fit(start=client.received["model"], stream="tune"))

    return _after(job, federation, shard, vectors, model, step, {"tune": job.training.epochs})


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

    def step(client: Client) -> Update:
        return client.update(model=adaptation.adapted(client, client.received["model"]))

    return _after(job, federation, shard, vectors, model, step, {})


def _after(
    job: Job,
    federation: Federation,
    shard: Shard,
    vectors: list[Tensor],
    model: np.ndarray,
    step: Callable[[Client], Update],
    streams: dict[str, int],
) -> np.ndarray:
    """Accuracy [m] of the models that ``step`` makes of those that clients are served; NaN if it fails."""
    received: list[dict[str, int]] = [{"model": int(place)} for place in model]
    start = Shard(shard.round, shard.clients, vectors, received, [{} for _ in model])
    accuracy, at_once = dict.fromkeys(shard.clients, np.nan), vmapped(job, federation)
    for outcome in train_clients(job, start, step, streams):
        if isinstance(outcome, TrainedClients):
            ids, own = outcome.clients, [*outcome.update.vectors["model"]]
            networks = [network(job.method, federation, level(job.method, federation, k)) for k in ids]
            found = _score(federation, own, np.arange(len(own)), ids, False, None, networks, at_once)
            accuracy |= dict(zip(ids, found[0]))
        else:
            warnings.warn(f"client {outcome[0]} has no score after its training: {outcome[1]}", stacklevel=2)
    return np.array([accuracy[k] for k in shard.clients])


def _score(
    federation: Federation,
    vectors: Sequence[Tensor],
    model: np.ndarray,
    clients: Sequence[int],
    full: bool,
    kept: list[pd.DataFrame] | None = None,
    networks: Sequence[FlatModel] | None = None,
    vmapped: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Accuracy and mean loss on the client's own test set, then on the complete one; [m] each.

    Each distinct model sees each test sample once; its clients are scored from the counts per pool. A network
    with the statistics of a batch sees the samples of one client at a time, so that no score depends on who
    else is scored here. The predictions that clients are scored by are appended to ``kept``, if given.
    ``networks`` are those of the vectors, by default that of the run. ``vmapped``: many models at once.
    """
    partition, (complete, rows) = federation.partition, federation.complete
    alone = federation.model.batch_statistics
    shared = complete is federation.own_test and not alone
    local, losses, everywhere, full_losses = (np.full(len(clients), np.nan) for _ in range(4))
    ids, by_model = np.asarray(clients), np.argsort(model, kind="stable")
    ends = np.searchsorted(model[by_model], np.arange(len(vectors)), side="right")
    networks = networks or [federation.model] * len(vectors)
    groups = list(zip(networks, vectors, np.split(by_model, ends[:-1])))
    each_alone = [(net, w, one[None]) for net, w, own in groups for one in own] if alone else groups
    asked, known = [], []
    for net, w, members in each_alone:
        own, owner = _rows(partition.own_offsets, partition.own_pools, ids[members])
        pools, own = np.unique(own, return_inverse=True)
        samples, pool = _rows(partition.pool_offsets, partition.pool_indices, pools)
        needed = np.unique(np.concatenate([samples, rows]) if full and shared else samples)
        asked.append(Asked(net, w, needed))
        known.append((own, owner, pools, np.searchsorted(needed, samples), pool))
    found = predict_all(asked, federation.own_test, kept is not None, vmapped)
    for (_, _, members), (own, owner, pools, place, pool), (_, _, needed), (hits, loss, answers) in zip(
        each_alone, known, asked, found
    ):
        counts = (np.bincount(pool, each[place], len(pools)) for each in (hits, loss, np.ones_like(hits)))
        right, lost, size = (np.bincount(owner, count[own], len(members)) for count in counts)
        if kept is not None:
            of_clients, row = _rows(partition.pool_offsets, partition.pool_indices, pools[own])
            columns = {"client": ids[members][owner[row]], "sample": of_clients}
            columns |= {name: values[np.searchsorted(needed, of_clients)] for name, values in answers.items()}
            kept.append(pd.DataFrame(columns).astype(PREDICTIONS))
        tested = members[size > 0]  # clients without test samples stay NaN
        local[tested], losses[tested] = (sums[size > 0] / size[size > 0] for sums in (right, lost))
        if full and shared:
            at = np.searchsorted(needed, rows)
            everywhere[members], full_losses[members] = hits[at].mean(), loss[at].mean()
    if full and not shared:
        asked = [Asked(net, w, rows) for net, w, _ in groups]
        for (_, _, members), (hits, loss, _) in zip(groups, predict_all(asked, complete, False, vmapped)):
            everywhere[members], full_losses[members] = hits.mean(), loss.mean()
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
