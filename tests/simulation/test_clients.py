from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedflow.errors import FedflowError
from fedflow.simulation.clients import ClientStore

FIRST = {"model": torch.arange(3.0), "c": torch.zeros(2, dtype=torch.float64)}


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ClientStore:
    return ClientStore(FIRST, 1000, tmp_path if request.param == "files" else None)


def row(value: float) -> Tensor:
    return torch.full((3,), value)


def test_clients_that_never_trained_share_the_initial_value(store: ClientStore) -> None:
    store.put(5, {"model": row(1)})
    assert all(store.get(k)["model"] is FIRST["model"] for k in (0, 4, 6, 999))
    assert store.get(5)["c"] is FIRST["c"]


@pytest.mark.parametrize("settled", [False, True])
def test_rows_are_read_as_they_were_written(store: ClientStore, settled: bool) -> None:
    store.put(5, {"model": row(0.1), "c": torch.tensor([1 / 3, 2], dtype=torch.float64)})
    store.put(7, {"model": row(2)})
    store.put(7, {"model": row(3)})
    if settled:
        store.settle()
    assert torch.equal(store.get(5)["model"], row(0.1))
    assert torch.equal(store.get(5)["c"], torch.tensor([1 / 3, 2], dtype=torch.float64))
    assert torch.equal(store.get(7)["model"], row(3))


def test_returned_rows_do_not_change_afterwards(store: ClientStore) -> None:
    store.put(5, {"model": row(1)})
    store.settle()
    before = store.get(5)["model"]
    store.put(5, {"model": row(2)})
    store.settle()
    assert torch.equal(before, row(1))


def test_a_checkpoint_carries_only_what_changed(tmp_path: Path) -> None:
    store = ClientStore(FIRST, 1000, tmp_path)
    store.put(5, {"model": row(1)})
    store.settle()
    store.put(7, {"model": row(2)})
    changes = store.changes()
    assert changes["ids/model"].tolist() == [7]
    assert "rows/c" not in changes
    assert changes["written/model"].nonzero().flatten().tolist() == [5, 7]


def test_memory_holds_no_settled_rows_and_files_hold_no_unwritten_ones(tmp_path: Path) -> None:
    store = ClientStore({"model": torch.zeros(10_000)}, 1000, tmp_path)
    store.put(3, {"model": torch.ones(10_000)})
    store.settle()
    assert store._recent == {"model": {}}
    stat = (tmp_path / "clients-model.bin").stat()
    assert stat.st_size == 1000 * 40_000
    assert stat.st_blocks * 512 < 200_000  # sparse


def test_a_store_killed_before_settling_settles_again(tmp_path: Path) -> None:
    store = ClientStore(FIRST, 10, tmp_path)
    store.put(1, {"model": row(1)})
    store.settle()
    store.put(1, {"model": row(2)})
    store.put(2, {"model": row(3)})
    checkpoint = store.changes()
    store._file("model")[1] = 99  # a write that was cut off in the middle
    again = ClientStore(FIRST, 10, tmp_path)
    again.restore(checkpoint)
    assert torch.equal(again.get(1)["model"], row(2))
    assert torch.equal(again.get(2)["model"], row(3))
    assert again.get(3)["model"] is FIRST["model"]


def test_rows_of_an_earlier_process_are_compared_with_their_digests(tmp_path: Path) -> None:
    store = ClientStore(FIRST, 10, tmp_path)
    for k in (1, 2):
        store.put(k, {"model": row(k)})
    store.settle()
    checkpoint = store.changes()
    store._file("model")[2, 1] += 1
    again = ClientStore(FIRST, 10, tmp_path)
    again.restore(checkpoint)
    assert torch.equal(again.get(1)["model"], row(1))
    with pytest.raises(FedflowError, match=r"clients-model.bin is damaged .*client 2 .* start over$"):
        again.get(2)
    again.put(2, {"model": row(5)})
    again.settle()
    assert torch.equal(again.get(2)["model"], row(5))


def test_rows_after_the_last_checkpoint_are_dropped(store: ClientStore) -> None:
    store.put(1, {"model": row(1)})
    checkpoint = store.changes()
    store.settle()
    store.put(1, {"model": row(2)})
    store.put(2, {"model": row(2)})
    again = ClientStore(FIRST, 1000, store.folder)
    again.restore(checkpoint)
    assert torch.equal(again.get(1)["model"], row(1))
    assert again.get(2)["model"] is FIRST["model"]
