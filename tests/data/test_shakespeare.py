from pathlib import Path

import numpy as np
import pytest
from support import refused

from fedflow.data.shakespeare import FILE, ShakespeareOptions, encoded, tinyshakespeare
from fedflow.errors import FedflowError

TEXT = "ANNA:\nabcdef\n\nBOB:\nxyz\n\nANNA:\nghij\n\n\nCAT:\nx\n"


def load(folder: Path, text: str = TEXT, **options: int):
    (folder / FILE).write_text(text)
    return tinyshakespeare(folder, ShakespeareOptions(**({"length": 3} | options)))


def said(raw, rows: np.ndarray) -> list[str]:
    return ["".join(raw.classes[token] for token in row) for row in np.atleast_2d(rows)]


def test_speeches_of_a_role_are_joined_and_cut_into_windows(tmp_path):
    raw = load(tmp_path)
    # ANNA says "abcdef\nghij", 8 windows of 3 + 1 characters; BOB and CAT say too little.
    assert said(raw, raw.x_train) == ["abc", "bcd", "cde", "def", "ef\n", "f\ng"]
    assert said(raw, raw.y_train[:, None]) == ["d", "e", "f", "\n", "g", "h"]
    assert said(raw, raw.x_test) == ["\ngh", "ghi"] and said(raw, raw.y_test[:, None]) == ["i", "j"]
    assert raw.columns["user"].names == ("ANNA",) and not raw.columns["user"].train.any()
    assert raw.classes == tuple(sorted(set(TEXT)))
    assert raw.x_train.dtype == np.int32 and raw.y_train.dtype == np.int64


def test_the_stride_leaves_out_windows_and_min_samples_leaves_out_roles(tmp_path):
    raw = load(tmp_path, stride=3)
    assert said(raw, raw.x_train) == ["abc", "def"] and said(raw, raw.x_test) == ["\ngh"]
    raw = load(tmp_path, length=1)
    assert raw.columns["user"].names == ("ANNA", "BOB")
    assert raw.columns["user"].train.tolist() == [0] * 8 + [1]
    assert load(tmp_path, length=1, min_samples=2).columns["user"].names == ("ANNA",)


def test_no_training_window_holds_a_character_that_a_test_predicts(tmp_path):
    letters = "".join(map(chr, range(200, 320)))  # all different
    raw = load(tmp_path, f"A:\n{letters}\n", length=5, stride=2)
    trained = {*raw.x_train.ravel().tolist(), *raw.y_train.tolist()}
    assert len(raw.y_test) > 5 and not trained & set(raw.y_test.tolist())


def test_a_character_outside_the_alphabet_is_named():
    assert encoded("cab", "abc").tolist() == [2, 0, 1]
    for stranger in "A", "b", "z":
        with pytest.raises(ValueError, match=f"holds the character '{stranger}'"):
            encoded(f"ac{stranger}", "ac")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ANNA:\nabcd\n\nno name\nabc", "expected a line with a name and a colon, found 'no name'"),
        ("ANNA:\nabc\n", "no role has 1 training samples"),
        ("", "expected a line with a name"),
    ],
)
def test_another_layout_is_refused_in_one_line(tmp_path, text, message):
    with refused(f"{FILE}.*{message}", FedflowError):
        load(tmp_path, text)


def test_a_missing_file_is_named_with_the_data_root(tmp_path):
    with refused(rf"{FILE} is not in the data root {tmp_path}", FedflowError):
        tinyshakespeare(tmp_path, ShakespeareOptions())
