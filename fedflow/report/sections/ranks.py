"""Mean ranks of the methods over partitions, and their critical difference (Demšar, JMLR 7, 2006)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from fedflow.finished.bootstrap import rounded
from fedflow.finished.cells import Cell, Row, Table
from fedflow.finished.tables import Stat, best, yardstick
from fedflow.metrics.table import METRICS, SHARE
from fedflow.naming import listed
from fedflow.pictures.drawing import Drawing as Picture
from fedflow.pictures.ranks import differences
from fedflow.report.blocks import Drawing, Panels, Section
from fedflow.report.compared import LINES, Compared

LEVEL = 0.05
FEWEST = 3  # partitions for a critical difference


@dataclass(frozen=True)
class Ranking:
    """Ranks [methods, partitions], best method first; 1 is best and ties share the mean rank.

    ``critical`` is the significant difference of mean ranks by Nemenyi's test, ``chance`` the p-value of
    Friedman's test that all methods are equal, both None for fewer than three partitions or methods.
    """

    variants: list[str]
    labels: list[str]
    partitions: list[str]
    ranks: np.ndarray
    metric: str
    left_out: list[str]  # labels of methods that ran on every partition, but lack a seed
    critical: float | None
    chance: float | None

    @property
    def means(self) -> np.ndarray:
        return self.ranks.mean(1)

    @property
    def table(self) -> Table:
        columns = [("Mean rank", "", "1 is best")] + [(name, "", "") for name in self.partitions]
        ranked = zip(self.variants, self.labels, self.ranks, strict=True)
        rows = [
            Row(variant, name, [_cell(ranks.mean(), 2), *(_cell(rank, 1) for rank in ranks)])
            for variant, name, ranks in ranked
        ]
        return Table(columns, rows)


def ranking(c: Compared) -> Ranking | None:
    """Ranks of methods by mean local accuracy (or loss) over the seeds that most of them have.

    A method that lacks one of these seeds on a partition is left out. None for a single partition, fewer than
    two such methods, or partitions ordered by different metrics.
    """
    orders, count = {yardstick(p.methods) for p in c.partitions}, len(c.partitions)
    if count < 2 or len(orders) > 1:
        return None
    metric = orders.pop()
    values = [dict(best(p.methods, metric)) for p in c.partitions]
    everywhere = [m for m in values[0] if all(m in here for here in values)]
    seeds = [_common([here[m] for m in everywhere]) for here in values]
    by_partition = [*zip(values, seeds, strict=True)]
    shared = [m for m in everywhere if all(some <= here[m].values.keys() for here, some in by_partition)]
    if len(shared) < 2:
        return None
    sign = -1 if METRICS[metric].better == "higher" else 1
    means = [[mean(sign * here[m].values[s] for s in some) for m in shared] for here, some in by_partition]
    ranks = np.stack([rankdata([rounded(value, row) for value in row]) for row in means], axis=1)
    order = np.argsort(ranks.mean(1), kind="stable")
    enough = count >= FEWEST and len(shared) >= 3
    return Ranking(
        [shared[i] for i in order],
        [c.partitions[0].methods[shared[i]][0].label for i in order],
        [p.name for p in c.partitions],
        ranks[order],
        metric,
        [c.partitions[0].methods[m][0].label for m in everywhere if m not in shared],
        critical_difference(len(shared), count) if enough else None,
        float(friedmanchisquare(*ranks).pvalue) if enough and np.ptp(ranks) > 0 else None,
    )


def _common(stats: Sequence[Stat]) -> set[int]:
    """The seeds that more than half of the methods have: another seed may have an easier division."""
    counts = Counter(seed for value in stats for seed in value.values)
    return {seed for seed, count in counts.items() if count > len(stats) / 2}


def critical_difference(methods: int, partitions: int) -> float:
    """Critical difference of mean ranks by Nemenyi's test at 5 %.

    It is q sqrt(k (k + 1) / (6 N)), with q the studentized range of k means over sqrt 2.
    """
    q = studentized_range.ppf(1 - LEVEL, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * partitions)))


def level_groups(means: Sequence[float], critical: float) -> list[tuple[int, int]]:
    """The longest ranges first..last of sorted ``means`` that are closer than ``critical``."""
    groups: list[tuple[int, int]] = []
    for first in range(len(means)):
        last = max(i for i in range(len(means)) if means[i] - means[first] < critical)
        if last > first and (not groups or last > groups[-1][1]):
            groups.append((first, last))
    return groups


def described(ranked: Ranking) -> str:
    """The results of the tests in words."""
    if ranked.critical is None:
        return "A critical difference needs three partitions and three methods or more."
    tested = f"Friedman's test: p = {ranked.chance:.2g}. " if ranked.chance is not None else ""
    return (
        f"{tested}Two methods differ at the 5 % level (Nemenyi) if their mean ranks are "
        f"{ranked.critical:.2f} or more apart; a bar joins those that are closer. "
        f"With {len(ranked.partitions)} partitions, methods joined by a bar may still differ."
    )


def picture(ranked: Ranking, colors: Mapping[str, int]) -> Picture | None:
    """The critical-difference diagram, or None without a critical difference."""
    if ranked.critical is None:
        return None
    means = ranked.means.tolist()
    bars = level_groups(means, ranked.critical)
    return differences(ranked.labels, means, ranked.critical, bars, [colors[v] for v in ranked.variants])


def section(c: Compared) -> Section | None:
    ranked = ranking(c)
    if ranked is None:
        return None
    few = len(ranked.variants) <= LINES
    drawn, ordered = picture(ranked, c.colors) if few else None, METRICS[ranked.metric]
    metric = ordered.label.removesuffix(", %").lower() + (" accuracy" if ordered.unit is SHARE else "")
    lead = (
        f"Methods that ran on every partition, ranked by {metric} on each: means over seeds, 1 is "
        f"best, ties share their mean rank. {described(ranked)}"
    )
    lead += f" Left out, as they lack a seed: {listed(ranked.left_out)}." if ranked.left_out else ""
    lead += "" if few else f" More than {LINES} methods are not drawn."
    panels = [Drawing("Critical difference", drawn.svg, kind="card ranks")] if drawn else []
    return Section("ranks", "Mean ranks", lead, [Panels([*panels, ranked.table], "one")], "Ranks")


def _cell(value: float, digits: int) -> Cell:
    return Cell(f"{value:.{digits}f}".removesuffix(".0"), sort=float(value))
