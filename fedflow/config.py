"""``params.yaml``: every knob of every stage, checked by one schema. Only this file reads it."""

import contextlib
import hashlib
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml

from fedflow.arguments import check_name
from fedflow.data import DatasetParams
from fedflow.errors import BadInput, FedflowError, unknown_name
from fedflow.local.training import LocalTraining
from fedflow.methods import METHODS, Method
from fedflow.methods.base import server_data
from fedflow.models import ARCHITECTURES, known_options
from fedflow.models.flat import CONVOLUTIONS
from fedflow.partition import PartitionParams
from fedflow.settings import Settings, option
from fedflow.simulation.run import RunSettings
from fedflow.tuning import Tuning

PARAMS = Path("params.yaml")
CLUSTERS = ("dask", "ray")
EXECUTORS = ("inline", "threads", "processes", *CLUSTERS)

WORD = r'"[^"]+"|[^".]+'
SETTING = re.compile(rf"({WORD})(\.({WORD}))*")


class EngineSettings(Settings):
    """Who computes, and where. Nothing here changes a result beyond float tolerance."""

    section = "engine"
    executor: str = option(
        "threads", "who runs the shards of a round; inline needs no Prefect server", choices=EXECUTORS
    )
    workers: int = option(2, "shards per round", ge=1)
    device: str = option("auto", "auto = a GPU if there is one, else cpu", choices=("auto", "cpu", "cuda"))
    cohort: str = option(
        "auto", "clients one by one or all at once; auto = vmap on a GPU", choices=("auto", "loop", "vmap")
    )
    width: int | None = option(
        None, "clients per vmapped call; nothing = as many as a GPU has memory for, 32 on a CPU", ge=1
    )
    convolution: str = option(
        "matmul", "how a vmapped cohort convolves: as matrix products, or in one grouped convolution",
        choices=CONVOLUTIONS,
    )  # fmt: skip
    compile: str = option(
        "auto",
        "compile the gradient on a CPU; auto = where the work ahead pays for it",
        choices=("auto", "always", "never"),
    )
    address: str | None = option(
        None, "address of a running Dask or Ray cluster (docs/clusters.md); nothing = start a local one"
    )

    def validate(self) -> None:
        if self.address is not None and self.executor not in CLUSTERS:
            raise BadInput("engine.address", self.address, "nothing, unless executor is dask or ray")


class ModelParams(Settings):
    """The network for one dataset."""

    section = "models"
    name: str = option(doc="architecture")
    options: dict = option(factory=dict, doc="options of the architecture")

    def validate(self) -> None:
        if self.name not in ARCHITECTURES:
            raise unknown_name("models.name", self.name, ARCHITECTURES)
        for name in self.options:
            if name not in known_options(self.name):
                raise unknown_name(f"models.options.{name}", name, known_options(self.name))
        for name, value in self.options.items():
            if isinstance(value, list) and any(isinstance(width, int) and width < 1 for width in value):
                raise BadInput(f"models.options.{name}", value, "a list, each item a whole number >= 1")


class Grid(Settings):
    """What `dvc repro` and the sweep flow run: every partition x method x seed."""

    section = "grid"
    datasets: list[str] = option(doc="names under data")
    partitions: list[str] = option(doc="names under partitions")
    methods: list[str] = option(doc="names of methods")
    seeds: list[int] = option(doc="experiment seeds", ge=0)

    def validate(self) -> None:
        for name, values in self.as_dict().items():
            if not values:
                raise BadInput(f"grid.{name}", values, "a list with at least one item")


