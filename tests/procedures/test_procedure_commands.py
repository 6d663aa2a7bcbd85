"""Commands on procedures, their catalogue and their JSON schema."""

import math
from pathlib import Path

import pytest
import walk  # noqa: F401  registers the example
import yaml
from command import fedflow, make_project, one_line_error

from fedflow.config import check_dvc, load_params
from fedflow.config.schema import params_schema
from fedflow.procedures import PROCEDURES
from fedflow.stages.procedure import ProcedureRun, run_procedure
from fedflow.tracking.store import open_store

PARAMS = """
data: {}
models: {}
partitions: {}
procedures: {far: {procedure: walk, length: 9, label: Far walk}}
grid: {datasets: [], partitions: [], methods: [], seeds: [0, 1], central: [], procedures: [walk, far]}
engine: {executor: inline, device: cpu}
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return make_project(tmp_path, PARAMS)


def test_one_command_runs_a_study_of_procedures_and_one_compares(root: Path, capsys) -> None:
    done = fedflow(capsys, "sweep", "--jobs", 1, "--name", "both", "--root", root)
    assert (done.code, done.err) == (0, "") and "4 of 4 runs to do" in done.out
    assert {path.parts[-2:] for path in (root / "outcomes").glob("*/*")} == {
        (name, seed) for name in ("walk", "far") for seed in ("0", "1")
    }
    api = open_store(root).client()
    for experiment in ("procedures/walk", "procedures/far"):
        runs = api.search_runs([api.get_experiment_by_name(experiment).experiment_id])
        (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
        assert parent.info.run_name == "both" and parent.info.status == "FINISHED" and len(runs) == 3
    assert fedflow(capsys, "report", "--root", root).code == 0
    assert "Far walk" in (root / "report" / "index.html").read_text()


def test_procedures_are_listed_and_explained(root: Path, capsys) -> None:
    listed = fedflow(capsys, "procedures", "--root", root)
    assert listed.code == 0
    (row,) = (line for line in listed.out.splitlines() if line.startswith("walk "))
    assert "Random walk" in row and "far" in row and "Every step" in row
    told = fedflow(capsys, "procedures", "walk").out
    assert "Pearson 1905" in told and "steps of the first walk" in told and "Mean place" in told
    done = fedflow(capsys, "procedures", "wolk")
    assert done.code == 2 and "did you mean 'walk'" in done.err and done.err.count("\n") == 1
    assert "## Random walk (`walk`)" in fedflow(capsys, "procedures", "--markdown").out
    checked = fedflow(capsys, "doctor", "--root", root).out
    assert "procedures: 2 x 2 seeds" in " ".join(checked.split())


def test_a_summary_is_printed_as_a_table(root: Path, capsys) -> None:
    done = fedflow(capsys, "procedure", "far", "--seed", 1, "--root", root)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == "far · seed 1: step 24/24, 3 of 3 parts"
    assert "Last place" in done.out and "Mean place" in done.out and "outcomes/far/1" in done.out
    for row in ("w0", "w1", "w2"):
        assert any(line.startswith(f"{row} ") for line in done.out.splitlines())
    done = fedflow(capsys, "procedure", "nowhere", "--root", root)
    assert done.code == 2 and done.err.count("\n") == 1


def test_the_example_of_the_documentation_estimates_pi(root: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "adding.md").read_text().split("## A procedure\n")[1]
    names: dict = {"__name__": __name__}
    try:
        exec(page.split("```python\n")[1].split("```")[0], names)
        (root / "params.yaml").write_text(PARAMS.replace("[walk, far]", "[pi]"))
        metrics = run_procedure(ProcedureRun(load_params(root / "params.yaml"), "pi", 0, root))
    finally:
        PROCEDURES.pop("pi", None)
    assert all(abs(value) < 0.05 for name, value in metrics.items() if name.startswith("error"))
    assert metrics["inside/chain0"] == pytest.approx(math.pi / 4, abs=0.02)


@pytest.mark.parametrize(
    ("entries", "accepted"),
    [
        ({"walk": {"length": 3}, "far": {"procedure": "walk", "label": "Far", "walks": 2}}, True),
        ({"walk": {"procedure": None}}, True),
        ({"walk": {"length": 0}}, False),
        ({"walk": {"lenght": 3}}, False),
        ({"far": {"length": 3}}, False),
        ({"far": {"procedure": "wolk"}}, False),
    ],
)
def test_the_schema_knows_their_parameters(entries: dict, accepted: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    values = yaml.safe_load(PARAMS) | {"procedures": entries}
    assert jsonschema.Draft202012Validator(params_schema()).is_valid(values) is accepted


def test_older_parameters_get_one_line_from_dvc(root: Path) -> None:
    (root / "dvc.yaml").write_text("")
    check_dvc(root)
    (root / "params.yaml").write_text(PARAMS.replace(", procedures: [walk, far]", ""))
    with one_line_error(r"dvc.yaml needs the list grid.procedures; add `procedures: \[\]` under grid$"):
        check_dvc(root)
