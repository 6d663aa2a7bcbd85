"""Traffic, training loss and scores by level, for methods whose clients hold networks of several sizes."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedflow.methods.protocols import Leveled
from fedflow.metrics.table import level_metric
from fedflow.simulation.evaluation import Scores
from fedflow.simulation.extensions.extension import Run, RunExtension
from fedflow.simulation.job import ClientResult
from fedflow.simulation.outcome import RoundReport, mean_or_none

DOWN, UP = "bytes_down", "bytes_up"


class ByLevel(RunExtension):
    """The metrics ``level/<metric>/<level>``."""

    @classmethod
    def wanted(cls, run: Run) -> bool:
        return isinstance(run.job.method, Leveled)

    def start_round(self, report: RoundReport, before: Mapping[str, float]) -> None:
        names = [level_metric(level, name) for level in self.run.levels for name in (DOWN, UP)]
        report.values |= {name: before.get(name, 0) for name in names}

    def traffic(self, report: RoundReport, down: Mapping[int, int], up: Mapping[int, int]) -> None:
        for name, counts in ((DOWN, down), (UP, up)):
            for client, count in counts.items():
                report.values[level_metric(self.run.level(client), name)] += count

    def stepped(self, report: RoundReport, sent: Sequence[ClientResult]) -> None:
        losses = dict[str, list[float]]()
        for result in sent:
            losses.setdefault(self.run.level(result.client), []).append(result.train_loss)
        for level, of_level in losses.items():
            report.values[level_metric(level, "train_loss")] = float(np.mean(of_level))

    def evaluate(self, report: RoundReport, scores: Scores) -> Mapping[str, float | None]:
        return {
            level_metric(level, name): mean_or_none(getattr(scores, name)[np.isin(scores.clients, clients)])
            for level, clients in self.run.levels.items()
            for name in ("local_accuracy", "global_accuracy", "global_loss")
        }
