"""One experiment: a partition, a method and a seed of ``params.yaml``."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, cast

import torch

from fedflow.config import Changes, Loaded
from fedflow.data.prepared import file_sum, path_sum
from fedflow.errors import FedflowError
from fedflow.files import CHANGED, central_folder, partition_folder, prepared_folder, read_fact
from fedflow.local.trained import MARKER
from fedflow.methods.protocols import server_data
from fedflow.models.registry import adapted
from fedflow.project.arguments import argument
from fedflow.project.digest import SETTINGS, SHORT, digest
from fedflow.project.identity import Identity
from fedflow.simulation.extensions.all_extensions import registered_modules
from fedflow.simulation.federation import FEATURES, FederationFiles, Stored, StoredInput
from fedflow.simulation.job import Job
from fedflow.simulation.levels import check_architecture
from fedflow.simulation.settings import RunSettings, check_division, check_settings, decisive
from fedflow.stages.started import start_files, start_of
from fedflow.tracking.addresses import absolute

CODE = "fedflow.stages.federate"  # with its imports: the code of every run
STORED = {  # kind of input: its folder, and the file there that records its hash
    "data": (prepared_folder, "meta.json"),
    "partition": (partition_folder, "summary.json"),
    "central": (central_folder, MARKER),
}


class Cell:
    """A run or a procedure of a grid: its settings and seed, and the ``root`` of its project."""

    params: Loaded
    seed: int
    root: Path
    home: ClassVar[str]  # folder of the results of the grid

    @property
    def partitions(self) -> list[str]:
        """The partitions that it reads, as its seed draws them."""
        raise NotImplementedError

    @property
    def names(self) -> tuple[str, ...]:
        """The folders of the results between `home` and the seed."""
        raise NotImplementedError

    @property
    def effective(self) -> dict[str, Any]:
        """By section, defaults included: all settings that can change the results, except the seed."""
        raise NotImplementedError

    @property
    def grid(self) -> dict[str, Any] | None:
        """The grid of the settings, if this is one of its cells."""
        raise NotImplementedError

    @cached_property
    def digest(self) -> str:
        """A digest of `effective`: results with different settings are never averaged."""
        return digest(self.effective, SETTINGS)

    @cached_property
    def results_folder(self) -> Path:
        """``<home>/<names>/<seed>`` of a cell of the grid of params.yaml, without changed settings.

        All others are in ``runs``, as DVC tracks `home`. A digest follows the seed if settings are changed.
        """
        plain = self.params.plain
        try:
            same = self if plain is self.params else replace(cast(Any, self), params=plain) if plain else None
            same = same if same and same.digest == self.digest else None
        except FedflowError:  # for example, the file has no such partition
            same = None
        home = self.home if same and same.grid is not None else CHANGED
        name = str(self.seed) if same else f"{self.seed}-{self.digest[:SHORT]}"
        return self.root.joinpath(home, *self.names, name)

    @property
    def address(self) -> str:
        """The name of its results in commands, such as PARTITION/METHOD/SEED."""
        return "/".join([*self.names, self.results_folder.name])

    def division(self, partition: str) -> str:
        """The partition as this seed draws it, by name."""
        return self.params.division(partition, self.seed)

    def divided(self, partition: str) -> dict[str, Any]:
        """The settings of a partition, the same for all seeds."""
        entry, redraw = self.params.partition(partition).as_dict(), self.params.grid.redraw
        same = {name: value for name, value in entry.items() if name != "seed"}
        return entry if redraw == "run" else same | {"redraw": redraw}

    @property
    def draws(self) -> int:
        """The seed of everything except the partition."""
        only_division = self.params.grid.redraw == "division" and self.partitions
        return 0 if only_division else self.seed

    def stored(self, kind: str, name: str) -> Stored:
        """An input of a `STORED` kind, by content."""
        return stored(self.root, kind, name)

    def federation(self, partition: str, **more: Any) -> FederationFiles:
        """The files of a partition and its dataset, with the network."""
        dataset = self.params.partition(partition).dataset
        model = self.params.model(dataset)
        return FederationFiles(
            prepared=self.stored("data", dataset),
            partition=self.stored("partition", self.division(partition)),
            model=model.name,
            model_options=json.dumps(model.options, sort_keys=True),
            start=start_of(model.options, self.root),
            device=pick_device(self.params.engine.device),
            **more,
        )


@dataclass(frozen=True)
class Experiment(Cell):
    """A federated run, and where its files are below ``root``."""

    params: Loaded
    partition: str
    method: str  # a registered one, or another name under methods
    seed: int
    root: Path = Path()
    sweep: str | None = None  # MLflow parent run
    home = "results"

    def __post_init__(self) -> None:
        for name in ("partition", "method", "seed", "sweep"):
            object.__setattr__(self, name, argument(name, getattr(self, name)))
        object.__setattr__(self, "method", self.params.method_name(self.method))

    @property
    def names(self) -> tuple[str, ...]:
        return self.partition, self.method

    @property
    def dataset(self) -> str:
        return self.params.partition(self.partition).dataset

    @property
    def run(self) -> RunSettings:
        return self.params.run_of(self.method, self.partition)

    @property
    def datasets(self) -> list[str]:
        """The dataset that is divided, and the server's, if the method names one."""
        public = self.params.public(self.method, self.partition)
        return [self.dataset, *([public] if public else [])]

    @property
    def networks(self) -> list[str]:
        """The central networks of run and partition and their teachers, each after those that it needs."""
        return self.params.networks(*self.params.used_networks(self.method, self.partition).values())

    @property
    def read_networks(self) -> dict[str, str]:
        """The central networks that the run itself reads, by the field that names them."""
        used = self.params.used_networks(self.method, self.partition)
        read = {FEATURES, *(network.field for network in self.params.reads(self.method, self.partition))}
        return {field: name for field, name in used.items() if field in read}

    @property
    def partitions(self) -> list[str]:
        return [self.division(self.partition)]

    @property
    def title(self) -> str:
        return f"{self.partition} · {self.method} · seed {self.seed}"

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the flow `federate` that runs it in this process."""
        given = {name: getattr(self, name) for name in ("partition", "method", "seed", "sweep")}
        return given | {"settings": Changes(self.params), "root": str(self.root)}

    @property
    def grid(self) -> dict[str, Any] | None:
        grid = self.params.grid
        named = self.partition in grid.partitions and self.method in grid.methods
        return grid.as_dict() if named and self.seed in grid.seeds else None

    @property
    def prepared_folder(self) -> Path:
        return prepared_folder(self.root, self.dataset)

    @property
    def partition_folder(self) -> Path:
        return partition_folder(self.root, self.division(self.partition))

    @cached_property
    def effective(self) -> dict[str, Any]:
        params = self.params
        return {
            **decisive(*params.method(self.method, self.partition), self.run),
            "model": params.model(self.dataset).as_dict(),
            "data": {name: params.dataset(name).as_dict() for name in self.datasets},
            "partition": self.divided(self.partition),
            "central": {name: params.network(name).as_dict() for name in self.networks},
        }

    @property
    def identity(self) -> Identity:
        """The identity of the results, from settings, recorded hashes and code: nothing is opened."""
        networks = sorted({*self.read_networks.values()})
        chosen, network = self.params.method(self.method, self.partition), self.params.model(self.dataset)
        weights = [*([self.run.inception] if self.run.inception else []), *start_files(network.options)]
        return Identity.of(
            self.effective,
            self.seed,
            contents(self.root, self.datasets, self.partitions, networks, weights),
            [CODE, *registered_modules()],
            (*chosen, self.run),
            [adapted(network.name, network.options)],
        )

    def check(self) -> None:
        """Raise `BadInput` for any name or value that this experiment cannot run with.

        Raises `FedflowError` for a folder that cannot hold its record.
        """
        absolute(self.root)
        method, training = self.params.method(self.method, self.partition)
        check_settings(self.run, method, training)
        check_architecture(method, self.params.model(self.dataset).name)
        partition = self.params.partition(self.division(self.partition))
        check_division(method, partition.selects, partition.public)
        for name in self.datasets:
            self.params.dataset(name)
        self.params.used_networks(self.method, self.partition)
        pick_device(self.params.engine.device)

    @cached_property
    def job(self) -> Job:
        """The job of every worker of the run."""
        method, training = self.params.method(self.method, self.partition)
        run, engine, inputs = self.run, self.params.engine, dict[str, StoredInput]()
        for read in self.params.reads(self.method, self.partition):
            if read.needed:  # two settings that name the same input read it once
                network = self.stored("central", read.network)
                inputs.setdefault(read.name, StoredInput(read.name, network, read.losses, read.field))
        files = self.federation(
            self.partition,
            convolution=engine.convolution,
            public=next((self.stored("data", name) for name in self.datasets[1:]), None),
            noise=server_data(method).noise,
            inputs=tuple(inputs.values()),
            features=self.stored("central", run.features) if run.features else None,
            inception=self._inception(),
        )
        return Job(files, method, training, self.draws, cohort=engine.cohort, width=engine.width)

    def _inception(self) -> Stored | None:
        """The weights of Inception v3, if the run needs them."""
        if (name := self.run.inception) is None:
            return None
        file = (self.root / name).resolve()
        return Stored(str(file), file_sum(file) if file.is_file() else "")


def experiments(
    params: Loaded,
    root: Path,
    sweep: str,
    partitions: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Experiment]:
    """Every run of a grid (default: the grid of ``params``), all checked before the first one runs."""
    methods = [params.method_name(name) for name in methods or []]
    given = {"partitions": partitions, "methods": methods, "seeds": seeds}
    changes: dict[str, Any] = {name: [*values] for name, values in given.items() if values}
    grid = replace(params.grid, **changes)
    params, cells = params.replace(grid=grid), product(grid.partitions, grid.methods, grid.seeds)
    made = [Experiment(params, *cell, root, sweep) for cell in cells]
    for experiment in made:
        experiment.check()
    return made


def pick_device(wanted: str) -> str:
    """``auto`` becomes cuda if there is a GPU; `FedflowError` for cuda without one."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise FedflowError("engine.device: 'cuda' was requested, but torch sees no GPU here; use cpu or auto")
    return ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted


