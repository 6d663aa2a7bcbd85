"""Coverage of intervals over few seeds, and false confirmations, by simulation (docs/decisions/0027).

A study has 12 comparisons. Their true standard deviations are equal, spread by a factor of three, or ten
times larger for one in five; noise is normal, has heavy tails (Student's t with 5 degrees of freedom), or is
in part the noise of a method that all comparisons share.
"""

from collections.abc import Iterator

import numpy as np
from scipy.special import polygamma, psi
from scipy.stats import false_discovery_control, t

from fedflow.finished.bootstrap import ENOUGH

STUDIES, COMPARISONS = 2000, 12
SCATTERS = ("equal", "threefold", "one in five tenfold")
NOISES = ("normal", "heavy tails", "shared method")
RULES = ("none", "Benjamini-Hochberg", "Holm")


def main() -> None:
    rng = np.random.default_rng(0)
    print("| seeds | interval | coverage, lowest | of the widest tenth | a quarter of the width | width |")
    print("|---|---|---:|---:|---:|---:|")
    for seeds in (3, 5):
        by_interval: dict[str, list[tuple[float, ...]]] = {}
        for scatter in SCATTERS:
            for noise in NOISES:
                for name, measured in covered(rng, scatter, noise, seeds):
                    by_interval.setdefault(name, []).append(measured)
        for name, rows in by_interval.items():
            cover, wild, thin, width = np.array(rows).T
            ends = f"{cover.min():.3f} | {wild.min():.3f} | {100 * thin.max():.1f} % | {width.max():.2f}"
            print(f"| {seeds} | {name} | {ends} |")
    print("\n| seeds | true differences | rule | false of the confirmed | true ones that are confirmed |")
    print("|---|---|---|---:|---:|")
    for seeds in (3, 5):
        for size in (0, 3, 10):
            words = f"half, {size} deviations" if size else "none"
            for name, false, power in confirmed(rng, seeds, size):
                print(
                    f"| {seeds} | {words} | {name} | {100 * false:.1f} % | {f'{power:.2f}' if size else ''} |"
                )


def drawn(rng: np.random.Generator, scatter: str, noise: str, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """True deviations [study, comparison], and values by seed of differences whose mean is 0."""
    shape = (STUDIES, COMPARISONS)
    deviation = {
        "equal": np.ones(shape),
        "threefold": 3 ** rng.normal(size=shape),
        "one in five tenfold": np.where(rng.random(shape) < 0.2, 10.0, 1.0),
    }[scatter]
    heavy = noise == "heavy tails"
    unit = rng.standard_t(5, (*shape, seeds)) * 0.6**0.5 if heavy else rng.normal(size=(*shape, seeds))
    values = deviation[..., None] * unit
    if noise == "shared method":
        return (deviation**2 + 1) ** 0.5, values + rng.normal(size=(STUDIES, 1, seeds))
    return deviation, values


def covered(
    rng: np.random.Generator, scatter: str, noise: str, seeds: int
) -> Iterator[tuple[str, tuple[float, ...]]]:
    """By interval: coverage, also of the widest tenth, the share of intervals that are far too narrow (a
    quarter of Student's with the true deviation), and the median width in the same unit.
    """
    true, values = drawn(rng, scatter, noise, seeds)
    usual = t.ppf(0.975, seeds - 1) * true
    wild = true >= np.quantile(true, 0.9, axis=1, keepdims=True)
    for name, (variance, freedom) in variances(values.var(2, ddof=1), seeds - 1).items():
        half = t.ppf(0.975, freedom) * variance**0.5
        inside = abs(values.mean(2)) * seeds**0.5 <= half
        yield name, (inside.mean(), inside[wild].mean(), (half < usual / 4).mean(), np.median(half / usual))


def variances(sample: np.ndarray, freedom: int) -> dict[str, tuple[np.ndarray, np.ndarray | float]]:
    """Variance and degrees of freedom of every comparison, from sample variances [study, comparison]."""
    total = sample.sum(1, keepdims=True)
    satterthwaite = freedom * total**2 / (sample**2).sum(1, keepdims=True)
    prior, before = moments(sample, freedom)
    moderated = (before * prior + freedom * sample) / (before + freedom)
    return {
        "Student's": (sample, freedom),
        "pooled, Satterthwaite": (np.broadcast_to(total / COMPARISONS, sample.shape), satterthwaite),
        "moderated (limma)": (moderated, before + freedom),
        "Student's, at least the median deviation": (floored(sample), freedom),
    }


def moments(sample: np.ndarray, freedom: int) -> tuple[np.ndarray, np.ndarray]:
    """Limma's prior variance and degrees of freedom of each study (Smyth 2004), at most 10,000."""
    logs = np.log(sample) - psi(freedom / 2) + np.log(freedom / 2)
    excess = logs.var(1, ddof=1, keepdims=True) - polygamma(1, freedom / 2)
    grid = np.geomspace(1e-2, 1e4, 2000)  # degrees of freedom; the trigamma function falls with them
    before = np.interp(-excess, -polygamma(1, grid / 2), grid)
    return np.exp(logs.mean(1, keepdims=True) + psi(before / 2) - np.log(before / 2)), before


def floored(sample: np.ndarray) -> np.ndarray:
    """Variances that are at least the square of the median deviation."""
    return np.maximum(sample, np.median(sample**0.5, 1, keepdims=True) ** 2)


def confirmed(rng: np.random.Generator, seeds: int, size: float) -> Iterator[tuple[str, float, float]]:
    """By rule: the mean share of false ones among the confirmed, and the share of true ones that are.

    In a study, half of the comparisons have a true difference of ``size`` deviations, or none with size 0.
    """
    true, values = drawn(rng, "threefold", "shared method", seeds)
    real = (np.arange(COMPARISONS) % 2 == 0) & (size > 0)
    sample = values.var(2, ddof=1)
    statistic = values.mean(2) + size * true * real
    statistic /= ((sample if seeds >= ENOUGH else floored(sample)) / seeds) ** 0.5
    chances = 2 * t.sf(abs(statistic), seeds - 1)
    falling = np.arange(COMPARISONS, 0, -1)
    holm = np.maximum.accumulate(np.sort(chances, 1) * falling, 1)
    adjusted = [
        chances,
        false_discovery_control(chances, axis=1),
        np.take_along_axis(holm, chances.argsort(1).argsort(1), 1),
    ]
    for name, values in zip(RULES, adjusted, strict=True):
        positive = (values <= 0.05) & (statistic > 0)
        false = positive[:, ~real].sum(1) / np.maximum(positive.sum(1), 1)
        yield name, false.mean(), positive[:, real].mean() if size else 0.0
