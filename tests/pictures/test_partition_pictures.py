"""What the pictures of a partition show, read from the figures themselves."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedflow.partition import PartitionParams, Samples, make_partition
from fedflow.pictures.labels import draw_difficulty, draw_labels, label_shares


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The figure that is saved for the entry of params.yaml, its labels and an expert's losses."""
    figures: list[Figure] = []
    save = Figure.savefig

    def spy(figure: Figure, *args: object, **options: object) -> None:
        figures.append(figure)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", spy)

    def draw(
        labels: np.ndarray, picture: Callable = draw_labels, losses: np.ndarray | None = None, **entry: object
    ) -> Figure:
        params = PartitionParams.parse({"dataset": "d", **entry})
        samples = Samples(labels, labels[:10], losses=lambda difficulty: losses)
        picture(make_partition(params, samples), tmp_path / "picture.png")
        return figures[-1]

    return draw


def heights(figure: Figure, clients: int) -> np.ndarray:
    """Height of every client's bar, whatever it is made of."""
    bars = [[bar.get_height() for bar in bars] for bars in figure.axes[0].containers]
    return np.sum(bars, axis=0)[:clients]


def test_bars_are_as_high_as_clients_have_samples(drawn):
    figure = drawn(np.arange(100) % 10, scheme="iid", clients=8)
    assert sorted(heights(figure, 8)) == [12] * 4 + [13] * 4
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [str(label) for label in range(10)]


def test_newcomers_stand_behind_those_who_take_part_group_by_group(drawn):
    labels = np.repeat(np.arange(2), [80, 40])
    figure = drawn(labels, scheme="label_groups", groups=2, labels_per_group=1, clients=8, newcomers=0.5)
    axis = figure.axes[0]
    assert [text.get_text() for text in axis.texts] == ["4 newcomers"]
    first = [[bar.get_height() > 0 for bar in bars] for bars in axis.containers]
    assert np.array_equal(first[0], [*[first[0][0]] * 2, *[not first[0][0]] * 2] * 2)
    borders = sorted(line.get_xdata()[0] for line in axis.lines)
    assert borders == [1.5, 3.5, 5.5]


def test_targets_that_are_no_labels_leave_sizes_to_draw(drawn):
    figure = drawn(np.linspace(0, 1, 60), scheme="iid", clients=7)
    assert len(figure.axes) == 1 and figure.axes[0].get_legend() is None
    assert heights(figure, 7).sum() == 60
    assert "label" not in figure.axes[0].get_xlabel()


@pytest.mark.parametrize(
    ("clients", "shown"),
    [(1, "1 client"), (60, "60 clients, ordered by"), (500, "400 of 500 clients, ordered by")],
)
def test_many_labels_get_a_scale_and_of_many_clients_an_even_choice_is_shown(clients, shown, drawn):
    axis, bar = drawn(np.arange(2000) % 30, scheme="iid", clients=clients).axes
    assert axis.get_legend() is None and bar.get_ylim() == (0, 29)
    assert axis.get_xlabel().startswith(shown)


def test_a_loaded_partition_is_drawn_by_its_sizes(tmp_path):
    params = PartitionParams.parse({"dataset": "d", "scheme": "iid", "clients": 3})
    made = make_partition(params, Samples(np.arange(9) % 3, np.arange(3)))
    draw_labels(replace(made, label_counts=None), tmp_path / "sizes.png")
    assert (tmp_path / "sizes.png").stat().st_size > 1000


def test_bands_and_lines_are_quantiles_and_means_of_every_clients_losses(drawn):
    """Client k holds the losses 25 k to 25 k + 24; newcomers are the last clients."""
    entry = {"scheme": "iid", "clients": 4, "difficulty": {"losses": "losses.npy"}}
    axis = drawn(np.zeros(100, int), draw_difficulty, np.arange(100.0), **entry).axes[0]
    shapes = {patch.get_label(): patch.get_data() for patch in axis.patches}
    first = 25 * np.arange(4)
    for words, low, high in (("5 to 95 % of samples", 1.2, 22.8), ("25 to 75 % of samples", 6, 18)):
        np.testing.assert_allclose(shapes[words].baseline, first + low)
        np.testing.assert_allclose(shapes[words].values, first + high)
    np.testing.assert_allclose(shapes["median"].values, first + 12)
    np.testing.assert_allclose(shapes["mean"].values, first + 12)
    assert "100 % dealt by difficulty" in axis.get_title("left") and not axis.texts
    late = drawn(np.zeros(100, int), draw_difficulty, np.arange(100.0), newcomers=0.25, **entry).axes[0]
    assert [text.get_text() for text in late.texts] == ["newcomer"] and late.lines[0].get_xdata()[0] == 2.5


def test_of_many_clients_an_even_choice_has_its_difficulty_shown(drawn):
    entry = {"scheme": "iid", "clients": 500, "difficulty": {"losses": "losses.npy"}}
    axis = drawn(np.zeros(500, int), draw_difficulty, np.arange(500.0), **entry).axes[0]
    assert axis.get_xlabel() == "400 of 500 clients, from the first to the last"
    assert [patch.get_data().values[-1] for patch in axis.patches] == [499] * 4


def test_a_partition_without_an_expert_has_no_picture_of_difficulty(tmp_path):
    params = PartitionParams.parse({"dataset": "d", "scheme": "iid", "clients": 3})
    (tmp_path / "difficulty.png").write_bytes(b"of an earlier partition")
    draw_difficulty(make_partition(params, Samples(np.arange(9) % 3)), tmp_path / "difficulty.png")
    assert not (tmp_path / "difficulty.png").exists()


@pytest.mark.parametrize(
    ("clients", "numbered", "counted"), [(4, True, True), (20, True, False), (100, False, False)]
)
def test_labels_of_few_and_of_many_clients_are_legible(clients, numbered, counted):
    counts = np.eye(10, dtype=int)[np.arange(clients) % 10] * np.arange(1, clients + 1)[:, None]
    groups = np.arange(clients) % 2
    work = label_shares(counts, "labels", groups)
    axes, bars = work.figure.axes
    cells = axes.images[0].get_array()
    order = np.lexsort((counts.sum(1), counts.argmax(1), groups))
    assert np.array_equal(cells[..., 3] > 0, counts[order].T > 0)
    assert [int(tick.get_text()) for tick in axes.get_xticklabels()] == (order.tolist() if numbered else [])
    assert [text.get_text() for text in axes.texts] == ([str(k + 1) for k in order] if counted else [])
    assert [text.get_text() for text in bars.texts] == ["group 0", "group 1"]
    np.testing.assert_array_equal(bars.patches[0].get_data().values, counts[order].sum(1))
    smallest = min(float(size) for size in re.findall(r"font-size: ([0-9.]+)px", work.svg))
    assert smallest * 313 / (72 * work.figure.get_figwidth()) >= 11  # a phone of 390 px has 313 for it


def test_newcomers_are_the_last_columns():
    counts = np.array([[1, 2], [5, 0], [0, 5], [4, 4]])
    work = label_shares(counts, "labels", np.array([1, 0, -1, -1]), newcomers=2)
    axes, bars = work.figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "0", "3", "2"]
    assert [text.get_text() for text in bars.texts] == ["group 0", "group 1", "new"]
