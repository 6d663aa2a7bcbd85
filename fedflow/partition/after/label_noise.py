"""Label noise: some training labels are replaced, by a transition matrix over the classes.

``pair``: label i becomes i + 1 (mod K) with probability ratio. ``symmetric``: it becomes any other
label, each with probability ratio / (K - 1). Test labels stay clean.
``protocol: official`` follows the code of SuPerFed: the two matrices are swapped, and labels are corrupted
before clients hold out their test samples (``holdout``), so that these have wrong labels too. A model that
learns the right labels then reaches an accuracy of at most 1 - ratio: 40 % with symmetric 0.6.
Source: SuPerFed (Hahn et al., KDD 2022), section 4.3, equations 2.7 and 2.8.
*Differs*: the authors' code divides the data by the wrong labels, fedflow by the right ones.

>>> transition("pair", 0.1, 4)[3].tolist()
[0.1, 0.0, 0.0, 0.9]
"""

import numpy as np

from fedflow.settings import Settings, option

KINDS = ("pair", "symmetric")


class LabelNoise(Settings):
    section = "partition.label_noise"
    kind: str = option("symmetric", "labels that replace the right ones", choices=KINDS)
    ratio: float = option(
        0.2, "share of wrong labels", symbol="rho", ge=0, le=1, source="pair 0.1, 0.4; symmetric 0.2, 0.6"
    )
    protocol: str = option(
        "clean",
        "clean = clean test labels; official = as in the authors' code, with holdout",
        choices=("clean", "official"),
    )


def transition(kind: str, ratio: float, classes: int) -> np.ndarray:
    """P(noisy label j | clean label i), [K, K]; rows sum to 1."""
    same = (1 - ratio) * np.eye(classes)
    if kind == "pair":
        return same + ratio * np.roll(np.eye(classes), 1, axis=1)
    return same + ratio / (classes - 1) * (1 - np.eye(classes))


def spoil(
    labels: np.ndarray, rows: np.ndarray, classes: int, noise: LabelNoise, rng: np.random.Generator
) -> np.ndarray:
    """``labels`` [n], replaced at ``rows`` [m] by draws from the transition matrix."""
    official = noise.protocol == "official"
    kind = KINDS[1 - KINDS.index(noise.kind)] if official else noise.kind
    cumulative = transition(kind, noise.ratio, classes).cumsum(1)
    noisy, draws = labels.copy(), rng.random(len(rows))
    for c in range(classes):
        mine = labels[rows] == c
        noisy[rows[mine]] = np.searchsorted(cumulative[c], draws[mine], side="right").clip(max=classes - 1)
    return noisy
