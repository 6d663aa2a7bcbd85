"""The content hashes of the data of a result; imports nothing, as `fedflow ls` reads them."""

from collections.abc import Mapping
from typing import Any

HASHES = ("data_hash", "partition_hash")


def hashes(metrics: Mapping[str, Any]) -> dict[str, str]:
    """The hashes in ``metrics.json``; the partition is left out if every seed draws it."""
    drawn = metrics.get("division")
    return {name: metrics[name] for name in HASHES if name != "partition_hash" or not drawn}
