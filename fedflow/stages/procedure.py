"""From inputs to the outcome of a procedure with one seed."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedflow.config import Changes, Loaded
from fedflow.data.prepared import file_sum
from fedflow.errors import BadInput, returned
from fedflow.finished.outcomes import SUMMARY, final_numbers, read_parts, write_outcome
from fedflow.models.registry import adapted
from fedflow.procedures import Column, End, Findings, Procedure
from fedflow.procedures.job import ProcedureJob
from fedflow.project.arguments import argument
from fedflow.project.code import ASIDE
from fedflow.project.identity import Identity, versions
from fedflow.simulation.executors import Executor, Inline
from fedflow.stages.driver import Description, Result, check_replaced
from fedflow.stages.experiment import Cell, contents, pick_device, recorded_inputs
from fedflow.stages.inputs import MAKERS, Makers, make_inputs, need_current
from fedflow.stages.started import start_files
from fedflow.stages.steps import Listener, PartWork, Progress, run_parts
from fedflow.tracking.record import Record

# With their imports: the code of every outcome, whose pictures are part of it.
CODE = (PartWork.__module__, ProcedureJob.__module__, write_outcome.__module__)
SKIPPED = tuple(part for part in ASIDE if part != "pictures")


@dataclass(frozen=True)
class ProcedureRun(Cell):
    """A procedure of ``params.yaml`` with one seed, and where its files are below ``root``."""

    params: Loaded
    name: str
    seed: int
    root: Path = Path()
    sweep: str | None = None  # MLflow parent run
    out: str | None = None  # folder of the outcome; default: `results_folder`
    home = "outcomes"

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", argument("seed", self.seed))

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def title(self) -> str:
        return f"{self.name} · seed {self.seed}"

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the flow `procedure` that runs it in this process."""
        given = {name: getattr(self, name) for name in ("name", "seed", "sweep", "out")}
        return given | {"settings": Changes(self.params), "root": str(self.root)}

    @property
    def grid(self) -> dict[str, Any] | None:
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
        return [self.division(name) for name in self.procedure.inputs().partitions]

    @cached_property
    def effective(self) -> dict[str, Any]:
        params, inputs = self.params, self.procedure.inputs()
        partitions = {name: params.partition(name) for name in inputs.partitions}
        datasets = {*inputs.datasets, *(entry.dataset for entry in partitions.values())}
        return {
            "procedure": {"name": self.procedure.name, **self.procedure.as_dict()},
            "data": {name: params.dataset(name).as_dict() for name in sorted(datasets)},
            "partitions": {name: self.divided(name) for name in partitions},
            "models": {e.dataset: params.model(e.dataset).as_dict() for e in partitions.values()},
            "central": {n: params.network(n).as_dict() for n in params.procedure_networks(self.name)},
        }

    @property
    def identity(self) -> Identity:
        """The identity of the outcome, from settings, recorded hashes and code, also of its pictures."""
        effective, inputs = self.effective, self.procedure.inputs()
        models = [model for _, model in sorted(effective["models"].items())]
        networks = [adapted(model["name"], model["options"]) for model in models]
        files = [*inputs.files, *(file for model in models for file in start_files(model["options"]))]
        return Identity.of(
            effective,
            self.seed,
            contents(self.root, effective["data"], self.partitions, inputs.networks, files),
            CODE,
            [self.procedure],
            networks,
            aside=SKIPPED,
        )

    @property
    def folder(self) -> Path:
        return Path(self.out) if self.out is not None else self.results_folder

    @cached_property
    def job(self) -> ProcedureJob:
        """The procedure with its inputs, which exist, by content."""
        inputs = self.procedure.inputs()
        return ProcedureJob(
            self.identity.on(libraries=versions()).key,
            self.procedure,
            self.draws,
            pick_device(self.params.engine.device),
            {name: self.stored("data", name) for name in inputs.datasets},
            {name: self.federation(name) for name in inputs.partitions},
            {name: self.stored("central", name) for name in inputs.networks},
            {name: (self.root / name).resolve() for name in inputs.files},
        )


def procedure_runs(
    params: Loaded, root: Path, sweep: str, seeds: Sequence[int] | None = None
) -> list[ProcedureRun]:
    """The procedures of the grid with these seeds (default: the grid's), all checked."""
    names, seeds = params.grid.procedures, seeds or params.grid.seeds
    made = [ProcedureRun(params, name, seed, root, sweep) for name in names for seed in seeds]
    for run in made:
        params.procedure(run.name)
    return made


