"""Real targets and sequences of targets have no labels that a scheme could look at."""

import numpy as np
import pytest
import torch
from dealing import make
from support import refused

from fedflow.data import DataColumn, Dataset
from fedflow.errors import FedflowError
from fedflow.partition import Samples

USERS = DataColumn(np.arange(60) // 10, np.arange(12) // 2)


def samples(y: np.ndarray, test: np.ndarray) -> Samples:
    no_inputs, y, test = torch.empty(0), torch.as_tensor(y), torch.as_tensor(test)
    return Samples.of(Dataset("d", no_inputs, y, no_inputs, test, (), (), (), "", {"user": USERS}))


REAL = samples(np.linspace(-3, -1, 60), np.linspace(-3, -1, 12))
SEQUENCES = samples(np.ones((60, 4), np.int64), np.ones((12, 4), np.int64))


@pytest.mark.parametrize("targets", [REAL, SEQUENCES], ids=["real", "sequences"])
def test_users_and_equal_shares_need_no_labels(targets):
    users = make(targets, "natural")
    assert users.sizes.tolist() == [10] * 6 and [users.test(k).tolist() for k in (0, 5)] == [[0, 1], [10, 11]]
    shares = make(targets, "iid", clients=4)
    assert shares.sizes.tolist() == [15] * 4
    assert all(shares.test(k).tolist() == list(range(12)) for k in range(4))
    held = make(targets, "iid", clients=4, holdout=0.2)
    assert held.sizes.tolist() == [12] * 4 and len(held.test(3)) == 3


def test_a_scheme_by_label_refuses_real_targets_in_one_line():
    for scheme, more in ("label_skew", {"fraction": 0.5}), ("natural", {"label_noise": {"ratio": 0.1}}):
        with refused("numbers, not classes; choose a scheme", FedflowError):
            make(REAL, scheme, clients=4, **more)


def test_label_noise_refuses_sequences():
    with refused(r"partition.label_noise: .* expected null, without classes", FedflowError):
        make(SEQUENCES, "natural", label_noise={"ratio": 0.1})
