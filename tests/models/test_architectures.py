"""Every named network: it is described, learns from one step, and refuses what it cannot be."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from support import refused
from torch import nn

from fedflow.models import ARCHITECTURES, build, describe, known_options
from fedflow.models.flat import CONVOLUTIONS, FlatModel
from fedflow.models.matmul import MatmulConv2d, use_matmul
from fedflow.models.resnet import ResNet

NOISY = [name for name, entry in ARCHITECTURES.items() if entry.options.get("dropout")]
NORMED = [
    *("m5", "mobilevit", "shufflenet_v2", "mobilenet_v2", "resnet10", "cnn_energy"),
    *(
        name
        for name, entry in ARCHITECTURES.items()
        if entry.options.get("batch_norm") or (entry.build is ResNet and not entry.options.get("groups"))
    ),
]
SLOW = ("preact_resnet34_gn", "resnet34_bn", "resnet18_bn", "resnet32x4", "wrn40_2")
MARKS: dict[str, pytest.MarkDecorator] = dict.fromkeys(SLOW, pytest.mark.slow)
LARGE = "preact_resnet18_exit preact_resnet18_gn resnet18_gn resnet9 resnet9_bn resnet10_bn".split()
LARGE += ["mobilenet_v2", "shufflenet_v2", "wrn40_1", "resnet10_l", "resnet10_m", "resnet10_s", "resnet10_xs"]
MARKS |= dict.fromkeys(LARGE, pytest.mark.full)  # others have the same blocks


def marked(names: Iterable[str]) -> list:
    return [pytest.param(name, marks=MARKS.get(name, ())) for name in names]


VMAPPED = [name for name in ARCHITECTURES if name not in NOISY and name != "cnn_energy"]  # spectral norms
CLIENTS, BATCH = 2, 3


OUTPUTS = {"stacked_lstm": (10, 10_000), "linear": (1,)}  # of the others: one per class


def flat(network: str, **options: Any) -> FlatModel:
    entry = ARCHITECTURES[network]
    return FlatModel(partial(build, network, entry.shape, entry.classes), **options)


def samples(network: str, *sizes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs and targets of the kinds that a network takes."""
    entry, noise = ARCHITECTURES[network], torch.Generator().manual_seed(0)
    shape, steps = (*sizes, *entry.shape), entry.shape if network == "stacked_lstm" else ()
    if getattr(entry.build, "tokens", False):
        x = torch.randint(entry.classes, shape, generator=noise)
    else:
        x = torch.randn(shape, generator=noise)
    y = torch.randint(entry.classes, (*sizes, *steps), generator=noise)
    return x, y.float() if network == "linear" else y


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize("network", marked(VMAPPED))
@pytest.mark.parametrize(
    "convolution", [CONVOLUTIONS[0], pytest.param(CONVOLUTIONS[1], marks=pytest.mark.full)]
)
def test_one_step_of_a_cohort_under_vmap_is_the_step_of_each_client(network, convolution):
    model = flat(network, dtype=torch.float64, convolution=convolution)
    x, y = (t.double() if t.is_floating_point() else t for t in samples(network, CLIENTS, BATCH))
    w = torch.stack([model.init(seed) for seed in range(CLIENTS)])

    def loss(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return model.loss(model.train_outputs(w, x)[0], y)

    with model.for_cohorts():
        together = torch.func.vmap(torch.func.grad(loss))(w, x, y)
    for k in range(CLIENTS):
        alone = w[k].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(alone, x[k], y[k]), alone)
        assert gradient.norm() > 0
        torch.testing.assert_close(together[k], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{"stride": 2}, {"padding": (2, 1), "bias": False}, {"dilation": 2}])
def test_a_convolution_as_a_matrix_product_is_the_same(options):
    network = nn.Sequential(nn.Conv2d(3, 4, (3, 5), **options)).double()
    x = torch.randn(2, 3, 11, 12).double()
    expected = network(x)
    torch.testing.assert_close(use_matmul(network)(x), expected)
    assert type(network[0]) is MatmulConv2d


@pytest.mark.parametrize(
    "options", [{"groups": 3}, {"padding": "same"}, {"padding_mode": "reflect", "padding": 1}]
)
def test_other_convolutions_stay_what_they_are(options):
    network = use_matmul(nn.Sequential(nn.Conv2d(3, 3, 3, **options)))
    assert type(network[0]) is nn.Conv2d


@pytest.mark.parametrize("network", marked(NORMED))
def test_a_step_with_norms_moves_weights_and_statistics(network):
    entry, model = ARCHITECTURES[network], flat(network)
    w = model.init(0).requires_grad_()
    outputs, buffers = model.train_outputs(w, torch.randn(BATCH, *entry.shape))
    (gradient,) = torch.autograd.grad(outputs.square().sum(), w)
    assert gradient[: model.parameters].norm() > 0
    assert not torch.equal(buffers, w[model.parameters :])


