"""Attributes: every client holds samples that have one attribute and no other.

Order of sampling: samples with none or several of the attributes are unused; the samples of each attribute
are permuted and divided equally among its clients (the first get one more). Clients are numbered attribute by
attribute and divided equally among them; the attributes are planted groups. A client is tested on the test
samples that have only its attribute.
Source: PACFL, section 3.4.2 (CelebA: smiling, wavy hair, wearing hat).

>>> import numpy as np
>>> bits = np.array([[1, 0], [0, 1], [1, 1], [0, 0], [1, 0], [0, 1]])
>>> columns = {"a": DataColumn(bits[:, 0], bits[:, 0]), "b": DataColumn(bits[:, 1], bits[:, 1])}
>>> split = Attributes(columns=["a", "b"]).split(
...     Samples(np.zeros(6, int), columns=columns), 2, np.random.default_rng(0)
... )
>>> [part.tolist() for part in split.train], [pool.tolist() for pool in split.pools]
([[0, 4], [1, 5]], [[0, 4], [1, 5]])
"""

import numpy as np

from fedflow.data import DataColumn
from fedflow.errors import BadInput
from fedflow.partition.domains import by_domain
from fedflow.partition.scheme import Samples, Scheme, Split, register
from fedflow.partition.sizes import draw_sizes
from fedflow.settings import option


@register("attributes")
class Attributes(Scheme):
    columns: list[str] = option(
        factory=lambda: ["smiling", "wavy_hair", "wearing_hat"],
        doc="columns of the dataset: 1 if a sample has the attribute, else 0",
    )

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise BadInput("partition.columns", self.columns, "different columns of the dataset")
        columns = [self._bits(samples, name) for name in self.columns]
        train, test = (_only([getattr(column, split) for column in columns]) for split in ("train", "test"))
        shares = draw_sizes(clients, len(columns), 0, rng)
        return by_domain(samples.labels, train, test, self.columns, shares, None, False, rng)

    def _bits(self, samples: Samples, name: str) -> DataColumn:
        column = samples.column(name, "partition.columns")
        if not np.isin(column.train, (0, 1)).all():
            raise BadInput("partition.columns", name, "columns of zeros and ones")
        return column


def _only(columns: list[np.ndarray]) -> np.ndarray:
    """The only attribute of a sample, or -1."""
    bits = np.stack(columns)
    return np.where(bits.sum(0) == 1, bits.argmax(0), -1)
