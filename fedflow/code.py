"""A hash of the library's own sources: what was computed by older code is not gone on with."""

import hashlib
from functools import cache
from pathlib import Path

import torch


@cache
def code_digest(*parts: str) -> str:
    """16 hexadecimal digits of the files ``parts``, of all Python files in them, and of PyTorch's version.

    Parts are named as in ``fedflow/``: "random.py", "models".
    """
    root = Path(__file__).parent
    digest = hashlib.blake2b(torch.__version__.encode(), digest_size=8)
    for part in parts:
        for file in [root / part] if part.endswith(".py") else sorted((root / part).rglob("*.py")):
            digest.update(f"{file.relative_to(root).as_posix()} {file.stat().st_size}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
