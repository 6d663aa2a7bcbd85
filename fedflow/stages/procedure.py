"""From inputs to the outcome of a procedure with one seed: run, recorded, written."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedflow.config import Changes, Loaded
from fedflow.data.prepared import file_sum
from fedflow.errors import BadInput
from fedflow.files import central_folder, partition_folder, prepared_folder
from fedflow.finished.outcomes import SUMMARY, final_numbers, read_parts, write_outcome
from fedflow.local.trained import MARKER as NETWORK
from fedflow.models import ARCHITECTURES
from fedflow.procedures import Column, End, Procedure
from fedflow.procedures.job import ProcedureJob
from fedflow.project.arguments import argument
from fedflow.project.code import ASIDE
from fedflow.project.digest import SETTINGS, digest
from fedflow.project.identity import Identity, versions
from fedflow.simulation.executors import Executor, Inline
from fedflow.simulation.federation import FederationFiles
from fedflow.stages.central_network import prepare_network
from fedflow.stages.driver import Experiment, Result
from fedflow.stages.experiment import contents, pick_device, result_folder, stored
from fedflow.stages.inputs import make_inputs
from fedflow.stages.partition import prepare_partition
from fedflow.stages.prepare import prepare_dataset
from fedflow.stages.steps import Listener, PartWork, Progress, run_parts
from fedflow.tracking import Record


@dataclass(frozen=True)
class ProcedureRun:
    """A procedure of ``params.yaml`` with one seed, and where its files are below ``root``."""

    params: Loaded
    name: str
    seed: int
    root: Path = Path()
    sweep: str | None = None  # MLflow parent run
    out: str | None = None  # folder of the outcome; default: `folder`

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", argument("seed", self.seed))

    @property
    def title(self) -> str:
        return f"{self.name} · seed {self.seed}"

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the flow `procedure` that runs it, in this process."""
        return {
            "name": self.name,
            "seed": self.seed,
            "settings": Changes(self.params),
            "root": str(self.root),
            "sweep": self.sweep,
            "out": self.out,
        }

    @property
    def grid(self) -> dict[str, list] | None:
        """The grid of params.yaml, if this run is part of it."""
        grid = self.params.grid
        return grid.as_dict() if self.name in grid.procedures and self.seed in grid.seeds else None

    @cached_property
    def procedure(self) -> Procedure:
        return self.params.procedure(self.name)

    @property
    def datasets(self) -> list[str]:
        return [*self.effective["data"]]

    @property
    def networks(self) -> list[str]:
        """The central networks that it reads, each after its teachers."""
        return self.params.procedure_networks(self.name)

    @property
    def partitions(self) -> list[str]:
        return [*self.procedure.inputs().partitions]

    @cached_property
    def effective(self) -> dict[str, Any]:
        """All settings that can change the outcome, except the seed, defaults included."""
        params, inputs = self.params, self.procedure.inputs()
        partitions = {name: params.partition(name) for name in inputs.partitions}
        datasets = {*inputs.datasets, *(entry.dataset for entry in partitions.values())}
        return {
            "procedure": {"name": self.procedure.name, **self.procedure.as_dict()},
            "data": {name: params.dataset(name).as_dict() for name in sorted(datasets)},
            "partitions": {name: entry.as_dict() for name, entry in partitions.items()},
            "models": {e.dataset: params.model(e.dataset).as_dict() for e in partitions.values()},
            "central": {n: params.network(n).as_dict() for n in params.procedure_networks(self.name)},
        }

    @cached_property
    def digest(self) -> str:
        """A digest of `effective`: outcomes with different settings are never averaged."""
        return digest(self.effective, SETTINGS)

    @property
    def identity(self) -> Identity:
        """The identity of the outcome, from settings, recorded hashes and code, also of its pictures."""
        effective, inputs = self.effective, self.procedure.inputs()
        networks = (ARCHITECTURES[model["name"]] for _, model in sorted(effective["models"].items()))
        return Identity.of(
            effective,
            self.seed,
            contents(self.root, effective["data"], inputs.partitions, inputs.networks, inputs.files),
            [PartWork.__module__, ProcedureJob.__module__, write_outcome.__module__],
            [self.procedure],
            networks,
            aside=tuple(part for part in ASIDE if part != "pictures"),
        )

    @cached_property
    def folder(self) -> Path:
        """``out``, or ``outcomes/<name>/<seed>`` of the grid, else in ``runs``: `result_folder`."""
        return Path(self.out) if self.out is not None else result_folder(self, "outcomes", self.name)

    @cached_property
    def job(self) -> ProcedureJob:
        """The procedure with its inputs, which exist, by content."""
        params, inputs, device = self.params, self.procedure.inputs(), pick_device(self.params.engine.device)
        files = {name: (self.root / name).resolve() for name in inputs.files}
        datasets = {name: stored(prepared_folder(self.root, name), "meta.json") for name in inputs.datasets}
        networks = {name: stored(central_folder(self.root, name), NETWORK) for name in inputs.networks}
        federations = {}
        for name in inputs.partitions:
            dataset = params.partition(name).dataset
            model = params.model(dataset)
            federations[name] = FederationFiles(
                prepared=stored(prepared_folder(self.root, dataset), "meta.json"),
                partition=stored(partition_folder(self.root, name), "summary.json"),
                model=model.name,
                model_options=json.dumps(model.options, sort_keys=True),
                device=device,
            )
        key = self.identity.on(libraries=versions()).key
        return ProcedureJob(key, self.procedure, self.seed, device, datasets, federations, networks, files)