def run_procedure(
    run: ProcedureRun,
    executor: Executor | None = None,
    listeners: Sequence[Listener] = (),
    makers: Makers = MAKERS,
    opened: Callable[[Record], None] = lambda record: None,
) -> dict[str, Any]:
    """Make its inputs and run it to its end, from its last checkpoint if there is one; returns its metrics.

    Writes the files of the outcome (`write_outcome`) and one MLflow run. ``executor`` computes the parts
    (default: this process). ``opened`` is called with the record before the first step.
    Raises `FedflowError`, also if the same procedure is already running, or if ``run.out`` holds results of
    another run or files of the user.
    """
    if run.out is not None:  # before the inputs are made
        check_replaced(run.folder, _tags(run), named=True)
    make_inputs([run], makers)
    try:
        shared = run.job.open().shared
        need_current(run)
        work = PartWork(
            run.job,
            executor or Inline(),
            run.root / ".fedflow" / "checkpoints" / run.job.key,
            run.procedure.step_name,
            lambda progress: _result(run, shared, progress),
        )
        return dict(run_parts(_described(run), work, listeners, opened).metrics)
    except BadInput as error:
        name = error.field.removeprefix("procedures.").removeprefix(f"{run.name}.")
        if re.split(r"[.\[]", name)[0] not in {field.name for field in fields(run.procedure)}:
            raise
        raise error.renamed(f"procedures.{run.name}.{name}") from error


def _tags(run: ProcedureRun) -> dict[str, Any]:
    """The facts that identify it among others, in files and in MLflow."""
    return {"procedure": run.name, "seed": run.seed, "settings": run.digest}


def _described(run: ProcedureRun) -> Description:
    tags, named = _tags(run), run.out is not None
    record = {
        "experiment": f"procedures/{run.name}",
        "name": f"{run.name} seed {run.seed}",
        "params": run.effective | {"engine": run.params.engine.as_dict(), "seed": run.seed},
        "tags": tags,
        "datasets": recorded_inputs(run.root, run.job.datasets, run.partitions),
        "sweep": run.sweep,
        "grid": run.grid,
    }
    return Description(
        run.title, run.root, run.folder, run.identity, run.job.key, run.address, record, tags, named
    )


def _result(run: ProcedureRun, shared: Any, progress: Progress) -> Result:
    """The outcome after the last steps of all parts."""
    ended = run.procedure.finish(shared, ends_of(progress))
    findings = returned(ended, Findings, f"{run.procedure.name}.finish", "Findings")
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


def facts_of(run: ProcedureRun) -> dict[str, Any]:
    """The facts in ``metrics.json`` that identify an outcome."""
    inputs, redrawn = run.job, run.params.grid.redraw != "run"
    partitions = {f"partitions.{name}": at.partition.hash for name, at in inputs.federations.items()}
    return {
        "procedure": run.name,
        "registered": run.procedure.name,
        "label": run.params.procedure_label(run.name),
        "seed": run.seed,
        "settings": run.digest,
        "inputs": {f"data.{name}": at.hash for name, at in inputs.datasets.items()}
        | ({} if redrawn else partitions)
        | {f"central.{name}": at.hash for name, at in inputs.networks.items()}
        | {f"files.{name}": file_sum(path)[:16] for name, path in inputs.files.items()},
        **({"divisions": partitions} if redrawn and partitions else {}),
    }


def read_summary(run: ProcedureRun) -> tuple[list[str], list[tuple[str, ...]]]:
    """The summary of a finished procedure as text: headings with units, and a tuple per row."""
    table, metrics = read_parts(run.folder / SUMMARY).set_index("row"), run.procedure.metrics
    columns = [(metrics.get(str(name)) or Column(str(name))) for name in table]
    scaled = table.to_numpy(float) * [column.factor for column in columns]
    rows = [
        (str(row) or run.name, *("" if np.isnan(value) else f"{value:.3g}" for value in values))
        for row, values in zip(table.index, scaled, strict=True)
    ]
    return [column.heading for column in columns], rows


def ends_of(progress: Progress) -> dict[str, End]:
    """The parts after their last steps, for `Procedure.finish`."""
    ends = {}
    for part, state in progress.states.items():
        assert state is not None
        rows = pd.DataFrame(progress.rows[part])
        ends[part] = End(state, rows.set_axis(pd.RangeIndex(1, len(rows) + 1, name="step")))
    return ends
