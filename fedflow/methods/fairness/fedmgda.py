"""FedMGDA+: the server steps along a common descent direction of all clients, whatever their updates' norms.

Source: Hu, Shaloudegi, Zhang, Yu, "Federated Learning Meets Multi-Objective Optimization", IEEE
Transactions on Network Science and Engineering 2022, arXiv 2006.11489, Algorithm 1.

Client: as FedAvg. Server: u_k = (w_t - w_k) / ||w_t - w_k||; lambda = argmin ||sum_k lambda_k u_k||^2 over
the simplex with |lambda_k - p_k| <= eps; w_{t+1} = w_t - eta_s sum_k lambda_k u_k.
With eps = 1, d = sum_k lambda_k u_k is a descent direction for all: <u_k, d> >= ||d||^2.
*Reduces to* FedAvg when eps = 0 and normalize: false (the mean of unit updates when eps = 0); FedMGDA
is eps = 1 and normalize: false.
*State*: as FedAvg. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model.
*Ambiguous*: a client whose model did not move has u_k = 0 and keeps its lambda_k, so <u_k, d> >= ||d||^2
holds for it too: with eps = 1 the model then stays, as it is Pareto stationary. The authors' code divides by
0. The number of clients that did not move is recorded as `unmoved`. Steps are at most eta_s long, however
long the updates are, so eta_s needs tuning. Buffers are averaged with p_k.
"""

import numpy as np
import scipy
import torch

from fedflow.methods.averaging._averaging import weights
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Cohort, Conditions, GlobalModel, Next, Round
from fedflow.methods.registry import register
from fedflow.settings import option


@register("fedmgda", "FedMGDA+")
class FedMGDA(FedAvg):
    gathers = True  # the weights come from inner products of the updates

    weighting: str = weights("uniform", "Algorithm 1: uniform")
    eps: float = option(
        0.1, "largest |lambda_k - p_k|", symbol="eps", ge=0, le=1, grid=(0.1, 0.5, 1), source="grid of AAggFF"
    )
    normalize: bool = option(True, "scale every update to length 1", source="the + of FedMGDA+")

    def check(self, run: Conditions) -> None:
        super().check(run)
        run.need_means(self.name, "which weighs single updates itself")

    def aggregate(self, now: Round, server: GlobalModel, cohort: Cohort) -> Next[GlobalModel]:
        w, mean, trained = server.model, cohort.mean("model"), now.model.parameters
        u = (w - cohort.stack("model"))[:, :trained].double()  # [m, P]
        norms = u.norm(dim=1)
        unmoved = int((norms == 0).sum())
        if unmoved == len(u):
            return GlobalModel(now.model.with_buffers(w, mean)), {"unmoved": unmoved}
        u = u / norms.where(norms > 0, 1)[:, None] if self.normalize else u
        prior = cohort.weights / cohort.weights.sum()
        weights = least_norm((u @ u.T).cpu().numpy(), prior, self.eps)
        d = (torch.from_numpy(weights).to(u.device) @ u).to(w.dtype)
        stepped = torch.cat([w[:trained] - self.server_lr * d, mean[trained:]])
        return GlobalModel(stepped), {"unmoved": unmoved}


def least_norm(gram: np.ndarray, prior: np.ndarray, eps: float) -> np.ndarray:
    """argmin x' gram x over x [m] >= 0 with sum x = 1 and |x - prior| <= eps; ties: nearest to prior.

    A bounded least-squares problem, solved exactly by active sets. One heavily weighted row enforces
    sum x = 1; its target is moved (method of multipliers) until the sum is 1 up to rounding.
    """
    low, high = np.maximum(prior - eps, 0), np.minimum(prior + eps, 1)
    if not (low < high).all():
        return prior
    values, vectors = np.linalg.eigh(gram)
    values[values < 1e-13 * values[-1]] = 0  # the rounding errors of a singular matrix
    scale = np.sqrt(np.trace(gram) / len(prior))
    root, heavy, light = (vectors * np.sqrt(values)).T, 10 * scale, 1e-5 * scale
    rows = np.vstack([root, np.full_like(prior, heavy), light * np.eye(len(prior))])
    target, x = 1.0, prior
    for _ in range(10):
        goal = np.concatenate([np.zeros_like(prior), [heavy * target], light * prior])
        # SciPy stops after m steps by default, which can be before the optimum.
        x = scipy.optimize.lsq_linear(
            rows, goal, (low, high), method="bvls", tol=1e-15, max_iter=100 * len(prior)
        ).x
        if abs(1 - x.sum()) < 1e-14:
            break
        target += 1 - x.sum()
    return x
