"""One run in MLflow: parameters, data, metrics by step, results, models and clusters.

Everything goes through the client of one store; MLflow's global "active run" is never used. A run has
one writer, its metrics are sent in batches, and an unfinished run of the same key is resumed.
"""

import contextlib
import hashlib
import json
import math
import re
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from fedflow import __version__
from fedflow.claims.sources import COMPARISONS, RECORDED, RESULTS
from fedflow.errors import FedflowError, reason
from fedflow.files import read_fact
from fedflow.metrics.table import heading, headlines, metric_of, printed, recorded_name
from fedflow.project.digest import digest
from fedflow.project.identity import FILE as IDENTITY
from fedflow.project.identity import UNRECORDED
from fedflow.project.machine import lock_digest, processor
from fedflow.project.terminal import say
from fedflow.tracking.addresses import is_database
from fedflow.tracking.comparison import NOTE, PARENT, log_comparison, log_orders, measured
from fedflow.tracking.models import ModelCard, Served, log_models, ranges
from fedflow.tracking.pages import run_page, show_first
from fedflow.tracking.shared import (
    KEY,
    RESUMED,
    RUNNING,
    RUNS,
    SWEEP,
    Owner,
    every,
    experiment_id,
    number,
    parents,
    quoted,
    unfinished,
    user_name,
)
from fedflow.tracking.store import Store, open_store, reporting

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from torch import Tensor

    from fedflow.simulation.outcome import RoundReport

R = TypeVar("R", bound="Record")

FLUSH_STEPS, FLUSH_SECONDS = 10, 5.0  # metrics are sent after this many steps or seconds
AGAIN, PATIENCE = 10.0, 120.0  # seconds until a store that is away is asked again, and for it at the end
PROBED = 2.0  # seconds to wait for a lock, which a run that ends may hold for a moment
SYSTEM_INTERVAL = 10.0  # seconds between system metrics
CHANGED, INCOMPLETE = "fedflow.changed_params", "fedflow.incomplete"  # tags
PARAM_LENGTH, TAG_LENGTH, DIGEST_LENGTH = 6000, 5000, 36  # MLflow's limits


@dataclass(frozen=True)
class Writers:
    """The locks of the processes that record the runs of an owner, in an experiment of this name."""

    store: Store
    experiment: str
    owner: Owner

    def lock(self, key: str) -> FileLock:
        """The lock of the one process that records the run of this key."""
        name = digest([self.experiment, key, self.owner.user, self.owner.project])
        return self.store.file_lock(name, timeout=0)


def open_record(
    kind: "type[R]",
    root: Path | str,
    *,
    experiment: str,
    name: str,
    key: str,
    params: Mapping[str, Any],
    tags: Mapping[str, Any] | None = None,
    datasets: Sequence[Mapping[str, Any]] = (),
    sweep: str | None = None,
    grid: Mapping[str, Any] | None = None,
    params_file: Path | None = None,
    system_metrics: bool = True,
    resumes: bool = False,
) -> "R":
    """Open the record of one run: a new one, or the unfinished one of the same ``key``.

    ``experiment`` is the MLflow experiment (one per dataset and partition), ``sweep`` the parent run that
    groups this one, with the parameters ``grid``. ``params`` may be nested; their names are joined with dots.
    ``datasets`` have ``name``, ``digest``, ``source`` and ``context``. The SHA-256 of ``params_file`` becomes
    a tag. With ``resumes``, the last run of the key is resumed even if it is finished: an existing checkpoint
    means that it was killed after that. ``kind`` is the class of the record.
    Raises `FedflowError` if the store fails, or while another process records the same run.
    """
    store = open_store(root)
    owner = Owner.here(store, root)
    with reporting(store.uri):
        writers = Writers(store, experiment, owner)
        writer = writers.lock(key)
        try:
            writer.acquire(timeout=PROBED)
        except Timeout:
            raise FedflowError(f"run {name!r} is being recorded by another process") from None
        try:
            api = store.client()
            source = _source(Path(root), params_file, params.get("engine", params)) | owner.tags
            with store.lock("experiments"):
                number = experiment_id(api, store, experiment)
                _reach_artifacts(api, store, number)
                earlier = unfinished(api, number, key, owner, finished=resumes)
                former = _former(api, earlier) if earlier else None
                parent = _parent(api, number, sweep, grid or {}, source, owner) if sweep else former
                run = earlier or api.create_run(number, tags={KEY: key} | owner.tags, run_name=name)
                if earlier:
                    api.update_run(earlier.info.run_id, status=RUNNING)
                if is_database(store.uri):
                    say(f"{name}: artifacts in {run.info.artifact_uri}")
                if parent:
                    api.set_tag(run.info.run_id, PARENT, parent)
                left = former if former != parent else None
                if left:
                    _end_parent(api, writers, number, left)
            record = kind(writers, api, run, writer, parent)
            try:
                record._compare(left)
                record._begin(params, dict(tags or {}) | source, datasets, resumed=earlier is not None)
                if system_metrics:
                    record._monitor_system()
            except BaseException as error:
                record.__exit__(type(error), error, error.__traceback__)
                raise
        except BaseException:
            writer.release()
            raise
    return record


