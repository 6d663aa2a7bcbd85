"""Differential privacy of clients: clipped updates, and Gaussian noise on their mean or on each of them.

Sources: McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018, Algorithm 1
(clipped updates of users, a fixed denominator, noise on the mean); Andrew et al., "Differentially Private
Learning with Adaptive Clipping", NeurIPS 2021, Algorithm 1 (``quantile``); Kasiviswanathan et al., "What Can
We Learn Privately?", FOCS 2008 (``local``).

Central: the server sees the updates and adds noise to what it computes from them. In every round, all that a
client sends is clipped to norm C as by `Clip`, vectors of one client jointly. Every mean over n of the m
clients of a cohort gets noise N(0, z^2 C^2 / n^2) per entry, independent for every vector and group, so that
the sum of the n updates has noise of z times its sensitivity C. With cohorts of random size (``run.sampling:
bernoulli``), the sum is divided by R N, the expected size, and not by m, which the guarantee keeps secret.

Neighboring runs differ in one client, whose updates are all 0 in one of them; where a cohort has a fixed
number of random clients (``uniform``), in the updates of one client, which makes the sensitivity 2 C.
Sampling lowers epsilon where nobody learns who was in a cohort: with participation below 1, ``bernoulli``
(Poisson sampling) or ``uniform`` (without replacement, for which only RDP is known). With all other samplers,
every client counts as if it took part in every round. A cohort that Bernoulli redraws because it was empty
is paid for from delta.

*Clusters*: a client is in one group, so that means of groups have the same noise for their own n. Who is in
which group is public, which a warning says, and so is n: sampling does not lower epsilon then, and such
methods need participation 1. *Onboarding* is not private, which a warning says. *Public* are also the numbers
of samples n_k, that a client fails, and without sampling that it takes part. What a run records (accuracies,
losses, norms) is not private: the guarantee is for what the server sends.

Local: the client adds noise N(0, z^2 C^2) to every entry of its clipped update. Neighbors differ in the
update of one client (sensitivity 2 C), which counts as if it took part in every round.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.metrics.epsilon import ACCOUNTANTS, Mechanism, library
from fedflow.settings import option
from fedflow.simulation.sampling import cohort_size
from fedflow.simulation.updates.clip import Clip
from fedflow.simulation.updates.step import Changed, Incoming, Outgoing, Sent, UpdateStep, register

if TYPE_CHECKING:
    from fedflow.methods.method import Conditions, Method, Round

POINTS = 20  # of the curve of epsilon, as an accountant can take a second for each
SAMPLED = {"bernoulli": "poisson", "uniform": "fixed"}


@register("privacy", "Differential privacy")
class Privacy(UpdateStep):
    """Clipping of every client's update, and Gaussian noise; epsilon is recorded as `update/privacy.epsilon`.

    Either ``noise`` or ``epsilon`` is given: ``epsilon`` finds the noise for all rounds of the run, which is
    recorded too. With ``quantile``, the clipping norm C follows this quantile of the norms: C <- C exp(-eta
    (b - quantile)), where b is the share of updates within C, with noise. This noise is part of ``noise``:
    the updates have z (1 - (z / 2 s)^2)^(-1/2) for a noise z in all and s on the count.
    """

    norm: float = option(doc="largest norm of an update; with quantile, the first", symbol="C", gt=0)
    noise: float | None = option(
        None, "standard deviation of the noise on a sum of updates, in units of norm", symbol="z", ge=0
    )
    epsilon: float | None = option(None, "find the noise for this epsilon, instead of noise", gt=0)
    delta: float | None = option(
        None, "delta of the guarantee, well below 1 / N; null with noise: 0 only", gt=0, lt=1
    )
    mode: str = option(
        "central", "the server adds noise to means, or every client (local)", choices=("central", "local")
    )
    accountant: str = option("pld", "accountant of dp-accounting", choices=ACCOUNTANTS)
    quantile: float | None = option(
        None, "the norm follows this quantile of the clients' norms", symbol="gamma", gt=0, lt=1
    )
    norm_lr: float = option(
        0.2, "step of the logarithm of the norm", symbol="eta_C", gt=0, source="Andrew et al. 2021"
    )
    count_noise: float | None = option(
        None,
        "standard deviation of the noise on the number of clients within the norm; null = m / 20",
        symbol="sigma_b",
        ge=0,
        source="Andrew et al. 2021",
    )

    def validate(self) -> None:
        if self.quantile is None:
            self.refuse_unused("without quantile", "norm_lr", "count_noise")
        if self.noise is not None and self.epsilon is not None:
            raise BadInput("run.updates.noise", self.noise, "null where epsilon is given")
        if self.noise is None and self.epsilon is None:
            raise BadInput("run.updates.noise", None, "a number >= 0, or epsilon instead")
        if self.delta is None and self.noise != 0:
            raise BadInput("run.updates.delta", None, "a number > 0, such as 1e-5; or noise: 0")
        if self.mode == "local" and self.quantile is not None:
            raise BadInput("run.updates.quantile", self.quantile, "null with mode: local")

    @property
    def changes(self) -> bool:
        return True

    def among(self, before: Sequence[UpdateStep], after: Sequence[UpdateStep]) -> None:
        if self.mode == "local":
            return
        for others, hooks, where in (
            ([*before, *after], ("combine", "meet"), "without"),
            (before, ("after",), "before"),
            (after, ("change",), "after"),
        ):
            for step in others:
                if any(_has(step, hook) for hook in hooks):
                    raise self.unfit(f"{where} {step.name}, with which its noise would not fit the updates")

    def check(self, method: "Method", run: "Conditions") -> None:
        from fedflow.methods.protocols import Asynchronous, Clustered, Cyclic, Onboarding, Pruning, Weighted

        if self.noise != 0:
            library()
        if Pruning.of(method).masks:
            raise self.unfit(f"without {method.name}, whose clients send masks")
        if run.sampling == "easy_first":
            accepted = f"another sampler with {self.name}, as this one reads losses of single clients"
            raise BadInput("run.sampling", run.sampling, accepted)
        several = isinstance(method, Cyclic) and method.cycles() > 1
        if several or (isinstance(method, Asynchronous) and method.clients_in_flight(1)):
            raise self.unfit(f"without {method.name}, whose rounds do not have one cohort each")
        notes = ["the clusters of clients"] if isinstance(method, Clustered) else []
        if isinstance(method, Onboarding) and method.onboarding_phases():
            notes.append("what clients send in the onboarding")
        if notes and run.clients is not None and self.noise != 0:
            reason = f"the guarantee does not cover {' and '.join(notes)}"
            warnings.warn(f"{self.name} with {method.name}: {reason}", stacklevel=4)
        if self.mode == "local":
            return
        if Weighted.of(method).weighs_samples():
            if not hasattr(method, "weighting"):
                raise self.unfit(f"without {method.name}, which weights clients by n_k")
            accepted = f"uniform with {self.name}, as a large weight would show a client's update"
            raise BadInput("method.weighting", "samples", accepted)
        sampling = _sampling(run)
        if sampling == "poisson" and run.training.drop_stragglers and run.training.stragglers:
            accepted = (
                f"false with {self.name} and run.sampling: bernoulli, which divides by the expected cohort"
            )
            raise BadInput("training.drop_stragglers", True, accepted)
        if sampling and (reason := _shown(method)):
            accepted = f"1 with {self.name}, as {method.name} {reason}"
            raise BadInput("run.participation", run.participation, accepted)
        if sampling == "fixed" and self.accountant == "pld" and self.noise != 0:
            instead = "run.sampling: bernoulli, or accountant: rdp"
            raise self.unfit(f"with {instead}, as no PLD of cohorts of a fixed size is known")

    def prepared(self, run: "Conditions") -> "Private":
        clients = run.clients or 1
        sampling, local = _sampling(run), self.mode == "local"
        size: float = cohort_size(run.participation, clients)
        if sampling == "poisson":
            size = run.participation * clients
        noise, sampling = self.noise, "" if local else sampling
        sensitivity = 2.0 if local or sampling == "fixed" else 1.0
        mechanism = Mechanism(self.accountant, self.delta or 1.0, clients, size, sampling, sensitivity)
        if noise != 0 and mechanism.left(run.rounds) <= 0:
            accepted = f"a larger share with {self.name}, as an empty cohort, which is redrawn, is too likely"
            raise BadInput("run.participation", run.participation, accepted)
        if noise is None:
            assert self.epsilon is not None
            noise = mechanism.noise(self.epsilon, run.rounds)
        count_noise = size / 20 if self.count_noise is None else self.count_noise
        if self.quantile is not None and noise and noise >= 2 * count_noise:
            accepted = (
                f"a number > {noise / 2:g}, half of the noise (or a larger cohort, of which it is 1/20)"
            )
            raise BadInput("run.updates.count_noise", count_noise, accepted)
        values = self.as_dict() | {"noise": noise, "count_noise": count_noise}
        return Private(**values, mechanism=mechanism)


class Private(Privacy):
    """`Privacy` in a run."""

    noise: float = option(doc="found, or given")
    count_noise: float = option(doc="found, or given")
    mechanism: Mechanism = option(doc="whose epsilon is recorded")

    def validate(self) -> None:
        """Both `epsilon` and the noise that it needs are set."""

    # On the worker

    def change(self, sent: Outgoing) -> Changed:
        local, norm = self.mode == "local", self._norm(sent.state)
        if any(not vector.is_floating_point() for vector in sent.update.vectors.values()):
            raise self.unfit("with methods whose clients send vectors of real numbers only")
        if local and sent.update.scalars:
            raise self.unfit(
                f"without methods whose clients send {', '.join(sent.update.scalars)} as scalars"
            )
        changed = Clip(norm=norm).change(sent)
        scale, deviation = self._scale(len(sent.cohort)), self.noise * norm if local else 0.0
        if scale == 1 and not deviation:
            return changed
        clipped = replace(
            sent, update=replace(sent.update, vectors={**sent.update.vectors, **changed.vectors})
        )
        differences = {name: scale * difference for name, difference in clipped.differences().items()}
        for name, difference in differences.items() if deviation else ():

            def draw(rng: np.random.Generator, size: Sequence[int] = difference.shape[1:]) -> np.ndarray:
                return rng.normal(0, deviation, size)

            differences[name] = difference + sent.drawn(name, draw, difference)
        return replace(changed, vectors=clipped.moved(differences))

    # On the server

    def after(self, got: Incoming, mean: Tensor) -> Tensor:
        if self.mode == "local":
            return mean
        members = len(got.clients)
        if len({*got.weights.tolist()}) > 1:
            raise self.unfit(f"with uniform weights, as a mean of {got.name} has others")
        if self.mechanism.sampling and members < len(got.cohort):
            part = f"{members} of {len(got.cohort)} clients in round {got.round}"
            raise self.unfit(f"with run.participation: 1, as a mean of {got.name} shows {part}")
        deviation = self._of_updates * self._norm(got.state) * self._scale(len(got.cohort)) / members
        if not deviation:
            return mean
        rng = got.rng(f"noise {min(got.clients)}")  # groups have different clients
        return mean + torch.from_numpy(rng.normal(0, deviation, tuple(mean.shape))).to(mean)

    def reads(self, method: "Method", what: str) -> None:
        from fedflow.methods.clustered._assigned import Assigned

        # means of clusters: every client is in one
        parts = isinstance(method, Assigned) and type(method).aggregate is Assigned.aggregate
        allowed = {"clients", "groups", "weights"} | ({"a mean of some"} if parts else set())
        if self.mode == "local":
            allowed |= {"vectors", "a mean of some"}
        elif self.mechanism.sampling:
            allowed = {"clients", "weights"} if self.mechanism.sampling == "fixed" else set()
        if what not in allowed:
            reads = {"a mean of some": "means of some clients", "clients": "who is in a cohort"}
            read = reads.get(what, f"{what} of single clients")
            raise self.unfit(f"without {method.name}, whose server reads {read}")

    def start(self) -> Mapping[str, Tensor]:
        adaptive = self.quantile is not None
        return {"norm": torch.tensor(self.norm, dtype=torch.float64)} if adaptive else {}

    def learn(
        self, now: "Round", state: Mapping[str, Tensor], sent: Sequence[Sent]
    ) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
        numbers: dict[str, float] = {}
        if self.noise:
            step = -(-now.rounds // POINTS)
            numbers["epsilon"] = self.mechanism.epsilon(self.noise, min(now.rounds, -(-now.t // step) * step))
        if self.epsilon is not None:
            numbers["noise"] = self.noise
        if self.quantile is None:
            return state, numbers
        norm = numbers["norm"] = self._norm(state)
        within = sum(0.5 - client.numbers["clipped"] for client in sent)  # each +- 1/2, so that absence is 0
        size = self.mechanism.cohort if self.mechanism.sampling == "poisson" else len(sent)
        share = 0.5 + (within + now.rng.normal(0, self.count_noise)) / size
        norm *= float(np.exp(-self.norm_lr * (share - self.quantile)))
        return {"norm": torch.tensor(norm, dtype=torch.float64)}, numbers

    # Values

    def _norm(self, state: Mapping[str, Tensor]) -> float:
        return float(state["norm"]) if self.quantile is not None else self.norm

    def _scale(self, cohort: int) -> float:
        """The factor that makes a mean over the cohort a sum divided by the expected size of a cohort."""
        return cohort / self.mechanism.cohort if self.mechanism.sampling == "poisson" else 1.0

    @property
    def _of_updates(self) -> float:
        """The noise on a sum of updates, in units of the norm: more if a count is published too."""
        if self.quantile is None or not self.noise:
            return self.noise
        return float(self.noise / np.sqrt(1 - (self.noise / (2 * self.count_noise)) ** 2))


def _has(step: UpdateStep, hook: str) -> bool:
    kind = Private if isinstance(step, Privacy) else type(step)
    return getattr(kind, hook) is not getattr(UpdateStep, hook)


def _sampling(run: "Conditions") -> str:
    """Return the sampling that hides who is in a cohort, or an empty text."""
    return SAMPLED.get(run.sampling, "") if run.participation < 1 else ""


def _shown(method: "Method") -> str:
    """Return the reason why a method shows who is in its cohorts, or an empty text."""
    from fedflow.methods.method import Method
    from fedflow.methods.protocols import Clustered, Leveled

    if isinstance(method, Clustered | Leveled):
        return "has groups of clients, which are public"
    if type(method).plan is not Method.plan:
        return "chooses its cohorts itself"
    return ""
