"""Sections of ``params.yaml`` that no other package defines: engine, networks, entries, grid."""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from fedflow.choice import Choice
from fedflow.config.changing import put
from fedflow.errors import BadInput
from fedflow.local.central_training import Central
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS, Method
from fedflow.models import ARCHITECTURES, architecture, known_options
from fedflow.models.flat import CONVOLUTIONS
from fedflow.models.lora import Lora
from fedflow.naming import flat, say
from fedflow.procedures import PROCEDURES, Procedure
from fedflow.project.arguments import check_once
from fedflow.settings import Settings, check, explain, option
from fedflow.simulation.settings import RunSettings

MAY_BE_EMPTY = ("central", "procedures")  # lists of the grid
OF_RUNS = ("datasets", "partitions", "methods")  # others, which a grid of procedures may leave empty
CLUSTERS = ("dask", "ray")
REDRAW = ("run", "division", "both")  # what every seed draws
EXECUTORS = ("auto", "inline", "threads", "processes", *CLUSTERS)


class EngineSettings(Settings):
    """The workers and the device. These settings change no result beyond float tolerance."""

    section = "engine"
    executor: str = option(
        "auto",
        "what runs the shards of a round; auto = threads, then processes if the run is long and on a CPU; "
        "inline needs no Prefect server",
        choices=EXECUTORS,
    )
    workers: int = option(2, "shards per round", ge=1)
    device: str = option("auto", "auto = a GPU if there is one, else cpu", choices=("auto", "cpu", "cuda"))
    cohort: str = option(
        "auto", "clients one by one or all at once; auto = vmap on a GPU", choices=("auto", "loop", "vmap")
    )
    width: int | None = option(
        None, "clients per vmapped call; null = as many as a GPU has memory for, 32 on a CPU", ge=1
    )
    convolution: str = option(
        "matmul",
        "how a vmapped cohort convolves: as matrix products, or in one grouped convolution",
        choices=CONVOLUTIONS,
    )
    compile: str = option(
        "auto",
        "compile the gradient on a CPU; auto = if the run is long enough to pay for it",
        choices=("auto", "always", "never"),
    )
    address: str | None = option(
        None, "address of a running Dask or Ray cluster (docs/clusters.md); null = start a local one"
    )

    def validate(self) -> None:
        if self.address is not None and self.executor not in CLUSTERS:
            raise BadInput("engine.address", self.address, "null, unless executor is dask or ray")


class ModelParams(Settings):
    """The network for one dataset.

    ``further`` fields are stored in ``options``, so that the digest of a network without them does not
    change.
    """

    section = "models"
    short: ClassVar[str] = "name"
    further: ClassVar[Mapping[str, tuple[Any, str]]] = {  # name -> type and meaning
        "trainable": (list[str], "patterns of the parameters that are trained; null = all"),
        "start": (str, "initial values: a safetensors file, or the id of a recorded run with a global model"),
        "fresh": (list[str], "patterns of the names that `start` does not set"),
        "lora": (Lora, "low-rank adapters, which are trained together with `trainable`; {} = the defaults"),
    }
    name: str = option(doc="architecture, or the import path of a class, package.module:Name")
    options: dict = option(factory=dict, doc="options of the architecture")

    @classmethod
    def parse(cls, values: Any, section: str | None = None) -> Self:
        """Build from a mapping, with ``further`` fields as options, or from an architecture's name."""
        options = values.get("options", {}) if isinstance(values, Mapping) else None
        if isinstance(options, Mapping):
            rest = {name: value for name, value in values.items() if name not in cls.further}
            moved = {n: value for n, value in values.items() if n in cls.further and value is not None}
            values = rest | ({"options": {**options, **moved}} if moved else {})
        return super().parse(values, section)

    @classmethod
    def schema(cls, fields: dict[str, Any]) -> dict[str, Any]:
        names, properties = sorted(ARCHITECTURES), fields["properties"]
        adapters = {row["name"]: {"description": row["doc"]} for row in explain(Lora)}
        forms: dict[Any, dict[str, Any]] = {
            str: {"type": "string"},
            list[str]: {"type": "array", "items": {"type": "string"}},
            Lora: {"type": "object", "properties": adapters, "additionalProperties": False},
        }
        further = {
            name: {"anyOf": [forms[hint], {"type": "null"}], "default": None, "description": doc}
            for name, (hint, doc) in cls.further.items()
        }
        of_name = [
            {
                "if": {"properties": {"name": {"const": name}}},
                "then": {"properties": {"options": {"propertyNames": {"enum": options}}}},
            }
            for name in names
            for options in [[*known_options(name), *cls.further]]
        ]
        path = {"type": "string", "pattern": ":"}
        name = properties["name"] | {"anyOf": [{"enum": names}, path]}
        properties |= {"name": name, **further}
        return fields | {"properties": properties, "allOf": of_name}

    def validate(self) -> None:
        network = architecture(self.name, "models.name")
        for name in self.options:
            if name in self.further:
                check(f"models.{name}", self.options[name], self.further[name][0], {})
            else:
                network.check_option(name, "models.options")
        if "fresh" in self.options and "start" not in self.options:
            raise BadInput("models.fresh", self.options["fresh"], "names of a file, which `start` gives")
        usual = inspect.signature(network.build).parameters
        for name, value in self.options.items():
            widths = self.name in ARCHITECTURES and name in usual and isinstance(usual[name].default, tuple)
            listed = isinstance(value, list | tuple)
            if (widths and not listed) or (
                listed and any(n < 1 if isinstance(n, int) else widths for n in value)
            ):
                raise BadInput(f"models.options.{name}", value, "a list, each item a whole number >= 1")


