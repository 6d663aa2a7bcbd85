"""Label skew: every client holds a fixed share of the labels and divides each equally with its owners.

Order of sampling: for client i = 0..N-1 the first label is i mod K, further ones are drawn uniformly
and repeats rejected until m = max(1, round(fraction K)) labels are held; then, for every label in
turn, its samples are permuted, cut into as many chunks as it has owners (the first get one sample
more) and handed out by increasing client. Samples of a label that nobody owns stay unused (only
possible when N < K). Larger fractions are less skewed; 1 splits every class over all clients.
Source: Li, Diao, Chen, He, "Federated Learning on Non-IID Data Silos", ICDE 2022 (#C = m).

>>> import numpy as np
>>> samples = Samples(np.repeat([0, 1, 2, 3], 6))
>>> parts = LabelSkew(fraction=0.5).split(samples, 4, np.random.default_rng(0)).train
>>> sorted(np.concatenate(parts).tolist()) == list(range(24))
True
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.base import Samples, Scheme, Split, collect, deal, num_classes, register
from fedflow.settings import option


@register("label_skew")
class LabelSkew(Scheme):
    fraction: float = option(
        0.2, "share of the labels that a client holds", symbol="rho", gt=0, le=1, grid=(0.2, 0.3)
    )

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        labels, classes = samples.labels, num_classes(samples.labels)
        held = max(1, round(self.fraction * classes))
        owned = np.zeros((clients, classes), dtype=bool)
        for i in range(clients):
            owned[i, i % classes] = True
            while owned[i].sum() < held:
                owned[i, rng.integers(classes)] = True
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for c in range(classes):
            rows, owners = np.flatnonzero(labels == c), np.flatnonzero(owned[:, c])
            if len(owners) > len(rows):
                raise BadInput(
                    "partition.clients",
                    clients,
                    f"fewer: {len(owners)} clients share {len(rows)} samples of label {c}",
                )
            if len(owners):
                deal(rng.permutation(rows), owners, parts)
        return Split(collect(parts))
