"""A partition: which training samples every client holds, and on which test samples it is scored."""

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedflow.data.files import reason
from fedflow.errors import BadInput, FedflowError
from fedflow.partition.base import PartitionParams
from fedflow.random import generator

ARRAYS = ("offsets", "indices", "pool_offsets", "pool_indices", "own_offsets", "own_pools", "groups")


@dataclass(frozen=True, eq=False)
class Partition:
    """Index lists in compressed rows, so that 100,000 clients are seven arrays.

    Client k trains on ``indices[offsets[k]:offsets[k+1]]``. Its test set is the union of disjoint test
    pools (one per label, per domain, or one of its own): ``own_pools[own_offsets[k]:own_offsets[k+1]]``.
    ``groups`` [N] are planted groups, or None.
    """

    offsets: np.ndarray
    indices: np.ndarray
    pool_offsets: np.ndarray
    pool_indices: np.ndarray
    own_offsets: np.ndarray
    own_pools: np.ndarray
    groups: np.ndarray | None = None
    params: dict[str, Any] = field(default_factory=dict)
    dataset_hash: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    label_counts: np.ndarray | None = None  # [N, K], for the picture

    @classmethod
    def from_lists(
        cls,
        train: list[np.ndarray],
        pools: list[np.ndarray],
        own: list[np.ndarray],
        groups: np.ndarray | None = None,
        **more: Any,
    ) -> "Partition":
        """From one array of training positions per client, one per test pool, and each client's pools."""
        (offsets, indices), (pool_offsets, pool_indices), (own_offsets, own_pools) = map(
            _rows, (train, pools, own)
        )
        return cls(
            offsets, indices, pool_offsets, pool_indices, own_offsets, own_pools, groups=groups, **more
        )

    @property
    def sizes(self) -> np.ndarray:
        """Training samples of every client [N]."""
        return np.diff(self.offsets)

    def train(self, client: int) -> np.ndarray:
        """Training positions of one client, sorted int64 [n_k]."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def pool(self, pool: int) -> np.ndarray:
        """Test positions of one pool."""
        return self.pool_indices[self.pool_offsets[pool] : self.pool_offsets[pool + 1]]

    def test_pools(self, client: int) -> np.ndarray:
        """The pools that make up one client's test set."""
        return self.own_pools[self.own_offsets[client] : self.own_offsets[client + 1]]

    def test(self, client: int) -> np.ndarray:
        """Test positions of one client, sorted."""
        pools = [self.pool(p) for p in self.test_pools(client)]
        return np.sort(np.concatenate(pools)) if pools else np.empty(0, np.int64)

    def test_size(self, client: int) -> int:
        """Number of test samples of one client."""
        return int(np.diff(self.pool_offsets)[self.test_pools(client)].sum())

    @property
    def hash(self) -> str:
        """16 hexadecimal digits that name the content and the data set it divides."""
        digest = hashlib.blake2b(self.dataset_hash.encode(), digest_size=8)
        for name in ARRAYS:
            array = getattr(self, name)
            if array is not None:
                digest.update(np.ascontiguousarray(array, np.int64).tobytes())
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """Write ``partition.npz``, ``labels.png`` and ``summary.json`` (last); deterministic bytes."""
        from fedflow.partition.picture import draw_labels

        arrays = {name: getattr(self, name) for name in ARRAYS if getattr(self, name) is not None}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "summary.json").unlink(missing_ok=True)  # never an old summary beside new arrays
            _write_npz(folder / "partition.npz", arrays)
            if self.label_counts is not None:
                draw_labels(self.label_counts, self.groups, self.params, folder / "labels.png")
            (folder / "summary.json").write_text(json.dumps(self.summary(), indent=1) + "\n")
        except OSError as error:
            raise FedflowError(
                f"cannot write the partition to {folder}: {error.strerror or error}"
            ) from error

    def summary(self) -> dict[str, Any]:
        """What a person wants to know of it, in plain values."""
        sizes = self.sizes
        groups = None if self.groups is None else len(np.unique(self.groups))
        return {
            "clients": len(sizes),
            "samples_used": int(sizes.sum()),
            "sizes": {
                "min": int(sizes.min()),
                "mean": float(sizes.mean()),
                "sd": float(sizes.std()),
                "max": int(sizes.max()),
            },
            **self.facts,
            "groups": groups,
            "hash": self.hash,
            "dataset_hash": self.dataset_hash,
            "params": self.params,
        }


