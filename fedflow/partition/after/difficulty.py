"""Difficulty: clients keep their counts of each class, but easy samples go to the first, hard to the last.

The samples of each class are sorted by an expert's loss; client i is given, behind those of the clients
before it, floor(order N_ic) in that order, and the rest of its N_ic at random out of what is left.
``order`` 0 leaves difficulty random ("low consistency"), 1 sorts it fully ("high consistency").
Source: Curriculum-FL, Algorithm 2, with its slips mended (counts go to N_ic, not P_i; order 0 is meant).
"""

import numpy as np

from fedflow.partition.base import Indices
from fedflow.settings import Settings, option


class Difficulty(Settings):
    section = "partition.difficulty"
    order: float = option(
        1.0, "share of a client's samples that are dealt by difficulty", symbol="f_ord", ge=0, le=1
    )
    losses: str | None = option(
        None, "an .npy file with a loss per training sample; else an expert is trained"
    )
    expert: str = option("lenet5", "network of the expert, trained on all training samples")
    epochs: int = option(5, "epochs of the expert's training", ge=1)
    lr: float = option(
        0.01, "learning rate of the expert's training (SGD, momentum 0.9, batches of 64)", gt=0
    )


def by_difficulty(
    parts: Indices, labels: np.ndarray, losses: np.ndarray, order: float, rng: np.random.Generator
) -> Indices:
    """``parts`` dealt anew: the same counts N_ic of each class, other samples."""
    owner = np.full(len(labels), -1)
    for k, rows in enumerate(parts):
        owner[rows] = k
    dealt: list[list[np.ndarray]] = [[] for _ in parts]
    for c in np.unique(labels):
        mine = np.flatnonzero((labels == c) & (owner >= 0))
        counts = np.bincount(owner[mine], minlength=len(parts))
        ranked = mine[np.argsort(losses[mine], kind="stable")]
        chunks = np.split(ranked, np.cumsum(counts)[:-1])
        kept = (order * counts + 1e-9).astype(int)
        sorted_in = [chunk[:q] for chunk, q in zip(chunks, kept)]
        left = rng.permutation(np.concatenate([chunk[q:] for chunk, q in zip(chunks, kept)]))
        rest = np.split(left, np.cumsum(counts - kept)[:-1])
        for k, (by_order, at_random) in enumerate(zip(sorted_in, rest)):
            dealt[k] += [by_order, at_random]
    return [np.sort(np.concatenate(chunks)) for chunks in dealt]
