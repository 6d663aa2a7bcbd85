"""Checks of the split that a scheme returns; errors name the scheme in one line."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedflow.errors import FedflowError, returned
from fedflow.partition.scheme import Samples, Split


def checked(scheme: str, value: Any, samples: Samples, clients: int) -> Split:
    """The split of ``samples`` among ``clients`` N that a scheme returned.

    Raises `FedflowError` unless there is a list of rows that exist for each client. Rows may repeat.
    """
    split = returned(value, Split, f"{scheme}.split", "a Split")
    rows, tests = len(samples.labels), len(samples.test_labels)
    of_clients = {"train": rows, "selection": rows, "own": len(split.pools or ())}
    counts = of_clients | {"pools": rows if split.held_out else tests}
    keys = dict[str, np.ndarray]()
    for name, count in counts.items():
        if (lists := getattr(split, name)) is None:
            continue
        if name in of_clients and len(lists) != clients:
            raise FedflowError(f"{scheme}.split: {name} has {len(lists)} lists for {clients} clients")
        keys[name] = _keys(f"{scheme}.split: {name}", lists, count)
    if np.isin(keys.get("selection", ()), keys["train"]).any():
        raise FedflowError(f"{scheme}.split: selection has rows on which the same client trains")
    if split.groups is None:
        return split
    groups = np.asarray(split.groups)
    if groups.shape != (clients,) or groups.dtype.kind not in "iu":
        is_not = f"{groups.dtype} {list(groups.shape)}, not whole numbers [{clients}]"
        raise FedflowError(f"{scheme}.split: groups are {is_not}")
    return replace(split, groups=groups)


def _keys(name: str, lists: Sequence[Any], count: int) -> np.ndarray:
    """A number for each pair of a list and a row of it; raises `FedflowError` for other rows."""
    arrays = [np.asarray(rows) for rows in lists]
    if odd := [rows for rows in arrays if rows.size and (rows.ndim != 1 or rows.dtype.kind not in "iu")]:
        raise FedflowError(f"{name} must be lists of whole numbers, not {odd[0].dtype} {list(odd[0].shape)}")
    flat = np.concatenate([np.empty(0, np.int64), *(rows for rows in arrays if rows.size)])
    if flat.size and not 0 <= flat.min() <= flat.max() < count:
        raise FedflowError(f"{name} has the row {flat[(flat < 0) | (flat >= count)][0]}, not one of {count}")
    owners: np.ndarray = np.repeat(np.arange(len(arrays)), [rows.size for rows in arrays])
    return np.asarray(owners * count + flat)
