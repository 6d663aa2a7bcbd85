"""LEAF's datasets: JSON files in which every sample has a user.

A folder with ``train/*.json`` and ``test/*.json`` as LEAF's ``preprocess.sh -t sample`` writes them:
``{"users": [...], "user_data": {user: {"x": [...], "y": [...]}}}`` (Caldas et al. 2018,
arXiv 1812.01097). Files are read in order of name, users in the order of ``users``; the column ``user``
numbers them in this order, and the column ``hierarchy`` holds what a user belongs to, such as the play of a
role. Users with fewer than ``min_samples`` training samples, hence all that only ``test/`` has, are left out.

FedProx, q-FFL, pFedMe, Ditto and TERM keep their data in this form, too, with features as ``x``.

Special targets of Reddit (PAD, UNK, BOS, EOS) are not scored, so sequences without other targets are left
out too. The vocabulary is counted here: words of all training texts, most frequent first, ties in
alphabetical order.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedflow.data.features import counted
from fedflow.data.files import DataColumn, RawData, reading, regular
from fedflow.data.labels import numbered, reals
from fedflow.data.shakespeare import encoded
from fedflow.errors import FedflowError
from fedflow.settings import Settings, option

ALPHABET = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # 80 characters
)
SPECIALS = ("<PAD>", "<UNK>", "<BOS>", "<EOS>")  # tokens 0..3
PRINTABLE = "".join(sorted(string.printable))  # 100 characters
WINDOW, WORDS, SIDE = 80, 10, 28  # characters and words of an input, pixels of FEMNIST
TEXT = 4  # the field of Sent140's x that holds the tweet

Decode = Callable[[list, list], tuple[np.ndarray, np.ndarray]]


class LeafOptions(Settings):
    """Selection of users."""

    section = "data"
    min_samples: int = option(1, "users with fewer training samples are left out", ge=1)


class PlainOptions(LeafOptions):
    """Selection of users, and the kind of targets."""

    task: str = option("classification", "kind of target", choices=("classification", "regression"))


class Sent140Options(LeafOptions):
    """Selection of users, and the size of the vocabulary."""

    vocabulary: int = option(1000, "number of words that are counted, the most frequent ones", ge=1)


class ShakespeareOptions(LeafOptions):
    """Selection of users, and the tokens."""

    alphabet: str = option(
        "leaf",
        "characters that are tokens: leaf = the 80 of LEAF, printable = all 100 of ASCII",
        choices=("leaf", "printable"),
        source="SuPerFed's code: printable",
    )


class CelebaOptions(LeafOptions):
    """Selection of users, and the folder of the images."""

    images: str = option("images", "folder of the images, absolute or relative to the folder of the data")
    size: int = option(84, "height and width that images are resized to", ge=1, source="LEAF")


class RedditOptions(LeafOptions):
    """Selection of users, and the size of the vocabulary."""

    vocabulary: int = option(
        10_000, "number of tokens with PAD, UNK, BOS, EOS; other words are UNK", ge=5, source="LEAF"
    )


def femnist(path: Path, options: LeafOptions) -> RawData:
    """Handwritten characters by writer: gray images [n, 28, 28], labels 0..61 (digits, capitals, small)."""
    return _read(path, options, _gray)


def shakespeare(path: Path, options: ShakespeareOptions) -> RawData:
    """Plays by role: 80 characters as tokens [n, 80] of the sorted alphabet, and the next one [n]."""
    alphabet = ALPHABET if options.alphabet == "leaf" else PRINTABLE
    return _read(path, options, partial(_characters, alphabet), tuple(alphabet))


def celeba(path: Path, options: CelebaOptions) -> RawData:
    """Faces by celebrity: color images [n, size, size, 3], label 1 = smiling, 0 = not."""
    pictures = partial(_pictures, path / options.images, options.size)
    return _read(path, options, pictures, ("not smiling", "smiling"))


def reddit(path: Path, options: RedditOptions) -> RawData:
    """Comments by author: sequences of ten tokens [n, 10], and at each position the next one [n, 10].

    The classes are the vocabulary.
    """
    frequent = _frequent(path, lambda x: (word for comment in x for words in comment for word in words))
    frequent = [word for word in frequent if word not in SPECIALS]
    vocabulary = (*SPECIALS, *frequent[: options.vocabulary - len(SPECIALS)])
    tokens = {word: token for token, word in enumerate(vocabulary)}
    return _read(path, options, partial(_sequences, tokens), vocabulary)


def sent140(path: Path, options: Sent140Options) -> RawData:
    """Tweets by author: how often each word of the vocabulary occurs [n, vocabulary]; label 1 = positive.

    Words are split as in LEAF's logistic regression on bags of words, and have small letters here. The text
    is the fifth field of ``x``.
    """
    words = _frequent(path, lambda x: (word for tweet in x for word in _words(tweet)))
    number = {word: i for i, word in enumerate(words[: options.vocabulary])}
    return _read(path, options, partial(_bags, number), ("negative", "positive"))


def plain(path: Path, options: PlainOptions) -> RawData:
    """Features [n, ...] float32 by user; labels are numbered in sorted order, or real targets [n]."""
    raw = _read(path, options, _features)
    if options.task == "regression":
        with reading(path):
            y_train, y_test = reals(raw.y_train, raw.y_test)
        return replace(raw, y_train=y_train, y_test=y_test)
    with reading(path):
        return replace(raw, **numbered(raw.y_train, raw.y_test))


def _frequent(path: Path, words: Callable[[list], Iterable[str]]) -> list[str]:
    """All words of the training inputs, most frequent first, ties in alphabetical order."""
    counts: Counter[str] = Counter()
    for user in _users(path, "train"):
        with reading(user.where):
            counts.update(words(user.x))
    return sorted(counts, key=lambda word: (-counts[word], word))


def _read(path: Path, options: LeafOptions, decode: Decode, classes: tuple[str, ...] = ()) -> RawData:
    """Both splits of the users that are kept; ``decode`` makes arrays of one user's x and y."""
    users: dict[str, int] = {}
    belongs: dict[str, Any] = {}
    others, few, strangers = set[str](), set[str](), set[str]()
    train: list[tuple[np.ndarray, ...]] = []
    test: list[tuple[np.ndarray, ...]] = []
    most = 0
    for user in _users(path, "train", others):
        if user.name in users or user.name in few:
            raise FedflowError(f"{user.where}: is in another file too")
        inputs, targets = _decoded(user, decode, train)
        most = max(most, len(targets))
        if len(targets) >= options.min_samples:
            train.append((inputs, targets, np.full(len(targets), len(users))))
            users[user.name], belongs[user.name] = len(users), user.hierarchy
        else:
            few.add(user.name)
    if not users:
        raise FedflowError(
            f"{path / 'train'}: no user has {options.min_samples} training samples "
            f"(data.min_samples); the largest has {most}"
        )
    tested = set[str]()
    for user in _users(path, "test", others):
        if user.name in tested:
            raise FedflowError(f"{user.where}: is in another file too")
        tested.add(user.name)
        if user.name not in users and user.name not in few:
            strangers.add(user.name)
        if user.name in users:
            if user.hierarchy not in (None, belongs[user.name]):
                differ = f"{user.hierarchy!r}, but in train/ {belongs[user.name]!r}"
                raise FedflowError(f"{user.where}: belongs to {differ}")
            inputs, targets = _decoded(user, decode, train)
            if len(targets):
                test.append((inputs, targets, np.full(len(targets), users[user.name])))
    if not test:
        raise FedflowError(
            f"{path / 'test'}: has no samples of users in train/; LEAF must split by sample "
            "(preprocess.sh -t sample)"
        )
    x_train, y_train, of_train = (np.concatenate(parts) for parts in zip(*train))
    x_test, y_test, of_test = (np.concatenate(parts) for parts in zip(*test))
    columns = {"user": DataColumn(of_train, of_test, tuple(users))}
    if all(isinstance(value, str) for value in belongs.values()):
        names, number = np.unique(list(belongs.values()), return_inverse=True)
        columns["hierarchy"] = DataColumn(number[of_train], number[of_test], tuple(map(str, names)))
    elif any(value is not None for value in belongs.values()):
        others.add("hierarchies, which are not one text per user")
    if few:
        others.add(f"{len(few)} with fewer than {options.min_samples} training samples (data.min_samples)")
    if strangers:
        others.add(f"{len(strangers)} without training samples")
    notes = (counted(users, "user") + (f"; left out: {', '.join(sorted(others))}" if others else ""),)
    return RawData(x_train, y_train, x_test, y_test, classes, columns, notes=notes)


