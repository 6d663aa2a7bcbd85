"""Divisions that are given as lists of rows: their forms, what is refused, and exact round trips."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from dealing import make
from support import refused
from typer.testing import CliRunner

import fedflow as ff
from fedflow.cli import app
from fedflow.config import load_params
from fedflow.data import DatasetParams, load_prepared, prepare
from fedflow.errors import FedflowError
from fedflow.partition import PartitionParams, Samples, load_partition, make_partition
from fedflow.partition.lists import FORMS, TRAIN_ONLY
from fedflow.stages.partition import partition_identity, prepare_partition

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "given.md").read_text()
SAMPLES = Samples(np.arange(20) % 4, np.arange(12) % 4)
TRAIN, TEST = [[0, 1, 4], [2, 3], [10]], [[5, 0], [0, 1, 5], [7]]
HELD = [{"train": [0, 1], "val": [2], "test": [3]}, {"train": [5], "val": [6], "test": [3, 7]}]
HELD_TWICE = {"train": [[0], [3]], "test": [[3], [4]], "test_rows": "train"}


def given(rows: Any = None, samples: Samples = SAMPLES, **more: Any) -> Any:
    return make(samples, "given", **({} if rows is None else {"rows": rows}), **more)


def rows_of(made: Any) -> tuple[list, list]:
    clients = range(len(made.sizes))
    return [made.train(k).tolist() for k in clients], [made.test(k).tolist() for k in clients]


@pytest.mark.parametrize(
    "rows",
    [
        {"train": TRAIN, "test": TEST},
        {"train": dict(enumerate(TRAIN)), "test": dict(enumerate(TEST))},
        [{"train": a, "test": b} for a, b in zip(TRAIN, TEST)],
        {
            2: {"train": TRAIN[2], "test": TEST[2]},
            0: {"train": TRAIN[0], "test": TEST[0]},
            1: {"train": TRAIN[1], "test": TEST[1]},
        },
        {"data_indices": [{"train": np.array(a), "test": b, "val": []} for a, b in zip(TRAIN, TEST)]},
        {
            "train": tuple(map(np.array, TRAIN)),
            "test": [np.array(part) for part in TEST],
            "test_rows": "test",
        },
    ],
)
def test_every_form_names_the_same_rows(rows):
    made = given(rows)
    assert rows_of(made) == (TRAIN, [sorted(part) for part in TEST])
    assert sorted(made.pool_indices.tolist()) == [0, 1, 5, 7] and not made.held_out  # pools are disjoint
    assert made.facts["samples_unused"] == 14 and made.selection(0) is None
    assert made.hash == given({"train": TRAIN, "test": TEST}).hash


def test_clients_without_test_rows_are_tested_on_their_labels():
    for rows in (
        TRAIN,
        {0: TRAIN[0], 1: TRAIN[1], 2: TRAIN[2]},
        {str(k): np.array(part) for k, part in enumerate(TRAIN)},
    ):
        train, test = rows_of(given(rows))
        assert train == TRAIN and test == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11], [2, 6, 10]]


def test_names_that_are_numbers_are_sorted_as_numbers():
    assert rows_of(given({str(k): [k] for k in range(11, -1, -1)}))[0] == [[k] for k in range(12)]
    assert rows_of(given({"b": [3], "a": [4]}))[0] == [[3], [4]]


def test_clients_of_all_parts_are_matched_by_their_names():
    named = given({"train": {"b": [0], "a": [1]}, "test": {"a": [5], "b": [6]}})
    listed = given({"train": [[0], [1]], "test": [[6], [5]]})
    assert named.hash == listed.hash


def test_held_out_and_validation_rows_are_training_samples():
    made = given(HELD, test_rows="train")
    assert made.held_out and rows_of(made) == ([[0, 1], [5]], [[3], [3, 7]])
    assert [made.selection(k).tolist() for k in range(2)] == [[2], [6]]
    assert made.facts["samples_unused"] == 20 - 7
    with refused(
        "partition.holdout: 0.5 is not accepted; expected 0, because the scheme holds out samples itself"
    ):
        given(HELD, test_rows="train", holdout=0.5)
    with refused("partition.selection: 0.5 is not accepted; expected 0, because the scheme holds out"):
        given(HELD, test_rows="train", selection=0.5)
    with refused("partition.public: 3 is not accepted; expected 0, because the scheme names the rows"):
        given(TRAIN, public=3)


def test_models_are_selected_on_validation_rows():
    rows = [{"train": range(k, 900, 3), "val": range(900 + k, 1000, 3)} for k in range(3)]
    flis = {"method": "flis_dc", "select_on": "heldout", "public": "digits"}
    run = ff.run("digits", rows, flis, rounds=1, progress=False)
    assert run.partition.selection(1).tolist() == list(range(901, 1000, 3))
    with refused(
        "partition.selection: 0 is not accepted; expected a share > 0, as flis_dc needs held-out samples"
    ):
        ff.run("digits", [one["train"] for one in rows], flis, rounds=1, progress=False)
    with refused("partition.selection: 0 is not accepted"):
        ff.run("digits", ff.given(rows=[one["train"] for one in rows]), flis, rounds=1, progress=False)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0, 1], [20]], "row 20 of client 1 is not accepted; .* rows of the training samples, 0 to 19"),
        ([[0, -1], [2]], "row -1 of client 0 is not accepted"),
        ([[0, 1], [1, 2]], "row 1 is not accepted; expected one client; clients 0 and 1 have it"),
        ([[0, 0], [2]], "row 0 of client 0 is not accepted; expected every row once"),
        ([[0], []], "client 1 without training rows is not accepted; expected one row or more"),
        ([[0.5], [1]], "train of client 0 holds no list of whole numbers"),
        ([[True], [False]], "train of client 0 holds no list of whole numbers"),
        ([["a"]], "train of client 0 holds no list of whole numbers"),
        ([[[1]]], "train of client 0 holds no list of whole numbers"),
        ({"train": [[0]], "test": [[1], [2]]}, "needs `train`, and the same clients in every part"),
        ({"test": [[0]]}, "needs `train`, and the same clients in every part"),
        ({"train": [[0]], "test": [[12]]}, "row 12 of client 0 .* rows of the test samples, 0 to 11"),
        (HELD_TWICE, "row 3 .* client 1 trains on it, client 0 has it for testing"),
        ({"train": [[0]], "validation": [[0]]}, "row 0 .* client 0 trains on it, client 0 has it for val"),
        ({"train": [[0], [1]], "validation": [[2], []]}, "client 1 without validation rows .* one row"),
        ([{"train": [0], "tset": [1]}], "a client has train, tset; needs `train`, perhaps `test` and `val`"),
        ({1: [0], "1": [1]}, "has two clients of one name, as numbers count as text"),
        ([], "no client is not accepted; expected the rows of one client or more"),
        ({"train": [[0]], "test": [[1]], "test_rows": "all"}, "test_rows is 'all'; needs test or train"),
    ],
)
def test_what_is_no_division_is_refused_by_client_and_row(rows, message):
    with refused(f"partition.rows: .*{message}", FedflowError):
        given(rows)


def test_settings_that_do_not_fit_are_refused():
    with refused("partition.holdout: 0.5 is not accepted; expected 0, because the scheme names test rows"):
        given({"train": TRAIN, "test": TEST}, holdout=0.5)
    with refused("partition.test_rows: 'train' is not accepted; expected null, its .*, without test rows"):
        given(TRAIN, test_rows="train")
    with refused("partition.clients: 4 is not accepted; expected 3 or null, as many as are given"):
        given(TRAIN, clients=4)
    with refused("partition.path: None is not accepted; expected a file, or null with partition.rows"):
        given()
    with refused("partition.path: 'no.json' is not accepted; expected a file or folder"):
        given(path="no.json")


def test_files_of_every_kind(tmp_path):
    samples = Samples(SAMPLES.labels, SAMPLES.test_labels, root=tmp_path)
    (tmp_path / "a.json").write_text(json.dumps({"train": TRAIN, "test": TEST}))
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({0: TRAIN[0], 1: TRAIN[1], 2: TRAIN[2]}))
    parts = {"train": TRAIN, "test": TEST}
    np.savez(
        tmp_path / "a.npz",
        **{f"{name}_{k}": rows for name, part in parts.items() for k, rows in enumerate(part)},
    )
    np.savez(tmp_path / "b.npz", **{str(k): np.array(rows) for k, rows in enumerate(TRAIN)})
    long = [(k, name, row) for name, part in parts.items() for k, rows in enumerate(part) for row in rows]
    pd.DataFrame(long, columns=["client", "split", "row"]).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame(parts).to_parquet(tmp_path / "b.parquet")
    flwr = [(k, row) for k, rows in enumerate(TRAIN) for row in rows]
    pd.DataFrame(flwr, columns=["partition_id", "row"]).to_parquet(tmp_path / "c.parquet")
    with_tests = ["a.json", "a.npz", "a.parquet", "b.parquet"]
    for name in [*with_tests, "a.yaml", "b.npz", "c.parquet"]:
        train, test = rows_of(given(path=name, samples=samples))
        assert train == TRAIN and (name not in with_tests or test == [sorted(part) for part in TEST]), name


def test_files_that_are_none_are_refused_in_one_line(tmp_path):
    samples = Samples(SAMPLES.labels, SAMPLES.test_labels, root=tmp_path)

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Evil()))
    np.savez(tmp_path / "evil.npz", train_0=np.array([Evil()], object))
    (tmp_path / "cut.json").write_text('{"train": [[0')
    (tmp_path / "text.json").write_text('"all"')
    np.savez(tmp_path / "other.npz", x_train=[0], y=[1])
    pd.DataFrame({"client": [0]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"client": [0, 1], "row": [0, 1], "split": ["train", None]}).to_parquet(
        tmp_path / "b.parquet"
    )
    (tmp_path / "pfl" / "train").mkdir(parents=True)
    np.savez(tmp_path / "pfl" / "train" / "0.npz", data=np.array({"x": 1}))
    for name, message in (
        ("a.pkl", "a.pkl: needs a file .json, .*; a pickle can run any code: docs/howto/given.md"),
        ("evil.npz", "evil.npz: cannot be read: "),
        ("cut.json", "cut.json: cannot be read: "),
        ("text.json", "text.json: cannot be read: holds str; needs rows by client"),
        ("other.npz", "other.npz: cannot be read: holds '.*'; needs arrays train_0, test_0"),
        ("a.parquet", "has the columns client; needs client and row, or train and test"),
        ("b.parquet", "b.parquet: cannot be read: has no split in row 2"),
        ("pfl", "0.npz: cannot be read: has samples, not `rows`; docs/howto/files.md"),
    ):
        with refused(message, FedflowError):
            given(path=name, samples=samples)
    assert not (tmp_path / "owned").exists()


PROJECT = """
data: {digits: {source: digits}, all: {source: mix, parts: [{source: digits}], merge: true}}
models: {digits: {name: linear}, all: {name: linear}}
partitions:
  skewed: {dataset: digits, scheme: dirichlet, alpha: 0.5, clients: 5, min_size: 5}
  held: {dataset: digits, scheme: iid, clients: 3, holdout: 0.3, selection: 0.2}
  tested: {dataset: all, scheme: iid, clients: 3, holdout: 0.25}
  changed: {dataset: digits, scheme: iid, clients: 3, holdout: 0.2, feature_noise: {sigma: 0.1}}
  noisy: {dataset: digits, scheme: iid, clients: 3, label_noise: {kind: pair, ratio: 0.4}}
  again: {dataset: digits, scheme: given, path: clients.json}
