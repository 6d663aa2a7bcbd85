"""The parts that all compressions share: error feedback, both directions, and traffic.

Sources: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014, and Karimireddy et al., "Error
Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019 (error feedback); Tang et al.,
"DoubleSqueeze", ICML 2019, and Gruntkowska et al., "EF21-P and Friends", ICML 2023 (down: compressed
differences to what clients hold); Philippenko and Dieuleveut, "Bidirectional compression in heterogeneous
settings" (Artemis), 2020 (clients catch up on messages that they missed).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from fedflow.local.wire import Size
from fedflow.methods.protocols import Asynchronous, Clustered, Cyclic, Leveled, Pruning
from fedflow.settings import option
from fedflow.simulation.sampling import cohort_size
from fedflow.simulation.updates.step import Changed, Outgoing, Served, Shared, UpdateStep

if TYPE_CHECKING:
    from fedflow.methods.method import Conditions, Method

UP, DOWN, BOTH = "up", "down", "both"
SEVERAL = Asynchronous, Clustered, Cyclic, Leveled, Pruning  # methods whose clients receive different vectors
Draw = Callable[[Callable[[np.random.Generator], np.ndarray], Tensor], Tensor]


class Code(NamedTuple):
    """Vectors ``decoded`` [C, n] by the receiver, and the ``entries`` [C] that cross (None: as before)."""

    decoded: Tensor
    entries: Tensor | None = None


class Compression(UpdateStep):
    """A step that sends every vector u by a shorter code, which the receiver decodes as C(u).

    Up, u is the difference between a vector and the received one, as for `Clip`; vectors without such a
    counterpart are compressed as they are, also personal models (MTL, L2GD, FedAC). With ``feedback``, a
    client sends C(u + e) and keeps e <- u + e - C(u + e); e = 0 at first.

    Down, clients hold a vector w, at first the server's x, which is sent in full. Later, C(x - w) is sent
    with ``feedback``, else C(x - x') with x' of the round before, and is added to w. The server adds
    differences that it gets to x, not to w, and its x is scored. Every client is taken to hold the same w: a
    client of a round also receives the messages that it missed (``catch_up``), or the full vector if that is
    shorter.

    Diagnostic of every client: ``lost``, the share ||u - C(u)||^2 / ||u||^2, up.
    """

    keeps: ClassVar[tuple[str, ...]] = ("error",)

    feedback: bool = option(False, "add what a message loses to the next one", source="Seide et al. 2014")
    direction: str = option(
        "up", "the messages that are compressed: to the server, to clients, or both", choices=(UP, DOWN, BOTH)
    )
    catch_up: float | None = option(
        None,
        "messages down that count for a client of a round, with those that it missed; null = N / m",
        ge=1,
    )

    def validate(self) -> None:
        if self.direction == UP:
            self.refuse_unused("with direction: up", "catch_up")

    def code(self, u: Tensor, crosses: Tensor, draw: Draw) -> Code:
        """The code of ``u`` [C, n], whose entries are 0 where ``crosses`` [C, n] is false."""
        raise NotImplementedError

    def coded(self, size: Size, n: int, width: int) -> Size:
        """The size of a vector of ``n`` numbers of ``width`` bytes, from its ``size`` without this step."""
        raise NotImplementedError

    def among(self, before: Sequence[UpdateStep], after: Sequence[UpdateStep]) -> None:
        changing = [step.name for step in after if step.changes]
        if self.direction != UP and changing:
            raise self.unfit(f"after {changing[0]}, which would change what clients hold")

    def check(self, method: "Method", run: "Conditions") -> None:
        if self.direction != UP and isinstance(method, SEVERAL):
            raise self.unfit(f"with direction: up and {method.name}, whose clients receive different vectors")

    def prepared(self, run: "Conditions") -> Self:
        if self.direction == UP or self.catch_up is not None:
            return self
        if run.clients is None or run.sampling == "bernoulli":
            return replace(self, catch_up=1 / run.participation)
        return replace(self, catch_up=run.clients / cohort_size(run.participation, run.clients))

    def change(self, sent: Outgoing) -> Changed:
        if self.direction == DOWN:
            return Changed(_added_to_own(sent, sent.update.vectors))
        updates = whole = sent.differences()
        if self.feedback:
            flat = sent.flat()
            whole = sent.parts(flat + sent.keep("error", flat))
        decoded, entries = dict[str, Tensor](), dict[str, Tensor]()
        for name, u in whole.items():
            crosses = _crossing(sent, name, u)
            code = self.code(u.where(crosses, 0).flatten(1), crosses.flatten(1), partial(sent.drawn, name))
            decoded[name] = code.decoded.view_as(u)
            if code.entries is not None:
                entries[name] = code.entries
        vectors = {  # an entry that is decoded exactly does not change by a bit
            name: moved.where(decoded[name] != updates[name], sent.update.vectors[name])
            for name, moved in sent.moved(decoded).items()
        }
        left = torch.cat([(whole[name] - decoded[name]).flatten(1) for name in whole], dim=1)
        total = torch.cat([u.flatten(1) for u in whole.values()], dim=1)
        lost = (left.double().square().sum(1) / total.double().square().sum(1)).nan_to_num()
        kept = {"error": left} if self.feedback else {}
        return Changed(_added_to_own(sent, vectors), kept, {"lost": lost}, entries)

    def size(self, name: str, vectors: Mapping[str, Tensor], size: Size) -> Size:
        vector = vectors[name]
        if self.direction == DOWN or not vector.is_floating_point():
            return size
        return self.coded(size, vector.numel(), vector.element_size())

    def serve(self, got: Shared, vector: Tensor) -> Served:
        if self.direction == UP:
            return Served(vector)
        held, size = got.state.get(f"_{got.name}"), None
        arrived = vector
        if held is not None and held.shape == vector.shape:
            held, left = held.to(vector), got.state[got.name].to(vector)
            u = (vector - held if self.feedback else vector - held - left).view(1, -1)
            code = self.code(u, torch.ones_like(u, dtype=torch.bool), partial(_drawn, got))
            decoded = code.decoded.view_as(vector)
            arrived = vector.where(decoded == vector - held, held + decoded)
            entries = vector.numel() if code.entries is None else int(code.entries)
            width = vector.element_size()
            size = self.coded(Size(entries, 8 * width), vector.numel(), width)
            size = Size(0, 0, min(ceil((self.catch_up or 1) * size.bytes), vector.nbytes))
        return Served(arrived, size, {f"_{got.name}": arrived.cpu(), got.name: (vector - arrived).cpu()})


def _added_to_own(sent: Outgoing, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The ``vectors`` as the server's own plus differences, in place of what clients hold plus these."""
    state = {name: left.to(sent.update.weight.device) for name, left in sent.state.items()}
    left = replace(sent, received=[state] * len(sent.clients))
    lefts = {name: left.reference(name) for name in vectors if state}
    return {name: v if (more := lefts.get(name)) is None else v + more for name, v in vectors.items()}


def _crossing(sent: Outgoing, name: str, like: Tensor) -> Tensor:
    """The entries of a vector that cross, bool [C, ...]."""
    mask = sent.update.vectors.get(sent.masks.get(name, ""))
    whole = torch.ones_like(like, dtype=torch.bool)
    return whole if mask is None or mask.dtype != torch.bool else mask.view_as(like)


def _drawn(got: Shared, draw: Callable[[np.random.Generator], np.ndarray], like: Tensor) -> Tensor:
    """A draw of the server, [1, ...]."""
    return torch.from_numpy(np.asarray(draw(got.rng("code"))))[None].to(like)
