"""HeteroFL: clients hold networks of several widths, each the first channels of the next wider one.

Source: Diao, Ding, Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for
Heterogeneous Clients", ICLR 2021, arXiv 2010.01264, Algorithm 1.

Client: SGD on F_k from the first ceil(r c) of the c channels of every hidden layer, for its rate r; in
training, activations are divided by r. Server: every entry becomes the mean over the clients of the cohort
that hold it; entries that no client holds stay. The levels are a, b, c, ... from the largest rate.
*Reduces to* uniform FedAvg with one rate of 1.
*State*: server w of rate 1; clients none. *Traffic*: 1 P_level down, 1 P_level up. *Newcomer*: the network of
its level; newcomers are dealt to the levels in turns.
*Differs from the paper in*: every client trains and averages all outputs, not only the outputs of its labels;
the network has GroupNorm, which undoes the division by r, in place of BatchNorm without running statistics.
The first clients have the smallest rate.
"""

from collections.abc import Mapping
from string import ascii_lowercase
from typing import Any

from fedflow.errors import BadInput
from fedflow.methods.registry import register
from fedflow.methods.subnetworks._levels import Levels
from fedflow.settings import option


@register("heterofl", "HeteroFL")
class HeteroFL(Levels):
    rates: list[float] = option(
        doc="shares of the channels of the networks, each of them for as many clients",
        symbol="r",
        factory=lambda: [1.0, 0.5, 0.25],
        grid=([1, 0.5], [1, 0.5, 0.25, 0.125, 0.0625]),
        source="section 4",
    )

    def validate(self) -> None:
        super().validate()
        if not self.rates or not all(0 < rate <= 1 for rate in self.rates):
            raise BadInput("method.rates", self.rates, "numbers above 0 and at most 1")
        if len(set(self.rates)) < len(self.rates) or len(self.rates) > len(ascii_lowercase):
            raise BadInput("method.rates", self.rates, f"at most {len(ascii_lowercase)} different numbers")

    def networks(self) -> Mapping[str, Mapping[str, Any]]:
        by_rate = zip(ascii_lowercase, sorted(self.rates, reverse=True))
        return {level: {"width": rate, "exits": "none"} for level, rate in reversed([*by_rate])}

    def ends(self) -> Mapping[str, float]:
        levels = [*self.networks()]
        return {level: number / len(levels) for number, level in enumerate(levels, start=1)}
