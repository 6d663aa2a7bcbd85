"""Networks with two exits, and with a share of their channels: sizes, nesting, losses and gradients."""

from functools import partial
from typing import Any

import pytest
import torch
from support import refused
from torch import Tensor, nn

from fedflow.local.extensions.objective import Objective
from fedflow.models import build
from fedflow.models.exits import EXITS, TwoExits
from fedflow.models.flat import FlatModel

NETWORKS = ("preact_resnet18_exit", "cnn_exit")


def flat(network: str, dtype: torch.dtype = torch.float64, **options: Any) -> FlatModel:
    return FlatModel(partial(build, network, (3, 32, 32), 10, **options), dtype=dtype)


@pytest.mark.parametrize(
    ("classes", "options", "first", "none", "whole"),
    [
        (10, {}, 676_171, 11_171_146, 11_172_437),
        (100, {}, 687_781, 11_217_316, 11_230_217),
        (10, {"pool": 4}, 695_371, 11_171_146, 11_191_637),
        (100, {"pool": 4}, 879_781, 11_217_316, 11_422_217),
        (10, {"norm": True}, 676_171, 11_172_170, 11_173_461),
        (100, {"norm": True}, 687_781, 11_218_340, 11_231_241),
    ],
)
def test_levels_of_fedhen_have_the_published_size(classes, options, first, none, whole):
    """Section 4: 0.7M and 11.1M; none of these networks has the final norm of the original architecture."""
    sizes = {
        exits: sum(
            p.numel()
            for p in build("preact_resnet18_exit", (3, 32, 32), classes, exits=exits, **options).parameters()
        )
        for exits in EXITS
    }
    assert sizes == {"first": first, "none": none, "last": whole, "both": whole}


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_with_other_exits_share_names_and_first_values(network):
    whole = flat(network)
    values = whole.views(whole.init(3))
    for exits in EXITS:
        other = flat(network, exits=exits)
        for name, w in other.views(other.init(3)).items():
            assert torch.equal(w, values[name])
    assert flat(network, exits="both").names == whole.names
    assert set(flat(network, exits="first").names) | set(flat(network, exits="none").names) == set(values)


@pytest.mark.parametrize("network", NETWORKS)
def test_both_exits_are_the_two_networks(network):
    models = {exits: flat(network, exits=exits) for exits in EXITS}
    x, y = torch.randn(3, 3, 32, 32, dtype=torch.float64), torch.tensor([1, 5, 2])
    views = models["both"].views(models["both"].init(0))
    w = {e: torch.cat([views[name].reshape(-1) for name in model.names]) for e, model in models.items()}
    alone = {e: model.train_outputs(w[e], x)[0] for e, model in models.items()}
    both = models["both"]
    torch.testing.assert_close(alone["both"], torch.stack([alone["first"], alone["last"]], 1))
    assert torch.equal(alone["last"], alone["none"])
    assert torch.equal(both.outputs(w["both"], x), models["last"].outputs(w["last"], x))
    losses = {e: nn.functional.cross_entropy(alone[e], y, reduction="none") for e in ("first", "last")}
    torch.testing.assert_close(both.losses(alone["both"], y), losses["first"] + losses["last"])
    assert torch.equal(both.hits(alone["both"], y), models["last"].hits(alone["last"], y))


class Scalar(nn.Module):
    """x -> v x."""

    def __init__(self, v: float) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.tensor(v))

    def forward(self, x: Tensor) -> Tensor:
        return self.v * x


class Scalars(TwoExits):
    """Trunk a = 1, first head u = 0.5, last head b = 2; half the squared error of every exit."""

    def __init__(self, exits: str) -> None:
        super().__init__(exits, Scalar(1.0), Scalar(0.5), nn.Identity(), Scalar(2.0))  # type: ignore[arg-type]

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs.reshape(len(y), -1) - y[:, None]).square().sum(1) / 2


