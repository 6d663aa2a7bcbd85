"""Inception v3, the feature space of published Fréchet distances, with weights from a file of the user.

Two networks are in use, distinguished by their number of outputs. The network of the original FID (Heusel et
al. 2017; 1,008, ported from TensorFlow) averages without padding of borders, and its last pool is a maximum;
torchvision's network (1,000) pads. Their values are not comparable.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, max_pool2d
from torchvision.models import inception as blocks

from fedflow.errors import BadInput, reason
from fedflow.models.flat import FlatModel

SIDE = 299  # pixels
ORIGINAL, TORCHVISION = 1008, 1000  # outputs


class _Inside:
    """A block with averages that leave out padding."""

    def _forward(self, x: Tensor) -> list[Tensor]:
        mean = avg_pool2d(x, kernel_size=3, stride=1, padding=1, count_include_pad=False)
        return [*super()._forward(x)[:-1], self.branch_pool(mean)]  # type: ignore[misc, attr-defined]


class _A(_Inside, blocks.InceptionA):
    pass


class _C(_Inside, blocks.InceptionC):
    pass


class _E(_Inside, blocks.InceptionE):
    pass


class _Last(blocks.InceptionE):
    def _forward(self, x: Tensor) -> list[Tensor]:
        return [*super()._forward(x)[:-1], self.branch_pool(max_pool2d(x, 3, stride=1, padding=1))]


def _two_last(channels: int, **options: Any) -> nn.Module:
    return (_Last if channels == 2048 else _E)(channels, **options)


class Inception(nn.Module):
    """Outputs [B, K] for images [B, 1 or 3, H, W] in [0, 1], resized to 299 x 299 pixels in [-1, 1].

    The last linear layer reads the 2,048 features.
    """

    architecture, at_once = "inception_v3", 32  # images at once: 1 GiB

    def __init__(self, outputs: int = ORIGINAL) -> None:
        super().__init__()
        b = blocks
        original = [b.BasicConv2d, _A, b.InceptionB, _C, b.InceptionD, _two_last, b.InceptionAux]
        given = original if outputs == ORIGINAL else None
        self.layers = b.Inception3(outputs, aux_logits=False, init_weights=False, inception_blocks=given)
        self.options = {"outputs": outputs}

    def forward(self, x: Tensor) -> Tensor:
        x = interpolate(x.expand(-1, 3, -1, -1), (SIDE, SIDE), mode="bilinear", align_corners=False)
        return self.layers(2 * x - 1)


def load_inception(file: Path, field: str, device: torch.device) -> tuple[FlatModel, Tensor]:
    """The network and the vector [D] of the weights in ``file``, a state dict as safetensors.

    Raises `BadInput` of ``field`` for another file.
    """
    try:
        given = {f"layers.{name}": values for name, values in load_file(file).items()}
        outputs = len(given["layers.fc.bias"])
        if outputs not in (ORIGINAL, TORCHVISION):
            raise ValueError(f"has {outputs:,} outputs")
        model = FlatModel(partial(Inception, outputs), device=device)
        for name, shape in zip(model.names, model.shapes):
            if given[name].shape != shape:
                raise ValueError(f"{name} is {list(given[name].shape)}, not {list(shape)}")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        networks = f"Inception v3 with {ORIGINAL:,} or {TORCHVISION:,} outputs"
        raise BadInput(field, str(file), f"weights of {networks} as safetensors ({reason(error)})") from error
    vector = torch.cat([given[name].reshape(-1) for name in model.names])
    return model, vector.to(model.device, model.dtype)
