"""Registry of networks, and how to build them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, TypeVar

import torch
from torch import nn

from fedflow.errors import BadInput, FedflowError, reason, returned, unknown_name
from fedflow.models.external import of_library
from fedflow.models.imported import imported, is_path
from fedflow.models.lora import ADAPTERS, add_adapters
from fedflow.models.noise import DRAWS, draws_in_forward, zeros
from fedflow.models.start import start_from
from fedflow.models.tensors import freeze_others
from fedflow.seeding import undisturbed
from fedflow.settings import check_registrable

DATA = ("input_shape", "num_classes")  # parameters of a network that the dataset sets


@dataclass(frozen=True)
class Architecture:
    """Class and options of a network, its use, and the input shape and classes for parameter counts."""

    build: Callable[..., nn.Module]
    about: str
    options: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (3, 32, 32)
    classes: int = 10
    library: str = ""  # the package with whose networks fedflow makes it

    def make(self, input_shape: tuple[int, ...], num_classes: int, options: Mapping[str, Any]) -> nn.Module:
        return self.build(input_shape, num_classes, **options)

    def check_option(self, option: str, field: str) -> None:
        """Raise `BadInput` of ``field`` if the network has no such option."""
        if option not in (known := self.known_options()):
            raise unknown_name(f"{field}.{option}", option, known)

    def known_options(self) -> list[str]:
        return [name for name in inspect.signature(self.build).parameters if name not in DATA]

    @property
    def package(self) -> str:
        """The package that must be installed to build the network."""
        return self.build.__module__.partition(".")[0]

    @property
    def decides(self) -> dict[str, Any]:
        """Facts other than code that decide the network, before any options are given."""
        return self.options


@dataclass(frozen=True)
class Imported(Architecture):
    """A class or function at an import path, made with its options.

    It also gets ``input_shape`` and ``num_classes`` if it has parameters of these names.
    """

    @property
    def package(self) -> str:
        return self.library or super().package

    @property
    def decides(self) -> dict[str, Any]:
        return self.options | ({"library": version(self.library)} if self.library else {})

    def make(self, input_shape: tuple[int, ...], num_classes: int, options: Mapping[str, Any]) -> nn.Module:
        known = inspect.signature(self.build).parameters
        values = dict[str, Any](zip(DATA, (input_shape, num_classes)))
        given = {name: value for name, value in values.items() if name in known} | dict(options)
        try:
            made: Any = self.build(**given)
            noisy = isinstance(made, nn.Module) and draws_in_forward(made, input_shape)
        except FedflowError:
            raise
        except Exception as error:  # anybody's code
            raise ValueError(f"{type(error).__name__}: {reason(error)}") from error
        if not isinstance(made, nn.Module):
            raise ValueError(f"it makes a {type(made).__name__}, not a torch.nn.Module")
        if noisy:
            raise ValueError(DRAWS)
        return made

    def check_option(self, option: str, field: str) -> None:
        kinds = {parameter.kind for parameter in inspect.signature(self.build).parameters.values()}
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            super().check_option(option, field)

    def known_options(self) -> list[str]:
        parameters = inspect.signature(self.build).parameters.values()
        named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        return [parameter.name for parameter in parameters if parameter.kind in named]


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

    check_registrable(name)

    def add(build: B) -> B:
        other = ARCHITECTURES.get(name)
        if other is not None and other.build.__module__ != build.__module__:
            raise BadInput("name", name, f"another name than a network of {other.build.__module__}")
        ARCHITECTURES[name] = Architecture(build, about, shape=shape, classes=classes)
        return build

    return add


def architecture(name: str, field: str = "model.name") -> Architecture:
    """The registered network ``name``, or the class or function at an import path.

    Raises `BadInput` of ``field`` for an unknown name, or a path that cannot be imported.
    """
    if (build := of_library(name, field)) is not None:
        return Imported(build, "of another package", library=name.partition(":")[0])
    if is_path(name):
        return Imported(imported(name, field), "at an import path")
    if name not in ARCHITECTURES:
        raise unknown_name(field, name, ARCHITECTURES, "fedflow models")
    return ARCHITECTURES[name]


def adapted(name: str, options: Mapping[str, Any]) -> Architecture:
    """The architecture ``name``; the version of peft decides it, too, if ``options`` add adapters."""
    network = architecture(name)
    if options.get("lora") is None:
        return network
    return replace(network, options=network.options | {"peft": version("peft")})


def libraries(name: str, options: Mapping[str, Any]) -> list[str]:
    """The packages that must be installed to build this network, besides PyTorch."""
    adapters = "" if options.get("lora") is None else "peft"
    return [package for package in (architecture(name).library, adapters) if package]


def build(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    /,
    trainable: Sequence[str] | None = None,
    start: str | None = None,
    fresh: Sequence[str] = (),
    lora: Mapping[str, Any] | None = None,
    **options: Any,
) -> nn.Module:
    """The named network for inputs of ``input_shape``: images (C, H, W), features (d,) or tokens (L,).

    Networks for tokens, whole numbers 0..num_classes-1, declare ``tokens = True``. ``trainable`` are patterns
    of the parameters to train; the others are frozen (None: train all). ``start`` is a file with the first
    values, except of names that match a pattern in ``fresh``. ``lora`` are settings of adapters
    (`fedflow.models.lora.Lora`), which are trained together with ``trainable`` (None: nothing else).
    Raises `BadInput` for an unknown name, option or pattern, a file of another network, and inputs that do
    not fit, such as small images.
    """
    network = architecture(name)
    for option in options:
        network.check_option(option, "model.options")
    given = network.options | options
    try:
        module = returned(network.make(input_shape, num_classes, given), nn.Module, name, "an nn.Module")
        with torch.no_grad():
            module.eval()(zeros(module, 1, input_shape))
    except FedflowError:
        raise
    except Exception as error:  # of a user's network, which may raise anything
        inputs = f"{'images' if len(input_shape) == 3 else 'inputs'} {input_shape}"
        accepted = f"a network and options that fit {inputs} ({reason(error)})"
        raise BadInput("model.name", name, accepted) from error
    if start is not None:
        given = given | {"start": start_from(module, start, fresh)}
    if lora is not None:
        add_adapters(module, lora, input_shape)
        given = given | {"lora": dict(lora)}
    if trainable is not None or lora is not None:
        freeze_others(module, () if trainable is None else trainable, () if lora is None else ADAPTERS)
    if trainable is not None:
        given = given | {"trainable": list(trainable)}
    module.architecture = name  # type: ignore[assignment] # its name in errors
    module.options = given  # type: ignore[assignment] # the layers do not show all, such as initialization
    module.fits = input_shape, num_classes  # type: ignore[assignment]
    return module.train()


def known_options(name: str) -> list[str]:
    """The options of the named architecture."""
    return architecture(name).known_options()


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
