"""What the networks of a run cost at its end, and its traffic by the formula of the method's source."""

import warnings

import torch
from torch import Tensor, nn

from fedflow.errors import reason
from fedflow.metrics.cost import macs
from fedflow.models.channels import smaller
from fedflow.models.flat import FlatModel
from fedflow.simulation.levels import networks
from fedflow.simulation.run import Run


def costs(run: Run) -> dict[str, float]:
    """`paper_bytes` and `macs`; if clients have parts of the network, also `macs_ratio` and `kept`.

    What is unknown is left out. A mask's MACs are those of the network without the channels that it removes.
    """
    model, method, found = run.federation.model, run.job.method, dict[str, float]()
    published = method.published_bytes(model, run.settings.rounds, run.cohort_size)
    if published is not None:
        found["paper_bytes"] = published
    masks = _masks(run)
    if masks or run.levelled:
        own = networks(method, run.federation)
        kept = [int(mask[: model.parameters].count_nonzero()) for mask in masks] or [
            own[level].parameters * len(clients) for level, clients in run.levels.items()
        ]
        found["kept"] = sum(kept) / (run.clients * model.parameters)
    try:
        whole, mean = _macs(run, masks)
    except Exception as error:  # whatever a network does, it must not end a finished run
        warnings.warn(f"{method.name}: MACs were not counted ({reason(error)})", stacklevel=4)
        return found
    return found | {"macs": mean} | ({"macs_ratio": whole / mean} if "kept" in found and mean else {})


def _masks(run: Run) -> list[Tensor]:
    """The mask [D] of every client, on the host, if clients keep masks of their models."""
    name, store = run.job.method.masks.get("model", ""), run.state.store
    every = range(run.clients) if name in store.first else ()
    return [store.get(k, [name])[name].cpu() for k in every]


def _macs(run: Run, masks: list[Tensor]) -> tuple[float, float]:
    """MACs of the network of the run, and their mean over the clients' networks."""
    train, known = run.federation.train, dict[str, int]()
    shape = train.inputs(torch.zeros(1, dtype=torch.int64, device=train.device)).shape[1:]

    def module_of(model: FlatModel) -> nn.Module:
        return model.to_module(torch.ones(model.size))  # a gamma of 0 would be a channel that is removed

    def count(module: nn.Module) -> int:
        layers = str(module)
        if layers not in known:
            known[layers] = sum(macs(module, shape).values())
        return known[layers]

    whole = module_of(run.federation.model)
    if masks:
        total = sum(count(smaller(whole, mask)) for mask in masks)
    else:
        own = networks(run.job.method, run.federation)
        total = sum(count(module_of(own[level])) * len(clients) for level, clients in run.levels.items())
    return count(whole), total / run.clients