grid: {datasets: [digits], partitions: [skewed], methods: [fedavg], seeds: [0]}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    (root / "params.yaml").write_text(PROJECT)
    return root


def export(project: Path, *words: str) -> Any:
    return CliRunner().invoke(app, ["partitions", "export", *words, "--root", str(project)])


@pytest.mark.parametrize("name", ["skewed", "held", "tested"])
@pytest.mark.parametrize(
    ("form", "out"),
    [
        ("lists", "a.json"),
        ("lists", "a.yaml"),
        ("lists", "a.npz"),
        ("lists", "a.parquet"),
        ("fl-bench", "b.json"),
        ("fedlab", "c.json"),
        ("niid-bench", "c.yaml"),
        ("flwr", "c.json"),
        ("pfllib", "folder"),
    ],
)
def test_a_round_trip_is_exact(project, name, form, out):
    out = f"{name}-{form}-{out}"
    done = export(project, name, out, "--form", form)
    refusing = name != "skewed" and (form in TRAIN_ONLY or (name == "held" and form == "pfllib"))
    assert (done.exit_code != 0) == refusing, done.output
    if refusing:
        return
    first = load_partition(project / "data" / "partitions" / name)
    data = "all" if name == "tested" else "digits"
    (project / "params.yaml").write_text(
        PROJECT.replace("digits, scheme: given, path: clients.json", f"{data}, scheme: given, path: {out}")
    )
    again = load_partition(prepare_partition(load_params(project / "params.yaml"), "again", project))
    assert rows_of(again) == rows_of(first) and again.held_out == first.held_out
    assert [again.selection(k) is None for k in range(3)] == [first.selection(k) is None for k in range(3)]
    if first.selection(0) is not None:
        assert all(np.array_equal(again.selection(k), first.selection(k)) for k in range(3))


