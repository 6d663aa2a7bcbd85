"""A run whose paths exist on no other machine, as a program: ``elsewhere.py ROOT MARKER SETTING ...``.

The workers of the cluster must fetch the data by content. Where MARKER is not empty, one of them kills
itself in the second round, and leaves the file of that name.
"""

import sys
from dataclasses import replace
from pathlib import Path

from lossy import Lossy

from fedflow.simulation.federation import Stored
from fedflow.stages import experiment
from flows import federate


def main(root: str, marker: str, *settings: str) -> None:
    stored = experiment.stored

    def gone(root: Path, kind: str, name: str) -> Stored:
        folder = Path(stored(root, kind, name).path)
        return replace(stored(root, kind, name), path=f"/gone/{folder.parent.name}/{folder.name}")

    def lossy(engine):
        made = Lossy(engine.executor, engine.workers, engine.address)
        made.marker = marker
        return made

    experiment.stored = gone
    federate.executor_for = lossy
    federate.federate("digits-6", "fedavg", settings=list(settings), root=root)


if __name__ == "__main__":
    main(*sys.argv[1:])