@pytest.mark.parametrize(("exits", "expected"), [("last", [4, 0, 2]), ("both", [2, -4, 2])])
def test_the_gradient_of_the_side_objective(exits, expected):
    """x = 2, y = 3: the losses of the two exits are 2.0 and 0.5."""
    model = FlatModel(partial(Scalars, exits), dtype=torch.float64)
    w, x, y = model.init(0).requires_grad_(), torch.tensor([[2.0]]).double(), torch.tensor([3.0]).double()
    loss = model.loss(model.train_outputs(w, x)[0], y)
    assert loss.item() == {"last": 0.5, "both": 2.5}[exits]
    assert torch.autograd.grad(loss, w)[0].tolist() == expected


def test_the_pooling_mixes_the_largest_and_the_mean():
    exit = build("cnn_exit", (1, 8, 8), 2, filters=(2, 2, 2), pool=1, exits="first").exit
    with torch.no_grad():
        exit.mix.fill_(0.25)
        exit.fc.weight.copy_(torch.eye(2))
        exit.fc.bias.zero_()
        x = torch.tensor([[[[1.0, 2], [3, 6]], [[0, 0], [0, 4]]]])
        assert exit(x).tolist() == [[0.25 * 6 + 0.75 * 3, 0.25 * 4 + 0.75 * 1]]


def test_side_losses_are_summed_over_the_exits():
    objective = Objective(name="both", alpha=0.5, teacher="any")
    first, second, target = torch.randn(4, 2, 5), torch.randn(4, 2, 5), torch.randn(4, 5)
    each = [objective.side_losses(first[:, e], second[:, e], target) for e in (0, 1)]
    torch.testing.assert_close(objective.side_losses(first, second, target), each[0] + each[1])


@pytest.mark.parametrize("width", [0.5, 0.3, 0.25])
def test_a_share_of_the_channels_is_a_slice_of_the_whole(width):
    """The first ceil(r * channels) channels of every convolution, and all rows of the classifiers."""
    narrow = flat("cnn_exit", width=width, groups=1)
    channels = {0.5: (16, 32, 64), 0.3: (10, 20, 39), 0.25: (8, 16, 32)}[width]
    shapes = dict(zip(narrow.names, narrow.shapes, strict=True))
    rows = [shapes[f"{layer}.conv.weight"][0] for layer in ("trunk.0", "trunk.1", "rest.0")]
    assert tuple(rows) == channels
    assert shapes["exit.fc.weight"] == (10, rows[1]) and shapes["fc.weight"] == (10, rows[2] * 16)


def test_scaled_activations_change_nothing_before_a_norm():
    """As HeteroFL divides them by r in training only; GroupNorm undoes it, up to its epsilon."""
    model = flat("cnn_exit", width=0.5)
    w, x = model.init(0), torch.randn(3, 3, 32, 32, dtype=torch.float64)
    trained, evaluated = model.train_outputs(w, x)[0], model.outputs(w, x)
    torch.testing.assert_close(trained, evaluated, rtol=1e-3, atol=1e-4)
    assert not torch.equal(trained, evaluated)


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        ("cnn_exit", {"exits": "middle"}, "exits must be one of last, both, first, none"),
        ("cnn_exit", {"width": 0}, "width must be above 0 and at most 1"),
        ("cnn_exit", {"width": 0.25, "groups": 3}, r"num_channels \(8\) must be divisible by num_groups"),
        ("cnn_exit", {"filters": [8, 8]}, "filters must be at least 3"),
        ("cnn_exit", {"pool": 3}, r"pool must divide the sides \(8, 8\)"),
        ("preact_resnet18_exit", {"pool": 5}, r"pool must divide the sides \(16, 16\)"),
        ("preact_resnet18_exit", {"width": 0.5}, "model.options.width"),
    ],
)
def test_options_that_do_not_fit_are_refused(network, options, message):
    with refused(message):
        build(network, (3, 32, 32), 10, **{"exits": "both"} | options)
