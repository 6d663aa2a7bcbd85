"""The one digest of plain values: settings, identities, names of caches and locks."""

import hashlib
import json
from typing import Any

SHORT, SETTINGS, KEY = 8, 12, 24  # digits: of a folder's name, of recorded settings, of checkpoints and locks


def canonical(value: Any) -> str:
    """Return plain values as JSON that does not depend on the order of mappings."""
    return json.dumps(value, sort_keys=True)


def digest(value: Any, digits: int = KEY) -> str:
    """Return the first hexadecimal digits of a hash of plain values; fewer digits are a prefix of more."""
    return hashlib.blake2b(canonical(value).encode()).hexdigest()[:digits]


def shortened(name: str, most: int) -> str:
    """Return ``name``, or the beginning and a digest of a name of more than ``most`` bytes.

    >>> shortened("d_p", 20), shortened("a-long-partition-name", 20)
    ('d_p', 'a-long-part-ccf79506')
    """
    text = name.encode(errors="replace")
    if len(text) <= most:
        return name
    beginning = text[: most - SHORT - 1].decode(errors="ignore")
    return f"{beginning}-{digest(name, SHORT)}"
