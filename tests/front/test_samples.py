"""`fedflow.dataset` of pairs, datasets of torch and Hugging Face, text labels, and its own test share."""

import random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from command import one_line_error
from PIL import Image
from scipy.sparse import csr_matrix
from torch.utils import data as loading
from torch.utils.data import DataLoader, RandomSampler, Subset, SubsetRandomSampler, TensorDataset

import fedflow as ff
from fedflow.errors import BadInput

SMALL: dict[str, Any] = {"rounds": 2, "progress": False, "compile": "never", "device": "cpu"}
TRAIN, TEST = 40, 20


def samples(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(rows, 5)).astype(np.float32)
    return x, np.arange(rows) % 3


X, Y = samples(TRAIN)
X_TEST, Y_TEST = samples(TEST, 1)
RIGHT = ff.dataset(X, Y, X_TEST, Y_TEST)


class Own(loading.Dataset):
    """A dataset of the user, whose samples are an array and a number."""

    def __init__(self, x: np.ndarray, y: np.ndarray, transform: Any = lambda x: x) -> None:
        self.x, self.y, self.transform = x, y, transform

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return self.transform(self.x[row]), int(self.y[row])


def tensors(x: np.ndarray, y: np.ndarray) -> TensorDataset:
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


def lists(x: np.ndarray, y: np.ndarray) -> list:
    return [x.tolist(), y.tolist()]


def same(one: ff.Dataset, other: ff.Dataset) -> bool:
    parts = ("x_train", "y_train", "x_test", "y_test")
    return all(torch.equal(getattr(one, part), getattr(other, part)) for part in parts)


