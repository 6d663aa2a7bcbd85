"""The cost of a round follows its cohort: no method allocates a vector for every client of the run."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import NETWORKS, prepare_run
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedflow.data import Examples
from fedflow.methods import METHODS, build_method
from fedflow.methods.protocols import Onboarding
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation

COHORT, ROUNDS = 5, 3
PER_CLIENT = 400  # bytes a round for each client: chances, sizes, assignments, ...
NAMES = [name for name in METHODS if name not in NETWORKS]


class Allocated(TorchDispatchMode):
    """Counts the bytes of everything that operations return in new memory."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {leaf.data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.data_ptr() not in given:
                self.bytes += leaf.nbytes
        return result


def federation(clients: int) -> Federation:
    """Clients of four samples each out of the same twenty."""
    noise = torch.Generator().manual_seed(0)
    train = Examples(torch.randn(20, 30, generator=noise), torch.arange(20) % 5)
    rows = [np.arange(4 * k, 4 * k + 4) % 20 for k in range(clients)]
    pools, own = [np.arange(20)], [np.array([0])] * clients
    partition = Partition.from_lists(rows, pools, own, [row[:2] for row in rows])
    model = FlatModel(partial(build, "mlp", (30,), 5, hidden=(40,)))
    return Federation(model, train, train, partition, train)


def allocated(name: str, clients: int) -> int:
    """Bytes of the last of three rounds."""
    simulation = prepare_run(
        build_method(name, {"encoder": "pixels"} if name == "flt" else {}),
        federation(clients),
        rounds=ROUNDS,
        participation=COHORT / clients,
        evaluate_every=10 * ROUNDS,
        fine_tune=False,
    )
    for t in range(1, ROUNDS):
        if t == 1:
            simulation.onboard(range(clients))
        simulation._round(t)
    with Allocated() as counted:
        simulation._round(ROUNDS)
    return counted.bytes


@pytest.mark.by_profile
@pytest.mark.parametrize("name", NAMES)
def test_a_round_costs_what_its_cohort_costs(name: str) -> None:
    few, many = (20, 100) if isinstance(build_method(name), Onboarding) else (200, 1600)
    small, large = allocated(name, few), allocated(name, many)
    assert large < 1.1 * small + PER_CLIENT * (many - few), (small, large)
