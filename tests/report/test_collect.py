import json
import os

import numpy as np
import pandas as pd
import pytest
from result_folders import change, listed, write_partition, write_run
from support import refused

from fedflow.errors import FedflowError
from fedflow.finished.clusters import clusters
from fedflow.finished.collect import collect_partitions, collect_runs
from fedflow.finished.features import masks, predictions, series, sweep
from fedflow.finished.tables import run_table, stat
from fedflow.simulation.extensions.recording import FILE as VECTORS


def test_no_results_says_where_and_how_to_make_them(tmp_path):
    with refused(r"no results found in .*results; run `dvc repro` or `fedflow sweep` first", FedflowError):
        collect_runs(tmp_path / "results")


FILES = ["metrics.json", "params.json", "rounds.csv", "clients.parquet"]
READERS = {
    "series.parquet": series,
    "predictions.parquet": predictions,
    "sweep.parquet": sweep,
    VECTORS: masks,
    "clusters.json": clusters,
}


@pytest.mark.parametrize("name", FILES)
def test_cut_off_file_is_named(tmp_path, name):
    path = write_run(tmp_path, "p", "ifca", 0) / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with refused(f"p/ifca/0/{name}", FedflowError):
        collect_runs(tmp_path)


@pytest.mark.parametrize("kept", [1, 30])
def test_a_last_round_that_is_cut_off_is_refused(tmp_path, kept):
    """Its first columns alone would be read as a whole row."""
    path = write_run(tmp_path, "p", "ifca", 0) / "rounds.csv"
    *lines, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines) + last[:-kept])
    with refused(
        "p/ifca/0/rounds.csv: truncated or damaged .its last line has no end.; run this", FedflowError
    ):
        collect_runs(tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_a_cut_off_file_of_a_feature_is_named_where_it_is_used(tmp_path, name):
    folder = write_run(tmp_path, "p", "ifca", 0)
    (folder / name).write_bytes(b"PAR1 half")
    listed(folder)
    (run,) = collect_runs(tmp_path)
    with refused(f"p/ifca/0/{name}", FedflowError):
        READERS[name](run)


@pytest.mark.parametrize("name", FILES[1:])
def test_missing_file_is_named(tmp_path, name):
    (write_run(tmp_path, "p", "ifca", 0) / name).unlink()
    with refused(f"{name}: No such file", FedflowError):
        collect_runs(tmp_path)


def test_a_set_that_is_not_complete_is_named(tmp_path):
    folder = write_run(tmp_path, "p", "ifca", 0)
    (folder / "metrics.json").unlink()
    words = "are incomplete: no metrics.json, which is written last; run this experiment again"
    with refused(f"^the results in {folder} {words}$", FedflowError):
        collect_runs(tmp_path)


def test_a_run_of_an_earlier_version_is_left_out(tmp_path):
    """Another run is reported."""
    write_run(tmp_path, "p", "fedavg", 0)
    folder = write_run(tmp_path, "p", "ifca", 0)
    training = json.loads((folder / "params.json").read_text())["training"]
    change(folder / "params.json", training=training | {"optimiser": "sgd"})
    with pytest.warns(UserWarning, match=r"params\.json: .*did you mean 'optimizer'.* left out; .*ifca/0"):
        assert [run.method for run in collect_runs(tmp_path)] == ["fedavg"]


@pytest.mark.parametrize(
    ("name", "facts", "words"),
    [
        ("metrics", {"participation": None}, "participation is None"),
        ("metrics", {"local_accuracy": float("nan")}, "contains NaN"),
        ("metrics", {"seed": "0"}, "seed is '0'"),
        (
            "metrics",
            {"local_accuracy": 5.0},
            r"metrics\.json: local_accuracy is 5\.0, not a number from 0 to 1",
        ),
        ("metrics", {"global_accuracy": -0.5}, "global_accuracy is -0.5, not a number from 0 to 1"),
        ("metrics", {"local_accuracy": "0.9"}, "local_accuracy is '0.9', not int or float or null"),
        ("metrics", {"local_accuracy": True}, "local_accuracy is True, not int or float or null"),
        ("metrics", {"loss": float("inf")}, "contains Infinity"),
        ("metrics", {"loss": 10**400}, "loss is 10000.*, not a finite number"),
        ("metrics", {"method/x": [1]}, r"method/x is \[1\], not int"),
        ("metrics", {"bytes_up": -1}, "bytes_up is -1, not a number >= 0"),
        ("metrics", {"clusters": -1}, "clusters is -1, not a number >= 0"),
        ("metrics", {"ari": 1.5}, "ari is 1.5, not a number from -1 to 1"),
        ("metrics", {"rounds": 0}, "rounds is 0, not a number >= 1"),
        ("metrics", {"participation": 3}, "participation is 3, not a number from 0 to 1"),
        ("params", {"method": {}}, r"params\.json: no method\.name"),
        ("params", {"method": {"name": []}}, r"params\.json: method\.name is \[\]"),
        ("params", {"data": {"mnist5k": 1}}, r"params\.json: data\.mnist5k is 1"),
        ("params", {"training": {"epochs": 1}}, r"params\.json: no training\.lr"),
        ("clusters", {"history": [{"round": -1, "assignment": [0] * 20}]}, "each entry of history"),
        ("clusters", {"history": [{"round": 1, "assignment": [10**30] * 20}]}, "each entry of history"),
        ("clusters", {"proximity": {"unit": "u", "linkage": "x"}}, "proximity.linkage is 'x', not one of"),
        (
            "clusters",
            {"proximity": {"unit": "u", "linkage": "wpgma", "height": "x"}},
            "proximity.height is 'x', not a number >= 0",
        ),
        ("metrics", {"seed": 4}, "it belongs to the run p/pacfl/4"),
        ("metrics", {"rounds": 21}, "20 rows for 21 rounds"),
        ("metrics", {"clients": 7}, "20 rows for 7 clients"),
        ("params", {"settings": "other"}, r"params\.json: its settings differ from those of metrics.json"),
        ("params", {"run": None}, r"p/pacfl/0/params\.json: no run"),
        ("clusters", {"groups": None, "history": [{"round": 1, "assignment": [0, 1]}]}, "20 assignments"),
        ("clusters", {"groups": [0, 1], "history": []}, "groups"),
        ("clusters", {"proximity": {"height": 1}}, r"clusters\.json: proximity needs a unit"),
        ("clusters", {"stable_cluster_ids": None}, "stable_cluster_ids needs true or false; run this experi"),
    ],
)
def test_a_wrong_fact_is_named(tmp_path, name, facts, words):
    change(write_run(tmp_path, "p", "pacfl", 0) / f"{name}.json", **facts)
    with refused(words, FedflowError):
        clusters(*collect_runs(tmp_path))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("rounds.csv", {"local_accuracy": 5.0}, "column local_accuracy has 5.0, not a number from 0 to 1"),
        ("rounds.csv", {"local_accuracy": np.inf}, "column local_accuracy has inf, not a number from 0 to 1"),
        ("rounds.csv", {"bytes_up": -1}, "column bytes_up has -1, not a number >= 0"),
        ("rounds.csv", {"bytes_up": np.inf}, "column bytes_up has inf, not a number >= 0"),
        ("rounds.csv", {"failed": -1}, "column failed has -1"),
        ("rounds.csv", {"failed": np.nan}, "column failed has an empty cell"),
        ("rounds.csv", {"bytes_down": np.nan}, "column bytes_down has an empty cell"),
        ("rounds.csv", {"round": 1}, "column round is not 1 to 20"),
        ("rounds.csv", {"train_loss": "x"}, "column train_loss is not numeric"),
        ("rounds.csv", {"ari": True}, "column ari is not numeric"),
        ("clients.parquet", {"local_accuracy": 5.0}, "column local_accuracy has 5.0"),
        ("clients.parquet", {"tuned_accuracy": "x"}, "column tuned_accuracy is not numeric"),
        ("clients.parquet", {"client": 0}, "column client is not 0 to 19"),
        ("clients.parquet", {"samples": -1}, "column samples has -1, not a number from 0"),
        ("clients.parquet", {"participations": -1}, "column participations has -1"),
        ("clients.parquet", {"test_samples": "x"}, "column test_samples is not numeric"),
        ("clients.parquet", {"samples": np.nan}, "column samples has an empty cell"),
        ("clients.parquet", {"newcomer": "no"}, "column newcomer is not of true and false"),
    ],
)
def test_a_table_with_values_that_no_run_has_is_named(tmp_path, name, change, words):
    path = write_run(tmp_path, "p", "ifca", 0) / name
    if name.endswith(".csv"):
        pd.read_csv(path).assign(**change).to_csv(path, index=False)
    else:
        pd.read_parquet(path).assign(**change).to_parquet(path)
    with refused(rf"p/ifca/0/{name}: {words}", FedflowError):
        collect_runs(tmp_path)


