"""Scoring: the accuracy of every client with the model that it is served."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedflow.errors import returned
from fedflow.local.client import Client, Update
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.seeding import torch_seed
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job, Parcel, Shard
from fedflow.simulation.levels import level, network
from fedflow.simulation.predict import ANSWERS, LABELS, PROBABILITIES, Asked, predict_all
from fedflow.simulation.remembered import SCORES, Remembered, model_key
from fedflow.simulation.worker import TrainedClients, client_of, train_clients, vmapped

OF_ROWS = {"client": np.int32, "sample": np.int32}
PREDICTIONS = OF_ROWS | ANSWERS  # types of the columns of `Scores.answers`


class Measure(Protocol):
    """A further score of every client, as plain data, because workers compute it.

    ``name`` is the key in `Scores.more`; ``kept`` are names of client vectors that it reads.
    """

    @property
    def name(self) -> str: ...

    @property
    def kept(self) -> Sequence[str]: ...

    def of(self, served: "Served") -> np.ndarray:
        """The score [m] of the clients, or NaN."""


@dataclass
class EvaluationShard(Shard):
    """One worker's share of an evaluation.

    ``received`` and ``kept`` have a single entry if all clients are served the same model.
    """

    measures: Sequence[Measure] = ()
    full: bool = False  # also on the complete test set
    models: bool = False  # return the vectors too
    answers: bool = False  # return the prediction of every test sample of every client too
    probabilities: bool = False  # with the probability of every class
    remembered: Remembered | None = None  # the last scores of its clients


@dataclass
class Scores(Parcel):
    """Scores of the clients of a shard, arrays [m]; NaN (cluster: -1) if not measured."""

    clients: list[int]
    cluster: np.ndarray
    test_samples: np.ndarray
    local_loss: np.ndarray
    local_accuracy: np.ndarray
    global_accuracy: np.ndarray
    global_loss: np.ndarray
    models: list[Tensor]  # distinct served vectors, if requested
    model: np.ndarray  # index into models, -1 if absent
    more: dict[str, np.ndarray] = field(default_factory=dict)  # by `Measure`
    answers: pd.DataFrame | None = None  # `PREDICTIONS` of their test samples, p0, p1, ..., if requested
    keys: np.ndarray | None = None  # of the models, 0 for none; None once the scores are remembered

    def column(self, name: str) -> np.ndarray:
        """The scores [m] of this name: a field, or one of ``more``."""
        scores: np.ndarray | None = getattr(self, name, self.more.get(name))
        return np.full(len(self.clients), np.nan) if scores is None else scores

    def among(self, partition: Partition, clients: int) -> "Scores":
        """These scores expanded to all ``clients`` (N), NaN if not evaluated."""
        if len(self.clients) == clients:
            return self

        def spread(values: np.ndarray) -> np.ndarray:
            every = np.full(clients, np.nan if values.dtype.kind == "f" else -1, values.dtype)
            every[self.clients] = values
            return every

        arrays: dict[str, Any] = {n: spread(v) for n, v in vars(self).items() if isinstance(v, np.ndarray)}
        arrays["test_samples"] = test_sizes(partition, range(clients))
        more = {name: spread(values) for name, values in self.more.items()}
        return replace(self, clients=list(range(clients)), more=more, **arrays)


@dataclass
class Served:
    """The models that the clients of a shard are served: the i-th client has ``vectors[model[i]]``."""

    job: Job
    federation: Federation
    shard: Shard
    vectors: list[Tensor]
    model: np.ndarray

    def accuracy_of(self, vectors: Sequence[Tensor]) -> np.ndarray:
        """The accuracy [m] of one vector per client on its own test set."""
        return self._accuracy(vectors, self.shard.clients)

    def accuracy_after(
        self, step: Callable[[Client], Update], streams: dict[str, int], start: Tensor | None = None
    ) -> np.ndarray:
        """The accuracy [m] of the models that ``step`` makes of the served ones, or of ``start``.

        NaN for a client whose step fails.
        """
        vectors, model = self.vectors, self.model
        if start is not None:
            vectors, model = [start], np.zeros_like(model)
        received: list[dict[str, int]] = [{"model": int(at)} for at in model]
        shard = Shard(self.shard.round, self.shard.clients, vectors, received, [{} for _ in model])
        accuracy = dict.fromkeys(shard.clients, np.nan)
        for outcome in train_clients(self.job, shard, step, streams):
            if isinstance(outcome, TrainedClients):
                made = [*outcome.update.vectors["model"]]
                accuracy |= dict(zip(outcome.clients, self._accuracy(made, outcome.clients)))
            else:
                reason = f"client {outcome[0]} has no score after its training: {outcome[1]}"
                warnings.warn(reason, stacklevel=2)
        return np.array([accuracy[k] for k in shard.clients])

    def _accuracy(self, vectors: Sequence[Tensor], clients: Sequence[int]) -> np.ndarray:
        networks = [network_of(self.job, self.federation, k) for k in clients]
        at_once = vmapped(self.job, self.federation)
        model = np.arange(len(vectors))
        return score(self.federation, vectors, model, clients, networks=networks, vmapped=at_once)[0]


def network_of(job: Job, federation: Federation, client: int) -> FlatModel:
    return network(job.method, federation, level(job.method, federation, client))


def evaluate_shard(job: Job, shard: EvaluationShard) -> Scores:
    """Score every client of the shard with the model that it is served."""
    federation, asked = job.federation.open(), len(shard.received)
    vectors, levels = list[Tensor](), list[str]()
    indices: dict[object, int] = {}
    model, cluster = (np.zeros(asked, dtype=np.int64) for _ in range(2))
    for i in range(asked):
        w, cluster[i], shared = served_model(job, federation, shard, i)
        level_name = level(job.method, federation, shard.clients[i])
        key = ("cluster", int(cluster[i])) if shared else (level_name, w.data_ptr(), w.shape)
        if key not in indices:
            indices[key] = len(vectors)
            vectors.append(w)
            levels.append(level_name)
        model[i] = indices[key]
    # A single entry holds for all clients.
    model, cluster = (np.resize(array, len(shard.clients)) for array in (model, cluster))
    answers: list[pd.DataFrame] | None = [] if shard.answers else None
    served = Served(job, federation, shard, vectors, model)
    scores, keys = _scored(served, shard, levels, answers)
    return Scores(
        clients=shard.clients,
        cluster=cluster,
        test_samples=test_sizes(federation.partition, shard.clients),
        **dict(zip(SCORES, scores, strict=True)),
        models=[w.cpu() for w in vectors] if shard.models else [],
        model=model if shard.models else np.full_like(model, -1),
        more={measure.name: measure.of(served) for measure in shard.measures},
        answers=pd.concat(answers) if answers else None,
        keys=keys,
    )


def _scored(
    served: Served, shard: EvaluationShard, levels: Sequence[str], answers: list[pd.DataFrame] | None
) -> tuple[np.ndarray, np.ndarray]:
    """The `SCORES` [4, m] of the clients of a shard, and the keys [m] of their models, 0 for none.

    Models that have not changed are not scored again, unless their predictions are kept as ``answers``, or
    many models are scored at once: then the last bits of a loss may depend on the other models.
    """
    job, federation, vectors, model = served.job, served.federation, served.vectors, served.model
    clients, at_once = np.asarray(shard.clients), vmapped(job, federation)
    scores, keys = np.full((len(SCORES), len(clients)), np.nan), np.zeros(len(clients), dtype=np.int64)
    left = np.ones(len(clients), dtype=np.bool_)
    if shard.remembered is not None and answers is None and not at_once:
        ends = np.bincount(model, minlength=len(vectors)).cumsum()
        sharing = np.split(clients[np.argsort(model, kind="stable")], ends[:-1])
        keyed = zip(vectors, levels, sharing, strict=True)
        keys = np.array([model_key(*arguments, shard.full) for arguments in keyed])[model]
        scores = shard.remembered.values.copy()
        left = shard.remembered.changed(keys, model)
    changed, index = np.unique(model[left], return_inverse=True)
    networks = [network(job.method, federation, levels[i]) for i in changed]
    changed_vectors, ids = [vectors[i] for i in changed], clients[left].tolist()
    scores[:, left] = score(
        federation, changed_vectors, index, ids, shard.full, answers, networks, at_once, shard.probabilities
    )
    return scores, keys


def merged(parts: list[Scores]) -> Scores:
    """The scores of all shards as one, in client order."""
    clients = np.concatenate([part.clients for part in parts])
    order = np.argsort(clients)

    def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
        values: np.ndarray = np.concatenate(arrays)[order]
        return values

    offsets = np.cumsum([0, *(len(part.models) for part in parts)])
    arrays = {
        name: joined([getattr(part, name) for part in parts])
        for name, values in vars(parts[0]).items()
        if isinstance(values, np.ndarray) and name != "model"
    }
    answers = [part.answers for part in parts if part.answers is not None]
    indices = [np.where(part.model < 0, -1, part.model + offset) for part, offset in zip(parts, offsets)]
    return Scores(
        clients=clients[order].tolist(),
        models=[w for part in parts for w in part.models],
        model=joined(indices),
        more={name: joined([part.more[name] for part in parts]) for name in parts[0].more},
        answers=pd.concat(answers).sort_values(["client", "sample"], ignore_index=True) if answers else None,
        **arrays,
    )


def served_model(job: Job, federation: Federation, shard: Shard, i: int) -> tuple[Tensor, int, bool]:
    """The model [D] of the i-th client, its cluster, and whether the clients of the cluster share it."""
    client = client_of(job, federation, shard, i, {})
    client.model.seed_noise(torch_seed(job.seed, "served noise", shard.round, shard.clients[i]))
    served = job.method.model_for(client)
    w, number = served if isinstance(served, tuple) and len(served) == 2 else (served, torch.zeros(()))
    w = returned(w, Tensor, f"{job.method.name}.model_for", "a model [D], or a pair of it and its number")
    if number is None:
        best = _best_of(federation, w, shard.clients[i])
        # Not a view, which would keep all of the models in memory.
        w, number = w[best].clone(), best if job.method.serves == "cluster" else torch.zeros(())
    return w, int(number), isinstance(served, tuple) and job.method.serves == "cluster"


def _best_of(federation: Federation, models: Tensor, client: int) -> Tensor:
    """The index of the model [k, D] with the lowest loss on the client's test samples, 0 if it has none."""
    losses = score(federation, [*models], np.arange(len(models)), [client] * len(models))[1]
    return torch.from_numpy(losses).nan_to_num(torch.inf).argmin()


