"""BibTeX entries of the sources in the docstrings of methods."""

import re
import sys
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

# Authors, "Title", venue year, arXiv number, as in the docstring of every method.
PAPER = re.compile(
    r'(?P<authors>(?:[^\W\d_][\w\'. -]*, )+)"(?P<title>[^"]+)"(?: \([^)]*\))?, (?P<venue>(?:[^,;.\d]+ )?)'
    r"(?P<year>\d{4})(?:, arXiv (?P<arxiv>\d{4}\.\d{4,5}))?"
)
SOURCE = re.compile(r"^Source: (.*?)(?=\n\n|\n\*|\n[A-Z][a-z ]+: |\Z)", re.MULTILINE | re.DOTALL)
PLACEHOLDER = ("its authors", "Its title")  # of `fedflow new`, until replaced
BEFORE = ("the baseline of ", "as a federated method ", "as in ")  # words before an author


class Entry(NamedTuple):
    """A BibTeX entry: its key, kind and fields."""

    key: str
    kind: str
    fields: dict[str, str]

    def __str__(self) -> str:
        lines = [f"  {name:<13} = {{{value}}}," for name, value in self.fields.items()]
        return "\n".join([f"@{self.kind}{{{self.key},", *lines, "}"])


def sources(name: str) -> list[Entry]:
    """The papers in the docstring of a registered method, or its source in words if it names none."""
    from fedflow.methods import METHODS  # imports torch, which cached sources do not need

    text = sys.modules[METHODS[name].__module__].__doc__ or ""
    source = SOURCE.search(text)
    if source is None:
        return []
    words = " ".join(source[1].split())
    for phrase in BEFORE:
        words = words.replace(phrase, "; ")
    papers = [_paper(match) for match in PAPER.finditer(words)]
    note = " ".join(source[1].split()).split(". ")[0].rstrip(".")
    return papers or [Entry(name, "misc", {"title": METHODS[name].label, "note": note})]


def cited() -> dict[str, tuple[str, list[Entry]]]:
    """Label and sources of every registered method."""
    from fedflow.methods import METHODS

    return {name: (method.label, sources(name)) for name, method in METHODS.items()}


def bibtex(names: list[str], methods: Mapping[str, Any] | None = None) -> str:
    """The entries of these methods without repetition, in order, with the methods in a comment.

    ``methods`` is the result of `cited`, or its JSON. A source that `fedflow new` wrote is left out with a
    warning.
    """
    methods = methods or cited()
    of: dict[str, tuple[Entry, list[str]]] = {}
    unnamed: list[str] = []
    untouched: list[str] = []
    for name in names:
        label, papers = methods[name]
        entries = [Entry(*paper) for paper in papers]
        if any(words in str(entry) for entry in entries for words in PLACEHOLDER):
            entries = []
            untouched.append(label)
        for entry in entries:
            of.setdefault(entry.key, (entry, []))[1].append(label)
        unnamed += [] if entries else [label]
    if untouched:
        warnings.warn(
            f"{', '.join(untouched)}: the source is still the placeholder of `fedflow new`; to have it"
            " cited, name the paper in the docstring of the method",
            stacklevel=2,
        )
    blocks = [f"% {', '.join(labels)}\n{entry}" for entry, labels in of.values()]
    return "\n\n".join([*blocks, *(f"% {label}: no source" for label in unnamed)]) + "\n"


def _paper(match: re.Match[str]) -> Entry:
    authors = [author.strip() for author in match["authors"].split(",") if author.strip()]
    title, venue, year = match["title"], match["venue"].strip(), match["year"]
    words = (w for w in re.findall(r"[a-z]+", title.lower()) if w not in ("a", "an", "the", "on", "of"))
    word = next(words, "paper")  # a title in another script
    fields = {"title": f"{{{title}}}", "author": " and ".join(authors), "year": year}
    if venue:
        kind = "article" if venue.startswith(("IEEE T", "IEEE O")) else "inproceedings"
        fields["journal" if kind == "article" else "booktitle"] = venue
    else:
        kind = "misc"
    if match["arxiv"]:
        fields |= {"eprint": match["arxiv"], "archiveprefix": "arXiv"}
    return Entry(f"{re.sub(r'[^a-z]', '', authors[0].lower())}{year}{word}", kind, fields)
