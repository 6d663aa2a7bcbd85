"""Scoring within a run: which clients are scored, in which chunks, and what is recorded."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.wire import message_bytes
from fedflow.methods.method import Message
from fedflow.methods.protocols import Clustered, Dissimilarity, Generative, Mixing, Phased, Recording, Serving
from fedflow.metrics.clustering import agreement
from fedflow.metrics.distribution import summarize
from fedflow.metrics.table import METRICS, level_metric
from fedflow.seeding import generator
from fedflow.simulation.evaluation import (
    EvaluationShard,
    Scores,
    evaluate_shard,
    merged,
    poll_shard,
    score_reports,
    sweep_shard,
)
from fedflow.simulation.generation import Generation
from fedflow.simulation.job import Shard
from fedflow.simulation.messages import Messages, received_bytes
from fedflow.simulation.outcome import PERSONAL_BYTES, PERSONAL_CLIENTS, RoundReport
from fedflow.simulation.recorded import ClientVectors
from fedflow.simulation.reporting import SCORES
from fedflow.simulation.setup import RunSetup

PERSONAL_EVAL_CHUNK = 1 << 26  # personal-model values evaluated at once: 256 MiB


class Scoring:
    """The scores of one run's clients."""

    def __init__(self, run: RunSetup) -> None:
        self.run, self.method = run, run.job.method
        self.generation = Generation(run, self.method) if isinstance(self.method, Generative) else None

    @cached_property
    def scored(self) -> Sequence[int]:
        """The clients to score: all, or a sample that is the same for all methods."""
        size, clients = self.run.settings.evaluate_clients, self.run.clients
        if size is None or size >= clients:
            return range(clients)
        rng = generator(self.run.job.seed, "evaluated clients")
        return sorted(rng.choice(clients, size=size, replace=False).tolist())

    def evaluate(self, report: RoundReport) -> None:
        """Add the scores and clusters after this round to its report."""
        personal = self.method.serves == "personal"  # N models on the complete test set: only at the end
        title = f"round {report.round} · evaluate"
        scores = self.scores(title, report.round, self.scored, full=not personal)
        local, known = summarize(scores.local_accuracy, scores.test_samples), self.run.state.assignment
        measured: dict[str, float | None] = {
            "local_accuracy": local.pop("mean"),
            **{name: value for what, value in local.items() if METRICS[name := f"local_{what}"].rounds},
            "global_accuracy": mean_or_none(scores.global_accuracy),
            "global_loss": mean_or_none(scores.global_loss),
            "clusters": len(np.unique(scores.cluster)),
            **self.adapted(scores),
            **self.by_level(scores),
            **self.reports(report.round),
            **(self.generation.evaluate(report.round) if self.generation else {}),
        }
        changed = not np.array_equal(scores.cluster, known[scores.clients])
        known[scores.clients] = scores.cluster
        if isinstance(self.method, Clustered):
            measured |= self.agreement(scores)
            report.assignment = known.tolist() if changed else None
        report.values |= {
            name: value for name, value in measured.items() if value is not None and np.isfinite(value)
        }

    def adapted(self, scores: Scores) -> dict[str, float | None]:
        """Accuracy after each adaptation of `run.adapt`: the mean over clients, the lowest, the highest."""
        found: dict[str, float | None] = {}
        for adaptation in self.run.settings.adapt:
            values = summarize(getattr(scores, f"{adaptation.name}_accuracy"))
            for what, name in (("accuracy", "mean"), ("min", "lowest"), ("max", "highest")):
                found[f"{adaptation.name}_{what}"] = None if np.isnan(values[name]) else values[name]
        return found

    def by_level(self, scores: Scores) -> dict[str, float | None]:
        """Means over the clients of each level, if there are levels."""
        found: dict[str, float | None] = {}
        for level, clients in self.run.levels.items() if self.run.leveled else ():
            own = np.isin(scores.clients, clients)
            for name in ("local_accuracy", "global_accuracy", "global_loss"):
                values = getattr(scores, name)[own]
                found[level_metric(level, name)] = mean_or_none(values) if len(values) else None
        return found

    def reports(self, after: int) -> dict[str, float]:
        """Accuracy and loss of the models of `run.reports` after round ``after``, each scored once."""
        run, names, models = self.run, self.run.settings.reports, dict[tuple[str, str], Tensor]()
        for level in run.levels if names else ():
            means = run.state.means.models(run.federation.model.dtype, level)
            models |= {(level, name): w for name, w in means.items() if name in names}
            if "server" in names and run.levels[level]:
                models[level, "server"] = self._broadcast_model(after, run.levels[level][0])
        # A client of the level, by which the network is known.
        clients = [run.levels[level][:1] if level else [] for level, _ in models]
        shards = [Shard(after, own, [w], [], []) for own, w in zip(clients, models.values(), strict=True)]
        title = f"round {after} · evaluate {', '.join(names)}"
        found = run.executor.map(score_reports, run.job, shards, title) if shards else []
        return {
            level_metric(level, f"{name}_{what}"): value
            for (level, name), [scores] in zip(models, found, strict=True)
            for what, value in zip(SCORES, scores, strict=True)
        }

    def _broadcast_model(self, after: int, client: int) -> Tensor:
        """The model [D] that the server sends to a client after round ``after``."""
        now = self.run.round(after + 1, "served", after + 1, client)
        sent = self.method.broadcast(now, self.run.state.server, client)
        if "model" not in sent:
            accepted = f"[active, all] with {self.method.name}, which does not broadcast a `model`"
            raise BadInput("run.reports", self.run.settings.reports, accepted)
        return sent["model"]

    def final(self) -> Scores:
        """Scores after the last round, with the vectors behind them."""
        settings = self.run.settings
        return self.scores(
            "final evaluation",
            settings.rounds,
            self.scored,
            full=True,
            tune=settings.fine_tune,
            trained=settings.keep_trained,
            models=True,
            predictions=settings.keep_predictions,
        )

    def scores(self, title: str, after: int, clients: Sequence[int], **what: Any) -> Scores:
        """Scores after round ``after``: with the models and the learning rate of the next one."""
        run, method, names = self.run, self.method, self._served_with()
        names += ["trained"] if what.get("trained") else []
        phase, parts = Phased.of(method).phase(run.round(after + 1, "served")), list[Scores]()
        start_from, adapt_from = list[Tensor](), run.settings.adapt_from
        if adapt_from != "served":
            start_from = [run.state.means.models(run.federation.model.dtype)[adapt_from]]
        what |= {"adapt": run.settings.adapt, "adapt_last": bool(start_from)}
        own = bool(names) or method.serves == "personal"
        # If all clients are served one model, one client determines it.
        asked = None if own or method.serves != "global" else 1
        for start, shares in self._served(after + 1, clients, names, asked):
            what["models"] = what.get("models", False) and (not own or start < self._recorded)
            for _, messages in shares:
                messages.vectors.extend(start_from)
            shards = [
                EvaluationShard(after + 1, share, *messages, phase=phase, **what)
                for share, messages in shares
            ]
            parts += run.executor.map(evaluate_shard, run.job, shards, title)
        return merged(parts)

    def sweep(self) -> pd.DataFrame | None:
        """Scores of the mixtures of every scored client's models, after the last round; None without any."""
        run, method = self.run, self.method
        if not run.settings.sweep or not isinstance(method, Mixing):
            return None
        t, parts = run.settings.rounds + 1, list[pd.DataFrame]()
        phase = Phased.of(method).phase(run.round(t, "served"))
        for _, shares in self._served(t, self.scored, run.state.own_vectors):
            shards = [Shard(t, share, *messages, phase=phase) for share, messages in shares]
            parts += run.executor.map(sweep_shard, run.job, shards, "score mixtures")
        return pd.concat(parts).sort_values(["client", "value"], kind="stable", ignore_index=True)

    def poll(self, t: int) -> tuple[np.ndarray, np.ndarray, int]:
        """All clients' mean training losses [N] under the models that they are served in round ``t``.

        Also the bytes of the messages down to each of them, [N], and up from each, which is one number.
        """
        run, method = self.run, self.method
        phase, losses = Phased.of(method).phase(run.round(t, "served")), np.empty(run.clients)
        down = np.zeros(run.clients, dtype=np.int64)
        for _, shares in self._served(t, range(run.clients), self._served_with()):
            shards = [Shard(t, share, *messages, phase=phase) for share, messages in shares]
            polled = run.executor.map(poll_shard, run.job, shards, f"round {t} · poll")
            for shard, found in zip(shards, polled, strict=True):
                losses[shard.clients] = found
                down[shard.clients] = received_bytes(run.job, shard)
        return losses, down, message_bytes({}, scalars=1)

    def _served(
        self, t: int, clients: Sequence[int], names: Sequence[str], asked: int | None = None
    ) -> Iterator[tuple[int, list[tuple[list[int], Messages]]]]:
        """The ``clients`` in chunks: the place of the first one, and workers' shares with their messages.

        These serve every client of a share (or the first ``asked``), with the kept vectors ``names``.
        Personal models need not be in memory all at once; without them, there is one chunk.
        """
        run, method, workers = self.run, self.method, self.run.executor.workers

        def send(k: int) -> Message:
            if self.generation:
                return {"model": self.generation.before(t).model}
            now, server = run.round(t, "served", t, k), run.state.server
            if isinstance(method, Serving):
                return method.broadcast_for_evaluation(now, server, k)
            return method.broadcast(now, server, k)

        own = bool(names) or method.serves == "personal"
        size = max(1, PERSONAL_EVAL_CHUNK // run.federation.model.size) if own else len(clients)
        for start in range(0, len(clients), size):
            chunk = list(clients[start : start + size])
            shares = [chunk[i::workers] for i in range(min(workers, len(chunk)))]
            sent = [run.messages(share[:asked], send, names, method.newcomer) for share in shares]
            yield start, list(zip(shares, sent))

    def served_models(self, scores: Scores) -> dict[int, Tensor]:
        """The served vectors [D] by number of the cluster or level, or by client; {0: w} if global."""
        serves, run = self.method.serves, self.run
        if serves == "level" and len(scores.clients) < run.clients:  # of some levels, perhaps no client
            first = [own[0] for own in run.levels.values() if own]
            scores = self.scores("models of levels", run.settings.rounds, first, models=True)
        owner: Sequence[int] = scores.clients
        if serves == "global":
            owner = [0] * len(scores.clients)
        elif serves == "cluster":
            owner = scores.cluster.tolist()
        elif serves == "level":
            number = {level: i for i, level in enumerate(run.levels)}
            owner = [number[run.level(k)] for k in scores.clients]
        served = zip(owner, scores.model.tolist(), strict=True)
        models = {i: scores.models[at] for i, at in served if at >= 0}
        if serves != "personal":
            return models
        return {i: models[i] for i in sorted(models)[: self._recorded]}

    def recorded(self) -> ClientVectors:
        """The kept vectors that `Recording.records` names, of the clients with the lowest numbers."""
        run, found, size = self.run, list[dict[str, Tensor]](), 0
        if not (records := Recording.of(self.method).records):
            return ClientVectors()
        for client in range(min(run.clients, PERSONAL_CLIENTS)):
            own = run.state.store.get(client, records)
            size += sum(vector.nbytes for vector in own.values())
            if found and size > PERSONAL_BYTES:
                break
            found.append({name: vector.cpu() for name, vector in own.items()})
        sizes = dict(zip(run.federation.model.names, run.federation.model.sizes))
        return ClientVectors(found, sizes, None if self._labels is None else self._labels[: len(found)])

    def agreement(self, scores: Scores) -> dict[str, float | None]:
        """How well the clusters match planted groups or common labels."""
        groups, labels = (a if a is None else a[scores.clients] for a in (self.run.groups, self._labels))
        return agreement(scores.cluster, groups, labels)

    @property
    def stable_cluster_ids(self) -> bool:
        return Clustered.of(self.method).stable_cluster_ids

    def dissimilarity(self) -> Dissimilarity | None:
        """The method's matrix of client dissimilarities, restricted to clients that take part."""
        found = Clustered.of(self.method).dissimilarity(self.run.state.server)
        if found is None:
            return None
        own = [i for i, k in enumerate(found.clients) if k < self.run.clients]
        matrix = found.matrix[np.ix_(own, own)].astype(np.float64)
        if not np.isfinite(matrix).all():  # of models that diverged
            return None
        matrix = (matrix + matrix.T) / 2
        np.fill_diagonal(matrix, 0)
        return replace(found, matrix=matrix, clients=[found.clients[i] for i in own])

    @cached_property
    def _labels(self) -> np.ndarray | None:
        """Which client has which label [N, C], bool; None unless the federation is ``labeled``."""
        federation, sizes = self.run.federation, self.run.sizes
        if not federation.labeled:
            return None
        labels = federation.train.y.cpu().numpy()
        own = np.zeros((self.run.clients, labels.max() + 1), dtype=np.bool_)
        samples = federation.partition.indices[: sizes.sum()]
        own[np.repeat(np.arange(self.run.clients), sizes), labels[samples]] = True
        return own

    def _served_with(self) -> list[str]:
        """The kept vectors that `model_for` reads; the others need not be sent for scoring."""
        if self.method.serves_with is not None:
            return list(self.method.serves_with)
        return self.run.state.own_vectors if self.method.serves == "personal" else []

    @property
    def _recorded(self) -> int:
        """The largest number of personal models in an outcome."""
        model = self.run.federation.model
        return max(1, min(PERSONAL_CLIENTS, PERSONAL_BYTES // (model.size * model.dtype.itemsize)))


def mean_or_none(values: np.ndarray) -> float | None:
    """Mean of the measured values; None if there are none, or if a diverged model makes it infinite."""
    measured = values[~np.isnan(values)]
    return float(measured.mean()) if len(measured) and np.isfinite(measured.mean()) else None
