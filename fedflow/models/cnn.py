"""Small convolutional networks of the federated-learning literature."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from fedflow.models.binary import start_xavier
from fedflow.models.channels import in_order
from fedflow.models.mlp import last_layers


class CNN(nn.Module):
    """Square convolutions ``filters``, each with ReLU and 2x2 max pooling, then dense layers ``hidden``.

    ``kernel`` is the side of the convolutions, ``padding`` their padding, ``pool_padding`` pads the pools;
    ``one_pool`` keeps only the last pool. ``batch_norm``, or GroupNorm with ``groups`` groups, normalizes
    after every convolution; ``feature_dropout`` follows the last pool, ``dropout`` every layer of ``hidden``.
    ``xavier`` draws the weights by Xavier's normal distribution. The head is the last ``head_layers`` dense
    layers: all three of TwoCNN, with 669,200 of its parameters.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        filters: Sequence[int] = (32, 64),
        hidden: Sequence[int] = (512,),
        kernel: int = 5,
        padding: int = 0,
        pool_padding: int = 0,
        one_pool: bool = False,
        bias: bool = True,
        batch_norm: bool = False,
        groups: int = 0,
        feature_dropout: float = 0.0,
        dropout: float = 0.0,
        xavier: bool = False,
        head_layers: int = 1,
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        if batch_norm and groups:
            raise ValueError("batch_norm and groups exclude each other")
        self.features = nn.Sequential()
        for layer, outside in enumerate(filters, start=1):
            self.features.append(nn.Conv2d(channels, outside, kernel, padding=padding, bias=bias))
            height, width = (side - kernel + 1 + 2 * padding for side in (height, width))
            if batch_norm:
                self.features.append(nn.BatchNorm2d(outside))
            if groups:
                self.features.append(nn.GroupNorm(groups, outside))
            self.features.append(nn.ReLU())
            if layer == len(filters) or not one_pool:
                self.features.append(nn.MaxPool2d(2, padding=pool_padding))
                height, width = ((side + 2 * pool_padding) // 2 for side in (height, width))
            channels = outside
        if min(height, width) < 1:
            raise ValueError("the images are too small for its convolutions")
        if feature_dropout:
            self.features.append(nn.Dropout(feature_dropout))
        widths = [channels * height * width, *hidden]
        self.dense = nn.Sequential(nn.Flatten())
        for inside, outside in pairwise(widths):
            self.dense.append(nn.Linear(inside, outside, bias))
            self.dense.append(nn.ReLU())
            if dropout:
                self.dense.append(nn.Dropout(dropout))
        self.classifier = nn.Linear(widths[-1], num_classes, bias)
        self.channels = in_order(self)
        self.head_patterns = last_layers(self, head_layers)
        if hidden:
            self.shared_patterns = last_layers(self, max(2, head_layers))
        if xavier:
            start_xavier(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.dense(self.features(x)))
