import contextlib
import json
import re
import sqlite3
import subprocess
import time
from dataclasses import replace

import pandas as pd
import pytest
from filelock import Timeout
from support import finish, open_run, refused

from fedflow.errors import FedflowError
from fedflow.project.machine import processor
from fedflow.tracking.addresses import database
from fedflow.tracking.comparison import PARENT
from fedflow.tracking.pages import TAG
from fedflow.tracking.record import Record, _source, described
from fedflow.tracking.shared import KEY
from fedflow.tracking.store import Store, open_store

PARAMS = {"run": {"rounds": 11, "lrs": [0.1, 0.01]}, "method": {"name": "fedavg", "note": "x" * 9000}}
DATASETS = [
    {"name": "digits", "digest": "0123456789abcdef", "source": "data/prepared/digits", "context": "training"},
    {"name": "digits-6", "digest": "feedbeef", "source": "data/partitions/digits-6", "context": "partition"},
]


@pytest.fixture
def start(root, request):
    """Opens runs in an experiment of the test's own."""

    def start(key: str = "k1", **changes):
        options = {"params": PARAMS, "datasets": DATASETS, "sweep": None, "system_metrics": False} | changes
        return open_run(root, name="fedavg-0", key=key, **{"experiment": request.node.name} | options)

    return start


@pytest.fixture
def api(root):
    return open_store(root).client()


def steps(api, run_id, name="round/train_loss"):
    return [m.step for m in api.get_metric_history(run_id, name)]


