"""LEAF's JSON files, made small by hand in the layout that its preprocess.sh writes."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import refused

from fedflow.data import DatasetParams, leaf
from fedflow.data.leaf import (
    ALPHABET,
    CelebaOptions,
    LeafOptions,
    PlainOptions,
    RedditOptions,
    ShakespeareOptions,
)
from fedflow.errors import FedflowError

Users = dict[str, tuple[list, list]]
LINE = ALPHABET  # by chance as long as an input: 80 characters


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes one JSON file a mapping of users: ``write(train=[{user: (x, y)}, ...], test=[...])``."""

    def make(**splits: list[Users]) -> Path:
        for split, files in splits.items():
            (tmp_path / split).mkdir(exist_ok=True)
            for i, users in enumerate(files):
                content = {
                    "users": list(users),
                    "num_samples": [len(y) for _, y in users.values()],
                    "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
                }
                (tmp_path / split / f"all_data_{i}_{split}_9.json").write_text(json.dumps(content))
        return tmp_path

    return make


def letters(*labels: int) -> tuple[list, list]:
    """FEMNIST samples: the picture of label c is c + 0..783 steps of 1 / 255, from the top down."""
    return [[(c + i) % 256 / 255 for i in range(784)] for c in labels], list(labels)


def comment(*pairs: tuple[str, str]) -> tuple[list, dict]:
    """A Reddit comment of sequences (x, y), each written as ten words."""
    assert all(len(text.split()) == 10 for pair in pairs for text in pair)
    return [x.split() for x, _ in pairs], {"target_tokens": [y.split() for _, y in pairs], "subreddit": "a"}


def test_pixels_labels_and_users_of_femnist(write):
    path = write(
        train=[{"w1": letters(3, 61), "w0": letters(10)}, {"w2": letters(0)}],
        test=[{"w1": letters(61), "w0": letters()}, {"w2": letters(10, 3)}],
    )
    raw = leaf.femnist(path, LeafOptions())
    assert raw.x_train.shape == (4, 28, 28) and raw.x_train.dtype == np.uint8
    for image, label in zip(raw.x_train, raw.y_train):
        np.testing.assert_array_equal(image.ravel(), (label + np.arange(784)) % 256)
    assert raw.y_train.tolist() == [3, 61, 10, 0] and raw.y_test.tolist() == [61, 10, 3]
    user = raw.columns["user"]
    assert (user.train.tolist(), user.test.tolist()) == ([0, 0, 1, 2], [0, 2, 2])
    assert user.names == ("w1", "w0", "w2")


def test_users_with_few_training_samples_and_users_of_the_test_alone_are_left_out(write):
    path = write(
        train=[{"few": letters(1), "a": letters(1, 2), "b": letters(3, 4), "c": letters(5, 6)}],
        test=[{"few": letters(1), "new": letters(9), "c": letters(5), "b": letters(3), "a": letters(2)}],
    )
    raw = leaf.femnist(path, LeafOptions(min_samples=2))
    assert raw.columns["user"].names == ("a", "b", "c")
    assert raw.y_train.tolist() == [1, 2, 3, 4, 5, 6]
    assert raw.columns["user"].train.tolist() == [0, 0, 1, 1, 2, 2]
    assert raw.y_test.tolist() == [5, 3, 2] and raw.columns["user"].test.tolist() == [2, 1, 0]


def test_users_may_have_no_samples(write):
    numbers, none = ([[1.0, 2.0], [3.0, 4.0]], [0, 1]), ([], [])
    path = write(train=[{"a": numbers, "b": numbers, "e": none}], test=[{"a": none, "b": numbers, "e": none}])
    raw = leaf.plain(path, leaf.PlainOptions())
    assert raw.columns["user"].names == ("a", "b") and raw.columns["user"].test.tolist() == [1, 1]


