"""What networks cost: multiplications by layer, whole and without channels; traffic as papers count it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from support import images, run, suited
from torch import nn

from fedflow.claims.books import UNITS, Line, PublishedCell, books
from fedflow.data import Dataset
from fedflow.methods import build_method
from fedflow.methods.protocols import Published
from fedflow.metrics.cost import macs
from fedflow.models import ARCHITECTURES, build
from fedflow.models.channels import expand, smaller
from fedflow.models.flat import FlatModel
from fedflow.models.mlp import MLP

COLOR, GREY = (3, 32, 32), (1, 28, 28)


def halved(model: FlatModel) -> torch.Tensor:
    """The mask [D] without half of the channels of each convolution, rounded down."""
    widths = {
        layer.conv: model.shapes[model.names.index(f"{layer.conv}.bias")][0] for layer in model.channels
    }
    return expand(model, {conv: torch.arange(width) < width // 2 for conv, width in widths.items()})


def by_kind(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, int]:
    """MACs of the convolutions, and of the dense layers."""
    counted = macs(module, shape)
    convolutions = {n for n, layer in module.named_modules() if isinstance(layer, nn.Conv2d)}
    dense = sum(count for name, count in counted.items() if name not in convolutions)
    return sum(counted.values()) - dense, dense


def test_macs_of_lenet5() -> None:
    counted = macs(build("lenet5_bn", COLOR, 10), COLOR)
    assert counted == {"conv1": 352_800, "conv2": 240_000, "fc1": 48_000, "fc2": 10_080, "fc3": 840}


@pytest.mark.parametrize(
    ("network", "shape", "classes", "whole", "half", "ratio"),
    [
        ("lenet5_bn", COLOR, 10, (592_800, 58_920), (236_400, 34_920), 2.402),
        ("lenet5_bn", COLOR, 100, (592_800, 66_480), (236_400, 42_480), 2.364),
        ("cnn_mnist_bn", GREY, 10, (464_000, 16_500), (152_000, 8_500), 2.994),
    ],
)
def test_macs_without_half_of_the_channels(network, shape, classes, whole, half, ratio) -> None:
    """Of convolutions and of dense layers; both together are the published 2.4 on CIFAR-10."""
    model = FlatModel(lambda: build(network, shape, classes))
    module = model.to_module(torch.ones(model.size))
    small = smaller(module, halved(model))
    assert by_kind(module, shape) == whole and by_kind(small, shape) == half
    assert sum(whole) / sum(half) == pytest.approx(ratio, abs=5e-4)
    if classes == 10 and shape == COLOR:
        assert whole[0] / half[0] == pytest.approx(2.508, abs=5e-4)


@pytest.mark.parametrize("name", ["m5", "mobilevit", "char_lstm", "stacked_lstm", "preact_resnet18_gn"])
def test_macs_of_other_networks(name: str) -> None:
    """Every weight of a convolution, linear or recurrent layer is used at least once."""
    entry = ARCHITECTURES[name]
    module = build(name, entry.shape, entry.classes)
    counted = macs(module, entry.shape)
    for layer, own in module.named_modules():
        if isinstance(own, nn.Conv1d | nn.Conv2d | nn.Linear):
            assert counted[layer] % own.weight.numel() == 0 and counted[layer] >= own.weight.numel()
        if isinstance(own, nn.LSTM):
            weights = sum(w.numel() for n, w in own.named_parameters() if n.startswith("weight"))
            assert counted[layer] == entry.shape[0] * weights
    assert not any(p.grad_fn for p in module.parameters()) and module.training


def costs_in_print() -> Iterator[tuple[Line, PublishedCell, float]]:
    """The cells with traffic of Tables 4.1 and 4.2, and what their formulas give, in the printed unit."""
    pruned: dict[str, float] = {}
    for line in (line for table in books()["subfedavg"].tables[:2] for line in table.lines):
        if line.label.endswith("second figure"):
            pruned = {cell.name: cell.value.mean for cell in line.cells if cell.value.mean is not None}
        if not line.label.endswith("traffic"):
            continue
        shape = COLOR if line.unit == "GB" else GREY
        classes = 100 if line.where.dataset == "cifar100" else 10
        model = FlatModel(partial(build, line.setup.model, shape, classes))
        for cell in line.cells:
            hyper = dict(cell.column.params)
            if cell.name == "LG-FedAvg":
                hyper["fedavg"] = {300: 275 / 300, 500: 450 / 500}[line.setup.rounds]
            if cell.name.startswith("Hy"):  # its traffic follows from the second of the two printed shares
                hyper["target"] = pruned[cell.name] / 100
            method = build_method(cell.column.method, hyper)
            formula = Published.of(method).published_bytes(model, line.setup.rounds, 10)
            if formula is not None:
                yield line, cell, formula * UNITS[line.unit]


def test_published_traffic_follows_from_formulas() -> None:
    """To one unit of the last printed digit, as some are cut and some are rounded."""
    found = [
        abs(formula - cell.value.mean) <= 10**-cell.value.digits
        for _, cell, formula in costs_in_print()
        if not cell.name.startswith("Hy")
    ]
    assert found == [True] * 4 * 6


def test_published_traffic_of_hybrid_pruning_is_near_its_formula() -> None:
    """Its exact constants are not known: those of MNIST and EMNIST differ by less than 0.5 %."""
    found = [(line.unit, cell, mega) for line, cell, mega in costs_in_print() if cell.name.startswith("Hy")]
    mnist = [mega for unit, _, mega in found if unit == "MB"]
    assert mnist == pytest.approx([383.15, 342.72, 294.60, 396.63, 344.65, 298.45], abs=0.005)
    for unit, cell, formula in found:
        assert formula == pytest.approx(cell.value.mean, rel=0.005 if unit == "MB" else 0.035)
    assert len(found) == 12


def test_traffic_without_a_formula_is_a_multiple_of_fedavg() -> None:
    """6.5 times for MTL, 3 times for FedProx: stated, not explained."""
    for line, cell, fedavg in costs_in_print():
        for name, factor in (("MTL", 6.5), ("FedProx", 3)) if cell.name == "FedAvg" else ():
            printed = next(other.value for other in line.cells if other.name == name)
            if printed.mean is not None:
                assert printed.mean == pytest.approx(factor * fedavg, rel=0.007)


def test_costs_of_a_run(digits: Dataset) -> None:
    """Without norms, what FedAvg publishes is what crosses; single weights of 0 save no multiplication."""
    federation = images(digits)
    settings: dict[str, Any] = {"rounds": 2, "participation": 0.5}
    whole = sum(macs(federation.model.factory(), digits.input_shape).values())
    metrics = run("fedavg", federation, **settings).outcome().metrics
    assert metrics["paper_bytes"] == metrics["bytes_down"] + metrics["bytes_up"]
    assert metrics["macs"] == whole and not {"kept", "macs_ratio"} & metrics.keys()
    pruned = {"target": 0.5, "threshold": 0.0, "distance": 0.0, "gate": "train"}
    ran = run("subfedavg_un", federation, pruned, **settings)
    kept = [mask.double().mean().item() for mask in ran.clients[-1]["mask"]]
    metrics = ran.outcome().metrics
    assert metrics["kept"] == pytest.approx(sum(kept) / len(kept)) and min(kept) < 0.95
    assert (metrics["macs"], metrics["macs_ratio"]) == (whole, 1)
    size = federation.model.size
    assert metrics["paper_bytes"] == pytest.approx(2 * 4 * size * (32 + 16 + 0.5) / 8)


def test_costs_without_channels(digits: Dataset) -> None:
    """Multiplications of a network of 4 and 4 channels on 8x8 images, and of one with half of them."""
    pruned = {"target": 0, "threshold": 0.0, "channel_distance": 0.0, "gate": "train"}
    ran = run("subfedavg_hy", suited("subfedavg_hy", images(digits)), pruned, rounds=1, participation=0.5)
    metrics, model = ran.outcome().metrics, ran.simulation.federation.model
    whole, half = 64 * 36 + 16 * 144 + 16 * 16 + 160, 64 * 18 + 16 * 36 + 8 * 16 + 160
    assert metrics["macs"] == (4 * whole + 4 * half) / 8  # half of the clients took part
    assert metrics["macs_ratio"] == pytest.approx(whole / metrics["macs"])
    whole, half = 64 * 36 + 16 * 144, 64 * 18 + 16 * 36
    assert metrics["macs_convolutions"] == (4 * whole + 4 * half) / 8
    assert metrics["macs_convolutions_ratio"] == pytest.approx(2 * whole / (whole + half))
    removed = 2 * 10 + 2 * 2 + 2 * 36 + 2 + 2 * 2 + 2 * 18 + 16 * 8
    assert metrics["kept"] == pytest.approx(1 - removed / model.parameters / 2)


def test_costs_of_levels(digits: Dataset) -> None:
    federation = suited("fedhen", images(digits))
    metrics = run("fedhen", federation, {"simple": 0.25}, rounds=1).outcome().metrics
    small, large = (federation.model.variant(exits=exits) for exits in ("first", "both"))
    counted = [sum(macs(each.factory(), digits.input_shape).values()) for each in (small, large)]
    assert 0 < counted[0] < counted[1] and metrics["macs"] == (2 * counted[0] + 6 * counted[1]) / 8
    assert metrics["macs_ratio"] == pytest.approx(counted[1] / metrics["macs"])
    assert metrics["kept"] == pytest.approx((2 * small.parameters / large.parameters + 6) / 8)
    assert "paper_bytes" not in metrics


class Single(MLP):
    """A network that cannot be counted, as it refuses double precision."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            raise TypeError("needs single precision")
        return super().forward(x)


def test_a_failed_count_ends_no_run(digits: Dataset) -> None:
    federation = images(digits)
    federation.model = FlatModel(partial(Single, digits.input_shape, 10))
    ran = run("fedavg", federation)
    with pytest.warns(UserWarning, match=r"fedavg: not all costs were counted \(needs single precision\)"):
        metrics = ran.outcome().metrics
    assert "macs" not in metrics and metrics["paper_bytes"] == metrics["bytes_down"] + metrics["bytes_up"]


def test_attention_counts() -> None:
    """Of 6 tokens of width 8: four products with 8 x 8, scores and sums 6 x 6 x 8 each."""

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    assert sum(macs(Attending(), (6, 8)).values()) == 4 * 6 * 8 * 8 + 2 * 6 * 6 * 8
    encoder = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    assert sum(macs(encoder, (6, 8)).values()) == 4 * 6 * 8 * 8 + 2 * 6 * 6 * 8 + 2 * 6 * 8 * 16
    assert torch.backends.mha.get_fastpath_enabled()
