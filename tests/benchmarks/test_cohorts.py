"""The comparison of vmapped cohorts with loops, at sizes that a CPU trains at once."""

import warnings

import pytest
import torch

from benchmarks import cohorts
from benchmarks.table import _cohorts


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"STEPS": {"lenet5": 1}, "WARM_UPS": 0, "CALLS": 1, "VARIED": 2, "LOOP_CLIENTS": 1, "IMAGES": 20}
    for name, value in (small | {"FORMS": (("grouped", "float32"),)}).items():
        monkeypatch.setattr(cohorts, name, value)


def measured() -> dict:
    return cohorts.measure("cpu", "lenet5", 2, [1, 2], seconds=150.0)


def test_every_way_and_width_is_a_cell(tiny) -> None:
    found = measured()
    ways = [(cell["way"], cell["clients"], cell.get("width"), cell["convolution"]) for cell in found["cells"]]
    assert ways == [
        ("eager loop", 1, None, "matmul"),
        ("loop", 1, None, "matmul"),
        ("vmap", 1, 1, "matmul"),
        ("vmap", 2, 2, "matmul"),
        ("vmap", 2, 2, "grouped"),
    ]
    assert all(cell["client_steps_per_second"]["median"] > 0 for cell in found["cells"])
    assert not any("fell_back" in cell for cell in found["cells"])


def test_cells_say_how_many_clients_memory_allowed_and_that_they_fell_back(tiny, monkeypatch) -> None:
    train = cohorts.train_shard

    def short_of_memory(job, shard):
        if job.cohort == "vmap" and len(shard.clients) == 2:
            job.federation.cohorts.widths["this call",] = 1
            warnings.warn("fedavg: clients train one by one, because vmap failed", stacklevel=1)
        return train(job, shard)

    monkeypatch.setattr(cohorts, "train_shard", short_of_memory)
    found = measured()
    widths = [(cell["clients"], cell["width"]) for cell in found["cells"] if cell["way"] == "vmap"]
    assert widths == [(1, 1), (2, 1), (2, 1)]
    assert ["fell_back" in cell for cell in found["cells"]] == [False, False, False, True, True]
    table = _cohorts(found)
    assert "| lenet5, batch 2, vmap (fell back) | 2, 1 in a call |" in table
    assert "| lenet5, batch 2, vmap | 1 |" in table


def test_an_operation_without_a_batching_rule_counts_as_a_fallback() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch.func.vmap(torch.histc)(torch.ones(2, 3))
        warnings.warn("something else", stacklevel=1)
    (line,) = cohorts.slower_than_asked(heard)
    assert "performance drop" in line
