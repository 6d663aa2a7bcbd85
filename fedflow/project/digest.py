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
