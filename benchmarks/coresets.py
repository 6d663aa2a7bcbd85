"""A coreset of 200 of 20,000 nodes: the incremental form against the direct ones, each in a process.

The direct forms compute x = P_bar w and its products with all columns afresh for every pick, by sparse
products or with the dense P^l, which is left out where it does not fit. A pick with it takes the same time
whatever has been picked, so some are timed and scaled to all. Processor time on one thread.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from threadpoolctl import threadpool_limits

from benchmarks.memory import peak_memory, separately
from benchmarks.workload import significant

NODES, NEIGHBORS, PICKS, TIMED, STEPS = 20_000, 12, 200, 20, (1, 4)  # 12 neighbors: a mean degree of 14
FORMS = ("incremental", "sparse", "dense")
Product = Callable[[np.ndarray], np.ndarray]


def direct(
    norms: np.ndarray, combine: Product, products: Product, k: int, costs: Any = None, kappa: float = 1.0
) -> np.ndarray:
    """Weights [n] of Algorithm 12 (corrected) with the vector x formed in every step.

    ``combine`` is w -> P_bar w, ``products`` x -> P_bar^T x, and ``norms`` are those of the columns of P^l.
    """
    n = len(norms)
    costs, star = np.zeros(n) if costs is None else np.asarray(costs, dtype=float), np.full(n, n**-0.5)
    w, zeta0 = np.zeros(n), products(star)
    for _ in range(k):
        x = combine(w)
        zeta1, zeta2 = star @ x, products(x)
        if 1 - zeta1**2 < 1e-12:
            break
        room = np.maximum(1 - zeta2**2, 1e-300)
        gains = np.where(room < 1e-12, -np.inf, (zeta0 - zeta1 * zeta2) / np.sqrt((1 - zeta1**2) * room))
        if gains.max() <= 1e-12:
            break
        window = np.flatnonzero(gains >= kappa * gains.max() - 1e-12)
        v = window[np.lexsort((window, -gains[window].round(11), costs[window]))[0]]
        g0, g1 = zeta0[v] - zeta1 * zeta2[v], zeta1 - zeta0[v] * zeta2[v]
        delta = min(max(g0 / (g0 + g1), 0), 1)
        w *= 1 - delta
        w[v] += delta
        w /= np.sqrt(((1 - delta) ** 2 + delta**2) + 2 * delta * (1 - delta) * zeta2[v])
    return star @ combine(w) * w / (np.sqrt(n) * norms)


def one(form: str, steps: int) -> dict[str, float]:
    """Seconds to set up and to pick in this process, and peak memory in all and before."""
    from fedflow.procedures.coresets.graph import SHARES_TEXT, Operator, gaussian_mixture, knn_graph
    from fedflow.procedures.coresets.select import select

    threadpool_limits(1)
    points = gaussian_mixture(NODES, SHARES_TEXT, np.random.default_rng(0))[0]
    adjacency = knn_graph(points, NEIGHBORS)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, started, picks = peak_memory(), time.process_time(), TIMED if form == "dense" else PICKS
    operator = Operator(adjacency, steps)
    norms = operator.norms
    if form == "dense":
        unit = np.empty((NODES, NODES))
        for first in range(0, NODES, 500):
            block = np.arange(first, min(first + 500, NODES))
            unit[block] = (operator.columns(block) / norms[block]).T  # a column of P^l in a row
    ready = time.process_time()
    if form == "incremental":
        weights = select(operator, picks).weights()
    elif form == "sparse":
        walk = operator.apply
        weights = direct(norms, lambda w: walk(w / norms), lambda x: walk(x) / norms, picks)
    else:
        weights = direct(norms, lambda w: w @ unit, lambda x: unit @ x, picks)
    done, peak = time.process_time(), peak_memory()
    assert np.allclose(weights, select(operator, picks).weights(), atol=1e-9), "another selection"
    found = {"mean_degree": adjacency.nnz / NODES, "before_mib": before, "peak_mib": peak}
    found |= {"setup_seconds": ready - started, "seconds": (done - ready) * PICKS / picks}
    return {name: significant(value) for name, value in found.items()}


def main() -> dict[str, Any]:
    measured: dict[str, Any] = {}
    needed = NODES**2 * 8
    for steps in STEPS:
        rows: dict[str, Any] = {}
        for form in FORMS:
            if form == "dense" and psutil.virtual_memory().available < 1.5 * needed:
                print(f"l = {steps}  dense: left out, as P^l takes {needed / 2**30:.1f} GiB of memory")
                continue
            rows[form] = row = separately(f"coresets.one({form!r}, {steps})")
            row["ratio"] = significant(row["seconds"] / rows["incremental"]["seconds"])
            seconds = f"{row['setup_seconds']:8.2f} s to set up, {row['seconds']:8.2f} s for {PICKS} picks"
            memory = f"{row['peak_mib'] - row['before_mib']:,.0f} MiB above the graph"
            print(f"l = {steps}  {form:<12}{seconds}, {memory}, ratio {row['ratio']}", flush=True)
        measured[f"steps_{steps}"] = rows
    return {"nodes": NODES, "picks": PICKS, "forms": measured}
