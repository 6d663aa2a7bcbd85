"""The way of an update from a client to the server.

`step` is the protocol of a step, `path` the steps of a run in their order, with the parts that every run has
(`parts`). `sending` takes a worker's updates along the path, and `sums` are the server's exact means.
Importing this package registers the steps of ``run.updates``, one file each.
"""

from fedflow.simulation.updates import clip as clip
from fedflow.simulation.updates.step import STEPS as STEPS
from fedflow.simulation.updates.step import UpdateStep as UpdateStep
from fedflow.simulation.updates.step import check_steps as check_steps

__all__ = ["STEPS", "UpdateStep", "check_steps"]
