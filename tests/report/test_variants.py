"""Runs of other settings or data have their own rows, named after what differs."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from result_folders import change, write_partition, write_run

from fedflow.config import CentralParams
from fedflow.finished.collect import collect_partitions, collect_runs
from fedflow.finished.tables import by_method, one_number, stat
from fedflow.finished.variants import differences, settings_table
from fedflow.methods import METHODS
from fedflow.report.compared import grouped
from fedflow.report.page import build_report


def accuracies(root: Path) -> dict[str, list[float]]:
    """Local accuracy by label, in the order of seeds."""
    return {
        runs[0].label: list(stat(runs, "local_accuracy").values.values())
        for runs in by_method(collect_runs(root)).values()
    }


def report(root: Path) -> str:
    return build_report(root / "results", root / "partitions", root / "report").read_text()


def accuracy(folder: Path) -> float:
    return json.loads((folder / "metrics.json").read_text())["local_accuracy"]


def test_runs_of_other_settings_are_never_averaged(tmp_path):
    grid = [write_run(tmp_path / "results", "p", "ifca", seed, clusters=2) for seed in (0, 1)]
    more = [write_run(tmp_path / "results", "p", "ifca", s, clusters=4, plain=False) for s in (0, 1)]
    write_run(tmp_path / "results", "p", "fedavg", 0)
    found = accuracies(tmp_path / "results")
    assert found["IFCA"] == [accuracy(folder) for folder in grid]
    assert found["IFCA · clusters 4"] == [accuracy(folder) for folder in more]
    write_partition(tmp_path / "partitions", "p", scheme="dirichlet", alpha=0.1)
    page = report(tmp_path)
    assert "5 runs: 2 methods in 3 settings" in page
    rows = re.findall(
        r'<th scope="row" data-sort="([^"]*)"', page.split('id="accuracy"')[1].split("</section>")[0]
    )
    assert {"IFCA", "IFCA · clusters 4", "FedAvg"} == set(rows)
    assert len(re.findall(r">IFCA · clusters 4</text>", page)) >= 3  # in the pictures too
    table = pd.read_csv(tmp_path / "report" / "accuracy.csv").set_index(["label", "metric"])
    assert table.loc[("IFCA", "local_accuracy"), "mean"] == pytest.approx(np.mean(found["IFCA"]))
    assert table.index.is_unique
    curves = pd.read_csv(tmp_path / "report" / "accuracy_curves.csv")
    assert set(curves["method"]) == {"ifca", "ifca · method.clusters 4", "fedavg"}


def test_runs_on_other_data_are_never_averaged(tmp_path):
    for seed, name in ((1, "data_hash"), (2, "partition_hash")):
        change(write_run(tmp_path, "p", "fedavg", seed) / "metrics.json", **{name: "0123456789abcdef"})
    write_run(tmp_path, "p", "fedavg", 0)
    write_run(tmp_path, "p", "fedavg", 3)
    found = accuracies(tmp_path)
    assert {name: len(values) for name, values in found.items()} == {
        "FedAvg": 2,
        "FedAvg · data 01234567": 1,
        "FedAvg · partition 01234567": 1,
    }


def test_the_plain_folder_gives_the_name_however_many_others_there_are(tmp_path):
    write_run(tmp_path, "p", "ifca", 0, clusters=2)
    for seed in (0, 1, 2):
        write_run(tmp_path, "p", "ifca", seed, clusters=4, plain=False)
    assert list(accuracies(tmp_path)) == ["IFCA", "IFCA · clusters 4"]
    write_run(tmp_path / "alone", "p", "ifca", 0, clusters=4, plain=False)
    assert list(accuracies(tmp_path / "alone")) == ["IFCA"]


def test_many_differences_end_in_the_digest(tmp_path):
    write_run(tmp_path, "p", "ifca", 0, clusters=2, restarts=1, trial=10, pretraining=0)
    write_run(tmp_path, "p", "ifca", 0, clusters=4, restarts=3, trial=50, pretraining=2, plain=False)
    _, other = collect_runs(tmp_path)
    assert other.label == f"IFCA · clusters 4, pretraining 2 …{other.settings[:4]}"
    assert other.variant == (
        "ifca · method.clusters 4, method.pretraining 2, method.restarts 3, method.trial 50"
    )


def test_the_same_run_twice_is_shown_once_with_a_note(tmp_path):
    write_run(tmp_path / "results", "p", "fedavg", 0)
    twice = write_run(tmp_path / "results", "p", "fedavg", 0, plain=False)
    (run,) = collect_runs(tmp_path / "results")
    assert run.folder.name == "0"
    page = report(tmp_path)
    assert f"FedAvg, seed 0 has two results: {twice.name} is not shown." in page


def test_every_row_lists_its_settings_what_differs_from_the_defaults_first(tmp_path):
    write_run(tmp_path / "results", "p", "ifca", 0, clusters=5, averaging="model")
    (row,) = settings_table(collect_runs(tmp_path / "results"))
    assert row["changed"].startswith("clusters 5, epochs 2, lr 0.03, participation 0.3, target_accuracy 0.9")
    assert "averaging model" in row["others"] and "rounds 20" in row["others"]
    assert "data mnist5k source mnist5k" in row["changed"] and "partition alpha 0.1" in row["others"]
    page = report(tmp_path)
    details = re.search(r"<details.*?</details>", page.split("Settings of every row")[1], flags=re.DOTALL)
    assert details is not None and row["changed"] in details[0] and row["settings"] in details[0]


def test_settings_that_methods_should_share_are_compared_over_all_rows(tmp_path):
    write_run(tmp_path / "results", "p", "fedavg", 0)
    write_run(tmp_path / "results", "p", "scaffold", 0)
    write_run(tmp_path / "results", "p", "ditto", 0, rounds=6)
    page = report(tmp_path)
    warnings = re.findall(r'<p class="warning">(.*?)</p>', page)
    assert warnings == ["Not all rows have the same rounds: 20, but 6 for Ditto."]
    for rounds, method in enumerate(("ifca", "fedprox", "fedrep", "local"), start=1):
        write_run(tmp_path / "results", "p", method, 0, rounds=rounds)
    assert "Not all rows have the same rounds, but 6 different ones." in report(tmp_path)


def test_another_host_is_in_the_label_and_its_defaults_are_not(tmp_path):
    def write(name, plain=False, **parameters):
        host = {"name": name, "parameters": METHODS[name]().as_dict() | parameters}
        write_run(tmp_path, "p", "aaggff_s", 0, label="AAggFF-S", host=host, cdf="normal", plain=plain)

    write("fedavg", plain=True)
    write("fedavg", server_lr=0.5)
    write("fedadam")
    write("fedadam", tau=0.1)
    found = {run.label: run for run in collect_runs(tmp_path)}
    assert found.keys() == {
        "AAggFF-S",
        "AAggFF-S · host server_lr 0.5",
        "AAggFF-S, host FedAdam",
        "AAggFF-S, host FedAdam · host tau 0.1",
    }
    assert len({run.variant for run in found.values()}) == 4
    table = {row["label"]: row["changed"] for row in settings_table(found.values())}
    assert "host name fedadam, host tau 0.1" in table["AAggFF-S, host FedAdam · host tau 0.1"]
    assert "beta1" not in table["AAggFF-S, host FedAdam"]


def test_an_entry_with_a_name_has_a_row_and_no_host_in_its_label(tmp_path):
    own = {"host": {"name": "fedadam", "parameters": METHODS["fedadam"]().as_dict()}, "cdf": "normal"}
    for seed in (0, 1):
        write_run(tmp_path, "p", "adaptive", seed, label="Adaptive", name="aaggff_s", **own)
    write_run(
        tmp_path,
        "p",
        "adaptive",
        0,
        label="Adaptive",
        name="aaggff_s",
        plain=False,
        **own | {"cdf": "frechet"},
    )
    assert {run.label for run in collect_runs(tmp_path)} == {"Adaptive", "Adaptive · cdf frechet"}


def test_entries_with_the_same_label_have_their_names_in_it(tmp_path):
    """Not the registered method, nor an entry that has the label for itself on its partition."""
    for partition, name in (("p", "fedavg"), ("p", "copy"), ("p", "again"), ("q", "copy")):
        write_run(tmp_path, partition, name, 0, label="FedAvg", name="fedavg")
    found = [(run.partition, run.method, run.label) for run in collect_runs(tmp_path)]
    assert found == [
        ("p", "again", "FedAvg · again"),
        ("p", "copy", "FedAvg · copy"),
        ("p", "fedavg", "FedAvg"),
        ("q", "copy", "FedAvg"),
    ]


def test_runs_of_other_teachers_are_never_averaged(tmp_path):
    teacher = CentralParams.parse({"dataset": "mnist5k", "model": "lenet5"}).as_dict()
    other = teacher | {"training": teacher["training"] | {"epochs": 3}}
    write_run(tmp_path, "p", "fedavg", 0, central={"teacher": teacher})
    write_run(tmp_path, "p", "fedavg", 1, central={"teacher": other}, plain=False)
    assert [*accuracies(tmp_path)] == ["FedAvg", "FedAvg · central teacher training epochs 3"]
    (_, row) = settings_table(collect_runs(tmp_path))
    assert row["variant"] == "fedavg · central.teacher.training.epochs 3"
    assert "central teacher training epochs 3" in row["changed"]
    assert "central teacher training lr 0.01" in row["others"]


def test_runs_with_other_digests_never_share_a_name(tmp_path):
    write_run(tmp_path, "p", "fedavg", 0)
    folder = write_run(tmp_path, "p", "fedavg", 1)
    for name in ("metrics", "params"):
        change(folder / f"{name}.json", settings="abcdef012345")
    variants = {run.variant: run.label for run in collect_runs(tmp_path)}
    assert len(variants) == 2 and len({*variants.values()}) == 2
    assert any(re.fullmatch(r"fedavg · [0-9a-f]{4}", variant) for variant in variants)


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ({"s.a": 1, "s.b": 2}, {"s": None}, {"s.b": 2}),  # on: against the defaults
        ({"s.a": 1, "s.b": 0}, {"s": None}, {"s": {}}),
        ({"s": None}, {"s.a": 1, "s.b": 2}, {"s": None}),  # off
        ({"s.a": 3, "s.b": 2}, {"s.a": 1, "s.b": 2}, {"s.a": 3}),
        ({"s": None, "t": 1}, {"s": None}, {"t": 1}),
        ({"s": None, "new": 5}, {"s": None}, {}),  # a result of an earlier version has no such field
        ({"s": None}, {"s": None, "new": 5}, {}),  # nor has this one
        ({"s": None}, {"s": None, "new": 6}, {"new": None}),
        ({}, {"gone": 1}, {"gone": None}),
    ],
)
def test_a_mapping_that_one_of_two_lacks_is_compared_with_its_defaults(mine, theirs, expected):
    assert differences(mine, theirs, {"s.a": 1, "s.b": 0, "new": 5}) == expected


def test_the_name_of_a_method_is_of_runs_with_the_settings_of_the_file(tmp_path):
    """Runs with --set on one partition do not pass for plain runs on another."""
    root = tmp_path / "results"
    write_run(root, "p", "ifca", 0, clusters=2)
    for seed in (0, 1, 2):
        write_run(root, "q", "ifca", seed, clusters=2, plain=False, training={"lr": 1e-4})
        write_run(root, "q", "fedavg", seed, plain=False)
    of_ifca, *_ = [run for run in collect_runs(root) if run.partition == "q" and run.method == "ifca"]
    assert of_ifca.label == "IFCA · lr 0.0001" and of_ifca.variant == "ifca · training.lr 0.0001"
    of_fedavg, *_ = [run for run in collect_runs(root) if run.method == "fedavg"]
    assert of_fedavg.label == f"FedAvg · {of_fedavg.settings[:4]}" and of_fedavg.variant.startswith(
        "fedavg · "
    )
    assert set(one_number(collect_runs(root))) == set()


def test_without_runs_of_the_file_a_name_has_the_same_settings_everywhere(tmp_path):
    """Of methods that ran with two learning rates each, on several partitions, all names are of one rate."""
    schemes = {"iid": ("iid", {}), "p": ("dirichlet", {"alpha": 0.1}), "q": ("dirichlet", {"alpha": 1.0})}
    for partition, scheme in schemes.items():
        for method in ("ditto", "fedavg"):
            for lr in (0.05, 0.02):
                write_run(tmp_path, partition, method, 0, plain=False, scheme=scheme, training={"lr": lr})
    plain = [run for run in collect_runs(tmp_path) if run.variant == run.method]
    assert len(plain) == 6 and len({run.params["training"]["lr"] for run in plain}) == 1
    for seed in (1, 2):
        write_run(tmp_path, "p", "ditto", seed, plain=False, training={"lr": 0.02})
    write_run(tmp_path, "r", "ditto", 0, plain=False, training={"lr": 0.05})
    runs = [run for run in collect_runs(tmp_path) if run.method == "ditto"]
    labels = {run.params["training"]["lr"]: run.label for run in runs}  # most runs of the method have 0.02
    assert labels == {0.02: "Ditto", 0.05: "Ditto · lr 0.05"}


def test_settings_that_differ_by_partition_are_no_variants(tmp_path):
    """Such as tuned learning rates, in a sweep with --set."""
    for partition, lr in (("p", 0.05), ("q", 0.02), ("r", 0.02)):
        for seed in (0, 1):
            write_run(tmp_path, partition, "ditto", seed, plain=False, rounds=4, training={"lr": lr})
    assert {run.label for run in collect_runs(tmp_path)} == {"Ditto"}


def test_clients_of_another_division_under_the_same_name_are_left_out(tmp_path):
    write_partition(tmp_path / "partitions", "p", scheme="dirichlet", alpha=0.1)
    write_run(tmp_path / "results", "p", "fedavg", 0)
    other = write_run(
        tmp_path / "results", "p", "fedavg", 0, plain=False, scheme=("dirichlet", {"alpha": 100})
    )
    change(other / "metrics.json", partition_hash="0123456789abcdef", rounds=20)
    runs = collect_runs(tmp_path / "results")
    assert [run.label for run in runs] == ["FedAvg", "FedAvg · partition alpha 100"]
    facts = collect_partitions(tmp_path / "partitions", ["p"])
    (p,) = grouped(runs, facts).partitions
    assert list(p.divided) == ["fedavg"] and p.hash == p.facts.summary["hash"]
    change(tmp_path / "partitions" / "p" / "summary.json", hash="fedcba9876543210")  # replaced since
    (p,) = grouped(runs, collect_partitions(tmp_path / "partitions", ["p"])).partitions
    assert p.facts is None and "2 divisions" in report(tmp_path)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_runs_with_changes_on_other_data_are_never_averaged(tmp_path, elsewhere):
    write_run(tmp_path, "q", "fedavg" if elsewhere else "ditto", 0)
    for seed, data in ((0, "aaaaaaaa"), (1, "bbbbbbbb")):
        folder = write_run(tmp_path, "p", "fedavg", seed, plain=False, training={"lr": 1e-4})
        change(folder / "metrics.json", data_hash=data)
    groups = by_method([run for run in collect_runs(tmp_path) if run.partition == "p"])
    assert len(groups) == 2 and [len(runs) for runs in groups.values()] == [1, 1]
    assert len({runs[0].label for runs in groups.values()}) == 2
