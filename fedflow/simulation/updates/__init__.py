"""The steps that an update takes from a client to the server.

`step` is the protocol of a step, `path` all steps of a run, and `sending` takes a worker's updates along the
path. Importing this package registers the steps of ``run.updates``, one file each.
"""

from fedflow.simulation.updates import alie as alie
from fedflow.simulation.updates import bulyan as bulyan
from fedflow.simulation.updates import centered_clipping as centered_clipping
from fedflow.simulation.updates import clip as clip
from fedflow.simulation.updates import gaussian_attack as gaussian_attack
from fedflow.simulation.updates import geometric_median as geometric_median
from fedflow.simulation.updates import inner_product as inner_product
from fedflow.simulation.updates import krum as krum
from fedflow.simulation.updates import median as median
from fedflow.simulation.updates import norm_bound as norm_bound
from fedflow.simulation.updates import privacy as privacy
from fedflow.simulation.updates import qsgd as qsgd
from fedflow.simulation.updates import random_k as random_k
from fedflow.simulation.updates import secure as secure
from fedflow.simulation.updates import sign as sign
from fedflow.simulation.updates import sign_flip as sign_flip
from fedflow.simulation.updates import top_k as top_k
from fedflow.simulation.updates import trimmed_mean as trimmed_mean
from fedflow.simulation.updates.step import STEPS as STEPS
from fedflow.simulation.updates.step import UpdateStep as UpdateStep
from fedflow.simulation.updates.step import check_steps as check_steps
from fedflow.simulation.updates.step import replaces_means as replaces_means

__all__ = ["STEPS", "UpdateStep", "check_steps", "replaces_means"]