def test_values_at_the_ends_of_their_range_are_read(tmp_path):
    folder = write_run(tmp_path, "p", "ifca", 0, diagnostics=["method/x"])
    change(
        folder / "metrics.json", local_accuracy=1.0 + 1e-12, global_accuracy=0, local_gini=-1e-17, ari=-0.5
    )
    table = pd.read_csv(folder / "rounds.csv").assign(**{"method/x": np.inf, "train_loss": -np.inf})
    table.to_csv(folder / "rounds.csv", index=False)
    assert len(collect_runs(tmp_path)) == 1  # losses and diagnostics may diverge


def test_json_that_is_nested_too_deeply_and_a_pipe_are_one_line(tmp_path):
    path = write_run(tmp_path, "p", "ifca", 0) / "clusters.json"
    path.write_text("[" * 100_000)
    with refused(r"clusters\.json: truncated or not JSON", FedflowError):
        clusters(*collect_runs(tmp_path))
    path.unlink()
    os.mkfifo(path)
    with refused(r"clusters\.json: No such file", FedflowError):
        clusters(*collect_runs(tmp_path))


def test_only_a_metric_that_every_run_has_may_not_be_absent(tmp_path):
    """Results of before a metric was added to the table stay readable."""
    path = write_run(tmp_path, "p", "fedavg", 0) / "metrics.json"
    metrics = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in metrics.items() if k != "loss"}))
    (run,) = collect_runs(tmp_path)
    assert stat([run], "loss") is None and "loss" not in run_table([run])
    path.write_text(json.dumps({k: v for k, v in metrics.items() if k != "bytes_up"}))
    with refused(r"metrics\.json: no bytes_up", FedflowError):
        collect_runs(tmp_path)