class Record:
    """The one writer of a run.

    Use it as a context: an exception marks the run as failed, an interrupt as killed. ``recorded`` has the
    steps (rounds, epochs) that MLflow already has; they are not logged again.
    """

    ALWAYS: ClassVar[str] = "seconds"  # a metric of every step, by which recorded steps are found

    def __init__(
        self, writers: Writers, api: "MlflowClient", run: "Run", writer: FileLock, parent: str | None
    ) -> None:
        self.store, self.writers, self.api, self.parent = writers.store, writers, api, parent
        self.run_id: str = run.info.run_id
        self.experiment_id: str = run.info.experiment_id
        self.recorded: set[int] = set()
        self._run, self._writer = run, writer
        self._waiting: dict[int, Mapping[str, float]] = {}
        self._flushed = time.monotonic()
        self._away = False  # the store did not answer
        self._monitor: Any = None
        self._link = ""  # to the flow run in Prefect, in Markdown
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._open:
            return
        interrupted = kind is not None and not issubclass(kind, Exception)
        # The error of the block matters more than one of the store.
        with contextlib.suppress(FedflowError) if error else contextlib.nullcontext():
            reason = error or FedflowError("the run ended before it was finished")
            self.fail(reason, status="KILLED" if interrupted else "FAILED")

    @property
    def page(self) -> str:
        """The address of the run in MLflow."""
        return run_page(self.store, self.experiment_id, self.run_id)

    def link(self, flow_run: str, page: str | None) -> None:
        """Link the Prefect flow run that records this run, in tags and in the description."""
        self._link = f"[Flow run in Prefect]({page})" if page else f"Prefect flow run `{flow_run}`"
        tags = {"prefect.flow_run_id": flow_run, "prefect.flow_run_url": page, NOTE: self._link}
        with reporting(self.store.uri):
            for name, value in tags.items():
                if value:
                    self.api.set_tag(self.run_id, name, value)

    def row(self, step: int, values: Mapping[str, float]) -> None:
        """Record the metrics of a step; they are sent every few steps or seconds."""
        if step not in self.recorded:
            self._waiting[step] = values
        pause = time.monotonic() - self._flushed
        if pause >= (AGAIN if self._away else FLUSH_SECONDS) or len(self._waiting) == FLUSH_STEPS:
            self._flush_or_keep()

    def _flush_or_keep(self) -> None:
        """Send the waiting steps; while the store is away, they wait and training continues."""
        if not (away := self.store.away()):
            try:
                self.flush()
            except FedflowError:
                if not (away := self.store.away()):
                    raise
        if away:
            if not self._away:
                say(f"{self._run.info.run_name}: {away}; training continues, records are sent later")
            self._flushed = time.monotonic()
        elif (thread := getattr(self._monitor, "_process", None)) and not thread.is_alive():
            self._monitor_system()  # its thread ends when the store does not answer
        self._away = bool(away)

    def _wait(self) -> None:
        """Wait until the store answers. Raises `FedflowError` after `PATIENCE`."""
        deadline, told = time.monotonic() + PATIENCE, False
        while away := self.store.away():
            if time.monotonic() > deadline:
                raise FedflowError(f"{away}; rerun the command to complete the record")
            if not told:
                say(f"{self._run.info.run_name}: {away}; waiting up to {PATIENCE / 60:.0f} min")
            told = True
            time.sleep(1)

    def flush(self) -> None:
        """Send the waiting steps."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(self._named(name), float(value), now, step)
            for step, values in self._waiting.items()
            for name, value in values.items()
        ]
        with reporting(self.store.uri):
            self.api.log_batch(self.run_id, metrics=metrics)
        self.recorded.update(self._waiting)
        self._waiting.clear()
        self._flushed = time.monotonic()

    def attach(self, files: Iterable[Path], folder: str) -> None:
        """Log files as artifacts in ``folder``, when the store answers."""
        self._wait()
        with reporting(self.store.uri):
            for file in sorted(files):
                self.api.log_artifact(self.run_id, str(file), folder)

    def lack(self, reason: str) -> None:
        """Tag the run as incomplete."""
        with reporting(self.store.uri):
            self.api.set_tag(self.run_id, INCOMPLETE, reason[:TAG_LENGTH])

    def end(
        self,
        metrics: Mapping[str, Any],
        step: int,
        folder: Path | None,
        card: ModelCard | None,
        models: "Mapping[int, Tensor]",
        cluster: Sequence[int] = (),
    ) -> None:
        """Log the final ``metrics`` at the last ``step``, files and models, and close the run as finished.

        The files that the run wrote into ``folder`` are logged under ``results/``, and ``models`` if there is
        a ``card`` (`log_models`). ``cluster`` has the cluster of every client.
        """
        self._wait()
        self.flush()
        with reporting(self.store.uri):
            self._log_more(folder)
            self._log_final(metrics, step)
            if folder is not None:
                note = "\n\n".join(filter(None, [self._link, described(metrics, folder)]))
                self.api.set_tag(self.run_id, NOTE, note)
                self._log_results(folder)
            if card is not None:
                run, accuracy = self.api.get_run(self.run_id), metrics.get("local_accuracy")
                served = log_models(self.store, run, card, models, cluster, step, accuracy)
                self._log_served(served, cluster, card)
            self._close("FINISHED")
        self._ended()

    def fail(self, error: BaseException | str, status: str = "FAILED") -> None:
        """Close the run as failed (or "KILLED"), with the first line of the reason as a tag."""
        text = str(error) or type(error).__name__
        try:
            self.store.reach()
            self.flush()
            with reporting(self.store.uri):
                self.api.set_tag(self.run_id, "fedflow.error", text.splitlines()[0][:TAG_LENGTH])
        finally:
            with reporting(self.store.uri):
                self._close(status)
                self._compare(self.parent)

    def _compare(self, sweep: str | None) -> None:
        """Compare the runs of a sweep that has ended."""

    def _begin(
        self,
        params: Mapping[str, Any],
        tags: Mapping[str, Any],
        datasets: Sequence[Mapping[str, Any]],
        resumed: bool,
    ) -> None:
        """Log parameters, tags and inputs, for a resumed run only the missing ones."""
        had, tags = self._run.data.tags, dict(tags)
        if resumed:
            self.recorded = {m.step for m in self.api.get_metric_history(self.run_id, self.ALWAYS)}
            tags[RESUMED] = int(number(had, RESUMED) or 0) + 1
            for name in {"fedflow.error", INCOMPLETE} & had.keys():
                self.api.delete_tag(self.run_id, name)
        _log_start(self.api, self._run, params, tags)
        self._log_inputs(datasets)

    def _log_inputs(self, datasets: Sequence[Mapping[str, Any]]) -> None:
        """Log the ``datasets`` that are not inputs of the run yet."""
        from mlflow.entities import Dataset, DatasetInput
        from mlflow.entities.input_tag import InputTag

        inputs = self.api.get_run(self.run_id).inputs
        logged = {(i.dataset.name, i.dataset.digest) for i in (inputs.dataset_inputs if inputs else [])}
        entities = [
            DatasetInput(
                Dataset(
                    name=str(data["name"]),
                    digest=str(data["digest"])[:DIGEST_LENGTH],
                    source_type="local",
                    source=json.dumps({"uri": str(data["source"])}),
                ),
                [InputTag("mlflow.data.context", str(data["context"]))],
            )
            for data in datasets
        ]
        if new := [e for e in entities if (e.dataset.name, e.dataset.digest) not in logged]:
            self.api.log_inputs(self.run_id, new)

    def _monitor_system(self) -> None:
        """Record processor, memory, disk and GPU use of this machine."""
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self._monitor = SystemMetricsMonitor(
            self.run_id, sampling_interval=SYSTEM_INTERVAL, resume_logging=True, tracking_uri=self.store.uri
        )
        self._monitor.start()

    def _log_final(self, metrics: Mapping[str, Any], rounds: int) -> None:
        """Log the final numbers at the last step, except those that are logged already."""
        from mlflow.entities import Metric

        had = self.api.get_run(self.run_id).data.metrics
        now = int(time.time() * 1000)
        numbers = {self._named(k): float(v) for k, v in _numbers(metrics).items()}
        new = [Metric(k, v, now, rounds) for k, v in numbers.items() if not math.isnan(v) and had.get(k) != v]
        self.api.log_batch(self.run_id, metrics=new)

    def _log_results(self, folder: Path) -> None:
        """Log the files of a run or an outcome; a folder that the user named may have others."""
        from fedflow.finished.outcomes import MARKER, PARAMS, STEPS, SUMMARY, VECTORS

        listed = read_fact(folder / MARKER, "files")
        if read_fact(folder / MARKER, "procedure") is not None:
            kinds = (PARAMS, IDENTITY, STEPS, SUMMARY, VECTORS, "tables/*.csv", "pictures/*.svg")
            listed = [str(file.relative_to(folder)) for kind in kinds for file in folder.glob(kind)]
        if isinstance(listed, list):
            names = {*listed, MARKER}
        else:  # of a central network, in a folder of fedflow
            names = {file.name for file in folder.glob("*")} - {UNRECORDED}
        for name in sorted(names):
            self.api.log_artifact(self.run_id, str(folder / name), str(Path("results", name).parent))

    def _log_more(self, folder: Path | None) -> None:
        """Log further files and tables, before the final numbers."""

    def _ended(self) -> None:
        """Follow up, when the run has finished."""

    def _log_served(self, served: Sequence[Served], cluster: Sequence[int], card: ModelCard) -> None:
        """Log how the registered models belong together."""

    def _named(self, name: str) -> str:
        """The name of a metric in MLflow."""
        return name

    def _log_json(self, path: str, value: Any) -> None:
        self.api.log_text(self.run_id, json.dumps(value), path)

    def _close(self, status: str) -> None:
        try:
            if self._monitor is not None:
                self._monitor.finish()
            self.store.reach()
            self.api.set_terminated(self.run_id, status)
            if self.parent:
                with self.store.lock("experiments"):
                    _end_parent(self.api, self.writers, self.experiment_id, self.parent)
        finally:
            self._open = False
            self._writer.release()


class RunRecord(Record):
    """The one writer of a federated run, whose steps are rounds."""

    ALWAYS = recorded_name("bytes_down")

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._assignments: dict[int, list[int]] = {}
        self._failures: dict[int, dict[int, str]] = {}

    def round(self, report: "RoundReport") -> None:
        """Record a round."""
        if report.assignment is not None and report.round not in self.recorded:
            self._assignments[report.round] = report.assignment
        if report.failed:
            self._failures[report.round] = dict(report.failed)
        self.row(report.round, report.values | {"seconds": report.seconds, "failed": len(report.failed)})

    def flush(self) -> None:
        """Send the waiting rounds."""
        with reporting(self.store.uri):
            # Assignments first: a round with metrics in MLflow is complete.
            for round in self._waiting:
                if round in self._assignments:
                    self._log_json(f"clusters/round-{round:04d}.json", self._assignments[round])
                    del self._assignments[round]
        super().flush()

    def _log_more(self, folder: Path | None) -> None:
        """Log failures, and ``clients.parquet`` also as a table."""
        if self._failures:
            self._log_json("failures.json", self._failures)
        if folder is not None:
            self._log_table(folder / "clients.parquet")

    def _ended(self) -> None:
        """Update the comparisons of runs; an error is a warning."""
        with self._afterwards("the orders of its curriculum are not drawn"):
            log_orders(self.api, self.run_id)
        if not self.parent:
            with self._afterwards("MLflow's pages do not show it first"):
                show_first(self.api, self.experiment_id, measured([self.api.get_run(self.run_id)]))
        self._compare(self.parent)

    def _compare(self, sweep: str | None) -> None:
        if sweep and self.api.get_run(sweep).info.status == "FINISHED":
            with self._afterwards("its sweep is not compared"):
                log_comparison(self.api, self.experiment_id, sweep)

    @contextlib.contextmanager
    def _afterwards(self, what: str) -> Iterator[None]:
        """Warn of ``what`` on an error. Runs take turns, so that the last one to end finds all others."""
        try:
            with self.store.lock(f"afterwards-{self.experiment_id}"):
                yield
        except Exception as error:
            warnings.warn(f"{self._run.info.run_name}: {what} ({reason(error)})", stacklevel=4)

    def _named(self, name: str) -> str:
        return recorded_name(name)

    def _log_final(self, metrics: Mapping[str, Any], rounds: int) -> None:
        """Log numbers that are not metrics, such as the size of the network, as parameters."""
        constants = {n: v for n, v in _numbers(metrics).items() if metric_of(n) is None and "/" not in n}
        _log_params(self.api, self.run_id, {name: str(value) for name, value in constants.items()})
        super()._log_final({name: v for name, v in metrics.items() if name not in constants}, rounds)

    def _log_served(self, served: Sequence[Served], cluster: Sequence[int], card: ModelCard) -> None:
        """Log the final clusters with the model of each, also as an input that has a digest."""
        if card.serves != "cluster":
            return
        assignment = list(map(int, cluster))
        content = digest(assignment)
        clusters = [
            {
                "cluster": model.name,
                "clients": model.clients,
                "model": model.registered,
                "version": model.version,
            }
            for model in served
        ]
        facts = {"digest": content, "assignment": assignment, "clusters": clusters}
        self._log_json("clusters/clusters.json", facts)
        name = f"{card.partition}.{card.method}.clusters"
        source = f"{self._run.info.artifact_uri}/clusters/clusters.json"
        self._log_inputs([{"name": name, "digest": content, "source": source, "context": "clusters"}])
        lines = [
            f"- {model.name} → `{model.registered}` version {model.version} → clients {clients}"
            for model in served
            for clients in [ranges(model.clients) or "none"]
        ]
        had = self.api.get_run(self.run_id).data.tags.get(NOTE, "")
        note = "\n".join([had, "", f"Clusters `{content}`:", "", *lines]).strip()
        self.api.set_tag(self.run_id, NOTE, note[:TAG_LENGTH])

    def _log_table(self, parquet: Path) -> None:
        """Log the table of clients in a form that MLflow's pages show."""
        present = {file.path for file in self.api.list_artifacts(self.run_id)}
        if parquet.is_file() and "clients.json" not in present:  # MLflow would append to it
            import pandas as pd

            self.api.log_table(self.run_id, pd.read_parquet(parquet), "clients.json")


