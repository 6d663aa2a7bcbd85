"""The paired bootstrap of a difference: coverage, pairing, seeds, and what it leaves out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from result_folders import write_run

from fedflow.report.bootstrap import interval
from fedflow.report.collect import collect_runs
from fedflow.report.findings import findings
from fedflow.report.run import Run
from fedflow.report.tables import by_method


@pytest.fixture
def run(tmp_path: Path) -> Run:
    write_run(tmp_path, "p", "fedavg", 0)
    (made,) = collect_runs(tmp_path)
    return made


def with_scores(run: Run, seed: int, values: np.ndarray) -> Run:
    clients = pd.DataFrame({"client": np.arange(len(values)), "local_accuracy": values})
    return replace(run, clients=clients, metrics=run.metrics | {"seed": seed})


def test_an_interval_has_the_width_of_the_normal_one(run: Run) -> None:
    """Of one seed and many clients: mean ± 1.96 standard errors of the differences."""
    rng = np.random.default_rng(0)
    base = rng.uniform(0, 1, 400)
    step = rng.normal(0.02, 0.1, 400)
    found = interval([with_scores(run, 0, base + step)], [with_scores(run, 0, base)], "local_accuracy")
    error = step.std() / 20
    assert found == pytest.approx((step.mean() - 1.96 * error, step.mean() + 1.96 * error), abs=0.1 * error)
    assert found == interval(
        [with_scores(run, 0, base + step)], [with_scores(run, 0, base)], "local_accuracy"
    )


def test_seeds_that_disagree_widen_it(run: Run) -> None:
    rng = np.random.default_rng(1)
    base = rng.uniform(0, 1, 100)
    far = [with_scores(run, seed, base + gain) for seed, gain in enumerate((0.0, 0.1, 0.2))]
    near = [with_scores(run, seed, base + 0.1) for seed in range(3)]
    other = [with_scores(run, seed, base) for seed in (2, 0, 1)]  # paired by seed, not by place
    low, high = interval(far, other, "local_accuracy") or (0, 0)
    assert low < 0.05 and high > 0.15
    assert interval(near, other, "local_accuracy") == pytest.approx((0.1, 0.1))


def test_only_what_both_measured_counts(run: Run) -> None:
    one, other = np.array([0.5, 0.7, np.nan]), np.array([0.4, np.nan, 0.2])
    assert interval([with_scores(run, 0, one)], [with_scores(run, 1, other)], "local_accuracy") is None
    assert interval([with_scores(run, 0, one)], [with_scores(run, 0, other)], "local_accuracy") is None


def test_the_finding_says_it(tmp_path: Path) -> None:
    for seed in (0, 1):
        for method in ("fedavg", "ditto"):
            write_run(tmp_path, "p", method, seed)
    methods = by_method(collect_runs(tmp_path))
    found = {finding.question: finding.detail for finding in findings(methods)}
    low, high = interval(methods["ditto"], methods["fedavg"], "local_accuracy") or (0, 0)
    assert found["Best for the clients"].endswith(
        f"Paired bootstrap over seeds and clients, 95 %: [{100 * low:.1f}, {100 * high:.1f}] points."
    )
    assert all("bootstrap" not in text for asked, text in found.items() if asked != "Best for the clients")
