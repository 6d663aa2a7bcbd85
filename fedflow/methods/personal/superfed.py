"""SuPerFed: a global and a local model per client, trained together so that all mixtures of both are good.

Source: Hahn, Jeong, Lee, "Connecting Low-Loss Subspace for Personalized Federated Learning", KDD 2022, arXiv
2109.07628; equation 2.6 and Algorithms 2.1, 2.2 of Hahn's thesis. mixing: model is SuPerFed-MM, mixing:
layer is SuPerFed-LM. MAPPER, which the thesis only discusses, is not implemented.

Client: w_f <- w_t. In rounds t > floor(L R), every local step draws lambda ~ U(0, 1), one for the model or
one per layer. With g the gradient of F_k at W(lambda) = (1 - lambda) w_f + lambda w_l, and c the cosine of
w_f and w_l (all parameters), w_f moves against (1 - lambda) g + 2 mu (w_f - w_t) + nu dc^2/dw_f and w_l
against lambda g + nu dc^2/dw_l. In earlier rounds, lambda = 0 and nu = 0: w_l stays as it is.
Sends w_f, keeps w_l. Server: as FedAvg. Serves W(lambda) of its current w, one lambda for all layers; w to a
client whose w_l is not trained yet, though the sweep has its mixtures.
*Reduces to* FedProx with mu' = 2 mu before mixing starts, so to FedAvg when mu = 0; MM = LM for one layer.
*State*: server w; client w_l, first a random initialization per client, and whether it is trained.
*Traffic*: 1 P down, 1 P up.
*Newcomer*: w_l = w_t, so the global model at every lambda.
The recorded training loss is the loss of W. Each end has its own momentum, and `training.clip_norm` limits
its gradient with penalties. The trained model (`run.keep_trained`) is W(1/2), or w_f if the global model is
served. BatchNorm statistics are mixed like parameters; both ends keep the statistics after the step, and the
cosine leaves them out.
*Differs from the authors' code in*: aggregation, which there averages only parameters named weight and resets
the others to their initial values in every round (aggregation: official); lambda, which there is the best on
the test samples (lam: oracle, but by loss; by accuracy, it is the measure ``sweep_best``); products within
the cosine, to which the code adds 1e-6 each; and initializations, which there repeat for layers of one shape.
*Ambiguous*: the proximal term is a squared norm in the paper, a sum of norms over tensors in the code (prox:
official; its gradient at 0 is 0 here). L is a round in the notation, a share of the rounds in the code. The
learning rate decays by 0.99 in the text, by 0.999 in the code (`training.lr_decay`).
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import ClassVar

import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.local.local_training import LocalTraining
from fedflow.local.optimizer import Moving
from fedflow.local.samples import Batch
from fedflow.local.trainer import Step
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Cohort, Conditions, GlobalModel, Initial, Next, Round
from fedflow.methods.personal._personal import TENTHS, Personal
from fedflow.methods.protocols import Mixing, Noisy, Phased, Selecting
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option

TINY = 1e-12  # smallest denominator

Ends = tuple[Moving, Moving]  # w_f, w_l


@dataclass(frozen=True)
class State(GlobalModel):
    initial: Tensor | None = None  # [D], to which `aggregation: official` resets; None otherwise


@register("superfed", "SuPerFed")
class SuPerFed(Mixing, Noisy, Phased, Selecting, Personal[State], FedAvg[State]):
    newcomer: ClassVar[Mapping[str, str]] = {"local": "model"}

    mixing: str = option(
        "model", "one lambda per step for the model (MM) or per layer (LM)", choices=("model", "layer")
    )
    mu: float = option(
        0.01, "weight of ||w_f - w_t||^2", symbol="mu", ge=0, grid=(0, 0.01, 0.1, 1), source="Figure 2.3"
    )
    nu: float | None = option(
        None, "weight of cos^2; null = 1 (MM), 2 (LM)", symbol="nu", ge=0, grid=(0, 1, 2, 5)
    )
    start: float | None = option(
        None, "share of rounds before mixing; null = 0.4 (MM), 0.6 (LM)", symbol="L", ge=0, lt=1
    )
    prox: str = option(
        "sq", "proximal term: the squared norm, or the sum over tensors of norms", choices=("sq", "official")
    )
    aggregation: str = option(
        "all", "averaged parameters: all, or those named weight (others reset)", choices=("all", "official")
    )
    lam: str = option(
        "validated",
        "lambda served: the best of 0, 0.1, .., 1 by held-out loss; 0.5; or the best by test loss",
        choices=("validated", "fixed", "oracle"),
    )

    def validate(self) -> None:
        super().validate()
        if self.served == "global" and self.lam != "validated":
            raise BadInput("method.lam", self.lam, "validated, its default, with served: global")

    def check(self, run: Conditions) -> None:
        rounds = run.rounds
        if not self.share or self.rounds_before(rounds):
            return
        if self.start is not None:
            accepted = f"0, or at least {1 / rounds:g}: one of {rounds} rounds"
            raise BadInput("method.start", self.start, accepted)
        reason = f"{self.share} of {rounds} round{'s'[: rounds > 1]} is less than one"
        warnings.warn(f"{self.name}: mixing starts in round 1, as {reason}", stacklevel=2)

    @property
    def share(self) -> float:
        """L, the share of the rounds before mixing starts."""
        return (0.4 if self.mixing == "model" else 0.6) if self.start is None else self.start

    def rounds_before(self, rounds: int) -> int:
        """floor(L R), the rounds before mixing starts, of the decimal L that the user wrote."""
        return int(Decimal(str(self.share)) * rounds)

    def phase(self, now: Round) -> str:
        return "mixed" if now.t > self.rounds_before(now.rounds) else "global"

    def draws(self, model: FlatModel, training: LocalTraining) -> dict[str, int]:
        return {"batches": 1 if self.mixing == "model" else model.layers}

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor | Callable[[int], Tensor]]:
        return {"local": model.init, "mixed": initial.new_zeros(1)}  # 1 once w_l is trained

    def selects(self) -> str:
        return (
            "method.lam to fixed or oracle" if self.lam == "validated" and self.served == "personal" else ""
        )

    def setup(self, model: FlatModel, initial: Initial) -> State:
        w = initial(0)
        if self.aggregation == "all":
            return State(w)
        model.part("*weight*")  # refuses a network without any
        return State(w, w)

    def local(self, client: Client) -> Update:
        model, w, mixed = client.model, client.received["model"], client.phase == "mixed"
        nu = (1 if self.mixing == "model" else 2) if self.nu is None else self.nu

        def step(ends: Ends, batch: Batch) -> tuple[Ends, Tensor]:
            now_f, now_l = ends
            w_f, w_l = now_f.w, now_l.w
            assert batch.draws is not None, "asked for by `draws`"
            lam = batch.draws if self.mixing == "model" else batch.draws[model.layer]
            g, loss, buffers = client.gradient(mixture(lam, w_f, w_l), batch)
            g_f = (1 - lam) * g + self.mu * self.proximal(model, w_f - w) + nu * orthogonal(model, w_f, w_l)
            g_l = lam * g + nu * orthogonal(model, w_l, w_f)
            next_f = client.descend(now_f, Step(g_f, loss, buffers))
            return (next_f, client.descend(now_l, Step(g_l, loss, buffers))), loss

        def step_before(now: Moving, batch: Batch) -> tuple[Moving, Tensor]:
            g, loss, buffers = client.gradient(now.w, batch)
            g = g + self.mu * self.proximal(model, now.w - w)
            return client.descend(now, Step(g, loss, buffers)), loss

        start, w_l = client.initial_state(w), client.kept["local"]
        if mixed:
            end_f, end_l = client.run_steps(step, (start, client.initial_state(w_l)))
            w_f, w_l = end_f.w, end_l.w
            client.trained = self.trained_model(mixture(0.5, w_f, w_l), w_f)
        else:
            client.trained = w_f = client.run_steps(step_before, start).w
        s, a, b = products(model, w_f, w_l)
        return client.update(
            model=w_f,
            weight=self.weight(client),
            keep={"local": w_l, "mixed": torch.ones_like(client.kept["mixed"])} if mixed else {},
            diagnostics={"cosine": s.abs() / (a * b).sqrt().clamp(min=TINY)},
        )

    def proximal(self, model: FlatModel, moved: Tensor) -> Tensor:
        """Gradient [D] of the proximal term over mu, at ``moved`` = w_f - w_t [D]."""
        moved = model.trainable(moved)
        if self.prox == "sq":
            return 2 * moved
        return torch.cat([part / part.norm().clamp(min=TINY) for part in moved.split(model.sizes)])

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        after, diagnostics = super().aggregate(now, server, cohort)
        if server.initial is None:
            return after, diagnostics
        weights = torch.where(now.model.part("*weight*").mask, after.model, server.initial)
        return replace(after, model=now.model.with_buffers(weights, after.model)), diagnostics

    def model_for(self, client: Client) -> Tensor | tuple[Tensor, Tensor | None]:
        if self.served == "global" or not client.kept["mixed"]:
            return client.received["model"]
        if self.lam == "fixed":
            return mixture(0.5, client.received["model"], client.kept["local"])
        models = self.mixtures(client)
        if self.lam == "oracle":
            return models, None
        losses = torch.stack([client.selection_loss(w) for w in models])
        return models[losses.nan_to_num(torch.inf).argmin()].clone()  # a view would keep all models in memory

    def sweep(self, client: Client) -> tuple[Sequence[float], Tensor]:
        return TENTHS, self.mixtures(client)

    def mixtures(self, client: Client) -> Tensor:
        """W(lambda) [11, D] of lambda = 0, 0.1, .. 1."""
        w, local = client.received["model"], client.kept["local"]
        return torch.stack([mixture(lam, w, local) for lam in TENTHS])


def mixture(lam: Tensor | float, w_f: Tensor, w_l: Tensor) -> Tensor:
    """W(lambda) = (1 - lambda) w_f + lambda w_l, [D]"""
    return (1 - lam) * w_f + lam * w_l


def products(model: FlatModel, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """<u, v>, ||u||^2 and ||v||^2 of the parameters of two vectors [D]."""
    u, v = u[: model.parameters], v[: model.parameters]
    return u @ v, u @ u, v @ v


def orthogonal(model: FlatModel, w: Tensor, other: Tensor) -> Tensor:
    """Gradient [D] of cos^2(w, other) in ``w``."""
    s, a, b = products(model, w, other)
    slope = 2 * s / (a * b).clamp(min=TINY)
    return slope * model.trainable(other - s / a.clamp(min=TINY) * w)
