"""Files for a paper: every number is that of the report, and LaTeX can read every name."""

import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from command import fedflow, one_line_error
from result_folders import write_run

from fedflow.finished.cells import Cell, Row, Table
from fedflow.finished.collect import collect_runs
from fedflow.finished.tables import by_method
from fedflow.methods import METHODS
from fedflow.pictures.clients import heat
from fedflow.report.citing import PAPER, PLACEHOLDER, _paper, bibtex, sources
from fedflow.report.compared import grouped
from fedflow.report.paper import escaped, latex, write_paper
from fedflow.report.sections.accuracy import accuracy_table
from fedflow.report.sections.ranks import picture, ranking


def results(root: Path, partition: str = "dir_0.1 & more") -> Path:
    for seed in (0, 1, 2):
        for method in ("fedavg", "ditto"):
            write_run(root / "results", partition, method, seed)
    return root / "results"


def test_tables_hold_the_numbers_of_the_report(tmp_path: Path) -> None:
    runs = collect_runs(results(tmp_path))
    text, table = latex(accuracy_table(by_method(runs), {})), accuracy_table(by_method(runs), {})
    lines = text.splitlines()
    assert lines[0] == "% ± sample std over seeds; the best mean is bold"
    assert lines[1] == r"\begin{tabular}{l" + "r" * len(table.columns) + "}" and lines[-1] == r"\end{tabular}"
    assert r"Local, \%" in lines[3]
    for row in table.rows:
        (line,) = (line for line in lines if line.startswith(row.label))
        cells = line.removesuffix(r" \\").split(" & ")[1:]
        for cell, found in zip(row.cells, cells, strict=True):
            assert found.startswith(rf"\textbf{{{cell.text}}}" if cell.best else cell.text)
            assert not cell.spread or found.endswith(rf"$\pm$\,{cell.spread[2:]}")
    assert (
        escaped("50 % & a_b {x}") == r"50 \% \& a\_b \{x\}"
        and escaped(r"a\b~") == r"a\textbackslash{}b\textasciitilde{}"
    )


@pytest.mark.parametrize("form", [None, "pdf", "svg"])
def test_files_have_plain_names_and_figures_the_format_that_is_wanted(
    tmp_path: Path, form: str | None
) -> None:
    written = write_paper(collect_runs(results(tmp_path)), tmp_path / "paper", form)
    assert sorted(written) == sorted((tmp_path / "paper").glob("[!.]*"))
    names = [file.name for file in written]
    assert names[0] == "dir_0-1-more-accuracy.tex" and all(re.fullmatch(r"[\w.-]+", name) for name in names)
    figures = [file for file in written if form and file.suffix == f".{form}"]
    assert len(figures) == (3 if form else 0)
    start = {"pdf": b"%PDF", "svg": b"<?xml"}
    assert all(file.read_bytes().startswith(start[str(form)]) for file in figures)
    references = (tmp_path / "paper" / "methods.bib").read_text()
    assert references == bibtex(["ditto", "fedavg"]) and "% FedAvg\n@inproceedings{mcmahan2017" in references


def test_files_of_an_earlier_report_are_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, paper = collect_runs(results(tmp_path, "p")), tmp_path / "paper"
    pdf = {file for file in write_paper(runs, paper, "pdf") if file.suffix == ".pdf"}
    both = collect_runs(results(tmp_path, "q"))
    write_paper(both, paper, "svg")
    mine = paper / "q-mine.svg"
    mine.touch()
    assert capsys.readouterr().out == ""
    assert {*write_paper(runs, paper, "svg"), *pdf, mine} == {*paper.glob("[!.]*")}
    assert "removed files of the earlier report: all.tex, q-" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("method", "groups", "clusters"),
    [("fedavg", False, False), ("fedavg", True, True), ("ifca", False, True)],
)
def test_clusters_have_a_table_where_some_are_found_or_planted(
    tmp_path: Path, method: str, groups: bool, clusters: bool
) -> None:
    write_run(tmp_path / "results", "p", method, 0, groups=groups)
    write_paper(collect_runs(tmp_path / "results"), tmp_path)
    assert (tmp_path / "p-clusters.tex").exists() == clusters


