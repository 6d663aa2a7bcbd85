"""When recorded runs ended, and what identifies them, for commands that need neither MLflow nor PyTorch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedflow.tracking.addresses import database
from fedflow.tracking.shared import FEDERATED, KEY, Owner, every, experiments
from fedflow.tracking.store import locate, open_store, reporting

Key = tuple[str, str, str, str]  # partition, method, seed, settings
TAGS = ("partition", "method", "seed", "settings")
NEWEST_FIRST = ["attributes.end_time DESC"]
FINISHED = f"attributes.status = 'FINISHED' and {FEDERATED}"
ENDS = """
SELECT runs.run_uuid, runs.end_time, tags.key, tags.value FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid
WHERE runs.status = 'FINISHED' AND runs.lifecycle_stage = 'active' ORDER BY runs.end_time DESC
"""


def run_key(facts: Mapping[str, Any]) -> Key | None:
    """The identifying facts of a run, from its tags or its results, or None for anything else."""
    found = tuple(str(facts[name]) for name in TAGS if facts.get(name) is not None)
    return found if len(found) == len(TAGS) else None  # type: ignore[return-value]


def ends(root: Path | str = ".") -> dict[Key, float]:
    """When the newest finished run of each key ended, in seconds since 1970.

    A SQLite store is read without MLflow, which takes seconds to import. Empty without a record. Raises
    `FedflowError` if the store cannot be read.
    """
    store = locate(root)
    file = database(store.uri)
    if file is not None and not file.exists():
        return {}
    found: dict[str, tuple[float | None, dict[str, str]]] = {}
    with reporting(store.uri):
        if file is not None:
            for run_id, ended, name, value in store.query(ENDS):
                found.setdefault(run_id, (ended, {}))[1][name] = value
        else:
            api = open_store(root).client()
            for run in every(api.search_runs, experiments(api), FINISHED, order_by=NEWEST_FIRST):
                found[run.info.run_id] = run.info.end_time, run.data.tags
    owner = Owner.here(store, root)
    ended_at: dict[Key, float] = {}
    for ended, tags in sorted(found.values(), key=lambda each: not owner.has(each[1])):
        if ended is not None and KEY in tags and (key := run_key(tags)):
            ended_at.setdefault(key, ended / 1000)
    return ended_at
