"""BibTeX of the sources that methods name in their texts."""

import re
import sys
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

# Authors, "Title", venue year, arXiv number: as every text of a method writes it.
PAPER = re.compile(
    r'(?P<authors>(?:[^\W\d_][\w\'. -]*, )+)"(?P<title>[^"]+)"(?: \([^)]*\))?, (?P<venue>(?:[^,;.\d]+ )?)'
    r"(?P<year>\d{4})(?:, arXiv (?P<arxiv>\d{4}\.\d{4,5}))?"
)
SOURCE = re.compile(r"^Source: (.*?)(?=\n\n|\n\*|\n[A-Z][a-z ]+: |\Z)", re.MULTILINE | re.DOTALL)
PLACEHOLDER = ("its authors", "Its title")  # in what `fedflow new` writes, until it is replaced
BEFORE = ("the baseline of ", "as a federated method ", "as in ")  # words that are no author


class Entry(NamedTuple):
    """A BibTeX entry: its key, kind and fields."""

    key: str
    kind: str
    fields: dict[str, str]

    def __str__(self) -> str:
        lines = [f"  {name:<13} = {{{value}}}," for name, value in self.fields.items()]
        return "\n".join([f"@{self.kind}{{{self.key},", *lines, "}"])


def sources(name: str) -> list[Entry]:
    """The papers that the text of a registered method names; its source in words if it names none."""
    from fedflow.methods import METHODS  # imports torch, which printing known sources does not need

    text = sys.modules[METHODS[name].__module__].__doc__ or ""
    found = SOURCE.search(text)
    if found is None:
        return []
    words = " ".join(found[1].split())
    for phrase in BEFORE:
        words = words.replace(phrase, "; ")
    papers = [_paper(match) for match in PAPER.finditer(words)]
    note = " ".join(found[1].split()).split(". ")[0].rstrip(".")
    return papers or [Entry(name, "misc", {"title": METHODS[name].label, "note": note})]


def cited() -> dict[str, tuple[str, list[Entry]]]:
    """Label and sources of every registered method."""
    from fedflow.methods import METHODS

    return {name: (method.label, sources(name)) for name, method in METHODS.items()}


def bibtex(names: list[str], known: Mapping[str, Any] | None = None) -> str:
    """The entries of these methods, each once, in their order; a comment says which methods they are of.

    ``known`` is what `cited` returns, also as JSON has it. A source that is still the text of `fedflow new`
    is left out, with a warning.
    """
    known = known or cited()
    of: dict[str, tuple[Entry, list[str]]] = {}
    unnamed: list[str] = []
    untouched: list[str] = []
    for name in names:
        label, found = known[name]
        entries = [Entry(*each) for each in found]
        if any(words in str(entry) for entry in entries for words in PLACEHOLDER):
            entries = []
            untouched.append(label)
        for entry in entries:
            of.setdefault(entry.key, (entry, []))[1].append(label)
        unnamed += [] if entries else [label]
    if untouched:
        warnings.warn(
            f"{', '.join(untouched)}: the source is still the text of `fedflow new`; name the paper in the"
            " docstring of the method, else it is not cited",
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
