"""Removable channels of a network: masks of its flat vector, and the network without them.

A norm scales every channel by gamma and shifts it by beta. If both are 0, so are the channel, in training and
in evaluation, and its contribution to the next layer, as the activations and pools in between map 0 to 0. So
the network without the channel has the same outputs. Source: network slimming (Liu et al., "Learning
Efficient Convolutional Networks through Network Slimming", ICCV 2017), as in Sub-FedAvg (Hy).
"""

import copy
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from fedflow.models.flat import FlatModel
from fedflow.models.tensors import floating

# Attributes with the number of outputs, and of inputs, of a layer.
WIDTHS = (
    ("out_channels", "out_features", "num_features", "num_channels", "num_groups"),
    ("in_channels", "in_features"),
)


class Channels(NamedTuple):
    """Names of three layers: ``conv``, the ``norm`` of its channels, and the layer ``then`` that reads them.

    An architecture lists its channels in the attribute ``channels``. A dense layer reads all pixels of a
    channel, in the order of ``flatten``.
    """

    conv: str
    norm: str
    then: str


class Size(NamedTuple):
    """The size of a network that is part of a whole network.

    ``parameters`` is the number with zeros, ``kept`` the share of the whole network's parameters that are
    neither removed nor zero weights (biases count as kept), ``bytes`` the size of all tensors with buffers.
    """

    parameters: int
    kept: float
    bytes: int

    def __str__(self) -> str:
        return f"{self.parameters:,} parameters ({self.kept:.1%} kept), {self.bytes:,} bytes"


def size_of(network: nn.Module, whole: int) -> Size:
    """The size of ``network``, part of a network with ``whole`` parameters."""
    left = list(network.parameters())
    count, zeros = sum(p.numel() for p in left), sum(int((p == 0).sum()) for p in left if p.ndim > 1)
    stored = sum(t.numel() * t.element_size() for t in (*left, *network.buffers()))
    return Size(count, (count - zeros) / whole, stored)


def in_order(network: nn.Module) -> tuple[Channels, ...]:
    """The channels of a network whose layers are called in the order in which they are registered."""
    kinds = (_ConvNd, nn.Linear, _BatchNorm, nn.GroupNorm)
    layers = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, kinds)]
    return tuple(
        Channels(conv, norm, then)
        for ((conv, first), (norm, second)), (_, (then, _)) in pairwise(pairwise(layers))
        if isinstance(first, _ConvNd) and _separates_channels(second)
    )


def expand(model: FlatModel, kept: Mapping[str, Tensor]) -> Tensor:
    """The mask [D] of a network that keeps the channels ``kept`` (name of ``conv`` -> bool [channels]).

    The mask of a removed channel is 0 at its weights and bias in ``conv``, at its gamma, beta and running
    statistics in ``norm``, and at the weights of ``then`` that read it. Works under ``torch.func.vmap``.
    """
    shapes = dict(zip(model.names, model.shapes))
    masks = {name: torch.ones(shape, dtype=torch.bool, device=model.device) for name, shape in shapes.items()}
    for layer in model.channels:
        channels = kept[layer.conv]
        for name in masks:
            if name.rpartition(".")[0] in (layer.conv, layer.norm):
                masks[name] = masks[name] & channels.view(-1, *[1] * (masks[name].ndim - 1))
        name = f"{layer.then}.weight"
        if name not in masks:  # frozen
            continue
        inputs = channels[:, None].expand(-1, masks[name].shape[1] // len(channels)).reshape(-1)
        masks[name] = masks[name] & inputs.view(-1, *[1] * (masks[name].ndim - 2))
    return torch.cat([mask.reshape(-1) for mask in masks.values()])


def kept_channels(model: FlatModel, mask: Tensor) -> dict[str, Tensor]:
    """The channels that ``mask`` [D] keeps, the argument of `expand`."""
    return {layer.conv: mask[model.slices[f"{layer.norm}.weight"]] for layer in model.channels}


def smaller(module: nn.Module, mask: Tensor | None = None) -> nn.Module:
    """A copy of ``module`` with the same outputs, without the channels whose gamma and beta are 0.

    Entries outside ``mask`` [D] (over the parameters, then the floating-point buffers) become 0 first. Other
    zero weights stay, and at least one channel per layer. The attribute ``size`` of the copy is its `Size`.
    """
    small: Any = copy.deepcopy(module)
    with torch.no_grad():
        if mask is not None:
            tensors = [
                t for t in floating(small).values() if t.requires_grad or not isinstance(t, nn.Parameter)
            ]
            for tensor, part in zip(tensors, mask.split([t.numel() for t in tensors]), strict=True):
                tensor.mul_(part.view_as(tensor))
        for layer in getattr(module, "channels", ()):
            norm = small.get_submodule(layer.norm)
            kept = (norm.weight != 0) | (norm.bias != 0)
            kept[0] |= ~kept.any()
            _keep(small, layer, kept)
    small.size = size_of(small, sum(p.numel() for p in module.parameters()))
    return small


def load_smaller(module: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy of ``module`` with the ``state`` dict of a `smaller` module of its architecture."""
    small: Any = copy.deepcopy(module)
    for layer in getattr(module, "channels", ()):
        gamma = small.get_submodule(layer.norm).weight
        _keep(small, layer, torch.arange(len(gamma)) < len(state[f"{layer.norm}.weight"]))
    small.load_state_dict(state)
    return small


def _separates_channels(norm: nn.Module) -> bool:
    """True if a norm has a gamma and statistics for every channel."""
    if isinstance(norm, nn.GroupNorm):
        return norm.affine and norm.num_groups == norm.num_channels
    return isinstance(norm, _BatchNorm) and norm.affine


def _keep(network: Any, layer: Channels, kept: Tensor) -> None:
    """Remove the channels of ``layer`` that are not ``kept`` [channels] from ``network``."""
    conv, norm, then = (network.get_submodule(name) for name in layer)
    read = kept.repeat_interleave(then.weight.shape[1] // len(kept))
    for owner, entries, dim in ((conv, kept, 0), (norm, kept, 0), (then, read, 1)):
        index = entries.nonzero().squeeze(1)
        for table in (owner._parameters, owner._buffers):
            for name, tensor in table.items():
                if tensor is not None and tensor.ndim > dim:
                    part = tensor.detach().index_select(dim, index)
                    trained = isinstance(tensor, nn.Parameter)
                    table[name] = nn.Parameter(part, tensor.requires_grad) if trained else part
        for width in WIDTHS[dim]:
            if hasattr(owner, width):
                setattr(owner, width, len(index))
