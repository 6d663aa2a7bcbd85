"""The final metrics of a run, and summaries of clients' reports."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedflow.metrics.distribution import summarize
from fedflow.metrics.target import first_reaching
from fedflow.simulation.costs import costs
from fedflow.simulation.evaluation import Scores
from fedflow.simulation.job import ClientResult
from fedflow.simulation.outcome import mean_or_none
from fedflow.simulation.setup import RunSetup


def summarized(sent: Sequence[ClientResult]) -> dict[str, float]:
    """Mean, minimum and maximum of the finite values of every scalar that clients of a round report."""
    values: dict[str, float] = {}
    for name in sorted({name for result in sent for name in result.reported}):
        numbers = np.array([result.reported.get(name, np.nan) for result in sent])
        numbers = numbers[np.isfinite(numbers)]
        if len(numbers):
            measures = {"mean": numbers.mean(), "min": numbers.min(), "max": numbers.max()}
            values |= {f"client/{name}/{what}": float(value) for what, value in measures.items()}
    return values


def final_metrics(run: RunSetup, scores: Scores) -> dict[str, Any]:
    """The metrics of a finished run, or None if not measured."""
    settings, history = run.settings, run.state.history
    last = history[-1].values
    local = {
        name: None if np.isnan(value) else value
        for name, value in summarize(scores.local_accuracy, scores.test_samples).items()
    }
    target = settings.target_accuracy
    scored = [r.values.get("local_accuracy") for r in history]
    first = None if target is None else first_reaching("local_accuracy", scored, target)
    reached = None if first is None else history[first]
    shipped = run.federation.shipped * run.clients
    metrics: dict[str, Any] = {
        "rounds": history[-1].round,
        "clients": run.clients,
        "participation": settings.participation,
        "parameters": run.federation.model.size,
        "global_accuracy": mean_or_none(scores.global_accuracy),
        "local_accuracy": local["mean"],
        **{f"local_{name}": value for name, value in local.items() if name != "mean"},
        "loss": mean_or_none(scores.local_loss),
        "global_loss": mean_or_none(scores.global_loss),
        "bytes_down": last["bytes_down"],
        "bytes_up": last["bytes_up"],
        **{f"onboarding_bytes_{way}": count for way, count in (run.state.onboarded or {}).items()},
        "target_accuracy": target,
        "rounds_to_target": reached.round if reached else None,
        "bytes_to_target": (
            reached.values["bytes_down"] + reached.values["bytes_up"] + shipped if reached else None
        ),
        "clock": last["clock"],
        "clock_to_target": reached.values["clock"] if reached else None,
        "clusters": len(np.unique(scores.cluster)),
        "failed_clients": sum(len(r.failed) for r in history),
    }
    if lost := sum(r.lost for r in history):
        metrics["failed_rounds"] = lost
    metrics |= costs(run)
    if shipped:
        metrics["shipped_bytes"] = shipped
    if len(scores.clients) < run.clients:
        metrics["evaluated_clients"] = len(scores.clients)
    return metrics
