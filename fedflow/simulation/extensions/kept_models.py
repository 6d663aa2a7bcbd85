"""The model that each client trained last, stored and scored at the end (`run.keep_trained`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedflow.local.client import TRAINED
from fedflow.simulation.evaluation import Measure, Scores, Served
from fedflow.simulation.extensions.extension import END, RunExtension
from fedflow.simulation.outcome import RunFindings, mean_or_none


@dataclass(frozen=True)
class LastTrained:
    """Accuracy of the model that the client trained last."""

    name: str = "trained_accuracy"
    kept: tuple[str, ...] = (TRAINED,)

    def of(self, served: Served) -> np.ndarray:
        shard = served.shard
        return served.accuracy_of([shard.vectors[own[TRAINED]] for own in shard.kept])


class KeptModels(RunExtension):
    """The trained models of clients, and their scores, if they are kept."""

    @property
    def trains(self) -> bool:
        return bool(self.run.settings.keep_trained)

    stores = trains

    def measures(self, when: str) -> Sequence[Measure]:
        return [LastTrained()] if when == END and self.trains else []

    def finish(self, scores: Scores) -> RunFindings:
        return RunFindings({"local_final_accuracy": mean_or_none(scores.column("trained_accuracy"))})
