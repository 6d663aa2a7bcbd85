"""Verdicts of a study that was divided over machines: rows of ``results.csv`` count as runs."""

import shutil

import pytest
from command import PARAMS, fedflow, make_project

from fedflow.claims.measures import parse
from fedflow.claims.targets import NotMeasured
from fedflow.config import load_params
from fedflow.stages.elsewhere import runs_elsewhere

CLAIM = "- {id: %s, source: s, claim: c, partition: skewed, of: ifca, %s, measure: '%s'}\n"
CLAIMS = [
    ("mean", "above: [fedavg]", "local_accuracy"),
    ("cost", "below: [fedavg]", "rounds_to(local_accuracy, 0.2)"),
    ("never", "within: [3, 9]", "rounds_to(local_accuracy, 1)"),
]


def test_committed_rows_count_as_runs_until_settings_or_code_change(capsys, tmp_path):
    root = make_project(
        tmp_path, PARAMS.replace("methods: [fedavg], seeds: [0]", "methods: [fedavg, ifca], seeds: [0, 1, 2]")
    )
    (root / "claims.yaml").write_text("".join(CLAIM % claim for claim in CLAIMS))

    def call(*arguments: object) -> str:
        done = fedflow(capsys, *arguments, "--root", root)
        assert (done.code, done.err) == (0, "")
        return done.out

    def written() -> list[str]:
        call("report", "--verdicts")
        return [(root / name).read_text() for name in ("verdicts.yaml", "results.csv")]

    call("sweep")
    all_here = written()
    assert all_here[0].count("seeds: 3") == 3 and "2+" in all_here[1]
    shutil.rmtree(root / "results" / "skewed" / "fedavg")
    shutil.rmtree(root / "results" / "skewed" / "ifca" / "2")
    assert written() == all_here
    rest = call("sweep", "--rest", "--dry-run", "--set", "grid.seeds=[2, 3]").splitlines()
    assert rest[0] == "2 of 4 runs left out, as results.csv has them"
    assert [line.partition(":")[0] for line in rest[1:-1]] == [
        f"skewed · {method} · seed 3" for method in ("fedavg", "ifca")
    ]

    elsewhere = runs_elsewhere(load_params(root / "params.yaml"), root)[0][0]
    assert (elsewhere.method, elsewhere.seed, elsewhere.metrics["clients"]) == ("fedavg", 0, 6)
    with pytest.raises(NotMeasured, match=r"^results\.csv has no ece of skewed, fedavg, seed 0$"):
        parse("ece").of(elsewhere)

    params = root / "params.yaml"
    params.write_text(params.read_text().replace("clusters: 2", "clusters: 3"))
    shutil.rmtree(root / "results")
    call("run", "--partition", "skewed", "--method", "fedavg", "--seed", 0)
    assert "results.csv: 3 rows removed" in call("report", "--verdicts")
    assert "ifca" not in (root / "results.csv").read_text()