def test_pfllib_gets_the_samples(project):
    assert export(project, "skewed", "pfl", "--form", "pfllib").exit_code == 0
    made = load_partition(project / "data" / "partitions" / "skewed")
    data = load_prepared(project / "data" / "prepared" / "digits")
    for part, rows, y in (("train", made.train(2), data.y_train), ("test", made.test(2), data.y_test)):
        with np.load(project / "pfl" / part / "2.npz", allow_pickle=True) as archive:
            client = archive["data"].tolist()  # as PFLlib's utils/data_utils.py does
        assert client["y"].tolist() == y[rows.tolist()].tolist() and client["x"].shape[1:] == (1, 8, 8)


def test_fl_bench_finds_the_test_samples_after_the_training_samples(project):
    assert export(project, "skewed", "bench.json", "--form", "fl-bench").exit_code == 0
    written = json.loads((project / "bench.json").read_text())["data_indices"][2]
    made = load_partition(project / "data" / "partitions" / "skewed")
    data = load_prepared(project / "data" / "prepared" / "digits")
    together = np.concatenate([data.y_train, data.y_test])
    assert together[written["test"]].tolist() == data.y_test[made.test(2).tolist()].tolist()
    assert written["train"] == made.train(2).tolist()
    pooled = Samples(together, root=project)  # with `merge`
    again = given(path="bench.json", samples=pooled, test_rows="train")
    assert again.test(2).tolist() == written["test"]
    with refused("first_test_row is '9'; needs a whole number", FedflowError):
        given({"data_indices": [{"train": [0], "test": [9]}], "first_test_row": "9"})


