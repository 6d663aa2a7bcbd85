"""Outcomes of procedures in the report: their section, claims and published tables on them."""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pytest
import yaml
from command import make_project, one_line_error
from result_folders import change, write_run

sys.path.insert(0, str(Path(__file__).parents[1] / "procedures"))
import walk

from fedflow.claims.books import Book
from fedflow.claims.claims import load_claims
from fedflow.claims.matching import compare
from fedflow.claims.measures import parse
from fedflow.claims.verdicts import judge
from fedflow.config import load_params
from fedflow.finished.collect import collect_runs
from fedflow.finished.collect_outcomes import collect_outcomes
from fedflow.finished.outcomes import final_numbers, write_outcome
from fedflow.pictures.drawing import NAMESPACES
from fedflow.procedures.steps import Block, advance
from fedflow.stages.fingerprints import write_fingerprints
from fedflow.stages.procedure import ProcedureRun, ends_of, facts_of
from fedflow.stages.report import write_report
from fedflow.stages.steps import Progress

PARAMS = """
data: {}
models: {}
partitions: {}
procedures: {far: {procedure: walk, length: 9, label: Far walk}}
grid: {datasets: [], partitions: [], methods: [], seeds: [0, 1, 2], procedures: [walk, far]}
engine: {executor: inline, device: cpu}
"""


def write(root: Path, entry: str = "walk", seeds: Iterable[int] = (0,), *changes: str) -> None:
    """Outcomes of the real procedure, without a record."""
    for seed in seeds:
        run = ProcedureRun(load_params(root / "params.yaml", changes), entry, seed, root)
        opened = run.job.open()
        names = opened.names()
        found = advance(run.job, Block(names, [0] * len(names), [None] * len(names), 60))
        progress = Progress(
            {name: one.state for name, one in zip(names, found, strict=True)},
            {name: one.rows for name, one in zip(names, found, strict=True)},
        )
        findings = run.procedure.finish(opened.shared, ends_of(progress))
        numbers = final_numbers(run.folder, findings)
        write_outcome(run.folder, facts_of(run), run.effective, progress.rows, findings, numbers)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_project(tmp_path, PARAMS)


def section(text: str) -> str:
    return text[text.index('<section id="procedures">') :].split("</section>")[0]


def test_a_project_of_procedures_has_a_page_and_a_table(root: Path) -> None:
    write(root, "walk", [0, 1, 2])
    write(root, "far")
    write(root, "walk", [0], "procedures.walk.walks=2")
    text = write_report(root).read_text()
    shown = section(text)
    assert re.findall(r"<h3>(.*?)<small>(\w+), (.*?)</small>", shown) == [
        ("Far walk", "far", "9 steps, seed 0"),
        ("Random walk", "walk", "5 steps, seeds 0, 1, 2"),
        ("Random walk · walks 2", "walk", "5 steps, seed 0"),
    ]
    assert shown.count("Every step adds a normal number to the place of each walk.") == 3
    assert shown.count(">Place by step by step<") == shown.count(">Places<") == 3
    assert "outcomes/far/0/tables/ends.csv</code>, 3 rows" in shown
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)) and all(
        f'id="{used}"' in text for used in re.findall(r"url\(#(.*?)\)", text)
    )
    assert "#findings" not in text and "#accuracy" not in text and "3" in shown
    table = pd.read_csv(root / "report" / "outcomes.csv")
    of = table[(table["procedure"] == "walk") & table["variant"].isna() & (table["row"] == "w1")]
    values = [json.loads((root / f"outcomes/walk/{seed}/metrics.json").read_text()) for seed in range(3)]
    for name in ("place", "mean"):
        (one,) = of[of["metric"] == name].to_dict("records")
        expected = pd.Series([value["metrics"][f"{name}/w1"] for value in values])
        assert one["seeds"] == 3 and one["mean"] == pytest.approx(expected.mean(), rel=1e-6)
        assert one["std"] == pytest.approx(expected.std(), rel=1e-6)
    assert text == write_report(root).read_text()


