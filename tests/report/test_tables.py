from pathlib import Path

import numpy as np
import pytest
from result_folders import write_partition, write_run

from fedflow.report.collect import collect_partitions, collect_runs
from fedflow.report.findings import findings
from fedflow.report.published import published_for
from fedflow.report.tables import Stat, by_method, verdict

SKEW20, SKEW30 = ({"scheme": "label_skew", "fraction": fraction} for fraction in (0.2, 0.3))
DIRICHLET = {"scheme": "dirichlet", "alpha": 0.1}


def test_std_is_that_of_the_population() -> None:
    values = [0.9, 0.8, 0.97]
    found = Stat(dict(enumerate(values)))
    assert (found.mean, found.std) == pytest.approx((np.mean(values), np.std(values)), abs=1e-15)


def test_verdict_goes_no_further_than_the_seeds() -> None:
    low, high = Stat({0: 0.80, 1: 0.82}), Stat({0: 0.90, 1: 0.84})
    assert verdict(high, low, "B") == (
        "6.0 points ahead of B on average, and ahead on 2 of 2 shared seeds; "
        "the ranges over seeds do not overlap."
    )
    between = Stat({0: 0.79, 1: 0.85})
    assert "1 of 2 shared seeds. The ranges over seeds overlap: no clear winner." in verdict(
        between, low, "B"
    )
    assert "on one seed" in verdict(Stat({0: 0.9}), low, "B")


def test_findings_name_the_cheapest_method_whose_every_seed_arrives(tmp_path: Path) -> None:
    for seed in (0, 1):
        for method in ("fedavg", "ditto", "scaffold"):
            write_run(tmp_path, "p", method, seed)
    methods = by_method(collect_runs(tmp_path))
    arrived = {
        name: np.mean([run.metrics["bytes_to_target"] for run in runs])
        for name, runs in methods.items()
        if all(run.metrics["bytes_to_target"] is not None for run in runs)
    }
    found = {finding.question: finding for finding in findings(methods)}
    assert found["Least traffic to the target"].method == min(arrived, key=lambda name: arrived[name])
    assert found["Best for the clients"].method == "ditto"


@pytest.mark.parametrize(
    ("dataset", "scheme", "method", "expected"),
    [
        ("fmnist", SKEW20, "pacfl", (97.54, 0.08, "local, last trained", "PACFL")),
        ("cifar100", SKEW30, "local", (22.95, 0.81, "local, last trained", "SOLO")),
        ("svhn", SKEW30, "fednova", (80.5, 1.2, "global", "FedNova")),
        ("cifar10", DIRICHLET, "flis_dc", (60.33, 2.3, "local, last trained", "FLIS(DC)")),
    ],
)
def test_published_numbers_are_those_of_the_tables(
    tmp_path: Path, dataset: str, scheme: dict, method: str, expected: tuple
) -> None:
    write_run(tmp_path / "results", "p", method, 0, dataset=dataset)
    write_partition(tmp_path / "partitions", "p", **scheme)
    facts = collect_partitions(tmp_path / "partitions", ["p"])["p"]
    found = published_for(collect_runs(tmp_path / "results"), facts)
    assert found is not None and found.values == {method: expected}


@pytest.mark.parametrize(
    ("dataset", "scheme", "method"),
    [
        ("svhn", DIRICHLET, "fedavg"),  # not in the tables
        ("cifar10", {"scheme": "dirichlet", "alpha": 0.5}, "fedavg"),
        ("cifar10", {"scheme": "label_skew"}, "fedavg"),
        ("cifar10", {"scheme": "iid", "alpha": 0.1}, "fedavg"),
        ("mnist5k", SKEW20, "fedavg"),
        ("cifar10", SKEW20, "ditto"),
    ],
)
def test_nothing_is_published_for_other_settings(
    tmp_path: Path, dataset: str, scheme: dict, method: str
) -> None:
    write_run(tmp_path / "results", "p", method, 0, dataset=dataset)
    write_partition(tmp_path / "partitions", "p", **scheme)
    facts = collect_partitions(tmp_path / "partitions", ["p"])["p"]
    assert published_for(collect_runs(tmp_path / "results"), facts) is None
    assert published_for(collect_runs(tmp_path / "results"), None) is None