def stored(root: Path, kind: str, name: str) -> Stored:
    """The folder of an input of a `STORED` kind and its hash, which is empty before the input is made."""
    folder_of, facts = STORED[kind]
    folder = folder_of(root, name)
    return Stored(str(folder.resolve()), read_fact(folder / facts, "hash") or "")


def contents(
    root: Path,
    datasets: Iterable[str] = (),
    partitions: Iterable[str] = (),
    networks: Iterable[str] = (),
    files: Iterable[str] = (),
) -> dict[str, str]:
    """Content hashes of inputs by their names in words; empty for an input that does not exist yet."""
    return {
        **{f"data of {name}": stored(root, "data", name).hash for name in datasets},
        **{f"partition {name}": stored(root, "partition", name).hash for name in partitions},
        **{f"central network {name}": stored(root, "central", name).hash for name in networks},
        **{f"file {name}": path_sum(root / name) if (root / name).exists() else "" for name in files},
    }


def recorded_inputs(
    root: Path, datasets: Iterable[str], partitions: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """Datasets and partitions, as inputs of a run in MLflow."""
    inputs = [*(("data", name) for name in datasets), *(("partition", name) for name in partitions)]
    return [
        {"name": name, "digest": at.hash, "source": at.path, "context": kind}
        for kind, name in inputs
        for at in [stored(root, kind, name)]
    ]
