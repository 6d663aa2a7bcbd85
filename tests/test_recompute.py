"""Rows of results.csv after a change of code: a sample is computed again, and decides for the others."""

import runpy
from pathlib import Path

from command import PARAMS, fedflow, make_project

from fedflow.claims.results import EQUAL, read_results
from fedflow.config import load_params
from fedflow.stages.elsewhere import joined

GRID = PARAMS.replace("methods: [fedavg], seeds: [0]", "methods: [fedavg, ifca], seeds: [0, 1]")
OLD = "0" * 12
main = runpy.run_path(str(Path(__file__).parents[1] / "studies" / "recompute.py"))["main"]


def test_a_sample_with_equal_numbers_decides_for_all_rows_of_its_code(capsys, tmp_path):
    root = make_project(tmp_path, GRID)
    (root / "claims.yaml").write_text(
        "- {id: a, source: s, claim: c, measure: loss, partition: skewed, of: ifca, above: [fedavg]}\n"
    )
    for command in (["sweep", "--jobs", 1], ["report", "--verdicts"]):
        assert not fedflow(capsys, *command, "--root", root).code
    rows, file = read_results(root), root / "results.csv"
    (ifca,) = {row["code"] for row in rows if row["method"] == "ifca"}
    text = file.read_text()
    for row in rows:
        text = text.replace(row["code"], OLD)
    for row in rows[:2]:  # of FedAvg
        text = text.replace(row["local_accuracy"], "0.5")
    file.write_text(text)

    main([str(root)])
    assert "2 of 4 outdated rows" in capsys.readouterr().out
    runs, outdated = joined(load_params(root / "params.yaml"), root)
    assert [(run.method, run.seed) for run in runs] == [("ifca", 0), ("ifca", 1)] and len(outdated) == 2
    now = {(row["method"], row["seed"]): (row["code"], row[EQUAL]) for row in read_results(root)}
    assert {now["ifca", seed] for seed in "01"} == {(ifca, ""), (OLD, ifca)}
    assert not (root / ".fedflow" / "recompute").exists()
