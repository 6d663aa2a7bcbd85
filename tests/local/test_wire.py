from typing import ClassVar

import pytest
import torch
from support import images, run
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.wire import masked, message_bytes
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import GlobalModel, Message, Round
from fedflow.methods.protocols import Pruning

KEPT = torch.arange(12) % 3 == 0


@pytest.mark.parametrize(
    ("vectors", "more", "size"),
    [
        ({"w": torch.zeros(12)}, {}, 48),
        ({"w": torch.zeros(12, dtype=torch.float64), "j": torch.tensor(1)}, {"scalars": 2}, 96 + 8 + 8),
        ({"m": KEPT}, {}, 2),  # a bit an entry
        ({"w": torch.ones(12), "m": KEPT}, {"codings": [masked({"w": "m"})]}, 4 * 4 + 2),
        ({"w": torch.ones(12)}, {"codings": [masked({"w": "m"})]}, 48),
        (
            {"w": torch.ones(12), "at": KEPT.nonzero()[:, 0].int()},
            {"codings": [masked({"w": "at"})]},
            4 * (4 + 4),
        ),
        ({}, {}, 0),
    ],
)
def test_bytes_of_a_message(vectors: dict[str, Tensor], more: dict, size: int) -> None:
    assert message_bytes(vectors, **more) == size


@pytest.mark.parametrize("cohort", ["loop", "vmap"])
def test_masked_entries_do_not_travel(digits, cohort: str) -> None:
    """Up, each client masks a different share; down, 100 entries of the model travel at their positions."""

    class Masked(Pruning, FedAvg):
        masks: ClassVar = {"model": "mask", "w": "at"}

        def broadcast(self, now: Round, server: GlobalModel, client: int) -> Message:
            return {"w": server.model, "at": torch.arange(100, dtype=torch.int32)}

        def model_for(self, client: Client) -> Tensor:
            return client.received["w"]

        def local(self, client: Client) -> Update:
            w = client.fit(start=client.received["w"])
            mask = torch.arange(len(w)) < client.samples
            return client.update(model=w * mask, mask=mask)

    federation = images(digits)
    ran = run(Masked(), federation, cohort=cohort, rounds=2)
    size, sizes = federation.model.size, federation.partition.sizes
    once = sum(4 * min(size, int(n)) + -(-size // 8) for n in sizes)
    assert ran.values("bytes_up") == [once, 2 * once]
    assert ran.values("bytes_down") == [len(sizes) * 800, 2 * len(sizes) * 800]
