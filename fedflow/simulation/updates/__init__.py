"""The steps that an update takes from a client to the server.

`step` is the protocol of a step, `path` all steps of a run, and `sending` takes a worker's updates along the
path. Importing this package registers the steps of ``run.updates``, one file each.
"""

from fedflow.simulation.updates import clip as clip
from fedflow.simulation.updates import secure as secure
from fedflow.simulation.updates.step import STEPS as STEPS
from fedflow.simulation.updates.step import UpdateStep as UpdateStep
from fedflow.simulation.updates.step import check_steps as check_steps

__all__ = ["STEPS", "UpdateStep", "check_steps"]
