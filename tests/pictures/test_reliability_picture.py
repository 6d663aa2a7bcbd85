"""What a reliability diagram shows, read from the figure."""

import numpy as np
import pandas as pd
import pytest

from fedflow.pictures.reliability import diagram, draw_reliability

TABLE = pd.DataFrame({"client": [0, 1, 1, 0], "confidence": [0.99, 0.95, 0.62, 0.65], "rank": [1, 2, 2, 1]})


def test_the_lines_are_the_bins_of_every_seed_and_the_histogram_is_their_mean() -> None:
    """ECE (0.47 + 0.135) / 2 and 0.01; MCE 0.47 and 0.01."""
    sure = pd.DataFrame({"client": [0], "confidence": [0.99], "rank": [1]})
    work = diagram([TABLE, sure], 8, "r")
    axes, below = work.figure.axes
    diagonal, *seeds = (np.round(line.get_xydata(), 6).tolist() for line in axes.lines)
    assert diagonal == [[0, 0], [100, 100]]
    assert seeds == [[[63.5, 50], [97, 50]], [[99, 100]]]
    shares = dict(enumerate(below.patches[0].get_data().values))
    assert {bin: share for bin, share in shares.items() if share} == {9: 25, 14: 75}
    assert axes.get_title(loc="right") == "ECE 15.6 %, MCE 24.0 %"
    assert len({line.get_color() for line in axes.lines[1:]}) == 1


@pytest.mark.parametrize("right", [0, 1])
def test_a_run_of_one_sample_has_a_diagram(tmp_path, right) -> None:
    draw_reliability(tmp_path, TABLE[:1].assign(rank=2 - right))
    assert (tmp_path / "reliability.png").stat().st_size > 1000
