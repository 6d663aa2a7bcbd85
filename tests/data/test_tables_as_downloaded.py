"""Tables of the UCI repository, as they are downloaded: the first lines of their files, several times."""

import re
from pathlib import Path

import mlxtend.data
import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from support import refused

import fedflow as ff
from fedflow.data import DatasetParams, load_prepared, prepare
from fedflow.data.files import RawData
from fedflow.data.transform import transformed
from fedflow.errors import FedflowError

ADULT = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K
50, Self-emp-not-inc, 83311, Bachelors, 13, Married-civ-spouse, Exec-managerial, Husband, White, Male, 0, 0, 13, United-States, <=50K
38, Private, 215646, HS-grad, 9, Divorced, Handlers-cleaners, Not-in-family, White, Male, 0, 0, 40, United-States, <=50K
53, Private, 234721, 11th, 7, Married-civ-spouse, Handlers-cleaners, Husband, Black, Male, 0, 0, 40, United-States, <=50K
28, Private, 338409, Bachelors, 13, Married-civ-spouse, Prof-specialty, Wife, Black, Female, 0, 0, 40, Cuba, <=50K
52, Self-emp-not-inc, 209642, HS-grad, 9, Married-civ-spouse, Exec-managerial, Husband, White, Male, 0, 0, 45, United-States, >50K
31, Private, 45781, Masters, 14, Never-married, Prof-specialty, Not-in-family, White, Female, 14084, 0, 50, United-States, >50K
54, ?, 180211, Some-college, 10, Married-civ-spouse, ?, Husband, Asian-Pac-Islander, Male, 0, 0, 60, South, >50K
"""  # noqa: E501
ADULT_TEST = """\
|1x3 Cross validator
25, Private, 226802, 11th, 7, Never-married, Machine-op-inspct, Own-child, Black, Male, 0, 0, 40, United-States, <=50K.
38, Private, 89814, HS-grad, 9, Married-civ-spouse, Farming-fishing, Husband, White, Male, 0, 0, 50, United-States, <=50K.
28, Local-gov, 336951, Assoc-acdm, 12, Married-civ-spouse, Protective-serv, Husband, White, Male, 0, 0, 40, United-States, >50K.
"""  # noqa: E501
BANK = """\
"age";"job";"marital";"education";"default";"balance";"housing";"loan";"contact";"day";"month";"duration";"campaign";"pdays";"previous";"poutcome";"y"
58;"management";"married";"tertiary";"no";2143;"yes";"no";"unknown";5;"may";261;1;-1;0;"unknown";"no"
44;"technician";"single";"secondary";"no";29;"yes";"no";"unknown";5;"may";151;1;-1;0;"unknown";"no"
33;"entrepreneur";"married";"secondary";"no";2;"yes";"yes";"unknown";5;"may";76;1;-1;0;"unknown";"no"
59;"admin.";"married";"secondary";"no";2343;"yes";"no";"unknown";5;"may";1042;1;-1;0;"unknown";"yes"
56;"admin.";"married";"secondary";"no";45;"no";"no";"unknown";5;"may";1467;1;-1;0;"unknown";"yes"
"""
HEART = """\
63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0
67.0,1.0,4.0,160.0,286.0,0.0,2.0,108.0,1.0,1.5,2.0,3.0,3.0,2
67.0,1.0,4.0,120.0,229.0,0.0,2.0,129.0,1.0,2.6,2.0,2.0,7.0,1
53.0,0.0,3.0,128.0,216.0,0.0,2.0,115.0,0.0,0.0,1.0,0.0,?,0
52.0,1.0,3.0,138.0,223.0,0.0,0.0,169.0,0.0,0.0,1.0,?,3.0,0
"""
CARS = """\
18.0   8   307.0      130.0      3504.      12.0   70  1\t"chevrolet chevelle malibu"
15.0   8   350.0      165.0      3693.      11.5   70  1\t"buick skylark 320"
24.0   4   113.0      95.00      2372.      15.0   70  3\t"toyota corona mark ii"
26.0   4   97.00      46.00      1835.      20.5   70  2\t"volkswagen 1131 deluxe sedan"
25.0   4   98.00      ?          2046.      19.0   71  1\t"ford pinto"
"""
PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "tables.md").read_text().split("## Start from")[0]
(SETTINGS,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Reads one of the tables by its entry of params.yaml, with changes."""
    monkeypatch.chdir(tmp_path)
    Path("adult.data").write_text(ADULT * 5)
    Path("adult.test").write_text(ADULT_TEST)
    Path("bank-full.csv").write_text(BANK + BANK.split("\n", 1)[1] * 9)
    Path("processed.cleveland.data").write_text(HEART * 9)
    Path("auto-mpg.data").write_text(CARS * 9)

    def load(name: str, **changes) -> RawData:
        entry = yaml.safe_load(SETTINGS)[name] | changes
        return transformed(DatasetParams.parse({k: v for k, v in entry.items() if v is not None}))

    return load


