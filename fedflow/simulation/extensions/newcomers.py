"""Newcomers: clients of the partition that join after the last round.

They are onboarded if the method has an onboarding, then scored as served and after one local training. What
the server learns from them counts for these scores only.
"""

from typing import Any

from fedflow.simulation.evaluation import Scores
from fedflow.simulation.extensions.extension import NEWCOMERS, Run, RunExtension
from fedflow.simulation.outcome import RunFindings, mean_or_none


class Newcomers(RunExtension):
    """The clients from N on. ``server`` is the server's state that they are served from."""

    server: Any = None

    @classmethod
    def wanted(cls, run: Run) -> bool:
        return len(run.federation.partition.sizes) > run.clients

    def finish(self, scores: Scores) -> RunFindings:
        run, newcomers = self.run, range(self.run.clients, len(self.run.federation.partition.sizes))
        before = run.state.server
        run.onboard(newcomers)
        self.server = run.state.server
        found = run.scores("newcomers", run.settings.rounds, newcomers, NEWCOMERS)
        run.state.server = before
        metrics = {
            "newcomers": len(found.clients),
            "newcomer_accuracy": mean_or_none(found.local_accuracy),
            "newcomer_tuned_accuracy": mean_or_none(found.column("tuned_accuracy")),
        }
        return RunFindings(metrics, newcomers=found)