def score(
    federation: Federation,
    vectors: Sequence[Tensor],
    model: np.ndarray,
    clients: Sequence[int],
    full: bool = False,
    answers: list[pd.DataFrame] | None = None,
    networks: Sequence[FlatModel] | None = None,
    vmapped: bool = False,
    probabilities: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Accuracy and mean loss on the client's own test set, then on the complete one; [m] each.

    ``model`` [m] is the index of each client's model in ``vectors``, whose ``networks`` are by default the
    network of the run. Each distinct model sees each test sample once; its clients are scored from the counts
    per pool. A network with the statistics of a batch sees the samples of one client at a time, so that no
    score depends on the other clients. The predictions that clients are scored by are appended to
    ``answers``, if given; ``probabilities`` adds one for every class. ``vmapped``: many models at once.
    """
    partition, (complete, rows) = federation.partition, federation.complete
    alone = federation.model.batch_statistics
    shared = complete is federation.own_test and not alone
    local, losses, everywhere, full_losses = (np.full(len(clients), np.nan) for _ in range(4))
    ids, by_model = np.asarray(clients), np.argsort(model, kind="stable")
    ends = np.searchsorted(model[by_model], np.arange(len(vectors)), side="right")
    networks = networks or [federation.model] * len(vectors)
    groups = list(zip(networks, vectors, np.split(by_model, ends[:-1])))
    calls = [(net, w, member[None]) for net, w, members in groups for member in members] if alone else groups
    asked, tables = [], []
    for net, w, members in calls:
        pool_ids, owner = _rows(partition.own_offsets, partition.own_pools, ids[members])
        pools, pool_ids = np.unique(pool_ids, return_inverse=True)
        samples, pool = _rows(partition.pool_offsets, partition.pool_indices, pools)
        needed = np.unique(np.concatenate([samples, rows]) if full and shared else samples)
        asked.append(Asked(net, w, needed))
        tables.append((pool_ids, owner, pools, np.searchsorted(needed, samples), pool))
    predicted = predict_all(asked, federation.own_test, answers is not None, vmapped)
    for (_, _, members), (pool_ids, owner, pools, at, pool), (_, _, needed), (hits, loss, more) in zip(
        calls, tables, asked, predicted
    ):
        counts = (np.bincount(pool, values[at], len(pools)) for values in (hits, loss, np.ones_like(hits)))
        right, lost, size = (np.bincount(owner, count[pool_ids], len(members)) for count in counts)
        if answers is not None:
            of_clients, row = _rows(partition.pool_offsets, partition.pool_indices, pools[pool_ids])
            columns = {"client": ids[members][owner[row]], "sample": of_clients}
            place = np.searchsorted(needed, of_clients)
            answers.append(pd.DataFrame(columns | _kept(more, place, probabilities)).astype(OF_ROWS))
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


def _kept(answers: dict[str, np.ndarray], rows: np.ndarray, probabilities: bool) -> dict[str, np.ndarray]:
    """The columns of predictions at ``rows``: y0, y1, ..., p0, p1, ... of several labels per sample."""
    several = LABELS in answers
    columns = {} if several else {name: answers[name][rows] for name in ANSWERS}
    parts = {"y": LABELS} if several else {}
    parts |= {"p": PROBABILITIES} if several or probabilities else {}
    return columns | {
        f"{at}{c}": v[rows] for at, name in parts.items() for c, v in enumerate(answers[name].T)
    }


def _rows(offsets: np.ndarray, values: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ``chosen`` rows of compressed ``values``, concatenated, and each value's index into ``chosen``."""
    starts, sizes = offsets[chosen], offsets[chosen + 1] - offsets[chosen]
    owner = np.repeat(np.arange(len(chosen)), sizes)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return values[starts[owner] + within], owner


def test_sizes(partition: Partition, clients: Sequence[int]) -> np.ndarray:
    """The number of test samples of each of the ``clients`` [m]."""
    pools, owner = _rows(partition.own_offsets, partition.own_pools, np.asarray(clients))
    return np.bincount(owner, np.diff(partition.pool_offsets)[pools], len(clients)).astype(np.int64)
