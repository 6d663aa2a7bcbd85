"""Where the server keeps several models for clients to choose from: what these share, and how they start.

With ``shared`` layers a model theta_j [D] is a body, the same for all, and a head of its own. Models must
differ at first, or every client prefers the first for ever. So they are drawn one by one, and anew where some
are best for too few clients; several starts may be tried; or rounds of FedAvg come first, and then rounds in
which each model is trained by a random part of the clients.

Server state: ``models`` [k, D], or heads [k, .] and ``body``; ``round``; and while they are needed further
``starts`` [s, k, .], the ``pretrained`` model [D], every client's ``part`` [N], and the ``best`` start so far
with its loss, the ``lowest``.
"""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.methods.averaging._averaging import Averaging
from fedflow.methods.base import Cohort, Server
from fedflow.models.flat import FlatModel, Part
from fedflow.settings import option


class MultiModel(Averaging):
    """Base of these methods: they say, in `local` and `aggregate`, how clients choose and models move."""

    serves: ClassVar[str] = "cluster"

    clusters: int = option(2, "number of models", symbol="k", ge=1, grid=(2, 3, 4), source="section 5")
    shared: str = option(
        "none", "first layers that all clusters share: none; averaged over all participants; or frozen",
        choices=("none", "averaged", "frozen"), source="authors' code for FEMNIST: frozen",
    )  # fmt: skip
    own: list[str] | None = option(
        None, "name patterns of what is then not shared; nothing = the architecture's classifier",
        source="authors' code for FEMNIST: the last dense layer",
    )  # fmt: skip
    pretraining: int = option(0, "rounds of FedAvg first", ge=0, source="authors' code for FEMNIST: 2000")
    parted: int = option(
        0, "rounds, after these, in which a random part of the clients trains each model", ge=0,
        source="authors' code for FEMNIST: 20",
    )  # fmt: skip
    restarts: int = option(
        1, "starts that are tried; the one with the lowest training loss goes on", ge=1, grid=(1, 5, 10),
        source="authors' code for synthetic data: 10",
    )  # fmt: skip
    trial: int = option(10, "rounds that each of several starts is trained before they are compared", ge=1)
    min_init_share: float = option(
        0.0, "a start is drawn anew unless each model is best for such a share of all clients", ge=0, le=1,
        grid=(0, 0.1, 0.35), source="authors' code for CIFAR: 0.35 for k = 2, 0.1 for k = 4",
    )  # fmt: skip
    redraws: int = option(20, "starts that may be drawn anew", ge=1)

    def validate(self) -> None:
        if self.restarts > 1 and (self.shared != "none" or self.pretraining or self.parted):
            raise BadInput("method.restarts", self.restarts, "1 with shared, pretraining or parted")
        if self.pretraining and self.shared == "none" and not self.parted:
            raise BadInput("method.pretraining", self.pretraining, "0, or shared layers, or parted >= 1")

    def check(self, rounds: int) -> None:
        if self.restarts > 1 and self.restarts * self.trial > rounds:
            most = f"at most {max(1, rounds // self.trial)}: {rounds} rounds, {self.trial} for each start"
            raise BadInput("method.restarts", self.restarts, most)
        if self.pretraining + self.parted >= rounds:
            name = "pretraining" if self.pretraining >= self.parted else "parted"
            less = f"less: clients choose after pretraining and parted, and the run has {rounds} rounds"
            raise BadInput(f"method.{name}", getattr(self, name), less)

    def head(self, model: FlatModel) -> Part:
        """What clusters have of their own where they share the rest."""
        return model.part(*(model.head_patterns if self.own is None else self.own))

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> State:
        count = self.restarts + (self.redraws if self.min_init_share else 0)
        drawn = torch.stack([initial(i) for i in range(count * self.clusters)])
        server: Server = {"round": torch.tensor(0)}
        if self.pretraining:
            server.pretrained = initial(0)
        if self.shared != "none":
            server.body = self.head(model).outside(drawn[0])
            drawn = drawn[:, self.head(model).index]
        models, *others = drawn.split(self.clusters)
        return server | {"models": models} | ({"starts": torch.stack(others)} if others else {})

    def onboarding_phases(self) -> int:
        return int(self.min_init_share > 0)

    def onboarding_broadcast(self, now: Round, phase: int, server: State, client: int) -> Message:
        return {name: server[name] for name in ("models", "starts", "body") if name in server}

    def onboarding_local(self, phase: int, client: Client) -> Update:
        """The losses of all models of all starts."""
        starts = [client.received["models"], *client.received.get("starts", ())]
        return client.update(losses=self.losses(client, torch.cat(starts)))

    def onboarding_aggregate(self, now: Round, phase: int, server: State, cohort: Cohort) -> State:
        """Keep the first starts in which no model is the best for too few clients; ask no newcomers."""
        if cohort.newcomers:
            return server
        best = cohort.stack("losses").unflatten(1, (-1, self.clusters)).argmin(2)  # [N, s]
        shares = torch.stack([(best == j).double().mean(0) for j in range(self.clusters)]).amin(0)
        found = (shares >= self.min_init_share).nonzero()[: self.restarts, 0]
        if len(found) < self.restarts:
            most = f"at most {float(shares.sort(descending=True).values[self.restarts - 1]):.3g}"
            raise BadInput("method.min_init_share", self.min_init_share, f"{most}, or more redraws")
        models, *others = torch.cat([server.models[None], server.starts])[found]
        after = {name: value for name, value in server.items() if name != "starts"} | {"models": models}
        return after | ({"starts": torch.stack(others)} if others else {})

    def plan(self, now: Round, server: State, chances: np.ndarray, size: int) -> tuple[np.ndarray, State]:
        """Also draw the parts, when it is time to; or see to it that models differ."""
        cohort = super().plan(rng, chances, size, server)
        if int(server.round) == self.pretraining:
            if self.parted:
                server.part = torch.from_numpy(rng.permutation(np.arange(len(chances)) % self.clusters))
            elif len(server.models.unique(dim=0)) < self.clusters:
                reason = "1, as this network always starts from the same values, and equal models stay so"
                raise BadInput("method.clusters", self.clusters, reason)
        return cohort

    def broadcast(self, now: Round, server: State, client: int) -> Message:
        if "part" not in server:
            return self.broadcast_for_evaluation(server, client)
        models, j = server.models, server.part[client]
        sent = self.broadcast_for_evaluation(server, client)
        return sent | {"models": models[j][None], "first": j.to(models.device)}

    def broadcast_for_evaluation(self, now: Round, server: State, client: int) -> Message:
        names = ("pretrained",) if "pretrained" in server else ("models", "body")
        return {name: server[name] for name in names if name in server}

    def whole(self, client: Client, models: Tensor) -> list[Tensor]:
        """theta_j [D] of all ``models`` [k, .], which may be heads."""
        if self.shared == "none":
            return list(models)
        return [self.head(client.model).join(head, client.received["body"]) for head in models]

    def losses(self, client: Client, models: Tensor) -> Tensor:
        """F_k(theta_j) on the training data of all ``models`` [k, .], [k]."""
        return torch.stack([client.full_loss(theta) for theta in self.whole(client, models)])

    def begin(self, server: Server, model: FlatModel) -> Server:
        """The models after pretraining: the pretrained one for each part to train, or heads as drawn."""
        after, w = dict(server), server.pretrained
        del after["pretrained"]
        if self.shared != "none":
            after["body"], w = self.head(model).outside(w), self.head(model).of(w)
        return after | ({"models": w.repeat(self.clusters, 1)} if self.parted else {})

    def proceed(self, server: Server, cohort: Cohort) -> Server:
        """After a round: no parts any more, the next start, or after the last one the best of all."""
        now = int(server.round)
        if now == self.pretraining + self.parted:
            server = {name: value for name, value in server.items() if name != "part"}
        trial, over = divmod(now, self.trial)
        if self.restarts == 1 or over or trial > self.restarts:
            return server
        loss = torch.tensor(cohort.scalars("loss").mean())
        if trial == 1 or loss < server.lowest:
            server |= {"lowest": loss, "best": server.models}
        if trial < self.restarts:
            return server | {"models": server.starts[trial - 1]}
        return {"round": server.round, "models": server.best}
