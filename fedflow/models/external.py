"""Networks of timm and Hugging Face Transformers, untrained: ``timm:resnet18``, ``transformers:bert``.

Nothing is downloaded: trained values come from a file (`fedflow.models.start`).
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn

from fedflow.errors import BadInput, unknown_name

DOWNLOADS = ("pretrained", "checkpoint_path")  # options of timm


class Logits(nn.Module):
    """The logits of a network of Transformers, whose tensors have the prefix ``published`` here."""

    published = "network."

    def __init__(self, network: nn.Module, tokens: bool) -> None:
        super().__init__()
        self.network, self.tokens = network, tokens

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).logits


def timm_network(model: str) -> Callable[..., nn.Module]:
    """A function that makes this network of timm; ``options`` go to ``timm.create_model``."""

    def build(input_shape: tuple[int, ...], num_classes: int, **options: Any) -> nn.Module:
        import timm

        if not timm.is_model(model):
            raise unknown_name("model.name", model, timm.list_models())
        for name in DOWNLOADS:
            if name in options:
                accepted = "no such option: `start` takes trained values from a safetensors file"
                raise BadInput(f"model.options.{name}", options[name], accepted)
        if len(input_shape) != 3:
            raise BadInput("model.name", f"timm:{model}", "a network for other inputs than images")
        return timm.create_model(model, num_classes=num_classes, in_chans=input_shape[0], **options)

    return build


def transformers_network(model: str) -> Callable[..., nn.Module]:
    """A function that makes a classifier of this type; ``options`` go to its configuration."""

    def build(input_shape: tuple[int, ...], num_classes: int, **options: Any) -> nn.Module:
        from transformers import (
            AutoConfig,
            AutoModelForImageClassification,
            AutoModelForSequenceClassification,
        )
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

        if model not in CONFIG_MAPPING_NAMES:
            raise unknown_name("model.name", model, CONFIG_MAPPING_NAMES)
        images = len(input_shape) == 3
        given: dict[str, Any] = {"num_labels": num_classes}
        if images:
            given |= {"num_channels": input_shape[0], "image_size": input_shape[1]}
        kind = AutoModelForImageClassification if images else AutoModelForSequenceClassification
        return Logits(kind.from_config(AutoConfig.for_model(model, **given | options)), tokens=not images)

    return build


LIBRARIES = {"timm": timm_network, "transformers": transformers_network}


def of_library(name: str, field: str) -> Callable[..., nn.Module] | None:
    """A function that makes the network of a library in `LIBRARIES`, or None for the name of another.

    Raises `BadInput` of ``field`` if the library is not installed.
    """
    library, _, model = name.partition(":")
    if library not in LIBRARIES:
        return None
    if find_spec(library) is None:
        raise BadInput(field, name, f"a network of an installed package: pip install {library}")
    return LIBRARIES[library](model)
