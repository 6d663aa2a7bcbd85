from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from result_folders import METHODS, change, write_run

from fedflow.finished.cells import metric_table
from fedflow.finished.collect import collect_runs
from fedflow.finished.tables import Stat, by_method, columns, one_number
from fedflow.metrics.table import METRICS as METRICS_TABLE
from fedflow.report.compared import grouped
from fedflow.report.sections.findings import findings, summary


def test_std_is_that_of_a_sample():
    values = [0.9, 0.8, 0.97]
    found = Stat(dict(enumerate(values)))
    assert (found.mean, found.std) == pytest.approx((np.mean(values), np.std(values, ddof=1)), abs=1e-15)
    assert Stat({3: 0.9}).std == 0


@pytest.mark.parametrize(
    ("ditto", "detail", "sentence"),
    [
        ({0: 0.9, 1: 0.81, 2: 0.94}, "no clear winner.", "Ditto and FedAvg are level on p."),
        ({0: 0.9, 1: 0.91, 2: 0.95}, "on 3 of 3 shared seeds: more than chance.", "Ditto leads on p."),
        (
            {0: 0.81, 1: 0.9, 2: 0.99},
            "3 of 3 shared seeds: chance is not ruled out.",
            "is ahead with every seed",
        ),
        (
            {0: 0.9, 1: 0.91},
            "on 2 of 2 shared seeds: the effect of chance is unknown.",
            "is ahead (two seeds)",
        ),
        ({0: 0.9}, "10.0 points ahead of FedAvg, on one seed: the effect", "is ahead (one seed)"),
        ({7: 0.9}, "they share no seed on the same data: the effect", "is ahead (no seed on the same data)"),
    ],
)
def test_a_lead_is_more_than_chance_by_the_rule_for_claims(ditto, detail, sentence, tmp_path):
    """FedAvg has other numbers with other divisions, so that ranges over seeds would say nothing."""
    for method, values in {"fedavg": {0: 0.8, 1: 0.82, 2: 0.85}, "ditto": ditto}.items():
        for seed, value in values.items():
            write(tmp_path, "p", method, seed, local_accuracy=value)
    runs = collect_runs(tmp_path)
    assert detail in findings(by_method(runs))[0].detail
    assert sentence in summary(grouped(runs))[0]


def test_a_method_with_too_few_seeds_is_named_apart_from_level_ones(tmp_path):
    """With its only seed it is 0.1 points behind the best."""
    losses = {"fedavg": [0.8, 0.82, 0.85], "ditto": [0.81, 0.81, 0.86], "local": [0.809]}
    for method, values in losses.items():
        for seed, value in enumerate(values):
            write(tmp_path, "p", method, seed, local_accuracy=value)
    (sentence, *_) = summary(grouped(collect_runs(tmp_path)))
    assert sentence.endswith("Ditto and FedAvg are level (Local: too few seeds) on p.")


def test_findings_name_the_cheapest_method_whose_every_seed_arrives(tmp_path):
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
    assert found["Least traffic to the target"].label == METHODS[min(arrived, key=lambda name: arrived[name])]
    assert found["Best for the clients"].label == "Ditto"


def write(root: Path, partition: str, method: str, seed: int = 0, **metrics: object) -> None:
    """A run with these numbers in ``metrics.json``."""
    change(write_run(root, partition, method, seed) / "metrics.json", **metrics)


def test_the_least_traffic_is_that_of_a_method_that_sends_something(tmp_path):
    for method in ("local", "fedavg", "ditto", "scaffold"):
        moved = {"local": 0, "scaffold": 10_000_000}.get(method, 9_000_000)
        write(tmp_path, "p", method, bytes_to_target=moved, rounds_to_target=5)
    found = {finding.question: finding for finding in findings(by_method(collect_runs(tmp_path)))}
    cheapest = found["Least traffic to the target"]
    assert (cheapest.label, cheapest.value) == ("Ditto and FedAvg", "9.0")
    assert "3 of 3 communicating methods" in cheapest.detail


def test_a_method_without_a_run_on_every_partition_has_no_one_number(tmp_path):
    for partition, method, accuracy in (("p", "fedavg", 0.8), ("q", "fedavg", 0.6), ("q", "ditto", 0.9)):
        write(tmp_path, partition, method, local_accuracy=accuracy)
    assert one_number(collect_runs(tmp_path)) == {"fedavg": pytest.approx(0.7)}


def test_no_traffic_finding_where_no_method_sends_anything(tmp_path):
    write(tmp_path, "p", "local", bytes_to_target=0, rounds_to_target=5)
    questions = {finding.question for finding in findings(by_method(collect_runs(tmp_path)))}
    assert "Least traffic to the target" not in questions and "Best for the clients" in questions


