"""``fedflow landscape`` on the recorded models of real runs."""

import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from command import fedflow, make_project, recorded_runs
from matplotlib.image import imread

from fedflow.cli.options import load
from fedflow.stages.all_stages import run_experiment
from fedflow.stages.experiment import Experiment
from fedflow.tracking.store import open_store

FEW = ("--points", 3, "--directions", 2, "--samples", 0)
RUNS = {"fedavg": (), "ifca": (), "local": (), "wide": ("models.digits.options.hidden=[9]",)}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with a global, a cluster, a personal and a wider model of two rounds, or of one."""
    root = make_project(tmp_path_factory.mktemp("landscapes"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        for name, changes in RUNS.items():
            method = "fedavg" if name == "wide" else name
            experiment = Experiment(load(root, ["run.rounds=1", *changes]), "skewed", method, 0, root)
            run_experiment(experiment, out=root / "results" / "skewed" / name / "0")
        yield root


def table(project, name: str) -> pd.DataFrame:
    return pd.read_csv(project / "landscapes" / f"{name}.csv")


def test_planes_around_models_are_drawn_written_and_logged(capsys, project):
    runs = ("skewed/fedavg/0", "skewed/ifca/0:2", "skewed/local/0:5")
    done = fedflow(capsys, "landscape", *runs, *FEW, "--name", "planes", "--root", project)
    assert (done.code, done.err) == (0, "")
    lines = re.findall(
        r"^(.*): loss (\S+), accuracy (\S+), sharpness \S+ ± \S+ \(rho 0.2, 2 dir", done.out, re.M
    )
    assert [line[0] for line in lines] == ["FedAvg", "IFCA, client 2", "Local, client 5"]
    found = table(project, "planes")
    assert len(found) == 27 and np.isfinite(found["loss"]).all()
    center = found.query("x == 0 and y == 0")
    np.testing.assert_allclose(center["loss"], [float(line[1]) for line in lines], rtol=1e-3)
    metrics = json.loads((project / "results" / "skewed" / "fedavg" / "0" / "metrics.json").read_text())
    assert center["accuracy"].iloc[0] == pytest.approx(metrics["global_accuracy"])
    folder = project / "landscapes"
    assert imread(folder / "planes.png").std() > 0.05
    assert "FedAvg" in (folder / "planes.svg").read_text()
    api = open_store(project).client()
    numbers = [run.info.run_id for run in recorded_runs(project)]
    logged = [[a.path for a in api.list_artifacts(number, "landscapes")] for number in numbers]
    files = [f"landscapes/planes.{kind}" for kind in ("csv", "png", "svg")]
    assert sorted(logged) == [[], files, files, files]


def test_a_segment_and_a_triangle_meet_their_models(capsys, project):
    runs = ("skewed/local/0:1", "skewed/fedavg/0", "skewed/local/0:4")
    for name, used, points in (("line", runs[:2], 8), ("triangle", runs, 8)):
        more = ("--points", points, "--samples", 0, "--directions", 1)
        done = fedflow(capsys, "landscape", *used, "--between", *more, "--name", name, "--root", project)
        assert (done.code, done.err) == (0, "")
        assert len(table(project, name)) == points ** (len(used) - 1)
    first = float(re.search(r"Local, client 1: loss (\S+),", done.out)[1])
    line = table(project, "line")
    assert line["loss"].iloc[np.abs(line["x"]).argmin()] == pytest.approx(first, rel=1e-3)


def test_a_client_is_scored_on_its_own_test_samples(capsys, project):
    more = (*FEW, "--own", "--name", "own", "--root", project)
    assert fedflow(capsys, "landscape", "skewed/local/0:5", *more).code == 0
    clients = pd.read_parquet(project / "results" / "skewed" / "local" / "0" / "clients.parquet")
    center = table(project, "own").query("x == 0 and y == 0")
    assert center["accuracy"].item() == pytest.approx(clients["local_accuracy"][5])


def test_files_are_named_after_the_runs_as_far_as_file_systems_allow(capsys, project, monkeypatch):
    """A name that cannot be written is refused before anything is computed."""
    from fedflow.stages import landscape

    runs = [*(f"skewed/local/0:{client}" for client in range(6)), "skewed/fedavg/0", "skewed/wide/0"]
    runs += [f"skewed/ifca/0:{client}" for client in range(4)]
    least = ("--points", 3, "--directions", 1, "--samples", 20, "--root", project)
    done = fedflow(capsys, "landscape", *runs, *least)
    assert (done.code, done.err) == (0, "")
    (file,) = (project / "landscapes").glob("around-skewed.local.0.0-skewed.local.0.1-*.csv")
    assert len(file.stem) == 150
    monkeypatch.setattr(landscape, "Landscape", lambda *given: pytest.fail("computed"))
    (project / "landscapes" / "folder.svg").mkdir()
    done = fedflow(capsys, "landscape", "skewed/fedavg/0", "--name", "folder", *least)
    assert done.code == 2 and "--name: " in done.err and "this is a folder" in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("skewed/fedavg/1",), "did you mean 'skewed/fedavg/0'.*; expected one of skewed/fedavg/0, "),
        (("skewed/local/0",), "with :CLIENT .*: a client with a recorded model: 0-5"),
        (("skewed/local/0:6",), "a client with a recorded model: 0-5"),
        (("skewed/fedavg/0:x",), "'skewed/fedavg/0:x' is not accepted; expected PARTITION/METHOD/SEED"),
        (("skewed/fedavg/0", "--own"), "--own: True is not accepted; expected runs with a client"),
        (("skewed/fedavg/0", "--between"), "expected two or three runs"),
        (("skewed/fedavg/0", "skewed/fedavg/0"), "expected different runs"),
        (("skewed/fedavg/0", "skewed/wide/0", "--between"), "different networks"),
        (("skewed/fedavg/0", "--radius", "0"), "radius: 0.0 is not accepted; expected a number > 0"),
        (("skewed/fedavg/0", "skewed/fedavg/1", "--between", "--radius", "2"), "--radius: 2.0 .* no radius"),
        (("skewed/fedavg/0", "--rho", "nan"), "rho: nan is not accepted"),
        (("skewed/fedavg/0", "--points", "2"), "--points"),
        (("skewed/fedavg/0", "--name", "a/b"), "--name: 'a/b' is not accepted"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(capsys, project, arguments, says):
    done = fedflow(capsys, "landscape", *arguments, "--root", project)
    assert done.code == 2 and done.err.count("\n") == 1
    assert re.search(says, done.err), done.err


def test_a_run_without_recorded_models_or_with_other_data_is_refused(capsys, project, tmp_path):
    """In the project of the tests before, whose facts and data are changed."""
    file = project / "results" / "skewed" / "fedavg" / "0" / "metrics.json"
    text = file.read_text()
    for field, says in (
        ("settings", "no model of a finished run with"),
        ("data_hash", "no model of a finished run with .* data with digest 0123456789abcdef"),
        ("", "the data .*has changed"),
    ):
        file.write_text(json.dumps(json.loads(text) | ({field: "0123456789abcdef"} if field else {})))
        if not field:
            change = "--set", "data.digits.train_limit=500"
            assert fedflow(capsys, "prepare", "digits", *change, "--root", project).code == 0
        done = fedflow(capsys, "landscape", "skewed/fedavg/0", "--root", project)
        file.write_text(text)
        assert done.code == 2 and done.err.count("\n") == 1 and re.search(says, done.err)


def test_matplotlib_is_imported_only_to_draw():
    code = "import sys, fedflow.stages.landscape; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
