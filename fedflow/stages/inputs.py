"""Makes the inputs of runs and procedures."""

from collections.abc import Callable, Sequence
from typing import Any

from fedflow.stages.central_network import prepare_network
from fedflow.stages.experiment import Cell
from fedflow.stages.partition import prepare_partition
from fedflow.stages.prepare import prepare_dataset

Make = Callable[..., Any]  # of the settings, a name and the project's folder; keeps what is current
Makers = dict[str, Make]  # by kind of input, in order
MAKERS: Makers = {"datasets": prepare_dataset, "networks": prepare_network, "partitions": prepare_partition}


def make_inputs(cells: Sequence[Cell], makers: Makers = MAKERS) -> None:
    """Make the inputs of the cells of one project, once each, unless they are current.

    ``makers`` may be Prefect tasks. Raises `FedflowError`.
    """
    for kind, make in makers.items():
        for name in dict.fromkeys(name for cell in cells for name in getattr(cell, kind)):
            make(cells[0].params, name, cells[0].root)
