"""The table of verdicts and a page for each study in the docs site, from the files in studies/."""

import csv
import html
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fedflow.claims.claims import Claim, load_claims
from fedflow.claims.matching import Shown, compare, full, numbered
from fedflow.claims.recorded import UNRECORDED, Entry, judged_from, read_verdicts
from fedflow.claims.results import CHANGES, EQUAL, read_results
from fedflow.claims.sources import CLAIMS, COMPARISONS, NO_ROWS, OTHER_ROWS, RESULTS
from fedflow.claims.verdicts import BY_TESTS, CONFIRMED, NOT_CONFIRMED, NOT_RESOLVED, NOT_RUN, VERDICTS
from fedflow.config import PARAMS, load_params
from fedflow.methods import METHODS
from fedflow.naming import counted
from fedflow.stages.elsewhere import joined

STUDIES = Path(__file__).parents[1] / "studies"
TABLE = "reproductions.md"
MARK, FULL = "<!-- verdicts -->", "<!-- published scale -->"
COLUMNS = (
    "claim",
    "source",
    "published",
    "ours ±, seeds",
    "95 % interval",
    "scale",
    "verdict",
    "planned or after looking",
    "command",
    "commit",
)
CURRENT, STALE, ABSENT, TYPED = "current", "stale", "results not committed", "typed by hand"
SAMPLE = "of earlier code, with equal numbers in a sample"
CHANGED = "full, with a change"  # the scale
# Verdicts in the text of this page on 25 November 2026, from files that were not committed.
IN_PROSE = {CONFIRMED: 92, NOT_RESOLVED: 102, NOT_CONFIRMED: 22}
NO_RESULTS = (NOT_RUN, UNRECORDED, *BY_TESTS)  # verdicts without results to commit
INTRODUCTION = """Built from [results.csv](%s-results.csv): cells of published tables whose dataset,
partition scheme and method agree with our runs; means ± sample standard deviation over seeds. "+" means that
a target was not reached."""
README = re.compile(r"\]\((?:\.\./)+studies/(\w+)/README\.md")
MEASURED = re.compile(r" \[[^]]*\](?= and |$)")  # a measure after the label of a method
LINK = re.compile(r"\[([^]]*)\]\((?!https?:|#)([^)]*)\)")  # in a README


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for the README of each study, its pictures, results and comparisons."""
    shown = (file for kind in (RESULTS, COMPARISONS, "*.svg") for file in sorted(STUDIES.glob(f"*/{kind}")))
    for file in shown:
        files.append(File.generated(config, f"studies/{_copied(file)}", content=file.read_text()))
    for readme in sorted(STUDIES.glob("*/README.md")):
        name = readme.parent.name
        content = LINK.sub(partial(_in_site, name), readme.read_text()) + published(readme.parent)
        files.append(File.generated(config, f"studies/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Fill in the table, and lead links to a README to its page."""
    up = "../" * page.file.src_uri.count("/")
    markdown = README.sub(rf"]({up}studies/\1.md", markdown)
    if page.file.src_uri == TABLE:
        for mark in (MARK, FULL):
            assert mark in markdown, f"{TABLE} has no line {mark}"
        markdown = markdown.replace(MARK, table()).replace(FULL, "\n".join(at_published_scale()))
    return markdown


def published(study: Path) -> str:
    """Published tables that a study's claims name, with our numbers next to theirs, from its results."""
    runs, _ = joined(load_params(study / PARAMS), study)
    named = numbered(" ".join(claim.source for claim in load_claims(study / CLAIMS)))
    tables = [shown for shown in compare(runs) if shown.measured]
    tables = [shown for shown in tables if not (label := numbered(shown.table.label)) or label & named]
    lines = ["", "## Published and ours", "", INTRODUCTION % study.name] if tables else []
    for shown in tables:
        lines += [
            "",
            f"### {shown.table.label}",
            "",
            f"{shown.source}.",
            "",
            *_compared(shown),
            "",
            *_notes(shown),
        ]
    return "\n".join([*lines, ""])


