"""Tiny Shakespeare by role: the speaker is the user, the next character is the target.

The file ``tinyshakespeare.txt`` (1.1 MB, 40,000 lines of several plays; Karpathy 2015, in the repository
karpathy/char-rnn) consists of paragraphs: a line ``NAME:``, then the speech. The speeches of one name are
joined; roles of the same name in different plays, such as "Messenger", are one role. A sample is a window of
characters and the character that follows it. The first 80 % of a role's windows are training samples and
the others test samples, as in LEAF's Shakespeare by role (Caldas et al. 2018, arXiv 1812.01097): a character
that is predicted in a test occurs in no training window.
"""

from pathlib import Path

import numpy as np

from fedflow.data.files import DataColumn, RawData, reading
from fedflow.errors import FedflowError
from fedflow.settings import Settings, option

FILE = "tinyshakespeare.txt"
TRAIN_SHARE = 0.8


class ShakespeareOptions(Settings):
    """The cut of the text into samples."""

    section = "data"
    length: int = option(80, "characters of a window", ge=1, source="LEAF")
    stride: int = option(1, "characters between the starts of two windows", ge=1, source="LEAF")
    min_samples: int = option(1, "roles with fewer training samples are left out", ge=1)


def tinyshakespeare(root: Path, options: ShakespeareOptions) -> RawData:
    """The windows of ``tinyshakespeare.txt`` in the data root: tokens [n, length] and the next one [n].

    Tokens are the ranks of the characters of the whole file; the column ``user`` numbers the roles in order
    of their first speech. Raises `FedflowError` for a missing file or another layout.
    """
    path = root / FILE
    if not path.is_file():
        raise FedflowError(
            f"source 'tinyshakespeare': {FILE} is not in the data root {root} (it is input.txt of "
            "data/tinyshakespeare in the repository karpathy/char-rnn; FEDFLOW_DATA names another root)"
        )
    with reading(path):
        text = path.read_text(encoding="utf-8")
        alphabet = "".join(sorted(set(text)))
        splits: dict[str, list[tuple[np.ndarray, int]]] = {"train": [], "test": []}
        roles: list[str] = []
        for role, speeches in _speeches(text).items():
            windows = windows_of(encoded(speeches, alphabet), options)
            first = int(TRAIN_SHARE * len(windows))
            if first >= options.min_samples:
                splits["train"].append((windows[:first], len(roles)))
                splits["test"].append((windows[first:], len(roles)))
                roles.append(role)
        if not roles:
            raise FedflowError(
                f"{path}: no role has {options.min_samples} training samples (data.min_samples)"
            )
        (x_train, y_train, train), (x_test, y_test, test) = (stacked(parts) for parts in splits.values())
    return RawData(
        x_train, y_train, x_test, y_test, tuple(alphabet), {"user": DataColumn(train, test, tuple(roles))}
    )


def encoded(text: str, alphabet: str) -> np.ndarray:
    """The position of every character of ``text`` in the sorted ``alphabet``, int32.

    Raises ValueError for a character that is not in it.
    """
    known, codes = (np.frombuffer(letters.encode("utf-32-le"), np.uint32) for letters in (alphabet, text))
    places = np.searchsorted(known, codes).clip(max=len(known) - 1)
    strangers = np.flatnonzero(known[places] != codes)
    if len(strangers):
        raise ValueError(f"holds the character {text[strangers[0]]!r}, which is not in the alphabet")
    return places.astype(np.int32)


def _speeches(text: str) -> dict[str, str]:
    """Role -> all its speeches, joined."""
    said: dict[str, list[str]] = {}
    for paragraph in text.strip().split("\n\n"):
        name, _, speech = paragraph.strip("\n").partition("\n")
        if not name.endswith(":"):
            raise ValueError(f"expected a line with a name and a colon, found {name[:40]!r}")
        said.setdefault(name[:-1], []).append(speech)
    return {role: "\n".join(speeches) for role, speeches in said.items()}


def windows_of(tokens: np.ndarray, options: ShakespeareOptions) -> np.ndarray:
    """Windows [n, length + 1]: the input, then the target."""
    width = options.length + 1
    if len(tokens) < width:
        return np.empty((0, width), tokens.dtype)
    return np.lib.stride_tricks.sliding_window_view(tokens, width)[:: options.stride]


def stacked(parts: list[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs [n, length], targets [n] and roles [n] of all windows."""
    x = np.concatenate([windows[:, :-1] for windows, _ in parts])
    y = np.concatenate([windows[:, -1] for windows, _ in parts]).astype(np.int64)
    return x, y, np.repeat([role for _, role in parts], [len(windows) for windows, _ in parts])
