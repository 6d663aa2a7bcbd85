"""Procedures: experiments without federated rounds, such as coresets and online meta-learning.

A procedure defines steps as a method defines rounds; checkpoints, workers, the record and the files come from
the pipeline. A procedure has one or more independent parts (learners, baselines, restarts), each a sequence
of steps; parts run on different workers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pandas as pd
import torch
from torch import Tensor

from fedflow.errors import unknown_name
from fedflow.settings import Settings, registering

if TYPE_CHECKING:
    from pathlib import Path

    from fedflow.data import Dataset
    from fedflow.local.trained import TrainedNetwork
    from fedflow.pictures.drawing import Drawing
    from fedflow.simulation.federation import Federation

State = dict[str, Tensor]  # input of the next step of a part, and its checkpoint
Row = dict[str, float]  # numbers of a step by name


@dataclass(frozen=True)
class World:
    """Inputs of a procedure: the ``seed``, and the data that `Procedure.inputs` names."""

    seed: int
    device: torch.device
    datasets: Mapping[str, "Dataset"]
    federations: Mapping[str, "Federation"]  # model, samples and partition, by name of the partition
    networks: Mapping[str, "TrainedNetwork"]
    files: Mapping[str, "Path"]


@dataclass(frozen=True)
class Inputs:
    """Names of inputs: entries of `data`, `partitions` and `central` in params.yaml, and files.

    Files are relative to the project's root; their content is part of the procedure's identity.
    """

    datasets: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column:
    """A column of the steps or of the summary."""

    title: str  # without the unit
    unit: str = ""  # "%" for shares, which are stored in [0, 1]
    better: Literal["higher", "lower", ""] = ""
    log: bool = False  # logarithmic axis
    digits: int | None = None  # decimals; by default 1 for shares, else 4

    @property
    def heading(self) -> str:
        """The title with the unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    @property
    def factor(self) -> int:
        """Factor between stored and displayed values."""
        return 100 if self.unit == "%" else 1


@dataclass
class End:
    """A part after its last step: its state, and the rows of its steps, indexed from 1."""

    state: State
    rows: pd.DataFrame


@dataclass
class Findings:
    """The result of a procedure.

    ``summary`` has a row per part or group of parts, with metrics by name (None: not measured). ``tables``
    become CSV files, ``drawings`` pictures, ``vectors`` one safetensors file.
    """

    summary: dict[str, dict[str, float | None]]
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    drawings: "list[Drawing]" = field(default_factory=list)
    vectors: dict[str, Tensor] = field(default_factory=dict)


class Procedure(Settings):
    """Base of all procedures. Its fields are parameters in params.yaml.

    Every function is deterministic in its arguments: random numbers come from ``world.seed``, a purpose and
    the number of the step (`fedflow.seeding`), so that results do not depend on workers or interruptions.
    """

    section: ClassVar[str] = "procedures"
    plural: ClassVar[str] = "procedures"
    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    page: ClassVar[str] = ""  # page in docs, or ""
    step_name: ClassVar[str] = "step"  # name of a step, such as "task"
    curves: ClassVar[dict[str, Column]] = {}  # columns of the rows to draw by step
    metrics: ClassVar[dict[str, Column]] = {}  # columns of the summary, in order

    def inputs(self) -> Inputs:
        """The inputs, which exist when `open` is called."""
        return Inputs()

    def open(self, world: World) -> Any:
        """Data shared by all parts, such as a graph or a stream of tasks, made once per process.

        Raises `BadInput` for a field if the data do not fit.
        """
        return world

    def parts(self, shared: Any) -> list[str]:
        """Names of the independent parts (letters, digits, `-`, `_`, `.`); "" if there is only one."""
        return [""]

    def steps(self, shared: Any, part: str) -> int:
        """The number of steps of a part, at least one."""
        raise NotImplementedError

    def start(self, shared: Any, part: str) -> State:
        """The state before the first step."""
        return {}

    def step(self, shared: Any, part: str, state: State, number: int) -> tuple[State, Row]:
        """The state after step ``number``, from 1, and its row. ``state`` must not be changed.

        In the first step of a block its tensors are on the CPU, wherever the last step returned them.
        """
        raise NotImplementedError

    def finish(self, shared: Any, ends: Mapping[str, End]) -> Findings:
        """The result of all parts. Their last states are on the CPU."""
        raise NotImplementedError


PROCEDURES: dict[str, type[Procedure]] = {}
register = registering(PROCEDURES, Procedure)


def procedure_class(name: str, field: str) -> type[Procedure]:
    """The registered procedure. Raises `BadInput` for ``field`` if the name is unknown."""
    if name not in PROCEDURES:
        raise unknown_name(field, name, PROCEDURES)
    return PROCEDURES[name]
