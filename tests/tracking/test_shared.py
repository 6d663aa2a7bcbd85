"""A store that others use too: their objects are left alone, and their runs are never continued."""

import socket
import sqlite3
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support import finish, open_run, refused

from fedflow.errors import FedflowError
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.tracking.lineage import ends, recorded_runs
from fedflow.tracking.models import attach_to_sweep, load_model, served_model
from fedflow.tracking.pages import runs_pages
from fedflow.tracking.shared import HOST, KEY, MADE, USER
from fedflow.tracking.store import open_store

TAGS = {"partition": "p", "method": "fedavg", "seed": 0, "settings": "abc", "dataset": "d"}


@pytest.fixture
def shared(root, tmp_path, monkeypatch):
    """The client of a store in another project, and a function that opens runs of a project in it."""
    store = open_store(root)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)

    def start(user: str = "ada", project: str = "one", **changes):
        monkeypatch.setenv("LOGNAME", user)
        folder = tmp_path / project
        folder.mkdir(exist_ok=True)
        options = {"experiment": f"d/{tmp_path.name}", "name": "fedavg seed 0", "key": tmp_path.name}
        options |= {"params": {}, "tags": TAGS, "system_metrics": False}
        return open_run(folder, **options | changes)

    return store.client(), start


def everything(api, run_id: str) -> tuple:
    run = api.get_run(run_id)
    return run.info.status, run.data.tags, run.data.params, run.data.metrics


@pytest.mark.parametrize("theirs", [{"user": "alice"}, {"project": "another"}])
@pytest.mark.parametrize(
    "status", ["RUNNING", *(pytest.param(s, marks=pytest.mark.full) for s in ("FAILED", "KILLED"))]
)
def test_a_run_of_another_user_or_project_is_never_continued(shared, capsys, theirs, status):
    api, start = shared
    other = start(**theirs, sweep="grid")
    if status != "RUNNING":
        other.fail("stopped", status)
    before = everything(api, other.run_id), everything(api, other.parent)
    with start("bob", sweep="grid") as record:
        record.fail("enough")
    assert record.run_id != other.run_id and record.parent != other.parent
    assert (everything(api, other.run_id), everything(api, other.parent)) == before
    line = "has an unfinished run of these settings"
    assert line in " ".join(capsys.readouterr().out.split())
    if status == "RUNNING":
        other.fail("enough")


def test_a_run_on_another_machine_is_continued_only_after_it_has_ended(shared, monkeypatch, capsys):
    api, start = shared
    monkeypatch.setattr(socket, "gethostname", lambda: "node1")
    first = start()
    first._writer.release()  # as on another machine, where this lock is not seen
    monkeypatch.setattr(socket, "gethostname", lambda: "node2")
    with start() as second:
        assert second.run_id != first.run_id
        second.fail("stopped")
    assert "ada on node1 has an unfinished run" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr(socket, "gethostname", lambda: "node3")
    with start() as third:
        assert third.run_id == second.run_id and api.get_run(third.run_id).data.tags[HOST] == "node3"
        third.fail("enough")
    first.fail("enough")


def test_a_run_without_an_owner_is_not_continued(shared, capsys):
    """Runs of earlier versions, or made by hand, do not say whose they are."""
    api, start = shared
    with start(key="first") as record:
        record.fail("enough")
    tags = {KEY: "old", "mlflow.user": "alice"}
    old = api.create_run(record.experiment_id, tags=tags, run_name="old")
    with start(key="old") as new:
        new.fail("enough")
    assert new.run_id != old.info.run_id and api.get_run(old.info.run_id).data.tags.items() >= tags.items()
    assert "old: alice has an unfinished run" in " ".join(capsys.readouterr().out.split())


def test_runs_of_others_are_not_taken_for_ours(shared, tmp_path, monkeypatch):
    """Tags with our names, wrong values in them, and runs of another user with the same settings."""
    api, start = shared
    with start() as record:
        record.end({}, 1, None, None, {})
    with start("bob", "another") as later:
        later.end({}, 1, None, None, {})
    foreign = api.create_experiment(f"foreign {record.run_id}")
    for tags in ({"method": "pca"}, TAGS, {"method": "x", KEY: "k"}, TAGS | {KEY: "k", USER: "?"}):
        run = api.create_run(foreign, tags=tags)
        api.set_terminated(run.info.run_id)
    monkeypatch.setenv("LOGNAME", "ada")
    key = ("p", "fedavg", "0", "abc")
    assert recorded_runs(tmp_path / "one")[key]["run_id"] == record.run_id
    assert ends(tmp_path / "one")[key] == api.get_run(record.run_id).info.end_time / 1000
    assert runs_pages(tmp_path / "one")