def described(metrics: Mapping[str, Any], folder: Path) -> str:
    """The description of a finished run in Markdown: headline numbers, and the folder of its results."""
    names = [name for name in headlines(metrics) if metric_of(name) and metrics[name] is not None]
    rows = [f"| {heading(name)} | {printed(name, metrics[name])} |" for name in names]
    table = ["| | |", "|---|---:|", *rows, ""] if rows else []
    of_run = folder.parts[-4:-3] in (("results",), ("runs",))  # `show` finds these by name
    show = f" On a terminal: `fedflow show {'/'.join(folder.parts[-3:])}`." if of_run else ""
    return "\n".join([*table, f"Result files: `{folder}`.{show}"])


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if isinstance(v, Real) and not isinstance(v, bool)}


def _reach_artifacts(api: "MlflowClient", store: Store, experiment: str) -> None:
    """List artifacts that are not files, so that a wrong password or a missing package is an error now.

    Otherwise it would be one after training, when the first artifact is logged.
    """
    location = api.get_experiment(experiment).artifact_location
    if urlsplit(location).scheme not in ("", "file"):
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        get_artifact_repository(location, tracking_uri=store.uri).list_artifacts("none")


def _parent(
    api: "MlflowClient",
    experiment: str,
    sweep: str,
    grid: Mapping[str, Any],
    tags: Mapping[str, str],
    owner: Owner,
) -> str:
    """The owner's running parent run of a sweep, created if necessary, with these ``tags``."""
    if run := next(parents(api, [experiment], sweep, owner), None):
        api.update_run(run.info.run_id, status=RUNNING)
    else:
        note = f"The runs of `{sweep}`; `fedflow report` compares them."
        run = api.create_run(experiment, tags={SWEEP: sweep, NOTE: note} | owner.tags, run_name=sweep)
    _log_start(api, run, {"grid": grid} if grid else {}, tags)
    return run.info.run_id


