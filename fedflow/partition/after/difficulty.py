"""Difficulty: clients keep their class counts, but the first get easy samples and the last hard ones.

The samples of each class are sorted by an expert's loss. In that order, client after client gets
floor(order N_ic) of them, and the rest of its N_ic at random from the remaining ones.
``order`` 0 leaves difficulty random ("low consistency"), 1 sorts it fully ("high consistency").
Source: Curriculum-FL, Algorithm 2, with its slips corrected (counts are N_ic, not P_i; order 0 is meant).
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.scheme import Indices, gather
from fedflow.settings import Settings, option


class Difficulty(Settings):
    section = "partition.difficulty"
    order: float = option(1.0, "share of a client's samples dealt by difficulty", symbol="f_ord", ge=0, le=1)
    expert: str | None = option(None, "a name under `central`: the network whose losses rank the samples")
    losses: str | None = option(None, "instead of an expert, an .npy file with a loss per training sample")

    def validate(self) -> None:
        if (self.expert is None) == (self.losses is None):
            raise BadInput(f"{self.section}.expert", self.expert, "a name under central, or null with losses")


def by_difficulty(
    parts: Indices, labels: np.ndarray, losses: np.ndarray, order: float, rng: np.random.Generator
) -> Indices:
    """Disjoint ``parts`` dealt again: the same counts N_ic of each class, other samples.

    ``labels`` [n] and ``losses`` [n] are of all samples; real targets count as one class.
    """
    owner, dealt = np.full(len(labels), -1), np.full(len(labels), -1)
    for k, rows in enumerate(parts):
        owner[rows] = k
    classes = np.zeros(len(labels), dtype=int) if labels.dtype.kind == "f" else labels
    for c in np.unique(classes):
        mine = np.flatnonzero((classes == c) & (owner >= 0))
        ranked = mine[np.argsort(losses[mine], kind="stable")]
        counts = np.bincount(owner[mine], minlength=len(parts))  # N_ic
        sorted_in = np.floor(order * counts + 1e-9)  # 0.29 * 100 is a little less than 29
        client = np.repeat(np.arange(len(parts)), counts)  # the client of every turn, from easy to hard
        turn = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts)
        by_order = turn < sorted_in[client]
        dealt[ranked[by_order]] = client[by_order]
        dealt[rng.permutation(ranked[~by_order])] = client[~by_order]
    return gather(dealt, len(parts))


def consistency(parts: Indices, losses: np.ndarray | None) -> dict[str, dict[str, float]]:
    """The fact ``difficulty`` of a partition, from the expert's ``losses`` [n]; empty without losses.

    ``intra_std`` is the std of losses within a client, mean over clients: low means high consistency.
    ``inter_std`` is the std of mean losses over clients. Both are population stds (ddof 0).
    """
    if losses is None:
        return {}
    clients = [losses[rows] for rows in parts]
    within, between = np.mean([x.std() for x in clients]), np.std([x.mean() for x in clients])
    return {"difficulty": {"intra_std": float(within), "inter_std": float(between)}}