class User(NamedTuple):
    """The samples of one user: ``where`` names the file and user, ``hierarchy`` is None if there is none."""

    where: str
    name: str
    hierarchy: Any
    x: list
    y: list


def _decoded(
    user: User, decode: Decode, train: list[tuple[np.ndarray, ...]]
) -> tuple[np.ndarray, np.ndarray]:
    """The arrays of one user, whose inputs have the shape of those in ``train``."""
    with reading(user.where):
        inputs, targets = decode(user.x, user.y)
    if train and len(targets) and inputs.shape[1:] != train[0][0].shape[1:]:
        shape = f"{list(inputs.shape[1:])}, not {list(train[0][0].shape[1:])} as another user"
        raise FedflowError(f"{user.where}: has inputs of the shape {shape}")
    return inputs, targets


def _users(path: Path, split: str, others: set[str] | None = None) -> Iterator[User]:
    """The users of a split, with one file in memory at a time; unused fields are added to ``others``."""
    files = sorted((path / split).glob("*.json"))
    if not files:
        raise FedflowError(f"{path / split}: has no *.json file; needs train/*.json and test/*.json of LEAF")
    for file in files:
        with reading(file):
            content = json.loads(regular(file).read_bytes())
            if not isinstance(content, dict) or not isinstance(content.get("user_data", {}), dict):
                raise ValueError("needs an object with `users` and, by user, `user_data`")
            _need_agreement(content)
            names, samples = content["users"], content["user_data"]
            hierarchies = content.get("hierarchies") or [None] * len(names)
            if others is not None:
                others |= content.keys() - {"users", "num_samples", "user_data", "hierarchies"}
                others |= {field for name in names for field in samples[name].keys() - {"x", "y"}}
        for name, hierarchy in zip(names, hierarchies):
            yield User(f"{file}: user {name!r}", name, hierarchy, samples[name]["x"], samples[name]["y"])


