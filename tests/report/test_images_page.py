"""Generated images from the command to the page: numbers, files, pictures, artifacts."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from command import fedflow, make_project
from generating import blending
from PIL import Image
from safetensors.torch import save_file

from fedflow.config import load_params
from fedflow.data.generated import FILE, load_generated
from fedflow.finished.cells import Table
from fedflow.finished.collect import collect_runs
from fedflow.finished.run import Run
from fedflow.finished.tables import write_tables
from fedflow.metrics.generation import frechet
from fedflow.metrics.table import METRICS
from fedflow.models.inception import TORCHVISION, Inception
from fedflow.report.compared import grouped
from fedflow.report.sections.images import generated, section
from fedflow.stages.experiment import Experiment
from fedflow.stages.fingerprints import FOLDER, write_fingerprints

PARAMS = """
data:
  digits: {source: digits, normalize: none}
  made:
    source: generated
    path: runs/skewed/blend/0/images.safetensors
    test_of: {source: digits, normalize: none}
models: {digits: {name: mlp, options: {hidden: [16]}}, made: {name: mlp, options: {hidden: [16]}}}
partitions:
  skewed: {dataset: digits, scheme: dirichlet, alpha: 0.5, clients: 4}
  dealt: {dataset: made, scheme: iid, clients: 2}
training: {epochs: 1, batch_size: 64, lr: 0.1}
run: {rounds: 2, participation: 1.0, evaluate_every: 1}
methods:
  fedavg: {}
  blend: {spc: 3, classifier: {epochs: 5}}
