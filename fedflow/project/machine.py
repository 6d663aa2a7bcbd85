"""The processor and the lock file of the libraries of this process, on which no result depends."""

import hashlib
import platform
from pathlib import Path

LOCK = "requirements.lock"


def processor() -> str:
    """Return the name of the processor: no names of hosts or paths."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = [line for line in lines if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()


def lock_digest(root: Path) -> str:
    """Return the SHA-256 of ``requirements.lock`` in ``root`` or in a folder around it, or an empty text."""
    folders = (root.resolve(), *root.resolve().parents)
    lock = next((folder / LOCK for folder in folders if (folder / LOCK).is_file()), None)
    return hashlib.sha256(lock.read_bytes()).hexdigest() if lock else ""
