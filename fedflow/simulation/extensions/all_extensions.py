"""The extensions that a run may have, in the order in which they are called; registered ones are last."""

from fedflow.simulation.extensions.by_level import ByLevel
from fedflow.simulation.extensions.client_curriculum import Pools
from fedflow.simulation.extensions.clustering import Clusters
from fedflow.simulation.extensions.extension import REGISTERED, RunExtension
from fedflow.simulation.extensions.further_scores import (
    Adaptations,
    FineTuning,
    KeptModels,
    KeptPredictions,
    Newcomers,
)
from fedflow.simulation.extensions.generation import Generation
from fedflow.simulation.extensions.mixtures import Mixtures
from fedflow.simulation.extensions.recording import Recorded
from fedflow.simulation.extensions.trained_means import TrainedMeans

EXTENSIONS: tuple[type[RunExtension], ...] = (
    TrainedMeans,
    ByLevel,
    Pools,
    Adaptations,
    Generation,
    Clusters,
    FineTuning,
    KeptModels,
    Newcomers,
    KeptPredictions,
    Mixtures,
    Recorded,
)


def all_extensions() -> list[type[RunExtension]]:
    return [*EXTENSIONS, *REGISTERED.values()]


def registered_modules() -> list[str]:
    """The modules of extensions of plug-ins, on which all results depend.

    On a registered extension of fedflow, only those depend whose settings name a class of its module.
    """
    return sorted(
        {kind.__module__ for kind in REGISTERED.values() if not kind.__module__.startswith("fedflow.")}
    )
