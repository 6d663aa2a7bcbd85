"""Means of the models that clients trained last: they are scored (`run.reports`, `run.adapt_from`), not sent.

The mean over all N clients is updated by differences: a client's new model is added to a sum, and its
previous one subtracted, without rounding (`ExactSum`). So it is the mean of the stored models, whatever the
number of workers, and after a resume.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import TRAINED
from fedflow.methods.protocols import Weighted
from fedflow.metrics.table import level_metric
from fedflow.simulation.evaluation import Scores, network_of
from fedflow.simulation.exact import ExactSum
from fedflow.simulation.extensions.extension import Run, RunExtension
from fedflow.simulation.job import ClientResult, Job, Shard
from fedflow.simulation.outcome import RoundReport, RunFindings
from fedflow.simulation.predict import predict

MEANS = ("active", "all")
REPORTS = ("server", *MEANS)  # of `run.reports`
SCORES = ("accuracy", "loss")  # of each


class TrainedMeans(RunExtension):
    """Means over the cohort of a round ("active") and over all clients ("all"), and their scores.

    Clients count equally, or by n_k if the method weighs them so. A client that never trained counts with the
    initial model. Clients of different networks have means for each level.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.names = {*MEANS} & {*run.settings.reports, run.settings.adapt_from}
        samples = Weighted.of(run.job.method).weighs_samples()
        self.weights = run.sizes if samples else np.ones(run.clients)
        self._sums = {name: {level: ExactSum() for level in run.levels} for name in MEANS}

    @classmethod
    def wanted(cls, run: Run) -> bool:
        return bool(run.settings.reports) or run.settings.adapt_from in MEANS

    @property
    def trains(self) -> bool:
        return bool(self.names)

    @property
    def stores(self) -> bool:
        return "all" in self.names

    def start_round(self, report: RoundReport, before: Mapping[str, float]) -> None:
        self._sums["active"] = {level: ExactSum() for level in self.run.levels}

    def trained(self, sent: ClientResult) -> None:
        """Add the model that a client trained in this round, before the store replaces its previous one."""
        client, keep = sent.client, sent.keep
        if not self.names:
            return
        if TRAINED not in keep:
            accepted = "[] or [server], and served: the clients of this method train no model"
            raise BadInput("run.reports, run.adapt_from", sorted(self.names), accepted)
        store, weight = self.run.state.store, float(self.weights[client])
        trained, level = keep[TRAINED], self.run.level(client)
        if "active" in self.names:
            self._sums["active"][level].add(trained, weight)
        if "all" in self.names:
            if store.written[TRAINED][client]:
                self._sums["all"][level].add(store.get(client, [TRAINED])[TRAINED], -weight)
            self._sums["all"][level].add(trained, weight)

    def models(self, dtype: torch.dtype, level: str = "") -> dict[str, Tensor]:
        """The means [D] of one level after at least one round; none over an empty cohort."""
        means, store, clients = {}, self.run.state.store, self.run.levels[level]
        if "active" in self.names and self._sums["active"][level].high is not None:
            means["active"] = self._sums["active"][level].mean(dtype)
        if "all" in self.names and clients:
            total = ExactSum()
            if self._sums["all"][level].high is not None:
                total.merge(self._sums["all"][level])
            never = [k for k in clients if not store.written[TRAINED][k]]
            if never:
                initial = store.get(never[0], [TRAINED])[TRAINED]
                total.add(initial, float(self.weights[never].sum()))
            means["all"] = total.mean(dtype)
        return means

    def packed(self) -> dict[str, Tensor]:
        packed: dict[str, Tensor] = {}
        for name, total in self._named_sums():
            if total.high is not None and total.low is not None:
                weight = torch.tensor(total.weight, dtype=torch.float64)
                packed |= {f"{name}/high": total.high, f"{name}/low": total.low, f"{name}/weight": weight}
        return packed

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        device = self.run.federation.model.device
        for name, total in self._named_sums():
            if f"{name}/high" in tensors:
                high, low = (tensors[f"{name}/{part}"].to(device) for part in ("high", "low"))
                total.merge(ExactSum(high, low, float(tensors[f"{name}/weight"])))

    def _named_sums(self) -> list[tuple[str, ExactSum]]:
        return [(f"{n}/{level}", s) for n, sums in self._sums.items() for level, s in sums.items()]

    def evaluate(self, report: RoundReport, scores: Scores) -> Mapping[str, float | None]:
        """Accuracy and loss of the models of `run.reports`, each scored once."""
        run, names, models = self.run, self.run.settings.reports, dict[tuple[str, str], Tensor]()
        for level in run.levels if names else ():
            means = self.models(run.federation.model.dtype, level)
            models |= {(level, name): w for name, w in means.items() if name in names}
            if "server" in names and run.levels[level]:
                models[level, "server"] = self._broadcast_model(report.round, run.levels[level][0])
        shards = [  # with a client of the level, which determines the network
            Shard(report.round, list(run.levels[level][:1]) if level else [], [w], [], [])
            for (level, _), w in models.items()
        ]
        title = f"round {report.round} · evaluate {', '.join(names)}"
        results = run.executor.map(score_means, run.job, shards, title) if shards else []
        return {
            level_metric(level, f"{name}_{what}"): value
            for (level, name), [values] in zip(models, results, strict=True)
            for what, value in zip(SCORES, values, strict=True)
        }

    def finish(self, scores: Scores) -> RunFindings:
        last = self.run.state.history[-1].values
        names = [f"{name}_{what}" for name in self.run.settings.reports for what in SCORES]
        return RunFindings({name: last.get(name) for name in names})

    def _broadcast_model(self, after: int, client: int) -> Tensor:
        """The model [D] that the server sends to a client after round ``after``."""
        run, method = self.run, self.run.job.method
        sent = method.broadcast(run.round(after + 1, "served", after + 1, client), run.state.server, client)
        if "model" not in sent:
            accepted = f"[active, all] with {method.name}, which does not broadcast a `model`"
            raise BadInput("run.reports", run.settings.reports, accepted)
        return sent["model"]


def score_means(job: Job, shard: Shard) -> list[tuple[float, float]]:
    """Accuracy and mean loss of each vector of the shard on the complete test set.

    Each has the network of a client of the shard, or the network of the run if there are none.
    """
    federation = job.federation.open()
    test, rows = federation.complete
    networks = [network_of(job, federation, k) for k in shard.clients]
    networks = networks or [federation.model] * len(shard.vectors)
    scores = [predict(model, w, test, rows) for model, w in zip(networks, shard.vectors, strict=True)]
    return [(float(predicted.hits.mean()), float(predicted.losses.mean())) for predicted in scores]
