"""Dense networks on flattened images, or on features."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import Tensor, nn

from fedflow.models.binary import BinaryLinear


class MLP(nn.Module):
    """Dense layers of widths ``hidden`` with ReLU between; without any, logistic regression.

    784-200-10 has 159,010 parameters (rotated MNIST of IFCA, and with ``dropout`` 0.5 FLT's MLP),
    784-200-200-10 has 199,210 (FedDyn), without ``bias`` 238,800 for SuPerFed's TwoNN on 784-200-200-200-10.
    ``zeros`` starts at zero, which suits only logistic regression (FedDyn's synthetic problem, 30-5: 155).
    ``one_logit`` is for two classes: AAggFF's logistic regression 15-1 has 16.
    """

    head_patterns = ("layers.last.*",)

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        hidden: Sequence[int] = (200,),
        bias: bool = True,
        dropout: float = 0.0,
        zeros: bool = False,
        one_logit: bool = False,
    ) -> None:
        super().__init__()
        widths = [prod(input_shape), *hidden]
        self.layers = nn.Sequential(nn.Flatten())
        for inside, outside in pairwise(widths):
            self.layers.append(nn.Linear(inside, outside, bias))
            if dropout:
                self.layers.append(nn.Dropout(dropout))
            self.layers.append(nn.ReLU())
        if len(hidden) > 1:  # otherwise these are all layers
            hidden_last = len(self.layers) - (3 if dropout else 2)
            self.shared_patterns = (f"layers.{hidden_last}.*", *self.head_patterns)
        if one_logit and num_classes != 2:
            raise ValueError("one_logit needs two classes")
        last = BinaryLinear(widths[-1], bias) if one_logit else nn.Linear(widths[-1], num_classes, bias)
        self.layers.add_module("last", last)
        if zeros:
            for parameter in self.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
