"""The file with the first values of a network, which ``models`` names by its path or by a recorded run."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from fedflow.data.prepared import file_sum
from fedflow.simulation.federation import Stored

RUN = re.compile(r"[0-9a-f]{32}")
FOLDER = Path(".fedflow") / "start"  # copies of the global models of runs


def start_files(options: Mapping[str, Any]) -> list[str]:
    """The file that these options of a network name; none for a run, whose model never changes."""
    start = options.get("start")
    return [start] if start is not None and not RUN.fullmatch(start) else []


def start_of(options: Mapping[str, Any], root: Path) -> Stored | None:
    """The file with the first values, if any; the model of a run is exported once.

    Raises `FedflowError` for a run without a recorded global model.
    """
    if (start := options.get("start")) is None:
        return None
    file = (root / start).resolve()
    if RUN.fullmatch(start):
        file = (root / FOLDER / f"{start}.safetensors").resolve()
        if not file.is_file():
            from fedflow.tracking.models import export_model

            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(f".{uuid4().hex}")
            export_model(partial, start, root=root)
            partial.replace(file)
    return Stored(str(file), file_sum(file) if file.is_file() else "")


def started(options: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """The options of a network with the path of its file on this machine."""
    start = start_of(options, root)
    return dict(options) | ({"start": start.path} if start else {})
