"""An expert: one network trained on all training samples, as if there were no clients.

How hard a sample is for it says how hard the sample is: Curriculum-FL deals samples to clients by that.
"""

import numpy as np
import torch

from fedflow.data.examples import Examples
from fedflow.errors import FedflowError
from fedflow.local.client import EVALUATION_BATCH, Client
from fedflow.local.training import LocalTraining, batches
from fedflow.models.flat import FlatModel
from fedflow.seeding import torch_seed


def expert_losses(model: FlatModel, train: Examples, training: LocalTraining, seed: int) -> np.ndarray:
    """The loss of every sample of ``train`` [n], float64, under ``model`` trained on all of them.

    The same bits for the same seed on one thread. Raises `FedflowError` when the training diverges.
    """
    everything = torch.arange(len(train), device=train.device)
    order = batches(training, len(train), training.epochs, seed, "expert", 1, 0)
    schedule = {"batches": [torch.as_tensor(positions, device=train.device) for positions in order]}
    expert = Client(model, train, training, training.lr, everything, None, schedule, {}, {})
    model.seed_noise(torch_seed(seed, "expert noise"))
    w = expert.fit(start=model.init(torch_seed(seed, "expert")))
    with torch.no_grad():
        losses = torch.cat([
            model.losses(model.outputs(w, train.inputs(rows, model.dtype)), train.targets(rows))
            for rows in everything.split(EVALUATION_BATCH)
        ])  # fmt: skip
    if not losses.isfinite().all():
        raise FedflowError(f"the expert diverged at learning rate {training.lr:g}; try a smaller one")
    return losses.double().cpu().numpy()
