"""LEAF's data sets: JSON files in which every sample has a user.

A folder with ``train/*.json`` and ``test/*.json`` as LEAF's ``preprocess.sh -t sample`` writes them:
``{"users": [...], "user_data": {user: {"x": [...], "y": [...]}}}`` (Caldas et al. 2018,
arXiv 1812.01097). Files are read in order of name, users in the order of ``users``; the column ``user``
numbers them in this order. Users with fewer than ``min_samples`` training samples (thus also those that
occur only in ``test/``) are left out.

Special targets of Reddit (PAD, UNK, BOS, EOS) are not scored, so sequences without other targets are left
out too. The vocabulary is counted here: words of all training texts, most frequent first, ties in
alphabetical order.
"""

import json
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedflow.data.features import counted
from fedflow.data.files import DataColumn, RawData, reading, regular
from fedflow.data.shakespeare import encoded
from fedflow.errors import FedflowError
from fedflow.settings import Settings, option

ALPHABET = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # 80 characters
)
SPECIALS = ("<PAD>", "<UNK>", "<BOS>", "<EOS>")  # tokens 0..3
PRINTABLE = "".join(sorted(string.printable))  # 100 characters
WINDOW, WORDS, SIDE = 80, 10, 28  # characters and words of an input, pixels of FEMNIST

Decode = Callable[[list, list], tuple[np.ndarray, np.ndarray]]


class LeafOptions(Settings):
    """Which users are kept."""

    section = "data"
    min_samples: int = option(1, "users with fewer training samples are left out", ge=1)


class ShakespeareOptions(LeafOptions):
    """Which users are kept, and the tokens."""

    alphabet: str = option(
        "leaf",
        "characters that are tokens: leaf = the 80 of LEAF, printable = all 100 of ASCII",
        choices=("leaf", "printable"),
        source="SuPerFed's code: printable",
    )


class CelebaOptions(LeafOptions):
    """Which users are kept, and where their images are."""

    images: str = option("images", "folder of the images, absolute or relative to the folder of the data")
    size: int = option(84, "height and width that images are resized to", ge=1, source="LEAF")


class RedditOptions(LeafOptions):
    """Which users are kept, and the size of the vocabulary."""

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
    counts: Counter[str] = Counter()
    for where, _, x, _ in _users(path, "train"):
        with reading(where):
            counts.update(word for comment in x for words in comment for word in words)
    ranked = sorted(counts.keys() - set(SPECIALS), key=lambda word: (-counts[word], word))
    vocabulary = (*SPECIALS, *ranked[: options.vocabulary - len(SPECIALS)])
    tokens = {word: token for token, word in enumerate(vocabulary)}
    return _read(path, options, partial(_sequences, tokens), vocabulary)


def _read(path: Path, options: LeafOptions, decode: Decode, classes: tuple[str, ...] = ()) -> RawData:
    """Both splits of the users that are kept; ``decode`` makes arrays of one user's x and y."""
    users: dict[str, int] = {}
    others, few, strangers = set[str](), set[str](), set[str]()
    train, test, most = [], [], 0
    for where, user, x, y in _users(path, "train", others):
        if user in users or user in few:
            raise FedflowError(f"{where}: is in another file too")
        with reading(where):
            inputs, targets = decode(x, y)
        most = max(most, len(targets))
        if len(targets) >= options.min_samples:
            train.append((inputs, targets, np.full(len(targets), len(users))))
            users[user] = len(users)
        else:
            few.add(user)
    if not users:
        raise FedflowError(
            f"{path / 'train'}: no user has {options.min_samples} training samples "
            f"(data.min_samples); the largest has {most}"
        )
    for where, user, x, y in _users(path, "test", others):
        if user not in users and user not in few:
            strangers.add(user)
        if user in users:
            with reading(where):
                inputs, targets = decode(x, y)
            test.append((inputs, targets, np.full(len(targets), users[user])))
    if not test:
        raise FedflowError(
            f"{path / 'test'}: has none of the users of train/; LEAF must split by sample "
            "(preprocess.sh -t sample)"
        )
    x_train, y_train, of_train = (np.concatenate(parts) for parts in zip(*train))
    x_test, y_test, of_test = (np.concatenate(parts) for parts in zip(*test))
    column = DataColumn(of_train, of_test, tuple(users))
    if few:
        others.add(f"{len(few)} with fewer than {options.min_samples} training samples (data.min_samples)")
    if strangers:
        others.add(f"{len(strangers)} without training samples")
    notes = (counted(users, "user") + (f"; left out: {', '.join(sorted(others))}" if others else ""),)
    return RawData(x_train, y_train, x_test, y_test, classes, {"user": column}, notes=notes)


def _users(path: Path, split: str, others: set[str] | None = None) -> Iterator[tuple[str, str, list, list]]:
    """Origin in words, name, x and y of every user of a split, with one file in memory at a time.

    Fields without a use are added to ``others``.
    """
    files = sorted((path / split).glob("*.json"))
    if not files:
        raise FedflowError(f"{path / split}: has no *.json file; needs train/*.json and test/*.json of LEAF")
    for file in files:
        with reading(file):
            content = json.loads(regular(file).read_bytes())
            if not isinstance(content, dict) or not isinstance(content.get("user_data", {}), dict):
                raise ValueError("needs an object with `users` and, by user, `user_data`")
            _need_agreement(content)
            samples = [(user, content["user_data"][user]) for user in content["users"]]
            if others is not None:
                others |= content.keys() - {"users", "num_samples", "user_data"}
                others |= {name for _, data in samples for name in data.keys() - {"x", "y"}}
        for user, data in samples:
            yield f"{file}: user {user!r}", user, data["x"], data["y"]


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
    """Whole numbers 0..classes-1; LEAF writes those of CelebA as 0.0 and 1.0."""
    labels = np.array(y, np.float64)
    if strange := set(y) - set(range(classes)):
        raise ValueError(f"has the label {strange.pop()!r}, not one of 0..{classes - 1}")
    return labels.astype(np.int64)
