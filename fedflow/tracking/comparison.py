"""Comparisons of runs in MLflow: the runs of a sweep, and the orders of a curriculum."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from fedflow.metrics.table import (
    METRICS,
    YARDSTICKS,
    first_headlines,
    heading,
    in_unit,
    recorded_name,
    unit_of,
)
from fedflow.project.digest import digest
from fedflow.tracking.pages import show_first
from fedflow.tracking.shared import FEDERATED, RUNS, every

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run

TABLE = "comparison.json"
COLUMNS = 6  # numbers in the table
DRAWN = (*YARDSTICKS, "global_accuracy", "global_loss", "train_loss")  # the first one measured by round

OWN = ("seed", "engine.")  # parameters, or prefixes of them, in which compared runs may differ
PARENT, NOTE = "mlflow.parentRunId", "mlflow.note.content"  # tags
FOLDERS = {"training.curriculum": "orders", "run.client_curriculum": "client_orders"}  # of artifacts


def log_comparison(api: "MlflowClient", experiment: str, parent: str) -> None:
    """Update the comparison of the finished federated runs of ``parent``: description, table, picture.

    Of several runs of a method with equal settings and seed, the newest counts. The metrics of the parent,
    ``comparison/<method>``, are means over seeds of local accuracy, or of the loss without accuracies.
    """
    among = f"attributes.status = 'FINISHED' and tags.`{PARENT}` = '{parent}' and {FEDERATED}"
    runs = list(every(api.search_runs, [experiment], among, order_by=["attributes.start_time DESC"]))
    if not runs:
        return
    rows, names = _grouped(runs), measured(runs)
    show_first(api, experiment, names)
    order = next((name for name in YARDSTICKS if name in names), None)
    if order:
        sign = -1 if METRICS[order].better == "higher" else 1
        means = {label: statistics.mean(v) for label, group in rows.items() if (v := _values(group, order))}
        rank = {label: sign * means[label] if label in means else float("inf") for label in rows}
        rows = {label: rows[label] for label in sorted(rows, key=lambda label: (rank[label], label))}
        for label, mean in means.items():
            api.log_metric(parent, f"comparison/{label}", mean)
    cells = [
        [label, len(group), *(_spread(_values(group, name), name, len(group)) for name in names)]
        for label, group in rows.items()
    ]
    columns = ["method", "seeds", *map(heading, names)]
    api.log_text(parent, json.dumps({"columns": columns, "data": cells}), TABLE)
    api.set_tag(parent, "mlflow.loggedArtifacts", json.dumps([{"path": TABLE, "type": "table"}]))
    api.set_tag(parent, NOTE, _described(columns, cells, len(runs)))
    _draw(api, parent, rows)


def measured(runs: Sequence["Run"]) -> list[str]:
    """The first `COLUMNS` headline metrics that some of ``runs`` have."""
    names = {name for name in METRICS if any(recorded_name(name) in r.data.metrics for r in runs)}
    return first_headlines(names - {"train_loss"}, COLUMNS)


def _grouped(runs: Sequence["Run"]) -> dict[str, list["Run"]]:
    """The newest run of every seed by method; the names of a method's further settings have a digest."""
    newest: dict[tuple[str, str], dict[str, Run]] = {}
    for run in reversed(runs):
        tags = run.data.tags
        key = tags["method"], tags.get("settings", "")
        newest.setdefault(key, {})[tags.get("seed", "")] = run
    first: dict[str, str] = {}
    return {
        method if first.setdefault(method, settings) == settings else f"{method}-{settings[:4]}": [
            *seeds.values()
        ]
        for (method, settings), seeds in newest.items()
    }


def _values(runs: Sequence["Run"], name: str) -> list[float]:
    values = (run.data.metrics.get(recorded_name(name)) for run in runs)
    return [value for value in values if value is not None]


def _spread(values: Sequence[float], name: str, runs: int) -> str:
    """Mean ± sample standard deviation, in its unit, and the number of values if some ``runs`` have none."""
    if not values:
        return METRICS[name].missing
    unit = unit_of(name)
    mean = in_unit(statistics.mean(values), unit)
    mean += f" ± {in_unit(statistics.stdev(values), unit)}" if len(values) > 1 else ""
    return mean if len(values) == runs else f"{mean} ({len(values)} of {runs})"


