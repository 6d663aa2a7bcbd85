"""``params.yaml``: the settings of every stage, checked by one schema. Only this file reads it."""

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import yaml

from fedflow.config.tuning import Tuning
from fedflow.data import DatasetParams
from fedflow.errors import BadInput, FedflowError, unknown_name
from fedflow.local.central_training import Central
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS, Method
from fedflow.methods.method import server_data
from fedflow.methods.registry import method_name
from fedflow.models import ARCHITECTURES, known_options
from fedflow.models.flat import CONVOLUTIONS
from fedflow.naming import flat, say
from fedflow.partition import PartitionParams
from fedflow.procedures import PROCEDURES, Procedure
from fedflow.procedures.interface import procedure_class
from fedflow.project.arguments import check_name, check_once
from fedflow.project.yaml_text import YamlError, yaml_file, yaml_value
from fedflow.settings import Settings, check, option
from fedflow.simulation.federation import EXPERTS, FEATURES, TEACHER, need_labels
from fedflow.simulation.setup import RunSettings

T = TypeVar("T")

PARAMS = Path("params.yaml")
MAY_BE_EMPTY = ("central", "procedures")  # lists of the grid
LONGEST = 40  # letters of the settings that the label of a procedure lists, instead of its name
OF_RUNS = ("datasets", "partitions", "methods")  # others, which a grid of procedures may leave empty
CLUSTERS = ("dask", "ray")
EXECUTORS = ("auto", "inline", "threads", "processes", *CLUSTERS)

WORD = r'"[^"]+"|[^".]+'
SETTING = re.compile(rf"({WORD})(\.({WORD}))*")


