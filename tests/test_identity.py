"""What a run's identity is made of: all code that its numbers depend on, and no other."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from command import make_project
from support import images, prepare_run, run, suited

import fedflow
from fedflow.config import load_params
from fedflow.data import Dataset
from fedflow.methods import METHODS, build_method
from fedflow.partition import SCHEMES
from fedflow.project import code
from fedflow.project.code import ASIDE, closure, modules_of
from fedflow.simulation.loop import Simulation
from fedflow.stages.fingerprints import write_fingerprints

HOME = Path(fedflow.__file__).parent
QUICK = {"flt": {"encoder": "pixels"}}  # without an encoder to train


@pytest.mark.by_profile
@pytest.mark.parametrize("name", METHODS)
def test_all_code_that_a_run_calls_is_part_of_its_identity(name, digits, tmp_path) -> None:
    """Whatever the way it is imported: calls are seen as they happen.

    An extension that is not ``wanted`` changes nothing, and its module counts only where settings name it.
    """
    federation, files = suited(name, images(digits)), set[str]()

    def see(frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code.co_name != "wanted":
            files.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        run(name, federation, QUICK.get(name), rounds=2, checkpoints=tmp_path).outcome()
    finally:
        sys.setprofile(before)
    called = {path for file in files if (path := Path(file)).is_relative_to(HOME)}
    modules = *modules_of(build_method(name)), *federation.model.modules
    counted = closure(Simulation.__module__, *modules)
    left = {path.relative_to(HOME).with_suffix("").parts[0] for path in called - {*counted.values()}}
    assert left <= {*ASIDE}
    assert METHODS[name].__module__ in counted
    own = [module for module in counted if module.startswith("fedflow.methods.")]
    assert len(own) < 14  # its own family, and not all methods


def test_a_partition_counts_its_own_scheme_only() -> None:
    def schemes(name: str) -> set[str]:
        found = closure("fedflow.partition.partition", SCHEMES[name].__module__)
        return {name for name, scheme in SCHEMES.items() if scheme.__module__ in found}

    assert schemes("natural") == {"natural"}
    assert schemes("iid") == {"iid"}
    assert not [m for m in closure("fedflow.partition.partition") if m.startswith("fedflow.local")]


@pytest.mark.parametrize(
    ("parent", "follows"), [("mine", True), ("site-packages", False), ("dist-packages", False)]
)
def test_an_installed_package_counts_without_its_neighbors(tmp_path, monkeypatch, parent, follows) -> None:
    folder = tmp_path / parent
    folder.mkdir()
    names = [f"{kind}_{parent.replace('-', '_')}_of_a_test" for kind in ("first", "second")]
    (folder / f"{names[0]}.py").write_text(f"import {names[1]}")
    (folder / f"{names[1]}.py").write_text("x = 1")
    monkeypatch.syspath_prepend(folder)
    importlib.import_module(names[0])
    assert (names[1] in closure(names[0])) == follows


def test_a_plugin_counts_what_it_takes_from_fedflow_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = """
import fedflow as ff
from fedflow import Update

class Mine(ff.Scaffold):
    def angles(self, training: ff.Training) -> None:
        ff.heterogeneity.proximity([])
"""
    (tmp_path / "fedflow_of_a_test.py").write_text(plugin)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fedflow_of_a_test", raising=False)
    importlib.import_module("fedflow_of_a_test")
    counted = closure("fedflow_of_a_test").keys()
    used = {"methods.averaging.scaffold", "local.client", "local.local_training", "heterogeneity.subspace"}
    assert {f"fedflow.{name}" for name in used} <= counted
    assert not counted & {"fedflow", "fedflow.methods.averaging.fedprox", "fedflow.front.names"}
    assert counted >= closure("fedflow.methods.averaging.scaffold").keys()


def test_a_source_is_parsed_again_only_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when a file of the same size and time is another one, and whatever the cache holds."""
    file, cache = tmp_path / "of_a_test.py", tmp_path / "cache"
    monkeypatch.setattr(code, "PACKAGE", tmp_path)
    monkeypatch.setenv("FEDFLOW_CACHE", str(cache))

    def content(text: str, parses: bool) -> str:
        """As a new process finds it."""
        for cached in (code._source, code._stored):
            cached.cache_clear()
        file.write_text(text)
        os.utime(file, (0, 0))
        with monkeypatch.context() as patch:
            if not parses:
                patch.delattr(code.ast, "parse")
            digest = code._content(file)
        code._keep()
        return digest

    first = content("x = 1", parses=True)
    assert content("x = 1", parses=False) == first
    assert content("x = 2", parses=True) != first
    assert content("x = 1", parses=True) == first
    (kept,) = (cache / "sources").iterdir()
    kept.write_text("[")
    assert content("x = 1", parses=True) == first
    assert content("x = 1", parses=False) == first


