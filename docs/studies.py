"""The table of verdicts and a page for each study in the docs site, from the files in studies/."""

import html
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fedflow.claims.claims import load_claims
from fedflow.claims.recorded import FEW, UNRECORDED, Entry, read_verdicts
from fedflow.claims.sources import CLAIMS
from fedflow.claims.verdicts import BY_TESTS, VERDICTS

STUDIES = Path(__file__).parents[1] / "studies"
TABLE = "reproductions.md"
MARK = "<!-- verdicts -->"
COLUMNS = (
    "claim",
    "source",
    "published",
    "ours ± (n)",
    "95 % interval",
    "scale",
    "verdict",
    "planned or seen",
    "command",
)
README = re.compile(r"\]\((?:\.\./)+studies/(\w+)/README\.md")
LINK = re.compile(r"\[([^]]*)\]\((?!https?:|#)([^)]*)\)")  # in a README


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for the README of each study."""
    for readme in sorted(STUDIES.glob("*/README.md")):
        name = readme.parent.name
        content = LINK.sub(partial(_in_site, name), readme.read_text())
        files.append(File.generated(config, f"studies/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Fill in the table, and lead links to a README to its page."""
    up = "../" * page.file.src_uri.count("/")
    markdown = README.sub(rf"]({up}studies/\1.md", markdown)
    if page.file.src_uri == TABLE:
        assert MARK in markdown, f"{TABLE} has no line {MARK}"
        markdown = markdown.replace(MARK, table())
    return markdown


def table() -> str:
    """The verdicts of all studies in HTML, by paper."""
    studies = sorted(file.parent for file in STUDIES.glob("*/verdicts.yaml"))
    rows = [(study.name, entry) for study in studies for entry in entries(study)]
    rows.sort(key=lambda row: row[1].paper)
    counts = Counter(entry.verdict for _, entry in rows)
    few = sum(entry.seeds in FEW and entry.verdict in VERDICTS for _, entry in rows)
    counted = ", ".join(f"{counts[word]} {word}" for word in (*VERDICTS, *BY_TESTS, UNRECORDED))
    return "\n".join(
        (
            '<link rel="stylesheet" href="verdicts.css">',
            f"<p>{len(rows)} claims: {counted}. {few} of these verdicts are on one or two seeds.</p>",
            '<table class="verdicts">',
            f"<thead><tr>{''.join(f'<th>{name}</th>' for name in COLUMNS)}</tr></thead>",
            "<tbody>",
            *(_row(study, entry) for study, entry in rows),
            "</tbody>",
            "</table>",
            '<script src="verdicts.js"></script>',
        )
    )


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
                scale=entry.scale or ("" if test else recorded.scale),
                command=entry.command or (f"pytest {test}" if test else recorded.command),
            )
        )
    return filled


def _row(study: str, entry: Entry) -> str:
    ours = f"{entry.ours} ({entry.seeds})".strip() if entry.seeds else entry.ours
    run = f"{entry.date} {entry.commit}".strip()
    note = f"<p>{html.escape(entry.note)}</p>" if entry.note else ""
    cells = (
        f"{html.escape(entry.claim)}{note}",
        html.escape(entry.source),
        html.escape(entry.published),
        html.escape(ours),
        html.escape(entry.interval),
        html.escape(entry.scale),
        f'<b class="{entry.verdict.replace(" ", "-")}">{entry.verdict}</b>',
        html.escape(entry.basis),
        f'<a href="studies/{study}.html">{study}</a><p><code>{html.escape(entry.command)}</code> {run}</p>',
    )
    named = zip(COLUMNS, cells, strict=True)
    tds = "".join(f'<td data-name="{name}">{cell}</td>' for name, cell in named)
    keys = f'data-paper="{html.escape(entry.paper)}" data-verdict="{entry.verdict}" data-study="{study}"'
    return f"<tr {keys}>{tds}</tr>"


def _in_site(study: str, link: re.Match[str]) -> str:
    """Lead a link of a README to a page of the site; a link to another file becomes its path."""
    text, target = link.groups()
    if target == "verdicts.yaml":
        return f"[{text}](../{TABLE.replace('.md', '.html')}?study={study})"
    if target.startswith("../../docs/"):
        return f"[{text}](../{target.removeprefix('../../docs/')})"
    if other := re.fullmatch(r"\.\./(\w+)/README\.md", target):
        return f"[{text}]({other[1]}.md)"
    return f"{text} (`studies/{study}/{target}`)"
