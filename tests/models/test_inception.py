"""Inception v3 from a file of weights: torchvision as the oracle, and the pools of the original network."""

from pathlib import Path

import pytest
import torch
from command import one_line_error
from safetensors.torch import save_file
from torch import Tensor, nn

from fedflow.errors import BadInput
from fedflow.models.inception import ORIGINAL, TORCHVISION, Inception, load_inception

inception = pytest.importorskip("torchvision.models.inception")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    """Torchvision's network with random weights and running statistics, and its file."""
    torch.manual_seed(0)
    network = inception.Inception3(TORCHVISION, aux_logits=True, init_weights=False).eval()
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 2)
    file = tmp_path_factory.mktemp("weights") / "inception.safetensors"
    save_file(network.state_dict(), file)
    return network, file


def images(channels: int, side: int) -> Tensor:
    return torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(1))


def test_features_are_those_of_torchvision(published: tuple[nn.Module, Path]) -> None:
    """Its auxiliary outputs are left out; gray images become color images of 299 pixels in [-1, 1]."""
    network, file = published
    x, seen = images(1, 8), list[Tensor]()
    network.fc.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    large = nn.functional.interpolate(x, (299, 299), mode="bilinear", align_corners=False)
    with torch.no_grad():
        network(torch.cat([large] * 3, 1) * 2 - 1)
        model, w = load_inception(file, "run.inception", CPU)
        found = model.features(w, x)
    assert found.shape == (2, 2048)
    torch.testing.assert_close(found, seen[0])


@torch.no_grad()
def test_the_original_network_pools_without_padding() -> None:
    """An input of ones stays ones, also in corners; the last pool is a maximum."""
    torch.manual_seed(0)
    own, other = Inception(ORIGINAL).eval(), Inception(TORCHVISION).eval()
    pools = {}
    for name in ("Mixed_5b", "Mixed_6b", "Mixed_7b", "Mixed_7c"):
        for network in (own, other):
            block = network.layers.get_submodule(name)
            channels = block.branch_pool.conv.in_channels
            block.branch_pool = nn.Identity()
            pools[name, network is own] = block._forward(torch.ones(1, channels, 7, 7))[-1]
    assert all(bool((pool == 1).all()) is ours for (_, ours), pool in pools.items())
    last = own.layers.Mixed_7c
    x = torch.randn(1, 2048, 5, 5)
    assert torch.equal(last._forward(x)[-1], nn.functional.max_pool2d(x, 3, stride=1, padding=1))
    shapes = [[tuple(w.shape) for w in network.state_dict().values()] for network in (own, other)]
    assert shapes[0][:-2] == shapes[1][:-2]


def test_other_files_are_one_line(tmp_path: Path, published: tuple[nn.Module, Path]) -> None:
    network, _ = published
    other = network.state_dict()
    files: dict[str, dict[str, Tensor]] = {
        "KeyError": {"a": torch.zeros(1)},
        "has 10 outputs": other | {"fc.bias": torch.zeros(10)},
        r"Mixed_6a.branch3x3.conv.weight is \[1\]": other
        | {"Mixed_6a.branch3x3.conv.weight": torch.zeros(1)},
    }
    for words, tensors in files.items():
        save_file(tensors, file := tmp_path / "weights.safetensors")
        words = words.replace("KeyError", "has no 'layers.fc.bias'")
        with one_line_error(f"run.inception: .*weights.safetensors.*safetensors .*{words}", BadInput):
            load_inception(file, "run.inception", CPU)
    (tmp_path / "weights.pth").write_bytes(b"\x80\x02")
    with one_line_error("run.inception: .*weights.pth.* as safetensors", BadInput):
        load_inception(tmp_path / "weights.pth", "run.inception", CPU)