def test_a_folder_named_after_other_settings_is_refused(tmp_path):
    folder = write_run(tmp_path, "p", "fedavg", 0, plain=False)
    collect_runs(tmp_path)
    folder.rename(folder.with_name("0-12345678"))
    with refused("it belongs to the run p/fedavg/0", FedflowError):
        collect_runs(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda table: table.rename(columns={"0": "40"}), "a row and a column per client"),
        (lambda table: table.rename(index={0: 40}, columns={"0": "40"}), "a row and a column per client"),
        (lambda table: table * float("nan"), "a matrix of finite numbers"),
    ],
)
def test_a_matrix_of_other_clients_is_refused(tmp_path, spoil, words):
    path = write_run(tmp_path, "p", "pacfl", 0) / "proximity.parquet"
    assert clusters(*collect_runs(tmp_path)).dissimilarity is not None
    spoil(pd.read_parquet(path)).to_parquet(path)
    with refused(rf"proximity\.parquet: .*{words}", FedflowError):
        clusters(*collect_runs(tmp_path))


def test_whether_cluster_ids_are_stable_is_read_and_never_assumed(tmp_path):
    path = write_run(tmp_path, "p", "ifca", 0) / "clusters.json"
    facts = json.loads(path.read_text())
    assert facts.pop("stable_cluster_ids") and clusters(*collect_runs(tmp_path)).stable_ids
    path.write_text(json.dumps(facts | {"lasting": False}))  # as it was named before
    assert not clusters(*collect_runs(tmp_path)).stable_ids
    path.write_text(json.dumps(facts))
    with refused("stable_cluster_ids needs true or false; run this experiment", FedflowError):
        clusters(*collect_runs(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client": 20}, "column client has 20, not a number from 0 to 19"),
        ({"round": 0}, "column round has 0, not a number from 1 to 20"),
        ({"value": "a"}, "column value is not numeric"),
    ],
)
def test_series_of_other_rounds_or_clients_are_named(tmp_path, change, words):
    path = write_run(tmp_path, "p", "ifca", 0, series={"method/p": np.ones((20, 20))}) / "series.parquet"
    pd.read_parquet(path).assign(**change).to_parquet(path)
    with refused(rf"series\.parquet: {words}", FedflowError):
        series(*collect_runs(tmp_path))


