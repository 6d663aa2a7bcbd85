"""Tensors of a module: trained and frozen ones, shared ones, and modules that no vector can hold."""

import pickle
from functools import partial

import pytest
import torch
from support import refused
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from fedflow.errors import BadInput
from fedflow.models import build
from fedflow.models.channels import smaller
from fedflow.models.flat import FlatModel


def half_frozen() -> nn.Sequential:
    network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    network[0].requires_grad_(False)
    return network


def sent(model: FlatModel) -> FlatModel:
    """The network in another process."""
    found: FlatModel = pickle.loads(pickle.dumps(model))  # noqa: S301
    return found


def test_the_vector_leaves_frozen_parameters_out() -> None:
    model = FlatModel(half_frozen)
    assert model.parameters == 10 + 18 and model.size == 38 and list(model.frozen) == ["0.weight", "0.bias"]
    one, other = (dict(model.to_module(model.init(seed)).named_parameters()) for seed in (1, 2))
    assert all(torch.equal(own["0.weight"], model.frozen["0.weight"]) for own in (one, other))
    assert not torch.equal(one["3.weight"], other["3.weight"])
    assert not one["0.weight"].requires_grad and one["3.weight"].requires_grad


def test_frozen_values_are_the_same_in_every_process() -> None:
    model = FlatModel(half_frozen)
    torch.manual_seed(7)
    for other in (FlatModel(half_frozen), sent(model)):
        assert all(torch.equal(other.frozen[name], value) for name, value in model.frozen.items())
    own = {name: torch.ones_like(value) for name, value in model.frozen.items()}
    again = sent(FlatModel(half_frozen, frozen=own))
    assert torch.equal(again.frozen["0.weight"], own["0.weight"]) and again.architecture != model.architecture


def test_a_smaller_network_keeps_the_frozen_layers() -> None:
    model = FlatModel(half_frozen)
    small = smaller(model.to_module(model.init(0)), torch.zeros(model.size, dtype=torch.bool))
    own = dict(small.named_parameters())
    assert torch.equal(own["0.weight"], model.frozen["0.weight"]) and not own["3.weight"].any()


def test_patterns_say_which_parameters_of_a_named_network_are_trained() -> None:
    made = partial(build, "mlp", (4,), 3, hidden=(5,))
    whole, head = FlatModel(made), FlatModel(partial(made, trainable=["layers.last.*"]))
    assert head.size == 18 and whole.size == 43
    assert head.architecture != whole.architecture
    with refused("^model.trainable: 'head.*' .* one of layers.1.weight, "):
        made(trainable=["head.*"])
    with refused("^model.trainable: 'layers' .* a list of patterns"):
        made(trainable="layers")
    with refused("^model: all parameters frozen"):
        FlatModel(partial(made, trainable=[]))


def test_levels_freeze_the_leading_part_of_the_whole_network() -> None:
    made = partial(build, "mlp", (4,), 3, hidden=(6,), trainable=["layers.last.*"])
    whole = FlatModel(made)
    part = whole.variant(hidden=(2,))
    assert torch.equal(part.frozen["layers.1.weight"], whole.frozen["layers.1.weight"][:2])
    assert len(part.within(whole)) == part.size == 3 * 2 + 3


def test_a_pattern_of_a_frozen_part_selects_what_is_trained_of_it() -> None:
    model = FlatModel(half_frozen)
    assert len(model.part("0.*", "3.*").index) == 18
    with refused("^parameter pattern: 0.* .* a part that is trained"):
        model.part("0.*")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 4), nn.Linear(4, 4)
        self.decode.weight = self.encode.weight
        self.register_buffer("shift", torch.randn(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x)) + self.shift


def parametrized() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2))


@pytest.mark.parametrize("factory", [Tied, parametrized])
def test_shared_and_parametrized_weights_are_those_of_the_vector(factory: type[nn.Module]) -> None:
    model, x = FlatModel(factory), torch.randn(3, 4)
    w = model.init(1)
    torch.manual_seed(1)
    plain = factory().eval()
    assert torch.equal(model.from_module(plain), w)
    torch.testing.assert_close(model.outputs(w, x), plain(x))
    torch.testing.assert_close(model.to_module(w)(x), plain(x))
    g = torch.func.grad(lambda w: model.outputs(w, x).square().sum())(w)
    plain(x).square().sum().backward()
    torch.testing.assert_close(
        g[: model.parameters],
        torch.cat([p.grad.reshape(-1) for p in plain.parameters() if p.grad is not None]),
    )


def test_the_further_name_of_a_shared_weight_is_a_name_of_its_part() -> None:
    assert len(FlatModel(Tied).part("decode.*").index) == 16 + 4


def with_hook() -> nn.Module:
    network = nn.Linear(4, 2)
    network.weight.register_hook(lambda g: g * 0)
    return network


def complex_buffer() -> nn.Module:
    network = nn.Linear(4, 2)
    network.register_buffer("turns", torch.ones(2, dtype=torch.complex64))
    return network


REFUSED = {
    "model.0.weight: float64 .* float32": lambda: nn.Sequential(nn.Linear(4, 2).double()),
    "model.0.weight: bfloat16 .* float32": lambda: nn.Sequential(nn.Linear(4, 2).bfloat16()),
    "model.turns: complex64 .* float32": complex_buffer,
    "model.weight: a hook .* requires_grad_": with_hook,
    "model.weight: meta .* with values": lambda: nn.Linear(4, 2, device="meta"),
    "model.0.weight: no shape yet .* lazy": lambda: nn.Sequential(nn.LazyLinear(2)),
    "model.0.momentum: None": lambda: nn.Sequential(nn.BatchNorm1d(4, momentum=None)),
    "model: no parameters": nn.Flatten,
    "model.0: torch.nn.utils.weight_norm .*parametrizations": lambda: nn.Sequential(
        nn.utils.weight_norm(nn.Linear(4, 2))
    ),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm", "ignore:Lazy modules")
@pytest.mark.parametrize("message", REFUSED)
def test_what_a_vector_would_drop_is_refused(message: str) -> None:
    with refused(f"^{message}", BadInput):
        FlatModel(REFUSED[message])
