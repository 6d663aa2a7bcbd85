"""The examples of docs/adding.md run as they are printed (that of a procedure: tests/procedures)."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedflow as ff
from fedflow.data.sources import Source
from fedflow.methods import METHODS
from fedflow.methods.fairness._weighing import Weighing
from fedflow.methods.method import Cohort, Diagnostics, GlobalModel, Round
from fedflow.methods.registry import register as register_method
from fedflow.methods.subnetworks._levels import Levels
from fedflow.partition import SCHEMES, Samples
from fedflow.partition.scheme import Scheme, Split
from fedflow.partition.scheme import register as register_scheme
from fedflow.settings import Settings, option

PAGE = (Path(__file__).parents[1] / "docs" / "adding.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
RUN: dict[str, Any] = {"rounds": 2, "training": {"batch_size": 32, "lr": 0.1}, "progress": False}
NAMES: dict[str, Any] = {  # the imports that the page names or leaves to the reader
    "Any": Any, "Mapping": Mapping, "dataclass": dataclass, "np": np, "Tensor": Tensor, "option": option,
    "Levels": Levels, "Weighing": Weighing, "Round": Round, "Cohort": Cohort, "Diagnostics": Diagnostics,
    "GlobalModel": GlobalModel, "Scheme": Scheme, "Split": Split, "Samples": Samples, "Settings": Settings,
    "Source": Source,
}  # fmt: skip


def block(words: str) -> str:
    """The one example with these words."""
    (found,) = (each for each in BLOCKS if words in each)
    return found


@pytest.fixture(autouse=True)
def registers() -> Iterator[None]:
    """Methods and schemes are as they were afterwards."""
    before = dict(METHODS), dict(SCHEMES)
    yield
    for registry, own in zip((METHODS, SCHEMES), before, strict=True):
        registry.clear()
        registry.update(own)


def trained(method: Any, **more: Any) -> Tensor:
    run = ff.run("digits", ff.dirichlet(alpha=0.5, clients=4), method, **RUN | more)
    return torch.cat([w.flatten() for w in run.model(client=0).parameters()])


@pytest.mark.parametrize("text", BLOCKS, ids=lambda text: text.split("\n")[0])
def test_every_example_is_python(text: str) -> None:
    ast.parse(text)


def test_the_first_method_is_that_of_the_package() -> None:
    names: dict[str, Any] = {}
    exec(block('@register("fedprox"').replace('@register("fedprox"', '@register("of_the_page"'), names)
    assert torch.equal(trained(names["FedProx"](mu=0.5)), trained(ff.FedProx(mu=0.5)))


def test_two_widths_train() -> None:
    names = NAMES | {"register": register_method}
    exec(block('@register("two_widths"'), names)
    model = {"name": "mlp", "options": {"hidden": [200]}}
    assert trained(names["TwoWidths"](), model=model).isfinite().all()


def test_loss_weights_wrap_a_host() -> None:
    names = NAMES | {"register": register_method}
    exec(block('@register("loss_weights"'), names)
    assert trained(names["LossWeights"]()).isfinite().all()


def test_the_scheme_deals_the_first_labels() -> None:
    names = NAMES | {"register": register_scheme}
    exec(block('@register("first_labels")'), names)
    labels = np.arange(60) % 6
    dealt = names["FirstLabels"](labels=3).split(Samples(labels), 5, np.random.default_rng(0)).train
    assert sorted(np.concatenate(dealt)) == np.flatnonzero(labels < 3).tolist()


def test_the_source_has_its_options() -> None:
    names = NAMES | {"draw_shapes": lambda sides: None}
    exec(block("class ShapesOptions"), names)
    assert names["ShapesOptions"].parse({"sides": 5}).sides == 5
