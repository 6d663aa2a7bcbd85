"""Ray: contents that are sent to the machines of a cluster."""

from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedflow.simulation.federation import Stored
from tasks.contents import Files, store


class RayCarrier:
    """Parts in Ray's object store, which a machine reads one by one."""

    def __init__(self, runner: Any) -> None: ...

    @staticmethod
    def here() -> str:
        return ray.get_runtime_context().get_node_id()

    def put(self, part: bytes) -> Any:
        return ray.put(part)

    def store(self, workers: list[str], stored: Stored, files: Files) -> None:
        remote = ray.remote(num_cpus=0)(store)
        on_nodes = (
            remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True))
            for node in workers
        )
        try:
            ray.get([on_node.remote(stored, files, ray.get) for on_node in on_nodes])
        except RayTaskError as error:
            raise error.cause from None
