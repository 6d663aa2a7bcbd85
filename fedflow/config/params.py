"""All settings of ``params.yaml``, typed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from fedflow.config.layers import Layer, changed_by, typed
from fedflow.config.sections import (
    CentralParams,
    EngineSettings,
    Grid,
    MethodParams,
    ModelParams,
    ProcedureParams,
)
from fedflow.config.tuning import Tuning
from fedflow.data import DatasetParams
from fedflow.errors import MISSING, BadInput, unknown_name
from fedflow.local.extensions.extension import Reads
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS, Method
from fedflow.methods.protocols import server_data
from fedflow.methods.registry import method_name
from fedflow.models import ARCHITECTURES
from fedflow.partition import PartitionParams
from fedflow.partition.after.inputs import changes
from fedflow.procedures import PROCEDURES, Procedure
from fedflow.procedures.interface import procedure_class
from fedflow.project.arguments import check_name
from fedflow.settings import Settings, option
from fedflow.simulation.federation import FEATURES, need_labels
from fedflow.simulation.settings import RunSettings

T = TypeVar("T")
OWN = "`fedflow new method NAME` makes a package with your own method"
LONGEST = 40  # letters of the settings in the label of a procedure, or else the label has its name


class Params(Settings):
    """The sections of ``params.yaml``."""

    data: dict[str, DatasetParams] = option(doc="dataset name -> source and preparation")
    models: dict[str, ModelParams] = option(doc="dataset name -> network")
    partitions: dict[str, PartitionParams] = option(doc="partition name -> dataset, scheme, clients")
    central: dict[str, CentralParams] = option(
        factory=dict, doc="name -> network trained on a whole dataset: a teacher, an expert, a reference"
    )
    training: LocalTraining = option(factory=LocalTraining, doc="local SGD, the same for all methods")
    run: RunSettings = option(factory=RunSettings, doc="rounds, participation, evaluation")
    methods: dict[str, MethodParams] = option(
        factory=dict,
        doc="method, or another name with `method:` -> hyperparameters, `training` and `run` that differ",
    )
    procedures: dict[str, ProcedureParams] = option(
        factory=dict, doc="procedure, or another name with `procedure:` -> parameters that differ"
    )
    tuning: Tuning = option(factory=Tuning, doc="tries of `fedflow tune`, on held-out training data")
    tuned: dict[str, dict[str, MethodParams] | None] = option(
        factory=dict, doc="partition -> method -> settings that `fedflow tune` chose; they override methods"
    )
    grid: Grid = option(doc="the runs and procedures of `dvc repro`")
    engine: EngineSettings = option(factory=EngineSettings, doc="executor, workers, device")

    def dataset(self, name: str) -> DatasetParams:
        """The source and preparation of the named dataset."""
        return _entry("data", self.data, name)

    def model(self, dataset: str) -> ModelParams:
        """The network for the named dataset."""
        if dataset not in self.models:
            accepted = f"a network for this dataset: one of {', '.join(sorted(ARCHITECTURES))}"
            raise BadInput(f"models.{dataset}", MISSING, accepted)
        return self.models[dataset]

    def partition(self, name: str) -> PartitionParams:
        """The settings of the named partition; ``NAME@7`` is the entry ``NAME`` with the seed 7."""
        name, at, seed = name.partition("@")
        entry = _entry("partitions", self.partitions, name)
        if at and not seed.isdecimal():
            raise BadInput("partition", f"{name}@{seed}", f"{name}, or {name}@7 with the seed 7")
        return replace(entry, seed=int(seed)) if at else entry

    def division(self, partition: str, seed: int) -> str:
        """The partition of runs with this seed, by name (`Grid.redraw`)."""
        entry = _entry("partitions", self.partitions, partition)
        return partition if self.grid.redraw == "run" or seed == entry.seed else f"{partition}@{seed}"

    def divisions(self, partition: str) -> list[str]:
        """The partitions of all seeds of the grid, by name."""
        return list(dict.fromkeys(self.division(partition, seed) for seed in self.grid.seeds))

    def expert(self, partition: str) -> str | None:
        """The central network whose losses decide how the named partition deals samples, if any."""
        difficulty = self.partition(partition).difficulty
        return difficulty.expert if difficulty else None

    def network(self, name: str, field: str = "central") -> CentralParams:
        """The settings of the named central network, with its ``model``; ``field`` is for errors."""
        entry = _entry(field, self.central, name)
        return entry if entry.model else replace(entry, model=self.model(entry.dataset))

    def networks(self, *names: str | None) -> list[str]:
        """These central networks (None: no network), each after its teachers."""
        ordered: list[str] = []
        for name in names:
            if name is not None:
                ordered += [*self.networks(self.central[name].teacher), name]
        return list(dict.fromkeys(ordered))

    def used_networks(self, method: str, partition: str) -> dict[str, str]:
        """The central networks that runs of this method on this partition read, by the field that names them.

        Networks that are not needed are checked, and left out. Raises `BadInput` for a network that does not
        exist, or was trained on another dataset or on other labels.
        """
        entry, reads = self.partition(partition), self.reads(method, partition)
        named = {read.field: read.network for read in reads}
        if (expert := self.expert(partition)) is not None:
            named[f"partitions.{partition}.difficulty.expert"] = expert
        if (features := self.run_of(method, partition).features) is not None:
            named[FEATURES] = features
        for field, name in named.items():
            self._check_network(field, name, entry.dataset)
        unused = {read.field for read in reads if not read.needed}
        used = {field: name for field, name in named.items() if field not in unused}
        of_losses = {read.field for read in reads if read.losses}
        for field, name in used.items():
            noisy = field in of_losses and (entry.label_noise is not None or changes(entry.as_dict()))
            need_labels(field, name, changed=entry.parameters.renames or bool(noisy))
        first: dict[str, Reads] = {}
        for read in reads:
            if read.needed and (same := first.setdefault(read.name, read)).network != read.network:
                raise BadInput(read.field, read.network, f"{same.network!r}, as {same.field}")
        return used

    def reads(self, method: str, partition: str) -> list[Reads]:
        """The inputs of training from central networks, for this method on this partition, unchecked."""
        curriculum = self.run_of(method, partition).client_curriculum
        return [*self.method(method, partition)[1].reads, *(curriculum.reads if curriculum else ())]

    def _check_network(self, field: str, name: str, dataset: str) -> None:
        """Raise `BadInput` of ``field`` unless this central network was trained on this dataset."""
        if (its := self.network(name, field).dataset) != dataset:
            raise BadInput(field, name, f"a network under central that is trained on {dataset}, not on {its}")

    def method(self, name: str, partition: str | None = None) -> tuple[Method, LocalTraining]:
        """The named method, and its local training: the shared settings with the changes of its entries.

        Values that were tuned for this method on ``partition`` take precedence.
        """
        method, training, _ = self._settings_of(name, partition)
        return method, training

    def run_of(self, name: str, partition: str | None = None) -> RunSettings:
        """The settings of runs of the named method: the shared ones with its changes, as `method`."""
        return self._settings_of(name, partition)[2]

    def _settings_of(self, name: str, partition: str | None) -> tuple[Method, LocalTraining, RunSettings]:
        tuned = {name, self.registered(name)} & (self.tuned.get(partition or "") or {}).keys()
        return self._once("method", name, partition if tuned else None, make=self._build)

    def _once(self, kind: str, *names: Any, make: Callable[..., T]) -> T:
        """The result of ``make`` for these names, computed once."""
        if (kind, *names) not in self._built:
            self._built[kind, *names] = make(*names)
        return self._built[kind, *names]

    @cached_property
    def _built(self) -> dict[tuple, Any]:
        """Methods by name and by the partition that they are tuned for, and procedures by name.

        Worker processes receive them with the settings, and so import the modules that define them.
        """
        return {}

    def method_name(self, name: str) -> str:
        """The name of an entry or registered method that is called ``name``, or by its label."""
        return name if name in self.methods else str(method_name(name))

    def registered(self, name: str, field: str = "method.name") -> str:
        """The registered method of a name of the grid, which an entry in ``methods`` may choose.

        ``field`` is for errors.
        """
        entry = self.methods.get(name)
        method = name if entry is None or entry.method is None else entry.method
        if method not in METHODS and method == name:
            names = {*METHODS, *(n for n, e in self.methods.items() if e.method)}
            error = unknown_name(field, name, names, "fedflow methods")
            if not error.guess and not name.isidentifier():  # an import path or a file
                error = BadInput(field, name, f"{error.accepted}; {OWN}")
            raise error
        if method not in METHODS:
            raise unknown_name(f"methods.{name}.method", method, METHODS, "fedflow methods")
        if name in METHODS and method != name:
            raise BadInput(f"methods.{name}.method", method, f"{name}, which is registered under this name")
        return method

    def procedure(self, name: str) -> Procedure:
        """The named procedure, with its parameters. Raises `BadInput` for inputs that do not exist."""
        return self._once("procedure", name, make=self._procedure)

    def _procedure(self, name: str) -> Procedure:
        entry = self.procedures.get(name, ProcedureParams())
        field = f"procedures.{name}"
        registered = entry.procedure or name
        if name in PROCEDURES and registered != name:
            raise BadInput(f"{field}.procedure", registered, f"{name}, which is registered under this name")
        cls = procedure_class(registered, f"{field}.procedure" if entry.procedure else "procedure")
        procedure = typed(cls, [(field, entry.parameters)])
        inputs = procedure.inputs()
        for dataset in inputs.datasets:
            self.dataset(dataset)
        for partition in inputs.partitions:
            self.partition(partition)
        for network in inputs.networks:
            self.network(network)
        return procedure

    def procedure_networks(self, name: str) -> list[str]:
        """The central networks of the named procedure and its partitions, and their teachers."""
        inputs = self.procedure(name).inputs()
        return self.networks(*inputs.networks, *map(self.expert, inputs.partitions))

    def procedure_label(self, name: str) -> str:
        """The name in the report: by default the procedure's label and the changes of the entry."""
        entry, procedure = self.procedures.get(name, ProcedureParams()), self.procedure(name)
        changes = ", ".join(entry.words)
        suffix = "" if name == procedure.name else f" · {changes if 0 < len(changes) <= LONGEST else name}"
        return entry.label or procedure.label + suffix

    def label(self, name: str) -> str:
        """The name in the report: by default the method's label and the changes of the entry."""
        method, entry = self.registered(name), self.methods.get(name, MethodParams())
        suffix = "" if name == method else f" · {', '.join(entry.words) or name}"
        return entry.label or METHODS[method].label + suffix

    @property
    def procedure_entries(self) -> dict[str, tuple[str, str]]:
        """The registered procedure and the label of every entry of ``procedures``."""
        return {name: (self.procedure(name).name, self.procedure_label(name)) for name in self.procedures}

    @property
    def labels(self) -> dict[str, str]:
        """The label of every entry of ``methods``."""
        return {name: self.label(name) for name in self.methods}

    def _build(self, name: str, partition: str | None) -> tuple[Method, LocalTraining, RunSettings]:
        layers = [*self._layers(name, partition)]

        def of(part: str, dot: str = "") -> list[Layer]:
            parts = [(f"{section}{dot}", getattr(entry, part)) for section, entry in layers]
            return [(section, changes) for section, changes in parts if changes]

        method = typed(METHODS[self.registered(name)], of("parameters") or [(f"methods.{name}", {})])
        training = changed_by(self.training, of("training", ".training"))
        return method, training, changed_by(self.run, of("run", ".run"))

    def _layers(self, name: str, partition: str | None) -> Iterator[tuple[str, MethodParams]]:
        """The sections and entries that make a method; a later one takes precedence."""
        tuned = self.tuned.get(partition or "") or {}
        for key in dict.fromkeys((self.registered(name), name)):
            if key in self.methods:
                yield f"methods.{key}", self.methods[key]
            if key in tuned:
                yield f"tuned.{partition}.{key}", tuned[key]

    def public(self, method: str, partition: str) -> str | None:
        """The dataset of the server, if the method names one."""
        return server_data(self.method(method, partition)[0]).dataset

    def validate(self) -> None:
        for section in ("data", "partitions", "central"):
            for name in getattr(self, section):
                check_name(section, name)
        for name, partition in self.partitions.items():
            _entry(f"partitions.{name}.dataset", self.data, partition.dataset)
            self.model(partition.dataset)
        for name, network in self.central.items():
            self._check_central(name, network)
        for name, partition in self.partitions.items():
            if (expert := self.expert(name)) is not None:
                self._check_network(f"partitions.{name}.difficulty.expert", expert, partition.dataset)
        for name in (*self.methods, *self.grid.methods):
            registered = self.registered(name, "methods" if name in self.methods else "grid.methods")
            if registered != name and ("." in check_name("methods", name)):
                raise BadInput("methods", name, "a name of letters, digits and - _")
            self.method(name)
        for name in (*self.procedures, *self.grid.procedures):
            self.procedure(check_name("procedures", name))
        for name in self.tuning.methods:
            if name not in (names := {*METHODS, *self.methods}):
                raise unknown_name(f"tuning.methods.{name}", name, names, "fedflow methods")
        for name, entry in self.tuned.items():
            _entry(f"tuned.{name}", self.partitions, name)
            for method, tuned in (entry or {}).items():
                for field in ("method", "label"):
                    if (value := getattr(tuned, field)) is not None:
                        accepted = f"null; set it under methods.{method}"
                        raise BadInput(f"tuned.{name}.{method}.{field}", value, accepted)
                self.method(method, name)
        for name in self.grid.datasets:
            _entry("grid.datasets", self.data, name)
        for name in self.grid.partitions:
            dataset = _entry("grid.partitions", self.partitions, name).dataset
            self._need_in_grid("datasets", dataset, f"{name} divides")
            for method in self.grid.methods:
                if (public := self.public(method, name)) is not None:
                    self._need_in_grid("datasets", public, f"{method} reads")
        for name in self.grid.procedures:
            inputs = self.procedure(name).inputs()
            datasets = [*inputs.datasets, *(self.partition(n).dataset for n in inputs.partitions)]
            networks = self.procedure_networks(name)
            read = {"datasets": datasets, "partitions": inputs.partitions, "central": networks}
            for field, used in ((field, used) for field, names in read.items() for used in names):
                self._need_in_grid(field, used, f"the procedure {name} reads")
        for name in self.grid.central:
            dataset = self.network(name, "grid.central").dataset
            self._need_in_grid("datasets", dataset, f"{name} is trained on")

    def _need_in_grid(self, field: str, name: str, use: str) -> None:
        if name not in (names := getattr(self.grid, field)):
            raise BadInput(f"grid.{field}", names, f"a list with {name!r}, which {use}")

    def _check_central(self, name: str, entry: CentralParams) -> None:
        _entry(f"central.{name}.dataset", self.data, entry.dataset)
        self.network(name)
        field, chain, teacher = f"central.{name}.training.objective.teacher", [name], entry.teacher
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
            if name is not None:
                self._need_in_grid("central", name, f"{user} uses")


def _entry(section: str, entries: Mapping[str, T], name: str) -> T:
    if name not in entries:
        raise unknown_name(section, name, entries)
    return entries[name]
