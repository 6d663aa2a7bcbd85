"""FedAdagrad: the server's steps shrink in coordinates where large mean updates have accumulated.

Source: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated
Optimization", ICLR 2021, arXiv 2003.00295, Algorithm 2.

Client: as FedAvg. Server: d = sum_k p_k w_k - w_t; m <- beta1 m + (1 - beta1) d;
v <- v + d^2; w_{t+1} = w_t + eta_s m / (sqrt(v) + tau), entry by entry.
*Reduces to* FedAvg when beta1 = v_0 = 0 and eta_s = tau -> infinity. With the default v_0 = tau^2, the step
tends to d / 2 instead.
*State*: server w, m, v; clients none. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model.
*Differs from the paper in*: weights n_k instead of 1/m (weighting: uniform gives 1/m).
*Ambiguous*: v_0 is tau^2, the smallest value that the paper allows; public code has 0.
FL-bench has beta1 = 0.9.
"""

from torch import Tensor

from fedflow.methods.averaging._fedopt import FedOpt
from fedflow.methods.registry import register
from fedflow.settings import option


@register("fedadagrad", "FedAdagrad")
class FedAdagrad(FedOpt):
    server_lr: float = option(
        0.1, "server learning rate", symbol="eta_s", gt=0, grid=(1e-3, 0.01, 0.1, 1, 10), source="Algorithm 2"
    )
    beta1: float = option(
        0.0, "decay of the first moment m", symbol="beta1", ge=0, lt=1, source="experiments: 0"
    )

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square
