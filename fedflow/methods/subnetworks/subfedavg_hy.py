"""Sub-FedAvg (Hy): clients prune channels of convolutions, and single weights of dense layers.

Source: chapter 4 of Vahidian's thesis, Algorithm 11; Vahidian, Morafah, Lin, "Personalized Federated Learning
by Structured and Unstructured Pruning under Data Heterogeneity", ICDCSW 2021, arXiv 2105.00562.

Client: as Sub-FedAvg (Un), but only weights of dense layers are pruned one by one, at the rate r_fc. Then it
chooses channels, after the first and after the last epoch: in each layer, the channels whose |gamma| exceeds
the value at position int(r_s n), from 0, of its n channels in ascending order. A layer that would fall below
its floor stays as it is. If the two choices are at least eps_s apart (share of channels that differ), and the
network without the other channels has an accuracy of at least Acc_th, these are removed: their filters and
norms, and the weights that read them. l1 = s adds s sign(gamma) to the gradient.
Server: as Sub-FedAvg (Un). Clients do not load the averaged running statistics but keep their own.
Serves the client's last model.
*Reduces to* FedAvg with weighting: uniform and running statistics of each client when r_fc = 0 and floors are
the widths of the layers. r_fc = 0 alone: only channels are pruned (structured).
*State*: server w; client w_k, m_k. *Traffic*: 1 P down, 1 P and the mask up. Of P, only kept entries travel
up, 4 bytes each, and the mask has one bit per entry, also for those that are never pruned.
*Newcomer*: the global model, unpruned, with the averaged statistics, as every client that never took part.
With r_s = 0.45 and floors of half the width, each layer loses half of its channels at once, and then no more:
42.0 % of LeNet-5, which do not count towards p_us before they go. p_us ends the pruning of dense layers only.
Once it is closer than r_fc, the rate is (p_us - pruned) / (1 - pruned), less 5 % if that is above 16 %.
Channels need a norm that treats each by itself: BatchNorm, or GroupNorm with a group per channel, which
cohorts under vmap can share. `load_model(..., compact=True)` is the network without the removed channels.
*Differs from the authors' code in*: what Sub-FedAvg (Un) differs in; the rate of the last step, which can be
0 here and is at least 0.01 % there (of LeNet-5, at most one weight differs at the end); pruned shares, where
biases of dense layers are kept (an unpruned LeNet-5 counts as 0.345 % pruned there); statistics before a
client's first round (there mean 0 and variance 1); PyTorch's start (there gamma = 0.5, and dense weights of
variance 0.0001).
*Ambiguous*: eps_us is 0.05 in the text, as eps_s; 5e-4 here, as in the code, where eps_s is 0.01. A swap of
two of 22 channels is a distance of 0.09, so that 0.01 and 0.05 are the same for channels.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.local.samples import Batch
from fedflow.methods.method import GlobalModel, Initial
from fedflow.methods.protocols import Published, Specialized
from fedflow.methods.registry import register
from fedflow.methods.subnetworks._pruned import Pruned, Trained
from fedflow.metrics.cost import exchanged_bytes
from fedflow.models.channels import expand, kept_channels
from fedflow.models.flat import FlatModel
from fedflow.settings import Words, option

NETWORKS = (
    "lenet5_bn, cnn_mnist_bn, m5, cnn with batch_norm: true, or with GroupNorm of one group per channel; "
    "or method.channel_rate: 0"
)
NEAR, LESS = 0.16, 0.05  # rates of the last step above NEAR are lowered by LESS


@register("subfedavg_hy", "Sub-FedAvg (Hy)")
class SubFedAvgHy(Specialized, Published, Pruned):
    example = "lenet5_bn"
    never: ClassVar[Mapping[str, str]] = {
        "threshold": "no client prunes",
        "distance": "no dense layer is pruned",
        "channel_distance": "no channel is removed",
    }
    off: ClassVar[str] = "method.target: 0 and method.channel_rate: 0"

    rate: float = option(
        0.1, "share of a layer's kept weights that a step drops", symbol="r_fc", ge=0, lt=1, grid=(0.05, 0.1)
    )
    target: float = option(
        0.5,
        "share of all parameters at which the pruning of dense layers ends; 0 = only channels",
        symbol="p_us",
        ge=0,
        lt=1,
        grid=(0.5, 0.7, 0.9),
        source="section 4.3",
    )
    distance: float = option(
        5e-4, "least distance of the two masks; above 1 = only channels", symbol="eps_us", ge=0, source="code"
    )
    channel_rate: float = option(
        0.45, "position of the largest |gamma| that goes; 0 = none", symbol="r_s", ge=0, lt=1
    )
    channel_distance: float = option(
        0.05, "least distance of the two choices; above 1 = no removal", symbol="eps_s", ge=0, source="text"
    )
    floors: list[int] | None = option(
        None, "least channels by layer; null = half the width, rounded up", ge=1, source="code: 3, 8"
    )
    l1: float = option(
        0.0, "weight of |gamma| in the loss", symbol="s", ge=0, grid=(0, 1e-4), source="network slimming"
    )

    def gates(self) -> int:
        return int(self.rate > 0 and self.target > 0) + int(self.channel_rate > 0)

    def prunable(self, model: FlatModel) -> Sequence[str]:
        shapes, convolutions = dict(zip(model.names, model.shapes)), {layer.conv for layer in model.channels}
        return [
            name
            for name in model.weights
            if len(shapes[name]) == 2 and name.removesuffix(".weight") not in convolutions
        ]

    def validate(self) -> None:
        super().validate()
        if self.floors is not None and not self.channel_rate:
            raise BadInput("method.floors", self.floors, "null with channel_rate: 0")

    def setup(self, model: FlatModel, initial: Initial) -> GlobalModel:
        if self.l1 and not model.channels:
            accepted = f"0, as {Words(model.title)} has no channels that {self.name} can remove"
            raise BadInput("method.l1", self.l1, accepted)
        if self.channel_rate:
            self._floors(model)
        return super().setup(model, initial)

    def local(self, client: Client) -> Update:
        mask, model = client.kept["mask"], client.model
        gammas = [model.slices[f"{layer.norm}.weight"] for layer in model.channels]

        def loss(w: Tensor, batch: Batch) -> Tensor:
            return client.loss(w, batch) + self.l1 * sum(w[gamma].abs().sum() for gamma in gammas)

        start = model.with_buffers(client.received["model"], client.kept["model"])
        trained = self.train(client, start, mask, loss if self.l1 else None)
        dense: dict[str, Tensor] = {}
        channels: dict[str, Tensor] = {}
        if self.rate and self.target:
            mask, dense = self.prune(client, trained, mask)
        if self.channel_rate:
            mask, channels = self._prune_channels(client, trained, mask)
        # The `gate` of dense layers takes precedence.
        return self.send(client, trained.last, mask, channels | dense | self._shares(model, mask))

    def next_rate(self, pruned: Tensor) -> Tensor:
        left = self.target - pruned
        last = left / (1 - pruned)
        last = torch.where(last > NEAR, last - LESS, last).clamp(min=0)
        return torch.where(left < self.rate, last, torch.full_like(last, self.rate))

    def published_bytes(self, model: FlatModel, rounds: int, cohort: int) -> float:
        """Bytes with convolutions at their floors, and p_us of the dense parameters pruned.

        The source has no formula; its MB (MNIST, EMNIST) are within 0.5 %, its GB (CIFAR) within 3 %.
        """
        q = self.target if self.rate else 0.0
        left = kept_channels(model, torch.ones_like(model.outside_norms))
        for layer, floor in zip(left.values(), self._floors(model) if self.channel_rate else ()):
            layer[floor:] = False
        filters = model.part(*(f"{conv}.*" for conv in left)).mask
        dense = int((model.outside_norms & ~filters).sum())
        kept = int((expand(model, left) & filters).sum()) + dense * (1 - q)
        return exchanged_bytes(rounds * cohort, int(model.outside_norms.sum()), kept, bits=dense * q)

    def _prune_channels(
        self, client: Client, trained: Trained, mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The mask [D] without the removed channels, or ``mask`` if none are removed; and diagnostics."""
        model, before = client.model, kept_channels(client.model, mask)
        first, last = (self._ranked(model, w, before) for w in trained)
        differ = torch.cat([first[conv] != last[conv] for conv in before])
        moved = differ.sum().double() / torch.cat([*before.values()]).sum()
        fewer = mask & expand(model, last)
        accuracy = self.accuracy(client, trained.last.masked_fill(~fewer, 0))
        due = (accuracy >= self.threshold) & (moved >= self.channel_distance)
        diagnostics = {"distance_channels": moved, "gate_channels": accuracy, "gate": accuracy}
        return fewer.where(due, mask), diagnostics

    def _ranked(self, model: FlatModel, w: Tensor, before: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The channels ``before`` that a pruning step keeps, by the |gamma| of ``w`` [D]."""
        chosen = {}
        for layer, floor in zip(model.channels, self._floors(model), strict=True):
            kept = before[layer.conv]
            gamma, count = w[model.slices[f"{layer.norm}.weight"]].abs(), kept.sum()
            # 9, not 8, if the product is 9 - 1e-16.
            position = (count.double() * self.channel_rate + 1e-9).long()
            limit = gamma.masked_fill(~kept, torch.inf).sort().values.gather(0, position[None])
            above = kept & (gamma > limit)
            chosen[layer.conv] = above.where((above.sum() >= floor) & (count > floor), kept)
        return chosen

    def _floors(self, model: FlatModel) -> list[int]:
        """Least channels of each layer; `BadInput` if the network has no or fewer channels."""
        if not model.channels:
            accepted = f"a network whose channels {self.name} can remove: {NETWORKS}"
            raise BadInput("model.name", Words(model.title), accepted)
        widths = [model.slices[f"{layer.norm}.weight"] for layer in model.channels]
        most = [gamma.stop - gamma.start for gamma in widths]
        if self.floors is None:
            return [(width + 1) // 2 for width in most]
        if len(self.floors) != len(most) or any(floor > width for floor, width in zip(self.floors, most)):
            raise BadInput("method.floors", self.floors, f"null, or numbers from 1 to {most}, one per layer")
        return self.floors

    def _shares(self, model: FlatModel, mask: Tensor) -> dict[str, Tensor]:
        """The pruned shares of all channels, and of the weights of dense layers."""
        kept = {
            "pruned_channels": [*kept_channels(model, mask).values()],
            "pruned_dense": [mask[model.slices[name]] for name in self.prunable(model)],
        }
        return {name: (~torch.cat(masks)).double().mean() for name, masks in kept.items() if masks}