def test_predictions_of_other_clients_are_named_when_they_are_used(tmp_path):
    path = write_run(tmp_path, "p", "ifca", 0) / "predictions.parquet"
    row = {"client": 20, "sample": 0, "label": 0, "predicted": 0, "confidence": 0.5, "rank": 1}
    pd.DataFrame([row]).to_parquet(path)
    listed(path.parent)
    (run,) = collect_runs(tmp_path)
    with refused(r"predictions\.parquet: column client has 20, not a number from 0 to 19", FedflowError):
        predictions(run)
    pd.DataFrame([row | {"client": 0, "confidence": 5.0}]).to_parquet(path)
    with refused(r"predictions\.parquet: column confidence has 5\.0", FedflowError):
        predictions(run)
    pd.DataFrame([row]).drop(columns="rank").to_parquet(path)
    with refused(r"predictions\.parquet: no column rank", FedflowError):
        predictions(run)


def test_a_run_without_the_file_of_a_feature_has_none(tmp_path):
    folder = write_run(tmp_path, "p", "ifca", 0, series={"method/p": np.ones((20, 20))})
    for name in (*READERS, "proximity.parquet"):
        (folder / name).unlink(missing_ok=True)
    listed(folder)
    (run,) = collect_runs(tmp_path)
    assert series(run).empty and predictions(run).empty and sweep(run).empty and masks(run) is None
    assert clusters(run) == ([], [], None, True)


def test_results_without_a_list_of_files_are_of_an_earlier_version(tmp_path):
    file = write_run(tmp_path, "p", "ifca", 0) / "metrics.json"
    facts = json.loads(file.read_text())
    del facts["files"]
    file.write_text(json.dumps(facts))
    with pytest.warns(UserWarning, match="no list of files: left out; delete"):
        assert not collect_runs(tmp_path, needed=False)


def test_a_listed_file_is_there_and_another_one_does_not_count(tmp_path):
    folder = write_run(tmp_path, "p", "ifca", 0, series={"method/p": np.ones((20, 20))})
    (folder / "sweep.parquet").write_bytes(b"PAR1 half")
    (run,) = collect_runs(tmp_path)
    assert sweep(run).empty and len(series(run))
    (folder / "series.parquet").unlink()
    with refused("series.parquet: No such file", FedflowError):
        collect_runs(tmp_path)


def test_empty_run_folders_are_passed_over(tmp_path):
    write_run(tmp_path, "p", "fedavg", 10)
    write_run(tmp_path, "p", "fedavg", 9)
    (tmp_path / "p" / "fedavg" / "11").mkdir()
    assert [run.seed for run in collect_runs(tmp_path)] == [9, 10]


def test_cut_off_partition_summary_is_named(tmp_path):
    path = write_partition(tmp_path, "p", scheme="iid") / "summary.json"
    path.write_text(path.read_text()[:40])
    with refused(r"p/summary\.json", FedflowError):
        collect_partitions(tmp_path, ["p"])
    assert collect_partitions(tmp_path, ["unknown"]) == {}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"params": []}, r"params is \[\], not an object"),
        ({"sizes": {"min": "x", "max": 1}}, "sizes.min is 'x', not a number >= 0"),
        ({"difficulty": {}}, "no difficulty.intra_std"),
        ({"difficulty": {"intra_std": "x", "inter_std": 1}}, "difficulty.intra_std is 'x'"),
        ({"newcomers": -1}, "newcomers is -1, not a number >= 0"),
    ],
)
def test_a_partition_summary_of_another_form_is_named(tmp_path, facts, words):
    change(write_partition(tmp_path, "p", scheme="iid") / "summary.json", **facts)
    with refused(rf"p/summary\.json: {words}", FedflowError):
        collect_partitions(tmp_path, ["p"])


@pytest.mark.parametrize(
    "text", ["client,0\n0,-1\n", "client,0\n0,x\n", "client,0\n0,\n", "client,0\n0,1.5\n"]
)
def test_label_counts_are_whole_numbers(tmp_path, text):
    (write_partition(tmp_path, "p", scheme="iid") / "label_counts.csv").write_text(text)
    with refused(r"label_counts\.csv: .*(not of whole numbers|has -1)", FedflowError):
        collect_partitions(tmp_path, ["p"])


def test_a_picture_of_a_partition_is_a_png(tmp_path):
    (write_partition(tmp_path, "p", scheme="iid") / "labels.png").write_text("<svg onload='1'/>")
    with refused(r"labels\.png: not a PNG", FedflowError):
        collect_partitions(tmp_path, ["p"])
