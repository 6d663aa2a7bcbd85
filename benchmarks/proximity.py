"""Angles between all pairs of 1,000 clients against a loop over pairs, on the same random data.

The loop takes an SVD of each client's data and SciPy's ``subspace_angles`` of each pair. It is timed on some
clients and pairs only, redrawn in every repeat and scaled to all 1,000 clients and 499,500 pairs.
"""

import time
from typing import Any

import numpy as np
from scipy.linalg import subspace_angles, svd

from benchmarks.workload import spread, summary
from fedflow.heterogeneity import proximity, signature

CLIENTS, FEATURES, SAMPLES, P, REPEATS = 1000, 3072, 50, 5, 3
SAMPLED_CLIENTS, SAMPLED_PAIRS = 20, 200


def batched(clients: list[np.ndarray]) -> tuple[float, float, np.ndarray]:
    """Seconds for all signatures and for the matrix of smallest principal angles, and the matrix."""
    started = time.perf_counter()
    signatures = [signature(x, P) for x in clients]
    signed = time.perf_counter()
    angles = proximity(signatures)
    return signed - started, time.perf_counter() - signed, angles


def looped(clients: list[np.ndarray], angles: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Seconds that a loop would take for the same, from a sample; its angles must be those of ``angles``."""
    started = time.perf_counter()
    for k in rng.choice(CLIENTS, SAMPLED_CLIENTS, replace=False):
        svd(clients[k].T.astype(np.float64), full_matrices=False)
    signed = time.perf_counter() - started
    pairs = [rng.choice(CLIENTS, 2, replace=False) for _ in range(SAMPLED_PAIRS)]
    bases = {k: signature(clients[k], P) for pair in pairs for k in pair}
    started = time.perf_counter()
    found = [np.degrees(subspace_angles(bases[i], bases[j]).min()) for i, j in pairs]
    measured = time.perf_counter() - started
    assert np.allclose(found, [angles[i, j] for i, j in pairs], atol=1e-5)
    return signed * CLIENTS / SAMPLED_CLIENTS, measured * CLIENTS * (CLIENTS - 1) / 2 / SAMPLED_PAIRS


def main() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    clients = [rng.integers(0, 256, (SAMPLES, FEATURES), dtype=np.uint8) for _ in range(CLIENTS)]
    ours, theirs = [], []
    for _ in range(REPEATS):
        *seconds, angles = batched(clients)
        ours.append(seconds)
        theirs.append(looped(clients, angles, rng))
    print(f"{CLIENTS} clients, {SAMPLES} samples of {FEATURES} features each, p = {P}; seconds")
    measured: dict[str, Any] = {"clients": CLIENTS}
    for part, column in (("signatures", 0), ("angles", 1)):
        batched_seconds, looped_seconds = [s[column] for s in ours], [s[column] for s in theirs]
        print(f"{part:<11}batched        {spread(batched_seconds)}")
        print(f"{'':<11}loop, scaled   {spread(looped_seconds)}")
        measured[part] = {
            "batched_seconds": summary(batched_seconds),
            "loop_seconds": summary(looped_seconds),
        }
    ratios = [sum(b) / sum(a) for a, b in zip(ours, theirs)]
    print(f"ratio      of the sums    {spread(ratios)}")
    return measured | {"ratio": summary(ratios)}
