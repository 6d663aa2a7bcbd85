"""A run whose paths exist on no other machine, as a program: ``elsewhere.py ROOT MARKER SETTING ...``.

The workers of the cluster must find the data by content. Where MARKER is not empty, one of them kills
itself in the second round, and leaves the file of that name.
"""

import sys
from pathlib import Path

from lossy import Lossy

from fedflow.simulation.federation import Stored
from fedflow.stages import experiment
from flows import federate
from tasks.shards import executor_for


def main(root: str, marker: str, *settings: str) -> None:
    stored = experiment.stored

    def gone(folder: Path, facts: str) -> Stored:
        return Stored(f"/gone/{folder.parent.name}/{folder.name}", stored(folder, facts).hash)

    def lossy(engine):
        made = Lossy(engine.executor, engine.workers, engine.address)
        made.marker = Path(marker)
        return made

    experiment.stored = gone
    federate.executor_for = lossy if marker else executor_for
    federate.federate("digits-6", "fedavg", settings=list(settings), root=root)


if __name__ == "__main__":
    main(*sys.argv[1:])
