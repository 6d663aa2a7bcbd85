"""Given: the rows of every client are listed, in a file or in the settings, as other tools divided the data.

Training rows count the training samples from 0. Test rows count the test samples, or with
``test_rows: train`` the training samples, of which a client may hold out some. Without test rows, a client is
tested on all test samples of the labels that it holds. Rows for validation select models
(``select_on: heldout``). Samples without a client are unused.
Source: divisions of FL-bench, FedLab, NIID-Bench, flwr-datasets and PFLlib, as lists.

>>> import numpy as np
>>> samples = Samples(np.zeros(6, int), np.zeros(3, int))
>>> split = Given.parse({"rows": {"train": [[4, 0], [1]], "test": [[2], [0, 2]]}}).split(
...     samples, 2, np.random.default_rng(0)
... )
>>> [part.tolist() for part in split.train], [pool.tolist() for pool in split.pools]
([[0, 4], [1]], [[0], [2]])
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedflow.errors import BadInput, FedflowError
from fedflow.partition.lists import (
    TEST_ROWS,
    Lists,
    by_name,
    need_rows,
    parse_lists,
    read_lists,
    shared_pools,
)
from fedflow.partition.scheme import Indices, Samples, Scheme, Split, register
from fedflow.settings import Words, option


@register("given")
class Given(Scheme):
    by_row = True
    path: str | None = option(None, "JSON, YAML, npz or Parquet file of the rows, or PFLlib's folder")
    rows: list[Any] | dict[str, Any] | None = option(
        None, "the rows themselves, as [[0, 1], [2]] or {train: [[0, 1], [2]], test: [[5], [6]]}"
    )
    test_rows: str | None = option(
        None, "samples that test rows count; null = as the file says, or test", choices=TEST_ROWS
    )

    @classmethod
    def parse(cls, values: Any, section: str | None = None) -> Self:
        if isinstance(values, Mapping) and "rows" in values:
            try:
                values = {**values, "rows": _plain(values["rows"])}
            except ValueError as error:
                raise FedflowError(f"partition.rows: {error}") from None
        return super().parse(values, section)

    def validate(self) -> None:
        if (self.path is None) == (self.rows is None):
            raise BadInput("partition.path", self.path, "a file, or null with partition.rows")

    def files(self) -> list[str]:
        return [] if self.path is None else [self.path]

    def count(self, samples: Samples) -> int:
        return len(self._lists(samples.root).train)

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        lists, field = self._lists(samples.root), self._field
        if not lists.train:
            raise BadInput(field, Words("no client"), "the rows of one client or more")
        if clients != len(lists.train):
            raise BadInput("partition.clients", clients, f"{len(lists.train)} or null, as many as are given")
        need_rows(field, lists.train, len(samples.labels), "training")
        for kind, lists_of in (("training", lists.train), ("validation", lists.validation or [])):
            if empty := [k for k, rows in enumerate(lists_of) if not len(rows)]:
                raise BadInput(field, Words(f"client {empty[0]} without {kind} rows"), "one row or more")
        need_rows(field, lists.validation or [], len(samples.labels), "training")
        _need_apart(field, lists.train, lists.validation or [], "validation")
        if lists.test is None:
            self.refuse_unused("without test rows", "test_rows")
            return Split(lists.train, selection=lists.validation)
        held_out = (self.test_rows or lists.test_rows) == "train"
        tested = samples.labels if held_out else samples.test_labels
        test = lists.test if held_out else [rows - lists.first_test_row for rows in lists.test]
        need_rows(field, test, len(tested), "training" if held_out else "test")
        if held_out:
            _need_apart(field, lists.train, test, "testing")
            _need_apart(field, lists.validation or lists.train, test, "testing")
        pools, own = shared_pools(test)
        return Split(lists.train, pools=pools, own=own, selection=lists.validation, held_out=held_out)

    @property
    def _field(self) -> str:
        return "partition.rows" if self.path is None else "partition.path"

    def _lists(self, root: Path) -> Lists:
        if self.path is None:
            try:
                return parse_lists(self.rows)
            except ValueError as error:
                raise FedflowError(f"partition.rows: {error}") from None
        if not (root / self.path).exists():
            raise BadInput("partition.path", self.path, "a file or folder")
        return read_lists(root / self.path)


def _plain(rows: Any) -> Any:
    """Arrays as lists, and numbers of clients as text."""
    if isinstance(rows, Mapping):
        return {name: _plain(value) for name, value in by_name(rows).items()}
    if isinstance(rows, list | tuple):
        return [_plain(value) for value in rows]
    return rows.tolist() if hasattr(rows, "tolist") else list(rows) if isinstance(rows, range | set) else rows


def _need_apart(field: str, first: Indices, others: Indices, use: str) -> None:
    """Refuse a row of ``others`` that is also in ``first``, and a row of two clients of ``first``."""
    rows, clients = np.concatenate(first), np.repeat(np.arange(len(first)), [len(part) for part in first])
    order = np.argsort(rows, kind="stable")
    rows, clients = rows[order], clients[order]
    if (twice := np.flatnonzero(rows[1:] == rows[:-1])).size:
        at = twice[0]
        holders = f"one client; clients {clients[at]} and {clients[at + 1]} have it"
        raise BadInput(field, Words(f"row {rows[at]}"), holders)
    for k, part in enumerate(others):
        if (taken := part[np.isin(part, rows)]).size:
            holder = clients[np.searchsorted(rows, taken[0])]
            accepted = f"one use; client {holder} trains on it, client {k} has it for {use}"
            raise BadInput(field, Words(f"row {taken[0]}"), accepted)
