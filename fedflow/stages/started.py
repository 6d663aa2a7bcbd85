"""The file with the first values of a network, which ``models`` names by its path or by a recorded run."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from fedflow.data.prepared import file_sum
from fedflow.errors import BadInput
from fedflow.simulation.federation import Stored

RUN = re.compile(r"([0-9a-f]{32})(?:#([\w-]+))?")  # its id, and the name of one of its models
FOLDER = Path(".fedflow") / "start"  # copies of the models of runs


def start_files(options: Mapping[str, Any]) -> list[str]:
    """The file that these options of a network name; none for a run, whose model never changes."""
    start = options.get("start")
    return [start] if start is not None and not RUN.fullmatch(start) else []


def start_of(options: Mapping[str, Any], root: Path) -> Stored | None:
    """The file with the first values, if any; the model of a run is exported once.

    Raises `FedflowError` for a run without a recorded model of this name, by default a global one.
    """
    if (start := options.get("start")) is None:
        return None
    file = (root / start).resolve()
    if run := RUN.fullmatch(start):
        file = (root / FOLDER / f"{start}.safetensors").resolve()
        if not file.is_file():
            from fedflow.tracking.models import export_model, model_called

            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(f".{uuid4().hex}")
            try:
                export_model(partial, run[1], *model_called(run[1], run[2] or "global", root), root)
            except BadInput as error:
                accepted = f"a run, # and a name: client-0, ..., or a model of the run: {error.accepted}"
                raise BadInput("model.start", start, accepted) from error
            partial.replace(file)
    return Stored(str(file), file_sum(file) if file.is_file() else "")


def started(options: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """The options of a network with the path of its file on this machine."""
    start = start_of(options, root)
    return dict(options) | ({"start": start.path} if start else {})