def make_partition(
    params: PartitionParams,
    train_labels: np.ndarray,
    test_labels: np.ndarray,
    classes: int,
    dataset_hash: str = "",
) -> Partition:
    """Divide a data set by ``params``; a client's test set is all test samples of the labels it trains on.

    ``train_labels`` [n] and ``test_labels`` [t] hold 0..K-1. Raises `BadInput` when it cannot be made.
    """
    if params.clients > len(train_labels):
        raise BadInput(
            "partition.clients",
            params.clients,
            f"at most {len(train_labels)}, the number of training samples",
        )
    scheme = params.build()
    train = scheme.split(train_labels, params.clients, generator(params.seed, f"partition/{params.scheme}"))
    smallest = min(map(len, train))
    if smallest < params.min_train:
        raise BadInput(
            "partition.clients",
            params.clients,
            f"fewer: a client got {smallest} samples, min_train is {params.min_train}",
        )
    sizes = np.array([len(rows) for rows in train])
    owner = np.repeat(np.arange(params.clients), sizes)
    counts = np.zeros((params.clients, classes), dtype=np.int64)
    np.add.at(counts, (owner, train_labels[np.concatenate(train)]), 1)
    pools = [np.flatnonzero(test_labels == c) for c in range(classes)]
    own = [np.flatnonzero(row) for row in counts > 0]
    shares = counts / counts.sum(1, keepdims=True)
    overall = np.bincount(train_labels, minlength=classes) / len(train_labels)
    facts = {
        "samples_unused": int(len(train_labels) - sizes.sum()),
        "labels_per_client": float((counts > 0).sum(1).mean()),
        "skew": float(0.5 * np.abs(shares - overall).sum(1).mean()),
    }
    return Partition.from_lists(
        train, pools, own, scheme.planted(params.clients),
        params=params.as_dict(), dataset_hash=dataset_hash, facts=facts, label_counts=counts,
    )  # fmt: skip


def load_partition(folder: Path) -> Partition:
    """Read a saved partition. Raises `FedflowError` when it is missing, truncated or damaged."""
    file, remedy = folder / "partition.npz", "run `fedflow partition` for it again"
    try:
        summary = json.loads((folder / "summary.json").read_text())
        with np.load(file, allow_pickle=False) as data:
            arrays = {name: data[name] for name in ARRAYS if name in data.files}
        partition = Partition(**arrays, params=summary["params"], dataset_hash=summary["dataset_hash"])
        whole = partition.hash == summary["hash"]
    except FileNotFoundError as error:
        raise FedflowError(f"there is no {error.filename}; {remedy}") from error
    except Exception as error:  # decoders of damaged files raise almost anything
        raise FedflowError(f"{file} is damaged ({reason(error)}); {remedy}") from error
    if not whole:
        raise FedflowError(f"{file} does not match the hash in summary.json; {remedy}")
    return partition


def _rows(lists: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    sizes = np.array([len(row) for row in lists], dtype=np.int64)
    flat = np.concatenate(lists).astype(np.int64) if len(lists) else np.empty(0, np.int64)
    return np.concatenate([[0], np.cumsum(sizes)]), flat


def _write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """As ``np.savez_compressed``, with fixed times in the archive so that equal arrays are equal bytes."""
    partial = path.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=False)
            archive.writestr(
                zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), buffer.getvalue(), zipfile.ZIP_DEFLATED
            )
    partial.replace(path)
