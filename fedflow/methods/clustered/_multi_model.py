"""Base of methods whose clients choose among several models of the server: the start of these models.

With ``shared`` layers, a model theta_j [D] is a common body and the head of its cluster. The models must
differ at the start, or every client always chooses the first. So they are initialized separately; a start is
redrawn if a model is the best for too few clients; several starts can be compared; or rounds of FedAvg come
first, followed by rounds in which each model is trained by a random part of the clients.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.methods.averaging._averaging import Averaging
from fedflow.methods.method import Cohort, Conditions, Initial, Message, Round, ServerState
from fedflow.methods.protocols import Clustered, Onboarding, Phased, Sampling, Serving
from fedflow.models.flat import FlatModel, Part
from fedflow.settings import option

PRETRAINING, RANDOM_ASSIGNMENT, CHOOSING = "pretraining", "random_assignment", "choosing"  # phases
REDRAWS = 20  # at most


@dataclass(frozen=True)
class MultiModelState(ServerState):
    models: Tensor  # [k, D], or heads [k, .]
    body: Tensor | None = None  # None where clusters share no layers
    starts: Tensor | None = None  # further starts [s, k, .], or None if none are left to try
    pretrained: Tensor | None = None  # [D]; None except while pretraining
    part: Tensor | None = None  # which model each client trains [N]; None except in the random assignment
    best: Tensor | None = None  # the best start so far [k, .]; None before the first comparison
    lowest: Tensor | None = None  # its loss, scalar


class MultiModel(Clustered, Onboarding, Phased, Sampling, Serving, Averaging[MultiModelState]):
    """Subclasses define how clients choose a model (`local`) and how the models change (`aggregate`)."""

    serves = "cluster"

    clusters: int = option(2, "number of models", symbol="k", ge=1, grid=(2, 3, 4), source="section 5")
    shared: str = option(
        "none",
        "lower layers that clusters share: none; averaged over the cohort; or frozen",
        choices=("none", "averaged", "frozen"),
        source="code: frozen",
    )
    own: list[str] | None = option(
        None, "names of the layers that are not shared; null = the classifier", source="authors' code"
    )
    pretraining: int = option(0, "rounds of FedAvg first", ge=0, source="authors' code for FEMNIST: 2000")
    random_assignment_rounds: int = option(
        0, "rounds after pretraining in which random clients train each model", ge=0, source="code: 20"
    )
    restarts: int = option(
        1, "starts, of which the one with the lowest loss is kept", ge=1, grid=(1, 5, 10), source="code: 10"
    )
    trial: int = option(10, "rounds of each start before the comparison", ge=1)
    min_init_share: float = option(
        0.0, "redraw unless each model is best for this share of clients", ge=0, le=1, grid=(0, 0.1, 0.35)
    )

    def validate(self) -> None:
        random = self.random_assignment_rounds
        if self.own is not None and self.shared == "none":
            raise BadInput("method.own", self.own, "null, or shared layers")
        if self.restarts > 1 and (self.shared != "none" or self.pretraining or random):
            accepted = "1 with shared, pretraining or random_assignment_rounds"
            raise BadInput("method.restarts", self.restarts, accepted)
        if self.pretraining and self.shared == "none" and not random:
            accepted = "0, or shared layers, or random_assignment_rounds >= 1"
            raise BadInput("method.pretraining", self.pretraining, accepted)

    def check(self, run: Conditions) -> None:
        rounds = run.rounds
        if self.restarts > 1 and self.restarts * self.trial > rounds:
            most = f"at most {max(1, rounds // self.trial)}: {rounds} rounds, {self.trial} for each start"
            raise BadInput("method.restarts", self.restarts, most)
        if self._before_choosing >= rounds:
            name = max("pretraining", "random_assignment_rounds", key=lambda name: getattr(self, name))
            less = f"less: clients choose after both of these phases, and the run has {rounds} rounds"
            raise BadInput(f"method.{name}", getattr(self, name), less)

    def phase(self, now: Round) -> str:
        if now.t <= self.pretraining:
            return PRETRAINING
        return RANDOM_ASSIGNMENT if now.t <= self._before_choosing else CHOOSING

    @property
    def _before_choosing(self) -> int:
        """Rounds before clients choose."""
        return self.pretraining + self.random_assignment_rounds

    def head(self, model: FlatModel) -> Part:
        """The part that is not shared."""
        if self.shared == "none":
            return model.part("*")
        return model.part(*(model.head_patterns if self.own is None else self.own))

    def setup(self, model: FlatModel, initial: Initial) -> MultiModelState:
        count = self.restarts + (REDRAWS if self.min_init_share else 0)
        drawn, body = torch.stack([initial(i) for i in range(count * self.clusters)]), None
        pretrained = initial(0) if self.pretraining else None
        if self.shared != "none":
            body, drawn = self.head(model).outside(drawn[0]), drawn[:, self.head(model).index]
        models, *others = drawn.split(self.clusters)
        return MultiModelState(models, body, stacked(others), pretrained)

    def onboarding_phases(self) -> int:
        return int(self.min_init_share > 0)

    def onboarding_broadcast(self, now: Round, phase: int, server: MultiModelState, client: int) -> Message:
        return self.choice(server) | ({} if server.starts is None else {"starts": server.starts})

    def onboarding_local(self, phase: int, client: Client) -> Update:
        """Send the losses of all models of all starts."""
        starts = [client.received["models"], *client.received.get("starts", ())]
        return client.update(losses=self.losses(client, torch.cat(starts)))

    def onboarding_aggregate(
        self, now: Round, phase: int, server: MultiModelState, cohort: Cohort
    ) -> MultiModelState:
        """Keep the first starts in which every model is the best for enough clients; ignore newcomers."""
        if cohort.newcomers:
            return server
        assert server.starts is not None, "the redraws"
        best = cohort.stack("losses").unflatten(1, (-1, self.clusters)).argmin(2)  # [N, s]
        shares = torch.stack([(best == j).double().mean(0) for j in range(self.clusters)]).amin(0)
        chosen = (shares >= self.min_init_share).nonzero()[: self.restarts, 0]
        if len(chosen) < self.restarts:
            most = float(shares.sort(descending=True).values[self.restarts - 1])
            accepted = f"at most {most:.3g}, the share after {REDRAWS} redraws"
            raise BadInput("method.min_init_share", self.min_init_share, accepted)
        models, *others = torch.cat([server.models[None], server.starts])[chosen]
        return replace(server, models=models, starts=stacked(others))

    def plan(
        self, now: Round, server: MultiModelState, chances: np.ndarray, size: int
    ) -> tuple[np.ndarray, MultiModelState]:
        """After pretraining, also draw the random parts; without them, refuse equal models."""
        cohort, server = super().plan(now, server, chances, size)
        if now.t == self.pretraining + 1:
            if self.random_assignment_rounds:
                part = torch.from_numpy(now.rng.permutation(np.arange(now.clients) % self.clusters))
                return cohort, replace(server, part=part)
            if len(server.models.unique(dim=0)) < self.clusters:
                reason = (
                    "1, as this network always starts from the same values, and equal models stay equal; "
                )
                reason += "or names in `fresh`, with `start`"
                raise BadInput("method.clusters", self.clusters, reason)
        return cohort, server

    def broadcast(self, now: Round, server: MultiModelState, client: int) -> Message:
        sent = self.broadcast_for_evaluation(now, server, client)
        if server.part is None or self.phase(now) != RANDOM_ASSIGNMENT:
            return sent
        models, j = server.models, server.part[client]
        return sent | {"models": models[j][None], "number": j.to(models.device)}

    def broadcast_for_evaluation(self, now: Round, server: MultiModelState, client: int) -> Message:
        if server.pretrained is not None and self.phase(now) == PRETRAINING:
            return {"model": server.pretrained}
        return self.choice(server)

    def choice(self, server: MultiModelState) -> Message:
        """All models, or heads and the body."""
        return {"models": server.models} | ({} if server.body is None else {"body": server.body})

    def whole(self, client: Client, models: Tensor) -> list[Tensor]:
        """All theta_j [D] from ``models`` [k, .], which may be heads."""
        if self.shared == "none":
            return list(models)
        return [self.head(client.model).join(head, client.received["body"]) for head in models]

    def losses(self, client: Client, models: Tensor) -> Tensor:
        """F_k(theta_j) of all ``models`` [k, .] on the training data, [k]."""
        return torch.stack([client.full_loss(theta) for theta in self.whole(client, models)])

    def without_updates(self, now: Round, server: MultiModelState) -> MultiModelState:
        """End the phase of this round if due; a start whose last cohort failed has an infinite loss."""
        if server.pretrained is not None and self.phase(now) == PRETRAINING:
            return self.pretrain(now, server, server.pretrained)
        return self.proceed(now, server, np.inf)

    def pretrain(self, now: Round, server: MultiModelState, w: Tensor) -> MultiModelState:
        """The state after a round of pretraining whose mean is ``w`` [D].

        After the last one, every part trains the pretrained model; without parts, heads stay as drawn.
        """
        if now.t < self.pretraining:
            return replace(server, pretrained=w)
        server = replace(server, pretrained=None)
        if self.shared != "none":
            server, w = replace(server, body=self.head(now.model).outside(w)), self.head(now.model).of(w)
        return replace(server, models=w.repeat(self.clusters, 1)) if self.random_assignment_rounds else server

    def proceed(self, now: Round, server: MultiModelState, mean_loss: float) -> MultiModelState:
        """The state after any other round: if due, without parts, or with the next or the best start.

        Starts are compared by the ``mean_loss`` of their last cohorts.
        """
        if now.t == self._before_choosing:
            server = replace(server, part=None)
        trial, rest = divmod(now.t, self.trial)
        if self.restarts == 1 or rest or trial > self.restarts:
            return server
        loss = torch.tensor(mean_loss, dtype=torch.float64)
        if server.lowest is None or loss < server.lowest:
            server = replace(server, lowest=loss, best=server.models)
        if server.starts is not None and trial < self.restarts:
            return replace(server, models=server.starts[trial - 1])
        assert server.best is not None
        return replace(server, models=server.best, starts=None, best=None, lowest=None)


def stacked(starts: list[Tensor]) -> Tensor | None:
    """``starts`` [s, k, .], or None without any."""
    return torch.stack(starts) if starts else None
