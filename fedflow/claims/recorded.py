"""``verdicts.yaml``: the latest verdict on every claim of a study, with its numbers, to be committed.

``fedflow report --verdicts`` writes it next to ``claims.yaml``. It replaces what follows from the runs, and
keeps what a person has written: published numbers, scale, whether the claim was planned, caveats, and
claims that are not in ``claims.yaml``. The docs site shows the verdicts of all studies in one table.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from fedflow.claims.claims import Claim
from fedflow.claims.matching import Match, scale
from fedflow.claims.results import EQUAL, Recorded, origin, read_results
from fedflow.claims.sources import RECORDED
from fedflow.claims.verdicts import BY_TESTS, NOT_RESOLVED, NOT_RUN, VERDICTS, Judged
from fedflow.config import read_yaml
from fedflow.errors import BadInput
from fedflow.files import replace_text
from fedflow.project.digest import SHORT, digest
from fedflow.project.yaml_text import as_yaml
from fedflow.settings import Settings, option

UNRECORDED = "not recorded"
SEEN, OTHER_SEEDS = "seen, not planned", "other seeds"
FEW = {1: "one seed", 2: "two seeds"}
WORDS = ("source", "claim", "planned", "test")  # of a claim: no part of a comparison
HEAD = "# Verdicts on the claims of this study; `fedflow report --verdicts` updates them.\n"


class Entry(Settings):
    """The verdict on one claim, and the numbers that decide it."""

    id: str = option(doc="id of a claim in claims.yaml, or another short name")
    source: str = option("", "where it is made; empty: as in claims.yaml")
    claim: str = option("", "what it says; empty: as in claims.yaml")
    paper: str = option("", "paper or method, to filter by; empty: as in the study")
    published: str = option("", "numbers of the source")
    ours: str = option("", "our numbers")
    interval: str = option("", "95 % interval of the mean paired difference")
    seeds: int | None = option(None, "number of seeds", ge=1)
    scale: str = option("", "scale of the runs; empty: as in the study")
    size: str = option("", "sizes of the runs of those in the published table, full if all are")
    verdict: str = option(
        UNRECORDED,
        "the verdict; a claim with several parts has the worst one",
        choices=(*VERDICTS, *BY_TESTS, UNRECORDED),
    )
    was: str = option("", "the verdict before the last one that differs, and what changed it")
    planned: bool | None = option(None, "whether it was fixed before the runs; null: as in claims.yaml")
    note: str = option("", "what limits the verdict")
    command: str = option("", "what repeats it; empty: as in the study")
    date: str = option("", "day of the verdict")
    commit: str = option("", "commits of its runs; dirty with changes that were not committed")

    @property
    def basis(self) -> str:
        """Planned or seen, if stated; a verdict on one or two seeds is always seen."""
        if self.seeds in FEW and self.verdict in VERDICTS:
            return f"seen, {FEW[self.seeds]}"
        if self.planned and OTHER_SEEDS in self.was:
            return SEEN
        return {True: "as planned", False: SEEN, None: ""}[self.planned]


class Verdicts(Settings):
    """Content of ``verdicts.yaml``."""

    paper: str = option("", "paper or method of the claims")
    scale: str = option("", "scale of the runs: full, or what is reduced")
    command: str = option("", "the command that repeats the runs")
    judged: str = option("", "digest of the claims and of the rows in results.csv that verdicts follow from")
    verdicts: list[Entry] = option(factory=list, doc="an entry per claim")

    def validate(self) -> None:
        ids = [entry.id for entry in self.verdicts]
        if twice := [name for name in ids if ids.count(name) > 1]:
            raise BadInput("verdicts.id", twice[0], "a name that no other entry has")


def read_verdicts(study: Path) -> Verdicts:
    """Content of ``verdicts.yaml`` in a study's folder; empty without the file."""
    file = study / RECORDED
    try:
        return Verdicts.parse((read_yaml(file) or {}) if file.exists() else {})
    except BadInput as error:
        raise error.renamed(f"{file}, {error.field}") from None


def judged_from(study: Path, claims: Iterable[Claim]) -> str:
    """A digest of what verdicts follow from: all comparisons of a study and the rows of ``results.csv``."""
    checks = {claim.id: _filled(claim.as_dict()) for claim in claims if claim.kinds}
    rows = [{name: text for name, text in row.items() if name != EQUAL} for row in read_results(study)]
    return digest([checks, rows], SHORT)


