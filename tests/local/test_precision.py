"""Products in bf16: about the same steps as in float32."""

import pytest
import torch
from support import images, run
from torch import Tensor

from fedflow.data import Dataset


@pytest.mark.parametrize("network", ["mlp", "lenet5"])
def test_bf16_takes_about_the_same_steps(padded: Dataset, network: str, cohort: str) -> None:
    federation = images(padded, (10, 20), network)
    start = federation.model.init(0)

    def ended(precision: str) -> Tensor:
        training = {"lr": 0.05, "precision": precision}
        return run("fedavg", federation, cohort=cohort, rounds=1, training=training).servers[-1]["model"]

    ran = {precision: ended(precision) for precision in ("float32", "tf32", "bf16")}
    assert torch.equal(ran["tf32"], ran["float32"])  # which CPUs do not know
    moved = (ran["float32"] - start).norm()
    assert 0 < (ran["bf16"] - ran["float32"]).norm() < 0.05 * moved
    assert ran["bf16"].dtype == torch.float32
