"""Scoring within a run: the choice of clients, their chunks, and the recorded scores."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from torch import Tensor

from fedflow.errors import BadInput, FedflowError
from fedflow.methods.method import Message
from fedflow.methods.protocols import Serving
from fedflow.metrics.distribution import summarize
from fedflow.metrics.table import METRICS
from fedflow.seeding import generator
from fedflow.simulation.evaluation import EvaluationShard, Measure, Scores, evaluate_shard, merged
from fedflow.simulation.extensions.extension import END, ROUND
from fedflow.simulation.job import Shard
from fedflow.simulation.messages import Messages
from fedflow.simulation.outcome import PERSONAL_BYTES, PERSONAL_CLIENTS, RoundReport, mean_or_none
from fedflow.simulation.remembered import SCORES
from fedflow.simulation.setup import RunSetup

PERSONAL_EVAL_CHUNK = 1 << 26  # personal-model values evaluated at once: 256 MiB


class Scoring:
    """The scores of one run's clients."""

    def __init__(self, run: RunSetup) -> None:
        self.run, self.method = run, run.job.method

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
        scores = self.scores(title, report.round, self.scored, ROUND, full=not personal)
        summary = summarize(scores.local_accuracy, scores.test_samples)
        local = {name: None if np.isnan(value) else value for name, value in summary.items()}
        measured: dict[str, float | None] = {
            "local_accuracy": local.pop("mean"),
            **{name: value for what, value in local.items() if METRICS[name := f"local_{what}"].rounds},
            "global_accuracy": mean_or_none(scores.global_accuracy),
            "global_loss": mean_or_none(scores.global_loss),
            "clusters": len(np.unique(scores.cluster)),
        }
        for extension in self.run.extensions:
            measured |= extension.evaluate(report, scores) or {}
        if (stop := self.run.settings.stop_at) is not None:
            stop.need({"train_loss": None, **report.values, **measured})
        target = self.run.settings.target_accuracy
        if target is not None and measured["local_accuracy"] is None:
            raise BadInput("run.target_accuracy", target, "null, as the scores of clients have no accuracy")
        report.values |= {
            name: value for name, value in measured.items() if value is not None and np.isfinite(value)
        }

    def final(self) -> Scores:
        """Scores after the last round, with the vectors behind them."""
        run = self.run
        return self.scores(
            "final evaluation",
            run.done,
            self.scored,
            END,
            full=True,
            models=True,
            answers=any(extension.answers for extension in run.extensions),
            probabilities=any(extension.probabilities for extension in run.extensions),
        )

    def scores(
        self,
        title: str,
        after: int,
        clients: Sequence[int],
        when: str = "",
        full: bool = False,
        models: bool = False,
        answers: bool = False,
        probabilities: bool = False,
    ) -> Scores:
        """Scores after round ``after``: with the models and the learning rate of the next one."""
        run, method, parts = self.run, self.method, list[Scores]()
        measures: list[Measure] = [m for extension in run.extensions for m in extension.measures(when)]
        if len({measure.name for measure in measures}) < len(measures):
            names = sorted(measure.name for measure in measures)
            raise FedflowError(f"two extensions of the run measure one name: {', '.join(names)}")
        names = [*self._served_with(), *(name for measure in measures for name in measure.kept)]
        personal = bool(names) or method.serves == "personal"
        # If all clients are served one model, one client determines it.
        asked = None if personal or method.serves != "global" else 1
        for start, shares in self.served(after + 1, clients, names, asked):
            models = models and (method.serves != "personal" or start < self._recorded)
            shards = [
                EvaluationShard(
                    after + 1,
                    share,
                    *messages,
                    phase=run.phase(after + 1),
                    measures=measures,
                    full=full,
                    models=models,
                    answers=answers,
                    probabilities=probabilities,
                    remembered=run.state.scores.of(share),
                )
                for share, messages in shares
            ]
            parts += run.executor.map(evaluate_shard, run.job, shards, title)
        scores = merged(parts)
        assert scores.keys is not None
        run.state.scores.learn(scores.clients, scores.keys, [getattr(scores, name) for name in SCORES])
        return replace(scores, keys=None)

    def served(
        self, t: int, clients: Sequence[int], names: Sequence[str] | None = None, asked: int | None = None
    ) -> Iterator[tuple[int, list[tuple[list[int], Messages]]]]:
        """The ``clients`` in chunks: the index of the first one, and workers' shares with their messages.

        Messages are for every client of a share (or the first ``asked``), with the kept vectors ``names``, by
        default those that serving needs. There is one chunk, unless personal models would fill the memory.
        """
        run, method, workers = self.run, self.method, self.run.executor.workers
        names = self._served_with() if names is None else names

        def send(k: int) -> Message:
            for extension in run.extensions:
                if (sent := extension.serve(t)) is not None:
                    return sent
            now, server = run.round(t, "served", t, k), run.state.server
            if isinstance(method, Serving):
                return method.broadcast_for_evaluation(now, server, k)
            return method.broadcast(now, server, k)

        personal = bool(names) or method.serves == "personal"
        size = max(1, PERSONAL_EVAL_CHUNK // run.federation.model.size) if personal else len(clients)
        for start in range(0, len(clients), size):
            chunk = list(clients[start : start + size])
            shares = [chunk[i::workers] for i in range(min(workers, len(chunk)))]
            sent = [run.messages(share[:asked], send, names, method.newcomer) for share in shares]
            yield start, list(zip(shares, sent))

    def shards(
        self, t: int, clients: Sequence[int], names: Sequence[str] | None = None
    ) -> Iterator[list[Shard]]:
        """Shards in which the ``clients`` are served in round ``t``, chunk by chunk."""
        for _, shares in self.served(t, clients, names):
            yield [Shard(t, share, *messages, phase=self.run.phase(t)) for share, messages in shares]

    def served_models(self, scores: Scores) -> dict[int, Tensor]:
        """The served vectors [D] by number of the cluster or level, or by client; {0: w} if global."""
        serves, run = self.method.serves, self.run
        if serves == "level" and len(scores.clients) < run.clients:  # of some levels, perhaps no client
            first = [members[0] for members in run.levels.values() if members]
            scores = self.scores("models of levels", run.done, first, models=True)
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

    def _served_with(self) -> list[str]:
        """The kept vectors that `model_for` reads, which alone are sent for scoring."""
        if self.method.serves_with is not None:
            return list(self.method.serves_with)
        return self.run.state.own_vectors if self.method.serves == "personal" else []

    @property
    def _recorded(self) -> int:
        model = self.run.federation.model
        return max(1, min(PERSONAL_CLIENTS, PERSONAL_BYTES // (model.size * model.dtype.itemsize)))
