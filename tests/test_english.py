"""Pages, messages and docstrings avoid phrases that read as translated."""

import json
import re
from pathlib import Path

import pytest
import telltale

HOME = Path(__file__).parents[1]
PLACES = ("README.md", "CONTRIBUTING.md", "docs", "examples", "fedflow", "flows", "studies", "tasks")
KINDS = {".md", ".py", ".yaml", ".ipynb", ".css", ".html", ".js"}
# A pattern, and what to write.
AVOID = {
    r"so many": "a number",
    r"anew": "again",
    r"of its own": "its own",
    r"l(?:ies?|ay|ying) in": "is stored in, is",
    r"g(?:oes?|oing|one) on|went on|carr(?:y|ies) on": "resume, continue",
    r"but for": "except",
    r"mend(?:s|ed|ing)?": "fix",
    r"mak(?:es?|ing) for": "a verb that says what happens",
    r"le(?:ts?|tting) go": "release",
    r"interpreter lock": "GIL",
    r"comes? again": "are repeated, are reused",
    r"few sizes": "a few fixed sizes",
    r"facts (?:per|about each) (?:sample|image)": "metadata of",
    r"(?:content|data|file) that is nowhere|is found nowhere": "is not found",
    r"costs? its cohort": "the cost depends on the cohort",
    r"moves? nothing": "without communication",
    r"level line": "horizontal line",
    r"(?:says?|said) the same of": "makes similar predictions on",
    r"who does well": "clients whose models do well",
    r"weighs? up": "gives more weight to",
    r"methods that are right": "correct methods",
    r"on one machine,? too": "even on one machine",
    r"the house": "repository layout",
    r"cut off, and": "interrupting and resuming",
    r"steps? (?:that )?the server took meanwhile": "staleness",
    r"highest mean is that of": "leads",
    r"as soon as may be|by and by|ere|whereof|thereof|forthwith|afresh|henceforth": "a plain word",
}
ANY = re.compile(rf"\b(?:{'|'.join(AVOID)})\b")
FILES = [
    file
    for place in map(HOME.joinpath, PLACES)
    for file in ([place] if place.is_file() else sorted(place.rglob("*")))
    if file.suffix in KINDS
]


def found(text: str) -> list[str]:
    """The phrases in a text, whose lines and comments are joined, and the words to use instead."""
    flat = " ".join(text.replace("#", " ").lower().split())
    return [
        f"{flat[max(0, match.start() - 30) : match.end() + 20]!r}: {words}"
        for match in ANY.finditer(flat)
        for pattern, words in AVOID.items()
        if re.fullmatch(pattern, match[0])
    ]


def test_no_phrase_reads_as_translated() -> None:
    assert len(FILES) > 300
    bad = {str(file.relative_to(HOME)): phrases for file in FILES if (phrases := found(file.read_text()))}
    assert not bad, "\n".join(f"{name}: {phrase}" for name, each in bad.items() for phrase in each)


@pytest.mark.parametrize(
    "text", ["The run goes\n# on.", "All but for one.", "It lies in a folder.", "So many clients"]
)
def test_a_phrase_is_found_across_lines_and_comments(text: str) -> None:
    assert len(found(text)) == 1 and not found("Everyone commends undergone tests, therefore.")


def test_patterns_that_read_as_translated_become_fewer() -> None:
    """Lower the numbers in tests/telltale.json when there are fewer; never raise them."""
    allowed = json.loads(Path(__file__).with_name("telltale.json").read_text())
    counts = telltale.counts()
    assert counts.keys() == allowed.keys()
    more = {name: f"{count} > {allowed[name]}" for name, count in counts.items() if count > allowed[name]}
    assert not more, f"{more}: `python tests/telltale.py FILE ...` lists them"
