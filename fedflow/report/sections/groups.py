"""Clusters of clients that methods found, compared with planted groups."""

from collections import Counter
from collections.abc import Sequence

from fedflow.finished.cells import Methods, metric_table
from fedflow.finished.clusters import clusters, groups_of
from fedflow.finished.run import Run
from fedflow.finished.tables import columns
from fedflow.naming import listed
from fedflow.pictures.accuracy import curve
from fedflow.pictures.clusters import Grouping, pictures_of, timeline
from fedflow.report.blocks import Block, Drawing, Heading, Listing, Panels, Section, Text
from fedflow.report.compared import ALONE, Compared, ComparedPartition, leading, not_drawn

LEAD = """How well methods that serve clusters of clients recover the planted groups. A color is a cluster;
if both have the same stripes, the clusters are the planted groups."""
PICTURES = (
    "Assignment: a row is a client; a change of color is a move to another cluster. Blank: not evaluated "
    "yet.",
    "Moves, where there are some: the share of clients that changed cluster in each round, and from which "
    "cluster to which. The width of a band is its number of clients; gray: no cluster yet.",
    "Dissimilarity: all pairs of clients that the server compares, in the order of the dendrogram. The "
    "dashed line is the height up to which clusters were merged.",
    "Embedding: clients in two dimensions, by classical multidimensional scaling of these dissimilarities. A "
    "shape is a planted group.",
)


def section(c: Compared) -> Section | None:
    blocks = [block for p in c.partitions for block in _blocks(p)]
    return Section("groups", "Groups found", LEAD, [Listing(PICTURES), *blocks]) if blocks else None


def _blocks(p: ComparedPartition) -> list[Block]:
    clustered = {v: runs for v, runs in p.methods.items() if any(clusters(run).history for run in runs)}
    head = Heading(p.name, _planted(p) or "no planted groups", f"{p.key}-groups")
    if not clustered:
        return [head, Text("None of these methods serves clusters.")] if _planted(p) else []
    shown = leading(clustered, ALONE).values()
    first = [next(run for run in runs if clusters(run).history) for runs in shown]
    drawn = [_pictures(run, f"{p.key}-c{i}") for i, run in enumerate(first)]
    return [
        head,
        Panels([metric_table(clustered, columns("clusters")), *_agreement(p, clustered)], "two"),
        *not_drawn(clustered, ALONE),
        *(Text(words, "note after") for run in first if (words := _lasting(run))),
        Panels([picture for pictures in sorted(drawn, key=len, reverse=True) for picture in pictures]),
    ]


def _planted(p: ComparedPartition) -> str:
    """Number and sizes of planted groups."""
    sizes = sorted(Counter(groups_of(p.runs)).values())
    size = f"{sizes[0]}" if len(set(sizes)) == 1 else f"{sizes[0]} to {sizes[-1]}" if sizes else ""
    return f"{len(sizes)} planted groups of {size} clients" if len(sizes) > 1 else ""


def _agreement(p: ComparedPartition, methods: Methods) -> list[Drawing]:
    """ARI by round, if any method has one."""
    if not any(run.rounds["ari"].notna().any() for runs in methods.values() for run in runs):
        return []
    drawn = curve(leading(methods), p.colors, "ari", "round", f"{p.key}-ari", top=1).svg
    return [Drawing("ARI by round", drawn, kind="card pictures")]


def grouping_of(run: Run) -> Grouping:
    """The clusters of a run as drawn."""
    recorded = clusters(run)
    steps = {step["round"]: step["assignment"] for step in recorded.history}
    groups, compared = recorded.groups or None, recorded.dissimilarity
    return Grouping(steps, run.metrics["rounds"], groups, compared, recorded.stable_ids)


def _pictures(run: Run, name: str) -> Sequence[Drawing]:
    """The pictures of one run, with their headings."""
    grouping = grouping_of(run)
    return [
        Drawing(f"{run.label}, seed {run.seed}: {heading}", draw(grouping, f"{name}-{kind}").svg)
        for kind, heading, draw in pictures_of(grouping)
        if draw is not timeline or not grouping.unchanged
    ]


def _lasting(run: Run) -> str:
    """A sentence that replaces the picture of an assignment that never changed, or an empty text."""
    grouping = grouping_of(run)
    if not grouping.unchanged:
        return ""
    sizes = sorted(Counter(grouping.found[grouping.order].tolist()).values(), reverse=True)
    shown = [str(size) for size in sizes[:8]] + (["smaller ones"] if len(sizes) > 8 else [])
    count = "one cluster" if len(sizes) == 1 else f"{len(sizes)} clusters"
    same = f"the same from round {min(grouping.steps)} on"
    return f"{run.label}, seed {run.seed}: {count} of {listed(shown)} clients, {same}."