def test_a_run_is_recorded_completely(start, api, rounds, outcome, tmp_path, root):
    import pandas as pd

    (tmp_path / "metrics.json").write_text("{}")
    pd.DataFrame({"client": [0, 1], "accuracy": [0.5, 1.0]}).to_parquet(tmp_path / "clients.parquet")
    parameters = tmp_path / "params.yaml"
    parameters.write_text("run: {}\n")
    with start(tags={"seed": 3}, params_file=parameters) as record:
        for report in rounds:
            record.round(report)
        finish(record, outcome("cluster"), tmp_path)
    run = api.get_run(record.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["run.rounds"] == "11"
    assert run.data.params["run.lrs"] == "[0.1, 0.01]"
    assert len(run.data.params["method.note"]) == 6000
    assert run.data.tags["seed"] == "3"
    assert len(run.data.tags["fedflow.params_sha256"]) == 64
    recorded = [(d.dataset.name, d.dataset.digest) for d in run.inputs.dataset_inputs]
    assert recorded == [(d["name"], d["digest"]) for d in DATASETS]
    assert steps(api, record.run_id) == list(range(1, 12))
    assert steps(api, record.run_id, "accuracy/local_accuracy") == [
        5,
        10,
        11,
    ]  # once, though it is a final number too
    assert run.data.metrics["accuracy/tuned_accuracy"] == 0.6
    assert run.data.metrics["traffic/bytes_down"] == 1100
    assert "traffic/rounds_to_target" not in run.data.metrics
    folders = ("", "results", "clusters")
    files = {f.path for folder in folders for f in api.list_artifacts(record.run_id, folder)}
    assert {"results/metrics.json", "results/clients.parquet", "clients.json", "failures.json"} <= files
    assert {"clusters/round-0005.json", "clusters/round-0011.json"} <= files
    local = root / "mlruns" / "artifacts" / "test_a_run_is_recorded_completely" / record.run_id / "artifacts"
    assert json.loads((local / "failures.json").read_text()) == {"2": {"3": "ValueError: not a number"}}
    assert json.loads((local / "clusters/round-0005.json").read_text()) == [0, 0, 1, 1, 1, 0]


def test_a_killed_run_is_taken_up_again_as_one_run(start, api, rounds, outcome):
    """Killed with rounds 1-4 recorded, while the last checkpoint was that of round 3."""
    with start(experiment="killed", params={"workers": 2}, sweep="first") as record:
        assert record.recorded == {1, 2, 3, 4}
        for report in rounds:
            report.replayed = report.round <= 3
            record.round(report)
        finish(record, outcome())
    run = api.get_run(record.run_id)
    children = api.search_runs([run.info.experiment_id], "tags.`mlflow.parentRunId` != ''")
    assert [r.info.run_id for r in children] == [record.run_id]
    assert run.info.status == "FINISHED"
    assert steps(api, record.run_id) == list(range(1, 12))
    assert run.data.params == {"workers": "1", "rounds": "11"}  # a number that no metric is
    assert json.loads(run.data.tags["fedflow.changed_params"]) == {"workers": "2"}
    assert run.data.tags["fedflow.resumed"] == "1"
    assert api.get_run(run.data.tags["mlflow.parentRunId"]).info.status == "FINISHED"


def test_a_finished_run_is_left_alone(start, outcome):
    with start() as first:
        finish(first, outcome())
    with start() as second:
        finish(second, outcome())
    assert first.run_id != second.run_id


def test_a_finished_run_whose_checkpoint_is_left_is_finished_again(start, api, rounds, outcome, tmp_path):
    """Killed after MLflow had it all, before the checkpoint was deleted: still one run, nothing twice."""
    import pandas as pd

    pd.DataFrame({"client": [0, 1], "accuracy": [0.5, 1.0]}).to_parquet(tmp_path / "clients.parquet")

    def record_all(**options) -> str:
        with start(**options) as record:
            for report in rounds:
                record.round(report)
            finish(record, outcome("cluster"), tmp_path)
        return record.run_id

    first = record_all()
    files = {f.path: f.file_size for f in api.list_artifacts(first)}
    assert record_all(resumes=True) == first
    run = api.get_run(first)
    assert run.info.status == "FINISHED"
    assert steps(api, first) == list(range(1, 12)) and steps(api, first, "accuracy/tuned_accuracy") == [11]
    assert {f.path: f.file_size for f in api.list_artifacts(first)} == files
    assert len(api.search_runs([run.info.experiment_id])) == 1
    assert record_all() != first


def test_runs_of_a_sweep_have_one_parent(start, api, outcome):
    records = [start(key, sweep="it's a sweep") for key in ("k1", "k2")]
    parents = {api.get_run(r.run_id).data.tags["mlflow.parentRunId"] for r in records}
    assert len(parents) == 1
    (parent,) = parents
    finish(records[0], outcome())
    assert api.get_run(parent).info.status == "RUNNING"
    finish(records[1], outcome())
    assert api.get_run(parent).info.status == "FINISHED"
    assert api.get_run(parent).info.run_name == "it's a sweep"


def test_a_run_of_a_sweep_that_was_deleted_ends(start, api, outcome):
    with start(sweep="gone") as record:
        api.delete_run(record.parent)
        finish(record, outcome())
    assert api.get_run(record.run_id).info.status == "FINISHED"


def test_a_run_that_was_deleted_is_one_line(start, api, rounds):
    with refused("was deleted there; rerun the command to record it again", FedflowError), start() as record:
        api.delete_run(record.run_id)
        record.round(rounds[0])
        record.flush()


def test_training_continues_while_another_program_locks_the_store(start, api, rounds, monkeypatch, capsys):
    monkeypatch.setattr("fedflow.tracking.store.BRIEF", 0)
    monkeypatch.setattr("fedflow.tracking.record.FLUSH_SECONDS", 0)
    with start() as record:
        with contextlib.closing(sqlite3.connect(database(record.store.uri))) as other:
            other.execute("BEGIN EXCLUSIVE")
            record.round(rounds[0])
        said = " ".join(capsys.readouterr().out.split())
        assert "database is locked; training continues, records are sent later" in said
        record.flush()
        assert steps(api, record.run_id) == [1]
        record.fail("enough")


def test_a_run_has_one_writer(start, outcome):
    with start() as record:
        with refused("is being recorded by another process", FedflowError):
            start()
        finish(record, outcome())


def test_an_error_ends_the_run_as_failed_with_its_first_line(start, api, rounds):
    with pytest.raises(ValueError), start() as record:
        record.round(rounds[0])
        raise ValueError("the first line\nthe second")
    run = api.get_run(record.run_id)
    assert (run.info.status, run.data.tags["fedflow.error"]) == ("FAILED", "the first line")
    assert steps(api, record.run_id) == [1]
    with start() as again:
        assert again.run_id == record.run_id
        assert "fedflow.error" not in api.get_run(record.run_id).data.tags
        again.fail("once more")


def test_an_interrupt_ends_the_run_as_killed(start, api):
    with pytest.raises(KeyboardInterrupt), start() as record:
        raise KeyboardInterrupt
    assert api.get_run(record.run_id).info.status == "KILLED"


def test_system_metrics_are_those_of_a_run_not_of_its_sweep(start, api, outcome, monkeypatch):
    monkeypatch.setattr("fedflow.tracking.record.SYSTEM_INTERVAL", 0.1)

    def measured(run_id: str) -> set[str]:
        return {name for name in api.get_run(run_id).data.metrics if name.startswith("system/")}

    with start(sweep="measured", system_metrics=True) as record:
        for _ in range(100):
            if measured(record.run_id):
                break
            time.sleep(0.05)
        finish(record, outcome())
    assert "system/cpu_utilization_percentage" in measured(record.run_id)
    assert not measured(record.parent)


def test_the_parent_of_a_sweep_has_its_grid_and_what_its_newest_run_was_made_with(start, api, monkeypatch):
    """MLflow's parameters cannot change: a grid that did is a tag, until it is the first one again."""
    grid = {"methods": ["fedavg"], "seeds": [0, 1]}
    for commit, methods in (("aaa", ["fedavg"]), ("bbb", ["fedavg", "ditto"]), ("ccc", ["fedavg"])):
        monkeypatch.setattr("fedflow.tracking.record.git", lambda root, *words, at=commit: at)
        with start(commit, sweep="grid", grid=grid | {"methods": methods}) as record:
            record.fail("enough")
        parent = api.get_run(record.parent).data
        assert parent.params == {"grid.methods": '["fedavg"]', "grid.seeds": "[0, 1]"}
        assert parent.tags["mlflow.source.git.commit"] == commit
        assert parent.tags["fedflow.processor"] and "fedflow.lock_sha256" in parent.tags
        changed = json.loads(parent.tags.get("fedflow.changed_params", "{}"))
        assert changed == ({"grid.methods": '["fedavg", "ditto"]'} if commit == "bbb" else {})
        with start(f"{commit} outside the grid", sweep="grid") as record:
            record.fail("enough")
        assert json.loads(api.get_run(record.parent).data.tags.get("fedflow.changed_params", "{}")) == changed
    assert parent.tags["mlflow.note.content"].startswith("The runs of `grid`;")


def test_files_that_the_report_writes_are_no_changes_of_the_code(tmp_path):
    study = tmp_path / "studies" / "mine"
    study.mkdir(parents=True)
    for name in ("params.yaml", "results.csv", "verdicts.yaml", "claims.csv"):
        (study / name).write_text("before")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(tmp_path))
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "Start")):
        subprocess.run([*git, *words], check=True)
    for name, dirty in (
        ("results.csv", "false"),
        ("verdicts.yaml", "false"),
        ("claims.csv", "false"),
        ("params.yaml", "true"),
    ):
        (study / name).write_text("after")
        assert _source(study, None, {})["fedflow.git_dirty"] == dirty, name