def _log_start(api: "MlflowClient", run: "Run", params: Mapping[str, Any], tags: Mapping[str, Any]) -> None:
    """Log tags, and parameters that the run does not have yet.

    Parameters in MLflow cannot change, but workers and grids may: changed values are in a tag.
    """
    from mlflow.entities import RunTag

    had, values = run.data, _flat(params)
    _log_params(api, run.info.run_id, {n: value for n, value in values.items() if n not in had.params})
    if changed := {n: value for n, value in values.items() if had.params.get(n, value) != value}:
        tags = {**tags, CHANGED: json.dumps(changed)}
    elif values and CHANGED in had.tags:
        api.delete_tag(run.info.run_id, CHANGED)
    new = [RunTag(name, str(value)[:TAG_LENGTH]) for name, value in tags.items()]
    api.log_batch(run.info.run_id, tags=new)


def _log_params(api: "MlflowClient", run_id: str, values: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    api.log_batch(run_id, params=[Param(name, value) for name, value in values.items()])


def _former(api: "MlflowClient", run: "Run") -> str | None:
    """The sweep that a run belongs to, or None without one, or if it was deleted."""
    from mlflow.exceptions import MlflowException

    parent = run.data.tags.get(PARENT)
    try:
        there = parent and api.get_run(parent).info.lifecycle_stage != "deleted"
    except MlflowException as error:  # it was deleted for good
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        there = False
    return parent if there else None


def _end_parent(api: "MlflowClient", writers: Writers, experiment: str, parent: str) -> None:
    """End a sweep with its last running child; a child that starts later reopens it.

    Children whose process on this machine is gone, as their lock is free, are marked as killed.
    """
    if api.get_run(parent).info.lifecycle_stage == "deleted":
        return
    children = f"{RUNS} and tags.`{PARENT}` = '{parent}' and attributes.status = "

    def was_repeated(run: "Run") -> bool:  # after it was killed on another machine
        again = f"{children}'FINISHED' and tags.`{KEY}` = {quoted(run.data.tags[KEY])}"
        done = api.search_runs([experiment], again, order_by=["attributes.end_time DESC"], max_results=1)
        return bool(done) and done[0].info.end_time > run.info.start_time

    def was_killed(run: "Run") -> bool:  # on this machine, where its lock would be held
        if not writers.owner.may_resume(run):
            return False
        try:
            with writers.lock(run.data.tags[KEY]):
                api.set_terminated(run.info.run_id, "KILLED")
        except Timeout:
            return False
        return True

    running = [*every(api.search_runs, [experiment], f"{children}'{RUNNING}'")]
    if not [run for run in running if not was_killed(run) and not was_repeated(run)]:
        api.set_terminated(parent)


def _source(root: Path, params_file: Path | None, engine: Mapping[str, Any]) -> dict[str, str]:
    """Tags with the version, the parameter file, the command, the machine, the user and the commit of a run.

    ``engine`` are its settings, or all parameters of a record without an engine. MLflow's pages hide the
    commit of a run without a source. Files that `fedflow report` writes into a study do not count as changes.
    """
    program, *arguments = sys.argv or [""]
    tags = {
        "fedflow.version": __version__,
        "mlflow.source.name": shlex.join([Path(program).name, *arguments])[:TAG_LENGTH],
        "mlflow.source.type": "LOCAL",
        "fedflow.processor": processor(engine.get("device", "cpu")),
        "fedflow.lock_sha256": lock_digest(root),
    }
    if params_file is not None and params_file.is_file():
        tags["fedflow.params_sha256"] = hashlib.sha256(params_file.read_bytes()).hexdigest()
    if user := user_name():
        tags["mlflow.user"] = user
    if revision := git(root, "rev-parse", "HEAD"):
        tags["mlflow.source.git.commit"] = revision
        outputs = (f":(top,exclude,glob)**/{name}" for name in (RESULTS, RECORDED, COMPARISONS))
        changed = git(root, "status", "--porcelain", "--untracked-files=no", ":/", *outputs)
        tags["fedflow.git_dirty"] = str(bool(changed)).lower()
    return tags


def git(root: Path, *arguments: str) -> str | None:
    """The output of git, or None without git or outside a repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested values as text by dotted name, within MLflow's limits."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        path = re.sub(r"[^\w./ :-]", "_", f"{prefix}{name}")[:250]
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{path}.")
        else:
            text = json.dumps(value) if isinstance(value, list | tuple) else str(value)
            flat[path] = text if len(text) <= PARAM_LENGTH else text[: PARAM_LENGTH - 1] + "…"
    return flat