class Params(Settings):
    """The whole of ``params.yaml``."""

    plain: ClassVar["Params | None"] = None  # what the file gives without overrides: `load_params` sets it
    data: dict[str, Any] = option(doc="dataset name -> source and preparation")
    models: dict[str, Any] = option(doc="dataset name -> network")
    partitions: dict[str, Any] = option(doc="partition name -> dataset, scheme, clients")
    training: LocalTraining = option(factory=LocalTraining, doc="local SGD, the same for all methods")
    run: RunSettings = option(factory=RunSettings, doc="rounds, participation, evaluation")
    methods: dict[str, Any] = option(
        factory=dict, doc="method name -> hyper-parameters, and training: what differs"
    )
    tuning: Tuning = option(factory=Tuning, doc="what `fedflow tune` tries on held-out training data")
    tuned: dict[str, Any] = option(
        factory=dict, doc="partition -> method -> settings that `fedflow tune` chose; they win over methods"
    )
    grid: Grid = option(doc="what to run")
    engine: EngineSettings = option(factory=EngineSettings, doc="executor, workers, device")

    def _remember(self, unchanged: Mapping[str, Any]) -> Self:
        """Set ``plain``, unless the file needs the overrides to be valid."""
        with contextlib.suppress(BadInput):
            object.__setattr__(self, "plain", Params.parse(unchanged))
        return self

    def dataset(self, name: str) -> DatasetParams:
        """How to prepare the named dataset."""
        return DatasetParams.parse(_entry("data", self.data, name), section=f"data.{name}")

    def model(self, dataset: str) -> ModelParams:
        """The network for the named dataset."""
        if dataset not in self.models:
            known = f"a network for this dataset: one of {', '.join(sorted(ARCHITECTURES))}"
            raise BadInput(f"models.{dataset}", None, known)
        entry = self.models[dataset]
        return ModelParams.parse(
            {"name": entry} if isinstance(entry, str) else entry, section=f"models.{dataset}"
        )

    def partition(self, name: str) -> PartitionParams:
        """How to make the named partition."""
        return PartitionParams.parse(
            _entry("partitions", self.partitions, name), section=f"partitions.{name}"
        )

    def method(self, name: str, partition: str | None = None) -> tuple[Method, LocalTraining]:
        """The named method, and its local training: the shared settings with its own changes.

        With ``partition``, what was tuned for the two of them comes on top.
        """
        if name not in METHODS:
            raise unknown_name("method.name", name, METHODS)
        places = {f"methods.{name}": self.methods.get(name) or {}}
        if partition is not None and name in (tuned := self.tuned.get(partition) or {}):
            places[f"tuned.{partition}.{name}"] = tuned[name]
        own: dict[str, Any] = {}
        training = self.training
        for section, entry in places.items():
            changes = entry.get("training", {}) if isinstance(entry, dict) else {}
            if not isinstance(entry, dict) or not isinstance(changes, dict):
                raise BadInput(
                    section, entry, "a mapping of hyper-parameters, and `training:` with a mapping"
                )
            training = LocalTraining.parse(training.as_dict() | changes, section=f"{section}.training")
            own |= {field: value for field, value in entry.items() if field != "training"}
            method = METHODS[name].parse(own, section=section)
        return method, training

    def public(self, method: str, partition: str) -> str | None:
        """The data set that the server of this method holds, if the method names one."""
        return server_data(self.method(method, partition)[0]).dataset

    def validate(self) -> None:
        for section in ("data", "partitions"):
            for name in getattr(self, section):
                check_name(section, name)
        for name in self.data:
            self.dataset(name)
        for name in self.models:
            self.model(name)
        for name in self.partitions:
            partition = self.partition(name)
            if partition.dataset not in self.data:
                raise unknown_name(f"partitions.{name}.dataset", partition.dataset, self.data)
            self.model(partition.dataset)
        for name in {*self.methods, *self.grid.methods}:
            self.method(name)
        for name in self.tuning.methods:
            if name not in METHODS:
                raise unknown_name(f"tuning.methods.{name}", name, METHODS)
        for name, entry in self.tuned.items():
            if name not in self.partitions:
                raise unknown_name(f"tuned.{name}", name, self.partitions)
            if not isinstance(entry, dict | None):
                raise BadInput(f"tuned.{name}", entry, "a mapping of methods to their settings")
            for method in entry or {}:
                self.method(method, name)
        for name in self.grid.datasets:
            _entry("data", self.data, name)
        for name in self.grid.partitions:
            uses: list[tuple[str | None, str]] = [(self.partition(name).dataset, f"{name} divides")]
            uses += [(self.public(method, name), f"{method} reads") for method in self.grid.methods]
            for dataset, use in uses:
                if dataset is not None and dataset not in self.grid.datasets:
                    accepted = f"a list with {dataset!r}, which {use}"
                    raise BadInput("grid.datasets", self.grid.datasets, accepted)


def load_params(path: Path = PARAMS, overrides: Sequence[str] = ()) -> Params:
    """Read and check ``params.yaml``, after ``overrides`` such as ``method.clusters=4`` or ``run.rounds=5``.

    What the file gives without them stays known as ``plain``.
    Raises `FedflowError` (no such file, not YAML) or `BadInput` (a field that is not accepted).
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise FedflowError(f"cannot read {path}: not a regular file")
    try:
        values = yaml.load(path.read_text(), UniqueKeys)
    except OSError as error:
        raise FedflowError(
            f"cannot read {path}: {error.strerror}; run in the project's folder or name it with --root"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FedflowError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise BadInput(str(path), values, "a mapping of sections")
    unchanged = deepcopy(values)
    for override in overrides:
        set_value(values, override)
        _untune(values, override)
    return Params.parse(values)._remember(unchanged)


class UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that comes twice in a mapping is an error: the first value would be lost."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            name = key.tag, str(key.value)
            if name in seen:
                raise yaml.composer.ComposerError(
                    problem=f"found the key {key.value!r} twice", problem_mark=key.start_mark
                )
            seen.add(name)
        return node


def set_value(values: dict, override: str) -> None:
    """Apply one ``a.b.c=value`` (value in YAML) to nested mappings, in place.

    Names that are there are found with their dots, as in ``partitions.my.part.alpha=1``; new ones with dots
    need quotes: ``partitions."my.part"={...}``.
    """
    name, sign, text = override.partition("=")
    if not sign or not SETTING.fullmatch(name):
        raise BadInput("--set", override, "section.field=value, for example run.rounds=5")
    try:
        value = yaml.load(text, UniqueKeys)
    except yaml.YAMLError:
        raise BadInput("--set", override, "a value in YAML after the = sign") from None
    words = [word.strip('"') for word in re.findall(WORD, name)]
    while words:
        longest = range(len(words), 0, -1)
        known = next((n for n in longest if ".".join(words[:n]) in values), 1)
        key, words = ".".join(words[:known]), words[known:]
        if not words:
            values[key] = value
        elif not isinstance(values.get(key), dict):
            values[key] = {}
        values = values[key]


def _untune(values: dict, override: str) -> None:
    """A change of a method's field wins over what was tuned."""
    section, *path = override.partition("=")[0].split(".")
    if section != "methods" or len(path) < 2:
        return
    tuned = values.get("tuned")
    for place in tuned.values() if isinstance(tuned, dict) else ():
        for parent in path[:-1]:
            place = place.get(parent) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place.pop(path[-1], None)


def digest(value: Mapping[str, Any]) -> str:
    """A short content hash of plain values."""
    return hashlib.blake2b(yaml.safe_dump(dict(value), sort_keys=True).encode(), digest_size=6).hexdigest()


def _entry(section: str, entries: Mapping[str, Any], name: str) -> Any:
    if name not in entries:
        raise unknown_name(section, name, entries)
    return entries[name]