grid: {datasets: [digits], partitions: [skewed], methods: [fedavg], seeds: [0]}
engine: {executor: inline, device: cpu}
"""

# Method: partition and method. The second trains on the images of the first.
RUNS = {"blend": ("skewed", "blend"), "fedavg": ("dealt", "fedavg")}


def test_images_reach_files_artifacts_and_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(make_project(tmp_path, PARAMS))
    folders = {method: Path("runs", *place, "0") for method, place in RUNS.items()}
    with blending():
        for method, (partition, _) in RUNS.items():
            done = fedflow(capsys, "run", "--partition", partition, "--method", method)
            assert (done.code, done.err) == (0, "")
            assert ("fid_floor 1." in done.out) == ("near_copies" in done.out) == (method == "blend")
        assert fedflow(capsys, "report").code == 0
        images, privacy = _sections()
        plain, run = sorted(collect_runs(Path("results")), key=lambda run: len(generated(run).rounds))

    rounds = {method: pd.read_csv(folder / "rounds.csv") for method, folder in folders.items()}
    final = {method: json.loads((folder / "metrics.json").read_text()) for method, folder in folders.items()}
    sparse = {metric.name for metric in METRICS.values() if metric.sparse}
    once = {"fid_floor", "real_accuracy", "nearest_real", "lowest_class"}
    assert not sparse & {*rounds["fedavg"]} and rounds["blend"][[*sparse]].notna().all(axis=None)
    assert not (sparse | once) & final["fedavg"].keys() and sparse | once <= final["blend"].keys()
    assert not once & {*rounds["blend"]}
    assert not (folders["fedavg"] / FILE).exists()
    assert pd.read_parquet(folders["fedavg"] / "clients.parquet")["samples"].tolist() == [15, 15]
    assert [*load_generated(folders["blend"] / FILE).rounds] == [1, 2]
    pictures = sorted(Path("mlruns").glob("artifacts/*/*/artifacts/generated/*.png"))
    names = ["closest.png", "round-0001.png", "round-0002.png", "rounds.png"]
    assert [picture.name for picture in pictures] == names
    assert all(min(Image.open(picture).size) > 100 for picture in pictures)
    assert ">FID, pixels<" in images and "30 images." in images and "(5 epochs)" in images
    assert images.count("data:image/png;base64") == 2 and privacy.count("data:image/png;base64") == 1
    assert ">FedAvg<" not in images + privacy and ">Near copies, %<" in privacy
    table = pd.read_csv("report/generation.csv").set_index("metric")
    assert table.loc["fid", "mean"] == pytest.approx(final["blend"]["fid"])
    assert set(table["method"]) == {"blend"}
    _other_features_do_not_compare(run)

    assert section(grouped([plain])) is None
    write_tables([plain], Path("report"))
    assert not Path("report/generation.csv").exists()


def _sections() -> list[str]:
    """The sections of the page that only runs with images have."""
    page = Path("report/index.html").read_text()
    return re.findall(r'<section id="(?:images|privacy)">.*?</section>', page, re.DOTALL)


def _other_features_do_not_compare(run: Run) -> None:
    """No value is best of runs with different features."""
    other = replace(
        run,
        variant="other",
        metrics=run.metrics | {"fid": run.metrics["fid"] + 1},
        params=run.params | {"run": run.params["run"] | {"features": "judge"}},
    )
    for runs, title, best in (
        ([run], "FID, pixels", 0),
        ([run, other], "FID", 0),
        ([run, replace(other, params=run.params)], "FID, pixels", 1),
    ):
        table = _table(runs)
        place = [heading for heading, _, _ in table.columns].index(title)
        assert sum(row.cells[place].best for row in table.rows) == best


def _table(runs: list[Run]) -> Table:
    """The table of the section on images."""
    shown = section(grouped(runs))
    assert shown is not None
    (table,) = (block for block in shown.blocks if isinstance(block, Table))
    return table


@pytest.mark.full
def test_features_of_inception_come_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(make_project(tmp_path, PARAMS))
    torch.manual_seed(0)
    weights = Inception(TORCHVISION).layers.state_dict()
    weights = {name: w for name, w in weights.items() if not name.endswith("num_batches_tracked")}
    changes = [
        "data.digits.train_limit=200",
        "data.digits.test_limit=10",
        "methods.blend.spc=1",
        "run.rounds=1",
        "run.inception=inception.safetensors",
    ]
    given = [word for change in changes for word in ("--set", change)]
    with blending():
        done = fedflow(capsys, "run", "--partition", "skewed", "--method", "fedavg", *given)
        assert (done.code, done.err.count("\n")) == (2, 1) and "null with fedavg" in done.err
        command = "run", "--partition", "skewed", "--method", "blend", *given
        done = fedflow(capsys, *command)
        assert (done.code, done.err.count("\n")) == (2, 1) and "run.inception: " in done.err
        save_file(weights, "inception.safetensors")
        done = fedflow(capsys, *command)
        assert (done.code, done.err) == (0, "")
        assert "the features of fid are from Inception v3 (inception.safetensors)\n" in done.out
        (run,) = collect_runs(Path("results"))
        experiment = Experiment(load_params(changes=changes), "skewed", "blend", 0)
        federation = experiment.job.federation.open()
        _weights_are_part_of_the_fingerprint(changes)
    fake, real = generated(run).rounds[1][0] / 255, federation.test.inputs(torch.arange(10))
    assert federation.features is not None
    with torch.no_grad():
        x, y = (federation.features.model.features(federation.features.w, part) for part in (fake, real))
    assert x.shape == (10, 2048) and len(real) == len(federation.test)
    assert run.metrics["fid"] == pytest.approx(frechet(x, y), rel=1e-4)
    assert "FID, Inception" in [heading for heading, _, _ in _table([run]).columns]


def _weights_are_part_of_the_fingerprint(changes: list[str]) -> None:
    """Another file makes the runs out of date; a deleted one, as in a clone, does not."""
    params, found = load_params(changes=[*changes, "grid.methods=[blend]"]), []
    for spoil in (None, lambda file: file.unlink(), lambda file: file.write_bytes(b"other")):
        if spoil is not None:
            spoil(Path("inception.safetensors"))
        write_fingerprints(params)
        found.append((FOLDER / "grid.json").read_bytes())
    assert found[0] == found[1] != found[2]
