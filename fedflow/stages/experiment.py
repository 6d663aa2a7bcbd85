"""One experiment: a partition, a method and a seed of ``params.yaml``."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from fedflow.config import Changes, Loaded
from fedflow.data.prepared import file_sum, path_sum
from fedflow.errors import FedflowError
from fedflow.files import CHANGED, central_folder, partition_folder, prepared_folder, read_fact
from fedflow.local.trained import MARKER
from fedflow.methods.protocols import ServerData, server_data
from fedflow.models import ARCHITECTURES
from fedflow.project.arguments import argument
from fedflow.project.digest import SETTINGS, SHORT, digest
from fedflow.project.identity import Identity
from fedflow.simulation.extensions.all_extensions import registered_modules
from fedflow.simulation.federation import FEATURES, FederationFiles, Stored, StoredInput
from fedflow.simulation.job import Job
from fedflow.simulation.levels import check_architecture
from fedflow.simulation.settings import RunSettings, check_division, check_settings
from fedflow.tracking.addresses import absolute

CODE = "fedflow.stages.federate"  # with all that it imports: the code of every run


@dataclass(frozen=True)
class Experiment:
    """What to run, and where its files are below ``root``."""

    params: Loaded
    partition: str
    method: str  # a registered one, or another name under methods
    seed: int
    root: Path = Path()
    sweep: str | None = None  # the MLflow parent run that this run belongs to

    def __post_init__(self) -> None:
        for name in ("partition", "method", "seed", "sweep"):
            object.__setattr__(self, name, argument(name, getattr(self, name)))
        object.__setattr__(self, "method", self.params.method_name(self.method))

    @property
    def dataset(self) -> str:
        return self.params.partition(self.partition).dataset

    @property
    def run(self) -> RunSettings:
        return self.params.run_of(self.method, self.partition)

    @property
    def datasets(self) -> list[str]:
        """The data set that is divided, and the one that the method gives the server, if any."""
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
        read = {FEATURES, *(each.field for each in self.params.reads(self.method, self.partition))}
        return {field: name for field, name in used.items() if field in read}

    @property
    def _server_data(self) -> ServerData:
        return server_data(self.params.method(self.method, self.partition)[0])

    @property
    def partitions(self) -> list[str]:
        return [self.partition]

    @property
    def title(self) -> str:
        return f"{self.partition} · {self.method} · seed {self.seed}"

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the flow `federate` that runs it, in this process."""
        about = {name: getattr(self, name) for name in ("partition", "method", "seed", "sweep")}
        return about | {"settings": Changes(self.params), "root": str(self.root)}

    @property
    def grid(self) -> dict[str, list] | None:
        """The grid of the settings, if this run is a cell of it."""
        grid = self.params.grid
        named = self.partition in grid.partitions and self.method in grid.methods
        return grid.as_dict() if named and self.seed in grid.seeds else None

    @property
    def prepared_folder(self) -> Path:
        return prepared_folder(self.root, self.dataset)

    @property
    def partition_folder(self) -> Path:
        return partition_folder(self.root, self.partition)

    @cached_property
    def effective(self) -> dict[str, Any]:
        """By section, defaults included: all settings that can change the results, except the seed."""
        params, (method, training) = self.params, self.params.method(self.method, self.partition)
        return {
            "method": {"name": method.name, **method.as_dict()},
            "training": training.as_dict(),
            "run": {k: v for k, v in self.run.as_dict().items() if k != "checkpoint_every"},
            "model": params.model(self.dataset).as_dict(),
            "data": {name: params.dataset(name).as_dict() for name in self.datasets},
            "partition": params.partition(self.partition).as_dict(),
            "central": {name: params.network(name).as_dict() for name in self.networks},
        }

    @cached_property
    def digest(self) -> str:
        """A digest of `effective`: runs with different settings are never averaged."""
        return digest(self.effective, SETTINGS)

    @property
    def identity(self) -> Identity:
        """The identity of the results, from settings, recorded hashes and code: nothing is opened."""
        read = {*self.read_networks.values()}
        weights = [self.run.inception] if self.run.inception else []
        inputs = contents(self.root, self.datasets, [self.partition], sorted(read), weights)
        chosen, network = self.params.method(self.method, self.partition), self.params.model(self.dataset)
        return Identity.of(
            self.effective,
            self.seed,
            inputs,
            [CODE, *registered_modules()],
            (*chosen, self.run),
            [ARCHITECTURES[network.name]],
        )

    @cached_property
    def results_folder(self) -> Path:
        """``results/<partition>/<method>/<seed>`` of the grid, else in ``runs``: `result_folder`."""
        return result_folder(self, "results", self.partition, self.method)

    def check(self) -> None:
        """Raise `BadInput` for any name or value that this experiment cannot run with.

        Raises `FedflowError` for a folder that cannot hold its record.
        """
        absolute(self.root)
        method, training = self.params.method(self.method, self.partition)
        check_settings(self.run, method, training)
        check_architecture(method, self.params.model(self.dataset).name)
        partition = self.params.partition(self.partition)
        check_division(method, partition.selects, partition.public)
        for name in self.datasets:
            self.params.dataset(name)
        self.params.used_networks(self.method, self.partition)
        pick_device(self.params.engine.device)

    @cached_property
    def job(self) -> Job:
        """What every worker of the run needs to know."""
        method, training = self.params.method(self.method, self.partition)
        model, engine = self.params.model(self.dataset), self.params.engine
        public = [prepared_folder(self.root, name) for name in self.datasets[1:]]
        files = FederationFiles(
            prepared=stored(self.prepared_folder, "meta.json"),
            partition=stored(self.partition_folder, "summary.json"),
            model=model.name,
            model_options=json.dumps(model.options, sort_keys=True),
            device=pick_device(engine.device),
            convolution=engine.convolution,
            public=stored(public[0], "meta.json") if public else None,
            noise=self._server_data.noise,
            inputs=self._inputs(),
            features=self._network(self.run.features),
            inception=self._inception(),
        )
        return Job(files, method, training, self.seed, cohort=engine.cohort, width=engine.width)

    def _inception(self) -> Stored | None:
        """The file of weights of Inception v3, if any."""
        if (name := self.run.inception) is None:
            return None
        file = (self.root / name).resolve()
        return Stored(str(file), file_sum(file) if file.is_file() else "")

    def _network(self, name: str | None) -> Stored | None:
        """The central network of this name, if any."""
        return None if name is None else stored(central_folder(self.root, name), MARKER)

    def _inputs(self) -> tuple[StoredInput, ...]:
        """What training reads of central networks; two settings that name the same one read it once."""
        found: dict[str, StoredInput] = {}
        for each in self.params.reads(self.method, self.partition):
            if each.needed and (network := self._network(each.network)):
                found.setdefault(each.name, StoredInput(each.name, network, each.losses, each.field))
        return tuple(found.values())


