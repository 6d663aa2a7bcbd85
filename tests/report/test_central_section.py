"""The section on central training, and the reference accuracy of a partition."""

import json
from pathlib import Path

import pandas as pd
import pytest
from command import one_line_error
from result_folders import change, write_run

from fedflow.report.page import build_report


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run on a dataset, and two central networks: one on these data, a regression on others."""
    write_run(tmp_path / "results", "mnist5k-dir", "fedavg", 0)
    for name, data, accuracy in (("large", "5f2c9e01aa47d3b2", 0.9712), ("line", "other", None)):
        folder = tmp_path / "central" / name
        folder.mkdir(parents=True)
        facts = {
            "name": name,
            "dataset": f"{name}-data",
            "model": "lenet5",
            "data_hash": data,
            "seed": 0,
            "parameters": 44426,
            "epochs": 2,
            "train_loss": 0.25,
            "test_loss": 0.5,
            "test_accuracy": accuracy,
        }
        (folder / "metrics.json").write_text(json.dumps(facts))
        epochs = pd.DataFrame({"epoch": [1, 2], "train_loss": [1, 0.25], "test_loss": [1, 0.5]})
        if accuracy:
            epochs["test_accuracy"] = [0.5, accuracy]
        epochs.to_csv(folder / "epochs.csv", index=False)
    return tmp_path


def page(root: Path) -> str:
    return build_report(
        root / "results", root / "partitions", root / "report", central=root / "central"
    ).read_text()


def test_networks_are_listed_and_drawn_and_their_accuracy_is_a_reference(root: Path) -> None:
    text = page(root)
    section = text[text.index('<section id="central">') :].split("</section>")[0]
    assert section.count("Test accuracy by epoch") == 2 and section.count("Test loss by epoch") == 4
    for cells in (["97.1", "0.5000", "0.2500", "2", "44,426"], ["–", "0.5000", "0.2500", "2", "44,426"]):
        row = "".join(f'<td data-sort="{cell.replace(",", "")}">{cell}</td>' for cell in cells)
        assert row in section.replace("\n", "")
    accuracy = text[text.index('<section id="accuracy">') : text.index('<section id="curves">')]
    assert "Trained centrally, on all samples, one network reaches 97.1 % (large: lenet5)." in accuracy
    assert text == page(root)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("parameters", None, r"large/metrics.json: parameters is None"),
        ("test_accuracy", 97.1, r"large/metrics.json: test_accuracy is 97.1, not a number from 0 to 1"),
        ("seed", -1, r"large/metrics.json: seed is -1, not a number >= 0"),
        ("epochs", 3, r"large/epochs.csv: 2 rows for 3 epochs; `fedflow central large` trains it again$"),
    ],
)
def test_files_that_do_not_fit_are_one_line(root: Path, entry: str, value: object, message: str) -> None:
    change(root / "central" / "large" / "metrics.json", **{entry: value})
    with one_line_error(message):
        page(root)
