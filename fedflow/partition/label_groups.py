"""Label groups: classes and clients are divided into groups, and the data of a group among its clients.

Order of sampling: the K classes are permuted and cut into ``groups`` runs or, with ``labels_per_group`` = L,
group g gets the L classes from place g (L - overlap) on a ring; classes in no group are unused. Client k
belongs to group k * groups // N; these are the planted groups. The ``sampler`` divides the samples: "mixed"
permutes the samples of a label that groups share and divides them
equally among these groups, then permutes all samples of a group and divides them equally among its clients;
"slice" permutes each label and divides it equally among all clients that own it; "independent" draws
``samples_per_label`` of each of its labels for every client without replacement, regardless of the others,
so that clients share samples. With larger overlaps groups are more similar.
Source: FLT (Jamali-Rad et al., 2021): scenario 1 is 5 groups of 2 labels, scenario 2 is 5 groups of 3
with overlap 1, both "slice"; Table 5 draws independently. With 2 groups of 5 labels, overlap 0 to 5
sweeps from disjoint to equal.
"slice" uses every sample of these labels once. This is not the division of scenario 2 in FLT's code: there,
each client has 200 samples (CIFAR: 166) of each label, groups with a common label share images, and a third
of the images are unused.

>>> LabelGroups(groups=2).split(Samples(np.arange(8) % 4), 4, np.random.default_rng(0)).groups.tolist()
[0, 0, 1, 1]
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.label_skew import divide
from fedflow.partition.scheme import Indices, Samples, Scheme, Split, gather, num_classes, register, runs
from fedflow.settings import option


@register("label_groups")
class LabelGroups(Scheme):
    groups: int = option(2, "number of groups", ge=1)
    labels_per_group: int | None = option(
        None, "labels of a group; null = the classes are cut into disjoint groups", symbol="L", ge=1
    )
    overlap: int = option(
        0, "labels that a group shares with the next on the ring; needs labels_per_group", ge=0
    )
    sampler: str = option(
        "mixed",
        "how samples of a group are divided among its clients",
        choices=("mixed", "slice", "independent"),
    )
    samples_per_label: int = option(
        250,
        "samples of each label that a client draws, for sampler: independent",
        ge=1,
        source="FLT, Table 5: 250 of CIFAR-10, 300 of MNIST",
    )

    def validate(self) -> None:
        most = self.labels_per_group or 0
        if self.overlap > most:
            raise BadInput("partition.overlap", self.overlap, f"at most labels_per_group, which is {most}")
        if self.sampler != "independent":
            self.refuse_unused(f"with sampler: {self.sampler}", "samples_per_label")

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        labels = samples.labels
        held = self._held(num_classes(labels), clients, rng)
        member = np.arange(clients) * self.groups // clients
        if self.sampler == "slice":
            return Split(divide(labels, held[member], rng), groups=member)
        if self.sampler == "independent":
            return Split(self._draw(labels, held[member], rng), groups=member)
        owner = np.full(len(labels), -1)
        for group, pool in enumerate(divide(labels, held, rng, who="groups")):
            owner[rng.permutation(pool)] = runs(np.flatnonzero(member == group), len(pool))
        return Split(gather(owner, clients), groups=member)

    def _held(self, classes: int, clients: int, rng: np.random.Generator) -> np.ndarray:
        """The labels of every group, bool [groups, K]."""
        length, step = self.labels_per_group, 1
        if length is not None:
            step = length - self.overlap
            if length > classes:
                raise BadInput(
                    "partition.labels_per_group", length, f"at most {classes}, the number of classes"
                )
        most = min(clients, classes // step if step else clients)
        if self.groups > most:
            shape = f" of which a group takes {length} and shares {self.overlap}" if length else ""
            raise BadInput(
                "partition.groups",
                self.groups,
                f"at most {most}, for {classes} classes{shape} and {clients} clients",
            )
        order = rng.permutation(classes)
        held = np.zeros((self.groups, classes), dtype=bool)
        for group, cut in enumerate(np.array_split(order, self.groups)):
            held[group, cut if length is None else order[(group * step + np.arange(length)) % classes]] = True
        return held

    def _draw(self, labels: np.ndarray, held: np.ndarray, rng: np.random.Generator) -> Indices:
        rows = {c: np.flatnonzero(labels == c) for c in np.flatnonzero(held.any(0))}
        fewest = min(rows, key=lambda c: len(rows[c]))
        if self.samples_per_label > len(rows[fewest]):
            raise BadInput(
                "partition.samples_per_label",
                self.samples_per_label,
                f"at most {len(rows[fewest])}, the samples of label {fewest}",
            )
        return [
            np.sort(
                np.concatenate([rng.choice(rows[c], self.samples_per_label, replace=False) for c in mine])
            )
            for mine in map(np.flatnonzero, held)
        ]
