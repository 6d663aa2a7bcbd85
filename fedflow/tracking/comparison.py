"""The runs of a sweep side by side, in its parent run: a description, a table, a picture, a metric each."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from fedflow.metrics.table import METRICS, YARDSTICKS, heading, headlines, in_unit, recorded_name, unit_of
from fedflow.tracking.orders import NOTE, PARENT, history
from fedflow.tracking.pages import show_first
from fedflow.tracking.shared import FEDERATED, every

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run

TABLE = "comparison.json"
COLUMNS = 6  # numbers in the table
DRAWN = (*YARDSTICKS, "global_accuracy", "global_loss", "train_loss")  # the first one measured by round


@dataclass(frozen=True)
class _Line:
    """A run as `curve` draws it."""

    label: str
    rounds: "pd.DataFrame"


def log_comparison(api: "MlflowClient", experiment: str, parent: str) -> None:
    """Log, or log again, the comparison of the finished federated runs of ``parent``.

    Of several runs of a method with equal settings and seed, the newest counts. The metrics of the parent,
    ``comparison/<method>``, are means over seeds of local accuracy, or of the loss where there is none.
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
        means = {label: statistics.mean(v) for label, own in rows.items() if (v := _values(own, order))}
        last = {label: sign * means[label] if label in means else float("inf") for label in rows}
        rows = {label: rows[label] for label in sorted(rows, key=lambda label: (last[label], label))}
        for label, mean in means.items():
            api.log_metric(parent, f"comparison/{label}", mean)
    cells = [
        [label, len(own), *(_spread(_values(own, name), name) for name in names)]
        for label, own in rows.items()
    ]
    columns = ["method", "seeds", *map(heading, names)]
    api.log_text(parent, json.dumps({"columns": columns, "data": cells}), TABLE)
    api.set_tag(parent, "mlflow.loggedArtifacts", json.dumps([{"path": TABLE, "type": "table"}]))
    api.set_tag(parent, NOTE, _described(columns, cells, len(runs)))
    _draw(api, parent, rows)


def measured(runs: Sequence["Run"]) -> list[str]:
    """The first `COLUMNS` headline metrics that some of ``runs`` have."""
    found = headlines({name for name in METRICS if any(recorded_name(name) in r.data.metrics for r in runs)})
    return [name for name in found if name != "train_loss"][:COLUMNS]


def _grouped(runs: Sequence["Run"]) -> dict[str, list["Run"]]:
    """The newest run of each seed by method; settings other than its first have their digits in the name."""
    newest: dict[tuple[str, str], dict[str, Run]] = {}
    for run in reversed(runs):
        tags = run.data.tags
        key = tags["method"], tags.get("settings", "")
        newest.setdefault(key, {})[tags.get("seed", "")] = run
    first: dict[str, str] = {}
    return {
        method if first.setdefault(method, settings) == settings else f"{method}-{settings[:4]}": [
            *own.values()
        ]
        for (method, settings), own in newest.items()
    }


def _values(runs: Sequence["Run"], name: str) -> list[float]:
    found = (run.data.metrics.get(recorded_name(name)) for run in runs)
    return [value for value in found if value is not None]


def _spread(values: Sequence[float], name: str) -> str:
    """Mean ± sample standard deviation, in the unit of the metric."""
    if not values:
        return METRICS[name].missing
    unit = unit_of(name)
    mean = in_unit(statistics.mean(values), unit)
    return f"{mean} ± {in_unit(statistics.stdev(values), unit)}" if len(values) > 1 else mean


def _described(columns: Sequence[str], cells: Sequence[Sequence[object]], runs: int) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *cells]
    table = ["| " + " | ".join(str(cell).replace("|", "/") for cell in line) + " |" for line in lines]
    text = f"{runs} finished runs. Means over seeds ± sample standard deviation; verdicts: `fedflow report`."
    return "\n".join([*table, "", text])


def _draw(api: "MlflowClient", parent: str, rows: Mapping[str, Sequence["Run"]]) -> None:
    """Log the curves of the first of `DRAWN` that was measured by round."""
    from fedflow.pictures.accuracy import curve  # imports matplotlib, which is slow

    wanted = ("bytes_down", "bytes_up", "clock")
    lines = {
        label: [_Line(label, history(api, run, (*DRAWN, *wanted))) for run in own]
        for label, own in rows.items()
    }
    for name in DRAWN:
        drawn = {label: own for label, own in lines.items() if all(name in one.rounds for one in own)}
        if drawn:
            places = {label: i for i, label in enumerate(lines)}
            title = f"{heading(name)} by round: mean and range over seeds"
            with TemporaryDirectory() as folder:
                curve(drawn, places, name, "round", "comparison", title=title).png(
                    Path(folder) / "comparison.png"
                )
                api.log_artifacts(parent, folder)
            return
