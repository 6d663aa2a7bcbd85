"""Scores after one more local training at the end (`run.fine_tune`): the "+" of the published tables.

The training is the one of the run without the extensions that belong to training only, so that models are
compared after the same training. Newcomers are always scored after it too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedflow.local.client import Client, Update
from fedflow.simulation.evaluation import Measure, Scores, Served
from fedflow.simulation.extensions.extension import END, NEWCOMERS, RunExtension
from fedflow.simulation.outcome import RunFindings, mean_or_none


@dataclass(frozen=True)
class Tuned:
    """Accuracy on the client's own test set after one more local training from the served model."""

    name: str = "tuned_accuracy"
    kept: tuple[str, ...] = ()

    def of(self, served: Served) -> np.ndarray:
        job = replace(served.job, training=served.job.training.tuning)

        def step(client: Client) -> Update:
            return client.update(model=client.fit(start=client.received["model"], stream="tune"))

        return replace(served, job=job).accuracy_after(step, {"tune": job.training.epochs})


class FineTuning(RunExtension):
    """`Tuned` at the end, and of newcomers."""

    def measures(self, when: str) -> Sequence[Measure]:
        asked = when == NEWCOMERS or (when == END and self.run.settings.fine_tune)
        return [Tuned()] if asked else []

    def finish(self, scores: Scores) -> RunFindings:
        return RunFindings({"tuned_accuracy": mean_or_none(scores.column("tuned_accuracy"))})
