"""Remembered scores: a model that has not changed since it was scored is not scored again.

A score follows from the network, the served vector and the samples. Workers still compute the vector
(`Method.model_for`) and compare its digest. The last bits of a loss may depend on the batch of its sample,
and so on all clients that share the model: the digest covers these clients, so that a remembered score is the
same bit for bit.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

SCORES = ("local_accuracy", "local_loss", "global_accuracy", "global_loss")


class Remembered(NamedTuple):
    """The last `SCORES` [4, m] of some clients, and the keys [m] of their models, 0 if there is none."""

    keys: np.ndarray
    values: np.ndarray

    def changed(self, keys: np.ndarray, model: np.ndarray) -> np.ndarray:
        """The clients to score, bool [m]: ``keys`` [m] are keys of their models, ``model`` [m] numbers.

        All clients of a model are scored if one of them is.
        """
        return np.isin(model, model[keys != self.keys])


class RememberedScores:
    """The last scores of every client of a run, newcomers included."""

    def __init__(self, clients: int) -> None:
        self._keys = np.zeros(clients, dtype=np.int64)
        self._values = np.full((len(SCORES), clients), np.nan)

    def of(self, clients: Sequence[int]) -> Remembered:
        return Remembered(self._keys[clients], self._values[:, clients])

    def learn(self, clients: Sequence[int], keys: np.ndarray, values: Sequence[np.ndarray]) -> None:
        self._keys[clients], self._values[:, clients] = keys, values

    def packed(self) -> dict[str, Tensor]:
        scored = np.flatnonzero(self._keys)
        packed = {"clients": scored, "keys": self._keys[scored], "values": self._values[:, scored]}
        return {name: torch.from_numpy(array) for name, array in packed.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        scored = tensors["clients"].numpy()
        self._keys[scored], self._values[:, scored] = (tensors[name].numpy() for name in ("keys", "values"))


def model_key(w: Tensor, level: str, clients: np.ndarray, full: bool) -> int:
    """A digest of a model ``w`` [D] and the ``clients`` [m] that share it, 64 bits, never 0.

    The model has the network of a ``level``; ``full``: it is scored on the complete test set too.
    """
    scored = repr((level, full, w.dtype, tuple(w.shape), len(clients)))
    digest = hashlib.blake2b(scored.encode(), digest_size=8)
    digest.update(np.ascontiguousarray(clients, dtype=np.int64).data)
    digest.update(w.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest(), "little", signed=True) or 1
