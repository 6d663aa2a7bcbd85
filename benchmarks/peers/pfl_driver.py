"""pfl-research: ``SimulatedBackend`` with ``FederatedAveraging`` of a ``PyTorchModel``."""

import numpy as np
import torch
import torch.distributed as dist
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers.work import BATCH, COHORT, LR, SEED, Laps, Network, drive, images, network, place


class Model(Network):
    """The network with the two functions that pfl asks for."""

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Weighted]:
        self.eval()
        return {"loss": Weighted(F.cross_entropy(self(x), y, reduction="sum").item(), len(y))}


class Timed(TrainingProcessCallback):
    """Notes when each central iteration ends."""

    def __init__(self, laps: Laps) -> None:
        self.laps = laps

    def lap(self) -> None:
        """Batches are those of all processes (`pfl_processes`)."""
        trained = torch.tensor(Network.steps)
        if dist.is_initialized():
            dist.all_reduce(trained)
        self.laps.lap(int(trained))

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.lap()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.lap()
        return False, Metrics()


def run(clients: int, rounds: int, laps: Laps) -> None:
    np.random.seed(SEED)  # noqa: NPY002 - pfl draws its clients from the global generator
    x, y = images()

    def dataset(k: int) -> PyTorchTensorDataset:
        return PyTorchTensorDataset((x[place(k)], y[place(k)]), user_id=str(k))

    users = FederatedDataset(dataset, get_user_sampler("random", list(range(clients))))
    module = Model()
    module.load_state_dict(network().state_dict())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        # Iteration 0 is always evaluated: it is the warm-up.
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=COHORT,
            val_cohort_size=None,
        ),
        SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
        callbacks=[Timed(laps)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    drive(run, "pfl")
