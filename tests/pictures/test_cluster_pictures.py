"""The pictures of a clustered run: what is drawn where, not how it looks."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from fedflow.methods.protocols import Dissimilarity
from fedflow.pictures.clusters import (
    Grouping,
    embedding,
    moves,
    pictures_of,
    proximity,
    renamed,
    scaled,
    timeline,
)
from fedflow.pictures.drawing import MUTED


def apart(groups: list[int], seed: int = 0) -> np.ndarray:
    """Distances [N, N] of points on a line, a group of them around every tenth place."""
    at = 10 * np.array(groups) + np.random.default_rng(seed).uniform(0, 2, len(groups))
    return np.abs(at[:, None] - at)


def grouping(groups: list[int], found: list[int], **more) -> Grouping:
    compared = Dissimilarity(apart(groups), range(len(groups)), "angle, degrees", "wpgma", 5.0)
    return Grouping({2: found}, 4, groups, compared, **more)


def test_the_matrix_is_in_the_order_of_the_dendrogram_and_names_its_clients():
    """Groups of every other client lie together, and every cell is that of the clients it is named after."""
    groups = [0, 1, 0, 1, 0, 1]
    drawn = proximity(grouping(groups, groups), "x")
    order = [int(label.get_text()) for label in drawn.axes.get_yticklabels()]
    assert sorted(order) == list(range(6))
    assert [k % 2 for k in order] in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])
    cells = np.ma.filled(drawn.axes.images[0].get_array(), np.nan)
    expected = apart(groups)[np.ix_(order, order)]
    np.fill_diagonal(expected, np.nan)
    np.testing.assert_array_equal(cells, expected)
    assert "cut at 5" in drawn.svg and "angle, degrees" in drawn.svg


def test_stripes_of_groups_and_clusters_are_alike_where_they_agree():
    right = proximity(grouping([0, 0, 1, 1], [7, 7, 3, 3]), "x")
    wrong = proximity(grouping([0, 0, 1, 1], [7, 3, 3, 3]), "x")
    for drawn, alike in ((right, True), (wrong, False)):
        planted, found = (axes.images[0].get_array() for axes in drawn.figure.axes[1:3])
        assert np.array_equal(planted, found) == alike


def test_branches_within_a_cluster_have_its_color():
    """Four clients: two branches below the cut in the colors of two clusters, and the root in neither."""
    made = grouping([0, 0, 1, 1], [0, 0, 1, 1])
    (branches,) = proximity(made, "x").figure.axes[3].collections
    colors = [to_hex(color) for color in branches.get_colors()]
    assert set(colors[:2]) == {made.palette[0], made.palette[1]} and colors[2] not in made.palette.values()


def test_clients_whose_cluster_was_never_asked_for_are_seen_all_the_same():
    made = grouping([0, 0, 1, 1], [0, 0, -1, -1])
    (branches,) = proximity(made, "x").figure.axes[3].collections
    assert {to_hex(color) for color in branches.get_colors()} == {made.palette[0], MUTED}
    assert all(color[3] == 1 for color in branches.get_colors())
    points = [marks.get_facecolors() for marks in embedding(made, "x").axes.collections]
    assert [{to_hex(color) for color in group} for group in points] == [{made.palette[0]}, {MUTED}]


def test_the_embedding_keeps_distances():
    """Points of a line stay as far apart as they were; each group has its own shape."""
    groups = [0, 0, 0, 1, 1, 2]
    drawn = embedding(grouping(groups, [0, 0, 0, 1, 1, 1]), "x")
    points = np.concatenate([marks.get_offsets() for marks in drawn.axes.collections])
    distances = np.linalg.norm(points[:, None] - points, axis=-1)
    np.testing.assert_allclose(distances, apart(groups), atol=1e-6)
    assert [len(marks.get_offsets()) for marks in drawn.axes.collections] == [3, 2, 1]


def test_dissimilarities_that_no_points_have_are_embedded_all_the_same():
    """Sides of 1, 1 and 9 make no triangle: a line is left."""
    points = scaled(np.array([[0, 1, 1], [1, 0, 9], [1, 9, 0]]))
    assert np.isfinite(points).all() and np.ptp(points[:, 0]) > 1 and np.ptp(points[:, 1]) < 1e-6


def test_the_timeline_shows_who_moved_when():
    """Client 2 goes to the other cluster in round 3; before round 2 nobody has one."""
    made = Grouping({2: [0, 0, 0, -1], 3: [0, 0, 1, 1]}, 4, [0, 0, 1, 1])
    cells = timeline(made, "x").axes.images[0].get_array()
    names = {color: cluster for cluster, color in made.palette.items()}
    shown = [[names[to_hex(cell)] if cell[3] else -1 for cell in row] for row in cells]
    assert shown == [[-1, 0, 0, 0], [-1, 0, 0, 0], [-1, 0, 1, 1], [-1, -1, 1, 1]]


def test_moves_are_shares_of_clients_that_had_a_cluster_and_bands_as_wide_as_many_clients():
    """Round 3 moves one of the four that had a cluster, round 5 two of five; nobody moves in round 4."""
    history = {2: [0, 0, 0, 1, -1], 3: [0, 0, 1, 1, -1], 4: [0, 0, 1, 1, 1], 5: [1, 0, 1, 1, 0]}
    made = Grouping(history, 6)
    assert made.moved == {3: 1 / 4, 5: 2 / 5}
    drawn = moves(made, "x")
    assert [(round(bar.get_center()[0]), bar.get_height()) for bar in drawn.axes.patches] == [
        (3, 0.25),
        (5, 0.4),
    ]
    below = drawn.figure.axes[1]
    assert [label.get_text() for label in below.get_xticklabels()] == ["2", "3", "5"]
    columns = [patch for patch in below.patches if isinstance(patch, Rectangle)]
    assert [bar.get_height() for bar in columns] == pytest.approx(
        [3, 1, 1, 2, 2, 1, 2, 3]
    )  # of 0, 1 and none, by round
    widths = [np.ptp(patch.get_path().vertices[[0, -2], 1]) for patch in below.patches[len(columns) :]]
    assert widths == pytest.approx(
        [2, 1, 1, 1, 1, 1, 2, 1]
    )  # 0-0, 0-1, 1-1, none-none; 0-0, 0-1, 1-1, none-0


@pytest.mark.parametrize("history", [{1: [0, 1]}, {1: [0, -1], 2: [0, 1]}, {1: [0, 1], 3: [0, 1]}])
def test_clusters_that_nobody_leaves_have_no_picture_of_moves(history):
    assert "moves" not in [name for name, *_ in pictures_of(Grouping(history, 3))]


def test_the_timeline_leaves_out_whoever_was_never_asked():
    """Of a sample of clients 1 and 3, with a planted group that none of them is of."""
    drawn = timeline(Grouping({1: [-1, 1, -1, 0]}, 2, [0, 0, 1, 2]), "x")
    assert drawn.axes.images[0].get_array().shape[:2] == (2, 2)
    assert [label.get_text() for label in drawn.axes.get_yticklabels()] == ["1", "3"]
    assert "cluster -1" not in drawn.svg


def test_the_timeline_of_very_many_clients_has_a_row_for_some_of_each_cluster():
    found = np.repeat([0, 1], [50_000, 25_000])
    cells = timeline(Grouping({1: found}, 3), "x").axes.images[0].get_array()
    assert cells.shape[:2] == (2000, 3)
    assert (cells[:, 0] == cells[0, 0]).all(1).sum() == pytest.approx(2000 * 2 / 3, abs=1)


def test_clusters_that_are_renumbered_keep_the_color_of_most_of_their_clients():
    """Rounds call the same two clusters 0 and 1, then 1 and 4; a third one is new."""
    history = {1: [0, 0, 1, 1, 5], 2: [1, 1, 4, 4, 4]}
    *known, new = Grouping(history, 2, stable_cluster_ids=False).steps[1].tolist()
    assert known == [1, 1, 4, 4] and new > 4
    assert Grouping(history, 2).steps[1].tolist() == history[1]


def test_clients_without_a_cluster_get_no_number_and_take_none():
    assert renamed(np.array([-1, -1, 0]), np.array([2, 2, 3])).tolist() == [-1, -1, 3]


@pytest.mark.parametrize("compared", [None, Dissimilarity(np.zeros((2, 2)), [0, 3], "loss")])
def test_clients_that_are_not_compared_have_a_timeline_only(compared):
    made = Grouping({1: [0, 1, 0, 1]}, 1, compared=compared)
    assert [name for name, *_ in pictures_of(made)] == ["assignment"]


def test_pictures_of_a_hundred_clients_have_the_same_bytes_again(tmp_path):
    """Twelve groups, as many clusters as colors and more, and the server compares every other client."""
    groups = sorted(list(range(12)) * 8 + [0] * 4)
    compared = Dissimilarity(apart(groups[::2]), range(0, 100, 2), "loss")
    made = Grouping({3: groups, 7: groups[::-1]}, 10, groups, compared)
    assert len(set(made.palette.values())) == 13
    for name, _, draw in pictures_of(made):
        for take in ("a", "b"):
            draw(made, name).png(tmp_path / f"{take}.png")
        assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
        assert draw(made, name).svg == draw(made, name).svg
