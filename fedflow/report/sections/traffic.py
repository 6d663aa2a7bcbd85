"""Traffic, and the cost of networks."""

from fedflow.finished.cells import metric_table
from fedflow.finished.tables import columns
from fedflow.report.blocks import Block, Heading, Section
from fedflow.report.compared import Compared

LEAD = (
    "Bytes sent between server and clients, as counted from the vectors, and what the clients' networks "
    "cost. 1 MB = 1,000,000 bytes."
)


def section(c: Compared) -> Section | None:
    blocks: list[Block] = []
    for p in c.partitions:
        known = (run.metrics.get("target_accuracy") for run in p.runs)
        targets = ", ".join(sorted({f"{100 * target:g} %" for target in known if target is not None}))
        small = f"target: {targets} local accuracy" if targets else ""
        blocks += [Heading(p.name, small), metric_table(p.methods, columns("traffic"))]
    return Section("traffic", "Traffic", LEAD, blocks) if blocks else None