def procedure_runs(
    params: Loaded, root: Path, sweep: str, seeds: Sequence[int] | None = None
) -> list[ProcedureRun]:
    """The procedures of the grid with these seeds (default: the grid's), checked before the first runs."""
    names, seeds = params.grid.procedures, seeds or params.grid.seeds
    made = [ProcedureRun(params, name, seed, root, sweep) for name in names for seed in seeds]
    for run in made:
        params.procedure(run.name)
    return made


def run_procedure(
    run: ProcedureRun,
    executor: Executor | None = None,
    listeners: Sequence[Listener] = (),
    prepare: Callable[..., Any] = prepare_dataset,
    train: Callable[..., Any] = prepare_network,
    divide: Callable[..., Any] = prepare_partition,
    opened: Callable[[Record], None] = lambda record: None,
) -> dict[str, Any]:
    """Prepare its inputs, run it to its end, from its last checkpoint if it was interrupted; its metrics.

    Writes the files of the outcome (`write_outcome`) and one MLflow run. ``executor`` computes the parts
    (default: this process). ``opened`` is called with the record before the first step.
    Raises `FedflowError`, also if the same procedure is already running.
    """
    make_inputs([run], prepare, train, divide)
    with _naming_fields(run):
        shared = run.job.open().shared
        work = PartWork(
            run.job,
            executor or Inline(),
            run.root / ".fedflow" / "checkpoints" / run.job.key,
            run.procedure.step_name,
            lambda progress: _result(run, shared, progress),
        )
        return dict(run_parts(_described(run), work, listeners, opened).metrics)


def _described(run: ProcedureRun) -> Experiment:
    """The names of the procedure in its record."""
    record = {
        "experiment": f"procedures/{run.name}",
        "name": f"{run.name} seed {run.seed}",
        "params": run.effective | {"engine": run.params.engine.as_dict(), "seed": run.seed},
        "tags": {"procedure": run.name, "seed": run.seed, "settings": run.digest},
        "datasets": _inputs(run),
        "sweep": run.sweep,
        "grid": run.grid,
    }
    lock = f"{run.name}/{run.seed}"
    return Experiment(run.title, run.root, run.folder, run.identity, run.job.key, lock, record)


def _result(run: ProcedureRun, shared: Any, progress: Progress) -> Result:
    """The outcome after the last steps of all parts."""
    findings = run.procedure.finish(shared, ends_of(progress))
    numbers, params = final_numbers(run.folder, findings), {"seed": run.seed, **run.effective}

    def pictures(folder: Path) -> Iterator[tuple[str, list[Path]]]:
        for drawn in findings.drawings:
            drawn.png(folder / f"{drawn.name}.png")
        yield "pictures", sorted(folder.iterdir())

    return Result(
        numbers,
        max(map(len, progress.rows.values())),
        lambda folder: write_outcome(
            folder, facts_of(run), params, progress.rows, findings, numbers, run.identity
        ),
        pictures,
    )


@contextmanager
def _naming_fields(run: ProcedureRun) -> Iterator[None]:
    """Within this context, errors of the procedure's fields have their full names."""
    try:
        yield
    except BadInput as error:
        raise _renamed(error, run.name, run.procedure) from error


def facts_of(run: ProcedureRun) -> dict[str, Any]:
    """What identifies an outcome, in its ``metrics.json``."""
    inputs = run.job
    return {
        "procedure": run.name,
        "registered": run.procedure.name,
        "label": run.params.procedure_label(run.name),
        "seed": run.seed,
        "settings": run.digest,
        "inputs": {f"data.{name}": at.hash for name, at in inputs.datasets.items()}
        | {f"partitions.{name}": at.partition.hash for name, at in inputs.federations.items()}
        | {f"central.{name}": at.hash for name, at in inputs.networks.items()}
        | {f"files.{name}": file_sum(path)[:16] for name, path in inputs.files.items()},
    }


def read_summary(run: ProcedureRun) -> tuple[list[str], list[tuple[str, ...]]]:
    """The summary of a finished procedure as text: headings with units, and a tuple per row."""
    table, known = read_parts(run.folder / SUMMARY).set_index("row"), run.procedure.metrics
    about = [(known.get(str(name)) or Column(str(name))) for name in table]
    rows = [
        (str(row) or run.name, *map(_number, values, about))
        for row, values in zip(table.index, table.to_numpy(float).tolist(), strict=True)
    ]
    return [one.heading for one in about], rows


def _number(value: float, about: Column) -> str:
    """A number of the summary in its unit; empty if it was not measured."""
    return "" if np.isnan(value) else f"{value * about.factor:.3g}"


def ends_of(progress: Progress) -> dict[str, End]:
    """The parts after their last steps, for `Procedure.finish`."""
    ends = {}
    for part, state in progress.states.items():
        assert state is not None
        rows = pd.DataFrame(progress.rows[part])
        ends[part] = End(state, rows.set_axis(pd.RangeIndex(1, len(rows) + 1, name="step")))
    return ends


def _inputs(run: ProcedureRun) -> list[dict[str, Any]]:
    """Its data sets and partitions, as inputs of the recorded run."""
    job, found = run.job, []
    for name, at in job.datasets.items():
        found.append({"name": name, "digest": at.hash, "source": at.path, "context": "data"})
    for name, files in job.federations.items():
        at = files.partition
        found.append({"name": name, "digest": at.hash, "source": at.path, "context": "partition"})
    return found


def _renamed(error: BadInput, name: str, procedure: Procedure) -> BadInput:
    """The error with the full name of the field, if it is one of the procedure."""
    field = error.field.removeprefix("procedures.").removeprefix(f"{name}.")
    known = re.split(r"[.\[]", field)[0] in {each.name for each in fields(procedure)}
    return error.renamed(f"procedures.{name}.{field}") if known else error
