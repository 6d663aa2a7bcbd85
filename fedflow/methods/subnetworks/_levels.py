"""Base of methods whose clients hold networks of different sizes (levels), all parts of one network."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.method import Cohort, GlobalModel, Initial, Message, Method, Next, Round, S
from fedflow.methods.protocols import Leveled, Specialized
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class Whole(GlobalModel):
    """The whole network [D]; the networks of all levels are parts of it."""

    @cached_property
    def parts(self) -> dict[str, Tensor]:
        """Vectors [d] of the levels, a cache that `broadcast` fills so that clients share them."""
        return {}


class LevelMethod(Leveled, Specialized, Method[S]):
    """Clients train the network of their level."""

    serves = "level"
    example = "cnn_exit"

    failed: str = option(
        "exclude", "failed clients: left out, or counted as unchanged", choices=("exclude", "replace")
    )

    def ends(self) -> Mapping[str, float]:
        """The levels in order, each with the share of the clients at this level or below it."""
        raise NotImplementedError

    def level(self, client: int, clients: int) -> str:
        newcomer = client - clients
        # Halves, quarters, eighths: any number of newcomers has about the shares of all clients.
        quantile = client / clients if newcomer < 0 else _reversed(newcomer)
        return next(level for level, end in self.ends().items() if quantile < end)

    def positions(self, model: FlatModel, level: str) -> Tensor:
        """Positions [d] of the entries of a level's network in the whole ``model``."""
        return model.variant(**self.networks()[level]).within(model)

    def local(self, client: Client) -> Update:
        return self.sent(client, client.fit(start=client.received["model"]))

    def sent(self, client: Client, w: Tensor) -> Update:
        """The update with the model ``w`` [d]; its group is the number of the client's level."""
        return client.update(model=w, weight=1.0, group=[*self.networks()].index(client.level))

    def counts(self, model: FlatModel, level: str) -> Tensor | float:
        """1 for entries [d] of a level's network that count in the means, else 0; or 1 for all."""
        return 1.0

    def total(self, now: Round, cohort: Cohort, level: str, received: Tensor) -> tuple[Tensor, int]:
        """Sum [d] of the models of a level's clients, in float64, and their number."""
        group, lost = [*self.networks()].index(level), 0
        sent = cohort.groups.count(group)
        if self.failed == "replace":
            lost = sum(self.level(k, now.clients) == level for k in cohort.failed)
        total = lost * received.double()
        return (total + sent * cohort.mean("model", group).double() if sent else total), sent + lost


class Levels(LevelMethod[Whole]):
    """Every entry of the whole network is averaged over the clients that hold it."""

    def setup(self, model: FlatModel, initial: Initial) -> Whole:
        return Whole(initial(0))

    def broadcast(self, now: Round, server: Whole, client: int) -> Message:
        level = self.level(client, now.clients)
        if level not in server.parts:
            server.parts[level] = server.model[self.positions(now.model, level)]
        return {"model": server.parts[level]}

    def aggregate(self, now: Round, server: Whole, cohort: Cohort) -> Next[Whole]:
        w = server.model
        total, holders = (torch.zeros_like(w, dtype=torch.float64) for _ in range(2))
        for level in self.networks():
            at, counts = self.positions(now.model, level), self.counts(now.model, level)
            models, number = self.total(now, cohort, level, w[at])
            total[at] += counts * models
            holders[at] += counts * number
        return Whole(torch.where(holders > 0, (total / holders.clamp(min=1)).to(w.dtype), w)), {}


class SimpleAndComplex(LevelMethod[S]):
    """Two levels of a network with two exits: simple clients hold the part up to the first exit."""

    simple: float = option(
        0.5, "share of clients with the simple network, the first ones", ge=0, le=1, source="section 4"
    )

    complex_exits: ClassVar[str]  # of the complex network (`fedflow.models.exits`)

    def networks(self) -> Mapping[str, Mapping[str, Any]]:
        return {"simple": {"exits": "first"}, "complex": {"exits": self.complex_exits}}

    def ends(self) -> Mapping[str, float]:
        return {"simple": self.simple, "complex": 1.0}


def _reversed(number: int) -> float:
    """The reversed binary digits of ``number`` as a fraction: 0, 1/2, 1/4, 3/4, 1/8, ..."""
    return int(f"{number:b}"[::-1], 2) / (1 << number.bit_length())