class CentralParams(Central):
    """A network that is trained on a whole dataset: a teacher, an expert, or a reference."""

    section = "central"
    dataset: str = option(doc="a name under data")
    model: ModelParams | None = option(None, "its network; null = the network of `models` for the dataset")

    @property
    def teacher(self) -> str | None:
        """The central network that it learns from, if any."""
        return None if self.training.objective is None else self.training.objective.teacher


def _words(values: Mapping[str, Any]) -> list[str]:
    """Nested values in words, one item each."""
    return [say(name, value) for name, value in flat(values, empty=True).items()]


class MethodParams(Choice):
    """The changes of one entry of ``methods``: hyperparameters, and fields of the shared sections.

    An entry with another name names its ``method``, whose entry it starts from.
    """

    section = "methods"
    plural = "methods"
    key: ClassVar[str] = "method"
    overrides: ClassVar[Mapping[str, type[Settings]]] = {"training": LocalTraining, "run": RunSettings}
    method: str | None = option(
        default=None, doc="the registered method; null = the one with the entry's name"
    )
    label: str | None = option(default=None, doc="name in the report; null = the method's, and the changes")
    parameters: dict = option(factory=dict, doc="hyperparameters that differ from the defaults")
    training: dict = option(factory=dict, doc="fields of `training` that differ for this method")
    run: dict = option(factory=dict, doc="fields of `run` that differ, such as a client curriculum")

    @classmethod
    def known(cls) -> Mapping[str, type[Method]]:
        return METHODS

    @property
    def words(self) -> list[str]:
        """Its changes in words, such as "mu 0.1" and "curriculum order anti"."""
        sections = {"method": self.parameters, "training": self.training, "run": self.run}
        return _words({name: values for name, values in sections.items() if values})

    def changed(self, changes: Mapping[str, Any], section: str) -> Self:
        """A copy with other values by name, such as ``training.lr``."""
        values = self.flat()
        for name, value in changes.items():
            put(values, name.split("."), value)
        return self.parse(values, section)


class ProcedureParams(Choice):
    """An entry of ``procedures``: parameters of the procedure of its name, or of its ``procedure``."""

    section = "procedures"
    plural = "procedures"
    key: ClassVar[str] = "procedure"
    procedure: str | None = option(
        default=None, doc="the registered procedure; null = the one with the entry's name"
    )
    label: str | None = option(
        default=None, doc="name in the report; null = the procedure's, and the changes"
    )
    parameters: dict = option(factory=dict, doc="its parameters, without `procedure` and `label`")

    @classmethod
    def known(cls) -> Mapping[str, type[Procedure]]:
        return PROCEDURES

    @property
    def words(self) -> list[str]:
        """Its changes in words, such as "picks 3"."""
        return _words(self.parameters)


class Grid(Settings):
    """The grid of `dvc repro`: every partition x method x seed, and every procedure x seed."""

    section = "grid"
    datasets: list[str] = option(doc="names under data")
    partitions: list[str] = option(doc="names under partitions")
    methods: list[str] = option(doc="names under methods, or registered methods")
    seeds: list[int] = option(doc="experiment seeds", ge=0)
    redraw: str = option(
        "run",
        "what every seed draws: run = initial model, cohorts and batches, all on one division of the data "
        "among clients; division = the division only, everything else as with seed 0; both",
        choices=REDRAW,
    )
    central: list[str] = option(factory=list, doc="names under central that `dvc repro` trains")
    procedures: list[str] = option(
        factory=list, doc="names under procedures, or registered procedures, each with every seed"
    )

    def validate(self) -> None:
        may_be_empty = (*MAY_BE_EMPTY, *(OF_RUNS if self.procedures else ()))
        for name, values in self.as_dict().items():
            if not values and name not in may_be_empty:
                raise BadInput(f"grid.{name}", values, "a list with at least one item")
            if isinstance(values, list):
                check_once(f"grid.{name}", values)
