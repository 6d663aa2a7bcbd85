"""An expert: one network trained on all training samples, without clients.

Its loss on a sample measures the sample's difficulty, by which Curriculum-FL distributes samples to clients.
"""

import numpy as np
import torch

from fedflow.data.examples import Examples
from fedflow.errors import FedflowError
from fedflow.local.sgd import Trainer
from fedflow.local.training import LocalTraining
from fedflow.models.flat import FlatModel
from fedflow.seeding import generator, torch_seed


def expert_losses(model: FlatModel, train: Examples, training: LocalTraining, seed: int) -> np.ndarray:
    """The loss of every sample of ``train`` [n], float64, under ``model`` trained on all of them.

    The same bits for the same seed on one thread. Raises `FedflowError` when the training diverges.
    """
    expert = Trainer.central(model, train, training, generator(seed, "batches/expert", 1, 0))
    model.seed_noise(torch_seed(seed, "expert noise"))
    w = expert.fit(start=model.init(torch_seed(seed, "expert")))
    with torch.no_grad():
        losses = expert.losses(w)
    if not losses.isfinite().all():
        raise FedflowError(f"the expert diverged at learning rate {training.lr:g}; try a smaller one")
    return losses.double().cpu().numpy()
