"""Two Gaussians in R^20 that differ in mean or covariance: which measure grows with which difference?

Table 3.16 of the PACFL study (Morafah et al. 2022), which does not state mu and Sigma: mu = (1, ..., 1) and
Sigma = I fit its first three columns, 3 Sigma fits the fourth better than the 5 Sigma that it names.
Bhattacharyya and KL are those of Gaussians fitted to 100 samples each. The angles are those of signatures
with p = 3: x is the smallest angle of two columns and y = 3 x, so y adds no information. Scaling a
mean does not rotate the subspace of the data, so angles cannot grow along the first two columns.
"""

import argparse

import numpy as np

import fedflow as ff

DIMENSIONS, SAMPLES, P = 20, 100, 3
CASES = {  # factor of the mean, factor of the covariance
    "2 mu": (2, 1),
    "3 mu": (3, 1),
    "2 Sigma": (1, 2),
    "3 Sigma": (1, 3),
    "5 Sigma": (1, 5),
}
PUBLISHED = {
    "Bhattacharyya": (3.07, 10.31, 1.14, None, 2.13),
    "KL": (15.18, 47.12, 3.31, None, 5.79),
    "MMD": (0.6218, 0.6238, 0.6234, None, 0.6246),
    "angle x": (10.73, 18.41, 8.93, None, 13.72),
    "angle y": (32.2, 55.24, 26.79, None, 41.15),
}


def measure(mean: float, variance: float, rng: np.random.Generator) -> list[float]:
    """The measures, in the order of ``PUBLISHED``, of samples of N(1, I) and N(mean, variance I)."""
    x = 1 + rng.normal(size=(SAMPLES, DIMENSIONS))
    y = mean + variance**0.5 * rng.normal(size=(SAMPLES, DIMENSIONS))
    fits = x.mean(0), np.cov(x, rowvar=False), y.mean(0), np.cov(y, rowvar=False)
    apart = ff.heterogeneity
    both = [apart.signature(x, P), apart.signature(y, P)]
    angles = [apart.proximity(both, mode=mode)[0, 1] for mode in ("entry_min_abs", "greedy_repo")]
    distances = apart.bhattacharyya(*fits), apart.gaussian_kl(*fits), apart.mmd([x, y])[0, 1]
    return [*map(float, distances), *angles]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=200, help="seeds to average over (default: 200)")
    seeds = parser.parse_args().seeds
    if seeds < 1:
        parser.error(f"--seeds: {seeds} is not accepted; expected a whole number >= 1")
    means = np.array(
        [
            np.mean([measure(*case, np.random.default_rng(seed)) for seed in range(seeds)], axis=0)
            for case in CASES.values()
        ]
    )  # [cases, measures]
    print(f"(mu, Sigma) against, mean of {seeds} seeds" + " " * 10 + "".join(f"{case:>10}" for case in CASES))
    for name, measured in zip(PUBLISHED, means.T):
        print(f"{name:<15}{'measured':<30}" + "".join(f"{value:10.4g}" for value in measured))
        print(f"{'':<15}{'published':<30}" + "".join(f"{value or '-':>10}" for value in PUBLISHED[name]))


if __name__ == "__main__":
    main()