class InGrid(Protocol):
    """A run or a procedure with its settings and a seed."""

    @property
    def params(self) -> Loaded: ...
    @property
    def root(self) -> Path: ...
    @property
    def seed(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def grid(self) -> dict[str, list] | None: ...


def result_folder(one: InGrid, home: str, *names: str) -> Path:
    """``<home>/<names>/<seed>`` of a cell of params.yaml's grid with the settings of params.yaml itself.

    Else in ``runs``, as DVC keeps the grid and nothing else in ``home``. A digest of the settings follows the
    seed if params.yaml has other settings.
    """
    plain = one.params.plain
    try:
        known = one if plain is one.params else replace(cast(Any, one), params=plain) if plain else None
        same = known is not None and known.digest == one.digest
    except FedflowError:  # for example, the file has no such partition
        same = False
    in_grid = same and known is not None and known.grid is not None
    name = str(one.seed) if same else f"{one.seed}-{one.digest[:SHORT]}"
    return one.root.joinpath(home if in_grid else CHANGED, *names, name)


def experiments(
    params: Loaded,
    root: Path,
    sweep: str,
    partitions: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Experiment]:
    """Every cell of a grid (default: that of ``params``), all checked before the first one runs."""
    methods = [params.method_name(name) for name in methods or []]
    given = {"partitions": partitions, "methods": methods, "seeds": seeds}
    grid = replace(params.grid, **{name: [*values] for name, values in given.items() if values})
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


def stored(folder: Path, facts: str) -> Stored:
    """The folder, and the hash that its file ``facts`` records; no hash if it is not made yet."""
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
        **{f"data of {name}": stored(prepared_folder(root, name), "meta.json").hash for name in datasets},
        **{f"partition {n}": stored(partition_folder(root, n), "summary.json").hash for n in partitions},
        **{f"central network {name}": stored(central_folder(root, name), MARKER).hash for name in networks},
        **{f"file {name}": path_sum(root / name) if (root / name).exists() else "" for name in files},
    }