def _need_agreement(content: dict[str, Any]) -> None:
    """Refuse a file whose facts do not agree, as one that was cut or edited; `ValueError`."""
    users, held = content["users"], content["user_data"]
    if not isinstance(users, list) or len(set(users)) < len(users):
        raise ValueError("`users` must be a list of different users")
    if missing := [user for user in users if user not in held]:
        raise ValueError(f"has no {missing[0]!r} in user_data")
    if strange := sorted(held.keys() - set(users)):
        raise ValueError(f"has no {strange[0]!r} in users, but samples in user_data")
    for name in "num_samples", "hierarchies":
        if name in content and len(content[name]) != len(users):
            raise ValueError(f"has {len(users)} users and {len(content[name])} {name}")
    for user, count in zip(users, content.get("num_samples", [None] * len(users))):
        data = held[user]
        if not isinstance(data, dict):
            raise ValueError(f"user {user!r} has no object with x and y")
        if len(data["x"]) != len(data["y"]):
            raise ValueError(f"user {user!r} has {len(data['x'])} x and {len(data['y'])} y")
        if count not in (None, len(data["y"])):
            raise ValueError(f"user {user!r} has {len(data['y'])} samples, num_samples says {count}")


def _features(x: list, y: list) -> tuple[np.ndarray, np.ndarray]:
    try:
        inputs, targets = np.array(x, np.float32), np.array(y, np.float64)
    except (TypeError, ValueError):
        raise ValueError("needs as many numbers in every x, and one number in every y") from None
    if targets.ndim != 1:
        raise ValueError(f"has y of the shape {list(targets.shape)}, not one number per sample")
    return inputs[:, None] if inputs.ndim == 1 else inputs, targets


