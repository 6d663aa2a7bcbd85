from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support import refused

from fedflow.data import DatasetParams
from fedflow.data.files import RawData
from fedflow.data.table import TableOptions, read_table
from fedflow.errors import FedflowError

ROWS = 50


@pytest.fixture
def table() -> pd.DataFrame:
    """Fifty rows: two features, one of them constant, a text target, a real one, a user and facts."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.normal(40, 10, ROWS),
            "rooms": rng.integers(1, 5, ROWS),
            "fixed": 3.0,
            "kind": np.where(np.arange(ROWS) % 5 < 3, "flat", "barn"),
            "price": rng.normal(size=ROWS),
            "town": [f"T{i % 4}" for i in range(ROWS)],
            "old": np.arange(ROWS) % 2 == 0,
            "part": np.where(np.arange(ROWS) < 30, "train", "test"),
        }
    )


@pytest.fixture
def read(tmp_path: Path, table: pd.DataFrame) -> Callable[..., RawData]:
    """Reads the table back from a CSV file, some of its columns replaced; text without a use is ignored."""

    def load(changes: dict[str, Any] | None = None, **options: Any) -> RawData:
        table.assign(**(changes or {})).to_csv(tmp_path / "houses.csv", index=False)
        options = {"target": "kind"} | options
        if "features" not in options and "ignore" not in options:
            used = [options["target"], options.get("user"), options.get("split"), *options.get("columns", ())]
            options["ignore"] = [name for name in ("kind", "town", "part") if name not in used]
        return read_table(tmp_path / "houses.csv", TableOptions.parse(options))

    return load


def test_features_are_standardized_with_the_training_rows(read, table):
    raw = read(split="part", features=["fixed", "age"])
    assert raw.x_train.shape == (30, 2) and raw.x_test.shape == (20, 2) and raw.x_train.dtype == np.float32
    age = table["age"].to_numpy()
    expected = (age - age[:30].mean()) / age[:30].std()
    np.testing.assert_allclose(raw.x_train[:, 1], expected[:30], rtol=1e-5)
    np.testing.assert_allclose(raw.x_test[:, 1], expected[30:], rtol=1e-5)
    assert not raw.x_train[:, 0].any() and not raw.x_test[:, 0].any()


def test_text_targets_are_numbered_in_the_order_of_their_names(read, table):
    raw = read(split="part")
    assert raw.classes == ("barn", "flat") and raw.y_train.dtype == np.int64
    np.testing.assert_array_equal(raw.y_train, (table["kind"] == "flat")[:30])
    years = read({"kind": [1990.0 + 10 * (i % 3) for i in range(ROWS)]})
    assert years.classes == ("1990", "2000", "2010") and set(years.y_test.tolist()) == {0, 1, 2}


def test_numeric_columns_without_another_use_are_features(read):
    assert read().x_train.shape[1] == 5  # age, rooms, fixed, price, old
    assert read(columns=["rooms"], user="old").x_train.shape[1] == 3
    assert read(target="price", task="regression").x_train.shape[1] == 4


def test_real_targets_stay_as_they_are(read, table):
    raw = read(target="price", task="regression", split="part")
    assert raw.classes == () and raw.y_train.dtype == np.float32
    np.testing.assert_allclose(raw.y_test, table["price"][30:], rtol=1e-6)
    drawn = read(target="price", task="regression")
    assert len(drawn.y_test) == 10 and set(drawn.y_test.tolist()) <= set(np.float32(table["price"]).tolist())


def test_the_random_split_takes_its_share_of_every_class(read):
    raw = read(test_share=0.3)
    assert np.bincount(raw.y_test).tolist() == [6, 9] and np.bincount(raw.y_train).tolist() == [14, 21]
    np.testing.assert_array_equal(raw.x_test, read(test_share=0.3).x_test)
    assert not np.array_equal(raw.x_test, read(test_share=0.3, seed=1).x_test)
    rare = read({"kind": ["rare"] + ["common"] * (ROWS - 1)}, test_share=0.9)
    assert rare.y_train.tolist().count(rare.classes.index("rare")) == 1


def test_users_and_facts_come_along_in_the_order_of_the_rows(read):
    raw = read(user="town", columns=["old", "rooms", "part"], split=None)
    user, old, part = (raw.columns[name] for name in ("user", "old", "part"))
    assert user.names == ("T0", "T1", "T2", "T3") and part.names == ("test", "train") and old.names == ()
    assert sorted(np.concatenate([user.train, user.test]).tolist()) == sorted(i % 4 for i in range(ROWS))
    assert set(raw.columns["rooms"].train.tolist()) <= {1, 2, 3, 4}
    split = read(user="town", columns=["old"], split="part")
    assert split.columns["user"].train.tolist() == [i % 4 for i in range(30)]
    assert split.columns["old"].test.tolist() == [int(i % 2 == 0) for i in range(30, ROWS)]


def test_parquet_gives_the_same_as_csv(read, table, tmp_path):
    expected = read(user="town")
    table.to_parquet(tmp_path / "houses.parquet")
    raw = read_table(tmp_path / "houses.parquet", TableOptions(target="kind", user="town", ignore=["part"]))
    np.testing.assert_array_equal(raw.x_train, expected.x_train)
    np.testing.assert_array_equal(raw.y_test, expected.y_test)


def test_options_of_text_files_are_refused_with_parquet(table, tmp_path):
    table.to_parquet(tmp_path / "houses.parquet")
    unused = {"names": "numbers", "separator": "tab", "comment": "#", "encoding": "latin-1"}
    for field, value in unused.items():
        with refused(f"data.{field}: '{value}' .*, its default, with a Parquet file"):
            read_table(tmp_path / "houses.parquet", TableOptions.parse({"target": "kind", field: value}))
    table.to_csv(tmp_path / "tests.csv", sep="\t", index=False)
    both = {"target": "kind", "test_path": str(tmp_path / "tests.csv"), "separator": "tab"}
    options = TableOptions.parse(both | {"features": ["age"]})
    assert len(read_table(tmp_path / "houses.parquet", options).x_test) == ROWS


def test_a_share_of_test_rows_that_are_given_is_refused():
    entry = {"source": "table", "path": "a.csv", "target": "kind"}
    for given in {"split": "part"}, {"test_path": "b.csv"}:
        with refused("data.test_share: 0.3 .* 0.2, its default, with test rows in split or test_path"):
            DatasetParams.parse(entry | given | {"test_share": 0.3})
        assert DatasetParams.parse(entry | given | {"train_limit": 9, "seed": 1}).seed == 1  # of the limit


def test_rows_of_each_user_are_split_and_standardized_by_themselves(read, table):
    raw = read(user="town", within="user", features=["age", "rooms", "old"], dummies=["old"], test_share=0.3)
    user, whole = raw.columns["user"], table["kind"].groupby([table["town"], table["kind"]]).size()
    drawn = pd.Series(raw.y_test).groupby([user.test, raw.y_test]).size()
    assert drawn.tolist() == [round(0.3 * count) for count in whole]
    for k in range(4):
        own = raw.x_train[user.train == k]
        np.testing.assert_allclose(own[:, :2].mean(0), 0, atol=1e-6)
        np.testing.assert_allclose(own[:, :2].std(0), 1, rtol=1e-5)
    town = table[table["town"] == "T1"]
    given = read(user="town", within="user", features=["age", "old"], dummies=["old"], split="part")
    train = town["age"][town["part"] == "train"]
    expected = (town["age"][town["part"] == "test"] - train.mean()) / train.std(ddof=0)
    of_town = given.x_test[given.columns["user"].test == 1]
    np.testing.assert_allclose(of_town[:, 0], expected, rtol=1e-5)
    assert of_town[:, 1].tolist() == town["old"][town["part"] == "test"].tolist()


THERE = "age, rooms, fixed, kind, price, town, old, part"


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"target": "cost"}, rf"data.target: 'cost' .*houses.csv: {THERE}$"),
        ({}, {"user": "owner"}, rf"data.user: 'owner' .*houses.csv: {THERE}$"),
        ({}, {"columns": ["old", "new"]}, r"data.columns: 'new' is not accepted"),
        ({}, {"features": ["town"]}, r"data.features: 'town' .* a numeric column of .*: age, rooms"),
        ({}, {"within": "user"}, r"data.within: 'user' .* table, without a column for data.user"),
        ({}, {"user": "part", "within": "user", "split": "part"}, r"data.split: 'part' .* another use"),
        (
            {"town": ["A"] * 30 + ["B"] * 20},
            {"user": "town", "within": "user", "split": "part"},
            r"houses.csv: 'B' has no training row \(data.within: user\)",
        ),
        ({}, {"dummies": ["town"]}, r"data.dummies: 'town' .* one of the features: age, rooms, fixed, price"),
        ({}, {"features": []}, r"houses.csv: has no numeric column left for features"),
        ({}, {"user": "kind"}, r"data.user: 'kind' .* a column without another use"),
        ({"user": 1}, {"user": "town", "columns": ["user"]}, r"data.columns: 'user'"),
        ({}, {"split": "town"}, r"data.split: 'town' .* a column of train and test, not T0"),
        ({"part": "test"}, {"split": "part"}, r"houses.csv: all 50 rows are for testing"),
        ({}, {"target": "price"}, r"data.target: 'price' .*; real ones need task: regression"),
        ({}, {"task": "regression"}, r"data.target: 'kind' .* a numeric column"),
        ({"rooms": [np.nan, 1] * 25}, {}, r"column 'rooms' has 25 missing or infinite values, .* row 1$"),
        ({"age": [1, np.inf] * 25}, {}, r"column 'age' has 25 missing or infinite values, .* row 2$"),
        ({"kind": [*"a" * 49, None]}, {}, r"column 'kind' has 1 missing or infinite values, .* row 50$"),
        ({"town": [*"a" * 49, None]}, {"user": "town"}, r"column 'town' has 1 missing"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(read, changes, options, message):
    with refused(message, FedflowError):
        read(changes, **options)


@pytest.mark.parametrize("name", ["NA", "None", "null", "nan", "NaN", "n/a"])
def test_classes_and_users_may_be_called_as_missing_values_often_are(read, name):
    raw = read({"kind": [name, "flat"] * 25, "town": [name, name, "Rome", "", "Oslo"] * 10}, columns=["part"])
    assert sorted(raw.classes) == sorted(["flat", name])
    assert np.bincount(np.concatenate([raw.y_train, raw.y_test])).tolist() == [25, 25]
    raw = read({"town": [name, "Rome"] * 25}, user="town")
    assert sorted(raw.columns["user"].names) == sorted(["Rome", name])


def test_an_empty_cell_is_a_missing_class_and_na_a_missing_number(read):
    with refused(r"column 'kind' has 25 missing or infinite values, .* row 1$", FedflowError):
        read({"kind": ["", "flat"] * 25})
    with refused(r"column 'age' has 10 missing or infinite values, .* row 5$", FedflowError):
        read({"age": [1, 2, 3, 4, "NA"] * 10})


def test_missing_values_in_columns_without_use_do_not_matter(read):
    assert read({"town": None}, features=["age"]).x_train.shape[1] == 1


TEXT = [f"{i % 7 + 0.5}" for i in range(ROWS)]  # numbers, some of which are replaced


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([*TEXT[:17], "?", *TEXT[18:]], r"\('\?' in row 18\)"),
        ([*TEXT[:17], "1,000", *TEXT[18:]], r"\('1,000' in row 18\)"),
        (["north", "south"] * 25, r"\('north' in row 1\)"),
        ([f"2024-01-{1 + i % 28:02d}" for i in range(ROWS)], r"\('2024-01-01' in row 1\)"),
        (["True", "", "False", "", ""] * 10, r"\(empty in row 2\)"),
        (np.arange(ROWS), r"\(numbers the rows from 0 to 49\)"),
        (np.random.default_rng(0).permutation(ROWS) + 1, r"\(numbers the rows from 1 to 50\)"),
        (np.arange(ROWS) + 4000.0, r"\(numbers the rows from 4000 to 4049\)"),
    ],
)
def test_text_and_row_numbers_are_features_or_left_out_only_as_the_options_say(read, values, reason):
    with refused(rf"not features: 'more' {reason}; list them in data.ignore, .*data.features$", FedflowError):
        read({"more": values})
    raw = read({"more": values}, ignore=["more", "town", "part"])
    assert raw.x_train.shape[1] == 5 and "left out: more, town, part (data.ignore)" in raw.notes[0]
    raw = read({"more": values}, features=["age"])
    assert raw.x_train.shape[1] == 1
    assert "left out: rooms, fixed, price, town, old, part, more (not in data.features)" in raw.notes[0]


@pytest.mark.parametrize("name", ["id", "ID", "user_id", "patient id", "PassengerId", "customerID", "index"])
def test_ids_are_no_features_unless_they_are_named(read, name):
    values = np.arange(ROWS) * 7 % 31
    with refused(f"not features: '{name}' .an id, by its name.; list", FedflowError):
        read({name: values})
    assert read({name: values}, features=["age", name]).x_train.shape[1] == 2
    assert read({name: values}, columns=[name]).x_train.shape[1] == 5


@pytest.mark.parametrize("name", ["fluid", "acid", "rowing", "indexed", "old"])
def test_words_that_end_like_ids_are_features(read, name):
    assert "features" in read({name: np.arange(ROWS) * 7 % 31}).notes[0]


def test_every_use_of_a_column_is_noted(read):
    raw = read(user="town", columns=["rooms"], split="part")
    assert raw.notes == (
        "4 features: age, fixed, price, old; constant: fixed; target: kind (2 classes: barn, flat); "
        "user: town; split: part; columns: rooms",
    )
    assert "target: price (real numbers)" in read(target="price", task="regression").notes[0]
    wide = read({f"p{i}": np.arange(ROWS) % 5 for i in range(60)})
    assert wide.notes[0].startswith(
        "65 features: age, rooms, fixed, price, old, p0, p1, p2, p3, p4, ... (55 more)"
    )


def test_the_index_that_pandas_writes_is_left_out_and_noted(tmp_path, table):
    """Rows are sorted by class, so an index gives the class away."""
    table = table[["age", "rooms", "kind"]].sort_values("kind")
    for file, write in (("i.csv", table.to_csv), ("i.parquet", table.to_parquet)):
        write(tmp_path / file)
        raw = read_table(tmp_path / file, TableOptions(target="kind"))
        assert raw.x_train.shape[1] == 2
    table.to_csv(tmp_path / "i.csv")
    pd.read_csv(tmp_path / "i.csv").to_csv(tmp_path / "twice.csv")
    raw = read_table(tmp_path / "twice.csv", TableOptions(target="kind"))
    assert raw.x_train.shape[1] == 2 and "left out: Unnamed: 0.1, Unnamed: 0 (without a name)" in raw.notes[0]
    named = TableOptions(target="kind", features=["age", "Unnamed: 0"])
    assert read_table(tmp_path / "twice.csv", named).x_train.shape[1] == 2
    table.set_index(pd.Index(["a", "b"] * 25, name="house")).to_parquet(tmp_path / "named.parquet")
    with refused(r"'house' \('a' in row 1\)", FedflowError):
        read_table(tmp_path / "named.parquet", TableOptions(target="kind"))


def test_columns_without_names_alone_are_no_features(tmp_path):
    (tmp_path / "t.csv").write_text(",  ,kind\n" + "1.5,2.5,flat\n2.5,0.5,barn\n" * 9)
    with refused(
        "no numeric column left for features; left out: 'Unnamed: 0', '  ' .without a name", FedflowError
    ):
        read_table(tmp_path / "t.csv", TableOptions(target="kind"))


def test_columns_with_other_values_than_numbers_are_named_by_kind(tmp_path):
    """As datasets of Hugging Face are stored: a column of images, or of lists."""
    table = pd.DataFrame({"image": [{"bytes": b"x"}] * 9, "pixels": [[1, 2]] * 9, "label": [0, 1, 2] * 3})
    table["when"] = pd.Timestamp("2024-01-01")
    table.to_parquet(tmp_path / "t.parquet")
    words = (
        r"'image' \(dict in row 1\), 'pixels' \(ndarray in row 1\), 'when' \('2024-01-01 00:00:00' in row 1\)"
    )
    with refused(words, FedflowError):
        read_table(tmp_path / "t.parquet", TableOptions(target="label"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "5.1,3.5,0\n4.9,3.0,1\n",
            "needs the names of the columns in its first line, which holds 5.1, 3.5, 0",
        ),
        ("39,State-gov,13,<=50K\n50,Private,13,>50K\n", "needs the names of the columns in its first line"),
        ("a,b,kind\n1,2,flat,\n3,4,barn,\n", "Expected 3 fields in line 2, saw 4"),
        ("a b kind\n1 2 flat\n", "columns are separated by ' '; set data.separator: space"),
        ("a;b;kind\n1,5;2,5;flat\n", "columns are separated by ';'; set data.separator: semicolon"),
    ],
)
def test_a_first_line_that_is_no_header_is_refused(tmp_path, content, message):
    (tmp_path / "odd.csv").write_text(content)
    with refused(message, FedflowError):
        read_table(tmp_path / "odd.csv", TableOptions(target="kind"))


def test_columns_may_be_numbered(tmp_path):
    table = pd.DataFrame(np.arange(60).reshape(20, 3) % 7).assign(label=[0, 1] * 10)
    table.to_csv(tmp_path / "n.csv", index=False)
    assert read_table(tmp_path / "n.csv", TableOptions(target="label")).x_train.shape[1] == 3


def test_a_missing_label_is_no_class(read):
    with refused(r"column 'kind', the target, has the missing value '\?' in row 50", FedflowError):
        read({"kind": [*[0, 1] * 24, 1, "?"]})
    with refused(r"a numeric column, for task: regression \(it has '\?' in row 50\)"):
        read({"kind": [*[0, 1] * 24, 1, "?"]}, task="regression")


def test_ignored_columns_have_no_other_use_and_are_not_all_others(read):
    with refused("data.ignore: 'age' .* a column without another use"):
        read(columns=["age"], ignore=["age", "town", "part"])
    with refused("data.ignore: .'town'. .* an empty list: columns that data.features does not name"):
        read(features=["age"], ignore=["town"])
    with refused("data.ignore: 'cost' .* a column of"):
        read(ignore=["cost"])


def test_a_file_that_is_no_table_is_named(tmp_path):
    for name in ("empty.csv", "no.parquet"):
        (tmp_path / name).touch()
        with refused(rf"{name}: cannot be read", FedflowError):
            read_table(tmp_path / name, TableOptions(target="kind"))
    for content, message in (
        ("age,kind\n", "has no rows"),
        ("age;kind\n1;flat\n", "columns are separated by ';'; set data.separator: semicolon"),
        ("age,kind,age\n1,flat,2\n", "has two columns 'age'"),
    ):
        (tmp_path / "odd.csv").write_text(content)
        with refused(f"odd.csv: cannot be read: {message}", FedflowError):
            read_table(tmp_path / "odd.csv", TableOptions(target="kind"))
    with refused(r"data.task: 'ranking'"):
        TableOptions.parse({"target": "kind", "task": "ranking"})


def test_a_byte_order_mark_and_names_in_any_script(tmp_path: Path) -> None:
    rows = [f"{'ab'[i % 2]},{i}.5,{'北京' if i % 3 else '上海'}" for i in range(20)]
    (tmp_path / "towns.csv").write_text("\n".join(["\ufeffy,größe,城市", *rows]), "utf-8")
    raw = read_table(tmp_path / "towns.csv", TableOptions.parse({"target": "y", "user": "城市"}))
    assert raw.columns["user"].names == ("上海", "北京") and raw.classes == ("a", "b")
    assert raw.x_train.shape[1] == 1 and "1 feature: größe" in raw.notes[0]


def of_csv(tmp_path: Path, text: str, **entry: Any) -> RawData:
    (tmp_path / "t.csv").write_text(text)
    return read_table(tmp_path / "t.csv", TableOptions(target="label", **entry))


def test_marks_may_be_numbers(tmp_path):
    rows = "".join(f"{i % 5}.5,{i % 4},{i % 2}\n" for i in range(39))
    text = f"a,c,label\n{rows}-999,2,1\n"
    raw = of_csv(tmp_path, text, marks=["-999"], missing="mean")
    assert raw.encoding.features[0].fill == pytest.approx(2.5, abs=0.4)
    raw = of_csv(tmp_path, text.replace(",1\n", ",-1\n"), marks=["-999", "-1"], missing="drop")
    assert raw.classes == ("0",) and len(raw.notes) == 2
    raw = of_csv(tmp_path, text, marks=["-999", "3"], missing="mean", encode="onehot", categories=["c"])
    assert raw.encoding.features[1].values == ("", "0", "1", "2")


def test_a_point_is_no_decimal_mark_where_a_comma_is(tmp_path):
    rows = "".join(f"{i % 5},5;,{i % 4 + 1};{i % 2}\n" for i in range(40))
    raw = of_csv(tmp_path, f"a;b;label\n{rows}", separator="semicolon", decimal="comma")
    assert [f.kind for f in raw.encoding.features] == ["number"] * 2
    assert raw.encoding.mean[0][1] == pytest.approx(0.25, abs=0.05)
    with refused("not features: 'a'", FedflowError):
        of_csv(tmp_path, f"a;b;label\n{rows}1.100;0,5;0\n", separator="semicolon", decimal="comma")


def test_long_ids_stay_apart_next_to_an_empty_cell(tmp_path):
    rows = "".join(f"{i % 5}.5,{1234567890123456789 + i % 4},{i % 2}\n" for i in range(40))
    raw = of_csv(tmp_path, f"a,who,label\n{rows}1.5,,1\n", user="who", missing="drop")
    assert raw.columns["user"].names == tuple(str(1234567890123456789 + k) for k in range(4))
    raw = of_csv(tmp_path, f"a,who,label\n{rows}1.5,-7,1\n", user="who", missing="drop", marks=["-7"])
    assert len(raw.columns["user"].names) == 4


def test_facts_beyond_int64_are_numbered(tmp_path):
    rows = "".join(f"{i % 5}.5,{2**63 + i % 4},{i % 2}\n" for i in range(40))
    raw = of_csv(tmp_path, f"a,tag,label\n{rows}", columns=["tag"])
    assert raw.columns["tag"].names == tuple(str(2**63 + k) for k in range(4))


def test_a_class_that_only_test_rows_have_is_noted(tmp_path):
    rows = "".join(f"{i % 5}.5,{('no', 'yes')[i % 2]}\n" for i in range(40))
    (tmp_path / "test.csv").write_text(f"a,label\n{rows}1.5,Yes\n")
    raw = of_csv(tmp_path, f"a,label\n{rows}", test_path=str(tmp_path / "test.csv"))
    assert "only in test rows: Yes (of the target)" in raw.notes


@pytest.mark.parametrize(
    ("label", "a", "way"),
    [
        ("", "1.5", r"'label' has .* left out with their rows \(data.missing: drop\)"),
        ("1", "", r"'a' has .* filled in \(data.missing\) or left out with the column \(data.ignore\)"),
        ("1", "inf", r"'a' has .* values, to be left out with the column \(data.ignore\)"),
    ],
)
def test_the_way_out_of_missing_values_is_one_that_works(tmp_path, label, a, way):
    rows = "".join(f"{i % 5}.5,{i % 2}\n" for i in range(40))
    with refused(way, FedflowError):
        of_csv(tmp_path, f"a,label\n{rows}{a},{label}\n")


def test_the_ending_of_a_parquet_file_may_be_in_capitals(tmp_path, table):
    table[["age", "kind"]].to_parquet(tmp_path / "T.PARQUET")
    assert read_table(tmp_path / "T.PARQUET", TableOptions(target="kind")).x_train.shape[1] == 1


def test_large_numbers_and_written_points_stay_real_next_to_an_empty_cell(tmp_path):
    rows = "".join(f"{i % 4 + 1}e20,{i % 3}.0,{i % 2}\n" for i in range(40))
    raw = of_csv(tmp_path, f"a,tag,label\n{rows},1.0,1\n1e20,,0\n", columns=["tag"], missing="drop")
    assert raw.columns["tag"].names == ("0.0", "1.0", "2.0")


@pytest.mark.parametrize(("missing", "constant"), [("mean", True), ("category", False)])
def test_a_constant_next_to_empty_cells_is_noted_if_its_input_is_constant(tmp_path, missing, constant):
    rows = "".join(f"{i % 5}.5,7,{i % 2}\n" for i in range(40))
    raw = of_csv(tmp_path, f"a,b,label\n{rows}1.5,,1\n", missing=missing)
    assert ("constant: b" in raw.notes[0]) == constant


def test_marked_numbers_are_missing_beside_marked_text(tmp_path):
    rows = "".join(f"{i % 5}.5,{i % 2}\n" for i in range(38))
    raw = of_csv(tmp_path, f"a,label\n{rows}-999.0,1\n?,0\n", marks=["?", "-999"], missing="mean")
    assert raw.encoding.features[0].fill > 0


def test_a_column_that_is_text_in_one_file_is_text_in_both(tmp_path):
    """007 of the training rows is 007 of the test rows, whose column would otherwise hold 7."""
    (tmp_path / "tests.csv").write_text("a, user,label\n1.5,007,01\n2.5,007,02\n")
    rows = "".join(
        f"{i}.5,{user},{label}\n"
        for i, (user, label) in enumerate([("007", "01"), ("A1", "x"), ("007", "02")])
    )
    raw = of_csv(tmp_path, f"a, user,label\n{rows}", test_path=str(tmp_path / "tests.csv"), user="user")
    assert raw.columns["user"].names == ("007", "A1") and raw.columns["user"].test.tolist() == [0, 0]
    assert raw.classes == ("01", "02", "x") and raw.y_test.tolist() == [0, 1]


def test_marks_of_missing_numbers_hold_in_both_files(tmp_path):
    """The mark -999 also matches "-999.0" in a column that is text in the other file."""
    (tmp_path / "tests.csv").write_text("a,user,label\n1,x,0\n?,x,1\n")
    rows = "1.5,1,0\n-999.0,-999.0,1\n3,2,0\nNone,1,1\n"
    raw = of_csv(
        tmp_path,
        f"a,user,label\n{rows}",
        test_path=str(tmp_path / "tests.csv"),
        marks=["-999"],
        missing="drop",
        user="user",
    )
    assert len(raw.x_train) == 2 and len(raw.x_test) == 1
    assert raw.columns["user"].names == ("1", "2", "x")


def test_bytes_of_one_parquet_file_are_text_of_the_other(tmp_path):
    for name, users in (("train", [b"a", b"b", b"a"]), ("test", ["a", "b", "a"])):
        table = pd.DataFrame({"a": [1.5, 2, 3], "user": users, "label": [0, 1, 0]})
        table.to_parquet(tmp_path / f"{name}.parquet")
    options = {"target": "label", "test_path": str(tmp_path / "test.parquet"), "columns": ["user"]}
    raw = read_table(tmp_path / "train.parquet", TableOptions.parse(options))
    assert raw.columns["user"].names == ("a", "b") and raw.columns["user"].test.tolist() == [0, 1, 0]


def test_real_targets_keep_their_differences(tmp_path):
    """float32 makes one number of 1,700,000,000 to 1,700,000,019."""
    rows = "".join(f"{i % 5}.5,{1_700_000_000 + i}\n" for i in range(20))
    with refused("targets from 17000000[0-9]+ to 17000000[0-9]+ differ too little for float32", FedflowError):
        of_csv(tmp_path, f"a,label\n{rows}", task="regression")
    with refused("a target of 1e[+]39 is too large for float32", FedflowError):
        of_csv(tmp_path, "a,label\n" + "1.5,0.5\n2.5,1e39\n3.5,0.25\n" * 5, task="regression")


def test_dates_may_be_far_away(tmp_path):
    rows = "".join(f"{day},{i % 2}\n" for i, day in enumerate(["1600-01-01", "2024-01-31", "9999-12-31"] * 5))
    assert np.isfinite(of_csv(tmp_path, f"when,label\n{rows}", dates=["when"]).x_train).all()
    with refused("data.dates: 'when' .* a column of dates such as 2024-01-31"):
        of_csv(tmp_path, "when,label\n" + "True,0\nFalse,1\n" * 5, dates=["when"])
