import os
import weakref
from pathlib import Path

import pytest
import torch
from command import disk_of
from support import refused
from torch import Tensor

from fedflow.errors import FedflowError
from fedflow.simulation.clients import ClientStore

FIRST = {"model": torch.arange(3.0), "c": torch.zeros(2, dtype=torch.float64)}


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ClientStore:
    return ClientStore(FIRST, 1000, tmp_path if request.param == "files" else None)


def row(value: float) -> Tensor:
    return torch.full((3,), float(value))


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


def test_rows_are_on_the_host_until_they_are_used() -> None:
    device = torch.device("meta")  # nothing of it can be copied to the host
    store = ClientStore({"model": torch.zeros(3, device=device)}, 10)
    store.put(5, {"model": row(1)})
    assert store.get(5)["model"].device == device
    with pytest.raises(NotImplementedError, match="meta"):
        store.put(5, {"model": torch.ones(3, device=device)})
    again = ClientStore({"model": FIRST["model"]}, 10)
    again.restore(store.changes())
    assert torch.equal(again.get(5)["model"], row(1))


def test_returned_rows_do_not_change_afterwards(store: ClientStore) -> None:
    store.put(5, {"model": row(1)})
    store.settle()
    before = store.get(5)["model"]
    store.put(5, {"model": row(2)})
    store.settle()
    assert torch.equal(before, row(1))


def files(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*.bin")}


def test_a_row_is_written_once_to_a_file_that_no_checkpoint_needs(tmp_path: Path) -> None:
    store = ClientStore(FIRST, 2000, tmp_path)
    store.put(5, {"model": row(1)})
    assert files(tmp_path) == {"clients-model/0/5-1.bin": 12}
    store.put(5, {"model": row(2)})
    store.put(1999, {"model": row(2)})
    assert files(tmp_path) == {"clients-model/0/5-1.bin": 12, "clients-model/1/1999-1.bin": 12}
    saved = store.changes()
    assert all(t.numel() < 2001 for t in saved.values()) and not any(
        name.startswith("rows") for name in saved
    )
    store.settle()
    store.put(5, {"model": row(3)})
    assert files(tmp_path).keys() >= {"clients-model/0/5-0.bin", "clients-model/0/5-1.bin"}
    store.changes()
    store.settle()
    assert files(tmp_path) == {"clients-model/0/5-0.bin": 12, "clients-model/1/1999-1.bin": 12}


def test_a_file_has_only_the_entries_of_its_network(tmp_path: Path) -> None:
    store = ClientStore(FIRST, 10, tmp_path)
    store.put(1, {"model": torch.ones(2)})
    assert files(tmp_path) == {"clients-model/0/1-1.bin": 8}
    again = ClientStore(FIRST, 10, tmp_path)
    again.restore(store.changes())
    assert torch.equal(again.get(1)["model"], torch.ones(2))


def test_a_store_killed_between_two_checkpoints_has_the_rows_of_the_first(tmp_path: Path) -> None:
    store = ClientStore(FIRST, 10, tmp_path)
    store.put(1, {"model": row(1)})
    checkpoint = store.changes()
    store.settle()
    store.put(1, {"model": row(2)})
    store.put(2, {"model": row(3)})
    os.truncate(tmp_path / "clients-model/0/2-1.bin", 5)  # a write that was cut off in the middle
    for settled in (False, True):  # killed again, before and after the next checkpoint
        again = ClientStore(FIRST, 10, tmp_path)
        again.restore(checkpoint)
        assert torch.equal(again.get(1)["model"], row(1))
        assert again.get(2)["model"] is FIRST["model"]
        again.put(1, {"model": row(4)})
        again.put(2, {"model": row(5)})
        if settled:
            later = again.changes()
            again.settle()
    last = ClientStore(FIRST, 10, tmp_path)
    last.restore(later)
    assert torch.equal(last.get(1)["model"], row(4)) and torch.equal(last.get(2)["model"], row(5))
    assert len(files(tmp_path)) == 2


def test_rows_of_an_earlier_process_are_compared_with_their_digests(tmp_path: Path) -> None:
    store = ClientStore(FIRST, 10, tmp_path)
    for k in (1, 2):
        store.put(k, {"model": row(k)})
    checkpoint = store.changes()
    store.settle()
    row(7).numpy().tofile(tmp_path / "clients-model/0/2-1.bin")
    again = ClientStore(FIRST, 10, tmp_path)
    again.restore(checkpoint)
    assert torch.equal(again.get(1)["model"], row(1))
    with pytest.raises(
        FedflowError, match=r"0/2-1.bin is damaged \(it is not what was saved\); delete .* start over$"
    ):
        again.get(2)
    again.put(2, {"model": row(5)})
    assert torch.equal(again.get(2)["model"], row(5))
    (tmp_path / "clients-model/0/1-1.bin").unlink()
    with pytest.raises(FedflowError, match=r"1-1.bin is damaged \(it does not exist\)"):
        ClientStore(FIRST, 10, tmp_path).restore(checkpoint)


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    store, wide = ClientStore(FIRST, 10, tmp_path), torch.zeros(100_000)
    for value in (row(1), wide):
        with disk_of(0), refused(rf"cannot write {tmp_path}\S+\.bin: \[Errno", FedflowError):
            store.put(1, {"model": value})


def test_memory_and_the_device_hold_no_rows(tmp_path: Path) -> None:
    store = ClientStore({"model": torch.zeros(10_000)}, 10, tmp_path)
    value = torch.ones(10_000)
    store.put(3, {"model": value})
    gone = weakref.ref(value)
    del value
    assert gone() is None and not any(isinstance(v, Tensor) for v in store._held["model"].values())


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


@pytest.mark.parametrize("resumed", [False, True])
def test_rows_of_any_shape_are_read_as_they_were_written(store: ClientStore, resumed: bool) -> None:
    first = {"count": torch.tensor(0), "table": torch.zeros(2, 3)}
    kept = {"count": torch.tensor(16777217), "table": torch.arange(6.0).view(2, 3)}
    stores = [ClientStore(first, 10, store.folder) for _ in range(2)]
    stores[0].put(1, kept)
    if resumed:
        stores[1].restore(stores[0].changes())
    for name, row in stores[resumed].get(1).items():
        assert row.dtype == kept[name].dtype and torch.equal(row, kept[name])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("other", torch.zeros(3), "clients keep 'other', which client_state does not return"),
        ("model", torch.zeros(3).long(), r"'model' as int64 \[3\], client_state returns float32 \[3\]"),
        ("model", torch.tensor(1.0), r"'model' as float32 \[\], client_state returns float32 \[3\]"),
    ],
)
def test_rows_are_like_the_initial_value(store: ClientStore, name: str, value: Tensor, said: str) -> None:
    with pytest.raises(FedflowError, match=said):
        store.put(5, {name: value})
