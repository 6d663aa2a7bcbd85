"""Label groups: classes are dealt into disjoint groups, clients too, and data are IID within a group.

Order of sampling: the K classes are permuted and cut into ``groups`` runs; client k belongs to group
k * groups // N; the samples of a group's classes are permuted and cut equally over its clients.
Every sample is used once. The groups are planted: found clusters are compared with them.
Source: the structured non-IID scenarios of FLT (Jamali-Rad et al., 2021), with IID data in a group.

>>> LabelGroups(groups=2).split(Samples(np.arange(8) % 4), 4, np.random.default_rng(0)).groups.tolist()
[0, 0, 1, 1]
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.base import Samples, Scheme, Split, collect, deal, num_classes, register
from fedflow.settings import option


@register("label_groups")
class LabelGroups(Scheme):
    groups: int = option(2, "number of disjoint groups of classes", ge=1)

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        labels, classes = samples.labels, num_classes(samples.labels)
        if self.groups > min(classes, clients):
            raise BadInput(
                "partition.groups",
                self.groups,
                f"at most {min(classes, clients)}, for {classes} classes and {clients} clients",
            )
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        member = np.arange(clients) * self.groups // clients
        for group, own in enumerate(np.array_split(rng.permutation(classes), self.groups)):
            deal(
                rng.permutation(np.flatnonzero(np.isin(labels, own))), np.flatnonzero(member == group), parts
            )
        return Split(collect(parts), groups=member)
