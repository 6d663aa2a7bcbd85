"""Mean ranks, the critical difference, and the table of clients."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from result_folders import METHODS, change, write_partition, write_run

from fedflow.files import COUNTS
from fedflow.finished.collect import collect_runs
from fedflow.finished.run import Run
from fedflow.report.compared import grouped
from fedflow.report.page import build_report
from fedflow.report.sections.clients import client_table
from fedflow.report.sections.data import differences
from fedflow.report.sections.ranks import critical_difference, level_groups, ranking, section


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_is_that_of_the_published_table(methods, q):
    """Demšar (2006), table 5a; with 6 N = k (k + 1), the difference is q itself."""
    partitions = methods * (methods + 1) / 6
    assert critical_difference(methods, partitions) == pytest.approx(q, abs=1e-3)


def test_bars_join_the_longest_stretches_of_level_methods():
    assert level_groups([1.0, 1.5, 3.0, 4.0, 5.0], 2.1) == [(0, 2), (2, 4)]
    assert level_groups([1.0, 4.0, 7.0], 2.0) == []
    assert level_groups([1.0, 1.2, 1.4], 2.0) == [(0, 2)]


def test_ranks_are_of_methods_that_ran_on_every_partition(tmp_path):
    for partition in ("a", "b", "c"):
        for method in ("local", "ditto", "fedavg"):
            write_run(tmp_path, partition, method, 0)
    write_run(tmp_path, "a", "ifca", 0)
    runs = collect_runs(tmp_path)
    found = ranking(grouped(runs))
    assert sorted(found.variants) == ["ditto", "fedavg", "local"] and found.partitions == ["a", "b", "c"]
    assert found.ranks.sum(0).tolist() == [6.0, 6.0, 6.0] and sorted(found.means) == found.means.tolist()
    for column, partition in zip(found.ranks.T, "abc", strict=True):
        accuracy = {run.method: run.metrics["local_accuracy"] for run in runs if run.partition == partition}
        order = sorted(found.variants, key=lambda method: -accuracy[method])
        assert [found.variants[i] for i in np.argsort(column)] == order, partition
    assert found.critical == pytest.approx(critical_difference(3, 3))
    two = ranking(grouped([run for run in runs if run.partition != "c"]))
    assert two.critical is None and two.chance is None
    assert ranking(grouped([run for run in runs if run.partition == "a"])) is None


def test_a_method_that_lacks_a_seed_is_not_ranked(tmp_path):
    """Ditto ran with the seed of a hard division only, where it beats the others."""
    for partition, method, seed in product("ab", ("fedavg", "ifca", "ditto"), (0, 1)):
        if (partition, method, seed) != ("b", "ditto", 1):
            write_run(tmp_path, partition, method, seed)
    assert {*ranking(grouped(collect_runs(tmp_path))).variants} == {"fedavg", "ifca"}


def test_rounding_errors_break_no_ties(tmp_path):
    for partition, (method, values) in product("ab", {"m": (0.1, 0.2, 0.3), "n": (0.3, 0.2, 0.1)}.items()):
        for seed, value in enumerate(values):
            change(write_run(tmp_path, partition, method, seed) / "metrics.json", local_accuracy=value)
    assert ranking(grouped(collect_runs(tmp_path))).means.tolist() == [1.5, 1.5]


def test_a_ranking_by_loss_is_not_called_one_by_accuracy(tmp_path):
    for partition in ("a", "b"):
        for method in ("local", "fedavg"):
            write_run(tmp_path, partition, method, 0)
    runs = collect_runs(tmp_path)
    assert "ranked by local accuracy on each" in section(grouped(runs)).lead
    losses = [replace(run, metrics=run.metrics | {"local_accuracy": None}) for run in runs]
    assert "ranked by loss on each" in section(grouped(losses)).lead


@pytest.mark.full
def test_the_page_has_the_ranks_and_the_clients(tmp_path):
    for partition in ("a", "b", "c"):
        for method in METHODS:
            write_run(tmp_path / "results", partition, method, 0)
        folder = write_partition(tmp_path / "partitions", partition, scheme="dirichlet", alpha=0.1)
        counts = pd.DataFrame({"client": range(20), "0": 30, "1": range(20)})
        counts.to_csv(folder / COUNTS, index=False)
    page = build_report(tmp_path / "results", tmp_path / "partitions", tmp_path / "out").read_text()
    assert 'id="ranks"' in page and "Friedman&#39;s test: p = " in page and "ranks-" in page
    assert page.count('class="sortable heat"') == 3 and "0 ×30, 1 ×7" in page
    assert "Effective labels" in page and 'data-place="0"' in page
    for part in ("line", "band", "link", "name"):
        assert f'-{part}-1"' in page


def run_of(values: list[float]) -> Run:
    clients = pd.DataFrame({"client": range(len(values)), "samples": 10, "local_accuracy": values})
    return Run(Path("r"), {"clients": len(values)}, {}, pd.DataFrame(), clients, label="M")


def test_clients_are_means_over_seeds_the_worst_first():
    methods = {
        "m": [run_of([0.5, 0.1, float("nan")]), run_of([0.7, 0.3, float("nan")])],
        "n": [run_of([0.6, 0.0, 0.9])],
    }
    table, note = client_table(methods, np.array([[0, 5], [3, 0], [1, 2]]))
    assert [row.label for row in table.rows] == ["1", "0", "2"] and note == ""
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["20.0", "0.0", "10", ""],
        ["60.0", "60.0", "10", ""],
        ["", "90.0", "10", ""],
    ]
    assert [row.cells[-1].note for row in table.rows] == ["0 ×3", "1 ×5", "1 ×2, 0 ×1"]
    many, note = client_table({"m": [run_of(np.linspace(1, 0, 150).tolist())]}, None)
    assert len(many.rows) == 100 and many.rows[0].label == "149"
    assert note == "The 100 worst-served of 150 clients."
    assert client_table({"m": [run_of([float("nan")])]}, None) is None
    fewer, _ = client_table({"few": [run_of([0.5])], "many": [run_of([0.9, 0.2])]}, None)
    assert [(row.label, [cell.text for cell in row.cells[:2]]) for row in fewer.rows] == [
        ("1", ["", "20.0"]),
        ("0", ["50.0", "90.0"]),
    ]


def test_differences_of_labels_by_hand():
    """Clients with label 0 only and label 1 only: total variation 1, Jensen-Shannon ln 2, one label each."""
    apart = differences(np.array([[10, 0], [0, 30], [0, 0]]))
    assert [*apart.values()] == pytest.approx([1, np.log(2), 1, 1, 100, 0.5])
    alike = differences(np.array([[5, 5], [10, 10]]))
    assert [*alike.values()][:4] == pytest.approx([0, 0, 2, 2])
    assert differences(None) == differences(np.array([[1, 2]])) == {}
    periodic = np.eye(10)[np.arange(3991) % 10]  # evenly spaced clients would all have one label
    assert differences(periodic)["Total variation of labels"] == pytest.approx(0.9, abs=0.01)