KINDS = {
    "pairs": lambda x, y: (x, y),
    "pairs of lists": lambda x, y: tuple(lists(x, y)),
    "TensorDataset": tensors,
    "Dataset": Own,
    "Dataset of tensors": lambda x, y: Own(x, y, torch.from_numpy),
    "Subset": lambda x, y: Subset(Own(np.repeat(x, 2, 0), np.repeat(y, 2)), range(0, 2 * len(x), 2)),
    "ConcatDataset": lambda x, y: loading.ConcatDataset([Own(x[:9], y[:9]), Own(x[9:], y[9:])]),
    "DataLoader": lambda x, y: DataLoader(Own(x, y), batch_size=7, shuffle=True, drop_last=True),
    "DataLoader of rows": lambda x, y: DataLoader(Own(x, y), sampler=SubsetRandomSampler(range(len(x)))),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_samples_of_any_kind_are_the_same_data(kind: Any) -> None:
    train, test = kind(X, Y), kind(X_TEST, Y_TEST)
    forms = [
        ff.dataset(train, test),
        ff.dataset(train, x_test=test),
        ff.dataset({"train": train, "test": test}),
    ]
    for data in [*forms, ff.dataset((train, test))]:
        assert same(data, RIGHT) and data.classes == ("0", "1", "2")


def test_a_run_on_a_torch_data_set_is_one_on_its_arrays() -> None:
    runs = [
        ff.run(data, ff.iid(clients=3), **SMALL)
        for data in (RIGHT, ff.dataset(Own(X, Y), Own(X_TEST, Y_TEST)))
    ]
    assert runs[0].metrics == runs[1].metrics


def test_images_of_a_folder_have_the_names_of_its_classes() -> None:
    def pictures(rows: int) -> Own:
        colors = np.arange(rows, dtype=np.uint8)[:, None, None, None] * np.ones((1, 9, 8, 3), np.uint8)
        data = Own(colors, np.arange(rows) % 2, Image.fromarray)
        data.classes = ["cat", "dog"]  # type: ignore[attr-defined]
        return data

    data = ff.dataset(pictures(10), Subset(pictures(6), [1, 2, 5]))
    assert data.x_train.shape == (10, 3, 9, 8) and data.x_train[7].unique().tolist() == [7]
    assert data.classes == ("cat", "dog") and data.y_test.tolist() == [1, 0, 1]
    letters = pictures(10)
    letters.classes = ["N/A", "a", "b"]  # type: ignore[attr-defined]
    letters.y = letters.y + 1
    with one_line_error("y: 1, 2 .* labels 0 to 1: subtract 1; `classes` names labels without", BadInput):
        ff.dataset(letters, letters)
    assert ff.dataset(letters, letters, classes=letters.classes).num_classes == 3  # type: ignore[attr-defined]


def test_reading_leaves_the_generators_as_they_were() -> None:
    noise = {"numpy": lambda x: x + np.random.rand(), "torch": lambda x: torch.from_numpy(x) + torch.rand(1)}  # noqa: NPY002
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    for transform in noise.values():
        with one_line_error("x: samples that differ when they are read again .*'augment'", BadInput):
            ff.dataset(Own(X, Y, transform), Own(X_TEST, Y_TEST))
    ff.dataset(KINDS["DataLoader"](X, Y), KINDS["DataLoader"](X_TEST, Y_TEST))
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    assert state == after


class Endless(loading.IterableDataset):
    def __iter__(self) -> Any:
        return iter([(X[0], 0)])


class Three(Own):
    def __getitem__(self, row: int) -> Any:
        return *super().__getitem__(row), row


@pytest.mark.parametrize(
    ("train", "match"),
    [
        ((X, [[0], [1, 2]] * 20), "y: a list .* an array or tensor"),
        ([(X[0], [1]), (X[1], [1, 2])], "x_test: a tuple .* test samples of the 2 clients"),
        (Endless(), "x: Endless .* a dataset with a length"),
        (Own(X[:0], Y[:0]), "x: an empty Own .* one sample"),
        (Three(X, Y), r"x: samples that are a tuple of 3 .* pairs \(x, y\)"),
        (TensorDataset(torch.ones(3, 2)), r"x: samples that are a tuple of 1 .* pairs"),
        (Own([X[0], X[0, :3]], [0, 1]), r"x: samples of the shapes \(5,\) and \(3,\) .* one shape"),  # type: ignore[arg-type]
        (
            DataLoader(Own(X, Y), sampler=RandomSampler(X, replacement=True)),
            "x: a DataLoader with a custom sampler",
        ),
        (
            DataLoader(Own(X, Y), sampler=RandomSampler(X, num_samples=8)),
            "x: a DataLoader with a custom sampler",
        ),
        (
            DataLoader(Own(X, Y), batch_sampler=[[0, 1], [2]]),
            r"x: a DataLoader with a custom sampler .* torch.cat",
        ),
        (
            DataLoader(Own(X, Y), collate_fn=list),
            r"x: a DataLoader with a custom collate_fn .* torch.cat\(\[x for x, _",
        ),
    ],
)
def test_samples_that_cannot_be_read(train: Any, match: str) -> None:
    with one_line_error(match, BadInput):
        ff.dataset(train, (X_TEST, Y_TEST))


def test_test_samples_belong_to_the_call() -> None:
    with one_line_error("x_test: None .* fedflow.dataset.x, y, test_share=0.2", BadInput):
        ff.dataset(Own(X, Y))
    frame = pd.DataFrame({"a": X[:, 0], "label": Y})
    with one_line_error(r"y: None .* fedflow.dataset\(df.drop\(columns=\"label\"\), df\[", BadInput):
        ff.dataset(frame, test_share=0.2)
    with one_line_error("x_test: ndarray .* samples with targets", BadInput):
        ff.dataset((X, Y), X_TEST)
    with one_line_error("y_test: a ndarray .* None: x has the targets", BadInput):
        ff.dataset((X, Y), None, (X_TEST, Y_TEST), Y_TEST)


def test_repr() -> None:
    assert repr(RIGHT) == "<dataset own: x_train [40, 5], y_train [40], x_test [20, 5], 3 classes>"


def test_rows_in_tuples_are_features() -> None:
    rows = [tuple(row) for row in X.tolist()]
    assert torch.equal(ff.dataset(rows, Y, X_TEST.astype(float), Y_TEST).x_train, RIGHT.x_train)
    pairs = [(a, b) for a, b in X[:, :2].tolist()]
    assert ff.dataset(pairs, Y, pairs, Y).x_train.shape == (TRAIN, 2)


class Hub:
    """The interface of a dataset of the package `datasets`."""

    def __init__(self, names: list[str] | None = None, **columns: list) -> None:
        self.columns = columns
        self.features = {name: type("Feature", (), {})() for name in columns}
        if names:
            self.features["label"].names = names

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def __getitem__(self, name: str) -> list:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


Hub.__module__, Hub.__name__ = "datasets.arrow_dataset", "Dataset"


def hub(rows: int, **changes: Any) -> Any:
    images = [Image.fromarray(np.full((8, 8, 3), i, np.uint8)) for i in range(rows)]
    return Hub(**{"names": ["cat", "dog"], "img": images, "label": [i % 2 for i in range(rows)]} | changes)


def test_data_sets_of_hugging_face(capsys: pytest.CaptureFixture) -> None:
    data = ff.dataset({"train": hub(6, id=list("abcdef")), "test": hub(4)})
    assert data.x_train.shape == (6, 3, 8, 8) and data.x_train[5].unique().tolist() == [5]
    assert data.classes == ("cat", "dog") and data.y_test.tolist() == [0, 1, 0, 1]
    assert "x: img, labels: label; left out: id" in capsys.readouterr().out
    ff.dataset({"train": hub(6), "test": hub(4), "validation": hub(2)})
    assert "x: left out: validation" in capsys.readouterr().out
    ff.dataset({"train": [(X, Y), (X, Y)], "validation": [(X, Y)], "test": [(X, Y), (X, Y)]})
    assert "x: left out: validation" in capsys.readouterr().out
    for splits in ({"train": hub(6), "validation": hub(4)}, {"train": hub(6)}):
        with one_line_error(
            r"x: splits train.* two of them: fedflow.dataset\(data\['train'\], data", BadInput
        ):
            ff.dataset(splits, test_share=0.2)
    tabular = Hub(x=X.tolist(), target=Y.tolist())
    assert same(ff.dataset(tabular, (X_TEST.astype(float), Y_TEST)), RIGHT)
    for wrong in (Hub(photo=[1], label=[0]), Hub(image=[1]), hub(2, y=[0, 1])):
        with one_line_error(r"x: columns .* one column of image, .* one of label, .*\(train\[", BadInput):
            ff.dataset(wrong, hub(4))
    with one_line_error(r"data: Dataset .* fedflow.dataset\(train, test\)", BadInput):
        ff.run(hub(4))


NAMES = np.array(["owl", "cat", "dog"])


@pytest.mark.parametrize(
    "kind", [np.asarray, np.ndarray.tolist, lambda a: a.astype(object), pd.Series, pd.Categorical]
)
def test_text_labels_are_named_classes(kind: Any, capsys: pytest.CaptureFixture) -> None:
    data = ff.dataset(X, kind(NAMES[Y]), X_TEST, kind(NAMES[Y_TEST]))
    assert data.classes == ("cat", "dog", "owl") and "y: 3 classes: cat, dog, owl" in capsys.readouterr().out
    assert [data.classes[label] for label in data.y_train] == NAMES[Y].tolist()
    assert [data.classes[label] for label in data.y_test] == NAMES[Y_TEST].tolist()
    ordered = ff.dataset(X, kind(NAMES[Y]), X_TEST, kind(NAMES[Y_TEST]), classes=NAMES.tolist())
    assert ordered.classes == tuple(NAMES) and torch.equal(ordered.y_train, RIGHT.y_train)


def test_masked_values_stay_masked() -> None:
    masked = np.ma.masked_less(X.astype(float), 0)
    with one_line_error("^x: a masked array .* as in x.filled", BadInput):
        ff.dataset(masked, Y, test_share=0.25)
    with one_line_error(r"^x\[0\]: a masked array ", BadInput):
        ff.dataset([(masked, Y), (X, Y)], test_share=0.25)


def test_equal_bytes_of_other_shapes_are_other_data() -> None:
    x, y = np.concatenate([X, X_TEST]), np.concatenate([Y, Y_TEST])
    cuts = {ff.dataset(x[:n], y[:n], x[n:], y[n:]).hash for n in (30, 40)}
    images = np.zeros((6, 8, 8), np.uint8), np.zeros((6, 4, 16), np.uint8)
    shapes = {ff.dataset(x, [0, 1] * 3, x, [0, 1] * 3).hash for x in images}
    assert len(cuts) == len(shapes) == 2


def test_text_labels_that_do_not_fit() -> None:
    with one_line_error("y_test: cow .* labels of y", BadInput):
        ff.dataset(X, NAMES[Y], X_TEST, np.where(Y_TEST == 1, "cow", NAMES[Y_TEST]))
    with one_line_error("y: owl .* labels of classes", BadInput):
        ff.dataset(X, NAMES[Y], X_TEST, NAMES[Y_TEST], classes=["cat", "dog"])
    frame = pd.DataFrame(X)
    with one_line_error("y: an index that differs from x.index", BadInput):
        ff.dataset(frame, pd.Series(NAMES[Y]).sample(frac=1, random_state=0), X_TEST, NAMES[Y_TEST])
    for missing in (None, np.nan, pd.NA):
        labels = [*NAMES[Y][:-1].tolist(), missing]
        series = pd.Series(labels, dtype=object)
        with one_line_error(r"^y: no label in row 39 ", BadInput):
            ff.dataset(X, tuple(labels), X_TEST, NAMES[Y_TEST])
        with one_line_error(r"^y\[b\]: no label in row 39 ", BadInput):
            ff.dataset({"a": (X, NAMES[Y]), "b": (X, labels)}, test_share=0.2)
        for name, given in (("y", (X, labels, X_TEST, NAMES[Y_TEST])), ("y_test", (X, NAMES[Y], X, series))):
            with one_line_error(f"^{name}: no label in row 39 .* a label for every sample$", BadInput):
                ff.dataset(*given)
    with one_line_error("y: 'ndarray' .* it holds object", BadInput):
        ff.dataset(X, np.array(["a", 1] * 20, object), X_TEST, NAMES[Y_TEST])


@pytest.mark.parametrize("kind", [lambda v: v, torch.from_numpy, np.ndarray.tolist, pd.DataFrame])
def test_an_own_test_share(kind: Any) -> None:
    x = kind(X.astype(float))
    y = pd.Series(Y) if isinstance(x, pd.DataFrame) else kind(Y)
    data = ff.dataset(x, y, test_share=0.25)
    assert np.bincount(data.y_test).tolist() == [4, 3, 3]  # a quarter of 14, 13 and 13
    rows = np.concatenate([data.x_train, data.x_test])
    assert {tuple(row) for row in rows} == {tuple(row) for row in X} and len(rows) == TRAIN
    for x_rows, y_rows in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        assert all(
            label == Y[np.flatnonzero((row == X).all(1))[0]] for row, label in zip(x_rows.numpy(), y_rows)
        )
    assert same(data, ff.dataset(X, Y, test_share=0.25))
    assert not same(data, ff.dataset(X, Y, test_share=0.25, seed=1))
    assert same(data, ff.dataset(Own(X, Y), test_share=0.25))


def test_test_shares_of_text_and_real_targets() -> None:
    data = ff.dataset(X, NAMES[Y], test_share=0.25)
    assert data.classes == ("cat", "dog", "owl") and np.bincount(data.y_test).tolist() == [3, 3, 4]
    assert len(ff.dataset(X, X[:, 0], test_share=0.25).y_test) == 10


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"test_share": 0}, "test_share: 0 .* a number > 0 and < 1"),
        ({"test_share": 20}, "test_share: 20 .* a number > 0 and < 1"),
        ({"test_share": True}, "test_share: True .* a number > 0 and < 1"),
        ({"test_share": "0.2"}, "test_share: '0.2' .* a number > 0 and < 1"),
        ({"test_share": 0.01}, "test_share: 0.01 .* of which 40 samples leave one"),
        ({"test_share": 0.2, "seed": -1}, "seed: -1 .* a whole number >= 0"),
        ({"seed": 5}, "seed: 5 .* 0 without test_share"),
        ({"test_share": 0.2, "x_test": X_TEST}, "test_share: 0.2 .* None with test samples"),
        ({"test_share": 0.2, "y": Y[1:]}, "x: 40 inputs .* as many as targets, 39"),
        ({"test_share": 0.2, "y": None}, "y: None .* an array"),
        ({"test_share": 0.2, "y": [[0], [1, 2]] * 20}, "y: a list .* a row for every sample"),
        ({"test_share": 0.2, "x": [[0], [1, 2]] * 20}, "x: a list .* a row for every sample"),
        ({"test_share": 0.2, "x": torch.ones(40, 2).to_sparse()}, "x: a Tensor .* not sparse"),
        ({"test_share": 0.2, "x": csr_matrix(X)}, r"x: csr_matrix .* x.toarray\(\)"),
        ({"test_share": 0.2, "x": iter(X)}, "^x: .*iterator is not .* a row for every sample"),
        ({"test_share": 0.2, "x": "here.csv"}, "x: str .* reads a file"),
        ({"test_share": 0.2, "x": [], "y": []}, "test_share: 0.2 .* of which 0 samples"),
    ],
)
def test_test_shares_that_do_not_fit(given: dict[str, Any], match: str) -> None:
    with one_line_error(match, BadInput):
        ff.dataset(**{"x": X, "y": Y} | given)


