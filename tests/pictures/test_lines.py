"""Names, axes and means of pictures with many lines."""

import numpy as np
import pandas as pd
import pytest

from fedflow.pictures.lines import LONGEST, fitting
from fedflow.pictures.ranks import differences
from fedflow.pictures.steps import FEW, by_step


@pytest.mark.parametrize("tail", ["", ", batch_size 32, lr 0.1, momentum 0.9"])
@pytest.mark.parametrize("method", ["FedProx", "Ditto"])
def test_shortened_names_of_a_picture_differ(method, tail):
    head = f"{method} · rounds 100, epochs 5, "
    labels = ["FedAvg", *(f"{head}mu {mu}{tail}" for mu in (0.1, 0.01, 0.001)), f"{head}wd 1{tail}"]
    names = fitting([*labels, labels[1]])
    assert names[-1] == names[1] and len({*names}) == len(labels)
    assert names[0] == "FedAvg" and all(len(name) <= LONGEST for name in names)


def test_a_shortened_name_repeats_nothing_and_has_the_same_number_in_every_picture():
    tail = ", batch_size 32, lr 0.1, momentum 0.9"
    assert fitting(f"Ditto · mu {mu}{tail}" for mu in (0.001, 0.01)) == [
        "Ditto · mu 0.001, batch_size 3",
        "Ditto · mu 0.01, batch_size 32",
    ]
    labels = [f"IFCA · {'x' * 40}{number:02}{tail}" for number in range(12)]
    assert dict(zip(labels, fitting(labels))) == dict(zip(labels[::-1], fitting(labels[::-1])))
    assert len({*fitting(labels)}) == 12 and max(map(len, fitting(labels))) == LONGEST


def test_the_mean_of_many_parts_ends_with_the_first_of_them():
    """One that went on over fewer parts would jump."""
    parts = {f"{i}": [pd.Series([10.0, 10.0] if i else [100.0, np.nan])] for i in range(FEW + 2)}
    *_, mean = by_step(parts, "steps", "Values", "step").axes.lines
    drawn = mean.get_ydata()
    assert drawn[0] == pytest.approx(10 + 90 / (FEW + 2)) and not np.isfinite(drawn[1:]).any()


@pytest.mark.parametrize(("methods", "ticks"), [(5, 5), (30, 15)])
def test_ranks_on_the_axis_have_room(methods, ticks):
    labels = [f"method {number}, with a long name" for number in range(methods)]
    means = np.linspace(1, methods, methods)
    axes = differences(labels, means, 2.0, [], range(methods)).axes
    assert len(axes.get_xticks()) == ticks and axes.get_xticks()[0] == 1
