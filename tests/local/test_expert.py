import numpy as np
import pytest
import torch
from support import images
from torch import nn

from fedflow.data import Dataset, Examples
from fedflow.errors import FedflowError
from fedflow.local.expert import expert_losses
from fedflow.local.training import LocalTraining
from fedflow.simulation.federation import Federation

TRAINING = LocalTraining(epochs=3, batch_size=64, lr=0.1, momentum=0.9)


@pytest.fixture(scope="module")
def federation(digits: Dataset) -> Federation:
    return images(digits)


def test_every_sample_has_the_cross_entropy_of_a_trained_network(federation: Federation) -> None:
    losses = expert_losses(federation.model, federation.train, TRAINING, seed=0)
    assert losses.shape == (len(federation.train),) and losses.dtype == np.float64
    assert 0 < losses.mean() < 0.5 < np.log(10)  # better than guessing
    assert (losses >= 0).all()
    again, other = (expert_losses(federation.model, federation.train, TRAINING, seed) for seed in (0, 1))
    assert np.array_equal(losses, again) and not np.array_equal(losses, other)


def test_training_is_plain_sgd_on_all_samples(federation: Federation) -> None:
    """One step with all samples at once, against PyTorch's own optimiser."""
    once = LocalTraining(epochs=1, batch_size=0, lr=0.5, weight_decay=0.01)
    starts: list[torch.Tensor] = []
    model, train = federation.model, federation.train
    init = model.init

    def remember(seed: int) -> torch.Tensor:
        starts.append(init(seed))
        return starts[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "init", remember)
        losses = expert_losses(model, train, once, seed=3)
    module = model.to_module(starts[0]).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5, weight_decay=0.01)
    nn.functional.cross_entropy(module(train.x), train.y).backward()
    optimiser.step()
    expected = nn.functional.cross_entropy(module(train.x), train.y, reduction="none")
    assert losses == pytest.approx(expected.detach().numpy(), abs=1e-5)


def test_a_diverging_expert_is_refused_in_one_line(federation: Federation) -> None:
    huge = Examples(federation.train.x * 1e20, federation.train.y)
    with pytest.raises(FedflowError, match=r"the expert diverged at learning rate 0.1; try a smaller one"):
        expert_losses(federation.model, huge, TRAINING, seed=0)
