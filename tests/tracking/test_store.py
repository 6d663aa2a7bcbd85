import os
import re
import shutil
import socket
import sqlite3
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest
from command import disk_of, fedflow
from safetensors import SafetensorError
from support import finish, open_run, refused

from fedflow.errors import FedflowError
from fedflow.tracking.addresses import shown
from fedflow.tracking.models import load_model
from fedflow.tracking.store import (
    Store,
    check_store,
    move_store,
    open_store,
    reporting,
    tracking_uri,
    ui_command,
)


def test_two_processes_make_one_store(other_process, root):
    assert other_process["mine"] == other_process["uri"] == f"sqlite:///{root}/mlruns/mlflow.db"
    names = {p.name for p in (root / "mlruns").iterdir()}
    assert {"locks", "mlflow.db"} <= names <= {"locks", "mlflow.db", "artifacts"}


def test_mlflow_is_imported_late_and_says_nothing(other_process):
    assert not other_process["imported"]
    assert other_process["stderr"] == ""


def test_an_existing_store_is_opened_without_mlflow(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert open_store(root).uri.startswith("sqlite:///")


def test_the_environment_chooses_another_store(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert tracking_uri("anywhere") == "http://127.0.0.1:9"
    with refused(r"^MLflow store http://127.0.0.1:9: no server answers", FedflowError):
        open_store("anywhere")


@pytest.mark.parametrize(
    ("scheme", "package"), [("postgresql+psycopg2", "psycopg2-binary"), ("mysql", "mysqlclient, or pymysql")]
)
def test_a_database_without_its_driver_is_one_line(tmp_path, monkeypatch, scheme, package):
    for module in ("psycopg2", "MySQLdb"):
        monkeypatch.setitem(sys.modules, module, None)  # as where it is not installed
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{scheme}://ada:secret@127.0.0.1:9/runs")
    for use in (open_store, check_store, lambda root: open_run(root, **RUN)):
        with refused(
            rf"{scheme.replace('+', '.')}://ada:\*\*\*@127.* is missing; install {package}", FedflowError
        ):
            use(tmp_path)


def test_postgres_is_the_extra_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+psycopg://127.0.0.1:9/runs")
    with refused(r"install psycopg\[binary\] \(extra postgres\)$", FedflowError):
        open_store(tmp_path)


@pytest.mark.parametrize("listens", [True, False])
def test_a_database_that_does_not_answer_is_asked_once(tmp_path, monkeypatch, listens):
    pytest.importorskip("psycopg")
    monkeypatch.setattr("fedflow.tracking.addresses.ANSWER_TIMEOUT", 2)
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        if listens:
            port.listen()
        address = f"127.0.0.1:{port.getsockname()[1]}/runs"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql+psycopg://ada:secret@{address}")
        with refused(rf"ada:\*\*\*@{address}: cannot connect \((?!.*secret)", FedflowError):
            open_store(tmp_path)


@pytest.mark.parametrize("given", [None, "s3://bucket/runs/", "artifacts of all"])
def test_artifacts_of_a_database_are_in_the_project_or_where_mlflow_is_told(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    if given:
        monkeypatch.setenv("MLFLOW_DEFAULT_ARTIFACT_ROOT", given)
    store = Store("postgresql://h/runs", tmp_path / "a b" / "mlruns")
    folder = tmp_path / given if given else store.folder / "artifacts"
    expected = "s3://bucket/runs" if given and ":" in given else folder.as_uri()
    assert store.artifacts("d/p") == f"{expected}/d_p"
    assert Store(tracking_uri(tmp_path), tmp_path / "mlruns").artifacts("d/p") == (
        (tmp_path / "mlruns" / "artifacts" / "d_p").as_uri()
    )


def test_a_folder_of_artifacts_has_a_name_that_file_systems_allow(tmp_path):
    store = Store(tracking_uri(tmp_path), tmp_path / "mlruns")
    names = ["d" * 99 + "/" + "p" * 100, *(f"{'d' * 128}/{'p' * 127}{last}" for last in "ab")]
    short, *long = (Path(str(store.artifacts(name))).name for name in names)
    assert short == names[0].replace("/", "_")
    assert [len(name) for name in long] == [200, 200] and long[0] != long[1]


@contextmanager
def without_rights():
    """An administrator could write anywhere."""
    administrator = os.geteuid() == 0
    if administrator:
        os.seteuid(65534)
    try:
        yield
    finally:
        if administrator:
            os.seteuid(0)


def test_a_read_only_folder_is_one_line_and_leaves_nothing(real):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        with real(), without_rights(), refused(r"Permission denied$", FedflowError):
            open_store(folder)
        assert list(Path(folder).iterdir()) == []
        Path(folder).chmod(0o755)


def test_an_existing_store_that_is_read_only_is_one_line(root):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "mlruns" / "artifacts").mkdir(parents=True)
        shutil.copy(root / "mlruns" / "mlflow.db", Path(folder) / "mlruns")
        move_store(folder)
        (Path(folder) / "mlruns").chmod(0o555)
        with without_rights(), refused(r"Permission denied$", FedflowError):
            open_run(folder, experiment="e", name="n", key="k", params={})


def test_a_full_disk_is_one_line_and_leaves_no_half_made_store(tmp_path, real):
    with disk_of(200_000), real(), refused("MLflow store sqlite", FedflowError):  # the schema takes more
        open_store(tmp_path)
    assert [p.name for p in (tmp_path / "mlruns").iterdir()] == ["locks"]
    assert open_store(tmp_path).uri.startswith("sqlite:///")  # and with space again it is made


@pytest.mark.parametrize("suffix", ["", "-journal"])
def test_drafts_of_killed_processes_are_swept_from_an_existing_store_too(root, suffix):
    draft = root / "mlruns" / f".mlflow.db.0123.draft{suffix}"
    store = open_store(root)
    draft.touch()
    with store.file_lock("schema"):  # as a process holds it that is making a store
        open_store(root)
        assert draft.exists()
    open_store(root)
    assert not draft.exists()


RUN = {"experiment": "digits/é", "name": "n", "key": "k", "params": {}, "system_metrics": False}


def with_store(project: Path, root: Path) -> Path:
    """The folder ``project`` with an empty store, which is faster than a new one."""
    (project / "mlruns" / "artifacts").mkdir(parents=True)
    shutil.copy(root / "mlruns" / "mlflow.db", project / "mlruns")
    move_store(project)
    return project


@pytest.fixture
def recorded(root, tmp_path, outcome, card, rounds) -> Path:
    """A project with a recorded run and model, in a folder with a name that addresses must quote."""
    project = with_store(tmp_path / "the original é", root)
    with open_run(project, **RUN) as record:
        record.round(rounds[4])
        finish(record, outcome("global"), card=card("global", "p"))
    (project / "run").write_text(record.run_id)
    return project


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_copied_project_is_refused_until_its_store_is_moved(recorded, tmp_path, outcome, card, capsys):
    import mlflow

    copy = tmp_path / "copy"
    shutil.copytree(recorded, copy)
    before = files(recorded / "mlruns" / "artifacts")
    line = (
        f"MLflow store sqlite:///{copy}/mlruns/mlflow.db was moved or copied: its artifacts are recorded in "
        f"{recorded}/mlruns/artifacts; run `fedflow store move` to use those next to it"
    )
    for use in (open_store, ui_command, check_store, lambda root: open_run(root, **RUN)):
        with pytest.raises(FedflowError) as error:
            use(copy)
        assert str(error.value) == line
    done = fedflow(capsys, "doctor", "--root", copy)
    assert done.code == 2 and "was moved or copied" in " ".join(done.out.split())

    done = fedflow(capsys, "store", "move", "--root", copy)
    assert re.fullmatch(rf"\d+ addresses changed; artifacts: {copy}/mlruns/artifacts\n", done.out)
    assert fedflow(capsys, "store", "move", "--root", copy).out.startswith("0 addresses changed")
    with sqlite3.connect(copy / "mlruns" / "mlflow.db") as database:
        assert not [line for line in database.iterdump() if "original" in line]
    with open_run(copy, **RUN | {"key": "other"}) as record:
        finish(record, outcome("global"), card=card("global", "p"))
    assert files(recorded / "mlruns" / "artifacts") == before
    shutil.rmtree(recorded)
    first = (copy / "run").read_text()
    for run_id, version in ((first, "1"), (record.run_id, "2")):
        assert load_model(run_id, root=copy) is not None
        found = open_store(copy).client().get_model_version("p.fedavg", version)
        assert mlflow.pyfunc.load_model(found.source).metadata.run_id == run_id
    assert open_store(copy).client().list_artifacts(first)


def test_a_renamed_project_resumes_after_its_store_is_moved(recorded, tmp_path, rounds):
    with pytest.raises(KeyboardInterrupt), open_run(recorded, **RUN | {"key": "cut"}) as record:
        raise KeyboardInterrupt
    renamed = recorded.rename(tmp_path / "renamed")
    assert move_store(renamed)[1] == renamed / "mlruns" / "artifacts"
    with open_run(renamed, **RUN | {"key": "cut"}) as again:
        again.round(rounds[4])
        again.fail("enough")
    assert again.run_id == record.run_id and not recorded.exists()


def test_artifacts_that_were_left_behind_are_named(recorded, tmp_path):
    copy = tmp_path / "copy" / "mlruns"
    copy.mkdir(parents=True)
    shutil.copy(recorded / "mlruns" / "mlflow.db", copy)
    with refused(r"still in .*original.*/artifacts; copy them to .*copy/mlruns", FedflowError):
        move_store(tmp_path / "copy")


FOLDERS = ("my%20project", "100%41", "a#b", "a;b&c+d:e@f='g'", 'a "b"\n\tc', "[x]*\\")


@pytest.mark.parametrize("name", FOLDERS)
def test_a_project_in_a_folder_with_any_name_has_a_record_inside(root, tmp_path, outcome, card, name):
    import mlflow

    neighbor = with_store(tmp_path / unquote(name), root) if "%" in name else tmp_path
    project, before = with_store(tmp_path / name, root), files(tmp_path)
    with open_run(project, **RUN) as record:
        finish(record, outcome("global"), card=card("global", "p"))
    assert load_model(record.run_id, root=project) is not None
    api = open_store(project).client()
    found = api.get_model_version_by_alias("p.fedavg", "newest")
    if "%" not in name:  # which MLflow's own loader decodes twice
        assert mlflow.pyfunc.load_model(found.source).metadata.run_id == record.run_id
    assert all(file.startswith(f"{name}/mlruns/") for file in files(tmp_path) - before)
    if neighbor != tmp_path:
        with refused(f"no run '{record.run_id}'", FedflowError):
            load_model(record.run_id, root=neighbor)


def test_a_store_is_made_in_a_folder_whose_name_must_be_quoted(tmp_path, real):
    project = tmp_path / "a;b%20c"
    with real():
        assert open_store(project).uri.startswith("sqlite+pysqlite:///")
    assert open_store(project) == open_store(project)
    assert [path.name for path in tmp_path.iterdir()] == ["a;b%20c"]
    assert (project / "mlruns" / "mlflow.db").stat().st_size > 100_000


def test_a_question_mark_in_a_path_is_refused(tmp_path):
    """SQLAlchemy 2.1 opens it, with which no schedule of Prefect fires."""
    with refused("mlflow.db: SQLAlchemy before 2.1 cannot open a path with '[?]'", FedflowError):
        open_store(tmp_path / "a?b")


def test_two_slashes_at_the_start_of_a_path_name_no_host(root, tmp_path):
    assert tracking_uri(f"/{tmp_path}") == tracking_uri(tmp_path)


def test_a_folder_that_mlflow_cannot_name_is_one_line_and_stays_empty(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff"))
    folder.mkdir()
    with refused(r"/a\\udcff: the byte 0xff is not UTF-8", FedflowError):
        open_store(folder)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "uri",
    [
        "http://ada:secret@127.0.0.1:9",
        "http://ada:se%2Fcr@127.0.0.1:9/x",
        "foo://ada:secret@h/x?password=secret",
    ],
)
def test_no_message_holds_a_password(tmp_path, monkeypatch, uri):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(FedflowError) as error:
        open_store(tmp_path)
    assert not re.search("secret|se%2Fcr", str(error.value)) and "MLflow store" in str(error.value)


@pytest.mark.parametrize(
    "uri",
    [
        "mysql+pymysql://h/runs?user=ada&passwd=secret&charset=utf8",
        "mssql+pyodbc:///?odbc_connect=SERVER%3Dh%3BPWD%3Dsecret",
        "cannot connect with SERVER=h;PWD=secret;",
    ],
)
def test_other_names_of_a_password_are_hidden(uri):
    assert "secret" not in shown(uri) and ("charset=utf8" in shown(uri)) == ("charset" in uri)


def test_a_server_is_asked_with_the_certificates_of_mlflow(tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://host")
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", "authority.pem")
    monkeypatch.setenv("MLFLOW_TRACKING_CLIENT_CERT_PATH", "mine.pem")
    monkeypatch.setattr(
        "requests.get", lambda url, **given: asked.update(given) or SimpleNamespace(status_code=200)
    )
    open_store(tmp_path)
    assert (asked["verify"], asked["cert"]) == ("authority.pem", "mine.pem")
    monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_SERVER_CERT_PATH")
    open_store(tmp_path)
    assert asked["verify"] is False


@pytest.mark.parametrize(
    "error",
    [
        SafetensorError("IoError: No space left on device"),
        ModuleNotFoundError("No module named 'boto3'"),
        type("NoCredentialsError", (Exception,), {"__module__": "botocore.exceptions"})("no credentials"),
    ],
)
def test_errors_of_artifacts_are_one_line(error):
    with refused("^MLflow store s: .*(space|boto3|credentials)", FedflowError), reporting("s"):
        raise error
    with pytest.raises(RuntimeError, match="a defect"), reporting("s"):
        raise RuntimeError("a defect")


def test_a_link_from_the_old_place_to_the_new_one_will_do(recorded, tmp_path):
    recorded.rename(tmp_path / "renamed")
    recorded.symlink_to(tmp_path / "renamed")
    check_store(tmp_path / "renamed")


def test_artifacts_that_somebody_put_elsewhere_are_no_move(recorded, tmp_path):
    api = open_store(recorded).client()
    shared = tmp_path / "artifacts"  # as of a server: by number
    for name, place in (("bucket", "s3://bucket/artifacts/bucket"), ("shared", (shared / "7").as_uri())):
        api.create_experiment(name, place)
    check_store(recorded)


def test_without_a_database_there_is_nothing_to_move(tmp_path, monkeypatch):
    with refused("no SQLite database to move", FedflowError):
        move_store(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with refused("no SQLite database to move", FedflowError):
        move_store(tmp_path)


def test_a_file_that_is_no_database_is_one_line(tmp_path):
    (tmp_path / "mlruns").mkdir()
    (tmp_path / "mlruns" / "mlflow.db").write_bytes(b"\xff" * 5000)
    with refused(r"^MLflow store .*: file is not a database$", FedflowError):
        open_store(tmp_path)


def test_a_database_of_another_program_is_refused_unchanged(tmp_path):
    file = tmp_path / "mlruns" / "mlflow.db"
    file.parent.mkdir()
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE photos (name TEXT)")
    before = file.read_bytes()
    for use in (open_store, check_store, move_store, lambda root: open_run(root, **RUN)):
        with refused(r"a SQLite database of another program \(tables: photos\)$", FedflowError):
            use(tmp_path)
    assert file.read_bytes() == before
