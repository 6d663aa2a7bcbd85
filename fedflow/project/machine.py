"""The processors and the lock file of the libraries of this process, on which no result depends."""

import hashlib
import platform
from pathlib import Path

import torch

LOCK = "requirements.lock"


def processor(device: str = "cpu") -> str:
    """Return the name of the processor: no names of hosts or paths.

    For ``engine.device`` auto or cuda, the name of the GPU comes first, if there is one.
    """
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = [line for line in lines if line.startswith("model name")]
    name = names[0].partition(":")[2].strip() if names else platform.machine()
    gpu = device != "cpu" and torch.cuda.is_available()
    return f"{torch.cuda.get_device_name()}, {name}" if gpu else name


def lock_digest(root: Path) -> str:
    """Return the SHA-256 of ``requirements.lock`` in ``root`` or in a folder around it, or an empty text."""
    folders = (root.resolve(), *root.resolve().parents)
    lock = next((folder / LOCK for folder in folders if (folder / LOCK).is_file()), None)
    return hashlib.sha256(lock.read_bytes()).hexdigest() if lock else ""
