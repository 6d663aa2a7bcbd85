"""Shared parts of aggregation rules, which replace the mean of the vectors [m, n] of m clients.

Rules compute in float64 on chunks of coordinates, and sum exactly: rules that leave nobody out give the bits
of the mean with equal weights. Every vector that a method averages is combined alone, and in every cluster.
"""

import math
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedflow.settings import option
from fedflow.simulation.exact import ExactSum
from fedflow.simulation.sampling import cohort_size
from fedflow.simulation.updates.step import Incoming, UpdateStep

if TYPE_CHECKING:
    from fedflow.methods.method import Conditions, Method

NUMBERS = 1 << 22  # of a chunk
LARGE = 1 << 30  # bytes of updates of which a run warns


class WholeUpdates(UpdateStep):
    """A step that looks at all entries of updates."""

    def check(self, method: "Method", run: "Conditions") -> None:
        from fedflow.methods.protocols import Pruning  # plug-ins import steps while methods are imported

        if Pruning.of(method).masks:
            raise self.unfit(f"without {method.name}, whose clients send vectors in part")


class Rule(WholeUpdates):
    """A rule in place of the mean."""

    def combine(self, got: Incoming, vectors: Tensor) -> Tensor:
        warn_of_memory(self, vectors)
        rows = vectors if vectors.is_floating_point() else vectors.float()
        return self.robust(got, rows.reshape(len(rows), -1)).view_as(rows[0])

    def robust(self, got: Incoming, vectors: Tensor) -> Tensor:
        """The vector [n] in place of the mean of the ``vectors`` [m, n]."""
        raise NotImplementedError


class CountingRule(Rule):
    """A rule for at most f attackers among m clients.

    f is the share ``attackers`` of m, rounded up. A run is refused unless its cohorts are large enough for
    the rule. If fewer clients are averaged in a round, as in small clusters, f is the largest number that the
    rule is defined for, and without such a number, the coordinate-wise median replaces the rule.
    """

    needs: ClassVar[tuple[int, int]]  # (a, b): the rule is defined for m >= a f + b

    attackers: float = option(0.2, "largest share of attackers", symbol="f / m", ge=0, lt=0.5)

    def number(self, clients: int) -> int:
        """f among ``clients`` clients."""
        return math.ceil(self.attackers * clients - 1e-9)

    def check(self, method: "Method", run: "Conditions") -> None:
        super().check(method, run)
        if run.clients is None:
            return
        clients, (times, more) = cohort_size(run.participation, run.clients), self.needs
        clients -= run.training.dropped(clients)
        f = self.number(clients)
        if clients < times * f + more:
            needed = f"{times} f + {more} clients in a cohort; it has {clients}, of which f = {f} attack"
            raise self.unfit(f"with at least {needed}")

    def robust(self, got: Incoming, vectors: Tensor) -> Tensor:
        times, more = self.needs
        if len(vectors) < more:
            return by_chunk(vectors, middle)
        most = (len(vectors) - more) // times
        return self.against(min(self.number(len(vectors)), most), vectors)

    def against(self, f: int, vectors: Tensor) -> Tensor:
        """The vector [n] in place of the mean of ``vectors`` [m, n], ``f`` of which may be hostile."""
        raise NotImplementedError


def warn_of_memory(step: UpdateStep, vectors: Iterable[Tensor]) -> None:
    """Warn once if the server holds many bytes of updates."""
    if (size := sum(vector.nbytes for vector in vectors)) > LARGE:
        warnings.warn(f"run.updates: {step.name} holds {size / 2**30:.1f} GiB of updates", stacklevel=2)


def by_chunk(vectors: Tensor, rule: Callable[[Tensor], Tensor]) -> Tensor:
    """The results [n] of a ``rule`` from [m, c] to [c], chunk by chunk."""
    return torch.cat([rule(part) for part in vectors.split(max(1, NUMBERS // len(vectors)), dim=1)])


def averaged(vectors: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean [n] of ``vectors`` [m, n], by default with equal weights."""
    total = ExactSum()
    total.add_rows(vectors.contiguous(), [1.0] * len(vectors) if weights is None else weights.tolist())
    return total.mean(vectors.dtype)


def middle(vectors: Tensor) -> Tensor:
    """The coordinate-wise median [c] of ``vectors`` [m, c]; of an even number, the mean of the middle two."""
    ordered, half = vectors.double().sort(dim=0).values, len(vectors) // 2
    return ((ordered[(len(vectors) - 1) // 2] + ordered[half]) / 2).to(vectors.dtype)


def distances(vectors: Tensor) -> Tensor:
    """The squared distances [m, m] of ``vectors`` [m, n], float64, by Gram products.

    Vectors are centered at their median, because products lose the digits of small distances far from 0.
    """
    products = torch.zeros(len(vectors), len(vectors), dtype=torch.float64, device=vectors.device)
    for part in vectors.split(max(1, NUMBERS // len(vectors)), dim=1):
        rows = part.double()
        rows = rows - rows.median(dim=0).values
        products += rows @ rows.T
    squares = products.diagonal()
    return (squares[:, None] + squares - 2 * products).clamp(min=0)
