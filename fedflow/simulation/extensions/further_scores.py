"""Further scores of clients: after adaptation, after fine-tuning, of the last trained models, of newcomers.

Also the predictions of the served models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import TRAINED, Client, Update
from fedflow.local.extensions.adaptation import Adaptation
from fedflow.metrics.distribution import summarize
from fedflow.metrics.predictions import by_client, summarized
from fedflow.simulation.evaluation import Measure, Scores, Served
from fedflow.simulation.extensions.extension import END, NEWCOMERS, Run, RunExtension
from fedflow.simulation.extensions.trained_means import TrainedMeans
from fedflow.simulation.outcome import RoundReport, RunFindings, mean_or_none

PREDICTIONS_FILE = "predictions.parquet"


@dataclass(frozen=True)
class Adapted:
    """Accuracy on the client's own test set after ``adaptation``, from ``start`` [D] or the served model."""

    adaptation: Adaptation
    start: Tensor | None
    kept: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.adaptation.name}_accuracy"

    def of(self, served: Served) -> np.ndarray:
        adaptation = self.adaptation

        def step(client: Client) -> Update:
            return client.update(model=adaptation.adapted(client, client.received["model"]))

        return served.accuracy_after(step, {}, self.start)


class Adaptations(RunExtension):
    """`Adapted` by every adaptation of `run.adapt` to all training samples, at every evaluation."""

    @classmethod
    def wanted(cls, run: Run) -> bool:
        return bool(run.settings.adapt)

    def check(self) -> None:
        for i, adaptation in enumerate(self.run.settings.adapt):
            adaptation.check(self.run.federation.model, self.run.federation.train, section=f"run.adapt[{i}]")

    def measures(self, when: str) -> Sequence[Measure]:
        """Scores from the model of `run.adapt_from`; none from the mean over a cohort that failed."""
        settings, start = self.run.settings, None
        if settings.adapt_from != "served":
            means = self.run.extension(TrainedMeans).models(self.run.federation.model.dtype)
            if (start := means.get(settings.adapt_from)) is None:
                return []
        return [Adapted(adaptation, start) for adaptation in settings.adapt]

    def evaluate(self, report: RoundReport, scores: Scores) -> Mapping[str, float | None]:
        """The accuracy after each adaptation: the mean over clients, the lowest, the highest."""
        metrics: dict[str, float | None] = {}
        for adaptation in self.run.settings.adapt:
            values = summarize(scores.column(f"{adaptation.name}_accuracy"))
            for what, name in (("accuracy", "mean"), ("min", "lowest"), ("max", "highest")):
                metrics[f"{adaptation.name}_{what}"] = None if np.isnan(values[name]) else values[name]
        return metrics

    def finish(self, scores: Scores) -> RunFindings:
        return RunFindings(dict(self.evaluate(self.run.state.history[-1], scores)))


@dataclass(frozen=True)
class Tuned:
    """Accuracy on the client's own test set after one more local training from the served model.

    The training is the run's without the extensions that belong to training only, so that models are compared
    after the same training.
    """

    name: str = "tuned_accuracy"
    kept: tuple[str, ...] = ()

    def of(self, served: Served) -> np.ndarray:
        job = replace(served.job, training=served.job.training.tuning)

        def step(client: Client) -> Update:
            return client.update(model=client.fit(start=client.received["model"], stream="tune"))

        return replace(served, job=job).accuracy_after(step, {"tune": job.training.epochs})


class FineTuning(RunExtension):
    """`Tuned` at the end (`run.fine_tune`), and of newcomers always: the "+" of the published tables."""

    def measures(self, when: str) -> Sequence[Measure]:
        asked = when == NEWCOMERS or (when == END and self.run.settings.fine_tune)
        return [Tuned()] if asked else []

    def finish(self, scores: Scores) -> RunFindings:
        return RunFindings({"tuned_accuracy": mean_or_none(scores.column("tuned_accuracy"))})


@dataclass(frozen=True)
class LastTrained:
    """Accuracy of the model that the client trained last."""

    name: str = "trained_accuracy"
    kept: tuple[str, ...] = (TRAINED,)

    def of(self, served: Served) -> np.ndarray:
        shard = served.shard
        return served.accuracy_of([shard.vectors[kept[TRAINED]] for kept in shard.kept])


class KeptModels(RunExtension):
    """The model that each client trained last, stored and scored at the end (`run.keep_trained`)."""

    @property
    def trains(self) -> bool:
        return bool(self.run.settings.keep_trained)

    stores = trains

    def measures(self, when: str) -> Sequence[Measure]:
        return [LastTrained()] if when == END and self.trains else []

    def finish(self, scores: Scores) -> RunFindings:
        return RunFindings({"local_final_accuracy": mean_or_none(scores.column("trained_accuracy"))})


class Newcomers(RunExtension):
    """Clients of the partition, from N on, that join after the last round.

    They are onboarded if the method has an onboarding, then scored as served and after one local training.
    Updates of the server's state by onboarding, which ``server`` holds, count for these scores only.
    """

    server: Any = None

    @classmethod
    def wanted(cls, run: Run) -> bool:
        return len(run.federation.partition.sizes) > run.clients

    def finish(self, scores: Scores) -> RunFindings:
        run, newcomers = self.run, range(self.run.clients, len(self.run.federation.partition.sizes))
        before = run.state.server
        run.onboard(newcomers)
        self.server = run.state.server
        of_newcomers = run.scoring.scores("newcomers", run.done, newcomers, NEWCOMERS)
        run.state.server = before
        metrics = {
            "newcomers": len(of_newcomers.clients),
            "newcomer_accuracy": mean_or_none(of_newcomers.local_accuracy),
            "newcomer_tuned_accuracy": mean_or_none(of_newcomers.column("tuned_accuracy")),
        }
        return RunFindings(metrics, newcomers=of_newcomers)


class KeptPredictions(RunExtension):
    """A table of the served models' predictions for every client's test samples (`run.keep_predictions`).

    Measures of classes or labels are metrics of the run.

    With the probability of every class (p0, p1, ...) if `run.keep_probabilities`, and always for several
    labels per sample.
    """

    answers = True

    @classmethod
    def wanted(cls, run: Run) -> bool:
        return bool(run.settings.keep_predictions or run.settings.keep_probabilities)

    @property
    def probabilities(self) -> bool:
        return bool(self.run.settings.keep_probabilities)

    def check(self) -> None:
        if not (self.run.federation.labeled or self.run.federation.train.several):
            field = "keep_probabilities" if self.probabilities else "keep_predictions"
            raise BadInput(f"run.{field}", True, "false, as the samples do not have labels")

    def finish(self, scores: Scores) -> RunFindings:
        assert scores.answers is not None
        kept = scores.answers
        metrics = {name: mean_or_none(by_client(kept, name).to_numpy()) for name in summarized(kept)}
        return RunFindings(metrics, files={PREDICTIONS_FILE: partial(kept.to_parquet, index=False)})
