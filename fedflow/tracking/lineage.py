"""Finished runs in MLflow: end, commit, command, clusters and models. Needs no PyTorch."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedflow.tracking.addresses import database, is_server
from fedflow.tracking.pages import experiment_page, model_page, run_page
from fedflow.tracking.shared import (
    KEY,
    RESUMED,
    RUNS,
    TAGS,
    Owner,
    every,
    experiments,
    quoted,
    served_clients,
)
from fedflow.tracking.store import locate, open_store, reporting, tracking_uri

Key = tuple[str, str, str, str]  # partition, method, seed, settings; of procedures: entry, "", seed, settings
NEWEST_FIRST = ["attributes.end_time DESC"]
FINISHED = f"attributes.status = 'FINISHED' and {RUNS}"
ENDS = """
SELECT runs.run_uuid, runs.end_time, tags.key, tags.value FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid
WHERE runs.status = 'FINISHED' AND runs.lifecycle_stage = 'active' ORDER BY runs.end_time DESC
"""


def run_key(facts: Mapping[str, Any]) -> Key | None:
    """The identifying facts of a run or procedure, from its tags or results, or None for anything else."""
    if "procedure" in facts:
        facts = {**facts, "partition": facts["procedure"], "method": ""}
    key = tuple(str(facts[name]) for name in TAGS if facts.get(name) is not None)
    return key if len(key) == len(TAGS) else None  # type: ignore[return-value]


def _tagged(key: Key) -> str:
    """MLflow's filter for the runs of a key."""
    first, method, seed, settings = key
    tags = {"partition": first, "method": method} if method else {"procedure": first}
    tags |= {"seed": seed, "settings": settings}
    return " and ".join(f"tags.`{name}` = {quoted(value)}" for name, value in tags.items())


def ends(root: Path | str = ".") -> dict[Key, float]:
    """The end of the newest finished run of each key, in seconds since 1970.

    A SQLite store is read without MLflow, which takes seconds to import. Empty without a record. Raises
    `FedflowError` if the store cannot be read.
    """
    store = locate(root)
    file = database(store.uri)
    if file is not None and not file.exists():
        return {}
    runs: dict[str, tuple[float | None, dict[str, str]]] = {}
    with reporting(store.uri):
        if file is not None:
            for run_id, ended, name, value in store.query(ENDS):
                runs.setdefault(run_id, (ended, {}))[1][name] = value
        else:
            api = open_store(root).client()
            for run in every(api.search_runs, experiments(api), FINISHED, order_by=NEWEST_FIRST):
                runs[run.info.run_id] = run.info.end_time, run.data.tags
    owner = Owner.here(store, root)
    ended_at: dict[Key, float] = {}
    for ended, tags in sorted(runs.values(), key=lambda run: not owner.has(run[1])):
        if ended is not None and KEY in tags and (key := run_key(tags)):
            ended_at.setdefault(key, ended / 1000)
    return ended_at


def recorded_runs(root: Path | str = ".", only: Key | None = None) -> dict[Key, dict[str, Any]]:
    """Facts on the newest finished run or procedure of each key: ids, end, seconds, commit, lock, models.

    With ``only``, other keys are not read: a store may have thousands of runs. Runs of this project take
    precedence over others in the same store. ``models`` are registered versions ("p.fedavg v3"), ``serves``
    their clients in words, and ``pages`` their addresses. ``served``: whether pages are on a server, and do
    not need ``fedflow ui``. Empty without a record, as in a clone with pulled results.
    """
    if (file := database(tracking_uri(root))) is not None and not file.exists():
        return {}
    store = open_store(root)
    owner = Owner.here(store, root)
    recorded: dict[Key, dict[str, Any]] = {}
    with reporting(store.uri):
        api = store.client()
        among = FINISHED if only is None else f"{FINISHED} and {_tagged(only)}"
        runs = every(api.search_runs, experiments(api), among, order_by=NEWEST_FIRST)
        for run in sorted(runs, key=lambda run: not owner.has(run.data.tags)):
            tags, key = run.data.tags, run_key(run.data.tags)
            if key is None or key in recorded:
                continue
            ended = (run.info.end_time or run.info.start_time) / 1000
            inputs = run.inputs.dataset_inputs if run.inputs else []
            clusters = [data.dataset.digest for data in inputs if data.dataset.name.endswith(".clusters")]
            recorded[key] = {
                "run_id": run.info.run_id,
                "ended": f"{datetime.fromtimestamp(ended, UTC):%Y-%m-%d %H:%M} UTC",
                "end": ended,
                "seconds": ended - run.info.start_time / 1000,
                "resumed": RESUMED in tags,
                "commit": tags.get("mlflow.source.git.commit", "")[:12],
                "changed": tags.get("fedflow.git_dirty") == "true",
                "version": tags.get("fedflow.version", ""),
                "lock": tags.get("fedflow.lock_sha256", "")[:12],
                "processor": tags.get("fedflow.processor", ""),
                "command": tags.get("mlflow.source.name", ""),
                "user": tags.get("mlflow.user", ""),
                "clusters": clusters[-1] if clusters else "",
                "models": [],
                "serves": {},
                "pages": {},
                "page": run_page(store, run.info.experiment_id, run.info.run_id),
                "experiment_page": experiment_page(store, run.info.experiment_id),
                "served": is_server(store.uri),
                "artifacts": run.info.artifact_uri,
            }
        by_id = {facts["run_id"]: facts for facts in recorded.values()}
        of_run = f"run_id = '{next(iter(by_id))}'" if only and by_id else None
        for version in every(api.search_model_versions, of_run):
            if version.run_id in by_id:
                facts, name = by_id[version.run_id], f"{version.name} v{version.version}"
                facts["models"].append(name)
                facts["serves"][name] = served_clients(version.description or "")
                facts["pages"][name] = model_page(store, version.name, version.version)
    for facts in recorded.values():
        facts["models"].sort()
    return recorded