def test_what_is_left_out_is_noted(write):
    path = write(
        train=[{"few": letters(1), "a": letters(1, 2), "b": letters(3, 4)}],
        test=[{"few": letters(1), "new": letters(9), "b": letters(3), "a": letters(2)}],
    )
    assert leaf.femnist(path, LeafOptions()).notes == ("3 users; left out: 1 without training samples",)
    for file in path.glob("*/*.json"):
        content = json.loads(file.read_text())
        file.write_text(json.dumps(content | {"hierarchies": ["play"] * len(content["users"])}))
    raw = leaf.femnist(path, LeafOptions(min_samples=2))
    (note,) = raw.notes
    few = "1 with fewer than 2 training samples (data.min_samples), 1 without training samples"
    assert note == f"2 users; left out: {few}"
    assert raw.columns["hierarchy"].names == ("play",) and not raw.columns["hierarchy"].train.any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": [1, 2]}, "user 'b' has 1 samples, num_samples says 2"),
        ({"num_samples": [1]}, "has 2 users and 1 num_samples"),
        ({"hierarchies": ["play"]}, "has 2 users and 1 hierarchies"),
        ({"users": ["a"], "num_samples": [1]}, "has no 'b' in users, but samples in user_data"),
        ({"users": ["a", "b", "c"]}, "has no 'c' in user_data"),
        ({"users": ["a", "a"]}, "`users` must be a list of different users"),
        ({"users": {"a": 1, "b": 2}}, "`users` must be a list of different users"),
        ({"user_data": {"a": [1], "b": [1]}}, "user 'a' has no object with x and y"),
        ({"num_samples": 2}, "object of type 'int' has no len"),
    ],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_facts_of_a_file_that_do_not_agree_are_refused(write, changes, message, split):
    path = write(train=[{"a": letters(1), "b": letters(2)}], test=[{"a": letters(1), "b": letters(2)}])
    (file,) = (path / split).glob("*.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with refused(f"{file.name}: cannot be read: {message}", FedflowError):
        leaf.femnist(path, LeafOptions())


@pytest.mark.parametrize("reader", ["femnist", "shakespeare", "celeba", "reddit"])
@pytest.mark.parametrize(
    "user", [([[0.5, 0.25]], [1.0]), ([["1", "Mon", "so happy"]], [1]), ([[[["a"]]]], [{"target_tokens": 3}])]
)
def test_files_of_another_kind_are_one_line(write, reader, user):
    """Synthetic(1, 1), as FedProx writes it, Sent140, and nested lists."""
    path = write(train=[{"u": user}], test=[{"u": user}])
    options = {"shakespeare": ShakespeareOptions, "celeba": CelebaOptions, "reddit": RedditOptions}
    with refused(f"{path}", FedflowError):
        getattr(leaf, reader)(path, options.get(reader, LeafOptions)())


def test_a_pipe_among_the_files_is_refused(write):
    path = write(train=[{"a": letters(1)}], test=[{"a": letters(1)}])
    os.mkfifo(path / "train" / "b.json")
    with refused("b.json: not a file or folder, but a pipe", FedflowError):
        leaf.femnist(path, LeafOptions())


def test_characters_of_shakespeare_are_their_places_in_the_alphabet(write):
    role = [LINE, LINE[1:] + "a"], ["a", "}"]
    raw = leaf.shakespeare(write(train=[{"ROMEO": role}], test=[{"ROMEO": role}]), ShakespeareOptions())
    assert len(raw.classes) == 80 and "".join(raw.classes) == "".join(sorted(raw.classes)) == ALPHABET
    assert raw.x_train.dtype == np.int32 and raw.x_train[0].tolist() == list(range(80))
    assert raw.x_train[1].tolist() == [*range(1, 80), ALPHABET.index("a")]
    assert raw.y_train.dtype == np.int64 and raw.y_train.tolist() == [ALPHABET.index("a"), 79]


def test_all_printable_characters_may_be_tokens(write):
    path, options = write(train=[{"R": ([LINE], ["#"])}], test=[{"R": ([LINE], ["a"])}]), ShakespeareOptions
    raw = leaf.shakespeare(path, options(alphabet="printable"))
    assert len(raw.classes) == 100 and set(raw.classes) > set(ALPHABET)
    assert "".join(raw.classes[token] for token in raw.x_train[0]) == LINE
    assert [raw.classes[y] for y in (*raw.y_train, *raw.y_test)] == ["#", "a"]
    with refused("holds the character '#', which is not in the alphabet", FedflowError):
        leaf.shakespeare(path, options())


def test_pictures_of_celeba_are_resized(write, png):
    # LEAF writes the labels of CelebA as real numbers.
    path = write(train=[{"7": (["1.png", "2.png"], [0.0, 1.0])}], test=[{"7": (["1.png"], [1])}])
    (path / "images").mkdir()
    (path / "images/1.png").write_bytes(png(200, size=6))
    (path / "images/2.png").write_bytes(png(50, size=9, mode="L"))
    raw = leaf.celeba(path, CelebaOptions(size=5))
    assert np.array_equal(raw.x_train, np.full((2, 5, 5, 3), np.reshape([200, 50], (2, 1, 1, 1))))
    assert raw.y_train.tolist() == [0, 1] and raw.classes == ("not smiling", "smiling")
    elsewhere = CelebaOptions(size=5, images=str(path / "images"))
    np.testing.assert_array_equal(leaf.celeba(path, elsewhere).x_test, raw.x_test)


def test_words_of_reddit_are_ranked_by_frequency_then_alphabet(write):
    x1, y1 = comment(
        ("<BOS> b a c a b a c d e", "b a c a b a c d e f"),
        ("f <EOS>" + 8 * " <PAD>", "<EOS> <PAD>" + 8 * " <PAD>"),
    )
    x2, y2 = comment(("<BOS> z <EOS>" + 7 * " <PAD>", "z <EOS>" + 8 * " <PAD>"))
    path = write(train=[{"u": ([x1], [y1])}], test=[{"u": ([x1, x2], [y1, y2])}])
    raw = leaf.reddit(path, RedditOptions(vocabulary=8))
    assert raw.classes == ("<PAD>", "<UNK>", "<BOS>", "<EOS>", "a", "b", "c", "d")
    assert raw.x_train.dtype == np.int32 and raw.y_train.dtype == np.int64
    # The second sequence predicts specials only; so does the comment with the unknown word z.
    assert raw.x_train.tolist() == [[2, 5, 4, 6, 4, 5, 4, 6, 7, 1]]
    assert raw.y_train.tolist() == [[5, 4, 6, 4, 5, 4, 6, 7, 1, 1]]
    assert raw.columns["user"].test.tolist() == [0]
    assert leaf.reddit(path, RedditOptions()).classes[4:] == ("a", "b", "c", "d", "e", "f")


def test_what_is_wrong_is_said_in_one_line_with_the_file_and_user(write, tmp_path):
    def fails(message: str, **options: int) -> None:
        with refused(message, FedflowError):
            leaf.femnist(tmp_path, LeafOptions(**options))

    good, name = letters(1), "all_data_1_train_9.json"
    fails(r"train: has no \*.json file")
    write(train=[{"a": good}], test=[{"b": good}])
    fails("test: has no samples of users in train/")
    fails(r"no user has 5 training samples \(data.min_samples\); the largest has 1", min_samples=5)
    write(train=[{"a": good}, {"a": good}], test=[{"a": good}])
    fails(f"{name}: user 'a': is in another file too")
    for content, message in (
        ('{"users": ["a"], "user_data"', ""),
        ("[1, 2]", ": needs an object with `users`"),
        ('{"users": ["a"], "user_data": []}', ": needs an object with `users`"),
        ('{"users": ["a"], "user_data": {}}', ": has no 'a'"),
    ):
        (tmp_path / "train" / name).write_text(content)
        fails(f"{name}: cannot be read{message}")


@pytest.mark.parametrize(
    ("read", "options", "x", "y", "message"),
    [
        (leaf.femnist, LeafOptions(), [[0.0] * 784], [1, 2], "user 'a' has 1 x and 2 y"),
        (leaf.femnist, LeafOptions(), [[0.0] * 783], [1], "user 'a': cannot be read: cannot reshape"),
        (leaf.femnist, LeafOptions(), [[2.0] * 784], [1], "holds pixels outside 0..1"),
        (leaf.femnist, LeafOptions(), [[0.0] * 784], [62], "has the label 62, not one of 0..61"),
        (leaf.shakespeare, ShakespeareOptions(), [LINE[1:]], ["a"], "has 79 characters in x, not 80"),
        (leaf.shakespeare, ShakespeareOptions(), [LINE], ["ab"], "has 2 characters in y, not 1"),
        (
            leaf.shakespeare,
            ShakespeareOptions(),
            [LINE],
            ["é"],
            "holds the character 'é', which is not in the",
        ),
        (leaf.celeba, CelebaOptions(), ["gone.jpg"], [1], r"gone.jpg: cannot be read: \[Errno 2\]"),
        (leaf.reddit, RedditOptions(), [[["a"] * 9]], [{"target_tokens": [["a"] * 9]}], "has 9 tokens"),
        (leaf.reddit, RedditOptions(), [[["a"] * 10]], [{"target_tokens": []}], "1 sequences in x and 0 in "),
        (leaf.reddit, RedditOptions(), [[["a"] * 10]], [{}], "user 'a': cannot be read: has no 'target_"),
    ],
)
def test_a_user_that_does_not_fit_is_named(write, read, options, x, y, message):
    path = write(train=[{"a": (x, y)}], test=[{"a": ([], [])}])
    with refused(message, FedflowError):
        read(path, options)


@pytest.mark.parametrize("split", ["train", "test"])
def test_users_of_another_shape_or_in_two_files_are_refused(write, split):
    good, wide = ([[0.5, 1.5]], [1]), ([[0.5, 1.5, 2.5]], [1])
    for second, message in (
        ({"b": wide}, "user 'b': has inputs of the shape .3., not .2. as another"),
        ({"a": good}, "user 'a': is in another file too"),
    ):
        splits = {"train": [{"a": good, "b": good}], "test": [{"a": good}]}
        if split == "train":
            splits["train"] = [{"a": good}, second]
        else:
            splits["test"].append(second)
        with refused(message, FedflowError):
            leaf.plain(write(**splits), PlainOptions())


def test_images_outside_of_the_folder_are_files_of_the_data(tmp_path):
    for images, listed in (("../img", True), ("img", False), (str(tmp_path / "img"), True)):
        entry = {"source": "leaf_celeba", "path": str(tmp_path / "leaf"), "images": images}
        files = DatasetParams.parse(entry).files()
        assert ((tmp_path / "img") in files.values()) == listed
    parts = [{"source": "leaf_celeba", "path": str(tmp_path / n / "leaf"), "images": "../img"} for n in "ab"]
    files = DatasetParams.parse({"source": "mix", "parts": parts}).files()
    assert {tmp_path / n / "img" for n in "ab"} <= {*files.values()}
