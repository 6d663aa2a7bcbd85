"""MLflow's pages, opened on the newest federated runs in place of a page about language models.

MLflow finds `pages` through the entry point ``mlflow.app`` of this package; `ui_command` asks for it.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fedflow.metrics.table import METRICS, YARDSTICKS, recorded_name
from fedflow.tracking.addresses import is_server
from fedflow.tracking.shared import FEDERATED, every
from fedflow.tracking.store import PORT, Store, open_store, reporting

if TYPE_CHECKING:
    from fastapi import FastAPI
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

VIEW = "fedflow"
QUERY = "workflowType=machine_learning"  # otherwise the pages are those about traces of language models
TAG = f"mlflow.sharedViewState.{VIEW}"  # of an experiment: a view of its runs, in the words of MLflow's pages

# The pages read the address after "#" only in the browser. The chat with an assistant opens itself once.
SCRIPT = """<script>
if (!location.hash) location.replace({address});
const chat = "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1";
if (!localStorage.getItem(chat)) localStorage.setItem(chat, "true");
</script>"""


def pages() -> "FastAPI":
    """MLflow's app, its checks included, whose first page opens on `first_page`."""
    from mlflow.server import app
    from mlflow.server.constants import BACKEND_STORE_URI_ENV_VAR
    from mlflow.server.fastapi_app import create_fastapi_app
    from starlette.requests import Request
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    def front(_: Request) -> HTMLResponse:
        page = (Path(str(app.static_folder)) / "index.html").read_text()
        address = first_page(Store(os.environ[BACKEND_STORE_URI_ENV_VAR], Path()).client())
        script = SCRIPT.format(address=json.dumps(address)) if address else ""
        return HTMLResponse(
            page.replace("<head>", f"<head>{script}", 1), headers={"Cache-Control": "no-store"}
        )

    served = create_fastapi_app()
    served.router.routes.insert(0, Route("/", front))
    return served


def runs_pages(root: Path | str = ".", port: int = PORT) -> dict[str, str]:
    """The address of the runs of every experiment in these pages, by name, the newest first."""
    store = open_store(root)
    with reporting(store.uri):
        found = list(every(store.client().search_experiments, order_by=["last_update_time DESC"]))
    server = f"http://127.0.0.1:{port}/"
    return {each.name: server + runs_page(each) for each in found if each.name != "Default"}


def first_page(api: "MlflowClient") -> str | None:
    """The page of the newest federated run's experiment, else of the newest run's; None without runs."""
    found = {each.experiment_id: each for each in every(api.search_experiments)}
    for among in (FEDERATED, ""):
        newest = api.search_runs([*found], among, max_results=1, order_by=["attributes.start_time DESC"])
        for run in newest:
            return runs_page(found[run.info.experiment_id])
    return None


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