def test_runs_and_outcomes_share_a_page(root: Path) -> None:
    write_run(root / "results", "p", "fedavg", 0)
    alone = write_report(root).read_text()
    assert 'id="procedures"' not in alone and not (root / "report" / "outcomes.csv").exists()
    write(root)
    both = write_report(root).read_text()
    assert '<section id="accuracy">' in both and "Random walk" in section(both)


def test_many_parts_have_no_names(root: Path) -> None:
    write(root, "walk", [0, 1], "procedures.walk.walks=15", "procedures.walk.length=20")
    assert "A thin line is a part, the thick one their mean." in section(write_report(root).read_text())


CLAIM = """
- {id: c, source: s, claim: c, partition: walk, measure: mean, of: w0, %s}
"""


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        ("above: [w1]", "not resolved"),
        ("equal: [{method: w0, where: {procedure.walks: 2}}], within: 1e-9", "confirmed"),
        ("equal: [{method: w0, partition: far}], within: 1e9", "confirmed"),
        ("below: [{method: w1, measure: place}], by: 1e9", "not confirmed"),
    ],
)
def test_claims_compare_rows_of_summaries(root: Path, check: str, verdict: str) -> None:
    write(root, "walk", range(3))
    write(root, "far", range(3))
    write(root, "walk", range(3), "procedures.walk.walks=2")
    (root / "claims.yaml").write_text(CLAIM % check)
    rows = [row for one in collect_outcomes(root / "outcomes") for row in one.rows]
    (judged,) = judge(load_claims(root / "claims.yaml"), rows)
    assert judged.verdict == verdict, judged.comparisons
    (one,) = judged.comparisons
    assert one.statement.startswith("Mean place: w0 ") and one.numbers.endswith("3 seeds")
    assert one.verdict in write_report(root).read_text()


def test_runs_of_a_method_with_a_number_as_its_name_are_not_outcomes(root: Path) -> None:
    write(root)
    run = root / "runs" / "even" / "10" / "3"
    run.mkdir(parents=True)
    (run / "metrics.json").write_text("{}")
    assert [outcome.entry for outcome in collect_outcomes(root / "outcomes")] == ["walk"]


def test_a_claim_without_outcomes_is_not_run_and_a_wrong_name_one_line(root: Path) -> None:
    (root / "claims.yaml").write_text(CLAIM % "above: [w9]")
    (judged,) = judge(load_claims(root / "claims.yaml"), [])
    assert judged.verdict == "not run" and judged.comparisons[0].numbers == "no results of w0 and w9"
    write(root)
    rows = [row for one in collect_outcomes(root / "outcomes") for row in one.rows]
    with one_line_error("^claim c.of: 'w9' .*one of w0, w1, w2"):
        judge(load_claims(root / "claims.yaml"), rows)
    (root / "claims.yaml").write_text((CLAIM % "above: [w1]").replace("mean", "local_accuracy"))
    with one_line_error("^claim c.measure: 'local_accuracy' .*one of mean, place"):
        judge(load_claims(root / "claims.yaml"), rows)
    assert parse("place").label == "Last place"


