"""What the pictures of masks show, read from the figures themselves."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedflow.metrics.masks import Masks, compare
from fedflow.pictures.masks import (
    One,
    accuracy_by_share,
    by_shared_labels,
    draw_masks,
    layers,
    matrix,
    pruned,
)

SERIES = pd.DataFrame(
    [
        (1, 0, "client/pruned", 0.1),
        (3, 0, "client/pruned", 0.3),
        (2, 1, "client/pruned", 0.12),
        (1, 0, "client/gate_kept", 0.5),
        (3, 0, "client/gate_kept", 0.9),
        (2, 1, "client/gate_kept", 0.7),
    ],
    columns=["round", "client", "name", "value"],
)
LABELS = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 0]], dtype=bool)


@pytest.fixture
def masks() -> Masks:
    kept = np.random.default_rng(0).random((4, 40)) < 0.5
    kept[:, 30:] = True
    return compare(kept, range(4), {"a.weight": 10, "b.weight": 20, "c.weight": 10}, LABELS)


def test_a_pruned_share_is_held_until_the_client_takes_part_again() -> None:
    lines = [line.get_ydata() for line in pruned(SERIES, 3, 4, "p").axes.lines]
    expected = [[0, 10, 10, 30, 30], [0, 0, 12, 12, 12], [0] * 5, [0, 10 / 3, 22 / 3, 14, 14]]
    assert np.array(lines) == pytest.approx(np.array(expected))  # three clients and their mean


def test_the_mean_accuracy_is_over_clients_of_about_the_same_share() -> None:
    *clients, mean = accuracy_by_share(SERIES, "a").axes.lines
    assert [line.get_xydata().tolist() for line in clients] == [
        pytest.approx(np.array([[10, 50], [30, 90]])),
        pytest.approx(np.array([[12, 70]])),
    ]
    assert mean.get_xydata() == pytest.approx(np.array([[11, 60], [30, 90]]))


def test_clients_are_sorted_by_their_labels(masks: Masks) -> None:
    """Labels 0 and 1, 0 and 2, 1 and 2, 1."""
    axes = matrix(masks, "m").axes
    order = [3, 1, 2, 0]
    drawn, expected = axes.images[0].get_array(), 100 * masks.iou[np.ix_(order, order)]
    np.fill_diagonal(expected, np.nan)
    assert np.ma.filled(drawn, np.nan) == pytest.approx(expected, nan_ok=True)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1"]
    assert axes.get_yticks().tolist() == [1, 3]


def test_lines_by_shared_labels_are_means_over_seeds(masks: Masks) -> None:
    other = compare(np.ones((4, 40), dtype=bool), range(4), {}, LABELS)
    runs = {"un": [One("Un", masks), One("Un", other)]}
    (line,) = by_shared_labels(runs, {"un": 0}, "s").axes.lines
    means = {number: 50 * (1 + iou) for number, iou in masks.by_shared_labels().items()}
    assert dict(line.get_xydata().tolist()) == pytest.approx(means)


def test_bars_of_layers_are_means_and_percentiles(masks: Masks) -> None:
    axes = layers(masks, "l").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a  10", "b  20"]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(
        [100 * shares.mean() for shares in masks.layers.values()]
    )
    ends = np.array([path.vertices[:, 0] for path in axes.collections[0].get_paths()])
    assert ends == pytest.approx(
        100 * np.array([np.percentile(shares, (10, 90)) for shares in masks.layers.values()])
    )


def test_a_run_has_the_pictures_of_what_it_recorded(masks: Masks, tmp_path: Path) -> None:
    def written(name: str, *of: object) -> set[str]:
        draw_masks(tmp_path / name, "Un", *of, clients=3, rounds=4)  # type: ignore[arg-type]
        return {path.stem for path in (tmp_path / name).glob("*.png")}

    shared = {"overlap", "shared_labels", "layers"}
    assert written("all", masks, SERIES) == shared | {"pruned", "accuracy"}
    assert written("some", None, SERIES[SERIES["name"] == "client/pruned"]) == {"pruned"}
    assert written("none", None, SERIES[:0]) == set()
