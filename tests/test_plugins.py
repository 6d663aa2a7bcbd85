"""Packages that `fedflow new` begins run as they are, and fedflow finds them once they are installed."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import fedflow, install, make_project, one_line_error

from fedflow.errors import BadInput
from fedflow.methods import METHODS
from fedflow.methods.registry import register
from fedflow.plugins import load_plugins
from fedflow.tracking.models import import_model

PAGE = Path(__file__).parents[1] / "docs" / "adding.md"
SECTIONS = {"tiny": "A network", "steps": "An extension of a run"}  # of packages with what the page shows
PARAMS = """
data: {digits: {source: digits}}
models: {digits: {name: tiny, options: {width: 8}}}
partitions: {sorted: {dataset: digits, scheme: in_order, clients: 4}}
training: {epochs: 1, batch_size: 64, lr: 0.1}
run: {rounds: 1, participation: 1.0}
methods: {halfway: {strength: 0.5}}
grid: {datasets: [digits], partitions: [sorted], methods: [halfway], seeds: [0]}
engine: {executor: inline, device: cpu}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, preloaded: Path) -> Path:
    """A folder of installed packages: a new method, a new scheme, and examples of docs/adding.md."""
    made, site = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("site")
    new = (("method", "halfway"), ("method", "trimmed", "--server"), ("scheme", "in_order"))
    for kind, name, *more in new:
        command = [str(preloaded / "fedflow"), "new", kind, name, *more, "--root", str(made)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert f"pip install -e {made / f'fedflow-{name}'}" in said.replace("\n", "")
        install(site, made / f"fedflow-{name}")
    (site / "made").symlink_to(made)
    for name, title in SECTIONS.items():
        section = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        (code,) = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.M)
        (site / f"fedflow_{name}.py").write_text(code)
        info = site / f"fedflow_{name}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: fedflow-{name}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(f"[fedflow.plugins]\n{name} = fedflow_{name}\n")
    return site


