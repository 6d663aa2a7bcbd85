"""Verdicts of a study that was run in parts: rows of ``results.csv`` count as runs."""

import shutil

import pytest
from command import PARAMS, fedflow, make_project

from fedflow.claims.measures import parse
from fedflow.claims.results import read_results
from fedflow.claims.targets import NotMeasured
from fedflow.config import load_params
from fedflow.errors import FedflowError
from fedflow.stages.elsewhere import joined

CLAIM = "- {id: %s, source: s, claim: c, partition: skewed, of: ifca, %s, measure: '%s'}\n"
CLAIMS = [
    ("mean", "above: [fedavg]", "local_accuracy"),
    ("changed", "above: [{method: fedavg, where: {training.lr: 0.2}}]", "local_accuracy"),
    ("cost", "below: [fedavg]", "rounds_to(local_accuracy, 0.2)"),
    ("never", "within: [3, 9]", "rounds_to(local_accuracy, 1)"),
]
GRID = PARAMS.replace("methods: [fedavg], seeds: [0]", "methods: [fedavg, ifca], seeds: [0, 1, 2]")


def test_committed_rows_count_as_runs_while_settings_and_code_are_theirs(capsys, tmp_path):
    root = make_project(tmp_path, GRID)
    (root / "claims.yaml").write_text("".join(CLAIM % claim for claim in CLAIMS))
    params, results = root / "params.yaml", root / "results.csv"

    def call(*arguments: object) -> str:
        done = fedflow(capsys, *arguments, "--root", root)
        assert (done.code, done.err) == (0, "")
        return done.out

    def written() -> list[str]:
        call("report", "--verdicts")
        return [(root / name).read_text() for name in ("verdicts.yaml", "results.csv", "claims.csv")]

    call("sweep", "--jobs", 1)
    call("sweep", "--jobs", 1, "--set", "grid.methods=[fedavg]", "--set", "methods.fedavg.training.lr=0.2")
    all_here = written()
    assert all_here[0].count("seeds: 3") == 4 and all_here[1].count(",2+,") == 9
    shutil.rmtree(root / "results" / "skewed" / "fedavg")
    shutil.rmtree(root / "results" / "skewed" / "ifca" / "2")
    assert written() == all_here
    page = (root / "report" / "index.html").read_text()
    assert "Some runs were made elsewhere" in page and "3 seeds" in page
    rest = call("sweep", "--rest", "--dry-run", "--set", "grid.seeds=[2, 3]").splitlines()
    assert rest[0] == "2 of 4 runs skipped: results.csv has them"
    assert [line.partition(":")[0] for line in rest[1:-1]] == [
        f"skewed · {method} · seed 3" for method in ("fedavg", "ifca")
    ]
    for folder in ("results", "runs"):
        shutil.rmtree(root / folder)
    assert written() == all_here  # nothing is here

    (elsewhere, *_), _ = joined(load_params(params), root)
    assert (elsewhere.method, elsewhere.seed, elsewhere.metrics["clients"]) == ("fedavg", 0, 6)
    with pytest.raises(NotMeasured, match=r"^results\.csv has no ece of skewed, fedavg, seed 0$"):
        parse("ece").of(elsewhere)
    results.write_text(all_here[1].replace(",2+,", ",none,", 1))
    (diverged, *_), _ = joined(load_params(params), root)
    cost = parse("rounds_to(local_accuracy, 0.2)")
    assert cost.of(diverged) is cost.least(diverged) is None
    results.write_text(all_here[1])

    text = params.read_text()
    params.write_text(text.replace("clusters: 2", "clusters: 3").replace("lr: 0.1}", "lr: 0.3}"))
    call("run", "--partition", "skewed", "--method", "fedavg", "--seed", 0)
    assert "results.csv: removed 6 rows with outdated settings or code" in call("report", "--verdicts")
    kept = [(row["variant"], row["seed"]) for row in read_results(root)]
    assert kept == [("", "0"), *(("training.lr 0.2", seed) for seed in "012")]  # rows with their own lr hold

    params.write_text(text)
    results.write_text(all_here[1])
    done = fedflow(capsys, "report", "--verdicts", "--root", root)
    assert done.code == 2 and "its settings or code differ from the rows of its method" in done.err
    shutil.rmtree(root / "results")
    params.write_text(text.replace("rounds: 2", "rounds: 3"))
    done = fedflow(capsys, "report", "--verdicts", "--root", root)
    assert done.code == 2 and "all rows have outdated settings or code" in done.err
    assert results.read_text() == all_here[1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "^cannot read .*results.csv: No columns"),
        ("partition,method\np,a\n", "results.csv has no column seed, settings"),
        (
            "partition,method,seed,settings,kind,registered,networks,code\n<<<,,,,,,,\n",
            "results.csv, line 2: the seed is '', not",
        ),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, text, reason):
    make_project(tmp_path, GRID)
    (tmp_path / "results.csv").write_text(text)
    with pytest.raises(FedflowError, match=reason):
        joined(load_params(tmp_path / "params.yaml"), tmp_path)


TAUGHT = """
data: {few: {source: digits, train_limit: 100, test_limit: 50}}
models: {few: mlp}
central:
  teacher: &network {dataset: few, training: {epochs: 1}}
  student: *network
  spare: *network
partitions: {}
procedures:
  taught:
    {procedure: distillation, dataset: few, teacher: teacher, student: student, rounds: 1, methods: {kd: {}}}
grid:
  {datasets: [few], central: [teacher, student, spare], partitions: [], methods: [], seeds: [0],
   procedures: [taught]}
engine: {executor: inline, device: cpu}
"""


def test_central_networks_of_the_other_runs_are_trained(capsys, tmp_path):
    root = make_project(tmp_path, TAUGHT)
    done = fedflow(capsys, "sweep", "--rest", "--jobs", 1, "--root", root)
    assert (done.code, done.err) == (0, "")
    assert "skipped central networks that no run needs: spare\n" in done.out
    assert {path.name for path in (root / "data" / "central").iterdir()} == {"teacher", "student"}