def test_changed_inputs_are_left_out_of_lists_and_refused_for_samples(project):
    done = export(project, "changed", "changed.json")
    assert "left out, because lists of rows cannot hold them: feature_noise" in done.output
    done = export(project, "changed", "changed", "--form", "pfllib")
    assert "because feature_noise changes clients' samples" in f"{done.exception}"


def test_what_lists_cannot_hold_is_said(project):
    for words, message in (
        (("noisy", "n.json"), "the scheme changes labels, which lists of rows cannot hold"),
        (("skewed", "n.csv"), "a file that ends in .json, .yaml, .yml, .npz, .parquet, for the form lists"),
        (
            ("skewed", "n.npz", "--form", "fl-bench"),
            "a file that ends in .json, .yaml, .yml, for the form fl-bench",
        ),
        (("skewed", "n.json", "--form", "pfllib"), "a folder, for the form pfllib"),
        (("skewed", "n.json", "--form", "flbench"), "fl-bench"),
        (
            ("held", "n.json", "--form", "fedlab"),
            "form: 'fedlab' is not accepted; expected lists or fl-bench",
        ),
    ):
        done = export(project, *words)
        assert done.exit_code != 0 and message in f"{done.output} {done.exception}", words


def test_a_file_that_changes_makes_the_partition_again(tmp_path):
    (tmp_path / "params.yaml").write_text(PROJECT)
    (tmp_path / "clients.json").write_text(json.dumps(TRAIN))
    prepare(DatasetParams(source="digits"), tmp_path / "data" / "prepared" / "digits")
    params = load_params(tmp_path / "params.yaml")
    keys = [partition_identity(params, "again", tmp_path).key]
    assert load_partition(prepare_partition(params, "again", tmp_path)).sizes.tolist() == [3, 2, 1]
    (tmp_path / "clients.json").write_text(json.dumps([[1], [2]]))
    keys.append(partition_identity(params, "again", tmp_path).key)
    assert load_partition(prepare_partition(params, "again", tmp_path)).sizes.tolist() == [1, 1]
    (tmp_path / "clients.json").unlink()
    for part in ("train", "test"):
        (tmp_path / "clients.json" / part).mkdir(parents=True)
        np.savez(tmp_path / "clients.json" / part / "0.npz", rows=[4])
    keys.append(partition_identity(params, "again", tmp_path).key)
    assert len(set(keys)) == 3


