"""Runs one experiment of any kind to its end: lock, record, steps, files, pictures, models.

A run steps by rounds, a procedure and a central network by steps of their parts (`fedflow.stages.steps`).
"""

import json
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from fedflow.errors import FedflowError, reason
from fedflow.files import PARTIAL, locked, make_writable
from fedflow.project.digest import digest
from fedflow.project.identity import FILE, UNRECORDED, Identity
from fedflow.project.running import LOCKS
from fedflow.project.terminal import say
from fedflow.tracking.models import ModelCard
from fedflow.tracking.record import Record, open_record

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
R = TypeVar("R", bound=Record)

METRICS = "metrics.json"
WRITTEN = ("*.json", "*.csv", "*.parquet", "*.safetensors", "tables/*.csv", "pictures/*.svg")  # by runs
MOVES = 5.0  # seconds within which a sweep has moved a folder of results

Pictures = Callable[[Path], Iterable[tuple[str, Iterable[Path]]]]  # made in a folder; by folder of the record


@dataclass
class Result:
    """The end of an experiment after its ``steps``: numbers, files, pictures and models.

    ``write`` makes the files in the folder of results. ``card`` describes how to rebuild the ``models``;
    ``clusters`` has the cluster of every client, if there are clients.
    """

    metrics: Mapping[str, Any]
    steps: int
    write: Callable[[Path], object]
    pictures: Pictures = lambda folder: ()
    models: Mapping[int, Tensor] = field(default_factory=dict)
    card: ModelCard | None = None
    clusters: Sequence[int] = ()


class Work(Protocol[S_co]):
    """An experiment that was opened."""

    @property
    def resumes(self) -> bool:
        """True if there is a checkpoint."""

    @property
    def total(self) -> int:
        """The number of all steps."""

    def steps(self) -> Iterator[S_co]:
        """Every step, from the checkpoint if there is one; earlier steps are repeated."""

    def result(self) -> Result:
        """The result, after the last step."""

    def forget(self) -> None:
        """Delete the checkpoint, after the end is recorded."""