@pytest.fixture
def run(preloaded: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs ``fedflow`` in a folder, with the packages of a site."""

    def call(site: Path, *command: str, folder: Path) -> subprocess.CompletedProcess:
        return process(site, str(preloaded / "fedflow"), *command, folder=folder)

    return call


def process(site: Path, *command: str, folder: Path) -> subprocess.CompletedProcess:
    cache = str(site / "cache")
    paths = os.pathsep.join([str(site), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = os.environ | {"PYTHONPATH": paths, "FEDFLOW_CACHE": cache, "COLUMNS": "200"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_installed_plugins_are_listed_and_run(site: Path, run: Callable, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(PARAMS)
    for words, command in (
        ("Halfway", ("methods",)),
        ("strength", ("methods", "halfway")),
        ("in_order", ("schemes",)),
        ("one hidden layer of my own", ("models",)),
    ):
        for _ in range(2):  # computed, then remembered
            said = run(site, *command, folder=tmp_path)
            assert words in said.stdout, said.stderr
    said = run(site, "run", "--partition", "sorted", "--method", "halfway", folder=tmp_path)
    assert said.returncode == 0, said.stderr
    doctor = run(site, "doctor", folder=tmp_path).stdout
    assert re.search(r"^ok +plug-in halfway +fedflow-halfway 0.1.0: halfway *$", doctor, re.M)
    assert re.search(r"^ok +plug-in steps +fedflow-steps 0.1.0: StepNorm *$", doctor, re.M)
    metrics = json.loads((tmp_path / "results" / "sorted" / "halfway" / "0" / "metrics.json").read_text())
    assert metrics["method_label"] == "Halfway" and metrics["clients"] == 4
    assert "steps.json" in metrics["files"]
    header = (tmp_path / "results" / "sorted" / "halfway" / "0" / "rounds.csv").read_text().split("\n")[0]
    assert "method/step" in header.split(",")
    for first in ("fedflow.simulation.job", "fedflow.simulation.extensions.extension", "fedflow.partition"):
        said = process(site, sys.executable, "-c", f"import {first}", folder=tmp_path)
        assert said.returncode == 0, said.stderr


def test_the_text_of_the_template_is_no_reference(site: Path, run: Callable, tmp_path: Path) -> None:
    for _ in range(2):  # computed, then remembered
        said = run(site, "cite", "halfway", "ditto", folder=tmp_path)
        assert said.returncode == 0 and said.stdout.count("@") == 1 and "% Halfway: no source" in said.stdout
        assert said.stderr.startswith(
            "fedflow: warning: Halfway: the source is still the placeholder of `fedflow new`"
        )
        assert said.stderr.count("\n") == 1


def test_the_tests_of_new_packages_pass(site: Path) -> None:
    made = str(site / "made")
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", made, made)
    said = process(site, *command, folder=site / "made")
    assert said.returncode == 0, said.stdout


def test_a_plugin_that_fails_is_one_line(site: Path, run: Callable, tmp_path: Path) -> None:
    package = tmp_path / "broken"
    info = package / "broken-0.1.0.dist-info"
    info.mkdir(parents=True)
    (package / "broken.py").write_text("import nothing_of_this_name\n")
    (info / "METADATA").write_text("Name: broken\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[fedflow.plugins]\nbroken = broken\n")
    said = run(package, "methods", folder=tmp_path)
    assert said.returncode == 2 and said.stderr.count("\n") == 1
    assert "the plug-in broken cannot be imported (ModuleNotFoundError" in said.stderr
    said = run(package, "doctor", "--json", folder=tmp_path)
    found = {finding["what"]: finding for finding in json.loads(said.stdout)}["plug-in broken"]
    assert said.returncode == 2 and found["status"] == "bad"
    assert "cannot be imported (ModuleNotFoundError: No module named 'nothing" in found["detail"]


def install_inner(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a plug-in ``inner`` of this code into a folder, in this process."""
    (folder / "inner_plugin.py").write_text(code)
    (folder / "inner-0.1.0.dist-info").mkdir()
    (folder / "inner-0.1.0.dist-info" / "METADATA").write_text("Name: inner\nVersion: 0.1.0\n")
    entry = "[fedflow.plugins]\ninner = inner_plugin\n"
    (folder / "inner-0.1.0.dist-info" / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, "inner_plugin", None)
    del sys.modules["inner_plugin"]  # so that another test may have one


@pytest.mark.parametrize(
    ("code", "advised"),
    [
        ("from fedflow.methods.base import Method", True),  # a module of an older version
        ("from fedflow.settings import options", True),
        ("import fedflow as ff\nff.Methods", False),  # which names the nearest one
        ("import fedflow_of_nobody", False),
    ],
)
def test_a_plugin_that_imports_from_within_fedflow_is_told_how(
    code: str, advised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_inner(code, tmp_path, monkeypatch)
    advice = r" \(plug-ins import names from `fedflow` alone: docs/api.md\)" if advised else ""
    with one_line_error(f"^the plug-in inner cannot .*; fix inner_plugin{advice}, or uninstall its package$"):
        load_plugins()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import json\njson.loads('1 2')", "JSONDecodeError: Extra data: .*; inner_plugin.py, line 2"),
        ("import sys\nsys.exit('no')", "SystemExit: no; inner_plugin.py, line 2"),
        ("import fedflow as ff\n@ff.register_method('inner', 'Inner')\nclass Inner: ...", "Method"),
        ("import fedflow as ff\n@ff.register_scheme('inner')\nclass Inner: ...", "Scheme"),
        ("import fedflow as ff\n@ff.register_extension('inner')\nclass Inner: ...", "Extension"),
        ("import fedflow as ff\n@ff.register_update_step('inner', 'Inner')\nclass Inner: ...", "UpdateStep"),
        ("import fedflow as ff\n@ff.register_run_extension\nclass Inner: ...", "RunExtension"),
        ("import fedflow as ff\n@ff.register_procedure('inner', 'Inner')\nclass Inner: ...", "Procedure"),
    ],
)
def test_a_plugin_that_fails_names_its_line_or_class(
    code: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_inner(code, tmp_path, monkeypatch)
    accepted = rf"expected a class of fedflow\.[\w.]+\.{why}; inner_plugin.py, line \d"
    why = f"BadInput: class: 'Inner' is not accepted; {accepted}" if why.isidentifier() else why
    with one_line_error(rf"^the plug-in inner cannot be imported \({why}\); fix inner_plugin, or uninstall"):
        load_plugins()
    assert "inner" not in METHODS


WHOLE = """
import fedflow as ff

class Options(ff.Settings):
    section = "data"

@ff.register_method("whole", "Whole")
class Whole(ff.FedAvg, ff.Cyclic): ...

@ff.register_scheme("whole")
class Dealt(ff.Scheme): ...

@ff.register_procedure("whole", "Whole")
class Steps(ff.Procedure):
    curves = {"error": ff.Column("Error")}

@ff.register_network("whole", "a test")
class Network(ff.TwoExits): ...

@ff.register_extension("whole")
class Extension(ff.Extension): ...

@ff.register_update_step("whole", "Whole")
class Step(ff.UpdateStep):
    clip: ff.Clip | None = None

ff.register_source(ff.Source(name="whole", title="", about="", kind="made", origin="", options=Options))
ff.drawing, ff.coresets, ff.heterogeneity, ff.Trainer
for name in ("run", "dirichlet", "Result", "load_model", "whole"):
    try:
        getattr(ff, name)
    except AttributeError as error:
        assert str(error) == f"fedflow.{name} is there once plug-ins are imported: use it within a function"
    else:
        raise AssertionError(name)
"""
REGISTERED = """
from fedflow import data, methods, models, partition, procedures
for table in (data.SOURCES, methods.METHODS, models.ARCHITECTURES, partition.SCHEMES, procedures.PROCEDURES):
    assert "whole" in table
from fedflow.simulation.updates import STEPS
from fedflow.local.extensions.extension import REGISTERED
assert {"clip", "whole"} < {*STEPS} and {"label_flip", "whole"} <= {*REGISTERED}
assert ff.whole(clients=3).scheme == "whole" and ff.Whole.name == "whole" and ff.run
"""


@pytest.mark.parametrize(
    "first",
    [
        "import fedflow as ff; ff.run",
        "import fedflow as ff; ff.Whole",
        "import fedflow.front.runner",
        "import fedflow.config",
        pytest.param("import fedflow.procedures", marks=pytest.mark.full),
        pytest.param("import fedflow.simulation.loop", marks=pytest.mark.full),
    ],
)
def test_a_plugin_can_register_everything_whatever_is_imported_first(
    first: str, preloaded: Path, tmp_path: Path
) -> None:
    """Names for running are refused while plug-ins are imported, always, and not only in an unlucky order."""
    info = tmp_path / "whole-0.1.0.dist-info"
    info.mkdir()
    (tmp_path / "whole_plugin.py").write_text(WHOLE)
    (info / "METADATA").write_text("Name: whole\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[fedflow.plugins]\nwhole = whole_plugin\n")
    code = f"{first}\nimport fedflow as ff\n{REGISTERED}"
    done = process(tmp_path, str(preloaded / "python"), "-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_name_is_registered_once() -> None:
    with pytest.raises(BadInput, match=r"name: .fedavg. .* that fedflow.methods.averaging.fedavg does not"):
        register("fedavg", "Mine")(type("Mine", (METHODS["fedavg"],), {"__module__": "mine"}))
    assert METHODS["fedavg"].__name__ == "FedAvg"


def test_names_and_folders_that_do_not_fit_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("Half", "half-way", "1st", "half_"):
        assert "lower-case letters" in fedflow(capsys, "new", "method", name).err
    for name in ("class", "none", "null", "on"):  # `class None` is not valid Python
        assert "no other meaning in Python and YAML" in fedflow(capsys, "new", "method", name).err
    for kind, name in (("method", "fedavg"), ("method", "fed_prox"), ("scheme", "iid")):
        assert (
            f"'{name}' is not accepted; expected a name that no other {kind} has"
            in fedflow(capsys, "new", kind, name).err
        )
    assert fedflow(capsys, "new", "method", "mine").code == 0
    assert "exists; choose another name" in fedflow(capsys, "new", "method", "mine").err
    assert fedflow(capsys, "new", "thing", "mine").code == 2
    said = fedflow(capsys, "new", "trial", "quick", "--root", "my projects").out
    assert "next: cd 'my projects/quick' && fedflow sweep" in " ".join(said.split())
    assert "--server: 'scheme' is not acc" in fedflow(capsys, "new", "scheme", "other", "--server").err
    make_project(tmp_path)
    said = fedflow(capsys, "run", "--partition", "skewed", "--method", "mine").err
    assert said.startswith("fedflow: method.name: 'mine' is not accepted; expected an installed name")
    assert "`pip install -e fedflow-mine`" in said and said.count("\n") == 1
    monkeypatch.chdir("fedflow-mine")
    assert "`pip install -e .`" in fedflow(capsys, "methods", "mine").err


@pytest.mark.slow
def test_a_new_data_set_and_a_new_trial_run_as_they_are(run: Callable, tmp_path: Path) -> None:
    """What `fedflow new` prints as the next commands, on few rounds; a model of the run is exported."""
    shorter = ("--set", "grid.seeds=[0]", "--set", "run.rounds=2", "--set", "grid.methods=[fedavg]")
    for kind, name in (("dataset", "leaves"), ("trial", "quick")):
        said = run(tmp_path, "new", kind, name, folder=tmp_path)
        folder = tmp_path / name
        assert f"next: cd {name} && " in said.stdout, said.stderr
        if kind == "dataset":
            subprocess.run([sys.executable, f"make_{name}.py"], cwd=folder, check=True)
        done = run(tmp_path, "sweep", *shorter, folder=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (folder / "runs" / "skewed" / "fedavg").is_dir()
        (folder_of_run,) = (folder / "runs" / "skewed" / "fedavg").iterdir()
        command = ("export", f"skewed/fedavg/{folder_of_run.name}", "model.safetensors")
        done = run(tmp_path, *command, folder=folder)
        assert done.returncode == 0 and "global model" in done.stdout, done.stderr
        assert import_model(folder / "model.safetensors") is not None
    assert "exists; choose another name" in run(tmp_path, "new", "trial", "quick", folder=tmp_path).stderr
