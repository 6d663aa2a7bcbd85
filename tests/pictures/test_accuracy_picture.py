"""Curves of long runs: few points, and the same envelope."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedflow.pictures.accuracy import STRETCHES, curve


def drawn(rounds: int, seeds: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Accuracies [seeds, T] in percent, the points of the line, and the heights of the band, all rounded."""
    values = np.random.default_rng(rounds).random((seeds, rounds))
    tables = (
        pd.DataFrame(
            {"round": np.arange(1, rounds + 1), "bytes_down": 1, "bytes_up": 1, "global_accuracy": row}
        )
        for row in values
    )
    runs = [SimpleNamespace(label="FedAvg", rounds=table) for table in tables]
    axes = curve({"fedavg": runs}, {"fedavg": 0}, "global_accuracy", "round", "c").axes
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    return 100 * values, axes.lines[0].get_xydata().round(9), band.round(9)


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_long_curve_keeps_the_extremes_of_every_stretch(seeds):
    values, points, band = drawn(2000, seeds)
    assert STRETCHES < len(points) <= 4 * STRETCHES + 2
    mean, values = values.mean(0).round(9), values.round(9)
    assert points[0].tolist() == [1, mean[0]] and points[-1].tolist() == [2000, mean[-1]]
    kept = set(points[:, 1])
    for stretch in np.split(mean, STRETCHES):
        assert {stretch.min(), stretch.max()} <= kept
    assert band.min() == values.min() and band.max() == values.max()


def test_a_curve_of_fewer_rounds_has_them_all():
    values, points, _ = drawn(4 * STRETCHES)
    assert points[:, 1].tolist() == values[0].round(9).tolist()
