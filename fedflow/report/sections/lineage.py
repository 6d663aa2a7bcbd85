"""Lineage: data, partition, runs, clusters and registered models, with commits and commands."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from fedflow.finished.cells import Cell, Row, Table
from fedflow.finished.clusters import clusters
from fedflow.finished.run import Run
from fedflow.naming import counted
from fedflow.pictures.clusters import thumbnail
from fedflow.pictures.labels import ordered
from fedflow.pictures.labels import thumbnail as labels_thumbnail
from fedflow.report.blocks import Block, Chain, Fold, Section, Step
from fedflow.report.compared import Compared, ComparedPartition, Recorded
from fedflow.report.sections.data import planted
from fedflow.report.sections.groups import grouping_of

LEAD = "Where the numbers of each partition come from. Equal hashes mean equal content."
NOWHERE = "These runs are not in an MLflow store next to the results."
SMALL = """The small pictures have the clients in the same order: their labels, and by round (downwards) the
clusters of one run."""
LOCAL = Markup(" Links to runs and models open while <code>fedflow ui</code> runs.")
HEADS = ("Seed", "Run in MLflow", "Ended", "Commit", "Command", "Clusters", "Models")
MODELS = 8  # listed per run


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
    seed = Cell(str(run.seed), note=run.division if run.redrawn else "")
    if not facts:
        return [seed, Cell("not in the record"), *[Cell("")] * 5]
    link, code = Markup('<a href="{}">{}</a>'), Markup("<code>{}</code>")
    models = [link.format(facts["pages"][name], name) for name in facts["models"]]
    more = f" and {len(models) - MODELS} more" if len(models) > MODELS else ""
    return [
        seed,
        Cell(link.format(facts["page"], code.format(facts["run_id"][:8]))),
        Cell(facts["ended"], note=facts["user"]),
        Cell(code.format(facts["commit"]), note="with changes" if facts["changed"] else ""),
        Cell("", note=code.format(facts["command"])),
        Cell(code.format(facts["clusters"][:12]) if facts["clusters"] else ""),
        Cell("", note=Markup(", ").join(models[:MODELS]) + more),
    ]


def chain_of(p: ComparedPartition, recorded: Sequence[Mapping[str, Any]]) -> list[Step]:
    """The chain of one partition; ``recorded`` has facts from MLflow on its runs."""
    runs, small = [run for repeats in p.methods.values() for run in repeats], _small(p)
    first = runs[0].metrics
    counts = f"{counted(len(runs), 'run')} of {counted(len(p.methods), 'method')}"
    experiment = recorded[0]["experiment_page"] if recorded else ""
    data, partition = first["dataset"], runs[0].division
    steps = [
        Step("Data", data, first["data_hash"], "", f"fedflow prepare {data}", f"#{p.key}-about"),
        Step(
            "Partition",
            partition,
            first["partition_hash"],
            counted(first["clients"], "client"),
            f"fedflow partition {partition}",
            f"#{p.key}-{'labels' if 'Partition' in small else 'about'}",
            small.get("Partition"),
        ),
        Step("Runs", counts, "", _made(recorded, command=False), _command(recorded), experiment),
    ]
    if clustered := sum(bool(clusters(run).history) for run in runs):
        different = len({facts["clusters"] for facts in recorded} - {""})
        note = f"{counted(different, 'different assignment')} recorded" if recorded else ""
        name, link = f"of {counted(clustered, 'run')}", f"#{p.key}-groups"
        steps.append(Step("Clusters", name, "", note, "", link, small.get("Clusters")))
    if models := sum(len(facts["models"]) for facts in recorded):
        steps.append(Step("Models", counted(models, "registered version"), link=f"#{p.key}-runs"))
    return steps


def _small(p: ComparedPartition) -> dict[str, Markup]:
    """Small pictures of the partition and of the first clusters, with clients in the same order, by step."""
    runs, pictures, order = [run for repeats in p.divided.values() for run in repeats], {}, None
    if p.counts is not None and p.counts.size:
        dealt = planted(p)
        order = ordered(p.counts, *dealt)
        pictures["Partition"] = labels_thumbnail(p.counts, f"{p.key}-small", *dealt).svg
    if clustered := next((run for run in runs if clusters(run).history), None):
        grouping = grouping_of(clustered)
        clients = len(grouping.found)
        order = grouping.order if order is None else order[order < clients]
        pictures["Clusters"] = thumbnail(grouping, f"{p.key}-smallc", order).svg
    return pictures


def made(recorded: Recorded, runs: Iterable[Run]) -> str:
    """Time, commit, version and command of the shown runs, or an empty text if unknown."""
    return _made([facts for run in runs if (facts := recorded.get(_key(run)))])


def _key(run: Run) -> tuple[str, str, str, str]:
    return run.partition, run.method, str(run.seed), run.settings


def _made(recorded: Sequence[Mapping[str, Any]], command: bool = True) -> str:
    if not recorded:
        return ""
    ended = sorted(facts["ended"] for facts in recorded)
    when = ended[0] if ended[0] == ended[-1] else f"{ended[0]} to {ended[-1]}"
    changed = {facts["commit"] for facts in recorded if facts["changed"]}
    commits = sorted({facts["commit"] for facts in recorded} - {""})
    commits = [f"{commit}{' with changes' * (commit in changed)}" for commit in commits]
    parts = [when, f"from commit {', '.join(commits)}" if commits else ""]
    parts.append(f"by fedflow {', '.join(sorted({facts['version'] for facts in recorded}))}")
    parts.append(f"with {_command(recorded)}" if command and _command(recorded) else "")
    return ", ".join(filter(None, parts))


def _command(recorded: Sequence[Mapping[str, Any]]) -> str:
    """The command of the runs, or the number of commands."""
    commands = {facts["command"] for facts in recorded} - {""}
    return next(iter(commands)) if len(commands) == 1 else f"{len(commands)} commands" if commands else ""