def test_a_malformed_tag_of_a_run_is_no_error(shared):
    api, start = shared
    with start() as record:
        api.set_tag(record.run_id, "fedflow.resumed", "often")
        record.fail("enough")
    with start() as again:
        assert api.get_run(record.run_id).data.tags["fedflow.resumed"] == "1"
        again.fail("enough")


def test_objects_of_others_with_our_names_are_left_alone(shared, outcome, card, capsys, tmp_path):
    api, start = shared
    experiment, model = "d/taken", "taken.fedavg"
    number = api.create_experiment(experiment, tags={"owner": "alice"})
    theirs = api.create_run(number, tags=TAGS | {"mlflow.user": "alice"})
    api.set_terminated(theirs.info.run_id)
    api.create_registered_model(model)
    version = api.create_model_version(model, "s3://bucket/model", theirs.info.run_id)
    for alias in ("newest", "champion"):
        api.set_registered_model_alias(model, alias, version.version)
    for key in ("first", "second"):
        with start(key=key, experiment=experiment) as record:
            finish(record, outcome(), card=card("global", "taken"))
    assert api.get_experiment(number).tags == {"owner": "alice"}
    assert [run.info.run_id for run in api.search_runs([number])] == [theirs.info.run_id]
    assert api.get_experiment(record.experiment_id).name == "fedflow/d/taken"
    assert {str(v) for v in api.get_registered_model(model).aliases.values()} == {"1"}
    assert len(api.search_model_versions(f"name = '{model}'")) == 1
    assert api.get_model_version_by_alias(f"fedflow.{model}", "newest").run_id == record.run_id
    said = " ".join(capsys.readouterr().out.split())
    for name in (experiment, model):
        assert f"{name!r} in MLflow was not made by fedflow and is left alone" in said
    assert served_model(TAGS, experiment, {}, root=tmp_path / "one")[0] == record.run_id


def test_a_model_of_others_is_not_taken_for_ours(shared, outcome, card, tmp_path, monkeypatch):
    """A later run of bob, and later inputs of ada, with the same settings."""
    experiment, recorded = f"d/{tmp_path.name}", []
    for user, content in (("ada", "first"), ("ada", "second"), ("bob", "first")):
        inputs = [{"name": "d", "digest": content, "source": "d", "context": "data"}]
        with shared[1](user, f"of-{user}", key=user + content, datasets=inputs) as record:
            finish(record, outcome(), card=card("global", "served"))
        recorded.append(record.run_id)
    for user, run_id in (("ada", recorded[0]), ("bob", recorded[2])):
        monkeypatch.setenv("LOGNAME", user)
        folder = tmp_path / f"of-{user}"
        assert served_model(TAGS, experiment, {"data": "first"}, root=folder)[0] == run_id
    with refused(
        rf"^only user ada, in project .*of-ada, has recorded .*, in run {recorded[1]};", FedflowError
    ):
        served_model(TAGS, experiment, {"data": "second"}, root=folder)
    with refused("no model of a finished run with .*, data with digest third is recorded", FedflowError):
        served_model(TAGS, experiment, {"data": "third"}, root=folder)


def test_the_path_of_a_network_is_imported_if_params_name_it(shared, outcome, card, tmp_path):
    path, options = "torch.nn:Linear", {"in_features": 4, "out_features": 3}
    linear = replace(card("global", "linear"), architecture=path, options=options, input_shape=(4,))
    w = FlatModel(partial(build, path, (4,), 3, **options)).init(0)
    with shared[1](key="linear") as record:
        finish(record, replace(outcome(), models={0: w}), card=replace(linear, mean=None, std=None))
    folder = tmp_path / "one"
    with refused(rf"code: False .* to import '{path}', the network of run {record.run_id}, .* does not name"):
        load_model(record.run_id, root=folder)
    assert load_model(record.run_id, root=folder, code=True).weight.shape == (3, 4)
    (folder / "params.yaml").write_text(f"models: {{d: {{name: '{path}'}}}}\n")
    assert load_model(record.run_id, root=folder) is not None


def test_artifacts_that_cannot_be_reached_are_an_error_before_training(shared, monkeypatch):
    api, start = shared
    for package in ("boto3", "botocore"):
        monkeypatch.setitem(sys.modules, package, None)  # as where it is not installed
    number = api.create_experiment("d/bucket", "s3://bucket/runs", {MADE: "experiment"})
    with refused("^MLflow store sqlite.*'boto", FedflowError):
        start(experiment="d/bucket")
    assert not api.search_runs([number])


