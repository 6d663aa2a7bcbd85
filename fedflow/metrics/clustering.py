"""Agreement of clusters with planted groups, or with the labels that clients share."""

import numpy as np

ROWS = 256  # clients compared with all others at a time


def agreement(
    clusters: np.ndarray, groups: np.ndarray | None, labels: np.ndarray | None = None
) -> dict[str, float | None]:
    """``ari``, ``nmi`` and ``clustering_error`` of the clients that have a cluster (>= 0).

    The first two are the adjusted Rand index and the normalized mutual information of ``clusters`` [N] and
    planted ``groups`` [N]. Without planted groups they are None, and the error follows from ``labels``
    [N, C], True if a client has the label.
    """
    member = clusters >= 0
    scores: dict[str, float | None] = {"ari": None, "nmi": None, "clustering_error": None}
    if not member.any():
        return scores
    if groups is not None:
        # Importing it takes seconds.
        from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

        scores["ari"] = float(adjusted_rand_score(groups[member], clusters[member]))
        scores["nmi"] = float(normalized_mutual_info_score(groups[member], clusters[member]))
        labels = groups[:, None] == np.unique(groups)  # the group is the only label of its members
    if labels is not None:
        scores["clustering_error"] = clustering_error(clusters[member], labels[member])
    return scores


def clustering_error(clusters: np.ndarray, labels: np.ndarray) -> float:
    """Mean number of wrong companions of a client: false ones in its cluster and true ones elsewhere.

    j is a true companion of i if it has half of i's labels, |L_i and L_j| >= ceil(|L_i| / 2), which need
    not be mutual. ``labels`` [N, C] is True if a client has the label. ``clusters`` are numbers [N], or bool
    [N, N] if clusters differ by client: row i is True for the members of the cluster of client i.
    Source: Morafah et al., FLIS, arXiv 2208.09754, figures of the clustering error; authors' code.
    """
    count, weights = len(clusters), np.ones(len(clusters), dtype=np.intp)
    if clusters.ndim == 1:  # clients with equal labels in one cluster are counted once, with a weight
        kinds, weights = np.unique(np.column_stack([labels, clusters]), axis=0, return_counts=True)
        labels, clusters = kinds[:, :-1], kinds[:, -1]
    held = labels.astype(np.float32)  # exact for counts, and multiplied by BLAS
    wrong = 0
    for start in range(0, len(clusters), ROWS):
        rows = slice(start, start + ROWS)
        true = held[rows] @ held.T >= np.ceil(held[rows].sum(1, keepdims=True) / 2)
        together = clusters[rows] if clusters.ndim == 2 else clusters[rows, None] == clusters
        wrong += int(weights[rows] @ ((true != together) @ weights))
    return wrong / count
