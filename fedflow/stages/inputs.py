"""Makes and checks the inputs of runs and procedures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedflow.config import Loaded
from fedflow.data import is_current
from fedflow.errors import FedflowError
from fedflow.files import prepared_folder
from fedflow.naming import listed
from fedflow.stages.central_network import CentralRun, prepare_network
from fedflow.stages.experiment import Cell
from fedflow.stages.partition import is_divided, prepare_partition
from fedflow.stages.prepare import prepare_dataset

Make = Callable[..., Any]  # of the settings, a name and the project's folder; keeps what is current
Makers = dict[str, Make]  # by kind of input, in order
INPUTS = {"datasets": "data of", "networks": "central network", "partitions": "partition"}  # in words
MAKERS: Makers = {"datasets": prepare_dataset, "networks": prepare_network, "partitions": prepare_partition}


def make_inputs(cells: Sequence[Cell], makers: Makers = MAKERS) -> None:
    """Make the inputs of the cells of one project, once each, unless they are current.

    ``makers`` may be Prefect tasks. Raises `FedflowError`.
    """
    for kind, make in makers.items():
        for name in dict.fromkeys(name for cell in cells for name in getattr(cell, kind)):
            make(cells[0].params, name, cells[0].root)


def inputs_of(cell: Cell) -> dict[str, tuple[str, str]]:
    """Kind and name of the inputs of a cell, by their names in words."""
    return {f"{words} {name}": (kind, name) for kind, words in INPUTS.items() for name in getattr(cell, kind)}


def outdated_inputs(params: Loaded, root: Path, grid: Sequence[Cell]) -> list[str]:
    """The inputs of the grid that are missing, or would be made again, in words."""
    checks: dict[str, Callable[[str], bool]] = {
        "datasets": lambda name: is_current(prepared_folder(root, name), params.dataset(name)),
        "networks": lambda name: CentralRun(params, name, root).is_current(),
        "partitions": lambda name: is_divided(params, name, root),
    }
    read = {words: given for cell in grid for words, given in inputs_of(cell).items()}
    return [words for words, (kind, name) in read.items() if not checks[kind](name)]


def need_current(cell: Cell, since: str = "the run") -> None:
    """Raise `FedflowError` if an input of the cell is not, or no longer, as its settings say."""
    if changed := outdated_inputs(cell.params, cell.root, [cell]):
        raise FedflowError(f"another command has changed {listed(changed)} since {since} began")