# File, text, and what replaces it: an interrupted run of FedAvg survives all of the first at once ...
HARMLESS = [
    ("methods/averaging/fedprox.py", "Pull(self.mu, w)", "Pull(2 * self.mu, w)"),
    ("methods/averaging/newest.py", "", "import torch\n"),
    ("methods/averaging/__init__.py", "    fedavg,\n", "    _fedopt,\n    fedavg,\n"),
    ("methods/averaging/fedavg.py", '"""FedAvg:', '"""FedAvg, in other words:'),
    ("local/client.py", "import torch\n", "import torch  # a comment\n"),
    ("models/cnn.py", "padding: int = 0", "padding: int = 1"),
    ("data/synthetic.py", "import numpy as np\n", "import math\nimport numpy as np\n"),
]
# ... and none of these.
HARMFUL = {
    "the method": ("methods/averaging/fedavg.py", "w - self", "1 * w - self"),
    "its base": ("methods/averaging/_averaging.py", "\nclass", "\nMORE = 1\n\n\nclass"),
    "local training": ("local/client.py", "import torch\n", "import math\nimport torch\n"),
    "the network": ("models/mlp.py", "(200,)", "(201,)"),
    "the engine": ("simulation/worker.py", "RETRIES = 1 ", "RETRIES = 2 "),
}
# Starts a run, edits, and prints how many rounds are resumed, by processes that import fedflow themselves.
SCRIPT = """
import json, os, sys
from pathlib import Path
import pytest
sys.dont_write_bytecode = True

def prepared():
    from support import images, prepare_run
    from fedflow.data import DatasetParams, load_prepared, prepare
    there = Path("digits")
    digits = load_prepared(there) if there.exists() else prepare(DatasetParams(source="digits"), there)
    settings = {"rounds": 3, "checkpoint_every": 1, "checkpoints": Path("checkpoints")}
    return prepare_run("fedavg", images(digits), **settings)

def forked(do):
    child = os.fork()
    if not child:
        do()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

forked(lambda: next(prepared().rounds()))
for edits in json.loads(sys.argv[1]):
    before = {}
    for file, old, new in edits:
        path = Path("fedflow", file)
        before[path] = path.read_text() if old else ""
        assert old in before[path], file
        path.write_text(before[path].replace(old, new) if old else new)
    forked(lambda: print(len(prepared().state.history)))
    for path, text in before.items():
        path.write_text(text)
"""


@pytest.mark.full
def test_an_interrupted_run_is_resumed_unless_its_own_code_changed(tmp_path: Path, preloaded: Path) -> None:
    shutil.copytree(HOME, tmp_path / "fedflow", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).with_name("support.py"), tmp_path)
    edits = json.dumps([HARMLESS, *([each] for each in HARMFUL.values())])
    command = [preloaded / "python", "-c", SCRIPT, edits]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    resumed = dict(zip(["harmless", *HARMFUL], map(int, done.stdout.split()), strict=True))
    assert resumed == {"harmless": 1} | dict.fromkeys(HARMFUL, 0)


def test_what_is_left_aside_exists() -> None:
    """A module that moved would be part of every identity from then on."""
    paths = [HOME.joinpath(*part.split(".")) for part in ASIDE]
    assert all(path.is_dir() or path.with_suffix(".py").is_file() for path in paths)
    assert not [name for name in closure("fedflow.stages.federate") if name.startswith("fedflow.project")]


def test_ways_to_start_the_same_layers_are_different_networks(digits: Dataset) -> None:
    plain, zeros = (images(digits, hidden=(), zeros=zeros) for zeros in (False, True))
    one, other = (prepare_run("fedavg", each).fingerprint for each in (plain, zeros))
    assert one != other


def test_another_version_of_a_library_changes_what_every_stage_depends_on(tmp_path, monkeypatch) -> None:
    """But not another build of the same version, such as that for a GPU."""
    root = make_project(tmp_path)
    texts = []
    for release in ("2.8.0", "2.8.0+cu126", "2.8.1"):
        monkeypatch.setattr("fedflow.project.identity._version", lambda name, own=release: own)
        write_fingerprints(load_params(root / "params.yaml"), root)
        files = sorted((root / "data" / "fingerprints").rglob("*.json"))
        texts.append({file.name: file.read_text() for file in files})
    plain, build, newer = texts
    assert plain == build
    changed = {name for name, text in newer.items() if text != plain[name]}
    assert changed == {"environment.json", "grid.json", "skewed.json"}  # the partition
    stages = yaml.safe_load((HOME.parent / "dvc.yaml").read_text())["stages"]
    assert "data/fingerprints/environment.json" in stages["prepare"]["deps"]