def test_every_entry_has_at_most_five_lines():
    entries = SETTINGS.strip().replace("\n  ", "\n\t").split("\n")
    starts = [i for i, line in enumerate(entries) if not line.startswith("\t")]
    assert max(np.diff([*starts, len(entries)])) <= 5


def test_adult_with_its_own_test_file(read):
    raw = read("adult")
    assert raw.classes == ("<=50K", ">50K") and raw.y_test.tolist() == [0, 0, 1]
    assert raw.x_train.shape == (40, 6 + 4 + 5 + 3 + 5 + 3 + 3 + 2 + 3) and len(raw.x_test) == 3
    assert raw.encoding.inputs[1:5] == ["workclass=?", "workclass=Private", "workclass=Self-emp-not-inc",
                                        "workclass=State-gov"]  # fmt: skip
    assert raw.x_train[7, 1:5].tolist() == [1, 0, 0, 0] and raw.x_test[2, 1:5].tolist() == [0, 0, 0, 0]
    first, second = raw.notes
    assert first.startswith("14 features: age, workclass, ") and first.endswith("(2 classes: <=50K, >50K)")
    assert "one-hot: workclass (4), education (5), " in second and second.endswith("34 inputs")
    assert "only in test rows, so of no category: workclass (Local-gov), education (Assoc-acdm)" in second
    marked = read("adult", marks=["?"], missing="category")
    assert (
        "workclass=(missing)" in marked.encoding.inputs
        and "missing values (category): workclass (5)" in (marked.notes[1])
    )
    dropped = read("adult", marks=["?"], missing="drop")
    assert len(dropped.x_train) == 35 and "left out: 5 of 43 rows, with missing values" in dropped.notes[1]


def test_bank_is_separated_by_semicolons(read):
    raw = read("bank")
    assert raw.classes == ("no", "yes") and len(raw.x_train) + len(raw.x_test) == 50
    assert "job=admin." in raw.encoding.inputs and "16 features: age, job, marital" in raw.notes[0]
    with refused("columns are separated by ';'; set data.separator: semicolon", FedflowError):
        read("bank", separator="comma")


def test_heart_has_missing_values_and_numbers_that_are_categories(read):
    raw = read("heart")
    assert raw.classes == ("0", "1", "2")
    ca = raw.encoding.inputs.index("ca")
    whole = np.concatenate([raw.x_train, raw.x_test])[:, ca]
    values = np.sort(np.unique(whole))  # of 0, the median where one is missing, 2 and 3
    assert len(values) == 3 or (len(values) == 4 and raw.encoding.features[11].fill not in (0, 2, 3))
    assert "cp=1" in raw.encoding.inputs and "thal=(missing)" in raw.encoding.inputs
    assert "missing values (median): ca (9), thal (9)" in raw.notes[1]
    with refused("'ca' .'.' in row 5.; list them in data.ignore, set data.missing, or name", FedflowError):
        read("heart", missing=None, encode=None, categories=None, ignore=["thal"])


def test_cars_are_separated_by_spaces(read):
    raw = read("cars")
    assert (
        raw.y_train.dtype == np.float32
        and "origin=3" in raw.encoding.inputs
        and len(raw.encoding.inputs) == 9
    )
    with refused("data.names has 8", FedflowError):
        read("cars", names=list("abcdefgh"), target="a", categories=None, encode=None, ignore=None)
    with refused("needs the names of the columns in its first line.*; set data.names", FedflowError):
        read("cars", names=None)
    counted = read("cars", names="numbers", target="0", categories=["7"], ignore=["8"])
    np.testing.assert_array_equal(counted.x_train, raw.x_train)


