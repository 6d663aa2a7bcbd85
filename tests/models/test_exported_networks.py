"""Networks of the catalogue leave as TorchScript and as ONNX, with equal outputs for any number of inputs."""

import warnings
from pathlib import Path

import pytest
import torch
from test_architectures import flat, marked, samples
from torch import nn

from fedflow.models import ARCHITECTURES

NOT_IN_ONNX = {"mobilevit", "char_transformer"}  # attention, which the exporter of torch does not convert


def network(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    model = flat(name)
    return model.to_module(model.init(0)).eval(), samples(name, 2)[0], samples(name, 5)[0]


def first(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return outputs if isinstance(outputs, torch.Tensor) else outputs[0]


@pytest.mark.parametrize("name", marked(ARCHITECTURES))
def test_networks_are_traced_to_torchscript(name: str, tmp_path: Path) -> None:
    net, few, more = network(name)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.save(torch.jit.trace(net, few), tmp_path / "net.pt")
        loaded = torch.jit.load(tmp_path / "net.pt")
        torch.testing.assert_close(first(loaded(more)), first(net(more)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in NOT_IN_ONNX])
def test_networks_are_exported_to_onnx(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    net, few, more = network(name)
    batch = {0: torch.export.Dim("n")}
    torch.onnx.export(net, (few,), dynamic_shapes=(batch,), dynamo=True, verbose=False).save(
        str(tmp_path / "net.onnx")
    )
    session = runtime.InferenceSession(str(tmp_path / "net.onnx"))
    outputs = session.run(None, {session.get_inputs()[0].name: more.numpy()})[0]
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(outputs), first(net(more)), rtol=1e-3, atol=1e-3)
