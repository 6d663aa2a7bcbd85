"""Networks beside what they stand for: one logit, starts, torchvision's ResNet-18, attention, SuPerFed."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torchvision.models import resnet18

from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.models.mobilevit import _Block


@pytest.mark.parametrize(("network", "shape"), [("logistic_one_logit", (15,)), ("celeba_cnn", (3, 30, 30))])
def test_one_logit_is_a_sigmoid_with_binary_cross_entropy(network: str, shape: tuple[int, ...]) -> None:
    model = FlatModel(partial(build, network, shape, 2), dtype=torch.float64)
    x, y = torch.randn(6, *shape, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0])
    w = model.init(0).requires_grad_()
    outputs = model.outputs(w, x)
    z = outputs[:, 1]
    assert outputs.shape == (6, 2) and not outputs[:, 0].any()
    assert torch.equal(model.hits(outputs, y), (z > 0) == y.bool())
    binary = nn.functional.binary_cross_entropy_with_logits(z, y.double())
    torch.testing.assert_close(model.loss(outputs, y), binary)
    both = [torch.autograd.grad(loss, w, retain_graph=True)[0] for loss in (model.loss(outputs, y), binary)]
    torch.testing.assert_close(*both)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        ("celeba_cnn", (3, 84, 84)),
        ("m5", (1, 16_000)),
        ("twonn", (1, 28, 28)),
        ("twocnn", (3, 28, 28)),
        ("resnet10", (1, 32, 32)),
        ("cnn_energy", (3, 8, 8)),
    ],
)
def test_weights_start_by_xavier_and_biases_at_zero(network: str, shape: tuple[int, ...]) -> None:
    for name, values in build(network, shape, 35).named_parameters():
        if name.endswith("bias"):
            assert not values.any()
        elif values.ndim > 1:
            fans = (values[0].numel() + values[:, 0].numel()) / 2
            assert float(values.detach().std()) == pytest.approx(fans**-0.5, rel=0.1)


def test_a_spectral_norm_is_that_of_torch() -> None:
    """One power iteration per call in training mode, none in evaluation mode; the buffers travel with w."""
    model = FlatModel(partial(build, "cnn_energy", (1, 8, 8), 4), dtype=torch.float64)
    theirs = spectral_norm(nn.Linear(512, 4).double())
    weight, w = theirs.parametrizations.weight[0], model.init(0)
    own = model.views(w)
    with torch.no_grad():
        theirs.parametrizations.weight.original.copy_(own["fc.weight"])
        theirs.bias.copy_(own["fc.bias"])
        weight._u.copy_(own["fc.u"])
        weight._v.copy_(own["fc.v"])
    body = nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.SiLU()).double()
    body.load_state_dict({name: own[key] for name, key in zip(body.state_dict(), list(own)[:4])})
    whole, x = nn.Sequential(body, nn.Flatten(), theirs), torch.randn(5, 1, 8, 8, dtype=torch.float64)
    for _ in range(3):
        whole.train()
        at = w.clone().requires_grad_()
        outputs, buffers = model.train_outputs(at, x)
        torch.testing.assert_close(outputs, expected := whole(x))
        (g,) = torch.autograd.grad(outputs.square().sum(), at)
        (slope,) = torch.autograd.grad(expected.square().sum(), theirs.parametrizations.weight.original)
        torch.testing.assert_close(model.views(g)["fc.weight"], slope)
        torch.testing.assert_close(buffers, torch.cat([weight._u, weight._v]))
        w = torch.cat([w[: model.parameters], buffers])
        torch.testing.assert_close(model.outputs(w, x), whole.eval()(x))
    kept = w.clone()
    model.outputs(w, x), model.train_outputs(w, x)
    assert torch.equal(w, kept)
    assert model.why_alone and model.why_alone.startswith("spectral norms")
    fresh = FlatModel(partial(build, "cnn_energy", (1, 8, 8), 4, spectral=False, activation="relu"))
    assert not fresh.buffers and fresh.why_alone is None


def test_resnet_18_is_that_of_torchvision_with_group_norm() -> None:
    theirs = resnet18(norm_layer=partial(nn.GroupNorm, 2), num_classes=10).double().eval()
    ours = build("resnet18_gn", (3, 32, 32), 10).double()
    pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    with torch.no_grad():
        for own, other in pairs:
            assert own.shape == other.shape
            other.normal_(1, 0.05) if own.ndim == 1 else None
            own.copy_(other)
        x = torch.randn(3, 3, 40, 32).double()
        torch.testing.assert_close(ours(x), theirs(x))


def test_attention_is_between_equal_places_of_the_patches() -> None:
    """The tokens of a place of the 2x2 patches see each other, by softmax(q k / sqrt 8) v of four heads."""
    block = _Block(6, 16, depth=1, mlp=8).double()
    attention = block.attention[0]
    x = torch.randn(2, 16, 4, 6, dtype=torch.float64)
    expected = torch.empty_like(x)
    for place in ((i, j) for i in range(2) for j in range(2)):
        tokens = x[:, :, place[0] :: 2, place[1] :: 2].flatten(2).transpose(1, 2)  # [2, 6, 16]
        heads = (part.unflatten(2, (4, 8)) for part in attention.qkv(attention.norm(tokens)).chunk(3, -1))
        q, k, v = heads
        weights = torch.einsum("bnhw,bmhw->bhnm", q, k).div(8**0.5).softmax(-1)
        tokens = tokens + attention.out(torch.einsum("bhnm,bmhw->bnhw", weights, v).flatten(2))
        tokens = tokens + attention.mlp(tokens)
        expected[:, :, place[0] :: 2, place[1] :: 2] = tokens.transpose(1, 2).unflatten(2, (2, 3))
    seen = []
    block.after.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    block.before = nn.Identity()
    block.join = nn.Identity()
    block(x)
    torch.testing.assert_close(seen[0], expected)


SUPERFED = {  # inputs, classes, and the parameters of the head
    "twonn": ((1, 28, 28), 10, 42_000),
    "twocnn": ((3, 28, 28), 10, 669_200),
    "resnet9_bn": ((3, 28, 28), 100, 156_672),
    "mobilenet": ((3, 64, 64), 200, 182_272),
    "vgg9": ((1, 28, 28), 62, 146_944),
    "char_lstm": ((80,), 100, 25_600),
}


@pytest.mark.parametrize("network", SUPERFED)
def test_networks_of_superfed_share_and_keep_the_published_parts(network: str) -> None:
    shape, classes, head = SUPERFED[network]
    model = FlatModel(partial(build, network, shape, classes))
    assert model.buffers == 0
    assert len(model.head().index) == len(model.part(*model.shared_patterns).index) == head
    biases = {name for name in model.names if "bias" in name}
    norms = [m for m in model.to_module(model.init(0)).modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(biases) == len(norms) == {"resnet9_bn": 12, "mobilenet": 9}.get(network, 0)


@pytest.mark.parametrize(
    ("network", "features"),
    [("twocnn", (64, 7, 7)), ("resnet9_bn", (512, 2, 2)), ("mobilenet", (512, 4, 4)), ("vgg9", (512, 1, 1))],
)
def test_maps_of_superfed_have_the_published_size(network: str, features: tuple[int, ...]) -> None:
    shape, classes, _ = SUPERFED[network]
    assert build(network, shape, classes).features(torch.randn(2, *shape)).shape == (2, *features)


def test_a_block_of_superfeds_resnet_adds_its_input() -> None:
    """Also the first, to which the authors' code adds nothing."""
    block = build("resnet9_bn", (3, 28, 28), 100).features[3]
    nn.init.zeros_(block.conv2[1].weight)
    x = torch.randn(2, 64, 7, 7)
    torch.testing.assert_close(block(x), x.relu())
