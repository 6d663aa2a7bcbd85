"""Traffic, and the cost of networks."""

from fedflow.finished.cells import metric_table
from fedflow.finished.tables import columns
from fedflow.report.blocks import Block, Heading
from fedflow.report.compared import ComparedPartition, partitioned

LEAD = """Bytes sent between server and clients, as counted from the vectors, and what the clients' networks
cost. 1 MB = 1,000,000 bytes."""


@partitioned("traffic", "Traffic", LEAD)
def section(p: ComparedPartition) -> list[Block]:
    targets = {run.metrics.get("target_accuracy") for run in p.runs}
    words = ", ".join(sorted(f"{100 * target:g} %" for target in targets if target is not None))
    small = f"target: {words} local accuracy" if words else ""
    return [Heading(p.name, small), metric_table(p.methods, columns("traffic"))]
