"""Where finished runs are in the record, and what became of them: commit, command, clusters, models."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedflow.tracking.addresses import database
from fedflow.tracking.ends import FINISHED, NEWEST_FIRST, Key, run_key
from fedflow.tracking.models import served_clients
from fedflow.tracking.pages import experiment_page, is_served, model_page, run_page
from fedflow.tracking.shared import Owner, every, experiments
from fedflow.tracking.store import open_store, reporting, tracking_uri


def recorded_runs(root: Path | str = ".") -> dict[Key, dict[str, Any]]:
    """The newest finished run of each key: MLflow's numbers, when, from which commit, by whom, its models.

    Runs of this project come before those of others in the same store. ``models`` are registered versions
    ("p.fedavg v3"), ``serves`` are their clients in words and ``pages`` their addresses. ``served``: whether
    pages are on a server, and do not need ``fedflow ui``. Empty for a project without a record, whose
    results were pulled.
    """
    if (file := database(tracking_uri(root))) is not None and not file.exists():
        return {}
    store = open_store(root)
    owner = Owner.here(store, root)
    found: dict[Key, dict[str, Any]] = {}
    with reporting(store.uri):
        api = store.client()
        runs = every(api.search_runs, experiments(api), FINISHED, order_by=NEWEST_FIRST)
        for run in sorted(runs, key=lambda run: not owner.has(run.data.tags)):
            tags, key = run.data.tags, run_key(run.data.tags)
            if key is None or key in found:
                continue
            ended = (run.info.end_time or run.info.start_time) / 1000
            inputs = run.inputs.dataset_inputs if run.inputs else []
            clusters = [each.dataset.digest for each in inputs if each.dataset.name.endswith(".clusters")]
            found[key] = {
                "run_id": run.info.run_id,
                "experiment_id": run.info.experiment_id,
                "ended": f"{datetime.fromtimestamp(ended, UTC):%Y-%m-%d %H:%M} UTC",
                "end": ended,
                "commit": tags.get("mlflow.source.git.commit", "")[:12],
                "changed": tags.get("fedflow.git_dirty") == "true",
                "version": tags.get("fedflow.version", ""),
                "command": tags.get("mlflow.source.name", ""),
                "user": tags.get("mlflow.user", ""),
                "clusters": clusters[-1] if clusters else "",
                "models": [],
                "serves": {},
                "pages": {},
                "page": run_page(store, run.info.experiment_id, run.info.run_id),
                "experiment_page": experiment_page(store, run.info.experiment_id),
                "served": is_served(store),
                "artifacts": run.info.artifact_uri,
            }
        by_id = {facts["run_id"]: facts for facts in found.values()}
        for version in every(api.search_model_versions):
            if version.run_id in by_id:
                facts, name = by_id[version.run_id], f"{version.name} v{version.version}"
                facts["models"].append(name)
                facts["serves"][name] = served_clients(version.description or "")
                facts["pages"][name] = model_page(store, version.name, version.version)
    for facts in found.values():
        facts["models"].sort()
    return found
