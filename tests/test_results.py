"""The files of a finished run."""

import io
import json
import os
import shutil
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from command import disk_of, one_line_error

from fedflow.errors import FedflowError
from fedflow.finished.results import write_results
from fedflow.methods.protocols import Dissimilarity
from fedflow.metrics.table import METRICS
from fedflow.simulation.evaluation import Scores
from fedflow.simulation.extensions.clustering import cluster_files
from fedflow.simulation.outcome import Outcome, RoundReport, RunFindings

FACTS = {"partition": "p", "method": "ifca", "seed": 0}
PARAMS = {"settings": "1a2b3c", "seed": 0, "method": {"name": "ifca", "clusters": 2}}


def write(folder: Path, groups=None, failed=None, newcomers=None, compared=None) -> None:
    """Two rounds of three clients; clusters are known after the second."""
    nothing, scores = np.full(3, np.nan), np.array([0.25, 0.5, 1.0])
    zero = dict.fromkeys(("clock", "idle", "delay"), 0.0)
    first = {"train_loss": 2.5, "bytes_down": 80, "bytes_up": 40, "clusters": 1} | zero
    first |= {"method/step": 0.5, "client/alpha/mean": 0.25}
    nan = float("nan")
    rounds = [
        RoundReport(1, [0, 1], failed or {}, values=first, series={"method/p": [0.25, nan, 0.75]}),
        RoundReport(
            2,
            [2],
            assignment=[0, 1, 1],
            values=first
            | {"train_loss": 1.0, "bytes_down": 120, "bytes_up": 60, "clusters": 2}
            | {"local_accuracy": 0.1 + 0.2, "global_accuracy": 0.5},
            series={"method/p": [nan, 0.1, nan], "method/a": [1.0, nan, nan]},
        ),
    ]
    outcome = Outcome(
        Scores(
            [0, 1, 2],
            np.array([0, 1, 1]),
            np.array([4, 4, 8]),
            nothing,
            scores,
            scores,
            nothing,
            [torch.zeros(2)],
            np.zeros(3, dtype=int),
        ),
        np.array([1, 0, 1]),
        {"rounds": 2, "local_accuracy": 0.58, "ari": None},
        {0: torch.zeros(2)},
        newcomers,
        cluster_files(rounds, None if groups is None else groups[:3], compared, True),
    )
    samples = np.array([10, 20, 30] if newcomers is None else [10, 20, 30, 40])
    write_results(folder, FACTS, PARAMS, rounds, outcome, samples, groups)


def test_metrics_name_their_run_and_rounds_have_gaps_where_not_evaluated(tmp_path):
    write(tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    files = ["clients.parquet", "clusters.json", "params.json", "rounds.csv", "series.parquet"]
    assert metrics == {**FACTS, "rounds": 2, "local_accuracy": 0.58, "ari": None, "files": files}
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*files, "metrics.json"])
    assert json.loads((tmp_path / "params.json").read_text()) == PARAMS
    table = pd.read_csv(tmp_path / "rounds.csv")
    measured = [metric.name for metric in METRICS.values() if metric.rounds and not metric.sparse]
    assert list(table) == ["round", *measured, "failed", "client/alpha/mean", "method/step"]
    assert table["method/step"].tolist() == [0.5, 0.5] and table["bytes_up"].tolist() == [40, 60]
    assert table["round"].tolist() == [1, 2] and table["failed"].tolist() == [0, 0]
    assert np.isnan(table["local_accuracy"][0]) and table["local_accuracy"][1] == 0.3


def test_numbers_of_extensions_become_plain_ones_that_json_can_hold():
    measured = {"a": np.float32(0.5), "b": np.int64(3), "c": torch.tensor(0.25), "d": np.float64("nan")}
    outcome = Outcome(None, np.zeros(1), {}, {})
    outcome.add(RunFindings(measured | {"e": float("inf"), "f": "text", "g": None}))
    assert json.loads(json.dumps(outcome.metrics, allow_nan=False)) == outcome.metrics
    assert outcome.metrics == {"a": 0.5, "b": 3, "c": 0.25, "d": None, "e": None, "f": "text", "g": None}


def test_series_have_a_row_per_number(tmp_path):
    write(tmp_path)
    rows = pd.read_parquet(tmp_path / "series.parquet").to_numpy().tolist()
    assert rows == [
        [1, 0, "method/p", 0.25],
        [1, 2, "method/p", 0.75],
        [2, 0, "method/a", 1.0],
        [2, 1, "method/p", 0.1],
    ]


def test_clients_have_a_row_each(tmp_path):
    write(tmp_path, np.array([0, 0, 1]))
    table = pd.read_parquet(tmp_path / "clients.parquet")
    assert table["samples"].tolist() == [10, 20, 30] and table["participations"].tolist() == [1, 0, 1]
    assert table["cluster"].tolist() == [0, 1, 1] and table["group"].tolist() == [0, 0, 1]
    assert table["tuned_accuracy"].isna().all() and not table["newcomer"].any()


def test_groups_are_missing_where_none_are_planted(tmp_path):
    write(tmp_path)
    assert pd.read_parquet(tmp_path / "clients.parquet")["group"].isna().all()
    clusters = {"history": [{"round": 2, "assignment": [0, 1, 1]}], "stable_cluster_ids": True}
    written = json.loads((tmp_path / "clusters.json").read_text())
    assert written == clusters | {"groups": None, "proximity": None}
    assert not (tmp_path / "proximity.parquet").exists()


