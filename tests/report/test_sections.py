"""Sections and blocks: what a section returns is all that the page needs."""

import re
from pathlib import Path

import pytest
from markupsafe import Markup
from result_folders import write_run

from fedflow.finished.cells import Cell, Row, Table
from fedflow.finished.collect import collect_runs
from fedflow.finished.features import masks, predictions, series, sweep
from fedflow.report import page
from fedflow.report.blocks import (
    Block,
    Box,
    Card,
    Cards,
    Chain,
    Drawing,
    Fold,
    Heading,
    Listing,
    Panels,
    Section,
    Step,
    Switches,
    Text,
)
from fedflow.report.compared import Compared, ComparedPartition, grouped, partitioned

TEMPLATE = Path(page.__file__).with_name("page.html.j2").read_text()
PICTURE = Markup('<svg viewBox="0 0 9 9"></svg>')
TABLE = Table([("<i>", "± x", "")], [Row("fedavg", "<b>", [Cell("1", "± 2", "<n>", 1.0, True, 5.0)])])
BLOCKS: dict[Block, str] = {
    Text("a < b", "note after"): '<p class="note after">a &lt; b</p>',
    Text(Markup("<b>b</b>"), ""): "<p><b>b</b></p>",
    Heading("h", "<s>", "place"): '<h3 id="place">h<small>&lt;s&gt;</small></h3>',
    Listing(("<l>",), numbered=True): '<ol class="note notes"><li>&lt;l&gt;</li></ol>',
    Drawing("<d>", PICTURE, "<e>"): f'<figure class="card"><h4>&lt;d&gt;</h4>{PICTURE}<figcaption>&lt;e&gt;',
    Drawing("", PICTURE, full=PICTURE): f'<div class="full" hidden>{PICTURE}</div>',
    Panels((Drawing("", PICTURE, kind=""),), "two"): f'<div class="panels two">\n<figure>{PICTURE}',
    Cards((Card("q", "<a>", "1", "2", "%", "d"),), None): '<div class="answer">&lt;a&gt;</div>',
    Chain((Step("k", "<c>", link="#place"),)): '<a href="#place">&lt;c&gt;</a>',
    Switches("d", ((Markup("checked"), "<w>", None),)): "<label><input checked>&lt;w&gt;</label>",
    Fold("<f>", (Text("inside"),), "x", open=True): '<details class="x" open><summary>&lt;f&gt;</summary>',
    Box((Text("inside"),), "x"): '<article class="card x">\n<p class="note">inside</p>',
    Markup("<u>as it is</u>"): "<u>as it is</u>",
}


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    for partition in ("p", "q"):
        write_run(tmp_path / "results", partition, "fedavg", 0)
    return grouped(collect_runs(tmp_path / "results"))


def shown(compared: Compared, monkeypatch: pytest.MonkeyPatch, *sections: page.SectionFunction) -> str:
    """The page of these sections."""
    monkeypatch.setattr(page, "SECTIONS", sections)
    return page._page(compared, "T")


def test_every_block_is_printed_and_its_text_escaped(
    compared: Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(compared, monkeypatch, lambda _: Section("key", "<t>", "<lead>", [*BLOCKS, TABLE]))
    assert not [expected for expected in BLOCKS.values() if expected not in text]
    cell = '<td data-sort="1.0" class="best" style="--depth:5.0%">1 <span class="spread">± 2</span>'
    assert f"{cell}<small>&lt;n&gt;</small></td>" in text and '<span class="swatch' in text
    assert '<section id="key"><h2>&lt;t&gt;</h2>\n<p class="note">&lt;lead&gt;</p>' in text


def test_the_page_has_the_sections_in_their_order_and_the_navigation_their_names(
    compared: Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    @partitioned("parts", "Parts", "lead")
    def parts(p: ComparedPartition) -> list[Block]:
        return [Heading(p.name), Text(f"of {p.name}")] if p.name == "q" else []

    sections = (lambda _: Section("b", "Bees", "", [], "B"), lambda _: None, parts)
    text = shown(compared, monkeypatch, *sections)
    assert re.findall('<section id="(.*?)">', text) == ["b", "parts"]
    assert re.findall('<li><a href="#(.*?)">(.*?)</a>', text) == [("b", "B"), ("parts", "Parts")]
    assert "of q" in text and "<h3>p</h3>" not in text


def test_the_template_names_no_section() -> None:
    written = {path.stem for path in (Path(page.__file__).parent / "sections").glob("*.py")} - {"__init__"}
    words = set(re.findall("[a-z]+", re.sub("data-sort|data:", "", TEMPLATE)))
    assert len(written) > 20 and not written & words


def test_a_run_names_no_feature_and_lacks_what_has_no_file(tmp_path: Path) -> None:
    write_run(tmp_path / "results", "p", "fedavg", 0)
    (run,) = collect_runs(tmp_path / "results")
    assert not any(len(read(run)) for read in (predictions, series, sweep)) and masks(run) is None
    assert series(run) is series(run) and run.memory  # while predictions are read at every call
    assert all("predictions" not in str(key) for key in run.memory)
