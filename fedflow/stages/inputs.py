"""Makes what runs and procedures read: data sets, central networks, partitions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedflow.config import Loaded
from fedflow.stages.central_network import prepare_network
from fedflow.stages.partition import prepare_partition
from fedflow.stages.prepare import prepare_dataset

Make = Callable[..., Any]  # of the settings, a name and the project's folder; keeps what is current


class Reader(Protocol):
    """A run or a procedure, with the names of all that it reads."""

    @property
    def params(self) -> Loaded: ...
    @property
    def root(self) -> Path: ...
    @property
    def datasets(self) -> list[str]: ...
    @property
    def networks(self) -> list[str]: ...
    @property
    def partitions(self) -> list[str]: ...


def make_inputs(
    readers: Sequence[Reader],
    prepare: Make = prepare_dataset,
    train: Make = prepare_network,
    divide: Make = prepare_partition,
) -> None:
    """Make what these of one project read, once each, unless it is current.

    ``prepare``, ``train`` and ``divide`` may be tasks of Prefect. Raises `FedflowError`.
    """
    for make, names in ((prepare, "datasets"), (train, "networks"), (divide, "partitions")):
        for name in dict.fromkeys(name for reader in readers for name in getattr(reader, names)):
            make(readers[0].params, name, readers[0].root)
