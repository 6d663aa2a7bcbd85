"""The picture of compared partitions: any number of them, and what is refused."""

from dataclasses import replace

import numpy as np
from matplotlib.image import imread
from support import refused

from fedflow.errors import FedflowError
from fedflow.partition.compare import PartitionComparison
from fedflow.pictures.comparison import draw_comparisons

MATRIX = np.array([[0, 0, 0, 3], [0, 0, 0, 3], [0, 0, 0, 3], [3, 3, 3, 0.0]])
MATRICES = {"feature_emd": MATRIX, "angle_min": 10 * MATRIX, "cka": 1 - MATRIX / 4}
ONE = PartitionComparison("one", np.arange(4), MATRICES, {}, np.array([0, 0, 0, 1]))


def test_any_number_of_partitions_is_drawn(tmp_path):
    many = [replace(ONE, name=f"p{i}") for i in range(5)]
    draw_comparisons([ONE], tmp_path / "one.png")
    draw_comparisons(many, tmp_path / "many.png")
    draw_comparisons(many, tmp_path / "new" / "again.png")
    assert imread(tmp_path / "one.png").std() > 0.05 and imread(tmp_path / "many.png").std() > 0.05
    assert (tmp_path / "many.png").read_bytes() == (tmp_path / "new" / "again.png").read_bytes()
    draw_comparisons([replace(ONE, matrices={"cka": MATRICES["cka"]})], tmp_path / "none.png")
    assert imread(tmp_path / "none.png").shape[0] < imread(tmp_path / "one.png").shape[0]


def test_what_cannot_be_drawn_is_named(tmp_path):
    file = tmp_path / "x.png"
    with refused("comparisons: 0 is not accepted"):
        draw_comparisons([], file)
    file.touch()
    with refused(r"cannot write the picture to .*x\.png/y\.png: ", FedflowError):
        draw_comparisons([ONE], file / "y.png")
