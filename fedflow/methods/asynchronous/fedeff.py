"""FedEff: every client trains as many epochs as fit into a round, so that fast clients do not wait.

Source: "FedEff: efficient federated learning with optimal local epochs for heterogeneous clients",
Algorithm 1.

Round 0: all clients train one epoch from the common initial model, and report the times of a download
(beta_k), of an epoch (sigma_k) and of an upload (delta_k); w_1 = sum_k p_k w_k. Server: with means over all
clients, a round is expected to last ERT = ceil(mean(beta) + tau E_b mean(sigma) + mean(delta)), and client k
trains E_k = floor((ERT - beta_k - delta_k) / sigma_k) epochs in every round. Otherwise as FedAvg.
*Reduces to* FedAvg after round 0 when policy = EC, or when clients are equally fast and nothing is rounded.
*State*: server w, all times; clients none. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model.
*Differs from the paper in*: clients take part as `run.participation` says (there: all of them); a client too
slow for one epoch within the round still trains one, delaying the round (slow: clamp), or does not take part
(skip); the numbers of epochs may change between rounds (policy) and have a limit, E_max. They are not counted
as traffic; round 0 takes no simulated time. As E_k takes its place, `training.epochs` has no effect. It is
not refused, because other methods of the same settings need it.
*Ambiguous*: tau E_b is not rounded, except to the nearest number (an exact half to the even one) if all train
equally many epochs (EC, EIC). The mean does not correct for the numbers of epochs, so it is biased towards
fast clients (compare with FedNova).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.local.local_training import LocalTraining
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Cohort, Conditions, GlobalModel, Initial, Message, Round
from fedflow.methods.protocols import SAMPLERS, Onboarding, Sampling, VariableEpochs
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option

BY_CLIENT, BY_ROUND = ("UEC", "UEIC"), ("EIC", "UEIC")  # policies whose epochs depend on client, on round
ROUNDING = 1e-9  # tolerance for quotients that are whole up to rounding


@dataclass(frozen=True)
class State(GlobalModel):
    times: Tensor | None = None  # [N, 3] of a download, an epoch and an upload; None before the onboarding


@register("fedeff", "FedEff")
class FedEff(Onboarding, Sampling, VariableEpochs, FedAvg[State]):
    tau_decay: ClassVar[float] = 0.98  # factor on tau after every round, if the policy has one

    policy: str = option(
        "UEC",
        "epochs: fitted to clients (UEC), the same for all (EC), both with tau that decays by 2 % "
        "a round (UEIC, EIC), or random from 1 to E_b",
        choices=("UEC", "EC", "UEIC", "EIC", "random"),
        source="UEC; random is a baseline",
    )
    tau: float = option(
        0.5, "share of E_b that the mean client trains", symbol="tau", gt=0, le=1, grid=(0.2, 0.4, 0.8, 1)
    )
    base_epochs: int = option(5, "epochs of the mean client when tau = 1", symbol="E_b", ge=1)
    unit: float = option(1.0, "the estimated round time is rounded up to a multiple of this", gt=0)
    slow: str = option(
        "clamp", "clients too slow for an epoch train one anyway, or are left out", choices=("clamp", "skip")
    )
    most_epochs: int | None = option(None, "upper limit of epochs; null = none", symbol="E_max", ge=1)

    def validate(self) -> None:
        if self.policy not in BY_CLIENT:
            unused = ("unit", "slow", "tau") if self.policy == "random" else ("unit", "slow")
            self.refuse_unused(f"with policy: {self.policy}", *unused)

    def check(self, run: Conditions) -> None:
        training = run.training
        if training.steps is not None:
            accepted = f"null with {self.name}, which sets numbers of epochs itself"
            raise BadInput("training.steps", training.steps, accepted)

    def streams(self, training: LocalTraining) -> dict[str, int]:
        """One epoch in round 0; later rounds follow `epochs`."""
        return {"batches": 1}

    def setup(self, model: FlatModel, initial: Initial) -> State:
        return State(initial(0))

    def onboarding_broadcast(self, now: Round, phase: int, server: State, client: int) -> Message:
        return {"model": server.model}

    def onboarding_local(self, phase: int, client: Client) -> Update:
        beta, sigma, delta = client.times
        w = client.fit(start=client.received["model"])
        times = {"beta": beta, "sigma": sigma, "delta": delta}
        return client.update(model=w, scalars=times, weight=self.weight(client))

    def onboarding_aggregate(self, now: Round, phase: int, server: State, cohort: Cohort) -> State:
        """The model after round 0, and the times [N, 3] of download, epoch and upload."""
        if cohort.newcomers:
            return server
        times = np.stack([cohort.scalars(name) for name in ("beta", "sigma", "delta")], 1)
        if self.policy in BY_CLIENT and not times[:, 1].all():
            raise BadInput("run.timing", 0, f"times of an epoch > 0 with {self.name}, which divides by them")
        return State(self.average(cohort), torch.from_numpy(times))

    def plan(self, now: Round, server: State, chances: np.ndarray, size: int) -> tuple[np.ndarray, State]:
        if self.slow == "clamp" or self.policy not in BY_CLIENT:
            return super().plan(now, server, chances, size)
        fast = np.flatnonzero(self.fitted(now, server))
        if not len(fast):
            raise BadInput("method.tau", self.tau, "more: no client finishes an epoch in time")
        chosen, server = super().plan(now, server, chances[fast], min(size, len(fast)))
        return fast[chosen], server

    def samplers(self) -> tuple[str, ...]:
        return SAMPLERS[:2] if self.slow == "skip" and self.policy in BY_CLIENT else SAMPLERS

    def epochs(self, now: Round, server: State, client: int) -> int:
        if self.policy == "random":
            return int(now.rng.integers(1, self.limited(self.base_epochs), endpoint=True))
        by_client = self.policy in BY_CLIENT
        epochs = int(self.fitted(now, server)[client]) if by_client else round(self.mean_epochs(now))
        return max(1, self.limited(epochs))

    def limited(self, epochs: int) -> int:
        """``epochs``, at most E_max."""
        return epochs if self.most_epochs is None else min(epochs, self.most_epochs)

    def mean_epochs(self, now: Round) -> float:
        """E = tau E_b of this round."""
        decay = self.tau_decay ** (now.t - 1) if self.policy in BY_ROUND else 1.0
        return self.tau * decay * self.base_epochs

    def fitted(self, now: Round, server: State) -> np.ndarray:
        """E_k [N] of this round, at least 0."""
        assert server.times is not None
        times = server.times.cpu().numpy()
        return fitting(times, round_time(times, self.mean_epochs(now), self.unit)).clip(0)


def round_time(times: np.ndarray, epochs: float, unit: float = 1.0) -> float:
    """The estimated round time ERT, from the times [N, 3] of a download, an epoch and an upload."""
    return math.ceil(float(times.mean(0) @ [1, epochs, 1]) / unit - ROUNDING) * unit


def fitting(times: np.ndarray, round_time: float) -> np.ndarray:
    """Epochs [N] that fit into the round time; below 1 for clients that are too slow."""
    beta, sigma, delta = times.T
    epochs: np.ndarray = np.floor((round_time - beta - delta) / sigma + ROUNDING)
    return epochs.astype(np.int64)