def test_images_with_their_channels_last(capsys: pytest.CaptureFixture) -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 28, 29, 3), dtype=np.uint8)
    last = ff.dataset(images, np.arange(30) % 2, images, np.arange(30) % 2)
    assert "images [n, H, W, C] are read as [n, C, H, W]" in capsys.readouterr().out
    first = images.transpose(0, 3, 1, 2)
    assert last.hash == ff.dataset(first, np.arange(30) % 2, first, np.arange(30) % 2).hash
    assert torch.equal(last.x_train, torch.from_numpy(first.copy()))


def test_samples_of_clients_are_divided_as_they_came() -> None:
    sizes, tests = [10, 25, 5], [4, 10, 6]
    cut, cut_test = np.cumsum(sizes)[:-1], np.cumsum(tests)[:-1]
    train = [Own(*part) for part in zip(np.split(X, cut), np.split(Y, cut), strict=True)]
    test = [Own(*part) for part in zip(np.split(X_TEST, cut_test), np.split(Y_TEST, cut_test), strict=True)]
    by_name = [dict(zip("abc", parts)) for parts in (train, test)]
    reversed_test = dict(reversed(by_name[1].items()))
    for given in ((train, test), by_name, (by_name[0], reversed_test)):
        data = ff.dataset(*given)
        assert torch.equal(data.x_train, RIGHT.x_train) and data.hash != RIGHT.hash
        run = ff.run(data, ff.natural(), **SMALL)
        assert run.clients["samples"].tolist() == sizes and run.clients["test_samples"].tolist() == tests
        assert run.partition.train(1).tolist() == list(range(10, 35))
    shared = ff.dataset([DataLoader(part) for part in train], test_share=0.2)
    run = ff.run(shared, ff.natural(), **SMALL)
    assert (run.clients["samples"] + run.clients["test_samples"]).tolist() == sizes
    for wrong in (test[:2], test[0], dict(zip("abd", test))):
        with one_line_error("x_test: .* test samples of the 3 clients of x", BadInput):
            ff.dataset(train, wrong)
    with one_line_error(r"x: clients of different inputs .* one shape", BadInput):
        ff.dataset([(X, Y), (X[:, :4], Y)], test_share=0.2)
    with one_line_error(r"x\[1\]: samples that are a tuple of 3", BadInput):
        ff.dataset([train[0], Three(X, Y)], test_share=0.2)
    with one_line_error(r"^x\[south\]: no sample .* one sample or more of every client$", BadInput):
        ff.dataset({"north": (X, Y), "south": (X[:0], Y[:0])}, test_share=0.2)


