"""Products in bf16: about the same steps as in float32."""

from typing import Any

import pytest
import torch
from support import images, run

from fedflow.data import Dataset


@pytest.mark.parametrize("network", ["mlp", "lenet5"])
def test_bf16_takes_about_the_same_steps(padded: Dataset, network: str, cohort: str) -> None:
    federation = images(padded, (10, 20), network)
    start = federation.model.init(0)
    ran: dict[str, Any] = {
        precision: run(
            "fedavg", federation, cohort=cohort, rounds=1, training={"lr": 0.05, "precision": precision}
        ).servers[-1]["model"]
        for precision in ("float32", "tf32", "bf16")
    }
    assert torch.equal(ran["tf32"], ran["float32"])  # CPUs have no tf32
    moved = (ran["float32"] - start).norm()
    assert 0 < (ran["bf16"] - ran["float32"]).norm() < 0.05 * moved
    assert ran["bf16"].dtype == torch.float32
