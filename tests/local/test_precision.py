"""Products in bf16: about the steps of float32. Products in tf32: in gradients of local steps only."""

import pytest
import torch
from support import images, one_client, run
from torch import Tensor

from fedflow.data import Dataset
from fedflow.local.extensions.adaptation import Adaptation
from fedflow.local.local_training import LocalTraining
from fedflow.local.samples import Batch
from fedflow.models.flat import FlatModel
from fedflow.procedures.job import ProcedureJob
from fedflow.procedures.toys import Intervals


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


def switches() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(("precision", "inside"), [("tf32", (True, True)), ("float32", (False, False))])
def test_tf32_is_on_in_gradients_of_local_steps_only(digits: Dataset, precision: str, inside: tuple) -> None:
    """The switches exist without a GPU, too."""
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = True, False  # PyTorch's defaults
    client = one_client(images(digits), 3, LocalTraining(batch_size=5, precision=precision))
    assert switches() == (False, False) and torch.backends.cudnn.deterministic
    seen: list[tuple[bool, bool]] = []

    def objective(w: Tensor, batch: Batch) -> Tensor:
        seen.append(switches())
        return client.loss(w, batch)

    def failing(w: Tensor, batch: Batch) -> Tensor:
        raise KeyError

    w = client.fit(objective, start=client.model.init(0))
    assert set(seen) == {inside} and switches() == (False, False)
    with pytest.raises(KeyError):
        client.fit(failing, start=w)
    assert switches() == (False, False)


def test_a_procedure_without_clients_is_in_float32() -> None:
    torch.backends.cudnn.allow_tf32 = True
    ProcedureJob("here", Intervals(restarts=1), seed=0).open()
    assert switches() == (False, False)


def test_adaptation_in_scores_is_in_float32(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    client = one_client(images(digits), 3, LocalTraining(batch_size=5, precision="tf32"))
    seen: list[tuple[bool, bool]] = []
    outputs = FlatModel.outputs

    def spy(model: FlatModel, w: Tensor, x: Tensor, real: Tensor | None = None) -> Tensor:
        seen.append(switches())
        return outputs(model, w, x, real)

    monkeypatch.setattr(FlatModel, "outputs", spy)
    Adaptation.parse({"name": "maml", "steps": 2}).adapted(client, client.model.init(0))
    assert set(seen) == {(False, False)}
