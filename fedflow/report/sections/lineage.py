"""Lineage: from the data over partition, runs and clusters to registered models, with what made them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from fedflow.finished.cells import Cell, Row, Table
from fedflow.finished.clusters import clusters
from fedflow.finished.run import Run
from fedflow.pictures.clusters import thumbnail
from fedflow.pictures.labels import ordered
from fedflow.pictures.labels import thumbnail as labels_thumbnail
from fedflow.report.blocks import Block, Chain, Fold, Section, Step
from fedflow.report.compared import Compared, ComparedPartition, Recorded
from fedflow.report.sections.data import planted
from fedflow.report.sections.groups import grouping_of

LEAD = "Where the numbers of each partition come from. Equal hashes mean equal content."
NOWHERE = "These runs are not in an MLflow store beside the results."
SMALL = """The small pictures have the clients in the same order: their labels, and by round (downwards) the
clusters of one run."""
LOCAL = Markup(" Links to runs and models open while <code>fedflow ui</code> runs.")
HEADS = ("Seed", "Run in MLflow", "Ended", "Commit", "Command", "Clusters", "Models")
MODELS = 8  # of a run that are listed


def section(c: Compared) -> Section | None:
    if not c.runs:
        return None
    words = f"Recorded {made(c.recorded, c.runs)}." if made(c.recorded, c.runs) else NOWHERE
    local = "" if any(facts["served"] for facts in c.recorded.values()) else LOCAL
    lead = Markup("{} {} {}").format(LEAD, words, SMALL) + local
    blocks = [block for p in c.partitions for block in _blocks(p, c.recorded)]
    return Section("lineage", "Lineage", lead, blocks)


def _blocks(p: ComparedPartition, recorded: Recorded) -> list[Block]:
    origins = [(run, recorded.get(_key(run), {})) for runs in p.methods.values() for run in runs]
    chain = Chain(chain_of(p, [facts for _, facts in origins if facts]))
    if not any(facts for _, facts in origins):
        return [chain]
    rows = [Row(run.variant, run.label, _cells(run, facts)) for run, facts in origins]
    table = Table([(head, "", "") for head in HEADS], rows, kind="words")
    summary = f"Every run on {p.name}: commit, command, models"
    return [chain, Fold(summary, [table], key=f"{p.key}-runs")]


def _cells(run: Run, facts: Mapping[str, Any]) -> list[Cell]:
    """The origin of one run."""
    if not facts:
        return [Cell(str(run.seed)), Cell("not in the record"), *[Cell("")] * 5]
    link, code = Markup('<a href="{}">{}</a>'), Markup("<code>{}</code>")
    models = [link.format(facts["pages"][name], name) for name in facts["models"]]
    more = f" and {len(models) - MODELS} more" if len(models) > MODELS else ""
    return [
        Cell(str(run.seed)),
        Cell(link.format(facts["page"], code.format(facts["run_id"][:8]))),
        Cell(facts["ended"], note=facts["user"]),
        Cell(code.format(facts["commit"]), note="with changes" if facts["changed"] else ""),
        Cell("", note=code.format(facts["command"])),
        Cell(code.format(facts["clusters"][:12]) if facts["clusters"] else ""),
        Cell("", note=Markup(", ").join(models[:MODELS]) + more),
    ]


def chain_of(p: ComparedPartition, known: Sequence[Mapping[str, Any]]) -> list[Step]:
    """The chain of one partition; ``known`` is what the record has of its runs."""
    runs, small = [run for own in p.methods.values() for run in own], _small(p)
    first = runs[0].metrics
    counted = f"{_of(len(runs), 'run')} of {_of(len(p.methods), 'method')}"
    experiment = known[0]["experiment_page"] if known else ""
    data, partition = first["dataset"], first["partition"]
    steps = [
        Step("Data", data, first["data_hash"], "", f"fedflow prepare {data}", f"#{p.key}-about"),
        Step(
            "Partition",
            partition,
            first["partition_hash"],
            _of(first["clients"], "client"),
            f"fedflow partition {partition}",
            f"#{p.key}-{'labels' if 'Partition' in small else 'about'}",
            small.get("Partition"),
        ),
        Step("Runs", counted, "", _made(known, command=False), _command(known), experiment),
    ]
    if found := sum(bool(clusters(run).history) for run in runs):
        note = f"{_of(len({facts['clusters'] for facts in known} - {''}), 'different assignment')} recorded"
        note, picture = note if known else "", small.get("Clusters")
        steps.append(Step("Clusters", f"of {_of(found, 'run')}", "", note, "", f"#{p.key}-groups", picture))
    if models := sum(len(facts["models"]) for facts in known):
        steps.append(Step("Models", _of(models, "registered version"), link=f"#{p.key}-runs"))
    return steps


def _small(p: ComparedPartition) -> dict[str, Markup]:
    """Small pictures of the partition and of the first clusters, clients in the same order, by step."""
    runs, found, order = [run for own in p.methods.values() for run in own], {}, None
    if p.counts is not None and p.counts.size:
        dealt = planted(p, runs)
        order = ordered(p.counts, *dealt)
        found["Partition"] = labels_thumbnail(p.counts, f"{p.key}-small", *dealt).svg
    if clustered := next((run for run in runs if clusters(run).history), None):
        grouping = grouping_of(clustered)
        known = len(grouping.found)
        order = grouping.order if order is None else order[order < known]
        found["Clusters"] = thumbnail(grouping, f"{p.key}-smallc", order).svg
    return found


def made(recorded: Recorded, runs: Iterable[Run]) -> str:
    """When, from which commit, by which version and command the shown runs were made; empty if unknown."""
    return _made([facts for run in runs if (facts := recorded.get(_key(run)))])


def _key(run: Run) -> tuple[str, str, str, str]:
    return run.partition, run.method, str(run.seed), run.settings


def _made(known: Sequence[Mapping[str, Any]], command: bool = True) -> str:
    if not known:
        return ""
    ended = sorted(facts["ended"] for facts in known)
    when = ended[0] if ended[0] == ended[-1] else f"{ended[0]} to {ended[-1]}"
    changed = {facts["commit"]: " with changes" * facts["changed"] for facts in known}
    commits = [f"{commit}{changed[commit]}" for commit in sorted(changed) if commit]
    parts = [when, f"from commit {', '.join(commits)}" if commits else ""]
    parts.append(f"by fedflow {', '.join(sorted({facts['version'] for facts in known}))}")
    parts.append(f"with {_command(known)}" if command and _command(known) else "")
    return ", ".join(filter(None, parts))


def _command(known: Sequence[Mapping[str, Any]]) -> str:
    """The command that made the runs, or how many there are."""
    commands = {facts["command"] for facts in known} - {""}
    return next(iter(commands)) if len(commands) == 1 else f"{len(commands)} commands" if commands else ""


def _of(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