def _filled(value: Any) -> Any:
    """The settings of a claim that its comparisons follow from, without empty ones."""
    if isinstance(value, list):
        return [_filled(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    filled = {name: inner for name, inner in value.items() if inner and name not in WORDS}
    return {name: inner if name == "where" else _filled(inner) for name, inner in filled.items()}


def write_verdicts(
    study: Path, judged: Iterable[Judged], date: str, facts: Recorded, matched: Sequence[Match] = ()
) -> Path:
    """Update ``verdicts.yaml``; a claim without results keeps its earlier verdict. Returns the file.

    ``date`` becomes the day of verdicts that change. ``facts`` has the commits of the runs, and ``matched``
    are their published cells, from which the scale follows.
    """
    recorded, judged = read_verdicts(study), [*judged]
    entries = {entry.id: entry for entry in recorded.verdicts}
    for verdict in judged:
        entry = entries.get(verdict.claim.id, Entry(id=verdict.claim.id, verdict=NOT_RUN))
        if not verdict.comparisons:
            entry = replace(entry, verdict=verdict.verdict)
        elif verdict.verdict == NOT_RUN:
            entry = replace(entry, ours=verdict.counts) if _partly(entry, verdict) else entry
        else:
            runs = [run for result in verdict.comparisons for run in result.runs]
            size = scale(matched, runs, verdict.claim.source)
            commits = sorted({origin(run, facts)["commit"] for run in runs} - {""})
            made = replace(entry, **_computed(verdict), size=size, commit=", ".join(commits))
            entry = entry if entry == made else replace(made, date=date, was=_was(entry, made))
        entries[entry.id] = entry
    basis = judged_from(study, (verdict.claim for verdict in judged))
    file, heads = study / RECORDED, _given(replace(recorded, judged=basis, verdicts=[]))
    top, *above, end = _comments(file)
    notes = dict(zip((entry.id for entry in recorded.verdicts), above))  # keeps what a person wrote
    listed = [notes.get(entry.id, "") + as_yaml([_given(entry)]) for entry in entries.values()]
    texts = [top + (as_yaml(heads) if heads else ""), "verdicts:\n", *listed, *([end] if end else [])]
    replace_text(file, HEAD + "\n".join(texts))
    return file


def _comments(file: Path) -> list[str]:
    """The lines of comments at the top of the file, above or in each of its entries, and at its end."""
    text = file.read_text(encoding="utf-8-sig") if file.exists() else ""
    lines, end = [""], 0
    for token in yaml.scan(text):
        if isinstance(token, yaml.BlockEndToken | yaml.BlockSequenceStartToken):
            continue  # of no length: what follows tells to which entry a comment belongs
        behind, *below = text[end : token.start_mark.index].split("\n")
        lines[-1] += _commented([behind])
        if isinstance(token, yaml.BlockEntryToken | yaml.StreamEndToken):
            lines.append("")
        lines[-1] += _commented(below)
        end = len(text[: token.end_mark.index].rstrip())
    return lines


def _commented(lines: Iterable[str]) -> str:
    """The lines with a comment, except the first one of the file, which the command writes."""
    return "".join(f"{line.strip()}\n" for line in lines if "#" in line and line.strip() != HEAD.strip())


def _computed(judged: Judged) -> dict[str, Any]:
    """The fields of an entry that follow from the runs."""
    deciding, shown = judged.deciding, judged.shown
    seeds = [len(result.difference.values) for result in deciding if result.difference]
    means = [f"{result.partition}: {result.means}" for result in shown if result.means]
    noted = [result for result in deciding if result.note]
    several = len({result.note for result in noted}) > 1
    notes = [f"{result.partition}: " * several + result.note for result in noted]
    texts = (*means, judged.counts, *notes)
    return {
        "verdict": judged.verdict,
        "ours": "; ".join(dict.fromkeys(text for text in texts if text)),
        "interval": "; ".join(result.span for result in shown if result.span),
        "seeds": min(seeds, default=None),
    }


def _partly(entry: Entry, judged: Judged) -> bool:
    """True if some comparisons of a claim have results, and no earlier verdict stands."""
    return entry.verdict == NOT_RUN and any(result.verdict != NOT_RUN for result in judged.comparisons)


def _was(entry: Entry, made: Entry) -> str:
    """The verdict that another one replaces, and the cause as far as seeds and commits tell it."""
    if (
        entry.verdict == made.verdict
        or entry.verdict not in VERDICTS
        or (entry.seeds in FEW and entry.verdict == NOT_RESOLVED)  # a study that is run in parts
        or NOT_RUN in (entry.verdict, made.verdict)
    ):
        return entry.was
    same = entry.commit and entry.commit == made.commit
    cause = "another claim or statistic" if same else "other runs"
    cause = cause if entry.seeds == made.seeds else OTHER_SEEDS
    if OTHER_SEEDS in entry.was and cause != OTHER_SEEDS:
        cause += f"; before that, {OTHER_SEEDS}"
    return f"{entry.verdict}; {cause}"


def _given(settings: Settings) -> dict[str, Any]:
    """The fields with a value."""
    return {name: value for name, value in settings.as_dict().items() if value not in ("", None, [])}
