"""Compiled code on disk, which a process finds without the compiler.

Its key is what a plain computation of the same function calls: operators, numbers, and which tensor goes
where. Whatever changes the compiled graph, such as a line of a network, changes these calls. To see them
takes one step; to trace the graph takes seconds.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedflow.project.digest import digest
from fedflow.project.waiting import held

FOLDER = Path(__file__).parent  # whose code makes the graph of what is called


def calls(function: Callable[[], object], inputs: Sequence[Tensor]) -> list[str]:
    """The operators that ``function`` calls on the CPU, and their arguments, in order; the same everywhere.

    ``inputs`` are named by their place, other tensors by the call that made them, constants by content.
    """
    seen = _Calls(inputs)
    with seen:
        function()
    return seen.calls


def own_code() -> str:
    """The digest of the code that makes graphs of computations."""
    return digest([file.read_text() for file in sorted(FOLDER.glob("*.py"))])


def kept(entry: Path, make: Callable[[Path], None]) -> Path:
    """The folder ``entry``, private to the user, because it holds code that is executed.

    If it is absent, one process at a time lets ``make`` fill an empty folder, which gets this name when it
    is complete: loading half a library crashes.
    """
    if not entry.exists():
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with held(FileLock(f"{entry}.lock"), "another process that compiles the same local steps"):
            if not entry.exists():
                unfinished = Path(f"{entry}.unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)  # of a killed process
                unfinished.mkdir(mode=0o700)
                make(unfinished)
                unfinished.rename(entry)
    facts = entry.stat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        raise PermissionError(f"{entry} is not private to this user, so its code is not executed")
    return entry


class _Calls(TorchDispatchMode):
    """Writes down what is called within it."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[str] = []
        self.alive: list[Tensor] = []  # so that no two tensors have the same memory
        self.origins: dict[int, str] = {}  # of memory, by its address
        for i, each in enumerate(inputs):
            self.remember(each, f"input {i}")

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it, torch would import it, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = f"{func} {self.told(args)} {self.told(kwargs)}"
        found = func(*args, **(kwargs or {}))
        for j, each in enumerate(found if isinstance(found, list | tuple) else [found]):
            if isinstance(each, Tensor):
                self.remember(each, f"{len(self.calls)}.{j}")
        self.calls.append(call)
        return found

    def remember(self, tensor: Tensor, origin: str) -> None:
        self.alive.append(tensor)
        self.origins.setdefault(tensor.untyped_storage().data_ptr(), origin)

    def told(self, value: Any) -> str:
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self.told, value))}]"
        if isinstance(value, dict):
            return self.told([*value.items()])
        if not isinstance(value, Tensor):
            return repr(value)
        shape = f"{value.dtype} {[*value.shape]} {value.stride()} {value.storage_offset()}"
        origin = self.origins.get(value.untyped_storage().data_ptr())
        return f"({origin or _content(value)} {shape})"


def _content(tensor: Tensor) -> str:
    values = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(values.numpy().tobytes()).hexdigest()
