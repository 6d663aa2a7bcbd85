"""The final metrics of a run, with the costs of its networks, and summaries of clients' reports."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fedflow.errors import reason
from fedflow.methods.protocols import Leveled, Pruning, Published
from fedflow.metrics.cost import macs
from fedflow.metrics.distribution import summarize
from fedflow.metrics.target import first_reaching
from fedflow.models.channels import kept_channels, smaller
from fedflow.simulation.evaluation import Scores
from fedflow.simulation.job import ClientResult
from fedflow.simulation.levels import networks
from fedflow.simulation.outcome import mean_or_none
from fedflow.simulation.setup import RunSetup

COUNTED = ("macs", "macs_convolutions")


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
    onboarded = run.state.onboarded or {}
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
        **{f"onboarding_bytes_{way}": count for way, count in onboarded.items()},
        "target_accuracy": target,
        "rounds_to_target": reached.round if reached else None,
        "bytes_to_target": (
            reached.values["bytes_down"] + reached.values["bytes_up"] + sum(onboarded.values()) + shipped
            if reached
            else None
        ),
        "clock": last["clock"],
        "clock_to_target": reached.values["clock"] if reached else None,
        "clusters": len(np.unique(scores.cluster)),
        "failed_clients": sum(len(r.failed) for r in history),
    }
    if settings.stop_at is not None:
        metrics["stopped_in"] = run.done if settings.stop_at.reached(last) else None
    if lost := sum(r.lost for r in history):
        metrics["failed_rounds"] = lost
    metrics |= costs_of(run)
    if shipped:
        metrics["shipped_bytes"] = shipped
    if len(scores.clients) < run.clients:
        metrics["evaluated_clients"] = len(scores.clients)
    return metrics


def costs_of(run: RunSetup) -> dict[str, float]:
    """`paper_bytes` and `macs`; if clients have parts of the network, also `macs_ratio` and `kept`.

    Sources publish MACs of the network or of its convolutions, so both are counted. Unknown costs are left
    out. MACs under a mask are counted in the network without the channels that it removes.
    """
    method, counted = run.job.method, dict[str, float]()
    try:
        rounds, cohort = run.done, run.cohort_size
        published = Published.of(method).published_bytes(run.federation.model, rounds, cohort)
        if published is not None:
            counted["paper_bytes"] = published
        counted |= _of_networks(run)
    except Exception as error:  # whatever a network does, it must not end a finished run
        warnings.warn(f"{method.name}: not all costs were counted ({reason(error)})", stacklevel=4)
    return counted


def _of_networks(run: RunSetup) -> dict[str, float]:
    """The costs of the clients' networks."""
    model, method, train = run.federation.model, run.job.method, run.federation.train
    sample = train.inputs(torch.zeros(1, dtype=torch.int64, device=train.device))

    def count(module: nn.Module) -> np.ndarray:
        """MACs of all layers, and of convolutions."""
        of_layers = macs(module, sample.shape[1:], sample.dtype)
        convolutions = [name for name, layer in module.named_modules() if isinstance(layer, _ConvNd)]
        return np.array([sum(of_layers.values()), sum(of_layers.get(name, 0) for name in convolutions)])

    module = model.to_module(torch.ones(model.size))  # a gamma of 0 would be a channel that is removed
    whole, kept, total = count(module), 0, np.zeros(2, dtype=np.int64)
    if Pruning.of(method).masks.get("model") in run.state.store.first:
        by_widths: dict[tuple[int, ...], np.ndarray] = {}
        for mask, clients in _masks(run):
            kept += clients * int(mask[: model.parameters].count_nonzero())
            widths = tuple(int(channels.count_nonzero()) for channels in kept_channels(model, mask).values())
            if widths not in by_widths:
                by_widths[widths] = count(smaller(module, mask)) if widths else whole
            total += clients * by_widths[widths]
    elif isinstance(method, Leveled):
        for level, part in networks(method, run.federation).items():
            clients = len(run.levels[level])
            kept += clients * part.parameters
            total += clients * count(part.to_module(part.init(0)))
    else:
        return {name: value for name, value in zip(COUNTED, whole.tolist()) if value}
    costs = {"kept": kept / (run.clients * model.parameters)}
    for name, dense, mean in zip(COUNTED, whole.tolist(), (total / run.clients).tolist()):
        costs |= {name: mean, f"{name}_ratio": dense / mean} if mean else {}
    return costs


def _masks(run: RunSetup) -> Iterator[tuple[Tensor, int]]:
    """The clients' masks [D], on the host, and how many clients have each; unwritten masks are the first."""
    name, store = Pruning.of(run.job.method).masks["model"], run.state.store
    written = np.flatnonzero(store.written[name]).tolist()
    if never := run.clients - len(written):
        yield store.first[name].cpu(), never
    for client in written:
        yield store.get(client, [name])[name].cpu(), 1