def test_equal_means_have_no_winner(tmp_path):
    for method, accuracy in (("fedavg", 0.5), ("ditto", 0.5), ("ifca", 0.4)):
        write(tmp_path, "p", method, local_worst10=0.0, global_accuracy=accuracy)
    found = {finding.question: finding for finding in findings(by_method(collect_runs(tmp_path)))}
    level = found["Best for the worst-served 10 %"]
    assert (level.label, level.value, level.detail) == ("All level", "0.0", "All methods have this mean.")
    two = found["Best on the complete test set"]
    assert (two.label, two.detail) == ("Ditto and FedAvg", "2 of 3 methods have this mean.")


def test_the_headline_claims_no_more_than_the_seeds_bear_out(tmp_path):
    """Ditto is ahead on average everywhere, with every seed on two partitions; on one, clients disagree."""
    accuracies = {
        "near": {"ditto": (0.90, 0.94, 0.93), "fedavg": (0.91, 0.92, 0.9), "ifca": (0.70, 0.71, 0.7)},
        "far": {"ditto": (0.90, 0.94, 0.93), "fedavg": (0.80, 0.82, 0.81), "ifca": (0.70, 0.71, 0.7)},
    }
    accuracies["torn"] = {
        "ditto": (0.50, 0.54, 0.53),
        "fedavg": (0.40, 0.42, 0.41),
        "ifca": (0.30, 0.31, 0.3),
    }
    for partition, methods in accuracies.items():
        for method, values in methods.items():
            for seed, value in enumerate(values):
                folder = write_run(tmp_path, partition, method, seed)
                change(folder / "metrics.json", local_accuracy=value)
                clients = pd.read_parquet(folder / "clients.parquet")
                gains = np.where(clients["client"] % 2, 0.38, -0.38)
                sign = {"ditto": 1, "fedavg": -1}.get(method, 0) * (partition == "torn")
                clients["local_accuracy"] = value + sign * gains
                clients.to_parquet(folder / "clients.parquet")
    sentences = summary(grouped(collect_runs(tmp_path)))
    expected = (
        "Ditto leads on far; Ditto and FedAvg are level on near; Ditto is ahead with every seed on torn."
    )
    assert sentences[0] == f"On the clients' own test sets, {expected}"
    (finding, *_) = findings(by_method([run for run in collect_runs(tmp_path) if run.partition == "near"]))
    assert finding.label == "Ditto" and "no clear winner" in finding.detail


def test_a_lead_is_of_seeds_that_both_have_on_the_same_data(tmp_path):
    """With the seed that they share both have the same accuracy; the other seed of one is no lead."""
    for method, seed, accuracy in (("fedavg", 0, 0.67), ("fedavg", 1, 0.71), ("fedprox", 0, 0.67)):
        change(write_run(tmp_path, "p", method, seed) / "metrics.json", local_accuracy=accuracy)
    runs = collect_runs(tmp_path)
    (local, *_) = findings(by_method(runs))
    assert local.detail.startswith("Not ahead of fedprox on the seeds that both have.")
    assert any("FedAvg and fedprox are level on p" in sentence for sentence in summary(grouped(runs)))


def test_little_traffic_has_two_digits(tmp_path):
    for method, traffic in (("fedavg", 116_160), ("ditto", 58_080)):
        facts = {"bytes_to_target": traffic, "target_accuracy": 0.9, "rounds_to_target": 3}
        change(write_run(tmp_path, "p", method, 0) / "metrics.json", **facts)
    methods = by_method(collect_runs(tmp_path))
    card = {finding.question: finding for finding in findings(methods)}["Least traffic to the target"]
    assert (card.label, card.value) == ("Ditto", "0.058")
    table = metric_table(methods, columns("traffic"))
    heads = [head for head, _, _ in table.columns]
    assert "Stopped in round" not in heads  # no run was asked to stop
    cells = {row.variant: row.cells[heads.index("MB to target")].text for row in table.rows}
    assert cells == {"fedavg": "0.12", "ditto": "0.058"}


def test_a_method_that_is_behind_on_shared_seeds_does_not_lead(tmp_path):
    for method, seeds in (("fedavg", {0: 0.95, 1: 0.6, 2: 0.61}), ("fedprox", {1: 0.7, 2: 0.71})):
        for seed, accuracy in seeds.items():
            change(write_run(tmp_path, "p", method, seed) / "metrics.json", local_accuracy=accuracy)
    runs = collect_runs(tmp_path)
    (local, *_) = findings(by_method(runs))
    assert local.label == "FedAvg" and local.detail.startswith("Not ahead of fedprox on the seeds")
    assert any("FedAvg and fedprox are level on p" in sentence for sentence in summary(grouped(runs)))


def test_a_small_value_adds_no_digits_to_a_large_one(tmp_path):
    for method, traffic in (("fedavg", 5_200_000_000), ("ditto", 400)):
        change(write_run(tmp_path, "p", method, 0) / "metrics.json", bytes_up=traffic)
    table = metric_table(by_method(collect_runs(tmp_path)), [METRICS_TABLE["bytes_up"]])
    assert {row.cells[0].text for row in table.rows} == {"5200.0", "0.00040"}