def _described(columns: Sequence[str], cells: Sequence[Sequence[object]], runs: int) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *cells]
    table = ["| " + " | ".join(str(cell).replace("|", "/") for cell in line) + " |" for line in lines]
    text = f"{runs} finished runs. Means over seeds ± sample standard deviation; verdicts: `fedflow report`."
    return "\n".join([*table, "", text])


def _draw(api: "MlflowClient", parent: str, rows: Mapping[str, Sequence["Run"]]) -> None:
    """Log the curves of the first of `DRAWN` that was measured by round."""
    from fedflow.pictures.accuracy import Line, curve  # imports matplotlib, which is slow

    for name in DRAWN:
        drawn = {
            label: [Line(label, _history(api, run, [name])) for run in group]
            for label, group in rows.items()
            if all(recorded_name(name) in run.data.metrics for run in group)
        }
        if drawn:
            colors = {label: i for i, label in enumerate(rows)}
            title = f"{heading(name)} by round: mean and range over seeds"
            with TemporaryDirectory() as folder:
                curve(drawn, colors, name, "round", "comparison", title=title).png(
                    Path(folder) / "comparison.png"
                )
                api.log_artifacts(parent, folder)
            return


def log_orders(api: "MlflowClient", run_id: str) -> None:
    """Draw all finished runs that differ from this one only in the order of a curriculum and the seed.

    The pictures are artifacts of the run's sweep, if any, or else of the run: ``orders/`` (of samples) and
    ``client_orders/`` have a folder for each score and pacing. Every further run draws them again.
    """
    run = api.get_run(run_id)
    parent, method = run.data.tags.get(PARENT), run.data.params.get("method.name")
    among = f"params.`method.name` = '{method}' and params.seed LIKE '%' and {RUNS}"
    among += " and attributes.status = 'FINISHED'"
    among += f" and tags.`{PARENT}` = '{parent}'" if parent else ""
    curricula = (f"{among} and params.`{section}.order` LIKE '%'" for section in FOLDERS)
    if not any(api.search_runs([run.info.experiment_id], query, max_results=1) for query in curricula):
        return
    from fedflow.pictures.curriculum import (  # imports matplotlib, which is slow
        COLUMNS,
        Line,
        alike,
        by_order,
    )

    newest_first = ["attributes.start_time DESC"]
    runs = list(every(api.search_runs, [run.info.experiment_id], among, order_by=newest_first))
    settings = [{n: v for n, v in other.data.params.items() if not n.startswith(OWN)} for other in runs]
    for section, top in FOLDERS.items():
        for orders in alike(settings, section):
            if run_id not in {runs[i].info.run_id for indices in orders.values() for i in indices}:
                continue
            lines = {}
            for order, indices in orders.items():
                newest = {runs[i].data.params["seed"]: runs[i] for i in reversed(indices)}
                columns = [name for kind in COLUMNS for name in kind]
                lines[order] = [Line(order, _history(api, other, columns)) for other in newest.values()]
            first = next(indices[0] for order, indices in orders.items() if order != "vanilla")
            name = _name(settings[first], section)
            with TemporaryDirectory() as folder:
                for kind in COLUMNS:
                    if drawn := by_order(lines, kind, name):
                        drawn[1].png(Path(folder) / f"{drawn[0].replace(' ', '_')}.png")
                api.log_artifacts(parent or run_id, folder, f"{top}/{name}")


def _history(api: "MlflowClient", run: "Run", names: Iterable[str]) -> "pd.DataFrame":
    """The metrics among ``names`` that a run measured, by round."""
    import pandas as pd

    recorded = {name: recorded_name(name) for name in names}
    values = {
        name: {m.step: m.value for m in api.get_metric_history(run.info.run_id, here)}
        for name, here in recorded.items()
        if here in run.data.metrics
    }
    return pd.DataFrame(values).sort_index().rename_axis("round").reset_index()


def _name(settings: Mapping[str, str], section: str) -> str:
    """Method, score and pacing, and a digest of all settings of the curriculum's runs except the order."""
    others = {name: value for name, value in settings.items() if name != f"{section}.order"}
    score, pacing, a, b = (settings[f"{section}.{name}"] for name in ("score", "pacing", "a", "b"))
    return f"{settings['method.name']}-{score}-{pacing}-a{a}-b{b}-{digest(others, 4)}"
