"""Mean ranks of the methods over partitions, and how far apart two have to be (Demšar, JMLR 7, 2006)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from fedflow.finished.cells import Cell, Row, Table
from fedflow.finished.tables import best, yardstick
from fedflow.metrics.table import METRICS
from fedflow.pictures.drawing import Drawing as Picture
from fedflow.pictures.ranks import differences
from fedflow.report.blocks import Drawing, Panels, Section
from fedflow.report.compared import Compared

LEVEL = 0.05
FEWEST = 3  # partitions for a critical difference


@dataclass(frozen=True)
class Ranking:
    """Ranks [methods, partitions], 1 is best and ties share the mean rank, the best method first.

    ``critical`` is the difference of mean ranks that Nemenyi's test calls significant, ``chance`` the p-value
    of Friedman's test that all methods are equal; None for fewer than three partitions or methods.
    """

    variants: list[str]
    labels: list[str]
    partitions: list[str]
    ranks: np.ndarray
    metric: str
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
    """The ranks of methods that ran on every partition, by local accuracy (or the loss), means over seeds.

    None for a single partition, fewer than two such methods, or partitions ordered by different metrics.
    """
    methods = {p.name: p.methods for p in c.partitions}
    orders = {yardstick(found) for found in methods.values()}
    if len(methods) < 2 or len(orders) > 1:
        return None
    metric = orders.pop()
    means = {name: {m: v.mean for m, v in best(found, metric)} for name, found in methods.items()}
    shared = [m for m in next(iter(means.values())) if all(m in found for found in means.values())]
    if len(shared) < 2:
        return None
    sign = -1 if METRICS[metric].better == "higher" else 1
    ranks = np.stack([rankdata([sign * found[m] for m in shared]) for found in means.values()], axis=1)
    order = np.argsort(ranks.mean(1), kind="stable")
    some = next(iter(methods.values()))
    enough = len(methods) >= FEWEST and len(shared) >= 3
    return Ranking(
        [shared[i] for i in order],
        [some[shared[i]][0].label for i in order],
        list(methods),
        ranks[order],
        metric,
        critical_difference(len(shared), len(methods)) if enough else None,
        float(friedmanchisquare(*ranks).pvalue) if enough and np.ptp(ranks) > 0 else None,
    )


def critical_difference(methods: int, partitions: int) -> float:
    """Of mean ranks, by Nemenyi's test at 5 %: q sqrt(k (k + 1) / (6 N)), with q of k means over sqrt 2."""
    q = studentized_range.ppf(1 - LEVEL, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * partitions)))


def level_groups(means: Sequence[float], critical: float) -> list[tuple[int, int]]:
    """The longest stretches first..last of sorted ``means`` that are closer than ``critical``."""
    found: list[tuple[int, int]] = []
    for first in range(len(means)):
        last = max(i for i in range(len(means)) if means[i] - means[first] < critical)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found


def described(found: Ranking) -> str:
    """What the test says, in a sentence or two."""
    if found.critical is None:
        return "A critical difference needs three partitions and three methods or more."
    tested = f"Friedman's test: p = {found.chance:.2g}. " if found.chance is not None else ""
    return (
        f"{tested}Two methods differ at the 5 % level (Nemenyi) if their mean ranks are "
        f"{found.critical:.2f} or more apart; a bar joins those that are closer. "
        f"With {len(found.partitions)} partitions, level does not mean equal."
    )


def picture(found: Ranking, places: Mapping[str, int]) -> Picture | None:
    """The critical-difference diagram; None without a critical difference."""
    if found.critical is None:
        return None
    means = found.means.tolist()
    bars = level_groups(means, found.critical)
    return differences(found.labels, means, found.critical, bars, [places[v] for v in found.variants])


def section(c: Compared) -> Section | None:
    found = ranking(c)
    if found is None:
        return None
    drawn, metric = picture(found, c.places), METRICS[found.metric].label.removesuffix(", %").lower()
    lead = (
        f"Methods that ran on every partition, ranked by {metric} accuracy on each: means over seeds, 1 is "
        f"best, ties share their mean rank. {described(found)}"
    )
    panels = [Drawing("Critical difference", drawn.svg, kind="card ranks")] if drawn else []
    return Section("ranks", "Mean ranks", lead, [Panels([*panels, found.table], "one")], "Ranks")


def _cell(value: float, digits: int) -> Cell:
    return Cell(f"{value:.{digits}f}".removesuffix(".0"), sort=float(value))
