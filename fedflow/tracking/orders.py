"""Pictures of several runs in MLflow: what the orders of a curriculum reach, by round."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from fedflow.metrics.table import recorded_name
from fedflow.project.digest import digest
from fedflow.tracking.shared import RUNS, every

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run

OWN = ("seed", "engine.")  # parameters, or prefixes of them, in which compared runs may differ
PARENT, NOTE = "mlflow.parentRunId", "mlflow.note.content"  # tags
FOLDERS = {"training.curriculum": "orders", "run.client_curriculum": "client_orders"}  # of artifacts


def log_orders(api: "MlflowClient", run_id: str) -> None:
    """Draw all finished runs that differ from this one in the order of a curriculum and the seed.

    The pictures are artifacts of the sweep that the run belongs to, else of the run: ``orders/`` (of samples)
    and ``client_orders/`` have a folder for each score and pacing. They are drawn again with every run, until
    all orders are there.
    """
    run = api.get_run(run_id)
    parent, method = run.data.tags.get(PARENT), run.data.params.get("method.name")
    among = f"params.`method.name` = '{method}' and params.seed LIKE '%' and {RUNS}"
    among += " and attributes.status = 'FINISHED'"
    among += f" and tags.`{PARENT}` = '{parent}'" if parent else ""
    if not _any(api, run, among):
        return
    from fedflow.pictures.curriculum import (  # imports matplotlib, which is slow
        COLUMNS,
        Line,
        alike,
        by_order,
    )

    newest_first = ["attributes.start_time DESC"]
    runs = list(every(api.search_runs, [run.info.experiment_id], among, order_by=newest_first))
    settings = [{n: v for n, v in found.data.params.items() if not n.startswith(OWN)} for found in runs]
    for section, top in FOLDERS.items():
        for orders in alike(settings, section):
            if run_id not in {runs[place].info.run_id for places in orders.values() for place in places}:
                continue
            lines = {}
            for order, places in orders.items():
                newest = {runs[place].data.params["seed"]: runs[place] for place in reversed(places)}
                columns = [name for kind in COLUMNS for name in kind]
                lines[order] = [Line(order, history(api, found, columns)) for found in newest.values()]
            first = next(places[0] for order, places in orders.items() if order != "vanilla")
            name = _name(settings[first], section)
            with TemporaryDirectory() as folder:
                for kind in COLUMNS:
                    if drawn := by_order(lines, kind, name):
                        drawn[1].png(Path(folder) / f"{drawn[0].replace(' ', '_')}.png")
                api.log_artifacts(parent or run_id, folder, f"{top}/{name}")


def _any(api: "MlflowClient", run: "Run", among: str) -> bool:
    """Whether some run has a curriculum."""
    queries = (f"{among} and params.`{section}.order` LIKE '%'" for section in FOLDERS)
    return any(api.search_runs([run.info.experiment_id], query, max_results=1) for query in queries)


def history(api: "MlflowClient", run: "Run", names: Iterable[str]) -> "pd.DataFrame":
    """Those of the metrics ``names`` that a run measured, by round."""
    import pandas as pd

    recorded = {name: recorded_name(name) for name in names}
    values = {
        name: {m.step: m.value for m in api.get_metric_history(run.info.run_id, here)}
        for name, here in recorded.items()
        if here in run.data.metrics
    }
    return pd.DataFrame(values).sort_index().rename_axis("round").reset_index()


def _name(settings: Mapping[str, str], section: str) -> str:
    """Method, score and pacing, and four digits of all settings of the curriculum's runs except the order."""
    own = {name: value for name, value in settings.items() if name != f"{section}.order"}
    score, pacing, a, b = (settings[f"{section}.{name}"] for name in ("score", "pacing", "a", "b"))
    return f"{settings['method.name']}-{score}-{pacing}-a{a}-b{b}-{digest(own, 4)}"