@pytest.mark.parametrize("network", marked(ARCHITECTURES))
def test_a_network_has_its_outputs_and_names_its_head(network):
    entry, model = ARCHITECTURES[network], flat(network)
    outputs = model.outputs(model.init(0), samples(network, BATCH)[0])
    assert outputs.shape == (BATCH, *OUTPUTS.get(network, (entry.classes,)))
    assert 0 < model.head().mask.sum() <= model.size


def test_networks_differ_by_seed_but_not_by_what_was_drawn_before():
    model = flat("mlp")
    first = model.init(1)
    torch.randn(3)
    assert torch.equal(first, model.init(1)) and not torch.equal(first, model.init(2))


def test_building_a_network_leaves_it_in_training_mode():
    assert build("lenet5_bn", (1, 28, 28), 10).training


@pytest.mark.parametrize(
    ("network", "shape", "classes", "parameters"),
    [
        ("twocnn", (1, 28, 28), 10, 721_200),
        ("cnn_miniimagenet", (3, 84, 84), 100, 1_514_792),
        ("lenet5", (1, 28, 28), 10, 44_426),
        ("lenet5", (3, 32, 32), 40, 64_556),
        ("lenet5", (3, 32, 32), 100, 69_656),
        ("lenet5_bn", (3, 32, 32), 100, 69_700),
        ("resnet9", (3, 96, 96), 10, 6_616_330),
        ("mlp", (1, 28, 28), 47, 166_447),
        ("mlp", (1, 28, 28), 62, 169_462),
        ("cnn_feddyn", (3, 32, 32), 100, 815_332),
        ("cnn_feddyn", (3, 32, 32), 5, 796_997),
        ("cnn_leaf", (1, 28, 28), 47, 6_572_975),
        ("logistic", (30,), 5, 155),
        ("logistic", (15,), 2, 32),
        ("resnet10", (3, 32, 32), 10, 4_981_066),
        ("resnet10", (1, 64, 64), 11, 5_258_443),
        ("resnet10", (3, 64, 64), 7, 5_128_519),
        ("resnet18_gn", (3, 64, 64), 200, 11_279_112),
        ("celeba_cnn", (3, 218, 178), 2, 29_569),
    ],
)
def test_networks_have_the_published_size_on_other_data_too(network, shape, classes, parameters):
    assert sum(p.numel() for p in build(network, shape, classes).parameters()) == parameters


def test_options_change_the_network():
    assert sum(p.numel() for p in build("mlp", (1, 28, 28), 10, hidden=[100, 100]).parameters()) == 89_610
    layers = list(build("mlp", (1, 8, 8), 10, hidden=[64, 32], dropout=0.5).modules())
    assert [layer.out_features for layer in layers if isinstance(layer, nn.Linear)] == [64, 32, 10]
    assert [layer.p for layer in layers if isinstance(layer, nn.Dropout)] == [0.5, 0.5]


def test_every_network_is_described_by_name_inputs_and_size():
    rows = describe()
    assert [row["name"] for row in rows] == list(ARCHITECTURES)
    assert rows[0] | {"about": ""} == {
        "name": "lenet5",
        "about": "",
        "inputs": "3x32x32",
        "classes": 10,
        "parameters": "62,006",
    }
    assert all(row["about"] for row in rows)


SMALL = (
    "lenet5",
    "lenet5_bn",
    "resnet9",
    "resnet9_bn",
    "vgg9",
    "mobilenet",
    "cnn",
    "cnn_mnist",
    "cnn_miniimagenet",
    "twocnn",
)


@pytest.mark.parametrize(
    ("network", "shape", "options", "message"),
    [(name, (1, 4, 4), {}, rf"model.name: '{name}' .*fit images \(1, 4, 4\)") for name in SMALL]
    + [("char_lstm", (1, 8, 8), {}, r"model.name: 'char_lstm' .*fit images \(1, 8, 8\)")]
    + [
        ("m5", (1, 1099), {}, r"model.name: 'm5' .* \(it needs waves of 1,100 values or more\)"),
        ("m5", (1, 28, 28), {}, r"model.name: 'm5' .*fit images \(1, 28, 28\)"),
        ("logistic_one_logit", (15,), {}, r"model.name: 'logistic_one_logit' .*one_logit needs two classes"),
    ]
    + [
        ("twonn", (1, 8, 8), {"head_layers": n}, r"model.name: 'twonn' .*head_layers must be 1\.\.4")
        for n in (0, 5)
    ]
    + [("mlp", (1, 28, 28), {"hidden": h}, "model.name: 'mlp'") for h in (["many"], 5, [0.5], [-1])]
    + [
        ("lenet", (1, 28, 28), {}, r"model.name: 'lenet' .*did you mean 'lenet5'"),
        ("mlp", (1, 28, 28), {"hiden": [10]}, r"model.options.hiden: .*did you mean 'hidden'"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(network, shape, options, message):
    with refused(message):
        build(network, shape, 10, **options)
    assert known_options("lenet5") == ["batch_norm"]
