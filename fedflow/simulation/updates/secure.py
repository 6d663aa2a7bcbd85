"""Secure aggregation, simulated: the server reads a sum of updates, and no single update.

Source: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017
(pairwise masks, and masks of clients that fail).
"""

from collections.abc import Iterable, Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput, FedflowError
from fedflow.local.wire import Size
from fedflow.methods.method import Conditions, Method
from fedflow.methods.protocols import Asynchronous, Leveled, Onboarding
from fedflow.seeding import generator
from fedflow.settings import option
from fedflow.simulation.updates.step import Changed, Incoming, Outgoing, UpdateStep, register

LAST = "as the last step that changes updates"


@register("secure", "Secure aggregation")
class Secure(UpdateStep):
    """Every client sends whole numbers that look random; masks cancel in the sum over all clients.

    Client u with weight w sends, of every vector x, round(w x 2^fraction) + sum_v s_uv PRG(u, v) modulo
    2^bits, where v are the other clients of the round, s_uv = 1 for u < v, and -1 for u > v. The server adds
    up the vectors that arrived, subtracts the masks that they share with clients that failed, whose seeds the
    others reveal in the protocol, and divides by 2^fraction and the sum of the weights. So a mean of m
    clients differs from the exact one by at most 2^-(fraction + 1) m / sum of weights, and by the rounding of
    float64. The run stops if the numbers of a client could overflow, and if what is left after the masks is
    larger than any sum: a later step has changed an update.

    Every round has new masks. As they cancel without any rounding, no result depends on them.

    A mean of a group is a sum over its members: masks that they share with others are removed, too. This
    equals the protocol within each group, and needs ``groups``, because the server then learns the group of
    every client.

    Left out, as they change no number: agreement on keys, secret shares, signatures, and the second mask of
    every client against a server that lies about failures. Weights enter as their sum only.
    """

    bits: int = option(64, "bits of an entry that is sent", ge=16, le=64)
    fraction: int = option(32, "bits of an entry after the binary point", ge=0, le=52)
    threshold: int = option(2, "least number of clients in a sum; if fewer, the run stops", symbol="t", ge=1)
    groups: bool = option(False, "let the server learn the groups of clients, and the sum of each group")

    @property
    def changes(self) -> bool:
        return False

    def check(self, method: Method, run: Conditions) -> None:
        why = ""
        if method.gathers:
            why = "needs every single update"
        elif isinstance(method, Asynchronous) and method.clients_in_flight(1):
            why = "takes updates of different rounds"
        elif isinstance(method, Onboarding) and method.onboarding_phases():
            why = "reads answers of single clients in the onboarding"
        elif isinstance(method, Leveled):
            why = "averages networks of several sizes"
        if why:
            raise self.unfit(f"without {method.name}, whose server {why}")
        if run.sampling == "easy_first":
            raise self.unfit("without run.sampling: easy_first, for which the server reads losses of clients")

    def reads(self, method: Method, what: str) -> None:
        if what == "clients" or (what == "groups" and self.groups):
            return
        verbs = {"a mean of some": "weights updates itself", "groups": "learns groups, unless groups is true"}
        does = verbs.get(what, f"reads {what} of single clients")
        raise self.unfit(f"without {method.name}, whose server {does}")

    def change(self, sent: Outgoing) -> Changed:
        masked: dict[str, Tensor] = {}
        for name, vectors in sent.update.vectors.items():
            whole, n = self._whole(sent, name), prod(vectors.shape[1:])
            masks = np.stack([self._masks(name, n, sent.round, k, sent.cohort) for k in sent.clients])
            masked[name] = self._signed(whole + torch.from_numpy(masks).view(vectors.shape).to(whole.device))
        return Changed(masked)

    def size(self, name: str, vectors: Mapping[str, Tensor], size: Size) -> Size:
        return Size(vectors[name].numel(), self.bits)

    def combine(self, got: Incoming, vectors: Tensor) -> Tensor:
        if len(got.clients) < self.threshold:
            number = f"{len(got.clients)} of {len(got.cohort)} clients are in a sum"
            raise FedflowError(f"round {got.round}: {number}, the threshold of secure is {self.threshold}")
        if vectors.dtype != torch.int64:
            raise self.unfit(LAST)
        others, n = sorted({*got.cohort} - {*got.clients}), vectors[0].numel()
        total = vectors.sum(0)
        for k in got.clients:
            left = torch.from_numpy(self._masks(got.name, n, got.round, k, others))
            total -= left.view(total.shape).to(total.device)
        total = self._signed(total)
        if (total.abs() > 2 ** (self.bits - 2)).any():
            raise self.unfit(LAST)
        return total.double() / (2.0**self.fraction * float(got.weights.sum()))

    def _whole(self, sent: Outgoing, name: str) -> Tensor:
        """A vector of every client times its weight, in whole numbers, int64 [C, ...]."""
        vectors = sent.update.vectors[name]
        if not vectors.is_floating_point():
            raise self.unfit(f"with methods whose clients send real numbers only, not {name}")
        weights = sent.update.weight.to(vectors.device).double().view(-1, *[1] * (vectors.ndim - 1))
        whole = (vectors.double() * weights * 2.0**self.fraction).round()
        most = 2.0 ** (self.bits - 2) / len(sent.cohort)
        if whole.numel() and (largest := float(whole.abs().amax())) > most:
            sizes = f"{largest / 2**self.fraction:.3g} in {name}, at most {most / 2**self.fraction:.3g} fits"
            accepted = f"more than {self.bits} bits, or fewer of them after the point ({sizes})"
            raise BadInput("run.updates", self.name, accepted)
        return whole.long()

    def _masks(self, name: str, n: int, round: int, client: int, others: Iterable[int]) -> np.ndarray:
        """The sum of the masks of a ``client`` with each of the ``others``, int64 [n], modulo 2^64."""
        total = np.zeros(n, np.int64)
        for other in others:
            if other != client:
                rng = generator(0, f"mask {name}", round, min(client, other), max(client, other))
                drawn = rng.integers(-(2**63), 2**63 - 1, n, endpoint=True)
                total += drawn if client < other else -drawn
        return total

    def _signed(self, numbers: Tensor) -> Tensor:
        """Whole numbers modulo 2^bits, from -2^(bits - 1) on."""
        return numbers << (64 - self.bits) >> (64 - self.bits)
