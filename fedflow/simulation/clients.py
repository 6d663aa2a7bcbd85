"""What clients keep between rounds: rows of [N, n] arrays, in memory or in memory-mapped files."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedflow.errors import FedflowError


class FirstOf(NamedTuple):
    """Initial vectors that differ between clients: ``of(client)``, at most as long as the ``largest``."""

    of: Callable[[int], Tensor]
    largest: Tensor


class ClientStore:
    """Named vectors per client. Clients that never trained have the initial value, so they take no space.

    ``first`` are initial values by name: one vector for all, or `FirstOf`. Rows of clients with a smaller
    network may be shorter.

    With a ``folder``, the rows are in memory-mapped files (sparse where no row was written), and only changes
    since the last checkpoint are in memory: `changes` goes into the checkpoint, then `settle` writes it to
    the files. A run killed at any point resumes from the checkpoint by settling its changes again.
    A checkpoint also has a digest of every row in the files, which is compared when the row is first read.
    """

    def __init__(
        self, first: Mapping[str, Tensor | FirstOf], clients: int, folder: Path | None = None
    ) -> None:
        self.clients, self.folder = clients, folder
        self._made = {name: value.of for name, value in first.items() if not isinstance(value, Tensor)}
        self.first = {
            name: value if isinstance(value, Tensor) else value.largest for name, value in first.items()
        }
        self.written = {name: np.zeros(clients, dtype=bool) for name in first}
        self._lengths = {name: np.zeros(clients, dtype=np.int64) for name in first}  # of written rows
        self._recent: dict[str, dict[int, Tensor]] = {name: {} for name in first}
        self._digests = {name: np.zeros(clients, dtype=np.int64) for name in first}  # of rows in the files
        self._unread = {name: np.zeros(clients, dtype=bool) for name in first}  # rows of an earlier process

    def get(self, client: int, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Vectors of one client (all, or ``names``); the initial value where none was written."""
        return {name: self._row(name, client) for name in (self.first if names is None else names)}

    def has(self, client: int, name: str) -> bool:
        """Whether a vector of one client was ever written; newcomers keep nothing yet."""
        return client < self.clients and bool(self.written[name][client])

    def put(self, client: int, values: Mapping[str, Tensor]) -> None:
        """Replace vectors of one client."""
        for name, value in values.items():
            self._recent[name][client] = value.detach()
            self.written[name][client], self._lengths[name][client] = True, value.numel()

    def changes(self) -> dict[str, Tensor]:
        """The rows written since the last `settle`, which rows exist, and digests of rows in the files."""
        tensors: dict[str, Tensor] = {}
        for name, rows in self._recent.items():
            tensors[f"written/{name}"] = torch.from_numpy(self.written[name].astype(np.uint8))
            tensors[f"digests/{name}"] = torch.from_numpy(self._digests[name][self.written[name]])
            tensors[f"lengths/{name}"] = torch.from_numpy(self._lengths[name][self.written[name]])
            if rows:
                ids, width = sorted(rows), self.first[name].numel()
                own = [rows[k].cpu() for k in ids]
                tensors[f"ids/{name}"] = torch.tensor(ids)
                tensors[f"rows/{name}"] = torch.stack(
                    [row if row.numel() == width else pad(row, (0, width - row.numel())) for row in own]
                )
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state of a checkpoint, and settle its changes, again if necessary.

        Raises `FedflowError` if a file lacks rows that the checkpoint does not have either.
        """
        for name in self.first:
            written = self.written[name] = tensors[f"written/{name}"].numpy().astype(bool)
            self._digests[name][written] = tensors[f"digests/{name}"].numpy()
            self._lengths[name][written] = tensors[f"lengths/{name}"].numpy()
            self._unread[name] = written.copy()
            if f"ids/{name}" in tensors:
                device = self.first[name].device
                ids, rows = tensors[f"ids/{name}"].tolist(), tensors[f"rows/{name}"].to(device)
                self._recent[name] = {k: row[: self._lengths[name][k]] for k, row in zip(ids, rows)}
            if self.folder and written.any():
                self._file(name)
        self.settle()

    def settle(self) -> None:
        """Write recent rows to the files, if there is a folder."""
        if self.folder is None:
            return
        for name, rows in self._recent.items():
            if not rows:
                continue
            dtype, width = self._file(name).dtype, self.first[name].numel()
            # Not through a map, where every page in a hole of the file costs a page fault and a block.
            with self._path(name).open("r+b") as file:
                for k in sorted(rows):
                    row = np.ascontiguousarray(rows[k].cpu().numpy(), dtype=dtype)
                    file.seek(k * width * dtype.itemsize)
                    file.write(row.data)
                    self._digests[name][k], self._unread[name][k] = _digest(row), False
                file.flush()
                os.fsync(file.fileno())
            rows.clear()

    def _row(self, name: str, client: int) -> Tensor:
        if not self.has(client, name):
            return self._made[name](client) if name in self._made else self.first[name]
        if client in self._recent[name]:
            return self._recent[name][client]
        row = np.array(self._file(name)[client, : self._lengths[name][client]])
        if self._unread[name][client]:
            if _digest(row) != self._digests[name][client]:
                raise self._damaged(name, f"the row of client {client} is not what was saved")
            self._unread[name][client] = False
        return torch.from_numpy(row).to(self.first[name].device)

    def _file(self, name: str) -> np.memmap:
        """The rows [N, n], newly mapped: pages count as resident only while this map is in use."""
        assert self.folder is not None
        first = self.first[name]
        path, shape = self._path(name), (self.clients, first.numel())
        dtype = np.dtype(str(first.dtype).removeprefix("torch."))
        self.folder.mkdir(parents=True, exist_ok=True)
        size = shape[0] * shape[1] * dtype.itemsize
        whole = path.exists() and path.stat().st_size == size
        if not whole and self.written[name].sum() > len(self._recent[name]):  # more than memory can restore
            raise self._damaged(name, f"it does not have {size:,} bytes")
        return np.memmap(path, dtype=dtype, mode="r+" if whole else "w+", shape=shape)

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"clients-{name}.bin"

    def _damaged(self, name: str, reason: str) -> FedflowError:
        return FedflowError(f"{self._path(name)} is damaged ({reason}); delete its folder to start over")


def _digest(row: np.ndarray) -> int:
    """A hash of one client's row, 64 bits."""
    return int.from_bytes(hashlib.blake2b(row.data, digest_size=8).digest(), "little", signed=True)