def test_labels_of_rows_are_not_taken_for_their_numbers() -> None:
    frame, test = pd.DataFrame(X), pd.DataFrame(X_TEST)
    shuffled = frame.assign(user=Y).sample(frac=1, random_state=0)
    user, owner = shuffled["user"], pd.Series(Y)
    other = ff.dataset(shuffled.drop(columns="user"), user, test, Y_TEST)

    def divided(data: Any, rows: Any) -> str:
        return ff.run(data, rows, **SMALL).partition.hash

    right = divided(RIGHT, [np.flatnonzero(k == Y) for k in range(3)])
    masks = [owner == k for k in range(3)]
    for rows in ([g.index for _, g in owner.groupby(owner)], masks):
        assert divided(RIGHT, rows) == divided(ff.dataset(frame, Y, test, Y_TEST), rows) == right
    assert divided(other, {k: user == k for k in range(3)}) == divided(other, user.groupby(user).indices)
    ascending = [pd.Index(sorted(labels)) for labels in user.groupby(user).groups.values()]
    groups = user.groupby(user).groups
    for data, rows in ((RIGHT, groups), (other, ascending), (other, dict(enumerate(ascending)))):
        with one_line_error(r"partition.*: an index of row labels .* frame.groupby\(", BadInput):
            divided(data, rows)
    for data, rows in ((RIGHT, {k: user == k for k in range(3)}), (other, masks)):
        with one_line_error(r"partition.*: a mask with another index .* mask.to_numpy\(\)", BadInput):
            divided(data, rows)


