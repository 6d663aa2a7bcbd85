"""A layer with one logit, and initialization by Xavier's normal distribution."""

import torch
from torch import Tensor, nn


class BinaryLinear(nn.Linear):
    """A dense layer to one logit z, with the outputs (0, z) [B, 2].

    Their softmax is the sigmoid of z and their cross-entropy the binary one, so that a network with one logit
    is trained and scored like any other.
    """

    def __init__(self, inside: int, bias: bool = True) -> None:
        super().__init__(inside, 1, bias)

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        return torch.cat([torch.zeros_like(z), z], dim=-1)


def classifier(inside: int, num_classes: int) -> nn.Linear:
    """The last layer: one logit for two classes, else one per class."""
    return BinaryLinear(inside) if num_classes == 2 else nn.Linear(inside, num_classes)


def start_xavier(network: nn.Module) -> None:
    """Draw the weights of convolutions and dense layers by Xavier's normal distribution; biases become 0."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
