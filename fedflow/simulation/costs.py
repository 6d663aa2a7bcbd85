"""Cost of the final networks of a run, and its traffic by the formula of the method's source."""

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fedflow.errors import reason
from fedflow.methods.protocols import Leveled, Pruning, Published
from fedflow.metrics.cost import macs
from fedflow.models.channels import kept_channels, smaller
from fedflow.simulation.levels import networks
from fedflow.simulation.setup import RunSetup

COUNTED = ("macs", "macs_convolutions")


def costs(run: RunSetup) -> dict[str, float]:
    """`paper_bytes` and `macs`; if clients have parts of the network, also `macs_ratio` and `kept`.

    Sources publish MACs of the network or of its convolutions, so both are counted. Unknown costs are left
    out. MACs under a mask are counted in the network without the channels that it removes.
    """
    method, counted = run.job.method, dict[str, float]()
    try:
        rounds, cohort = run.settings.rounds, run.cohort_size
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