def test_what_the_server_compared_is_a_matrix_by_client(tmp_path):
    matrix = np.array([[0, 12.5], [12.5, 0]])
    write(tmp_path, compared=Dissimilarity(matrix, [0, 2], "angle, degrees", "wpgma", 8.0))
    table = pd.read_parquet(tmp_path / "proximity.parquet")
    assert table.loc[2, "0"] == table.loc[0, "2"] == 12.5 and table.shape == (2, 2)
    about = {"unit": "angle, degrees", "linkage": "wpgma", "height": 8.0, "decomposition_error": None}
    assert json.loads((tmp_path / "clusters.json").read_text())["proximity"] == about


def test_newcomers_come_behind_those_who_took_part(tmp_path):
    one, nothing = np.ones(1), np.full(1, np.nan)
    late = Scores(
        [3],
        np.ones(1, int),
        np.array([9]),
        nothing,
        one / 2,
        nothing,
        nothing,
        [],
        one,
        {"tuned_accuracy": one},
    )
    write(tmp_path, np.array([0, 0, 1, 1]), newcomers=late)
    table = pd.read_parquet(tmp_path / "clients.parquet")
    assert table["client"].tolist() == [0, 1, 2, 3] and table["newcomer"].tolist() == [False] * 3 + [True]
    assert table["samples"].tolist() == [10, 20, 30, 40] and table["group"].tolist() == [0, 0, 1, 1]
    assert table["participations"].tolist() == [1, 0, 1, 0]
    assert table.loc[3, ["local_accuracy", "tuned_accuracy", "cluster"]].tolist() == [0.5, 1.0, 1]
    assert json.loads((tmp_path / "clusters.json").read_text())["groups"] == [0, 0, 1]


def test_failures_are_written_only_when_there_are_some(tmp_path):
    write(tmp_path, failed={1: "ValueError: no"})
    assert json.loads((tmp_path / "failures.json").read_text()) == {"1": {"1": "ValueError: no"}}
    assert pd.read_csv(tmp_path / "rounds.csv")["failed"].tolist() == [1, 0]
    write(tmp_path)
    assert not (tmp_path / "failures.json").exists()


def test_equal_runs_write_equal_bytes(tmp_path):
    write(tmp_path / "a", np.array([0, 0, 1]))
    write(tmp_path / "b", np.array([0, 0, 1]))
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FedflowError, match=r"cannot write results to .*file/run: Not a directory"):
        write(tmp_path / "file" / "run")


def contents(folder: Path) -> dict[str, bytes]:
    """The files that belong to the results; all files without ``metrics.json``."""
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    listed = json.loads(files["metrics.json"])["files"] if "metrics.json" in files else files
    return {name: files[name] for name in {"metrics.json", *listed} & files.keys()}


def test_a_full_disk_is_one_line_and_leaves_the_earlier_files(tmp_path):
    write(tmp_path, failed={1: "ValueError: no"})
    before = contents(tmp_path)
    with disk_of(1000), one_line_error(r"^cannot write results to .*: .*File too large$"):
        write(tmp_path, np.array([0, 0, 1]))
    assert contents(tmp_path) == before


def test_files_that_are_linked_elsewhere_keep_their_content_there(tmp_path):
    """As DVC links outputs to its cache."""
    write(tmp_path / "run")
    cached = tmp_path / "cached"
    cached.hardlink_to(tmp_path / "run" / "clusters.json")
    before = cached.read_bytes()
    write(tmp_path / "run", np.array([0, 0, 1]))
    assert cached.read_bytes() == before != (tmp_path / "run" / "clusters.json").read_bytes()


def test_a_kill_leaves_the_earlier_set_the_new_one_or_none(tmp_path, monkeypatch):
    """Killed before any operation on files; a set counts when ``metrics.json`` is there."""
    changes = ("open", "fsync", "replace", "rename", "unlink", "rmdir", "remove")
    write(tmp_path / "older", failed={1: "ValueError: no"})
    write(tmp_path / "newer", np.array([0, 0, 1]))
    whole = [contents(tmp_path / name) for name in ("older", "newer")]
    ends = []
    for allowed in count():
        folder = tmp_path / str(allowed)
        write(folder, failed={1: "ValueError: no"})
        with monkeypatch.context() as patch:
            left = iter(range(allowed))

            def operation(real, left=left):
                def counted(*arguments, **options):
                    if next(left, None) is None:
                        raise KeyboardInterrupt
                    return real(*arguments, **options)

                return counted

            for name in changes:
                patch.setattr(os, name, operation(getattr(os, name)))
            patch.setattr("builtins.open", operation(open))
            patch.setattr("io.open", operation(io.open))
            try:
                write(folder, np.array([0, 0, 1]))
                ended = True
            except KeyboardInterrupt:
                ended = False
        shutil.rmtree(folder / ".partial", ignore_errors=True)  # as the next run does
        now = contents(folder)
        ends.append(whole.index(now) if "metrics.json" in now else None)
        if ended:
            break
        write(folder, np.array([0, 0, 1]))
        assert contents(folder) == whole[1]
    assert set(ends) == {0, 1, None} and ends[-1] == 1
