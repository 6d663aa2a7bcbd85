"""Networks by import path: trained, recorded, resumed, outdated after an edit, and refused in one line."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from command import fedflow, one_cell, prepared_project
from support import refused
from torch import nn

import fedflow as ff
from fedflow.config import load_params
from fedflow.models import build
from fedflow.models.registry import architecture
from fedflow.project import code
from fedflow.stages.experiment import Experiment

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "networks.md"
SIMPLE = "run: {rounds: 2, participation: 1.0}\ntraining: {epochs: 1, batch_size: 64}\n"
NETS = """
from parts_of_test import width_of
from torch import nn

class Wide(nn.Sequential):
    def __init__(self, input_shape, num_classes):
        layers = nn.Linear(64, width_of()), nn.ReLU(), nn.Linear(width_of(), num_classes)
        super().__init__(nn.Flatten(), *layers)

class Fixed(nn.Linear):
    def __init__(self, **options):
        super().__init__(**options)

class Needs(nn.Module):
    def __init__(self, depth):
        super().__init__()

def number(): return 3
def fails(): raise KeyError("weights")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with modules that nothing has imported yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("nets", "nets_of_test", "parts_of_test"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for cached in (code.closure, code._file, code._home, code._imports, code._definer):
        cached.cache_clear()
    (tmp_path / "nets_of_test.py").write_text(NETS)
    (tmp_path / "parts_of_test.py").write_text("def width_of(): return 8\n")
    return tmp_path


def page_blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.M)


def params(network: str) -> str:
    return one_cell("{source: digits}", network, "scheme: iid, clients: 3") + SIMPLE


def test_the_class_of_the_page_is_trained_recorded_and_loaded(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "nets.py").write_text(page_blocks("python")[0])
    (entry,) = re.findall(r"digits: (\{.*\})\}", page_blocks("yaml")[0])
    (project / "params.yaml").write_text(params(entry))
    command = ("run", "--partition", "few", "--method", "fedavg", "--set", "engine.executor=inline")
    done = fedflow(capsys, *command)
    assert done.code == 0, done.err
    (run_id,) = re.findall(r"run ([0-9a-f]{32})", done.err + done.out)
    net = ff.load_model(run_id)
    assert net[1].weight.shape == (16, 64) and type(net).__module__ == "nets"
    plain = ff.run(
        "digits", ff.iid(clients=3), model={"name": "nets:Net", "width": 16}, rounds=2, progress=False,
        training={"epochs": 1, "batch_size": 64}, evaluate_every=1,
    )  # fmt: skip
    assert all(map(torch.equal, net.parameters(), plain.model().parameters()))


def test_an_edit_of_its_file_or_of_one_beside_it_outdates_the_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = prepared_project(project, params('"nets_of_test:Wide"'), "few")

    def identity() -> Any:
        return Experiment(read, "few", "fedavg", 0, project).identity

    before, content = identity(), code._content
    assert identity().differences(before) == []
    for edited in ("nets_of_test.py", "parts_of_test.py"):
        monkeypatch.setattr(code, "_content", lambda file: content(file) + "!" * (file.name == edited))  # noqa: B023
        assert before.differences(identity()) == ["code"], edited


def test_what_is_imported_gets_its_options(project: Path) -> None:
    assert architecture("nets_of_test:Wide").build.__name__ == "Wide"
    net = build("nets_of_test:Fixed", (5,), 3, in_features=5, out_features=3, trainable=["weight"])
    assert isinstance(net, nn.Linear) and not net.bias.requires_grad
    net = build("torchvision.models:shufflenet_v2_x0_5", (3, 32, 32), 7, num_classes=7)
    assert net.fc.out_features == 7


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("nets_of_test:Deep", r"models\.data\.name: 'nets_of_test:Deep' .*AttributeError: .*'Deep'"),
        ("nets_of_test:nn", r"models\.data\.name: .*package\.module:Name, not a module"),
        ("no_such_module:Net", r"models\.data\.name: .*No module named 'no_such_module'"),
        (":Net", r"models\.data\.name: ':Net' .*ValueError"),
        ("{name: 'nets_of_test:Wide', options: {width: 3}}", r"data\.options\.width: 'width' .*num_classes"),
        ("{name: 'nets_of_test:Wide', trainable: 3}", r"models\.data\.trainable: 3 .*a list"),
    ],
)  # fmt: skip
def test_refused_in_params(project: Path, network: str, message: str) -> None:
    network = network if network.startswith("{") else f"'{network}'"
    (project / "params.yaml").write_text(params(network))
    with refused(message):
        load_params(project / "params.yaml")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Needs", r"fit inputs \(5,\) \(TypeError: .*'depth'\)"),
        ("number", "it makes a int, not a torch.nn.Module"),
        ("fails", "KeyError: has no 'weights'"),
        ("Wide", "shapes cannot be multiplied"),
    ],
)
def test_refused_when_built(project: Path, name: str, message: str) -> None:
    with refused(f"model.name: 'nets_of_test:{name}' .*{message}"):
        build(f"nets_of_test:{name}", (5,), 3)
