"""The rounds of a run so far: in memory, and one JSON line each in a file next to the checkpoint.

Rounds are added to the end of the file. A checkpoint records how much of it is valid, so lines that a killed
run added without a checkpoint are cut off.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedflow.errors import FedflowError
from fedflow.simulation.outcome import RoundReport

FILE = "history.jsonl"


class History(list[RoundReport]):
    """A list of rounds, in order. With a ``folder``, it can be saved."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self.folder = folder
        self._rounds, self._bytes = 0, 0  # saved in the file
        self._digest = hashlib.blake2b(digest_size=16)  # of these bytes

    def save(self) -> dict[str, Any]:
        """Add the rounds that the file lacks; returns its size and digest, for the checkpoint.

        Raises `FedflowError` if the file cannot be written.
        """
        assert self.folder is not None
        path = self.folder / FILE
        lines = "".join(f"{json.dumps(vars(report))}\n" for report in self[self._rounds :]).encode()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.truncate(self._bytes)
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FedflowError(f"cannot write the checkpoint {path}: {error.strerror or error}") from error
        self._rounds, self._bytes = len(self), self._bytes + len(lines)
        self._digest.update(lines)
        return {"bytes": self._bytes, "digest": self._digest.hexdigest()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the rounds of a checkpoint with the facts ``saved``; `FedflowError` unless intact."""
        assert self.folder is not None
        path = self.folder / FILE
        try:
            with path.open("rb") as file:
                lines = file.read(saved["bytes"])
        except OSError as error:
            raise FedflowError(
                f"{path} cannot be read ({error.strerror or error}); delete its folder to start over"
            ) from error
        self._digest.update(lines)
        if self._digest.hexdigest() != saved["digest"]:
            raise FedflowError(f"{path} is damaged; delete its folder to start over")
        for line in lines.splitlines():
            past = json.loads(line)
            past["failed"] = {int(k): reason for k, reason in past["failed"].items()}
            self.append(RoundReport(**past))
        self._rounds, self._bytes = len(self), len(lines)
