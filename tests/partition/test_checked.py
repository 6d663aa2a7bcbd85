"""The split that a scheme of a plug-in returns is checked, in one line."""

from typing import Any

import numpy as np
import pytest
import torch
from support import refused

from fedflow.data import Dataset
from fedflow.errors import FedflowError
from fedflow.partition import Samples
from fedflow.partition.checked import checked
from fedflow.partition.scheme import Split

SAMPLES = Samples(np.zeros(8, np.int64), np.zeros(4, np.int64))
PARTS = [np.arange(4), np.arange(4, 8)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "odd.split must return a Split, not NoneType"),
        (Split([PARTS[0]]), "train has 1 lists for 2 clients"),
        (Split([np.ones(8, bool)] * 2), r"train must be lists of whole numbers, not bool \[8\]"),
        (Split([PARTS[0], np.array([-1])]), "train has the row -1, not one of 8"),
        (Split([PARTS[0], np.array([8])]), "train has the row 8, not one of 8"),
        (Split(PARTS, selection=PARTS), "selection has rows on which the same client trains"),
        (Split(PARTS, groups=np.zeros(3, int)), r"groups are int64 \[3\], not whole numbers \[2\]"),
        (Split(PARTS, pools=[np.array([4])], own=[np.array([0])] * 2), "pools has the row 4, not one of 4"),
        (Split(PARTS, pools=[np.arange(4)], own=[np.array([1])] * 2), "own has the row 1, not one of 1"),
    ],
)
def test_a_split_that_does_not_fit_is_refused(value: Any, reason: str) -> None:
    with refused(reason, FedflowError):
        checked("odd", value, SAMPLES, 2)


def test_a_split_that_fits_is_unchanged() -> None:
    repeated = [np.array([0, 0, 1]), np.array([1, 7])]  # within and among clients
    own, held = [np.zeros(1, int)] * 2, [np.array([2]), np.array([0])]
    split = Split(repeated, pools=[np.arange(8)], own=own, selection=held, held_out=True)
    assert checked("even", split, SAMPLES, 2) is split
    assert checked("even", Split(PARTS, groups=[0, 1]), SAMPLES, 2).groups.tolist() == [0, 1]


def test_a_scheme_cannot_change_the_samples() -> None:
    x, y = torch.zeros(8, 1, 2, 2), torch.arange(8)
    samples = Samples.of(Dataset("d", x, y, x, y, (), (), (), "", {}))
    for values in (samples.labels, samples.test_labels, samples.inputs()):
        with pytest.raises(ValueError, match="read-only"):
            values[:] = 1
    assert y.tolist() == [*range(8)]