def test_data_frames_of_clients_are_joined_by_their_columns() -> None:
    table = pd.DataFrame(X, columns=list("abcde"))
    parts = [(table[:25], pd.Series(Y[:25])), (table[25:], pd.Series(Y[25:], index=range(25, 40)))]
    test = [(table[:9], Y[:9]), (table[9:20], Y[9:20])]
    assert torch.equal(ff.dataset(parts, test).x_train, RIGHT.x_train)
    town = [(x.assign(town=name), y) for name, (x, y) in zip("uv", parts)]
    data = ff.dataset(town, [(x.assign(town="u"), y) for x, y in test], encode="onehot")
    assert data.x_train[[0, -1], -2:].tolist() == [[1, 0], [0, 1]]
    (x, y), other = parts[1], parts[0]
    for wrong, match in (
        (
            (x[list("bacde")], y),
            r"x\[1\]: the columns b, a, c, d, e .* of the first client .*: a, b, c, d, e",
        ),
        ((x, y.sample(frac=1, random_state=0)), r"y\[1\]: an index that differs from x.index"),
        ((x[1:], y.to_numpy()), r"x\[1\]: 14 inputs .* as many as targets, 15"),
    ):
        with one_line_error(match, BadInput):
            ff.dataset([other, wrong], test)


@pytest.mark.parametrize(
    "classes", [{"a", "b", "c"}, {"a": 0, "b": 1, "c": 2}, 3, iter("abc"), ["0", 0, "c"], [], NAMES[None]]
)
def test_names_of_classes_have_an_order(classes: Any) -> None:
    assert ff.dataset(X, Y, X_TEST, Y_TEST, pd.Index(NAMES)).classes == tuple(NAMES)
    with one_line_error("classes: .* a list of different names", BadInput):
        ff.dataset(X, Y, X_TEST, Y_TEST, classes)


def test_columns_of_one_name_are_refused() -> None:
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(6, 3)), columns=list("aab"))
    for encode in (None, "codes"):
        with one_line_error("x: two columns 'a' .*different names", BadInput):
            ff.dataset(table, [0, 1] * 3, table, [0, 1] * 3, encode=encode)
