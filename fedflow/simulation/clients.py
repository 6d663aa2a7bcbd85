"""The vectors that clients keep between rounds: a row [n] each, in memory or in a file."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import FedflowError


class FirstOf(NamedTuple):
    """Initial vectors that differ between clients: ``of(client)``, at most as long as the ``largest``."""

    of: Callable[[int], Tensor]
    largest: Tensor


class ClientStore:
    """Named vectors per client. Clients that never trained have the initial value, and need no memory.

    ``first`` are initial values by name: one vector for all, or `FirstOf`. Rows of clients with a smaller
    network may be shorter.

    Rows are in host memory, or, with a ``folder``, in files: each row is written once in its round and not
    kept in memory. A client has two files in turn, so that a new row never overwrites the row of the last
    checkpoint. `changes` goes into the checkpoint and says which file counts, with a digest that another
    process compares when it first reads the row; then `settle` deletes the other files. So a run killed at
    any point resumes from the rows of its checkpoint.
    """

    def __init__(
        self, first: Mapping[str, Tensor | FirstOf], clients: int, folder: Path | None = None
    ) -> None:
        self.clients, self.folder = clients, folder
        self._made = {name: value.of for name, value in first.items() if not isinstance(value, Tensor)}
        self.first = {
            name: value if isinstance(value, Tensor) else value.largest for name, value in first.items()
        }

        def by_name(dtype: type) -> dict[str, np.ndarray]:
            return {name: np.zeros(clients, dtype=dtype) for name in first}

        self.written, self._lengths = by_name(bool), by_name(np.int64)  # lengths of written rows
        self._turn, self._digests = by_name(np.uint8), by_name(np.int64)  # of its file, with a folder
        self._unread = by_name(bool)  # rows of an earlier process
        self._held: dict[str, dict[int, Tensor]] = {name: {} for name in first}  # without a folder
        self._changed: dict[str, set[int]] = {name: set() for name in first}  # since the last checkpoint

    @property
    def _packed(self) -> dict[str, dict[str, np.ndarray]]:
        """The properties of written rows that are part of a checkpoint."""
        return {"digests": self._digests, "lengths": self._lengths, "turn": self._turn}

    def get(self, client: int, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Vectors of one client (all, or ``names``), by default the initial value."""
        return {name: self._row(name, client) for name in (self.first if names is None else names)}

    def has(self, client: int, name: str) -> bool:
        """True if a vector of one client was ever written; newcomers keep nothing yet."""
        return client < self.clients and bool(self.written[name][client])

    def put(self, client: int, values: Mapping[str, Tensor]) -> None:
        """Replace vectors of one client; `FedflowError` if a name, type or shape is not of a first one."""
        for name, value in values.items():
            self._check(name, value)
            if self.folder is None:
                self._held[name][client] = value.detach().cpu()
            else:
                self._write(name, client, value.detach())
            self.written[name][client], self._lengths[name][client] = True, value.numel()

    def changes(self) -> dict[str, Tensor]:
        """The content of a checkpoint: which rows exist, and their values or the files, which are on disk."""
        tensors: dict[str, Tensor] = {}
        for name, written in self.written.items():
            tensors[f"written/{name}"] = torch.from_numpy(written.astype(np.uint8))
            for kind, of in self._packed.items():
                tensors[f"{kind}/{name}"] = torch.from_numpy(of[name][written])
            if rows := self._held[name]:
                tensors[f"rows/{name}"] = torch.cat([rows[k].flatten() for k in sorted(rows)])
            for k in self._changed[name]:
                with self._path(name, k).open("rb") as file:
                    os.fsync(file.fileno())
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state of a checkpoint. Raises `FedflowError` if the file of a row is missing."""
        for name in self.first:
            written = self.written[name] = tensors[f"written/{name}"].numpy().astype(bool)
            for kind, of in self._packed.items():
                of[name][written] = tensors[f"{kind}/{name}"].numpy()
            ids = np.flatnonzero(written).tolist()
            if f"rows/{name}" in tensors:
                rows = tensors[f"rows/{name}"].cpu().split(self._lengths[name][ids].tolist())
                self._held[name] = dict(zip(ids, rows))
            else:
                self._unread[name] = written.copy()
                for k in ids:
                    if not self._path(name, k).exists():
                        raise self._damaged(name, k, "it does not exist")

    def settle(self) -> None:
        """Delete the rows that the new checkpoint does not need."""
        for name, clients in self._changed.items():
            for k in clients:
                self._path(name, k, 1 - int(self._turn[name][k])).unlink(missing_ok=True)
            clients.clear()

    def _check(self, name: str, value: Tensor) -> None:
        first = self.first.get(name)
        if first is None:
            raise FedflowError(f"clients keep {name!r}, which client_state does not return")
        if value.dtype != first.dtype or (value.shape != first.shape and (value.ndim, first.ndim) != (1, 1)):
            kept, expected = (f"{str(t.dtype)[6:]} {[*t.shape]}" for t in (value, first))
            raise FedflowError(f"clients keep {name!r} as {kept}, client_state returns {expected}")

    def _row(self, name: str, client: int) -> Tensor:
        if not self.has(client, name):
            return self._made[name](client) if name in self._made else self.first[name]
        row, first = self._saved(name, client), self.first[name]
        return row if first.ndim == 1 else row.view(first.shape)

    def _saved(self, name: str, client: int) -> Tensor:
        if client in self._held[name]:
            return self._held[name][client].to(self.first[name].device)
        row = np.fromfile(self._path(name, client), self._dtype(name))
        if self._unread[name][client]:
            if len(row) != self._lengths[name][client] or _digest(row) != self._digests[name][client]:
                raise self._damaged(name, client, "it is not what was saved")
            self._unread[name][client] = False
        return torch.from_numpy(row).to(self.first[name].device)

    def _write(self, name: str, client: int, value: Tensor) -> None:
        if client not in self._changed[name]:
            self._turn[name][client] ^= 1
            self._changed[name].add(client)
        path = self._path(name, client)
        row = np.ascontiguousarray(value.cpu().numpy(), dtype=self._dtype(name)).reshape(-1)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.write(row.data)
        except OSError as error:
            raise FedflowError(f"cannot write {path}: {error}") from error
        self._digests[name][client], self._unread[name][client] = _digest(row), False

    def _dtype(self, name: str) -> np.dtype:
        return np.dtype(str(self.first[name].dtype).removeprefix("torch."))

    def _path(self, name: str, client: int, turn: int | None = None) -> Path:
        """The file of a row; a folder has the files of at most 1,000 clients."""
        assert self.folder is not None
        turn = int(self._turn[name][client]) if turn is None else turn
        return self.folder / f"clients-{name}" / str(client // 1000) / f"{client}-{turn}.bin"

    def _damaged(self, name: str, client: int, reason: str) -> FedflowError:
        path = self._path(name, client)
        return FedflowError(f"{path} is damaged ({reason}); delete {self.folder} to start over")


def _digest(row: np.ndarray) -> int:
    return int.from_bytes(hashlib.blake2b(row.data, digest_size=8).digest(), "little", signed=True)
