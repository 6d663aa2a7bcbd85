"""Registry of networks, and how to build them."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from fedflow.errors import BadInput, unknown_name
from fedflow.models.tensors import freeze_others
from fedflow.seeding import undisturbed


@dataclass(frozen=True)
class Architecture:
    """Class and options of a network, its use, and the input shape and classes for parameter counts."""

    build: Callable[..., nn.Module]
    about: str
    options: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (3, 32, 32)
    classes: int = 10


ARCHITECTURES: dict[str, Architecture] = {}

B = TypeVar("B", bound=Callable[..., nn.Module])


def register_network(
    name: str, about: str, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10
) -> Callable[[B], B]:
    """Class decorator: register a network as ``name``, with its use in one line.

    The class takes the shape of one input and the number of classes, then its options; ``forward`` returns
    logits [n, classes]. ``fedflow models`` counts its parameters for inputs of ``shape`` and ``classes``.
    Raises `BadInput` for the name of another module's network.
    """

    def add(build: B) -> B:
        other = ARCHITECTURES.get(name)
        if other is not None and other.build.__module__ != build.__module__:
            raise BadInput("name", name, f"another name than a network of {other.build.__module__}")
        ARCHITECTURES[name] = Architecture(build, about, shape=shape, classes=classes)
        return build

    return add


def build(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    trainable: Sequence[str] | None = None,
    **options: Any,
) -> nn.Module:
    """The named network for inputs of ``input_shape``: images (C, H, W), features (d,) or tokens (L,).

    Networks for tokens, whole numbers 0..num_classes-1, declare ``tokens = True``. ``trainable`` are patterns
    of the parameters to train; the others are frozen (None: train all). Raises `BadInput` for an unknown
    name, option or pattern, and for inputs that do not fit, such as small images.
    """
    if name not in ARCHITECTURES:
        raise unknown_name("model.name", name, ARCHITECTURES, "fedflow models")
    for option in options:
        if option not in known_options(name):
            raise unknown_name(f"model.options.{option}", option, known_options(name))
    given = ARCHITECTURES[name].options | options
    try:
        module = ARCHITECTURES[name].build(input_shape, num_classes, **given)
        with torch.no_grad():
            kind = torch.int64 if getattr(module, "tokens", False) else torch.float32
            module.eval()(torch.zeros(1, *input_shape, dtype=kind))
    except (RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        inputs = f"{'images' if len(input_shape) == 3 else 'inputs'} {input_shape}"
        raise BadInput("model.name", name, f"a network and options that fit {inputs} ({error})") from error
    if trainable is not None:
        freeze_others(module, trainable)
        given = given | {"trainable": list(trainable)}
    module.architecture = name  # type: ignore[assignment] # its name in errors
    module.options = given  # type: ignore[assignment] # the layers do not show all, such as initialization
    module.fits = input_shape, num_classes  # type: ignore[assignment]
    return module.train()


def known_options(name: str) -> list[str]:
    """The options of the named architecture."""
    parameters = inspect.signature(ARCHITECTURES[name].build).parameters
    return [p for p in parameters if p not in ("input_shape", "num_classes")]


@undisturbed()
def describe() -> list[dict[str, Any]]:
    """One row per architecture: name, description, and number of parameters for its usual inputs."""
    return [
        {
            "name": name,
            "about": entry.about,
            "inputs": "x".join(map(str, entry.shape)),
            "classes": entry.classes,
            "parameters": f"{sum(p.numel() for p in build(name, entry.shape, entry.classes).parameters()):,}",
        }
        for name, entry in ARCHITECTURES.items()
    ]