class EngineSettings(Settings):
    """Who computes, and where. These settings change no result beyond float tolerance."""

    section = "engine"
    executor: str = option(
        "auto",
        "who runs the shards of a round; auto = threads, then processes if the run is long and on a CPU; "
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
    """The network for one data set.

    ``trainable``, patterns of the parameters that are trained, is one of the ``options``: the settings of
    networks that are trained whole, and their digests, do not change.
    """

    section = "models"
    name: str = option(doc="architecture")
    options: dict = option(factory=dict, doc="options of the architecture")

    @classmethod
    def parse(cls, values: Any, section: str | None = None) -> Self:
        """Build from a mapping of ``params.yaml``, or from the name of an architecture alone."""
        if isinstance(values, Mapping) and isinstance(options := values.get("options", {}), Mapping):
            moved = {name: value for name, value in values.items() if name == "trainable"}
            rest = {name: value for name, value in values.items() if name not in moved}
            values = rest | {"options": {**options, **moved}} if moved else values
        return super().parse({"name": values} if isinstance(values, str) else values, section)

    def validate(self) -> None:
        if self.name not in ARCHITECTURES:
            raise unknown_name("models.name", self.name, ARCHITECTURES, "fedflow models")
        for name in self.options:
            if name == "trainable":
                check("models.trainable", self.options[name], list[str], {})
            elif name not in known_options(self.name):
                raise unknown_name(f"models.options.{name}", name, known_options(self.name))
        for name, value in self.options.items():
            if isinstance(value, list) and any(isinstance(width, int) and width < 1 for width in value):
                raise BadInput(f"models.options.{name}", value, "a list, each item a whole number >= 1")


class CentralParams(Central):
    """A network that is trained on a whole data set: a teacher, an expert, or a reference."""

    section = "central"
    dataset: str = option(doc="a name under data")
    model: ModelParams | None = option(None, "its network; null = that of `models` for the data set")

    @property
    def teacher(self) -> str | None:
        """The central network that it learns from, if any."""
        return teacher_of(self.training)


def teacher_of(training: LocalTraining) -> str | None:
    """The central network that this training learns from, if any."""
    return None if training.objective is None else training.objective.teacher


class MethodParams(Settings):
    """What one entry of ``methods`` changes: hyper-parameters, and fields of the shared sections.

    An entry under a name of the user's choice names its ``method``, whose entry it starts from.
    """

    section = "methods"
    plural = "methods"
    method: str | None = option(
        default=None, doc="the registered method; null = the one that the entry is called"
    )
    label: str | None = option(default=None, doc="name in the report; null = the method's, and what differs")
    parameters: dict = option(factory=dict, doc="hyper-parameters that differ from the defaults")
    training: dict = option(factory=dict, doc="fields of `training` that differ for this method")
    run: dict = option(factory=dict, doc="fields of `run` that differ, such as a client curriculum")

    @classmethod
    def parse(cls, values: Any, section: str | None = None) -> Self:
        """Build from the flat mapping of ``params.yaml``; names and values are checked by `Params.method`."""
        given = {} if values is None else values
        shared = ("training", "run")
        if not isinstance(given, Mapping) or not all(isinstance(given.get(n, {}), Mapping) for n in shared):
            accepted = "a mapping of hyper-parameters, and `training:` and `run:` with a mapping"
            raise BadInput(section or cls.section, values, accepted)
        own = {name: given[name] for name in ("method", "label", *shared) if name in given}
        parameters = {name: value for name, value in given.items() if name not in own}
        return super().parse({**own, "parameters": parameters}, section)

    @property
    def words(self) -> list[str]:
        """What it changes, such as "mu 0.1" and "curriculum order anti"."""
        sections = {"method": self.parameters, "training": self.training, "run": self.run}
        values = flat({name: values for name, values in sections.items() if values}, empty=True)
        return [say(name, value) for name, value in values.items()]

    @property
    def plain(self) -> dict[str, Any]:
        """The flat mapping of ``params.yaml``."""
        values = deepcopy({**self.as_dict(), **self.parameters})
        del values["parameters"]
        return values

    def changed(self, changes: Mapping[str, Any], section: str) -> Self:
        """A copy with other values by name, such as ``training.lr``."""
        values = self.plain
        for name, value in changes.items():
            put(values, name.split("."), value)
        return self.parse(values, section)


class ProcedureParams(Settings):
    """An entry of ``procedures``: parameters of the procedure of its name, or of the one that it names."""

    section = "procedures"
    plural = "procedures"
    procedure: str | None = option(
        default=None, doc="the registered procedure; null = the one that the entry is called"
    )
    label: str | None = option(
        default=None, doc="name in the report; null = the procedure's, and what differs"
    )
    parameters: dict = option(factory=dict, doc="its parameters, beside `procedure` and `label`")

    @classmethod
    def parse(cls, values: Any, section: str | None = None) -> Self:
        """Build from the flat mapping of ``params.yaml``; `Params.procedure` checks names and values."""
        if values is not None and not isinstance(values, Mapping):
            raise BadInput(section or cls.section, values, "a mapping of parameters")
        given = dict(values or {})
        own = {name: given.pop(name) for name in ("procedure", "label") if name in given}
        return super().parse({**own, "parameters": given}, section)


class Grid(Settings):
    """What `dvc repro` runs: every partition x method x seed, and every procedure x seed."""

    section = "grid"
    datasets: list[str] = option(doc="names under data")
    partitions: list[str] = option(doc="names under partitions")
    methods: list[str] = option(doc="names under methods, or registered methods")
    seeds: list[int] = option(doc="experiment seeds", ge=0)
    central: list[str] = option(factory=list, doc="names under central: those that `dvc repro` trains")
    procedures: list[str] = option(
        factory=list, doc="names under procedures, or registered procedures, each with every seed"
    )

    def validate(self) -> None:
        may_be_empty = (*MAY_BE_EMPTY, *(OF_RUNS if self.procedures else ()))
        for name, values in self.as_dict().items():
            if not values and name not in may_be_empty:
                raise BadInput(f"grid.{name}", values, "a list with at least one item")
            check_once(f"grid.{name}", values)


class Params(Settings):
    """The whole of ``params.yaml``, parsed once; `replace` returns changed copies."""

    plain: ClassVar["Params | None"] = None  # the file without changes; `load_params` sets both
    changes: ClassVar[tuple[str, ...]] = ()  # the changes, as text for Prefect's record
    data: dict[str, DatasetParams] = option(doc="data set name -> source and preparation")
    models: dict[str, ModelParams] = option(doc="data set name -> network")
    partitions: dict[str, PartitionParams] = option(doc="partition name -> data set, scheme, clients")
    central: dict[str, CentralParams] = option(
        factory=dict, doc="name -> network trained on a whole data set: a teacher, an expert, a reference"
    )
    training: LocalTraining = option(factory=LocalTraining, doc="local SGD, the same for all methods")
    run: RunSettings = option(factory=RunSettings, doc="rounds, participation, evaluation")
    methods: dict[str, MethodParams] = option(
        factory=dict,
        doc="method, or another name with `method:` -> hyper-parameters, `training` and `run` that differ",
    )
    procedures: dict[str, ProcedureParams] = option(
        factory=dict, doc="procedure, or another name with `procedure:` -> parameters that differ"
    )
    tuning: Tuning = option(factory=Tuning, doc="what `fedflow tune` tries, on held-out training data")
    tuned: dict[str, dict[str, MethodParams] | None] = option(
        factory=dict, doc="partition -> method -> settings that `fedflow tune` chose; they override methods"
    )
    grid: Grid = option(doc="what to run")
    engine: EngineSettings = option(factory=EngineSettings, doc="executor, workers, device")

    def remember(self, plain: "Params | None", changes: Sequence[str]) -> Self:
        """Set ``plain`` and ``changes``."""
        object.__setattr__(self, "plain", plain)
        object.__setattr__(self, "changes", tuple(changes))
        return self

    def replace(self, *changes: str, **sections: Any) -> Self:
        """A copy with other sections; ``changes`` describe them, as for `load_params`. Raises `BadInput`."""
        return replace(self, **sections).remember(self.plain, (*self.changes, *changes))

    def dataset(self, name: str) -> DatasetParams:
        """How to prepare the named data set."""
        return _entry("data", self.data, name)

    def model(self, dataset: str) -> ModelParams:
        """The network for the named data set."""
        if dataset not in self.models:
            known = f"a network for this dataset: one of {', '.join(sorted(ARCHITECTURES))}"
            raise BadInput(f"models.{dataset}", None, known)
        return self.models[dataset]

    def partition(self, name: str) -> PartitionParams:
        """How to make the named partition."""
        return _entry("partitions", self.partitions, name)

    def expert(self, partition: str) -> str | None:
        """The central network by whose losses the named partition deals samples to clients, if any."""
        difficulty = self.partition(partition).difficulty
        return difficulty.expert if difficulty else None

    def network(self, name: str, field: str = "central") -> CentralParams:
        """How to train the named central network, with its ``model``; ``field`` names it."""
        entry = _entry(field, self.central, name)
        return entry if entry.model else replace(entry, model=self.model(entry.dataset))

    def networks(self, *names: str | None) -> list[str]:
        """These central networks (None: no network) and their teachers, each after those that it needs."""
        found: list[str] = []
        for name in names:
            if name is not None:
                found += [*self.networks(self.central[name].teacher), name]
        return list(dict.fromkeys(found))

    def used_networks(self, method: str, partition: str) -> dict[str, str]:
        """The central networks that runs of this method on this partition read, by the field that names them.

        Curricula that need no score read none. Raises `BadInput` for a network that does not exist, or was
        trained on another data set or on other labels.
        """
        training, entry = self.method(method, partition)[1], self.partition(partition)
        curricula = training.curriculum, self.run_of(method, partition).client_curriculum
        fields = {
            TEACHER: teacher_of(training),
            **{field: each and each.expert for field, each in zip(EXPERTS, curricula)},
            f"partitions.{partition}.difficulty.expert": self.expert(partition),
            FEATURES: self.run_of(method, partition).features,
        }
        used = {field: name for field, name in fields.items() if name}
        for field, name in used.items():
            self._check_network(field, name, entry.dataset)
        for field, each in zip(EXPERTS, curricula):
            if each is not None and not each.scores:
                used.pop(field, None)
        for field, name in used.items():
            noisy = field in EXPERTS and entry.label_noise is not None
            need_labels(field, name, changed=entry.built.renames or noisy)
        first, second = (used.get(field) for field in EXPERTS)
        if first and second and first != second:
            raise BadInput(EXPERTS[1], second, f"{first!r}, the expert of the data curriculum")
        return used

    def _check_network(self, field: str, name: str, dataset: str) -> None:
        """Raise `BadInput` of ``field`` unless this central network was trained on this data set."""
        if (its := self.network(name, field).dataset) != dataset:
            raise BadInput(field, name, f"a network under central that is trained on {dataset}, not on {its}")

    def method(self, name: str, partition: str | None = None) -> tuple[Method, LocalTraining]:
        """The named method, and its local training: the shared settings with its own changes.

        With ``partition``, what was tuned for both takes precedence.
        """
        method, training, _ = self._settings_of(name, partition)
        return method, training

    def run_of(self, name: str, partition: str | None = None) -> RunSettings:
        """The settings of runs of the named method: the shared ones with its own changes, as `method`."""
        return self._settings_of(name, partition)[2]

    def _settings_of(self, name: str, partition: str | None) -> tuple[Method, LocalTraining, RunSettings]:
        tuned = {name, self.registered(name)} & (self.tuned.get(partition or "") or {}).keys()
        key = name, partition if tuned else None
        if key not in self._built:
            self._built[key] = self._build(*key)
        return self._built[key]

    def method_name(self, name: str) -> str:
        """The name of an entry or registered method that is called ``name``, or by its label."""
        return name if name in self.methods else str(method_name(name))

    def registered(self, name: str) -> str:
        """The registered method of a name of the grid: another one if its entry in ``methods`` says so."""
        entry = self.methods.get(name, MethodParams())
        method = name if entry.method is None else entry.method
        if method not in METHODS and method == name:
            known = {*METHODS, *(n for n, e in self.methods.items() if e.method)}
            raise unknown_name("method.name", name, known, "fedflow methods")
        if method not in METHODS:
            raise unknown_name(f"methods.{name}.method", method, METHODS, "fedflow methods")
        if name in METHODS and method != name:
            raise BadInput(f"methods.{name}.method", method, f"{name}, which is registered under this name")
        return method

    def procedure(self, name: str) -> Procedure:
        """The named procedure, with its parameters and names of inputs that exist."""
        entry = self.procedures.get(name, ProcedureParams())
        field = f"procedures.{name}"
        registered = entry.procedure or name
        if name in PROCEDURES and registered != name:
            raise BadInput(f"{field}.procedure", registered, f"{name}, which is registered under this name")
        cls = procedure_class(registered, f"{field}.procedure" if entry.procedure else "procedure")
        procedure = cls.parse(entry.parameters, section=field)
        inputs = procedure.inputs()
        for dataset in inputs.datasets:
            self.dataset(dataset)
        for partition in inputs.partitions:
            self.partition(partition)
        for network in inputs.networks:
            self.network(network)
        return procedure

    def procedure_networks(self, name: str) -> list[str]:
        """The central networks that the named procedure and its partitions need, and their teachers."""
        inputs = self.procedure(name).inputs()
        return self.networks(*inputs.networks, *map(self.expert, inputs.partitions))

    def procedure_label(self, name: str) -> str:
        """The name that the report prints: by default the procedure's, and what the entry changes."""
        entry, procedure = self.procedures.get(name, ProcedureParams()), self.procedure(name)
        words = [say(key, value) for key, value in flat(entry.parameters, empty=True).items()]
        said = ", ".join(words)
        own = "" if name == procedure.name else f" · {said if 0 < len(said) <= LONGEST else name}"
        return entry.label or procedure.label + own

    def label(self, name: str) -> str:
        """The name that the report prints: by default the method's, and what the entry changes."""
        method, entry = self.registered(name), self.methods.get(name, MethodParams())
        own = "" if name == method else f" · {', '.join(entry.words) or name}"
        return entry.label or METHODS[method].label + own

    @property
    def procedure_entries(self) -> dict[str, tuple[str, str]]:
        """The registered procedure and the label of every entry of ``procedures``, for reports."""
        return {name: (self.procedure(name).name, self.procedure_label(name)) for name in self.procedures}

    @property
    def labels(self) -> dict[str, str]:
        """The label of every entry of ``methods``: reports take it from here."""
        return {name: self.label(name) for name in self.methods}

    @cached_property
    def _built(self) -> dict[tuple[str, str | None], tuple[Method, LocalTraining, RunSettings]]:
        """Methods built so far, by name and by the partition that they are tuned for."""
        return {}

    def _build(self, name: str, partition: str | None) -> tuple[Method, LocalTraining, RunSettings]:
        cls = METHODS[self.registered(name)]
        method, training, run = cls.parse({}, section=f"methods.{name}"), self.training, self.run
        own: dict[str, Any] = {}
        for section, entry in self._layers(name, partition):
            own = own | entry.parameters
            method = cls.parse(own, section=section)
            if entry.training:
                changed = _merged(_kept(training.as_dict(), entry.training), entry.training)
                training = LocalTraining.parse(changed, section=f"{section}.training")
            if entry.run:
                changed = _merged(_kept(run.as_dict(), entry.run), entry.run)
                run = RunSettings.parse(changed, section=f"{section}.run")
        return method, training, run

    def _layers(self, name: str, partition: str | None) -> Iterator[tuple[str, MethodParams]]:
        """The entries that make a method, by section, the later over the earlier: first its method's own."""
        tuned = self.tuned.get(partition or "") or {}
        for known in dict.fromkeys((self.registered(name), name)):
            if known in self.methods:
                yield f"methods.{known}", self.methods[known]
            if known in tuned:
                yield f"tuned.{partition}.{known}", tuned[known]

    def public(self, method: str, partition: str) -> str | None:
        """The data set that the server of this method holds, if the method names one."""
        return server_data(self.method(method, partition)[0]).dataset

    def validate(self) -> None:
        for section in ("data", "partitions", "central"):
            for name in getattr(self, section):
                check_name(section, name)
        for name, partition in self.partitions.items():
            if partition.dataset not in self.data:
                raise unknown_name(f"partitions.{name}.dataset", partition.dataset, self.data)
            self.model(partition.dataset)
        for name, network in self.central.items():
            self._check_central(name, network)
        for name, partition in self.partitions.items():
            if (expert := self.expert(name)) is not None:
                self._check_network(f"partitions.{name}.difficulty.expert", expert, partition.dataset)
        for name in (*self.methods, *self.grid.methods):
            if self.registered(name) != name and ("." in check_name("methods", name)):
                raise BadInput("methods", name, "a name of letters, digits and - _")
            self.method(name)
        for name in (*self.procedures, *self.grid.procedures):
            self.procedure(check_name("procedures", name))
        for name in self.tuning.methods:
            if name not in METHODS and name not in self.methods:
                raise unknown_name(
                    f"tuning.methods.{name}", name, {*METHODS, *self.methods}, "fedflow methods"
                )
        for name, entry in self.tuned.items():
            if name not in self.partitions:
                raise unknown_name(f"tuned.{name}", name, self.partitions)
            for method, own in (entry or {}).items():
                for field in ("method", "label"):
                    if (value := getattr(own, field)) is not None:
                        raise BadInput(
                            f"tuned.{name}.{method}.{field}", value, f"null; set it under methods.{method}"
                        )
                self.method(method, name)
        for name in self.grid.datasets:
            self.dataset(name)
        for name in self.grid.partitions:
            uses: list[tuple[str | None, str]] = [(self.partition(name).dataset, f"{name} divides")]
            uses += [(self.public(method, name), f"{method} reads") for method in self.grid.methods]
            for dataset, use in uses:
                if dataset is not None and dataset not in self.grid.datasets:
                    accepted = f"a list with {dataset!r}, which {use}"
                    raise BadInput("grid.datasets", self.grid.datasets, accepted)
        for name in self.grid.procedures:
            self._check_procedure(name)
        for name in self.grid.central:
            if (dataset := self.network(name, "grid.central").dataset) not in self.grid.datasets:
                accepted = f"a list with {dataset!r}, which {name} is trained on"
                raise BadInput("grid.datasets", self.grid.datasets, accepted)

    def _check_procedure(self, name: str) -> None:
        """Raise `BadInput` unless the grid has all that this procedure of the grid reads."""
        inputs = self.procedure(name).inputs()
        datasets = [*inputs.datasets, *(self.partition(each).dataset for each in inputs.partitions)]
        networks = self.procedure_networks(name)
        uses = {"datasets": datasets, "partitions": inputs.partitions, "central": networks}
        for field, names in uses.items():
            for used in names:
                if used not in getattr(self.grid, field):
                    accepted = f"a list with {used!r}, which the procedure {name} reads"
                    raise BadInput(f"grid.{field}", getattr(self.grid, field), accepted)

    def _check_central(self, name: str, entry: CentralParams) -> None:
        if entry.dataset not in self.data:
            raise unknown_name(f"central.{name}.dataset", entry.dataset, self.data)
        self.network(name)
        field, chain, teacher = f"central.{name}.{TEACHER}", [name], entry.teacher
        while teacher is not None:
            if teacher in chain:
                raise BadInput(field, entry.teacher, "a network that does not learn from this one")
            self._check_network(field, teacher, entry.dataset)
            chain.append(teacher)
            teacher = self.central[teacher].teacher

    def check_grid(self) -> None:
        """Raise `BadInput` if a cell of the grid uses a central network that `dvc repro` does not train.

        A single run trains what it lacks.
        """
        grid = self.grid
        uses = {self.network(name).teacher: name for name in grid.central}
        for cell in ((partition, method) for partition in grid.partitions for method in grid.methods):
            uses |= dict.fromkeys(self.used_networks(cell[1], cell[0]).values(), " / ".join(cell))
        for name, user in uses.items():
            if name is not None and name not in grid.central:
                raise BadInput("grid.central", grid.central, f"a list with {name!r}, which {user} uses")


def check_dvc(root: Path) -> None:
    """Raise `FedflowError` if ``params.yaml`` lacks a list of ``grid`` that ``dvc.yaml`` needs."""
    file = root / PARAMS
    grid = read_yaml(file).get("grid") if (root / "dvc.yaml").exists() else None
    for name in MAY_BE_EMPTY:
        if isinstance(grid, Mapping) and name not in grid:
            raise FedflowError(f"{file}: dvc.yaml needs the list grid.{name}; add `{name}: []` under grid")
    methods = grid.get("methods") if isinstance(grid, Mapping) else None
    known = load_params(file).grid.methods if isinstance(methods, list) else []
    for name, ours in zip(methods or [], known):
        if name != ours:
            raise BadInput(f"{file}: grid.methods", name, f"{ours!r}: dvc.yaml makes folders of them")


class Changes(list[str]):
    """Changes of ``params.yaml`` as text, and the `Params` that they gave.

    The parameter ``settings`` of a flow that is called in the same process: Prefect records the text, and
    `load_params` does not parse them again.
    """

    def __init__(self, params: Params) -> None:
        super().__init__(params.changes)
        self.params = params


def load_params(path: Path = PARAMS, changes: Sequence[str] = ()) -> Params:
    """Read and check ``params.yaml``, after ``changes`` such as ``methods.ifca.clusters=4``.

    ``plain`` is the file without them. `Changes` are already loaded.
    Raises `FedflowError` (no such file, not YAML) or `BadInput` (a field that is not accepted).
    """
    if isinstance(changes, Changes):
        return changes.params
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise BadInput(str(path), values, "a mapping of sections")
    values = with_registered_names(values)
    unchanged = deepcopy(values)
    given: dict[str, Any] = {}
    changes = [_with_registered_name(change, values) for change in changes]
    for change in changes:
        set_value(values, change)
        set_value(given, change)
        _untune(values, change)
    values = with_registered_names(values)
    _drop_replaced(values, given)
    params, plain = Params.parse(values), None
    with contextlib.suppress(BadInput):  # the file may need the changes to be valid
        plain = Params.parse(_parsed(unchanged, values, params)) if changes else params
    return params.remember(plain, changes)


def with_registered_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sections of ``params.yaml`` in which methods have their registered names, also where labels were given.

    Raises `BadInput` if two entries are one method. An entry with ``method:`` keeps the name that it has.
    """
    values, entries = dict(values), values.get("methods")
    own = {name for name, entry in _section(entries).items() if "method" in _section(entry)}

    def one(name: Any) -> Any:
        return name if isinstance(name, str) and name in own else method_name(name)

    def renamed(field: str, section: Any) -> Any:
        found: dict[str, Any] = {}
        for name, entry in _section(section).items():
            if one(name) in found:
                raise BadInput(f"{field}.{name}", name, f"one entry for the method {one(name)}")
            changed = {"method": method_name(entry["method"])} if "method" in _section(entry) else {}
            found[one(name)] = {**entry, **changed} if changed else entry
        return found if isinstance(section, Mapping) else section

    if "methods" in values:
        values["methods"] = renamed("methods", entries)
    if isinstance(tuned := values.get("tuned"), Mapping):
        values["tuned"] = {place: renamed(f"tuned.{place}", entry) for place, entry in tuned.items()}
    if "methods" in (tuning := _section(values.get("tuning"))):
        values["tuning"] = {**tuning, "methods": renamed("tuning.methods", tuning["methods"])}
    if isinstance((grid := _section(values.get("grid"))).get("methods"), list):
        values["grid"] = {**grid, "methods": [one(name) for name in grid["methods"]]}
    return values


def _section(value: Any) -> Mapping[str, Any]:
    """A section, or {} for what is none: `Params` says what is wrong with it."""
    return value if isinstance(value, Mapping) else {}


def _with_registered_name(change: str, values: Mapping[str, Any]) -> str:
    """A change with the registered name of the method that it names."""
    path, sign, text = change.partition("=")
    words = [word.strip('"') for word in re.findall(WORD, path)]
    known = _section(values.get("methods"))
    for prefix, at in ((["methods"], 1), (["tuning", "methods"], 2), (["tuned"], 2)):
        if words[: len(prefix)] == prefix and len(words) > at and words[at] not in known:
            words[at] = str(method_name(words[at]))
            return ".".join(f'"{word}"' if "." in word else word for word in words) + sign + text
    return change


def read_yaml(path: Path) -> Any:
    """The content of a YAML file, as `yaml_text` reads it. Raises `FedflowError` if it cannot be read."""
    if path.exists() and not path.is_file():  # a pipe would wait for a writer
        raise FedflowError(f"cannot read {path}: not a regular file")
    try:
        return yaml_file(path)
    except OSError as error:
        raise FedflowError(
            f"cannot read {path}: {error.strerror}; run in the project's folder or name it with --root"
        ) from error


def _parsed(values: Mapping[str, Any], known: Mapping[str, Any], params: Any) -> dict[str, Any]:
    """``values``, reusing those of ``params``, parsed from ``known``, that are equal in both."""
    get = params.get if isinstance(params, Mapping) else partial(getattr, params)

    def one(name: str, value: Any) -> Any:
        if name not in known:
            return value
        if value == known[name]:
            return get(name)
        both = (
            isinstance(value, Mapping) and isinstance(known[name], Mapping) and isinstance(get(name), Mapping)
        )
        return _parsed(value, known[name], get(name)) if both else value

    return {name: one(name, value) for name, value in values.items()}


def set_value(values: dict, override: str) -> None:
    """Apply one ``a.b.c=value`` (value in YAML) to nested mappings, in place.

    Known names are found with their dots, as in ``partitions.my.part.alpha=1``; new ones with dots
    need quotes: ``partitions."my.part"={...}``.
    """
    name, sign, text = override.partition("=")
    if not sign or not SETTING.fullmatch(name):
        raise BadInput("--set", override, "section.field=value, for example run.rounds=5")
    try:
        value = yaml_value(text)
    except YamlError as error:
        raise BadInput("--set", override, f"a value in YAML after the = sign ({error.problem})") from None
    put(values, [word.strip('"') for word in re.findall(WORD, name)], value)


def put(values: dict, words: Sequence[str], value: Any) -> None:
    """Set one value of nested mappings, in place; missing mappings are added.

    A name, such as a network without options, gives way to a mapping; raises `BadInput` for other values.
    """
    outer: list[str] = []
    while words:
        longest = range(len(words), 0, -1)
        known = next((n for n in longest if ".".join(words[:n]) in values), 1)
        key, words = ".".join(words[:known]), words[known:]
        if not words:
            values[key] = value
        elif not isinstance(inner := values.get(key), dict):
            if inner is not None and not (isinstance(inner, str) and inner):
                raise BadInput(".".join([*outer, key]), inner, "a mapping of field names to values")
            values[key] = {}
        outer.append(key)
        values = values[key]


def _untune(values: dict, override: str) -> None:
    """Let a change of a method's field take precedence over its tuned value."""
    section, *path = override.partition("=")[0].split(".")
    if section != "methods" or len(path) < 2:
        return
    tuned = values.get("tuned")
    for place in tuned.values() if isinstance(tuned, dict) else ():
        for parent in path[:-1]:
            place = place.get(parent) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place.pop(path[-1], None)


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` after ``changes``; of a mapping in both, only the named fields change."""
    both = {n: (values[n], v) for n, v in changes.items() if isinstance(values.get(n), Mapping)}
    nested = {n: _merged(old, new) for n, (old, new) in both.items() if isinstance(new, Mapping)}
    return {**values, **changes, **nested}


def _kept(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Values of `training` or `run` without those that ``changes`` of other fields make meaningless."""
    replaced = {"epochs"} if changes.get("steps") is not None else set()
    if changes.get("sampling", "easy_first") != "easy_first":
        replaced.add("client_curriculum")
    return {name: value for name, value in values.items() if name not in replaced - changes.keys()}


def _drop_replaced(values: dict, given: Mapping[str, Any]) -> None:
    """Reduce every `training` and `run`, in place, to what is `_kept` under the ``given`` changes."""
    for name, changes in given.items():
        if not isinstance(changes, Mapping) or not isinstance(values.get(name), dict):
            continue
        if name in ("training", "run"):
            values[name] = _kept(values[name], changes)
        else:
            _drop_replaced(values[name], changes)


def digest(value: Mapping[str, Any]) -> str:
    """A short content hash of plain values."""
    return hashlib.blake2b(yaml.safe_dump(dict(value), sort_keys=True).encode(), digest_size=6).hexdigest()


def _entry(section: str, entries: Mapping[str, T], name: str) -> T:
    if name not in entries:
        raise unknown_name(section, name, entries)
    return entries[name]
