"""Where finished runs are in the record, and what became of them: commit, command, clusters, models."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedflow.tracking.addresses import database
from fedflow.tracking.models import served_clients
from fedflow.tracking.opening import experiment_page, is_served, model_page, run_page
from fedflow.tracking.orders import MOST
from fedflow.tracking.store import open_store, reporting, tracking_uri

Key = tuple[str, str, str, str]  # partition, method, seed, settings


def recorded_runs(root: Path | str = ".") -> dict[Key, dict[str, Any]]:
    """The newest finished run of each key: MLflow's numbers, when, from which commit, by whom, its models.

    ``models`` are registered versions ("p.fedavg v3"), ``serves`` are their clients in words and ``pages``
    their addresses. ``served``: whether pages are on a server, and do not need ``fedflow ui``. Empty for a
    project without a record, whose results were pulled.
    """
    if (file := database(tracking_uri(root))) is not None and not file.exists():
        return {}
    store = open_store(root)
    found: dict[Key, dict[str, Any]] = {}
    with reporting(store.uri):
        api = store.client()
        experiments = [each.experiment_id for each in api.search_experiments()]
        finished = "attributes.status = 'FINISHED' and tags.method LIKE '%'"
        for run in api.search_runs(
            experiments, finished, max_results=MOST, order_by=["attributes.end_time DESC"]
        ):
            tags = run.data.tags
            key = (tags["partition"], tags["method"], tags["seed"], tags["settings"])
            if key in found:
                continue
            inputs = run.inputs.dataset_inputs if run.inputs else []
            clusters = [each.dataset.digest for each in inputs if each.dataset.name.endswith(".clusters")]
            ended = datetime.fromtimestamp((run.info.end_time or 0) / 1000, UTC)
            found[key] = {
                "run_id": run.info.run_id,
                "experiment_id": run.info.experiment_id,
                "ended": f"{ended:%Y-%m-%d %H:%M} UTC",
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
        for version in api.search_model_versions(max_results=10 * MOST):
            if version.run_id in by_id:
                facts, name = by_id[version.run_id], f"{version.name} v{version.version}"
                facts["models"].append(name)
                facts["serves"][name] = served_clients(version.description or "")
                facts["pages"][name] = model_page(store, version.name, version.version)
    for facts in found.values():
        facts["models"].sort()
    return found
