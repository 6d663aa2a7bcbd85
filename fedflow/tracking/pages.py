"""Addresses of MLflow's pages, and the columns that they show."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedflow.metrics.table import METRICS, YARDSTICKS, recorded_name
from fedflow.tracking.addresses import is_server, server_address
from fedflow.tracking.shared import FEDERATED, every
from fedflow.tracking.store import PORT, Store, open_store, reporting

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

VIEW = "fedflow"
QUERY = "workflowType=machine_learning"  # otherwise MLflow shows pages on traces of language models
TAG = f"mlflow.sharedViewState.{VIEW}"  # of an experiment: a view of its runs, as MLflow's pages encode it


def runs_pages(root: Path | str = ".", port: int = PORT) -> dict[str, str]:
    """The address of the runs of every experiment on a local server, by name.

    The experiment of the newest federated run comes first, then the others, last changed first.
    """
    store = open_store(root)
    with reporting(store.uri):
        api = store.client()
        experiments = list(every(api.search_experiments, order_by=["last_update_time DESC"]))
        ids, order = [experiment.experiment_id for experiment in experiments], ["attributes.start_time DESC"]
        newest = [run.info.experiment_id for run in api.search_runs(ids, FEDERATED, 1, 1, order)]
    experiments.sort(key=lambda experiment: experiment.experiment_id not in newest)
    server = f"http://127.0.0.1:{port}/"
    return {item.name: server + _runs_page(item) for item in experiments if item.name != "Default"}


def _runs_page(experiment: "Experiment") -> str:
    """The path to an experiment's runs, with the view of `show_first` if there is one."""
    view = f"&viewStateShareKey={VIEW}" if TAG in experiment.tags else ""
    return f"#/experiments/{experiment.experiment_id}/runs?{QUERY}{view}"


def address(store: Store) -> str:
    """The address of the pages of ``store``: the server itself, or the one of ``fedflow ui``."""
    if not is_server(store.uri):
        return f"http://127.0.0.1:{PORT}"
    return server_address(store.uri)


def run_page(store: Store, experiment: str, run: str) -> str:
    """The page of a run."""
    return f"{address(store)}/#/experiments/{experiment}/runs/{run}?{QUERY}"


def experiment_page(store: Store, experiment: str) -> str:
    """The page of the runs of an experiment."""
    return f"{address(store)}/#/experiments/{experiment}/runs?{QUERY}"


def model_page(store: Store, name: str, version: int | str) -> str:
    """The page of a version of a registered model."""
    return f"{address(store)}/#/models/{name}/versions/{version}"


def show_first(api: "MlflowClient", experiment: str, names: Sequence[str]) -> None:
    """Let the page of an experiment show the metrics ``names`` by method and seed, the best run first."""
    view: dict[str, Any] = {
        "selectedColumns": [
            *("tags.`method`", "tags.`seed`"),
            *(f"metrics.`{recorded_name(name)}`" for name in names),
            "attributes.`Created`",
        ]
    }
    if order := next((name for name in YARDSTICKS if name in names), None):
        view["orderByKey"] = f"metrics.`{recorded_name(order)}`"
        view["orderByAsc"] = METRICS[order].better == "lower"
    if (tag := json.dumps(view)) != api.get_experiment(experiment).tags.get(TAG):
        api.set_experiment_tag(experiment, TAG, tag)