def test_a_store_that_is_deleted_during_a_run_is_one_line(tmp_path, rounds, capfd):
    options = {"experiment": "e", "name": "n", "key": "k", "params": {}, "system_metrics": False}
    words = "/mlruns/mlflow.db: the database was deleted while a run was being recorded$"
    with (
        refused(f"^MLflow store sqlite:///{tmp_path}{words}", FedflowError),
        open_run(tmp_path, **options) as run,
    ):
        capfd.readouterr()
        (tmp_path / "mlruns" / "mlflow.db").unlink()
        run.round(rounds[0])
        run.flush()
    assert capfd.readouterr().err == ""


def test_a_run_says_which_command_made_it_and_who_gave_it(start, api, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/fedflow", "run", "--set", "run.rounds=2 "])
    monkeypatch.setenv("LOGNAME", "ada")
    with start(sweep="of a command") as record:
        tags = api.get_run(record.run_id).data.tags
        parent = api.get_run(tags["mlflow.parentRunId"]).data.tags
        record.fail("enough")
    for tagged in (tags, parent):
        assert tagged["mlflow.source.name"] == "fedflow run --set 'run.rounds=2 '"
        assert (tagged["mlflow.source.type"], tagged["mlflow.user"]) == ("LOCAL", "ada")


@pytest.mark.parametrize("error", [ValueError("no color"), Timeout("orders.lock")])
def test_a_run_whose_orders_cannot_be_drawn_has_finished(start, api, rounds, outcome, monkeypatch, error):
    def fail(*given: object) -> None:
        raise error

    monkeypatch.setattr("fedflow.tracking.record.log_orders", fail)
    drawn = pytest.warns(UserWarning, match=r"the orders of its curriculum are not drawn \(.*(color|lock)")
    with drawn, start() as record:
        for report in rounds:
            record.round(report)
        finish(record, outcome())
    assert api.get_run(record.run_id).info.status == "FINISHED"


def test_the_orders_of_a_curriculum_are_drawn_together(start, api, rounds, outcome, root):
    """The newest run of each seed; not runs of other settings, and not those of other methods."""

    def run(
        order: str | None, seed: int, sweep: str | None = "all", clients: str | None = None, **more: object
    ) -> str:
        pace = {"score": "global", "pacing": "linear", "a": 0.8, "b": 0.2}
        params = {
            "method": {"name": "fedavg"},
            "seed": seed,
            "training": {"curriculum": order and {"order": order, **pace}, **more},
            "run": {
                "sampling": "easy_first" if clients else "sweep",
                "client_curriculum": clients and {"order": clients, **pace},
            },
        }
        key = f"{order} {seed} {clients} {more}"
        with start(key=key, params=params, sweep=sweep) as record:
            for report in rounds:
                record.round(report)
            finish(record, outcome())
        return record.parent or record.run_id

    def pictures(run_id: str, top: str = "orders") -> list[str]:
        folders = [f.path for f in api.list_artifacts(run_id, top)]
        return [
            f.path.removeprefix(f"{top}/") for folder in folders for f in api.list_artifacts(run_id, folder)
        ]

    parent = run(None, 0)
    run("curriculum", 0, lr=0.5)
    assert pictures(parent) == []
    for seed in (0, 1, 1):
        run("curriculum", seed)
    one, *_ = found = pictures(parent)
    assert [path.split("/")[1] for path in found] == ["global_accuracy.png"]
    assert one.startswith("fedavg-global-linear-a0.8-b0.2-")
    run("anti", 0)
    assert pictures(parent) == found  # drawn again, with a line more
    alone = run("random", 0, sweep=None)
    assert pictures(alone) == found  # without a sweep, all runs of the experiment
    assert pictures(parent, "client_orders") == []
    run(None, 0, clients="anti")
    (one,) = pictures(parent, "client_orders")
    assert re.fullmatch(r"fedavg-global-linear-a0.8-b0.2-\w{4}/global_accuracy.png", one)


def test_a_finished_run_is_described_on_its_page(start, api, outcome, tmp_path):
    """Headline numbers in their units, without diagnostics; where its files are, and how to see more."""
    folder = tmp_path / "results" / "skewed" / "ditto" / "0"
    folder.mkdir(parents=True)
    pd.DataFrame({"client": [0]}).to_parquet(folder / "clients.parquet")
    metrics = {"local_accuracy": 0.9125, "global_accuracy": None, "method/beta": 3.0, "bytes_up": 2_500_000}
    text = described(metrics, folder)
    assert text.splitlines()[:4] == ["| | |", "|---|---:|", "| Local, % | 91.2 |", "| Up, MB | 2.5 |"]
    assert "beta" not in text and text.endswith("`fedflow show skewed/ditto/0`.")
    with start() as record:
        record.end(metrics, 1, folder, None, {})
    assert api.get_run(record.run_id).data.tags["mlflow.note.content"] == text


def test_the_clusters_of_a_run_are_an_input_with_the_model_of_each(start, api, rounds, outcome, card, root):
    with start(experiment="of clusters") as record:
        record.round(rounds[4])
        finish(record, outcome("cluster"), root / "none", card("cluster", "of-clusters"))
    run = api.get_run(record.run_id)
    file = root / "mlruns" / "artifacts" / "of_clusters" / record.run_id / "artifacts/clusters/clusters.json"
    found = json.loads(file.read_text())
    assert found["assignment"] == [0, 0, 0, 1, 1, 1]
    assert found["clusters"] == [
        {
            "cluster": f"cluster-{j}",
            "clients": clients,
            "model": f"of-clusters.fedavg.cluster-{j}",
            "version": 1,
        }
        for j, clients in enumerate(([0, 1, 2], [3, 4, 5]))
    ]
    (clusters,) = (d for d in run.inputs.dataset_inputs if d.tags[0].value == "clusters")
    assert (clusters.dataset.name, clusters.dataset.digest) == (
        "of-clusters.fedavg.clusters",
        found["digest"],
    )
    note = run.data.tags["mlflow.note.content"]
    assert "cluster-1 → `of-clusters.fedavg.cluster-1` version 1 → clients 3-5" in note
    assert api.get_model_version("of-clusters.fedavg.cluster-1", "1").description == (
        "cluster-1 model of fedavg on of-clusters, seed 0: lenet5, serves clients 3-5"
    )


def test_the_champion_is_chosen_by_held_out_samples_only(start, api, outcome, card):
    def run(key: str, accuracy: float, held_out: bool) -> None:
        ended = outcome()
        ended.metrics["local_accuracy"] = accuracy
        named = replace(card("global", f"chosen-{held_out}"), held_out=held_out)
        with start(key, experiment=f"chosen {held_out}") as record:
            finish(record, ended, card=named)

    for key, accuracy in (("a", 0.5), ("b", 0.7), ("c", 0.6)):
        for held_out in (True, False):
            run(key, accuracy, held_out)
    assert api.get_registered_model("chosen-True.fedavg").aliases == {"newest": 3, "champion": 2}
    assert api.get_registered_model("chosen-False.fedavg").aliases == {"newest": 3}


def test_a_sweep_ends_with_the_comparison_of_its_runs(start, api, rounds, outcome, root):
    """Means over seeds; of two runs of one seed the newest; variants of a method apart; the best first."""
    for method, settings, seed, accuracy in (
        ("fedavg", "aaaa1", 0, 0.1),
        ("fedavg", "aaaa1", 0, 0.5),
        ("fedavg", "aaaa1", 1, 0.6),
        ("ditto", "bbbb1", 0, 0.75),
        ("ditto", "cccc1", 0, 0.7),
    ):
        ended, tags = outcome(), {"method": method, "settings": settings, "seed": seed}
        ended.metrics |= {"local_accuracy": accuracy}
        with start(f"{method} {settings} {seed} {accuracy}", sweep="compared", tags=tags) as record:
            for report in rounds:
                record.round(report)
            finish(record, ended)
    parent = api.get_run(record.parent)
    means = {name: value for name, value in parent.data.metrics.items() if name.startswith("comparison/")}
    assert means == pytest.approx(
        {"comparison/ditto": 0.75, "comparison/ditto-cccc": 0.7, "comparison/fedavg": 0.55}
    )
    folder = root / "mlruns/artifacts/test_a_sweep_ends_with_the_comparison_of_its_runs" / record.parent
    table = json.loads((folder / "artifacts" / "comparison.json").read_text())
    assert table["columns"][:3] == ["method", "seeds", "Local, %"]
    assert [row[:3] for row in table["data"]] == [
        ["ditto", 1, "75.0"],
        ["ditto-cccc", 1, "70.0"],
        ["fedavg", 2, "55.0 ± 7.1"],
    ]
    assert "| fedavg | 2 | 55.0 ± 7.1 |" in parent.data.tags["mlflow.note.content"]
    assert (folder / "artifacts" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    view = json.loads(api.get_experiment(parent.info.experiment_id).tags[TAG])
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`accuracy/local_accuracy`", False)
    assert view["selectedColumns"][:3] == [
        "tags.`method`",
        "tags.`seed`",
        "metrics.`accuracy/local_accuracy`",
    ]


def test_a_sweep_is_compared_if_its_last_run_fails(start, api, outcome):
    with start("good", sweep="failing", tags={"method": "fedavg", "settings": "aaaa", "seed": 0}) as good:
        bad = start("bad", sweep="failing", tags={"method": "ditto", "settings": "bbbb", "seed": 0})
        finish(good, outcome())
    assert api.get_run(good.parent).info.status == "RUNNING"
    bad.fail("no memory")
    parent = api.get_run(good.parent)
    assert parent.info.status == "FINISHED" and "comparison/fedavg" in parent.data.metrics


def test_a_run_killed_on_another_machine_and_repeated_does_not_keep_its_sweep_open(start, api, outcome):
    with start("again", sweep="moved", tags={"method": "fedavg", "settings": "aaaa", "seed": 0}) as record:
        tags = api.get_run(record.run_id).data.tags
        killed = api.create_run(record.experiment_id, tags={n: tags[n] for n in (KEY, PARENT)})
        finish(record, outcome())
    assert api.get_run(killed.info.run_id).info.status == "RUNNING"
    assert api.get_run(record.parent).info.status == "FINISHED"


def test_a_run_that_was_killed_does_not_keep_its_sweep_open(start, api, outcome):
    """Its settings have changed, so it is not resumed. A run with a live process goes on."""
    facts = {"sweep": "killed", "tags": {"method": "fedavg", "settings": "aaaa", "seed": 0}}
    killed, going, last = (start(key, **facts) for key in ("killed", "going", "last"))
    killed._writer.release()  # as after kill -9
    finish(last, outcome())
    states = [api.get_run(record.run_id).info.status for record in (killed, going)]
    assert states == ["KILLED", "RUNNING"] and api.get_run(last.parent).info.status == "RUNNING"
    going.fail("enough")
    parent = api.get_run(last.parent)
    assert parent.info.status == "FINISHED" and "comparison/fedavg" in parent.data.metrics


@pytest.mark.parametrize("sweep", [None, "repro"])
def test_a_run_that_is_resumed_outside_its_sweep_ends_it(sweep, start, api, outcome):
    facts = {"tags": {"method": "fedavg", "settings": "aaaa", "seed": 0}}
    killed = start("k", sweep="killed", **facts)
    with start("sibling", sweep="killed", **facts) as record:
        finish(record, outcome())
    killed._writer.release()
    with start("k", sweep=sweep, **facts) as record:
        finish(record, outcome())
    assert record.run_id == killed.run_id and (record.parent == killed.parent) is (sweep is None)
    for parent in (killed.parent, record.parent):
        there = api.get_run(parent)
        assert there.info.status == "FINISHED" and "comparison/fedavg" in there.data.metrics


@pytest.mark.parametrize("purged", [True, False])
def test_a_run_whose_sweep_was_deleted_is_resumed_without_it(purged, start, api, outcome, root):
    killed = start("k", sweep="deleted")
    killed._writer.release()
    api.delete_run(killed.parent)
    if purged:
        with contextlib.closing(sqlite3.connect(database(open_store(root).uri))) as store, store:
            for table in ("tags", "params", "metrics", "latest_metrics", "runs"):
                store.execute(f"DELETE FROM {table} WHERE run_uuid = ?", [killed.parent])
    with start("k") as record:
        finish(record, outcome())
    assert record.run_id == killed.run_id and record.parent is None
    assert api.get_run(record.run_id).info.status == "FINISHED"


def test_an_interrupt_while_a_record_opens_leaves_no_run_going(start, api, monkeypatch):
    opened = []

    def interrupt(record, *given):
        opened.append(record)
        raise KeyboardInterrupt

    monkeypatch.setattr(Record, "_log_inputs", interrupt)
    with pytest.raises(KeyboardInterrupt):
        start("k", sweep="interrupted")
    (record,) = opened
    assert api.get_run(record.run_id).info.status == "KILLED"
    assert api.get_run(record.parent).info.status == "FINISHED" and not record._writer.is_locked


def test_a_run_that_is_repeated_keeps_its_sweep_open(start, api, outcome):
    facts = {"sweep": "repeated", "tags": {"method": "fedavg", "settings": "aaaa", "seed": 0}}
    for key in ("a", "b"):
        with start(key, **facts) as record:
            finish(record, outcome())
    again = [start(key, **facts, resumes=False) for key in ("a", "b")]
    finish(again[0], outcome())
    again[0].__exit__(None, None, None)
    assert api.get_run(again[1].run_id).info.status == api.get_run(record.parent).info.status == "RUNNING"
    again[1].fail("enough")
    assert api.get_run(record.parent).info.status == "FINISHED"


def test_only_files_of_the_run_are_logged(start, api, outcome, tmp_path):
    (tmp_path / "private").mkdir()
    for mine in ("private/key.json", "notes.json", "secret.csv"):
        (tmp_path / mine).write_text("{}")
    for key, facts in (("run", {"files": ["steps.csv"]}), ("outcome", {"procedure": "coreset"})):
        for name in ("steps.csv", "thesis.docx"):
            (tmp_path / name).write_text("")
        (tmp_path / "metrics.json").write_text(json.dumps(facts))
        with start(key) as record:
            finish(record, outcome(), tmp_path)
        logged = {file.path for file in api.list_artifacts(record.run_id, "results")}
        assert logged == {"results/metrics.json", "results/steps.csv"}


def test_a_sweep_that_cannot_be_compared_has_finished_runs(start, api, outcome, monkeypatch):
    def fail(*given: object) -> None:
        raise ValueError("no picture")

    monkeypatch.setattr("fedflow.tracking.record.log_comparison", fail)
    warned = pytest.warns(UserWarning, match=r"its sweep is not compared \(.*no picture")
    with warned, start(sweep="not compared", tags={"method": "fedavg"}) as record:
        finish(record, outcome())
    assert api.get_run(record.run_id).info.status == "FINISHED"


@pytest.mark.parametrize(("device", "named"), [("cpu", False), ("cuda", True), ("auto", True)])
def test_a_run_on_a_gpu_names_the_gpu_before_the_processor(start, api, monkeypatch, device, named):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Abacus 9")
    with start(f"on {device}", params={"engine": {"device": device}}) as record:
        record.fail("enough")
    name = api.get_run(record.run_id).data.tags["fedflow.processor"]
    assert name.startswith("Abacus 9, ") == named and name.endswith(processor())


def test_pictures_wait_for_a_store_that_is_away(start, outcome, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.png").touch()
    answers = iter(["no server answers", "no server answers"])
    with start() as record:
        monkeypatch.setattr(Store, "away", lambda _: next(answers, ""))
        monkeypatch.setattr("fedflow.tracking.record.time.sleep", lambda _: None)
        record.attach([tmp_path / "a.png"], "clusters")
        finish(record, outcome())
    assert "no server answers; waiting up to 2 min" in " ".join(capsys.readouterr().out.split())


def test_system_metrics_continue_after_a_store_was_away(start, outcome, monkeypatch):
    """The thread of MLflow ends when it cannot read the run."""
    with start(system_metrics=True) as record:
        first = record._monitor
        first._shutdown_event.set()
        first._process.join()
        record._flush_or_keep()
        assert record._monitor is not first and record._monitor._process.is_alive()
        finish(record, outcome())