def test_two_partitions_of_one_plain_name_have_files_of_their_own(tmp_path: Path) -> None:
    for partition in ("beta-0.1", "beta-0-1"):
        results(tmp_path, partition)
    written = write_paper(collect_runs(tmp_path / "results"), tmp_path / "paper")
    names = [file.name for file in written if file.name.endswith("-accuracy.tex")]
    assert len(names) == len({*names}) == 2 and all(name.startswith("beta-0-1-") for name in names)


def test_seeds_without_a_value_are_counted() -> None:
    table = Table(
        [("Local, %", "± std", "")], [Row("a", "A <b>", [Cell("90.0", best=True, note="1 of 3 seeds")])]
    )
    assert r"A $<$b$>$ & \textbf{90.0} (1 of 3 seeds) \\" in latex(table)


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with one_line_error("figures: 'xyz' is not accepted; expected one of png, svg, pdf"):
        write_paper(collect_runs(results(tmp_path)), tmp_path / "paper", "xyz")
    assert not (tmp_path / "paper").exists()


def test_several_partitions_have_a_table_with_mean_ranks_and_critical_differences(tmp_path: Path) -> None:
    for partition in ("p", "q", "r"):
        for method in ("fedavg", "ditto", "ifca"):
            write_run(tmp_path / "results", partition, method, 0, rounds=2)
    runs = collect_runs(tmp_path / "results")
    write_paper(runs, tmp_path / "paper")
    found, lines = ranking(grouped(runs)), (tmp_path / "paper" / "all.tex").read_text().splitlines()
    assert found is not None and r"Method & p, \% & q, \% & r, \% & Mean rank \\" in lines
    for name, mean in zip(found.labels, found.means, strict=True):
        (line,) = (line for line in lines if line.startswith(name))
        assert f"{mean:.2f}" in line.split(" & ")[-1]
        assert (r"\textbf" in line.split(" & ")[-1]) is bool(mean == found.means[0])
    drawn = picture(found, {variant: place for place, variant in enumerate(found.variants)})
    assert drawn is not None and "critical difference" in drawn.svg


def test_the_best_of_the_shared_methods_is_bold_although_another_method_ran_on_one_partition(
    tmp_path: Path,
) -> None:
    for partition in ("p", "q"):
        for method in ("fedavg", "ditto"):
            write_run(tmp_path / "results", partition, method, 0)
    write_run(tmp_path / "results", "p", "ifca", 0)
    runs = [
        replace(run, metrics=run.metrics | {"local_accuracy": 1.0}) if run.method == "ifca" else run
        for run in collect_runs(tmp_path / "results")
    ]
    write_paper(runs, tmp_path / "paper")
    rows = [
        line.split(" & ") for line in (tmp_path / "paper" / "all.tex").read_text().splitlines() if "&" in line
    ]
    assert not any("IFCA" in row[0] for row in rows)
    for column in (1, 2):
        assert sum(r"\textbf" in row[column] for row in rows[1:]) >= 1


def test_clients_are_drawn_worst_first_without_those_that_nobody_scored() -> None:
    values = np.array([[90, 80], [10, 30], [np.nan, np.nan], [50, np.nan]])
    work = heat(values, ["A", "B"], "clients")
    shown = work.figure.axes[0].images[0].get_array()
    assert shown is not None
    np.testing.assert_array_equal(np.ma.filled(shown, np.nan), values[[1, 3, 0]].T)
    assert work.figure.axes[0].get_xlabel() == "3 clients, by mean accuracy"


