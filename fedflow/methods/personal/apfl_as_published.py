"""APFL as in SuPerFed's code: the personal model trains next to the global model that the client received.

Source: Hahn, Jeong, Lee, "Connecting Low-Loss Subspace for Personalized Federated Learning", KDD 2022, arXiv
2109.07628; a baseline in the authors' code, github.com/vaseline555/SuPerFed, which made the numbers of APFL
in Tables 2.3 to 2.6 of Hahn's thesis. Use it to repeat these tables.

As `apfl`, except in local steps: vbar = alpha v_k + (1 - alpha) w_t, with the received w_t in place of the
client's current w; alpha is fixed; weight decay leaves w alone; and clients count by their samples.
*Reduces to* Local when alpha = 1; without weight decay, its global part is FedAvg. *State*: as APFL.
*Traffic*: 1 P down, 1 P up. *Newcomer*: v = w_t, so the global model.
*Differs from the authors' code in*: the biases, as described for `fedprox_as_published`.
"""

from typing import ClassVar

from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.optimizer import Moving
from fedflow.local.samples import Batch
from fedflow.local.trainer import Step
from fedflow.methods.averaging._averaging import weights
from fedflow.methods.personal.apfl import APFL, mixture
from fedflow.methods.registry import register
from fedflow.settings import option


@register("apfl_as_published", "APFL as published")
class APFLAsPublished(APFL):
    alpha: float = option(0.25, "share of the personal model", symbol="alpha", ge=0, le=1)
    adaptive: ClassVar[bool] = False  # type: ignore[misc]
    weighting: str = weights("samples")

    def local(self, client: Client) -> Update:
        start, alpha = client.received["model"], client.kept["alpha"]
        undone = -client.training.weight_decay or None

        def step(now: tuple[Moving, Moving], batch: Batch) -> tuple[tuple[Moving, Moving], Tensor]:
            w, v = now
            w_next = client.descend(w, client.gradient(w.w, batch), decay=undone)
            g, loss, buffers = client.gradient(mixture(alpha, v.w, start), batch)
            return (w_next, client.descend(v, Step(alpha * g, loss, buffers))), loss

        w, v = client.run_steps(
            step, (client.initial_state(start), client.initial_state(client.kept["personal"]))
        )
        client.trained = self.trained_model(mixture(alpha, v.w, w.w), w.w)
        return client.update(model=w.w, weight=self.weight(client), keep={"personal": v.w})