def _words(tweet: list) -> list[str]:
    if not (isinstance(tweet, list) and len(tweet) > TEXT and isinstance(tweet[TEXT], str)):
        raise ValueError("needs x of the form [id, date, query, user, text, ...]")
    return re.findall(r"[\w']+|[.,!?;]", tweet[TEXT].lower())


def _bags(number: dict[str, int], x: list, y: list) -> tuple[np.ndarray, np.ndarray]:
    inputs = np.zeros((len(x), len(number)), np.float32)
    for row, tweet in enumerate(x):
        for word in _words(tweet):
            if word in number:
                inputs[row, number[word]] += 1
    return inputs, _labels(y, 2)


def _gray(x: list, y: list) -> tuple[np.ndarray, np.ndarray]:
    pixels = np.array(x, np.float64).reshape(len(x), SIDE, SIDE)
    if len(x) and not (pixels.min() >= 0 and pixels.max() <= 1):
        raise ValueError("holds pixels outside 0..1")
    return np.rint(pixels * 255).astype(np.uint8), _labels(y, 62)


def _characters(alphabet: str, x: list[str], y: list[str]) -> tuple[np.ndarray, np.ndarray]:
    _need_length(x, WINDOW, "characters in x")
    _need_length(y, 1, "characters in y")
    inputs, targets = (encoded("".join(texts), alphabet) for texts in (x, y))
    return inputs.reshape(-1, WINDOW), targets.astype(np.int64)


def _pictures(folder: Path, size: int, x: list[str], y: list) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image

    if strange := next((name for name in x if not isinstance(name, str)), None):
        raise ValueError(f"has x of the type {type(strange).__name__}, not names of images")
    images = np.empty((len(x), size, size, 3), np.uint8)
    for image, name in zip(images, x):
        with reading(folder / name), Image.open(folder / name) as picture:
            image[:] = np.asarray(picture.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))
    return images, _labels(y, 2)


def _sequences(tokens: dict[str, int], x: list, y: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    inputs = [words for comment in x for words in comment]
    targets = [words for comment in y for words in comment["target_tokens"]]
    if len(inputs) != len(targets):
        raise ValueError(f"has {len(inputs)} sequences in x and {len(targets)} in y")
    unknown = tokens["<UNK>"]
    arrays = []
    for sequences in (inputs, targets):
        _need_length(sequences, WORDS, "tokens in a sequence")
        ids = [[tokens.get(word, unknown) for word in words] for words in sequences]
        arrays.append(np.array(ids, np.int64).reshape(-1, WORDS))
    scored = (arrays[1] >= len(SPECIALS)).any(1)
    return arrays[0][scored].astype(np.int32), arrays[1][scored]


def _need_length(values: Sequence, length: int, what: str) -> None:
    for value in values:
        if len(value) != length:
            raise ValueError(f"has {len(value)} {what}, not {length}")


def _labels(y: list, classes: int) -> np.ndarray:
    """Whole numbers 0..classes-1; LEAF writes the labels of CelebA as 0.0 and 1.0."""
    labels = np.array(y, np.float64)
    if strange := set(y) - set(range(classes)):
        raise ValueError(f"has the label {strange.pop()!r}, not one of 0..{classes - 1}")
    return labels.astype(np.int64)