def test_a_deleted_experiment_of_others_stays_deleted(shared):
    api, start = shared
    number = api.create_experiment("d/deleted")
    api.create_run(number)
    api.delete_experiment(number)
    with start(experiment="d/deleted") as record:
        record.fail("enough")
    assert record.experiment_id != number and api.get_experiment(number).lifecycle_stage == "deleted"


def test_a_champion_that_was_chosen_by_hand_stays(shared, outcome, card):
    api, start = shared
    for key in ("first", "second"):
        with start(key=key, experiment="d/chosen") as record:
            finish(record, outcome(), card=replace(card("global", "chosen"), held_out=key == "second"))
        if key == "first":
            api.set_registered_model_alias("chosen.fedavg", "champion", 1)
    assert {name: int(v) for name, v in api.get_registered_model("chosen.fedavg").aliases.items()} == {
        "newest": 2,
        "champion": 1,
    }


def test_the_page_of_a_sweep_is_attached_to_own_parents_only(shared, tmp_path):
    api, start = shared
    with start("alice", "another", sweep="repro") as theirs:
        theirs.fail("enough")
    with start("bob", sweep="repro") as mine:
        mine.fail("enough")
    (tmp_path / "page").write_text("")
    assert attach_to_sweep("repro", [tmp_path / "page"], "report", tmp_path / "one") == ""
    assert api.list_artifacts(mine.parent, "report") and not api.list_artifacts(theirs.parent, "report")


def test_a_page_that_is_not_attached_names_the_user_of_the_sweep(shared, tmp_path, monkeypatch):
    _, start = shared
    for project in ("one", "another"):
        with start("alice", project, sweep="repro") as theirs:
            theirs.fail("enough")
    monkeypatch.setenv("LOGNAME", "bob")
    (tmp_path / "two").mkdir()
    for project, why in (
        ("one", "the parent run named repro in MLflow belongs to alice"),
        ("two", "MLflow has no parent run named repro of this project"),
    ):
        assert attach_to_sweep("repro", [tmp_path / "page"], "report", tmp_path / project) == why


def test_a_model_of_another_version_is_one_line(shared, outcome, card, tmp_path):
    api, start = shared
    with start() as record:
        finish(record, outcome(), card=card("global", "of-another-version"))
    from mlflow.utils.file_utils import local_file_uri_to_path

    (model,) = api.search_logged_models([record.experiment_id], f"source_run_id = '{record.run_id}'")
    file = Path(local_file_uri_to_path(model.artifact_location)) / "artifacts" / "model.json"
    for text in ("{}", "[]", "{"):
        file.write_text(text)
        with refused("is not a model of this version of fedflow", FedflowError):
            load_model(record.run_id, root=tmp_path / "one")


def test_more_runs_than_a_page_of_mlflow_are_all_found(shared, tmp_path):
    """MLflow answers at most 1,000 runs at once; these are written as rows of one run."""
    _, start = shared
    with start(experiment="d/many", tags=TAGS | {"settings": "many"}) as record:
        record.end({}, 1, None, None, {})
    now = int(time.time() * 1000)
    with sqlite3.connect(record.store.folder / "mlflow.db") as database:
        names = [row[1] for row in database.execute("PRAGMA table_info(runs)")]
        (run,) = database.execute("SELECT * FROM runs WHERE run_uuid = ?", (record.run_id,)).fetchall()
        tags = database.execute("SELECT key, value FROM tags WHERE run_uuid = ?", (record.run_id,)).fetchall()
        for seed in range(1, 1101):
            new = dict(zip(names, run)) | {"run_uuid": f"{seed:032}", "end_time": now + seed}
            database.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(names))})", [*new.values()])
            rows = [(key, str(seed) if key == "seed" else value, f"{seed:032}") for key, value in tags]
            database.executemany("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", rows)
    found = {key: facts for key, facts in recorded_runs(tmp_path / "one").items() if key[3] == "many"}
    assert len(found) == 1101 and found["p", "fedavg", "0", "many"]["run_id"] == record.run_id
    assert {key for key in ends(tmp_path / "one") if key[3] == "many"} == found.keys()
    with sqlite3.connect(record.store.folder / "mlflow.db") as database:
        database.execute("DELETE FROM tags WHERE run_uuid LIKE '0000000000%'")
        database.execute("DELETE FROM runs WHERE run_uuid LIKE '0000000000%'")
