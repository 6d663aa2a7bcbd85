"""Differences of all pairs of methods, and their intervals."""

from fedflow.finished.pairs import limits, pair_table, title
from fedflow.report.blocks import Block, Fold, Heading, Section
from fedflow.report.compared import Compared

LEAD = """The row's method minus the column's method in percentage points, and its 95 % interval: a
paired bootstrap over seeds, then over clients, the same for both methods. If the difference is the same for
all clients, as between two global models, the interval is Student’s, over three seeds or more. With few
seeds, bootstrap intervals are too narrow; with one, they show the variation over clients only.
Bold: the interval excludes 0, and so
does Student’s over three seeds or more (of three or four, with a standard deviation of at least the median
one of the table), adjusted for the number of pairs (Benjamini-Hochberg): the rule for claims."""


def section(c: Compared) -> Section | None:
    folds: list[Fold] = []
    for p in c.partitions:
        blocks: list[Block] = []
        for measure, pairs in p.pairs.items():
            blocks += [
                Heading(title(measure), limits(p.methods, measure, pairs), level=4),
                pair_table(p.methods, pairs),
            ]
        if blocks:
            folds.append(Fold(p.name, blocks, "card plots pairs", open=not folds))
    return Section("pairs", "Pairs of methods", LEAD, folds, "Pairs") if folds else None
