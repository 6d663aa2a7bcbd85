"""The example scripts run, and say in one line what they miss."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(monkeypatch: pytest.MonkeyPatch, script: str, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with two datasets of 28 x 28 noise, brighter in a place that depends on the class."""
    rng = np.random.default_rng(0)
    for name in ("mnist", "fmnist"):
        y = np.arange(60) % 10
        x = rng.integers(0, 50, (60, 28, 28))
        x[np.arange(60), 10 + y % 2] += 200
        arrays = {"x_train": x.astype(np.uint8), "y_train": y.astype(np.uint8)}
        np.savez(tmp_path / name, **arrays, x_test=arrays["x_train"], y_test=arrays["y_train"])
    return tmp_path


def test_the_study_of_gaussians_prints_measured_and_published_values(monkeypatch, capsys):
    run(monkeypatch, "gaussian_study.py", "--seeds", "10")
    lines = capsys.readouterr().out.splitlines()
    bhattacharyya, kl = ([float(value) for value in lines[row].split()[2:]] for row in (1, 3))
    # population 2.5, 10, 0.59, 1.44, 2.94, and the excess of covariances of 100 samples
    assert bhattacharyya == pytest.approx([3.4, 11.8, 1.18, 1.95, 3.34], rel=0.1)
    assert kl == pytest.approx([15.5, 53, 3.48, 5.38, 8.78], rel=0.1)
    assert lines[2].split() == ["published", "3.07", "10.31", "1.14", "-", "2.13"]
    mmd, angle = ([float(value) for value in lines[row].split()[-5:]] for row in (5, 7))
    assert mmd[0] < 0.55 and mmd[1] > 0.75  # published 0.6218, 0.6238
    assert angle[0] < 8 and angle[1] < 8  # published 10.73, 18.41


def test_angles_of_the_data_sets_at_hand(monkeypatch, capsys, root):
    out = root / "pictures" / "classes.png"
    run(monkeypatch, "dataset_angles.py", "--data", str(root), "--classes", "mnist", "--out", str(out))
    printed = capsys.readouterr().out
    assert "fmnist - mnist" in printed and "not available: cifar10, svhn, usps, emnist_letters" in printed
    assert "super cluster: 0, 2, 4, 6, 8" in printed and "super cluster: 1, 3, 5, 7, 9" in printed
    assert out.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--classes", "cifar10"), "error: cifar10 is not in .*; give the folder that has it with --data"),
        (("--classes", "fmnst"), "error: data.source: 'fmnst' is not accepted .*did you mean 'fmnist'"),
        (("--out", "x.xyz"), "error: --out: 'x.xyz' is not accepted; expected the name of a file"),
        (("--p", "0"), "error: p: 0 is not accepted; expected a whole number >= 1$"),
        (("--samples", "0"), "error: samples: 0 is not accepted; expected a whole number >= 1$"),
    ],
)
def test_one_line_says_what_is_wrong(monkeypatch, root, arguments, message):
    with pytest.raises(SystemExit, match=message):
        run(monkeypatch, "dataset_angles.py", "--data", str(root), *arguments)
