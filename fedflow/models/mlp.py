"""Dense networks on flattened images, or on features."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import Tensor, nn

from fedflow.models.binary import BinaryLinear, start_xavier


class MLP(nn.Module):
    """Dense layers of widths ``hidden`` with ReLU between; without any, logistic regression.

    784-200-10 has 159,010 parameters (rotated MNIST of IFCA, and with ``dropout`` 0.5 FLT's MLP),
    784-200-200-10 has 199,210 (FedDyn), without ``bias`` 238,800 for SuPerFed's TwoNN on 784-200-200-200-10.
    ``zeros`` starts at zero, which suits only logistic regression (FedDyn's synthetic problem, 30-5: 155);
    ``xavier`` draws the weights by Xavier's normal distribution. ``one_logit`` is for two classes: AAggFF's
    logistic regression 15-1 has 16. The head is the last ``head_layers`` dense layers: 42,000 of TwoNN's
    parameters are in its last two.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        hidden: Sequence[int] = (200,),
        bias: bool = True,
        dropout: float = 0.0,
        zeros: bool = False,
        one_logit: bool = False,
        xavier: bool = False,
        head_layers: int = 1,
    ) -> None:
        super().__init__()
        widths = [prod(input_shape), *hidden]
        self.layers = nn.Sequential(nn.Flatten())
        for inside, outside in pairwise(widths):
            self.layers.append(nn.Linear(inside, outside, bias))
            if dropout:
                self.layers.append(nn.Dropout(dropout))
            self.layers.append(nn.ReLU())
        if one_logit and num_classes != 2:
            raise ValueError("one_logit needs two classes")
        last = BinaryLinear(widths[-1], bias) if one_logit else nn.Linear(widths[-1], num_classes, bias)
        self.layers.add_module("last", last)
        self.head_patterns = last_layers(self, head_layers)
        if len(hidden) > 1:  # otherwise these are all layers
            self.shared_patterns = last_layers(self, max(2, head_layers))
        if xavier:
            start_xavier(self)
        if zeros:
            for parameter in self.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def last_layers(network: nn.Module, count: int) -> tuple[str, ...]:
    """Patterns of the parameters of the last ``count`` dense layers of a network."""
    dense = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not 1 <= count <= len(dense):
        raise ValueError(f"head_layers must be 1..{len(dense)}")
    return tuple(f"{name}.*" for name in dense[-count:])