def at_published_scale() -> list[str]:
    """Cells of published tables whose sizes our runs have, and studies of that scale without results."""
    lines, waiting = [], []
    for study in sorted(file.parent for file in STUDIES.glob(f"*/{PARAMS}")):
        runs, _ = joined(load_params(study / PARAMS), study)
        for shown in compare(runs, full):
            link = f"[{shown.table.label}](studies/{study.name}.md)"
            lines += ["", f"**{link}**, {shown.source}.", "", *_compared(shown), "", *_notes(shown)]
        if not runs and read_verdicts(study).scale.startswith("full"):
            waiting.append(f"[{study.name}](studies/{study.name}.md)")
    return [*lines, "", f"Not run yet: {', '.join(waiting) or 'none'}."]


def _compared(shown: Shown) -> list[str]:
    """A table of a row per cell with a number of ours."""
    unit = f", {shown.table.unit}" if shown.table.unit else ""
    lines = [f"| row | method | published{unit} | ours{unit} | |", "|---|---|---:|---:|---|"]
    for label, mark, _, cells in shown.lines:
        for cell in cells:
            for ours in cell.ours:
                if ours.missing:
                    continue
                theirs = _marked(cell.cell.value.text, cell.mark)
                notes = ", ".join(filter(None, (ours.label, ours.note)))
                texts = (_marked(label, mark), cell.cell.name, theirs, ours.text, notes)
                lines.append(f"| {' | '.join(texts)} |")
    return lines


def _notes(shown: Shown) -> list[str]:
    return [
        *(f"- {i}: {note}" for i, note in enumerate(shown.footnotes, 1)),
        *(f"- {note}" for note in shown.notes),
    ]


def _marked(text: str, footnote: int | None) -> str:
    return f"{text}<sup>{footnote}</sup>" if footnote else text


def table() -> str:
    """The verdicts of all studies in HTML, by paper."""
    studies = sorted(file.parent for file in STUDIES.glob("*/verdicts.yaml"))
    rows = [row for study in studies for row in shown(study)]
    rows.sort(key=lambda row: row.entry.paper)
    based = [row for row in rows if row.state in (CURRENT, STALE)]
    copied = [row for row in rows if row.state in (ABSENT, TYPED)]
    planned = sum(row.entry.basis == "as planned" and row.entry.verdict == CONFIRMED for row in based)
    scales = Counter(row.scale for row in based)
    stale = sum(row.state == STALE for row in based)
    sampled = sum(row.reason == SAMPLE for row in based)
    causes = Counter(row.entry.was.split("; ")[1] for row in rows if row.entry.was)
    changed = ", ".join(f"{number} by {cause}" for cause, number in causes.most_common())
    notes = f"{len(copied)} are copied from notes: {_counted(copied)}. " if copied else ""
    return "\n".join(
        (
            '<link rel="stylesheet" href="verdicts.css">',
            f"<p>{len(rows)} claims. {len(based)} verdicts follow from committed results: {_counted(based)}. "
            f"{planned} are confirmed as planned; {scales['full'] or 'none'} at full scale, "
            f"{scales[CHANGED]} with the published sizes but another setting changed; "
            f"{stale or 'none'} are stale, and {sampled} rest on rows of earlier code, "
            "which gives the same numbers in a sample. "
            f"{causes.total()} verdicts have changed: {changed}. {notes}"
            f"The others: {_counted(row for row in rows if not row.state)}.</p>",
            _shares(based),
            '<table class="verdicts">',
            f"<thead><tr>{''.join(f'<th>{name}</th>' for name in COLUMNS)}</tr></thead>",
            "<tbody>",
            *map(_row, rows),
            "</tbody>",
            "</table>",
            '<script src="verdicts.js"></script>',
        )
    )


