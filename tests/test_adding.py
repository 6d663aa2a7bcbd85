"""The examples of docs/adding.md run as they are printed (that of a procedure: tests/procedures)."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import one_line_error
from support import Workers, prepare_run, quadratics
from torch import Tensor

import fedflow as ff
from fedflow.config import load_params
from fedflow.data import SOURCES
from fedflow.local.extensions.extension import REGISTERED
from fedflow.methods import METHODS
from fedflow.models import ARCHITECTURES
from fedflow.partition import SCHEMES
from fedflow.simulation.extensions.extension import REGISTERED as RUN_EXTENSIONS
from fedflow.simulation.updates import STEPS

PARAMS = Path(__file__).parents[1] / "params.yaml"
PAGE = PARAMS.with_name("docs").joinpath("adding.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
RUN: dict[str, Any] = {"rounds": 2, "training": {"batch_size": 32, "lr": 0.1}, "progress": False}


def block(words: str) -> str:
    """The one example with these words."""
    (found,) = (each for each in BLOCKS if words in each)
    return found


def made(name: str, *renamed: str, **more: Any) -> Any:
    """The class of this name, as its example alone makes it."""
    names: dict[str, Any] = {"__name__": __name__, **more}
    exec(block(f"class {name}(").replace(*(renamed or ("", ""))), names)
    return names[name]


@pytest.fixture(autouse=True)
def registers() -> Iterator[None]:
    """What is registered is as it was afterwards."""
    registries: tuple[dict[str, Any], ...] = (METHODS, SCHEMES, SOURCES, ARCHITECTURES, STEPS)
    registries += (REGISTERED, RUN_EXTENSIONS)
    before = [dict(registry) for registry in registries]
    yield
    for registry, own in zip(registries, before, strict=True):
        registry.clear()
        registry.update(own)


def trained(method: Any, **more: Any) -> Tensor:
    run = ff.run("digits", ff.dirichlet(alpha=0.5, clients=4), method, **RUN | more)
    return torch.cat([w.flatten() for w in run.model(client=0).parameters()])


@pytest.mark.parametrize("text", BLOCKS, ids=lambda text: text.split("\n")[0])
def test_every_example_is_python(text: str) -> None:
    ast.parse(text)


def test_the_first_method_is_that_of_the_package() -> None:
    names = made("FedProx", '"fedprox"', '"of_the_page"')
    assert torch.equal(trained(names(mu=0.5)), trained(ff.FedProx(mu=0.5)))


def test_two_widths_train() -> None:
    model = {"name": "mlp", "options": {"hidden": [200]}}
    assert trained(made("TwoWidths")(), model=model).isfinite().all()


def test_loss_weights_wrap_a_host() -> None:
    assert trained(made("LossWeights")()).isfinite().all()


def test_the_scheme_deals_the_first_labels() -> None:
    labels = np.arange(60) % 6
    dealt = made("FirstLabels")(labels=3).split(ff.Samples(labels), 5, np.random.default_rng(0)).train
    assert sorted(np.concatenate(dealt)) == np.flatnonzero(labels < 3).tolist()


def test_the_source_is_named_in_params_and_has_its_options(tmp_path: Path) -> None:
    options = made("ShapesOptions", draw_shapes=drawn)
    assert options.parse({"sides": 5}).sides == 5
    params = load_params(PARAMS, ["data.mine={source: shapes, sides: 5}"])
    assert params.data["mine"].flat() | {"sides": 5, "source": "shapes"} == params.data["mine"].flat()
    with one_line_error("^data.mine.sides: 2 .*>= 3"):
        load_params(PARAMS, ["data.mine={source: shapes, sides: 2}"])
    with one_line_error("^name: 'mnist' .*another name than a source of fedflow"):
        ff.register_source(replace(SOURCES["shapes"], name="mnist"))
    model = ff.run({"source": "shapes", "sides": 5}, ff.iid(clients=2), model="mlp", **RUN).model()
    assert sum(w.numel() for w in model.parameters()) > 28 * 28


def drawn(sides: int) -> ff.RawData:
    """Thirty images of two classes, for training and for the test."""
    x, y = np.full((30, 28, 28), sides, np.uint8), np.arange(30) % 2
    return ff.RawData(x, y, x, y)


def test_the_network_is_named_like_those_of_fedflow() -> None:
    network = made("Tiny")
    run = ff.run("digits", ff.iid(clients=2), model={"name": "tiny", "width": 3}, **RUN)
    assert isinstance(run.model(), network) and run.model().hidden.out_features == 3
    with one_line_error("^name: 'mlp' .*another name than a network of fedflow.models.mlp"):
        ff.register_network("mlp", "mine")(network)


def test_an_extension_smooths_labels_and_is_recorded() -> None:
    made("Smoothing")
    training = RUN["training"] | {"extensions": {"smoothing": {"most": 0.3}}}
    run = ff.run("digits", ff.iid(clients=2), **RUN | {"training": training})
    assert 0 < run.rounds["client/strength/mean"].iloc[0] < 0.3


def test_a_step_rounds_updates_and_counts_fewer_bytes() -> None:
    step = made("RoundUp")
    go: dict[str, Any] = {"partition": ff.iid(clients=4), "participation": 1, **RUN}
    plain, fine, coarse = (
        ff.run("digits", updates=updates, **go) for updates in ([], [step(digits=6)], [step(digits=1)])
    )
    up = [each.rounds["bytes_up"].iloc[-1] for each in (plain, fine, coarse)]
    assert up[1] == up[0] * 28 / 32 and up[2] == up[0] / 4
    lost = [each.rounds["client/round_up.lost/mean"].iloc[0] for each in (fine, coarse)]
    assert 0 < lost[0] < lost[1]
    with one_line_error(r"^run.updates\[0\].digits: 9 .*<= 6"):
        ff.run("digits", updates=[{"step": "round_up", "digits": 9}], **go)


def test_the_extension_of_a_run_records_the_steps(tmp_path: Path) -> None:
    extension = made("StepNorm")
    settings: dict[str, Any] = {"rounds": 3, "checkpoint_every": 1, "participation": 0.5}
    plain = prepare_run("fedavg", federation := quadratics(), executor=Workers(3), **settings)
    assert [type(each) for each in plain.extensions][-1] is extension
    steps = [report.values["method/step"] for report in plain.rounds()]
    assert all(step > 0 for step in steps)
    again = partial(prepare_run, "fedavg", federation, checkpoints=tmp_path / "checkpoints", **settings)
    next(again().rounds())
    resumed = again()
    assert [report.values["method/step"] for report in resumed.rounds()] == steps
    for run in (plain, resumed):
        run.outcome().files["steps.json"](tmp_path / "steps.json")
        assert json.loads((tmp_path / "steps.json").read_text()) == {"total": sum(steps)}
    assert extension not in [type(each) for each in prepare_run("local", federation).extensions]


def test_a_scheme_of_another_module_is_not_replaced() -> None:
    scheme = made("FirstLabels")
    with one_line_error("^name: 'iid' .* a name that fedflow.partition.iid does not register"):
        ff.register_scheme("iid")(scheme)
    assert SCHEMES["iid"].__module__ == "fedflow.partition.iid"
