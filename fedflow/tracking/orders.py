"""Pictures of several runs in MLflow: what the orders of a data curriculum reach, by round."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run

OWN = ("seed", "engine.")  # parameters, or prefixes of them, in which compared runs may differ
PARENT = "mlflow.parentRunId"
MOST = 1000  # of the newest runs of a method, those that are compared


def log_orders(api: "MlflowClient", run_id: str) -> None:
    """Draw all finished runs that differ from this one in the order of the data curriculum and the seed.

    The pictures are artifacts of the sweep that the run belongs to, else of the run: ``orders/`` has a folder
    for each score and pacing. They are drawn again with every run, until all orders are there.
    """
    run = api.get_run(run_id)
    parent, method = run.data.tags.get(PARENT), run.data.params.get("method.name")
    among = f"params.`method.name` = '{method}' and attributes.status = 'FINISHED'"
    among += f" and tags.`{PARENT}` = '{parent}'" if parent else ""
    ordered = f"{among} and params.`training.curriculum.order` LIKE '%'"
    experiment = [run.info.experiment_id]
    if not api.search_runs(experiment, ordered, max_results=1):
        return
    from fedflow.pictures.curriculum import (  # imports matplotlib, which is slow
        COLUMNS,
        Line,
        alike,
        by_order,
    )

    runs = api.search_runs(experiment, among, max_results=MOST, order_by=["attributes.start_time DESC"])
    settings = [{n: v for n, v in found.data.params.items() if not n.startswith(OWN)} for found in runs]
    for orders in alike(settings):
        if run_id not in {runs[place].info.run_id for places in orders.values() for place in places}:
            continue
        lines = {}
        for order, places in orders.items():
            newest = {runs[place].data.params["seed"]: runs[place] for place in reversed(places)}
            lines[order] = [Line(order, _rounds(api, found)) for found in newest.values()]
        name = _name(next(settings[places[0]] for order, places in orders.items() if order != "vanilla"))
        with TemporaryDirectory() as folder:
            for kind in COLUMNS:
                if drawn := by_order(lines, kind, name):
                    drawn[1].png(Path(folder) / f"{drawn[0].replace(' ', '_')}.png")
            api.log_artifacts(parent or run_id, folder, f"orders/{name}")


def _rounds(api: "MlflowClient", run: "Run") -> "pd.DataFrame":
    """What a run measured by round."""
    import pandas as pd

    from fedflow.pictures.curriculum import COLUMNS

    names = [name for kind in COLUMNS for name in kind if name in run.data.metrics]
    history = {
        name: {m.step: m.value for m in api.get_metric_history(run.info.run_id, name)} for name in names
    }
    return pd.DataFrame(history).sort_index().rename_axis("round").reset_index()


def _name(settings: Mapping[str, str]) -> str:
    """Method, score and pacing, and four digits of all settings of the curriculum's runs except the order."""
    own = {name: value for name, value in settings.items() if not name.endswith("curriculum.order")}
    digest = hashlib.blake2b(json.dumps(own, sort_keys=True).encode(), digest_size=2).hexdigest()
    score, pacing, a, b = (settings[f"training.curriculum.{name}"] for name in ("score", "pacing", "a", "b"))
    return f"{settings['method.name']}-{score}-{pacing}-a{a}-b{b}-{digest}"
