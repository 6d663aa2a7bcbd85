"""LoRA of ``peft``: frozen layers with a trained product of two small matrices."""

import fnmatch
import itertools
import re
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from fedflow.errors import BadInput, reason
from fedflow.models.noise import zeros
from fedflow.settings import Settings, Words, option

ADAPTERS = ("*.lora_[AB].*",)  # patterns of their parameters


class Lora(Settings):
    """The adapters of a network, whose own parameters are frozen except those in ``trainable``."""

    section = "models.lora"
    rank: int = option(8, "rank of the product", symbol="r", ge=1)
    alpha: float = option(8.0, "the product is scaled by alpha / rank", symbol="α", gt=0)
    layers: list[str] | None = option(
        None, "patterns of the layers; null = all linear layers before the last"
    )
    dropout: float = option(0.0, "share of the inputs of the adapters that training drops", ge=0, lt=1)

    def validate(self) -> None:
        if find_spec("peft") is None:
            raise BadInput("models.lora", Words("a mapping"), "an environment with peft: pip install peft")


def add_adapters(module: nn.Module, values: Mapping[str, Any], input_shape: tuple[int, ...]) -> None:
    """Add the adapters that ``values`` describe to ``module``; they do not change its outputs yet.

    Raises `BadInput` for a pattern that matches no layer, and for layers that cannot have an adapter.
    """
    lora = Lora.parse(values)
    from peft import LoraConfig, inject_adapter_in_model

    module.eval()  # for the call below
    names = "|".join(map(re.escape, chosen(module, lora.layers)))  # a list would be one of endings
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=names, lora_dropout=lora.dropout)
    try:
        with warnings.catch_warnings(action="ignore"):
            inject_adapter_in_model(config, module)
    except (TypeError, ValueError) as error:
        raise BadInput("models.lora", values, f"adapters that fit the layers ({reason(error)})") from error
    if uncalled := _uncalled(module, input_shape):
        accepted = "layers that the network calls; it reads the weights of this one instead"
        raise BadInput("models.lora.layers", uncalled[0], accepted)


@torch.enable_grad()
def _uncalled(module: nn.Module, input_shape: tuple[int, ...]) -> list[str]:
    """The layers whose adapters do not reach the outputs."""
    last = {name: p for name, p in module.named_parameters() if ".lora_B." in name}
    total = module(zeros(module, 1, input_shape)).sum()
    gradients = torch.autograd.grad(total, [*last.values()], allow_unused=True) if total.requires_grad else ()
    pairs = itertools.zip_longest(last, gradients)
    return [name.partition(".lora_B.")[0] for name, gradient in pairs if gradient is None]


def chosen(module: nn.Module, patterns: list[str] | None) -> list[str]:
    """The names of the linear and convolutional layers that match; by default, linear ones but the last."""
    kinds = nn.Linear, _ConvNd
    names = [name for name, layer in module.named_modules() if isinstance(layer, kinds)]
    if patterns is None:
        linear = [name for name in names if type(module.get_submodule(name)) is nn.Linear][:-1]
        if not linear:
            raise BadInput("models.lora.layers", None, f"patterns that match layers of {', '.join(names)}")
        return linear
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            accepted = f"a pattern that matches one of {', '.join(names)}"
            raise BadInput("models.lora.layers", pattern, accepted)
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
