"""Distribution of local accuracy over clients."""

from fedflow.finished.cells import metric_table
from fedflow.finished.tables import columns
from fedflow.pictures.accuracy import spread
from fedflow.report.blocks import Block, Drawing, Heading, Panels
from fedflow.report.compared import ComparedPartition, leading, not_drawn, partitioned

LEAD = """How local accuracy is distributed over clients. In each picture: the histogram of clients (all
seeds pooled), the mean (dot), and the means of the worst and best 10 % (ends of the bar). The worst and best
tenth are means over clients, then over seeds."""


@partitioned("fairness", "Fairness", LEAD)
def section(p: ComparedPartition) -> list[Block]:
    if not p.rated:
        return []
    drawn = Drawing("", spread(leading(p.rated), p.colors, f"{p.key}-spread"), kind="card pictures")
    return [
        Heading(p.name),
        *not_drawn(p.rated),
        Panels([drawn, metric_table(p.methods, columns("fairness"))], "one"),
    ]
