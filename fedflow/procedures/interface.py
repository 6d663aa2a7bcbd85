"""Procedures: experiments that are not federated rounds, such as coresets and online meta-learning.

A procedure is to its steps what a method is to rounds: it says what a step does. Checkpoints, workers, the
record and the files are those of the pipeline, the same for all. A procedure has one or more independent
parts (learners, baselines, restarts), each a sequence of steps; parts run on different workers.
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

State = dict[str, Tensor]  # all that the next step of a part needs; it is the checkpoint
Row = dict[str, float]  # numbers of a step by name


@dataclass(frozen=True)
class World:
    """What a procedure reads: the ``seed``, and the data that it names in `Procedure.inputs`."""

    seed: int
    device: torch.device
    datasets: Mapping[str, "Dataset"]
    federations: Mapping[str, "Federation"]  # by partition: model, samples and partition, on the device
    networks: Mapping[str, "TrainedNetwork"]
    files: Mapping[str, "Path"]


@dataclass(frozen=True)
class Inputs:
    """Names of what a procedure reads: of `data`, `partitions`, `central` in params.yaml, and files.

    Files are relative to the project's root; their content is part of the procedure's identity.
    """

    datasets: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column:
    """A number of the steps or of the summary: what it is called, its unit, and which values are better."""

    title: str  # without the unit
    unit: str = ""  # "%" for shares, which are stored in [0, 1]
    better: Literal["higher", "lower", ""] = ""  # "": neither
    log: bool = False  # a logarithmic axis
    digits: int | None = None  # decimals; None: 1 of shares, else 4

    @property
    def heading(self) -> str:
        """The title with the unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    @property
    def factor(self) -> int:
        """By what stored values are multiplied."""
        return 100 if self.unit == "%" else 1


@dataclass
class End:
    """A part after its last step: its state, and its rows as a table, indexed by step from 1."""

    state: State
    rows: pd.DataFrame


@dataclass
class Findings:
    """The result of a procedure.

    ``summary``: by row (a part or a group of parts), then by metric; None is not measured. ``tables`` become
    CSV files, ``drawings`` pictures, ``vectors`` one safetensors file.
    """

    summary: dict[str, dict[str, float | None]]
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    drawings: "list[Drawing]" = field(default_factory=list)
    vectors: dict[str, Tensor] = field(default_factory=dict)


class Procedure(Settings):
    """Base of all procedures. Its fields are parameters in params.yaml.

    Every function is deterministic in its arguments: random numbers come from ``world.seed`` with a purpose
    and the number of the step (`fedflow.seeding`), so that results depend neither on the workers nor on
    where a killed run resumes.
    """

    section: ClassVar[str] = "procedures"
    plural: ClassVar[str] = "procedures"
    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    page: ClassVar[str] = ""  # its page in docs, if it has one
    step_name: ClassVar[str] = "step"  # what a step is called, such as "task"
    curves: ClassVar[dict[str, Column]] = {}  # columns of the rows that the report draws by step
    metrics: ClassVar[dict[str, Column]] = {}  # of the summary, in the order of the report

    def inputs(self) -> Inputs:
        """What it reads. It exists when `open` is called."""
        return Inputs()

    def open(self, world: World) -> Any:
        """What all parts share, such as a graph or a stream of tasks: made once per process, never changed.

        Raises `BadInput` of a field if the data do not fit.
        """
        return world

    def parts(self, shared: Any) -> list[str]:
        """Names of the independent parts, of letters, digits, `-`, `_` and `.`; "" if there is one."""
        return [""]

    def steps(self, shared: Any, part: str) -> int:
        """How many steps a part has, at least one."""
        raise NotImplementedError

    def start(self, shared: Any, part: str) -> State:
        """The state before the first step."""
        return {}

    def step(self, shared: Any, part: str, state: State, number: int) -> tuple[State, Row]:
        """The state after step ``number``, from 1, and its numbers. ``state`` must not be changed.

        In the first step of a block its tensors are on the CPU, even if those that the last step returned
        were not.
        """
        raise NotImplementedError

    def finish(self, shared: Any, ends: Mapping[str, End]) -> Findings:
        """The result of all parts, after their last steps. Their states are on the CPU."""
        raise NotImplementedError


PROCEDURES: dict[str, type[Procedure]] = {}
register = registering(PROCEDURES)


def procedure_class(name: str, field: str) -> type[Procedure]:
    """The registered procedure; `BadInput` of ``field`` for an unknown name."""
    if name not in PROCEDURES:
        raise unknown_name(field, name, PROCEDURES)
    return PROCEDURES[name]
