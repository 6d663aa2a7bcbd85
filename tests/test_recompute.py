"""Rows of results.csv after a change of code: both codes compute a sample, which decides for the others."""

import re
import runpy
import shutil
from pathlib import Path

import pandas as pd
import pytest
from command import PARAMS, fedflow, make_project

import fedflow as package
from fedflow.claims.results import EQUAL, read_results
from fedflow.config import load_params
from fedflow.stages.elsewhere import joined

GRID = PARAMS.replace("methods: [fedavg], seeds: [0]", "methods: [fedavg, ifca], seeds: [0, 1]")
main = runpy.run_path(str(Path(__file__).parents[1] / "studies" / "recompute.py"))["main"]


@pytest.mark.full
def test_a_sample_with_equal_numbers_decides_for_all_rows_of_its_code(capfd, tmp_path):
    earlier = tmp_path / "earlier"
    shutil.copytree(Path(package.__file__).parent, earlier / "fedflow")
    with (earlier / "fedflow" / "seeding.py").open(
        "a"
    ) as module:  # other code of all runs, with equal numbers
        module.write("EARLIER = True\n")
    ifca = earlier / "fedflow" / "methods" / "clustered" / "ifca.py"
    ifca.write_text(ifca.read_text().replace("losses.argmin()", "losses.argmax()"))
    root = make_project(tmp_path / "study", GRID)
    (root / "claims.yaml").write_text(
        "- {id: a, source: s, claim: c, measure: loss, partition: skewed, of: ifca, above: [fedavg]}\n"
    )
    for command in (["sweep", "--jobs", 1], ["report", "--verdicts"]):
        assert not fedflow(capfd, *command, "--root", root).code
    file = root / "results.csv"
    for number, method in enumerate(["fedavg", "ifca"]):
        code = next(row["code"] for row in read_results(root) if row["method"] == method)
        file.write_text(file.read_text().replace(code, f"{number:012}"))

    main(earlier, [str(root)])
    printed = capfd.readouterr().out
    assert "2 of 4 outdated rows" in printed and "0 rows hold" in printed
    codes = dict(re.findall(r"its code is (\w+), the checkout's (\w+)$", printed, re.MULTILINE))
    table = pd.read_csv(file, dtype=str)
    table.assign(**{EQUAL: table["code"].map(codes)}).to_csv(file, index=False)  # as an earlier sample says

    main(earlier, [str(root)])
    printed = capfd.readouterr().out
    assert "study: skewed · ifca · " in printed and "study: skewed · fedavg" not in printed
    main(earlier, [str(root)], most=1, rounds=1)
    printed = capfd.readouterr().out
    assert "1 of 2 outdated rows" in printed and "study: skewed · ifca · " in printed
    runs, outdated = joined(load_params(root / "params.yaml"), root)
    assert [(run.method, run.seed) for run in runs] == [("fedavg", 0), ("fedavg", 1)] and len(outdated) == 2
    assert {row["method"] for row in read_results(root) if row[EQUAL] != codes[row["code"]]} == {"fedavg"}
