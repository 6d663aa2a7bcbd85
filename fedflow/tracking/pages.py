"""Addresses of MLflow's pages, and the columns that they show."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fedflow.metrics.table import METRICS, YARDSTICKS, recorded_name
from fedflow.tracking.addresses import is_server
from fedflow.tracking.shared import FEDERATED, every
from fedflow.tracking.store import PORT, Store, open_store, reporting

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

VIEW = "fedflow"
QUERY = "workflowType=machine_learning"  # otherwise the pages are those about traces of language models
TAG = f"mlflow.sharedViewState.{VIEW}"  # of an experiment: a view of its runs, in the words of MLflow's pages


def runs_pages(root: Path | str = ".", port: int = PORT) -> dict[str, str]:
    """The address of the runs of every experiment in these pages, by name.

    The experiment of the newest federated run comes first, then the others, last changed first.
    """
    store = open_store(root)
    with reporting(store.uri):
        api = store.client()
        found = list(every(api.search_experiments, order_by=["last_update_time DESC"]))
        ids, order = [each.experiment_id for each in found], ["attributes.start_time DESC"]
        newest = [run.info.experiment_id for run in api.search_runs(ids, FEDERATED, 1, 1, order)]
    found.sort(key=lambda each: each.experiment_id not in newest)
    server = f"http://127.0.0.1:{port}/"
    return {each.name: server + runs_page(each) for each in found if each.name != "Default"}


def runs_page(experiment: "Experiment") -> str:
    """The address of an experiment's runs on a server, with the view of `show_first` if there is one."""
    view = f"&viewStateShareKey={VIEW}" if TAG in experiment.tags else ""
    return f"#/experiments/{experiment.experiment_id}/runs?{QUERY}{view}"


def address(store: Store) -> str:
    """Of the pages of ``store``: the server that it is, else where ``fedflow ui`` shows it."""
    if not is_served(store):
        return f"http://127.0.0.1:{PORT}"
    given = urlsplit(store.uri.rstrip("/"))
    return given._replace(netloc=given.netloc.rpartition("@")[2]).geturl()  # without a password


def is_served(store: Store) -> bool:
    """Whether ``store`` is a server, whose pages are always there."""
    return is_server(store.uri)


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
    """Let `runs_page` show the metrics ``names`` by method and seed, the best run first."""
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