@pytest.mark.parametrize("encode", ["onehot", "codes"])
@pytest.mark.parametrize("missing", ["mean", "median", "category"])
def test_inputs_are_those_of_scikit_learn(tmp_path, encode, missing):
    """Fitted on the training rows only, although half of the rows are for testing."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"a": rng.gamma(1, size=80), "b": rng.normal(size=80), "c": rng.choice(list("pqr"), 80)}
    )
    table.loc[rng.random(80) < 0.3, "a"] = np.nan
    table["part"], table["label"] = ["train", "test"] * 40, rng.integers(0, 2, 80)
    table.loc[1, "c"] = "s"  # of a test row
    table.to_csv(tmp_path / "t.csv", index=False)
    entry = {"source": "table", "path": str(tmp_path / "t.csv"), "target": "label", "split": "part"}
    raw = transformed(DatasetParams.parse(entry | {"encode": encode, "missing": missing}))
    fill = SimpleImputer(strategy="median" if missing == "median" else "mean")
    numbers = make_pipeline(fill, StandardScaler())
    lacks = make_pipeline(SimpleImputer(add_indicator=True), "passthrough")
    if encode == "onehot":
        text = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    else:
        ranks = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
        text = make_pipeline(ranks, StandardScaler())
    reference = ColumnTransformer(
        [("a", numbers, ["a"]), ("m", lacks, ["a"]), ("b", numbers, ["b"]), ("c", text, ["c"])]
    )
    train, test = table[table["part"] == "train"], table[table["part"] == "test"]
    for found, expected in (
        (raw.x_train, reference.fit_transform(train)),
        (raw.x_test, reference.transform(test)),
    ):
        keep = [0, 2, 3] if missing == "category" else [0, 3]  # 1 is the number of lacks before scaling
        np.testing.assert_allclose(found, expected[:, [*keep, *range(4, expected.shape[1])]], atol=1e-5)


def test_the_prepared_data_turn_new_rows_into_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(
        "pay,town,who,kind\n" + "1.5,Ulm,a,x\n2.5,Rome,b,y\n?,Oslo,a,y\n4.0,Ulm,b,x\n" * 9
    )
    entry = {"source": "table", "path": "t.csv", "target": "kind", "encode": "onehot", "missing": "category"}
    for more in ({}, {"user": "who", "within": "user"}):
        data = prepare(
            DatasetParams.parse(entry | {"ignore": [] if more else ["who"]} | more), tmp_path / "made"
        )
        kept = load_prepared(tmp_path / "made").encoding
        assert kept == data.encoding and kept.inputs == [
            "pay",
            "pay=(missing)",
            "town=Oslo",
            "town=Rome",
            "town=Ulm",
        ]
        rows = pd.read_csv("t.csv")
        found = {tuple(row) for row in np.round(kept.encode(rows), 5)}
        assert found == {tuple(row) for row in np.round(np.concatenate([data.x_train, data.x_test]), 5)}
    with refused("column who: 'c' is not accepted; expected one of a, b"):
        kept.encode(rows.assign(who="c"))
    with refused("rows: a table without 'pay' is not accepted"):
        kept.encode(rows.drop(columns="pay"))
    with refused("column pay: '1,000' in row 1 is not accepted; expected numbers"):
        kept.encode(rows.assign(pay="1,000"))
    strange = kept.encode(pd.DataFrame({"pay": [np.nan], "town": ["Bonn"], "who": ["a"]}))
    assert strange[0, 1:].tolist() == [1, 0, 0, 0]


TEXT = "pay,when,place,label\n" + "".join(
    f'"{i % 7 + 1}.{i % 9}00,5",2024-01-{i % 28 + 1:02d},Köln,{i % 2}\n' for i in range(60)
)


def test_marks_of_thousands_decimals_dates_and_encodings_are_settings(tmp_path):
    (tmp_path / "t.csv").write_bytes(TEXT.encode("latin-1"))
    entry = {"source": "table", "path": str(tmp_path / "t.csv"), "target": "label"}

    def load(**more) -> RawData:
        return transformed(DatasetParams.parse(entry | more))

    with refused("is not in utf-8; set data.encoding, for example to latin-1", FedflowError):
        load()
    with refused(
        r"'pay' .*, 'when' .*, 'place' .*; list .*, set data.decimal: comma, data.dates, data.encode, or",
        FedflowError,
    ):
        load(encoding="latin-1")
    german = {"encoding": "latin-1", "thousands": ".", "decimal": "comma"}
    raw = load(**german, dates=["when"], encode="onehot")
    assert raw.encoding.inputs == ["pay", "when", "place=Köln"]
    pay = pd.read_csv(tmp_path / "t.csv", encoding="latin-1", thousands=".", decimal=",")["pay"]
    assert sorted(set(pay)) == sorted(
        {1000.5 * (i % 7 + 1) + 100 * (i % 9) - 0.5 * (i % 7) for i in range(60)}
    )
    both = np.concatenate([raw.x_train, raw.x_test])[:, 0]
    kept = raw.encoding
    np.testing.assert_allclose(np.sort(both * kept.std[0][0] + kept.mean[0][0]), np.sort(pay), rtol=1e-4)
    assert kept.mean[0][1] == pytest.approx(pd.Timestamp("2024-01-14").toordinal() - 719163, abs=3)
    american = {"encoding": "latin-1", "thousands": ",", "ignore": ["when", "place"]}
    with refused("'pay' .'1.000,5' in row 1.; list", FedflowError):  # without the comma, it would be 1.0005
        load(**american)
    with refused("data.thousands: ',' is not accepted; expected a character other than the decimal mark"):
        load(thousands=",", decimal="comma")
    with refused("data.encoding: 'latin-99' is not accepted"):
        load(encoding="latin-99")


@pytest.mark.parametrize("encode", ["onehot", "codes"])
def test_numbers_as_categories_are_the_same_next_to_fractions(tmp_path, encode):
    grades, parts = np.arange(40) % 4 + 1.0, ["train"] * 32 + ["test"] * 8
    entry = {"source": "table", "target": "label", "split": "part", "encode": encode, "categories": ["grade"]}
    found = []
    for name, last in (("plain", 4.0), ("fraction", 2.5)):
        table = pd.DataFrame({"grade": [*grades[:-1], last], "label": ["a", "b"] * 20, "part": parts})
        table.to_csv(tmp_path / f"{name}.csv", index=False)
        found.append(transformed(DatasetParams.parse(entry | {"path": str(tmp_path / f"{name}.csv")})))
    plain, other = found
    assert plain.x_train.any() and np.array_equal(plain.x_train, other.x_train)
    assert np.array_equal(plain.x_test[:-1], other.x_test[:-1])
    assert "only in test rows, so of no category: grade (2.5)" in other.notes[1]
    rows = pd.DataFrame({"grade": [1.0, 2.0]})
    assert np.array_equal(plain.encoding.encode(rows), plain.x_train[:2])
    assert np.array_equal(other.encoding.encode(rows), plain.x_train[:2])
    assert np.array_equal(plain.encoding.encode(rows.astype("Float32")), plain.x_train[:2])


def test_text_that_names_the_rows_is_no_category(tmp_path):
    table = pd.DataFrame(
        {"name": [f"n{i}" for i in range(60)], "kind": ["a", "b"] * 30, "label": [0, 1, 1] * 20}
    )
    table.to_csv(tmp_path / "t.csv", index=False)
    entry = {"source": "table", "path": str(tmp_path / "t.csv"), "target": "label", "encode": "codes"}
    with refused(
        "not features: 'name' .60 different texts in 60 rows.; list them in data.ignore", FedflowError
    ):
        transformed(DatasetParams.parse(entry))
    raw = transformed(DatasetParams.parse(entry | {"ignore": ["name"]}))
    assert "codes: kind (2)" in raw.notes[1] and set(raw.encoding.features[0].values) == {"a", "b"}
    with refused("data.categories: .'kind'. is not accepted; expected an empty list, without data.encode"):
        DatasetParams.parse({**entry, "encode": None, "categories": ["kind"]})
    with refused("data.test_path: 'no.csv' is not accepted; expected a file"):
        transformed(DatasetParams.parse(entry | {"test_path": "no.csv", "ignore": ["name"]}))


def test_data_frames_are_read_by_the_same_rules(capsys):
    table = pd.DataFrame(
        {"age": [20, 30, np.nan, 50] * 5, "town": ["Ulm", "Rome"] * 10, "rooms": ["1", "?", "3", "2"] * 5}
    )
    labels = np.arange(20) % 2
    data = ff.dataset(table, labels, table[:8], labels[:8], encode="onehot", missing="mean")
    assert data.x_train[:3].tolist() == [[20, 0, 1, 1], [30, 1, 0, 2], [pytest.approx(100 / 3), 0, 1, 3]]
    assert data.encoding.inputs == ["age", "town=Rome", "town=Ulm", "rooms"]
    said = capsys.readouterr().out
    assert (
        "3 features: age, town, rooms; one-hot: town (2); missing values (mean): age (7), rooms (7); 4 inputs"
        in said
    )
    assert ff.run(data, ff.iid(clients=2), "fedavg", rounds=1, progress=False).metrics["global_accuracy"] >= 0
    with refused(
        "x: columns 'town' .'Ulm' in row 1.* is not accepted; expected measured numbers, or text with encode"
    ):
        ff.dataset(table, labels, table, labels)
    with refused(
        "x_test: the columns town, age, rooms is not accepted; expected the columns of x in the same order"
    ):
        ff.dataset(table, labels, table[["town", "age", "rooms"]], labels, encode="codes", missing="mean")
    without = table[["town"]].where(table[["rooms"]].to_numpy() != "?")
    with refused(
        "x_test: missing text in town is not accepted; expected text in every row, or missing='mean', "
    ):
        ff.dataset(table[["town"]], labels, without, labels, encode="onehot")
    with refused("x: ndarray is not accepted; expected data frames x and x_test"):
        ff.dataset(labels[:, None] / 2, labels, labels[:, None] / 2, labels, encode="onehot")


def test_the_page_shows_what_is_printed_and_its_code_runs(read, capsys):
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    counts, notes = shown.split("\n", 1)
    assert notes == "\n".join(read("cars").notes) + "\n" and counts == "318 training samples, 80 test samples"
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    known: dict = {}
    exec(compile(code, "tables.md", "exec"), known)
    assert known["data"].encoding.inputs == ["age", "work=own", "work=private", "work=state"]
    assert "one-hot: work (3); missing values (median): age (25)" in capsys.readouterr().out


SHIPPED = Path(mlxtend.data.__file__).parent / "data"
NUMBERED = {"source": "table", "names": "numbers"}


@pytest.mark.parametrize(
    ("file", "entry", "measure", "bounds"),
    [
        ("iris.csv.gz", {"target": "4"}, "global_accuracy", (0.85, 1)),
        ("wine.csv", {"target": "13"}, "global_accuracy", (0.9, 1)),
        ("three_blobs.csv.gz", {"target": "2"}, "global_accuracy", (0.9, 1)),
        (
            "boston_housing.csv",
            {"target": "13", "task": "regression"},
            "loss",
            (0, 84 / 2),
        ),  # of the variance
        ("autompg.csv.gz", {"target": "8", "task": "regression", "ignore": ["7"]}, "loss", (0, 61 / 2)),
    ],
)
def test_five_tables_that_ship_inside_a_package_run_as_they_are(
    file, entry, measure, bounds, monkeypatch, tmp_path
):
    monkeypatch.setenv("FEDFLOW_CACHE", str(tmp_path))
    data = NUMBERED | {"path": str(SHIPPED / file)} | entry
    training = {"lr": 0.05, "batch_size": 10, "epochs": 5}
    run = ff.run(data, ff.iid(clients=4), "fedavg", rounds=15, progress=False, training=training)
    assert bounds[0] <= run.metrics[measure] <= bounds[1]


def test_columns_of_pandas_types(tmp_path):
    labels = [0, 1] * 20
    kinds = {
        "category": (pd.Categorical([3, 4] * 20), ["c=3", "c=4"]),
        "string": (
            pd.array(["x", "y", None, "z"] * 10, dtype="string"),
            ["c=(missing)", "c=x", "c=y", "c=z"],
        ),
        "Int64": (pd.array([1, 2, None, 4] * 10, dtype="Int64"), ["c", "c=(missing)"]),
        "boolean": (pd.array([True, None, False, True] * 10, dtype="boolean"), ["c", "c=(missing)"]),
        "numbers as text": (["1", "?", "3.5", "4"] * 10, ["c", "c=(missing)"]),
    }
    for kind, (values, inputs) in kinds.items():
        frame = pd.DataFrame({"c": values})
        data = ff.dataset(frame, labels, frame, labels, encode="onehot", missing="category")
        assert data.encoding.inputs == inputs, kind
        frame.assign(label=labels).to_csv(tmp_path / "t.csv", index=False)
        entry = {"source": "table", "path": str(tmp_path / "t.csv"), "target": "label", "encode": "onehot"}
        entry |= {"missing": "category"} | ({"categories": ["c"]} if kind == "category" else {})
        assert transformed(DatasetParams.parse(entry)).encoding.inputs == inputs, kind


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "when,y\n31/12/2024,0\n",
            {"dates": ["when"]},
            "data.dates: 'when' .* a column of dates such as 2024-01-31$",
        ),
        ("a,e,y\n1.5,,0\n", {"missing": "mean"}, "column e: no value in the training rows is not accepted"),
        ("a,e,y\n1.5,,0\n", {"missing": "drop"}, "every row has a missing value .data.missing: drop"),
        (
            "a,y\n1.5,?\n",
            {"missing": "drop"},
            "the missing value '.' in row 1; with data.marks and data.missing: drop",
        ),
    ],
)
def test_columns_without_values_are_named(tmp_path, text, options, message):
    head, row = text.splitlines()
    (tmp_path / "t.csv").write_text("\n".join([head, row, row[:-1] + "1", *[row] * 20]))
    with refused(message, FedflowError):
        transformed(
            DatasetParams.parse({"source": "table", "path": str(tmp_path / "t.csv"), "target": "y"} | options)
        )
