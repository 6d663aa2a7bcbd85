"""Scores of every client after adaptation of a model to all its training samples (`run.adapt`).

The model is the one that the client is served, or a mean of trained models (`run.adapt_from`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.extensions.adaptation import Adaptation
from fedflow.metrics.distribution import summarize
from fedflow.simulation.evaluation import Measure, Scores, Served
from fedflow.simulation.extensions.extension import Run, RunExtension
from fedflow.simulation.extensions.trained_means import TrainedMeans
from fedflow.simulation.outcome import RoundReport, RunFindings


@dataclass(frozen=True)
class Adapted:
    """Accuracy on the client's own test set after ``adaptation``, from ``start`` [D] if there is one."""

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
    """`Adapted` by every adaptation of the run, at every evaluation."""

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
        found: dict[str, float | None] = {}
        for adaptation in self.run.settings.adapt:
            values = summarize(scores.column(f"{adaptation.name}_accuracy"))
            for what, name in (("accuracy", "mean"), ("min", "lowest"), ("max", "highest")):
                found[f"{adaptation.name}_{what}"] = None if np.isnan(values[name]) else values[name]
        return found

    def finish(self, scores: Scores) -> RunFindings:
        return RunFindings(dict(self.evaluate(self.run.state.history[-1], scores)))
