"""A measure of a method by seed, and sums and ratios of such measures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedflow.claims.measures import Measure
from fedflow.claims.targets import NotMeasured
from fedflow.finished.bootstrap import rounded
from fedflow.finished.tables import Stat


@dataclass(frozen=True)
class Values:
    """A measure by seed; at the seeds in ``lower`` (``upper``), the value is only a lower (upper) bound."""

    label: str
    stat: Stat
    lower: frozenset[int]
    upper: frozenset[int] = frozenset()

    def on(self, seeds: Iterable[int]) -> "Values":
        """Values restricted to these seeds."""
        stat = Stat({seed: self.stat.values[seed] for seed in seeds})
        return Values(self.label, stat, self.lower & stat.values.keys(), self.upper & stat.values.keys())

    def text(self, measure: Measure) -> str:
        """``TERM 87.0 ± 1.2``, with "+" or "or less" after the mean if a value is only a bound."""
        unit, sign = measure.unit, "+" * bool(self.lower) + " or less" * bool(self.upper)
        numbers = self.stat.values.keys() - self.lower - self.upper  # not only bounds
        several = numbers and len(self.stat.values) > 1
        spread = f" ± {self.stat.std * unit.factor:.{unit.digits}f}" if several else ""
        mean = written(self.stat.mean * unit.factor, f"z.{unit.digits}f")
        return f"{self.label} {mean}{sign}{spread}"


def combined(label: str, terms: Sequence[tuple[float, Values]]) -> Values:
    """The sum of factors times values, over the seeds that all have."""
    seeds = sorted(set.intersection(*(set(values.stat.values) for _, values in terms)))
    stat = Stat({seed: sum(factor * values.stat.values[seed] for factor, values in terms) for seed in seeds})
    for seed, value in stat.values.items():
        stat.values[seed] = rounded(value, (values.stat.values[seed] for _, values in terms))
    lower = [values.lower if factor > 0 else values.upper for factor, values in terms if factor]
    upper = [values.upper if factor > 0 else values.lower for factor, values in terms if factor]
    return Values(label, stat, *(frozenset(seeds) & frozenset().union(*bounds) for bounds in (lower, upper)))


def divided(label: str, above: Values, below: Values) -> Values:
    """The ratio over the seeds that both have. Raises `NotMeasured` if the lower one is 0 at one of them."""
    seeds = [seed for seed in below.stat.values if seed in above.stat.values]
    if zero := [str(seed) for seed in seeds if not below.stat.values[seed]]:
        raise NotMeasured(f"no ratio: {below.label} is 0 with seed {', '.join(zero)}")
    ratios = {seed: above.stat.values[seed] / below.stat.values[seed] for seed in seeds}
    stat = Stat({seed: rounded(ratio, [ratio]) for seed, ratio in ratios.items()})
    return Values(label, stat, above.lower | below.upper, above.upper | below.lower).on(seeds)


def written(value: float, form: str) -> str:
    """A number with a minus sign; 0 has none."""
    return f"{value:{form}}".replace("-", "−").replace("inf", "∞")
