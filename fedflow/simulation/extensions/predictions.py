"""Predictions of the served models for every client's own test samples (`run.keep_predictions`)."""

from functools import partial

from fedflow.errors import BadInput
from fedflow.simulation.evaluation import Scores
from fedflow.simulation.extensions.extension import Run, RunExtension
from fedflow.simulation.outcome import RunFindings

FILE = "predictions.parquet"


class KeptPredictions(RunExtension):
    """A table with a row per client and sample of its test set (`PREDICTIONS`)."""

    answers = True

    @classmethod
    def wanted(cls, run: Run) -> bool:
        return bool(run.settings.keep_predictions)

    def check(self) -> None:
        if not self.run.federation.labeled:
            raise BadInput("run.keep_predictions", True, "false, as the samples do not have one label each")

    def finish(self, scores: Scores) -> RunFindings:
        assert scores.answers is not None
        return RunFindings(files={FILE: partial(scores.answers.to_parquet, index=False)})