def test_clients_of_variants_with_long_names_are_told_apart() -> None:
    names = [f"FedAvg · batch_size 16, curriculum order {end}" for end in ("anti …1a2b", "random …9f8e")]
    work = heat(np.ones((4, 2)), names, "clients")
    shown = [tick.get_text() for tick in work.axes.get_yticklabels()]
    assert [name[-4:] for name in shown] == ["1a2b", "9f8e"]


def test_every_method_but_the_baseline_without_a_paper_has_references() -> None:
    for name in METHODS:
        found = sources(name)
        assert bool(found) == (name != "local"), name
        for entry in found:
            assert re.fullmatch(r"[a-z_0-9]+", entry.key) and entry.fields["title"]
            assert entry.kind == "misc" or {"author", "year"} <= entry.fields.keys(), entry
            assert str(entry).count("{") == str(entry).count("}")
    named = [name for name in METHODS if any("author" in entry.fields for entry in sources(name))]
    assert len(named) >= len(METHODS) - 8  # theses and lectures


@pytest.mark.parametrize(
    ("source", "cited"),
    [
        ('Source: its authors, "Its title", 2026.', False),
        ('Source: Doe, "Its title", 2026.', False),
        ('Source: its authors, "On halves", 2026.', False),
        ("Source: its authors, 2026.", False),
        ('Source: Doe, "On halves", 2026.', True),
    ],
)
def test_a_source_that_the_template_wrote_does_not_reach_the_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, cited: bool
) -> None:
    module = ModuleType("halfway", f"Halfway: a method.\n\n{source}\n\nClient: none.")
    monkeypatch.setitem(sys.modules, "halfway", module)
    mine = type("Halfway", (METHODS["fedavg"],), {"__module__": "halfway", "label": "Halfway"})
    monkeypatch.setitem(METHODS, "halfway", mine)
    write_run(tmp_path / "results", "p", "halfway", 0)
    runs = collect_runs(tmp_path / "results")
    with nullcontext() if cited else pytest.warns(UserWarning, match="^Halfway: the source is still"):
        write_paper(runs, tmp_path / "paper")
    written = (tmp_path / "paper" / "methods.bib").read_text()
    assert ("@misc{doe2026halves" in written) == cited and "% Halfway" in written
    assert not any(words in written for words in PLACEHOLDER)


def test_a_worked_reference() -> None:
    assert (
        bibtex(["ifca", "one_shot"]).split("\n\n")[0]
        == """% IFCA, One-shot
@inproceedings{ghosh2020efficient,
  title         = {{An Efficient Framework for Clustered Federated Learning}},
  author        = {Ghosh and Chung and Yin and Ramchandran},
  year          = {2020},
  booktitle     = {NeurIPS},
  eprint        = {2006.04088},
  archiveprefix = {arXiv},
}"""
    )
    assert "% Local: no source" in bibtex(["local"])
    (match,) = PAPER.finditer('Li, "深度学习", 2026.')
    assert _paper(match).key == "li2026paper"


def test_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results(tmp_path, "p")
    monkeypatch.chdir(tmp_path)
    said = fedflow(capsys, "report", "--figures", "png").out.split()
    assert said[0] == "report/index.html" and "paper/p-local_accuracy.png" in said
    assert not any(file.suffix == ".tex" for file in Path("report").rglob("*"))
    assert fedflow(capsys, "cite").out == bibtex(["ditto", "fedavg"])
    assert fedflow(capsys, "cite", "ifca").out == bibtex(["ifca"])
    assert "did you mean 'ditto'" in fedflow(capsys, "cite", "dito").err
    file = Path("results/p/ditto/0/params.json")
    file.write_text(file.read_text().replace('"ditto"', '"halfway"'))
    with pytest.warns(UserWarning, match="^halfway is left out: its plug-in is not installed"):
        assert bibtex(["fedavg"]) in fedflow(capsys, "cite").out
    Path("file").touch()
    with one_line_error("file"):
        write_paper(collect_runs(Path("results")), Path("file") / "paper")
