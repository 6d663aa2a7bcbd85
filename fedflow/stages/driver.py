"""Runs one experiment of any kind to its end: lock, record, steps, files, pictures, models.

A run steps by rounds, a procedure and a central network by steps of their parts (`fedflow.stages.steps`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from fedflow.errors import FedflowError
from fedflow.files import locked, make_writable, read_fact
from fedflow.project.identity import FILE, Identity
from fedflow.project.terminal import say
from fedflow.tracking.models import ModelCard
from fedflow.tracking.record import Record, open_record

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
R = TypeVar("R", bound=Record)

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
    ``record`` are further arguments of `open_record`.
    """

    title: str
    root: Path
    folder: Path
    identity: Identity
    key: str
    lock: str | None
    record: dict[str, Any]


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
    Raises `FedflowError`, also if the experiment is already running.
    """
    torch.set_num_threads(1)
    root, folder, key = described.root, described.folder, described.key
    make_writable(folder)

    def busy() -> None:
        raise FedflowError(f"{described.title} is already running in another process")

    name = described.lock
    with nullcontext() if name is None else locked(root / ".fedflow" / "locks" / key, busy, name):
        usual = {"key": key, "params_file": root / "params.yaml", "resumes": work.resumes}
        record = open_record(kind, root, **{**usual, **described.record})
        with record:
            begun(record)
            for done in blocks(work.steps()):
                step(record, done)
                for listener in listeners:
                    listener(done, work.total)
            result = work.result()
            unrecorded = _unrecorded(root, described.identity)
            unrecorded.parent.mkdir(parents=True, exist_ok=True)
            unrecorded.touch()
            result.write(folder)
            with TemporaryDirectory() as temporary:
                for target, files in result.pictures(Path(temporary)):
                    record.attach(files, target)
            record.end(result.metrics, result.steps, folder, result.card, result.models, result.clusters)
        unrecorded.unlink()
        work.forget()
    return result


def check_replaced(folder: Path, facts: Mapping[str, Any], named: bool) -> None:
    """Refuse to replace results of another run in a folder that the user named; otherwise say so.

    ``facts`` in ``metrics.json`` identify the run.
    """
    file = folder / "metrics.json"
    differs = [name for name in facts if file.exists() and read_fact(file, name) != facts[name]]
    if differs and named:
        raise FedflowError(
            f"{folder} holds results of another run (other {', '.join(differs)}): "
            "name another folder with --out, or delete this one"
        )
    if differs:
        say(f"{folder}: replacing results of another run (other {', '.join(differs)})")


def outdated(root: Path, folder: Path, now: Identity) -> list[str]:
    """Reasons why a folder does not hold the finished results of the identity ``now``, if there are any.

    An input file that is gone counts as unchanged, as it cannot be read again.
    """
    made, metrics = Identity.read(folder), folder / "metrics.json"
    files = [metrics, *(folder / name for name in read_fact(metrics, "files") or ())]
    if not all(file.is_file() for file in files):
        return ["missing"]
    if made is None:
        return [f"no valid {FILE}"]
    gone = [name for name, content in now.inputs.items() if name.startswith("file ") and not content]
    unchanged = {name: made.inputs.get(name, "") for name in gone}
    if differences := made.differences(replace(now, inputs={**now.inputs, **unchanged})):
        return differences
    return ["killed before its record ended"] if _unrecorded(root, now).exists() else []


def _unrecorded(root: Path, identity: Identity) -> Path:
    """A file that exists from before results are written until they are recorded."""
    return root / ".fedflow" / "unrecorded" / identity.key
