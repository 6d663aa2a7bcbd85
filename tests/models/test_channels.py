"""Channels that are removed: masks of the flat vector, and networks that are physically smaller."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedflow.models import ARCHITECTURES, build
from fedflow.models.channels import Channels, expand, kept_channels, load_smaller, smaller
from fedflow.models.flat import FlatModel

SOUND, GREY, COLOR = (1, 1100), (1, 28, 28), (3, 32, 32)
# Networks that lose half of their channels: shape of the inputs, options, and the parameters left.
HALVED = [
    ("lenet5_bn", COLOR, {}, 35_992),
    ("cnn_mnist_bn", GREY, {}, 9_980),
    ("m5", SOUND, {"base": 4}, None),
    (
        "cnn",
        GREY,
        {"filters": (4, 6, 8), "batch_norm": True, "padding": 2, "bias": False, "hidden": ()},
        None,
    ),
    ("cnn", GREY, {"filters": (8, 8), "groups": 8, "one_pool": True, "padding": 1, "pool_padding": 1}, None),
]


def network(name: str, shape: tuple[int, ...], options: dict) -> tuple[FlatModel, Tensor]:
    """A network in float64, and a vector as if it were trained: no gamma is 1, no statistic as it starts."""
    model = FlatModel(partial(build, name, shape, 10, **options), dtype=torch.float64)
    w = model.init(0)
    noise = torch.rand(len(w), dtype=w.dtype, generator=torch.Generator().manual_seed(1))
    return model, w + 0.1 * noise - 0.05


def every_other(model: FlatModel) -> dict[str, Tensor]:
    """Channels 0, 2, .. of every layer; of LeNet-5, 3 of 6 and 8 of 16."""
    gammas = {layer.conv: model.slices[f"{layer.norm}.weight"] for layer in model.channels}
    return {conv: torch.arange(own.stop - own.start) % 2 == 0 for conv, own in gammas.items()}


@pytest.mark.parametrize(("name", "shape", "options", "parameters"), HALVED)
def test_a_smaller_network_has_the_outputs_of_the_masked_one(name, shape, options, parameters):
    model, w = network(name, shape, options)
    mask = expand(model, every_other(model))
    assert all(map(torch.equal, kept_channels(model, mask).values(), every_other(model).values()))
    masked, small = model.to_module(w * mask), smaller(model.to_module(w), mask)
    x = torch.randn(5, *shape, dtype=w.dtype, generator=torch.Generator().manual_seed(2))
    for mode in (False, True):
        expected = masked.train(mode)(x)
        assert expected.std() > 0.01
        torch.testing.assert_close(small.train(mode)(x), expected, rtol=0, atol=1e-12)
    left = sum(p.numel() for p in small.parameters())
    assert left == int(mask[: model.parameters].sum()) and parameters in (None, left)
    assert small.size.parameters == left and small.size.kept == left / model.parameters
    assert small.size.bytes == sum(t.numel() * t.element_size() for t in small.state_dict().values())
    assert not any("fedflow.models.channels" in type(layer).__module__ for layer in small.modules())
    again = load_smaller(build(name, shape, 10, **options).double(), small.state_dict())
    assert torch.equal(again.eval()(x), small.eval()(x))


def test_a_recorded_vector_alone_says_which_channels_are_gone():
    """Those whose gamma and beta are 0, whatever else is left of them; single zeros stay in place."""
    model, w = network("lenet5_bn", COLOR, {})
    for name in ("norm1.weight", "norm1.bias", "norm2.weight"):
        w[model.slices[name]][1] = 0
    w[model.slices["fc2.weight"]][:1000] = 0
    small = smaller(model.to_module(w))
    assert (small.conv1.out_channels, small.conv2.in_channels, small.conv2.out_channels) == (5, 5, 16)
    left = 62_050 - 3 * 25 - 1 - 2 - 16 * 25
    assert small.size.parameters == left and small.size.kept == (left - 1000) / 62_050
    assert str(small.size) == "61,572 parameters (97.6% kept), 492,928 bytes"
    x = torch.randn(3, *COLOR, dtype=w.dtype)
    torch.testing.assert_close(small(x), model.outputs(w, x), rtol=0, atol=1e-12)
    for name in ("norm2.weight", "norm2.bias"):  # nothing is left: one channel stays, which is 0
        w[model.slices[name]] = 0
    empty = smaller(model.to_module(w))
    assert empty.conv2.out_channels == 1
    torch.testing.assert_close(empty(x), model.outputs(w, x), rtol=0, atol=1e-12)


def test_the_expanded_mask_by_hand():
    """Two channels of two pixels each, into one unit; the second channel is removed. Also under vmap."""

    class Tiny(nn.Module):
        channels = (Channels("conv", "norm", "then"),)

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.then = nn.Conv1d(1, 2, 1), nn.BatchNorm1d(2), nn.Linear(4, 1)

    model, kept = FlatModel(Tiny), torch.tensor([True, False])
    #           conv, bias, gamma, beta, then, its bias, mean, variance
    expected = [1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0, 1, 0]
    assert expand(model, {"conv": kept}).int().tolist() == expected
    vmapped = torch.func.vmap(lambda own: expand(model, {"conv": own}))(torch.stack([kept, ~kept]))
    assert torch.equal(vmapped[1], expand(model, {"conv": ~kept}))
    # A beta that is left over changes nothing, as nobody reads its channel.
    w = model.init(0) * expand(model, {"conv": kept})
    left_over = w.clone()
    left_over[model.slices["norm.bias"]] = torch.tensor([0.0, 3.0])
    run = [
        net.then(torch.relu(net.norm(net.conv(torch.ones(3, 1, 2)))).flatten(1))
        for net in (model.to_module(w), model.to_module(left_over))
    ]
    assert torch.equal(*run)


def test_networks_with_a_norm_after_every_convolution_declare_their_channels():
    built = {name: build(name, entry.shape, entry.classes) for name, entry in ARCHITECTURES.items()}
    assert [name for name, net in built.items() if getattr(net, "channels", ())] == [
        "lenet5_bn",
        "cnn_mnist_bn",
        "m5",
    ]
    assert built["lenet5_bn"].channels == (
        Channels("conv1", "norm1", "conv2"),
        Channels("conv2", "norm2", "fc1"),
    )
    assert built["cnn_mnist_bn"].channels[1] == Channels("features.4", "features.5", "dense.1")