def test_published_tables_stand_beside_outcomes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, "walk", range(2))
    write(root, "far", range(2))
    write_run(root / "results", "p", "fedavg", 0)
    across = {
        "label": "T",
        "origin": "document",
        "measure": "mean",
        "where": {"procedure": "walk"},
        "setup": {"seeds": 5},
        "columns": {"One": {"method": "w0"}, "Two": {"method": "w1"}},
        "rows": [{"label": "r", "where": {"params": {"length": 5}}, "values": ["1.50", "-"]}],
    }
    down = {
        "label": "U",
        "origin": "document",
        "where": {"procedure": "walk", "params": {"length": 9}},
        "columns": {"Place": {"measure": "place"}, "Mean": {"measure": "mean"}},
        "rows": [{"label": "w2", "where": {"method": "w2"}, "values": ["1.5", "2.5"]}],
    }
    book = Book.parse({"source": "s", "tables": [across, down]})
    monkeypatch.setattr("fedflow.claims.matching.books", lambda: {"b": book})
    done = collect_outcomes(root / "outcomes")
    rows = [row for one in done for row in one.rows]
    first, second = compare([*collect_runs(root / "results"), *rows])
    means = [
        sum(r.metrics["mean"] for r in rows if (r.partition, r.method) == ("walk", w)) / 2
        for w in ("w0", "w1")
    ]
    (line,) = first.lines
    assert line[2] == "walk" and [cell.ours[0].text.split(" ")[0] for cell in line[3]] == [
        f"{mean:.2f}" for mean in means
    ]
    assert first.notes[-1] == "Differences: seeds 2 here, 5 there."
    (line,) = second.lines
    assert line[2] == "far" and all(len(cell.ours) == 1 and not cell.ours[0].missing for cell in line[3])


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("metrics.json", None, "metrics.json: No such file: the outcome is incomplete"),
        ("metrics.json", "{", "metrics.json: truncated or not JSON"),
        ("summary.csv", "x\n1\n", "summary.csv: no column row"),
        ("steps.csv", "part,step\nw0,1\n", "steps.csv: not of 5 steps"),
        ("summary.csv", "row,mean\nw0,inf\n", "summary.csv: column mean has inf, not a finite number"),
        ("summary.csv", "row,mean\nw0,x\n", "summary.csv: truncated or damaged"),
        ("steps.csv", "part,step\nw0,\n", "steps.csv: not of 5 steps"),
        ("steps.csv", None, "steps.csv: No such file"),
        ("params.json", "{}", "params.json: no procedure, or no data"),
        *(
            (
                "pictures/places.svg",
                f"<svg {NAMESPACES}>{inside}</svg>",
                "places.svg: not an SVG written by fedflow",
            )
            for inside in (
                "<script>1</script>",
                '<g onload="1"/>',
                '<use href="java&#115;cript:1"/>',
                '<style>@import "a"</style>',
                '<path fill="url(http://a/b)"/>',
                "<?x ><img src=x onerror=alert(1)>?>",
                '<path style="fill:url&#40;http://a/b)"/>',
                "<style>body{display:none}</style>",
            )
        ),
        ("tables/ends.csv", "", "ends.csv: truncated or damaged"),
    ],
)
def test_damaged_files_are_one_line(root: Path, file: str, damage: str | None, message: str) -> None:
    write(root)
    path = root / "outcomes" / "walk" / "0" / file
    path.unlink() if damage is None else path.write_text(damage)
    with one_line_error(f"cannot read .*{message}.*; run this experiment again after deleting the file$"):
        write_report(root)


def test_an_outcome_of_another_folder_is_refused(root: Path) -> None:
    write(root)
    change(root / "outcomes" / "walk" / "0" / "metrics.json", seed=3)
    with one_line_error("metrics.json: it belongs to the outcome walk/3"):
        write_report(root)


def test_a_picture_is_a_file_of_its_own_colors(root: Path) -> None:
    write(root)
    text = (root / "outcomes" / "walk" / "0" / "pictures" / "places.svg").read_text()
    assert 'xmlns="http://www.w3.org/2000/svg"' in text and "--s0:#0072b2" in text
    assert "--s0:#0072b2;" not in section(write_report(root).read_text())


def test_labels_are_those_of_params_and_part_of_what_dvc_compares(root: Path) -> None:
    write(root, "far")
    text = (root / "params.yaml").read_text().replace("Far walk", "Longer walk")
    (root / "params.yaml").write_text(text)
    assert "Longer walk" in section(write_report(root).read_text())
    write_fingerprints(load_params(root / "params.yaml"), root)
    facts = json.loads((root / "data/fingerprints/report.json").read_text())
    assert facts["procedures"] == {"far": ["walk", "Longer walk"]}
    assert walk.Walk.label == "Random walk" and yaml.safe_load(text)["procedures"]
