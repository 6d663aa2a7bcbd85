"""MLflow stores that others use too: objects that fedflow has made there, and runs of this project."""

import getpass
import math
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedflow.errors import FedflowError
from fedflow.project.terminal import say
from fedflow.tracking.addresses import absolute

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from fedflow.tracking.store import Store

T = TypeVar("T")

ATTEMPTS = 3
KEY, SWEEP = "fedflow.key", "fedflow.sweep"  # tags of every run, and of every parent run
RESUMED = "fedflow.resumed"  # tag of a resumed run: how many times
MADE = "fedflow.made"  # tag of experiments and registered models that fedflow has created
SERVES = ", serves "  # in the description of a registered version, before its clients
RUNS = f"tags.`{KEY}` LIKE '%'"  # filters
FEDERATED = f"{RUNS} and tags.method LIKE '%'"
TAGS = ("partition", "method", "seed", "settings")  # of a federated run
RUNNING = "RUNNING"
INSIDE = "."
USER, HOST, PROCESS, PROJECT = (f"fedflow.{name}" for name in ("user", "host", "process", "project"))  # tags


@dataclass(frozen=True)
class Owner:
    """A user on a machine, in a project, who records runs."""

    user: str
    host: str
    project: str  # its folder, or `INSIDE` for the project that the store is in

    @classmethod
    def here(cls, store: "Store", root: Path | str) -> "Owner":
        folder = absolute(root)
        inside = store.folder.is_relative_to(folder) and store.is_file
        return cls(user_name() or str(os.getuid()), socket.gethostname(), INSIDE if inside else str(folder))

    @property
    def tags(self) -> dict[str, str]:
        """The tags of a run of this process."""
        return {USER: self.user, HOST: self.host, PROJECT: self.project, PROCESS: str(os.getpid())}

    def has(self, tags: Mapping[str, str]) -> bool:
        """True for the tags of a run that this user started in this project."""
        return (tags.get(USER), tags.get(PROJECT)) == (self.user, self.project)

    def keeps(self, tags: Mapping[str, str]) -> bool:
        """True for a run of this project, also by another user in the store inside of it (after a copy)."""
        return self.has(tags) or self.project == INSIDE == tags.get(PROJECT, INSIDE)

    def may_resume(self, run: "Run") -> bool:
        """True if no other process can be recording this run, whose lock in the project is held.

        The lock excludes this machine only: a run that another one has not ended may still be running there.
        """
        tags = run.data.tags
        return self.has(tags) and (run.info.status != RUNNING or tags.get(HOST) == self.host)


def user_name() -> str:
    """The name of this user; empty for a user id without one, as in containers."""
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return ""


def every(search: Callable[..., Any], *given: Any, **named: Any) -> Iterator[Any]:
    """All results of a search of MLflow's client, which returns them in pages."""
    token = None
    while True:
        page = search(*given, **named, page_token=token)
        yield from page
        if not (token := page.token):
            return


def experiments(api: "MlflowClient") -> list[str]:
    """The ids of all experiments."""
    return [experiment.experiment_id for experiment in every(api.search_experiments)]


def again(action: Callable[[], T]) -> T:
    """The result of ``action``, repeated if another process writes between its reading and writing."""
    from mlflow.exceptions import MlflowException

    for _ in range(ATTEMPTS - 1):
        with suppress(MlflowException):
            return action()
        time.sleep(random.uniform(0, 0.5))
    return action()


def names(name: str, mark: str) -> tuple[str, str]:
    """The name of an experiment or model, and its replacement where others use the name."""
    return name, f"fedflow{mark}{name}"


def experiment_id(api: "MlflowClient", store: "Store", name: str) -> str:
    """The id of the experiment ``name``; created or restored if necessary.

    An experiment that fedflow has not made is left alone, and the experiment ``fedflow/<name>`` is used.
    """
    from mlflow.exceptions import MlflowException

    for candidate in names(name, "/"):
        existing = api.get_experiment_by_name(candidate)
        if existing is None:
            try:
                return api.create_experiment(candidate, store.artifacts(candidate), {MADE: "experiment"})
            except MlflowException:
                existing = api.get_experiment_by_name(candidate)  # another process may have just made it
                if existing is None:
                    raise
        if MADE in existing.tags:
            if existing.lifecycle_stage == "deleted":
                api.restore_experiment(existing.experiment_id)
            return existing.experiment_id
        say(f"experiment {candidate!r} in MLflow was not made by fedflow and is left alone")
    raise FedflowError(f"MLflow has other experiments named {' and '.join(map(repr, names(name, '/')))}")


def registered_model(api: "MlflowClient", name: str) -> str:
    """The name of the registered model ``name``, created if necessary.

    A model that fedflow has not made is left alone, and ``fedflow.<name>`` is used.
    """
    from mlflow.exceptions import MlflowException

    for candidate in names(name, "."):
        try:
            api.create_registered_model(candidate, {MADE: "model"})
            return candidate
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        if MADE in api.get_registered_model(candidate).tags:
            return candidate
        say(f"registered model {candidate!r} in MLflow was not made by fedflow and is left alone")
    raise FedflowError(
        f"MLflow has other registered models named {' and '.join(map(repr, names(name, '.')))}"
    )


def parents(api: "MlflowClient", ids: list[str], sweep: str, owner: Owner) -> Iterator["Run"]:
    """The parent runs of a sweep that ``owner`` has started."""
    return (run for run in all_parents(api, ids, sweep) if owner.has(run.data.tags))


def all_parents(api: "MlflowClient", ids: list[str], sweep: str) -> Iterator["Run"]:
    """The parent runs of sweeps with this name, of any user and project."""
    return every(api.search_runs, ids, f"tags.`{SWEEP}` = {quoted(sweep)}")


def user_of(tags: Mapping[str, str]) -> str:
    """The user who started the run with these tags."""
    return tags.get(USER) or tags.get("mlflow.user") or "somebody"


def unfinished(api: "MlflowClient", experiment: str, key: str, owner: Owner, finished: bool) -> "Run | None":
    """The last unfinished run of the key that ``owner`` may resume; with ``finished``, of any status.

    If only others have an unfinished one, a line names its owner.
    """
    query = f"tags.`{KEY}` = {quoted(key)}" + ("" if finished else " and attributes.status != 'FINISHED'")
    others = None
    for run in every(api.search_runs, [experiment], query, order_by=["attributes.start_time DESC"]):
        if owner.may_resume(run):
            return run
        others = others or (run if run.info.status != "FINISHED" else None)
    if others:
        tags = others.data.tags
        machine = f" on {tags[HOST]}" if HOST in tags else ""
        say(
            f"{others.info.run_name}: {user_of(tags)}{machine} has an unfinished run of these settings "
            f"({others.info.run_id}); this is recorded as a new run"
        )
    return None


def quoted(text: str) -> str:
    """Text for MLflow's filters, which have no escapes."""
    return f'"{text}"' if "'" in text else f"'{text}'"


def number(tags: Mapping[str, str], name: str) -> float | None:
    """The finite number in a tag, or None without one: others may edit tags."""
    try:
        value = float(tags[name])
    except (KeyError, ValueError):
        return None
    return value if math.isfinite(value) else None


def served_clients(description: str) -> str:
    """The clients of a registered version, from its description: "clients 0-9", or empty."""
    return description.partition(SERVES)[2]
