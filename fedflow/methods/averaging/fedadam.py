"""FedAdam: the server treats the mean update as a gradient and takes an Adam step.

Source: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated
Optimization", ICLR 2021, arXiv 2003.00295, Algorithm 2.

Client: as FedAvg. Server: d = sum_k p_k w_k - w_t; m <- beta1 m + (1 - beta1) d;
v <- beta2 v + (1 - beta2) d^2; w_{t+1} = w_t + eta_s m / (sqrt(v) + tau), entry by entry.
*Reduces to* FedAvg when beta1 = v_0 = 0 and eta_s = tau -> infinity. With the default v_0 = tau^2, the step
of round t tends to d / (1 + beta2^(t/2)) instead.
*State*: server w, m, v; clients none. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model.
*Differs from the paper in*: weights n_k instead of 1/m (weighting: uniform gives 1/m). As in
the paper, there is no bias correction; Flower has one.
*Ambiguous*: v_0 is tau^2, the smallest value that the paper allows; public code has 0.
FL-bench has beta2 = 0.999.
"""

from torch import Tensor

from fedflow.methods.averaging._fedopt import FedOpt
from fedflow.methods.registry import register
from fedflow.settings import option


@register("fedadam", "FedAdam")
class FedAdam(FedOpt):
    beta2: float = option(
        0.99, "decay of the second moment v", symbol="beta2", ge=0, lt=1, source="experiments: 0.99"
    )

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square
