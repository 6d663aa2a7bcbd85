"""Natural: every client is one value of a column, such as a user, and holds its samples.

Order of sampling: values with at least ``min_samples`` training and ``min_test`` test samples qualify; if
these exceed ``clients``, that number is drawn without replacement; clients follow the order of values. Then,
client by client, ``max_samples`` and ``max_test`` keep consecutive samples from a random start (training,
then test). A client is tested on the test samples of its value; without ``min_test`` or ``holdout`` there may
be none. Samples of other values are unused.
Source: LEAF (Caldas et al., 2018): writers of FEMNIST, roles of Shakespeare, celebrities of CelebA; FLT
(200 writers), FedDyn (100 roles of 2,000 and 400 samples), AAggFF (regions, doctors, hospitals, speakers).

>>> import numpy as np
>>> users = DataColumn(np.array([7, 9, 7, 7, 9, 8]), np.array([9, 7, 9]))
>>> split = Natural(min_samples=2).split(
...     Samples(np.zeros(6, int), columns={"user": users}), 2, np.random.default_rng(0)
... )
>>> [part.tolist() for part in split.train], [pool.tolist() for pool in split.pools]
([[0, 2, 3], [1, 4]], [[1], [0, 2]])
"""

import numpy as np

from fedflow.data import DataColumn
from fedflow.errors import BadInput
from fedflow.partition.scheme import Indices, Samples, Scheme, Split, gather, numbered, register
from fedflow.settings import option


@register("natural")
class Natural(Scheme):
    column: str = option("user", "column of the dataset with the clients")
    min_samples: int = option(1, "training samples that a value needs to qualify", ge=1)
    min_test: int = option(0, "test samples that a value needs to qualify", ge=0)
    max_samples: int | None = option(
        None, "largest number of training samples of a client; null = all", ge=1, source="FedDyn: 2,000"
    )
    max_test: int | None = option(
        None, "largest number of test samples of a client; null = all", ge=1, source="FedDyn: 400"
    )
    groups: str | None = option(None, "another column, constant for every client, with the planted groups")

    def count(self, samples: Samples) -> int:
        return len(self._qualified(samples.column(self.column)))

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        column = samples.column(self.column)
        qualified = self._qualified(column)
        if clients > len(qualified):
            accepted = f"at most {len(qualified)}, the values of {self.column!r} with enough samples"
            raise BadInput("partition.clients", clients, accepted)
        if clients < len(qualified):
            qualified = np.sort(rng.choice(qualified, clients, replace=False))
        values, train, test = numbered(column)
        client = np.full(len(values) + 1, -1)  # the last entry is for -1, no value
        client[qualified] = np.arange(clients)
        owner = client[train]
        parts, pools = gather(owner, clients), gather(client[test], clients)
        return Split(
            [_run(rows, self.max_samples, rng) for rows in parts],
            groups=None if self.groups is None else self._planted(samples, self.groups, owner, parts),
            pools=[_run(rows, self.max_test, rng) for rows in pools],
            own=list(np.arange(clients)[:, None]),
        )

    def _qualified(self, column: DataColumn) -> np.ndarray:
        """The indices of the values that qualify."""
        values, train, test = numbered(column)
        enough = np.bincount(train) >= self.min_samples
        enough &= np.bincount(test + 1, minlength=len(values) + 1)[1:] >= self.min_test
        if not enough.any():
            raise BadInput(
                "partition.min_samples",
                self.min_samples,
                f"less: no value of {self.column!r} has that many, and {self.min_test} for test",
            )
        return np.flatnonzero(enough)

    def _planted(self, samples: Samples, name: str, owner: np.ndarray, parts: Indices) -> np.ndarray:
        kind = samples.column(name, "partition.groups").train
        groups = kind[[rows[0] for rows in parts]]
        if (kind != groups[owner])[owner >= 0].any():
            raise BadInput("partition.groups", name, f"a column with one value per {self.column}")
        return np.unique(groups, return_inverse=True)[1]


def _run(rows: np.ndarray, length: int | None, rng: np.random.Generator) -> np.ndarray:
    """At most ``length`` consecutive ``rows``."""
    if length is None or len(rows) <= length:
        return rows
    start = rng.integers(len(rows) - length + 1)
    return rows[start : start + length]
