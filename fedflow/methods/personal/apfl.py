"""APFL: a global FedAvg model, a personal model for every client, and their mixture, which is served.

Source: Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020, arXiv 2003.13461,
Algorithm 1, and its adaptive alpha.

Client, in every local step from the old values, with vbar = alpha_k v_k + (1 - alpha_k) w:
w <- w - eta grad F_k(w); v_k <- v_k - eta alpha_k grad F_k(vbar); in the first step of a round also
alpha_k <- clip(alpha_k - eta <v_k - w, grad F_k(vbar)>, 0, 1). Sends w. Server: as uniform FedAvg.
*Reduces to* FedAvg when alpha = 0, to Local when alpha = 1, both fixed; its global part is always FedAvg.
*State*: server w; client v_k, alpha_k. *Traffic*: 1 P down, 1 P up. *Newcomer*: v = w_t, so the global model.
*Ambiguous*: the mixture that is served has the server's current w, not the client's last one. In
SuPerFed's code, vbar has w_t in place of the client's current w (`apfl_as_published`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.optimizer import Moving
from fedflow.local.samples import Batch
from fedflow.local.trainer import Step
from fedflow.methods.averaging._averaging import weights
from fedflow.methods.method import Conditions, GlobalModel, Passes, Round
from fedflow.methods.personal._personal import TENTHS, WithFedAvg
from fedflow.methods.protocols import Mixing
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option

Ends = tuple[Moving, Moving, Tensor, Tensor]  # w, v, alpha [1], learning rate of alpha


@register("apfl", "APFL")
class APFL(Mixing, WithFedAvg):
    weighting: str = weights("uniform", "Algorithm 1: uniform")
    alpha: float = option(
        0.5, "initial share of the personal model", symbol="alpha", ge=0, le=1, grid=(0.25, 0.5, 0.75)
    )
    adaptive: bool = option(True, "clients learn their alpha by gradient descent", source="Algorithm 1: no")

    def check(self, run: Conditions) -> None:
        if self.adaptive:
            reason = "or adaptive: false, as alpha takes gradient steps of the same rate"
            run.training.need_sgd(self.name, reason)

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        return {"personal": initial, "alpha": initial.new_full((1,), self.alpha)}

    def work(self, now: Round, server: GlobalModel, epochs: float, steps: int) -> Passes:
        return Passes(2 * epochs)

    def local(self, client: Client) -> Update:
        def step(now: Ends, batch: Batch) -> tuple[Ends, Tensor]:
            w, v, alpha, lr = now
            w_next = client.descend(w, client.gradient(w.w, batch))
            g, loss, buffers = client.gradient(mixture(alpha, v.w, w.w), batch)
            v_next = client.descend(v, Step(alpha * g, loss, buffers))
            alpha = (alpha - lr * ((v.w - w.w) @ g)).clamp(0, 1)
            return (w_next, v_next, alpha, torch.zeros_like(lr)), loss

        start, alpha = client.received["model"], client.kept["alpha"]
        lr = torch.zeros_like(alpha) + (client.lr if self.adaptive else 0)
        w, v, alpha, _ = client.run_steps(
            step, (client.initial_state(start), client.initial_state(client.kept["personal"]), alpha, lr)
        )
        client.trained = self.trained_model(mixture(alpha, v.w, w.w), w.w)
        return client.update(
            model=w.w,
            weight=self.weight(client),
            keep={"personal": v.w, "alpha": alpha},
            diagnostics={"alpha": alpha[0]},
        )

    def sweep(self, client: Client) -> tuple[Sequence[float], Tensor]:
        v, w = client.kept["personal"], client.received["model"]
        return TENTHS, torch.stack([alpha * v + (1 - alpha) * w for alpha in TENTHS])

    def model_for(self, client: Client) -> Tensor:
        if self.served == "global":
            return client.received["model"]
        return mixture(client.kept["alpha"], client.kept["personal"], client.received["model"])


def mixture(alpha: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """vbar = alpha v + (1 - alpha) w, [D]"""
    return alpha * v + (1 - alpha) * w
