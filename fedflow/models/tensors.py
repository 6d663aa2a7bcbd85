"""Tensors of a module: trained and frozen tensors, and tensors that a flat vector cannot hold."""

import copy
import fnmatch
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils.weight_norm import WeightNorm

from fedflow.errors import BadInput
from fedflow.settings import Words

FROZEN = "frozen."  # prefix of frozen parameters in weights files
HOOKS = "hooks on gradients, which local steps do not call; freeze with requires_grad_(False)"


def floating(module: nn.Module) -> dict[str, Tensor]:
    """The parameters of ``module`` by name, then its floating-point buffers."""
    buffers = {name: b for name, b in module.named_buffers() if b.is_floating_point()}
    return dict(module.named_parameters()) | buffers


def shared(module: nn.Module) -> dict[str, str]:
    """Further name -> first name of the parameters and buffers that several layers share (tied weights)."""
    every = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    names: dict[int, str] = {}
    return {name: first for name, t in every if (first := names.setdefault(id(t), name)) != name}


def write(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Write ``values`` by name into the parameters and buffers of ``module``."""
    with torch.no_grad():
        for name, tensor in floating(module).items():
            if name in values:
                tensor.copy_(values[name])


def with_frozen(module: nn.Module, frozen: Mapping[str, Tensor]) -> nn.Module:
    """A copy of ``module`` in which exactly the parameters in ``frozen`` are frozen, with these values."""
    module = copy.deepcopy(module)
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_(name not in frozen)
    write(module, frozen)
    return module


def freeze_others(module: nn.Module, trainable: Sequence[str], added: Sequence[str] = ()) -> None:
    """Freeze all parameters that match no glob pattern in ``trainable`` or ``added``.

    Raises `BadInput` if a pattern in ``trainable`` matches none.
    """
    if isinstance(trainable, str) or not all(isinstance(pattern, str) for pattern in trainable):
        raise BadInput("model.trainable", trainable, "a list of patterns of parameter names")
    names = list(dict(module.named_parameters(remove_duplicate=False)))
    for pattern in trainable:
        if not fnmatch.filter(names, pattern):
            raise BadInput("model.trainable", pattern, f"a pattern that matches one of {', '.join(names)}")
    trained = {name for pattern in (*trainable, *added) for name in fnmatch.filter(names, pattern)}
    of_first = shared(module)
    trained |= {of_first[name] for name in trained & of_first.keys()}
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trained)


def need_plain(module: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Raise `BadInput` if ``module`` has tensors or hooks that training as one vector would drop.

    ``dtype`` is accepted in addition to float32.
    """
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        where = f"model.{name}"
        if is_lazy(tensor):
            raise BadInput(where, Words("no shape yet"), "a network without lazy layers, or called once")
        if tensor.is_meta:
            raise BadInput(where, Words("meta"), "a tensor with values, on a CPU or GPU")
        if tensor.is_sparse or tensor.layout != torch.strided:
            raise BadInput(where, Words(str(tensor.layout)), "a dense tensor")
        numbers = tensor.is_floating_point() or tensor.is_complex()
        if numbers and tensor.dtype not in (torch.float32, dtype):
            kind = Words(str(tensor.dtype).removeprefix("torch."))
            raise BadInput(where, kind, "float32, in which networks are trained (call .float())")
        if tensor._backward_hooks:
            raise BadInput(where, Words("a hook"), f"a network without {HOOKS}")
    for name, layer in module.named_modules():
        where = f"model.{name}" if name else "model"
        if any(isinstance(hook, WeightNorm) for hook in layer._forward_pre_hooks.values()):
            accepted = "torch.nn.utils.parametrizations.weight_norm, as this one cannot be copied"
            raise BadInput(where, Words("torch.nn.utils.weight_norm"), accepted)
        if layer._backward_hooks or layer._backward_pre_hooks:
            raise BadInput(where, Words("a hook"), f"a network without {HOOKS}")
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.momentum is None:
            accepted = "a momentum, as a mean over all batches would depend on the workers"
            raise BadInput(f"{where}.momentum", None, accepted)