@dataclass(frozen=True)
class Description:
    """The names of an experiment, and the folder of its results.

    ``identity`` decides the results; ``key`` also depends on this machine, and names the lock and the MLflow
    run. ``lock`` names the experiment for others that find it locked, or is None if it is locked already.
    ``record`` are further arguments of `open_record`. ``facts`` and ``named`` are as for `check_replaced`.
    """

    title: str
    root: Path
    folder: Path
    identity: Identity
    key: str
    lock: str | None
    record: dict[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    named: bool = False


def drive(
    described: Description,
    work: Work[S],
    kind: type[R],
    step: Callable[[R, S], object],
    listeners: Sequence[Callable[[S, int], object]] = (),
    begun: Callable[[R], object] = lambda record: None,
    blocks: Callable[[Iterator[S]], Iterator[S]] = iter,
) -> Result:
    """Do all steps of an experiment, write its files and record it; returns the result.

    ``step`` records one; ``listeners`` are called after it, with the number of all steps. ``begun`` is called
    with the record before the first step. ``blocks`` iterates over the steps, for example in Prefect tasks.
    An error in a picture is a warning; the checkpoint then stays, so that `--again` only draws.
    Raises `FedflowError`, also if the experiment is already running, or another one with the same folder.
    """
    torch.set_num_threads(1)
    root, folder, key = described.root, described.folder, described.key
    make_writable(folder)
    with _alone(described):
        usual = {"key": key, "params_file": root / "params.yaml", "resumes": work.resumes}
        record = open_record(kind, root, **{**usual, **described.record})
        with record:
            begun(record)
            for done in blocks(work.steps()):
                step(record, done)
                for listener in listeners:
                    listener(done, work.total)
            result = work.result()
            unrecorded = _write(result, folder)
            with TemporaryDirectory() as temporary:
                undrawn: list[Exception] = []
                for target, files in _drawn(result.pictures(Path(temporary)), undrawn):
                    record.attach(files, target)
            if undrawn:
                lacks = f"pictures are missing ({type(undrawn[0]).__name__}: {reason(undrawn[0])})"
                record.lack(lacks)
                warnings.warn(f"{described.title}: {lacks}; --again draws these only", stacklevel=2)
            record.end(result.metrics, result.steps, folder, result.card, result.models, result.clusters)
        unrecorded.unlink()
        if not undrawn:
            work.forget()
    return result


def _write(result: Result, folder: Path) -> Path:
    """Write the files of a result; returns the file that marks them as unrecorded."""
    folder.mkdir(parents=True, exist_ok=True)  # it may be gone since the start
    unrecorded = folder / UNRECORDED
    earlier = unrecorded.exists()
    unrecorded.touch()
    try:
        result.write(folder)
    except BaseException as error:
        untouched = isinstance(error, FedflowError) or not (folder / METRICS).exists()
        if untouched and not earlier:  # the folder has no unrecorded results
            unrecorded.unlink()
        raise
    return unrecorded


def _drawn(
    pictures: Iterable[tuple[str, Iterable[Path]]], undrawn: list[Exception]
) -> Iterator[tuple[str, Iterable[Path]]]:
    """The pictures up to an error, which is added to ``undrawn``: the results are complete without them."""
    try:
        yield from pictures
    except Exception as error:
        undrawn.append(error)


class Busy(FedflowError):
    """Another process computes the same experiment."""


@contextmanager
def _alone(described: Description) -> Iterator[None]:
    """Hold the locks of an experiment and of its folder, unless it is locked already."""
    if described.lock is None:
        yield
        return
    folder, root = described.folder, described.root

    def busy() -> None:
        raise Busy(f"{described.title} is already running in another process")

    def taken() -> None:  # by a sweep that moves the folder, which takes a moment, or by a run
        with suppress(Timeout), FileLock(_lock_of(folder, root), timeout=MOVES):
            return
        raise FedflowError(f"{folder} is in use by another run; choose another folder")

    run = root / LOCKS / described.key
    with locked(run, busy, described.lock), locked(_lock_of(folder, root), taken):
        check_replaced(folder, described.facts, described.named)
        yield


def _lock_of(folder: Path, root: Path) -> Path:
    return root / LOCKS / f"folder-{digest(str(folder.resolve()))}"


@contextmanager
def unused(folder: Path, root: Path) -> Iterator[bool]:
    """Keep runs out of a folder of results; False if a run is computing them."""
    lock = FileLock(_lock_of(folder, root))
    with suppress(Timeout):
        lock.acquire(timeout=0)
    try:
        yield lock.is_locked
    finally:
        lock.release()


def check_replaced(folder: Path, facts: Mapping[str, Any], named: bool) -> None:
    """Refuse to replace results of another run in a folder that the user named; otherwise say so.

    ``facts`` in ``metrics.json`` identify the run. Files of the user in such a folder are refused too.
    """
    earlier = _metrics(folder)
    differs = [name for name in facts if earlier is not None and earlier.get(name) != facts[name]]
    if differs and named:
        raise FedflowError(
            f"{folder} holds results of another run (other {', '.join(differs)}): "
            "name another folder with --out, or delete this one"
        )
    if named and (others := _of_the_user(folder)):
        raise FedflowError(
            f"{folder} holds files that no run has written, such as {others[0]}: "
            "name another folder with --out, or move them"
        )
    if differs:
        say(f"{folder}: replacing results of another run (other {', '.join(differs)})")


def _of_the_user(folder: Path) -> list[str]:
    """Files that a run may replace, in a folder to which no run has written, not even a killed one."""
    if _metrics(folder) is not None or (folder / PARTIAL).exists() or Identity.read(folder):
        return []
    return sorted(str(file.relative_to(folder)) for kind in WRITTEN for file in folder.glob(kind))


def _metrics(folder: Path) -> dict[str, Any] | None:
    """The content of ``metrics.json``, or None if it is missing or damaged."""
    try:
        metrics = json.loads((folder / METRICS).read_text())
    except (OSError, ValueError):
        return None
    whole = isinstance(metrics, dict) and isinstance(metrics.get("files", []), list | dict)
    return metrics if whole else None


def outdated(folder: Path, now: Identity, unsure: Collection[str] = ()) -> list[str]:
    """Reasons why a folder does not hold the finished results of the identity ``now``, if there are any.

    ``unsure`` inputs, which may yet change, count as unchanged, as does an input file that is gone.
    """
    made, metrics = Identity.read(folder), _metrics(folder)
    if metrics is None:
        return ["metrics.json is damaged" if (folder / METRICS).is_file() else "missing"]
    if not all((folder / name).is_file() for name in metrics.get("files", ())):
        return ["missing"]
    if made is None:
        return [f"no valid {FILE}"]
    kept = [n for n, made_of in now.inputs.items() if n in unsure or (n.startswith("file ") and not made_of)]
    unchanged = {name: made.inputs.get(name, "") for name in kept}
    if differences := made.differences(replace(now, inputs={**now.inputs, **unchanged})):
        return differences
    return ["killed before its record ended"] if (folder / UNRECORDED).exists() else []
