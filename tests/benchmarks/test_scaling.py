"""The unit costs of rows on disk, measured on few clients, and the costs that follow from the kept ones."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import scaling
from benchmarks.machine import RESULTS


@pytest.mark.parametrize("kind", scaling.KINDS)
def test_rows_of_few_clients_are_measured(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scaling, "ROWS", {1000: 20})
    monkeypatch.setattr(scaling, "COHORT", 5)
    monkeypatch.setenv("SCALING_FOLDER", str(tmp_path))
    found = scaling.rows(kind, 1000)
    assert found["rows"] == 20 and found["files"] == (20 if kind == "files" else 1)
    assert 20 * 4096 <= found["gb_on_disk"] * 1e9 <= 40 * 4096
    assert found["write_s"] > 0 and found["resume_s"] > 0 and not [*tmp_path.iterdir()]


def test_a_mapped_row_is_the_last_one_and_keeps_that_of_the_checkpoint(tmp_path: Path) -> None:
    store = scaling.Mapped(1500, 30, tmp_path, 10)
    for value in (1.0, 2.0):
        store.put(25, {"v": torch.full((1500,), value)})
        store.settle()
    assert (store.get(25) == 2).all() and (store.maps[2][5, 1, :1500] == 1).all()
    assert [path.name for path in tmp_path.iterdir()] == ["2.bin"]


def test_costs_follow_from_the_units_that_were_kept() -> None:
    kept = json.loads((RESULTS / "cpu-scaling.json").read_text())["measured"]
    assert scaling.derived(kept["units"]) == kept["derived"]
    assert kept["derived"]["network"]["GB to the workers"] == 25.6
