"""How well found clusters match planted groups."""

import numpy as np


def agreement(clusters: np.ndarray, groups: np.ndarray | None) -> dict[str, float | None]:
    """Adjusted Rand index and normalised mutual information over the clients that have a cluster (>= 0)."""
    known = clusters >= 0
    if groups is None or not known.any():
        return {"ari": None, "nmi": None}
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score  # takes seconds to import

    return {
        "ari": float(adjusted_rand_score(groups[known], clusters[known])),
        "nmi": float(normalized_mutual_info_score(groups[known], clusters[known])),
    }