def test_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDFLOW_CACHE", str(tmp_path / "cache"))
    Path("clients.json").write_text(json.dumps([list(range(9)), list(range(20, 40))]))
    first, second = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    digits = Samples(np.arange(1438) % 10, np.arange(359) % 10)
    made = {
        name: make_partition(PartitionParams.parse(entry), digits)
        for name, entry in yaml.safe_load(first).items()
    }
    assert {name: one.sizes.tolist() for name, one in made.items()} == {
        "same": [9, 20],
        "small": [3, 4],
        "tested": [3, 2],
        "held": [2, 1],
    }
    assert made["held"].held_out and rows_of(made["tested"])[1] == [[0, 1], [1, 2]]
    code, convert = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    known: dict = {}
    exec(compile(code, "given.md", "exec"), known)
    assert known["run"].partition.sizes.tolist() == [300, 200, 400]
    assert known["run"].settings["partition"]["scheme"] == "given"
    assert ff.run("digits", known["from_file"], rounds=1, progress=False).partition.sizes.tolist() == [9, 20]
    first_client = {"train": np.arange(9), "val": np.array([], int), "test": np.array([1500, 1501])}
    second_client = {"train": np.arange(1440, 1450), "val": [], "test": np.array([30])}
    flbench = {"separation": {"train": [0, 1]}, "data_indices": [first_client, second_client]}
    Path("partition.pkl").write_bytes(pickle.dumps(flbench))
    exec(compile(convert, "given.md", "exec"), {})
    settings = yaml.safe_load(second)
    data = prepare(DatasetParams.parse(settings["data"]["all"]), tmp_path / "all")
    assert data.notes[-1] == "359 test samples were added after the 1438 training samples (data.merge)"
    assert data.y_train[1438:].tolist() == data.y_test.tolist() and len(data.columns["domain"].train) == 1797
    division = make_partition(PartitionParams.parse(settings["partitions"]["flbench"]), Samples.of(data))
    assert (
        division.held_out and rows_of(division)[1] == [[1500, 1501], [30]] and division.selection(0) is None
    )
    with refused("partition.holdout: 0.0 .* the test samples are training samples too"):
        make_partition(
            PartitionParams.parse({"dataset": "all", "scheme": "iid", "clients": 2}), Samples.of(data)
        )
    commands = re.search(r"```bash\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()
    assert all(line.split()[:3] == ["fedflow", "partitions", "export"] for line in commands)
    assert {*re.findall(r"--form (\S+)", PAGE.replace("`", " "))} <= {*FORMS}


def test_a_recorded_run_has_the_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFLOW_CACHE", str(tmp_path / "cache"))
    run = ff.run(
        "digits",
        {0: range(0, 90), 1: range(90, 200)},
        "fedavg",
        rounds=1,
        progress=False,
        record=tmp_path / "study",
    )
    entry = yaml.safe_load((tmp_path / "study" / "params.yaml").read_text())["partitions"]["digits-given"]
    assert entry["scheme"] == "given" and entry["rows"]["1"] == list(range(90, 200))
    assert run.partition.sizes.tolist() == [90, 110]


def test_clients_of_pfllib_are_in_the_order_of_their_names(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        for k in (1, 2, 0):
            np.savez(tmp_path / part / f"{'abc'[k]}.npz", rows=[k])
    made = given(path=str(tmp_path))
    assert rows_of(made) == ([[0], [1], [2]], [[0], [1], [2]])
