"""Glossary, and how to make the page again."""

from pathlib import Path

from markupsafe import Markup

from fedflow.report.blocks import Section, Text
from fedflow.report.compared import Compared

GLOSSARY = Path(__file__).parents[1] / "glossary.html"
SAME = """Every number on this page comes from the result files; with the same parameters and seeds, files
are identical."""
COMMANDS = Markup(
    """<pre class="card"><code>\
dvc repro                  # prepare, partition, run the grid, write this page; re-runs only what changed
dvc exp run -S run.rounds=50   # the same with one setting changed
fedflow report             # rebuild this page from the existing results</code></pre>"""
)
FILES = Markup("""Settings are in <code>params.yaml</code>, the stages in <code>dvc.yaml</code>; equal hashes
under “What was run” mean equal data and partitions. Next to this page: <code>accuracy.csv</code>,
<code>fairness.csv</code>, <code>traffic.csv</code>, <code>clusters.csv</code> (mean, sample std, lowest and
highest over seeds), <code>pairs.csv</code> (differences and intervals){} and <code>runs.csv</code> (a row
per run){}.""")
CLAIMS = Markup(", <code>claims.csv</code> and <code>claims.md</code> (verdicts)")
PROCEDURES = Markup(", <code>outcomes.csv</code> (procedures)")


def glossary(_: Compared) -> Section:
    return Section("glossary", "Glossary", "", [Markup(GLOSSARY.read_text(encoding="utf-8"))])


def section(c: Compared) -> Section:
    files = FILES.format(CLAIMS if c.claims else "", PROCEDURES if c.outcomes else "")
    return Section("reproduce", "Reproduce", "", [Text(SAME, ""), COMMANDS, Text(files)])
