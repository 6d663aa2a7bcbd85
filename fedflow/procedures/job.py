"""A procedure for workers: its settings, and its inputs by content."""

from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from fedflow.data import load_prepared
from fedflow.errors import FedflowError
from fedflow.local.precision import use_plain_products
from fedflow.local.trained import load_network
from fedflow.procedures.interface import Procedure, Row, State, World
from fedflow.simulation.federation import FederationFiles, Stored, found


@dataclass(frozen=True)
class ProcedureJob:
    """A procedure and its inputs. ``key`` identifies everything that the results depend on."""

    key: str
    procedure: Procedure = field(compare=False)
    seed: int = field(compare=False)
    device: str = "cpu"
    datasets: dict[str, Stored] = field(default_factory=dict, compare=False)
    federations: dict[str, FederationFiles] = field(default_factory=dict, compare=False)
    networks: dict[str, Stored] = field(default_factory=dict, compare=False)
    files: dict[str, Path] = field(default_factory=dict, compare=False)

    def open(self) -> "OpenProcedure":
        """Open it once per process. Raises `FedflowError` if an input is missing or does not fit."""
        return _open(self)


@dataclass(frozen=True)
class OpenProcedure:
    """A procedure with the data that its parts share."""

    procedure: Procedure
    shared: Any

    def names(self) -> list[str]:
        return self.procedure.parts(self.shared)

    def steps(self, part: str) -> int:
        return self.procedure.steps(self.shared, part)

    def start(self, part: str) -> State:
        return self.procedure.start(self.shared, part)

    def step(self, part: str, state: State, number: int) -> tuple[State, Row]:
        return self.procedure.step(self.shared, part, state, number)


@lru_cache(maxsize=2)
def _open(job: ProcedureJob) -> OpenProcedure:
    use_plain_products()
    for name, path in job.files.items():
        if not path.is_file():
            raise FedflowError(f"{job.procedure.name}: there is no file {name} ({path})")
    world = World(
        job.seed,
        torch.device(job.device),
        {name: found(stored, partial(load_prepared, verify=True)) for name, stored in job.datasets.items()},
        {name: files.open() for name, files in job.federations.items()},
        {name: found(stored, load_network) for name, stored in job.networks.items()},
        job.files,
    )
    return OpenProcedure(job.procedure, job.procedure.open(world))