def _shares(based: Sequence["Row"]) -> str:
    """A table of verdicts by kind, before results were committed and now."""
    now = Counter(row.entry.verdict for row in based)
    heads = "".join(
        f"<th>{name}</th>" for name in ("verdict", "in prose, before results were committed", "now")
    )
    rows = (
        f"<tr><td>{name}</td><td>{_share(IN_PROSE[name], IN_PROSE.values())}</td>"
        f"<td>{_share(now[name], now.values())}</td></tr>"
        for name in IN_PROSE
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _share(number: int, every: Iterable[int]) -> str:
    return f"{number} ({number / max(1, sum(every)):.0%})"


def _counted(rows: Iterable["Row"]) -> str:
    counts = Counter(row.entry.verdict for row in rows)
    return ", ".join(f"{counts[word]} {word}" for word in (*VERDICTS, *BY_TESTS, UNRECORDED) if counts[word])


def entries(study: Path) -> list[Entry]:
    """The verdicts in a study's folder, with empty fields filled in from ``claims.yaml`` and the study."""
    recorded = read_verdicts(study)
    claims = {claim.id: claim for claim in load_claims(study / CLAIMS)}
    filled = []
    for entry in recorded.verdicts:
        claim = claims.get(entry.id)
        test = claim.test if claim and not claim.kinds else None
        filled.append(
            replace(
                entry,
                source=entry.source or (claim.source if claim else ""),
                claim=entry.claim or (claim.claim if claim else ""),
                paper=entry.paper or recorded.paper,
                planned=claim.planned if claim and entry.planned is None else entry.planned,
                scale=entry.scale or ("" if test else recorded.scale),
                command=entry.command or (f"pytest {test}" if test else recorded.command),
            )
        )
    return filled


class Row(NamedTuple):
    """A verdict of a study, and whether it follows from the results that are committed."""

    study: str
    entry: Entry
    state: str  # empty for a verdict without results
    reason: str = ""

    @property
    def scale(self) -> str:
        text = self.entry.size or self.entry.scale
        if text in ("", "full"):
            changed = self.entry.scale.startswith(("full,", "full;"))
            return CHANGED if changed else text or "not stated"
        return CHANGED if text.startswith("full") else "reduced"


def shown(study: Path) -> list[Row]:
    """The verdicts in a study's folder, and whether they follow from committed results of current code."""
    claims = {claim.id: claim for claim in load_claims(study / CLAIMS)}
    results, absent, basis = read_results(study), _absent(study), read_verdicts(study).judged
    outdated = joined(load_params(study / PARAMS), study)[1] if results else []
    changed = basis not in ("", judged_from(study, claims.values()))
    made = {row["id"]: row["verdict"] for row in _comparisons(study)}
    rows = []
    for entry in entries(study):
        sides = absent.get((entry.id, entry.verdict), set())
        state, reason = _state(entry, claims.get(entry.id), results, outdated, sides)
        if state == CURRENT and (changed or made.get(entry.id, entry.verdict) != entry.verdict):
            state, reason = STALE, "claims or results have changed since"
        rows.append(Row(study.name, entry, state, reason))
    return rows


def _comparisons(study: Path) -> list[dict[str, str]]:
    """The rows of ``claims.csv``, none without the file."""
    file = study / COMPARISONS
    return [*csv.DictReader(file.read_text(encoding="utf-8").splitlines())] if file.exists() else []


def _absent(study: Path) -> dict[tuple[str, str], set[tuple[str, str]]]:
    """Partitions and methods without results by claim and verdict, from the reasons in ``claims.csv``."""
    labels = {name: method.label for name, method in METHODS.items()}
    labels |= load_params(study / PARAMS).labels if (study / PARAMS).exists() else {}
    names = {label: name for name, label in labels.items()}
    absent: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for row in _comparisons(study):
        if row["reason"].startswith(NO_ROWS):
            reason = MEASURED.sub("", row["reason"].removeprefix(NO_ROWS).removesuffix(OTHER_ROWS))
            methods, partitions = reason.split(" and "), row["partition"].split(", ")
            sides = {(name, names.get(method, method)) for name in partitions for method in methods}
            absent.setdefault((row["id"], row["verdict"]), set()).update(sides)
    return absent


def _state(
    entry: Entry,
    claim: Claim | None,
    results: list[dict[str, str]],
    outdated: Sequence[Mapping[str, str]],
    absent: set[tuple[str, str]],
) -> tuple[str, str]:
    """The state of a verdict, and why it is stale, or still current; ``outdated`` are some of the results.

    Sides in ``absent`` were without results when the verdict was made.
    """
    if claim is None and entry.verdict in (*VERDICTS, *BY_TESTS) and entry.verdict != NOT_RUN:
        return TYPED, ""
    if claim is None or entry.verdict in NO_RESULTS:
        return "", ""
    used = [row for row in results if (row["partition"], row["method"]) in claim.sides]
    used = [row for row in used if claim.selects or not row.get(CHANGES)]
    made = {(row["partition"], row["method"]) for row in used}
    if not entry.commit or not used or claim.sides - made - absent:
        return ABSENT, ""
    if old := sum(row in outdated for row in used):
        return STALE, f"the settings or code of {old} of {len(used)} results have changed since"
    return CURRENT, SAMPLE if any(row.get(EQUAL) for row in used) else ""


def _row(row: Row) -> str:
    study, entry = row.study, row.entry
    ours = "; ".join(filter(None, [entry.ours, entry.seeds and counted(entry.seeds, "seed")]))
    files = [file for file in (RESULTS, COMPARISONS) if (STUDIES / study / file).exists() and row.state]
    link = " ".join(f'<a href="studies/{study}-{file}">{file}</a>' for file in files)
    state = ": ".join(filter(None, (row.state, row.reason))) if row.state != CURRENT else ""
    was = f"<p>before: {html.escape(entry.was)}</p>" if entry.was else ""
    scale = f"{html.escape(entry.size)}<p>{html.escape(entry.scale)}</p>" if entry.size else entry.scale
    note = f"<p>{html.escape(entry.note)}</p>" if entry.note else ""
    cells = (
        f"{html.escape(entry.claim)}{note}",
        html.escape(entry.source),
        html.escape(entry.published),
        html.escape(ours),
        html.escape(entry.interval),
        scale if entry.size else html.escape(scale),
        f'<b class="{entry.verdict.replace(" ", "-")}">{entry.verdict}</b>{was}<p>{state}</p>',
        html.escape(entry.basis),
        f'<a href="studies/{study}.html">{study}</a><p><code>{html.escape(entry.command)}</code></p>',
        f"{entry.date} {entry.commit} {link}".strip() or ("not recorded" if row.state else ""),
    )
    named = zip(COLUMNS, cells, strict=True)
    tds = "".join(f'<td data-name="{name}">{cell}</td>' for name, cell in named)
    keys = f'data-paper="{html.escape(entry.paper)}" data-verdict="{entry.verdict}" data-study="{study}"'
    keys += f' data-scale="{row.scale}" data-planned="{entry.basis or "not stated"}"'
    keys += f' data-results="{row.state or "none"}"'
    return f"<tr {keys}>{tds}</tr>"


def _copied(file: Path) -> str:
    """The name of a study's file in the site's folder of studies."""
    return f"{file.parent.name}-{file.name}"


def _in_site(study: str, link: re.Match[str]) -> str:
    """Lead a link of a README to a page of the site; a link to another file becomes its path."""
    text, target = link.groups()
    if target == "verdicts.yaml":
        return f"[{text}](../{TABLE.replace('.md', '.html')}?study={study})"
    if target in (RESULTS, COMPARISONS) or target.endswith(".svg"):
        return f"[{text}]({study}-{target})"
    if target.startswith("../../docs/"):
        return f"[{text}](../{target.removeprefix('../../docs/')})"
    if other := re.fullmatch(r"\.\./(\w+)/README\.md", target):
        return f"[{text}]({other[1]}.md)"
    return f"{text} (`studies/{study}/{target}`)"
