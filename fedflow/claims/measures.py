"""Measures: numbers of a finished run by name, such as ``local_worst10`` or ``rounds_to(all_accuracy, 0.8)``.

Published tables and claims name what they compare in this language:

* a metric of ``metrics.json`` or a diagnostic (its last value): ``local_gini``, ``method/regret``
* for the outcome of a procedure, a metric of its summary (`fedflow.procedures.Procedure.metrics`)
* ``rounds_to``, ``transmissions``, ``bytes_to``, ``gradients_to`` and ``clock_to``, each with
  ``(column, target)`` or ``(column, target, smooth)``: the cost of a target (`fedflow.claims.targets`)
* ``best(column)``, ``worst(column)``, ``cumulative(column)`` (the sum), ``at(column, round)`` and
  ``last(column, n)`` (the mean of the last n evaluated rounds), from ``rounds.csv``
* ``top1``, ``top5`` (any number), ``auroc``, ``macro_f1``, ``balanced_accuracy``, ``ece`` and ``mce`` of
  predictions, of several labels per sample ``label_accuracy``, ``exact``, ``micro_f1``, ``macro_f1`` and
  ``auroc``: the mean over clients, each on its own test set, or with ``_std`` (of the population),
  ``_weighted`` (by test samples), ``_worst10``, ``_best10``, ``_gini``, ``_gap``; ``top<k>``, ``ece`` and
  ``mce`` also with ``(batch=10)``: the mean over batches of that many test samples, as SuPerFed publishes it
* ``client(metric, number)``: a metric of one client, from ``clients.parquet``
* ``pruned``, the share of parameters that clients' networks lack at the end: 1 - ``kept``, the mean over all
  clients (the diagnostic ``client/pruned/mean`` covers the last cohort only)
* ``sweep(share)``, mean accuracy of the mixtures with this share of the personal model (`run.sweep`);
  ``sweep_best``, mean accuracy of clients at their best shares; ``sweep_most(ece)``, mean of the highest
  ``ece`` (or ``accuracy``, ``loss``, ``mce``) of a client at shares that have the highest accuracy of some
  client, as SuPerFed's code reports it; and ``sweep_plateau(width)``, the portion of the shares whose mean
  accuracy is within ``width`` of the highest
* ``mask_iou(number)``, mean IoU of the masks of two clients that share this number of labels; and
  ``mask_overlap``, the rank correlation between IoU and shared labels over all pairs of clients that took
  part and whose masks are recorded (`Outcome`: the first 1000, at most 1 GiB)
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import pandas as pd

from fedflow.claims.sources import NONE, RESULTS
from fedflow.claims.targets import NotMeasured, check_target, column_of, reach
from fedflow.errors import BadInput, unknown_name
from fedflow.finished.features import masks, sweep
from fedflow.finished.features import predictions as kept_predictions
from fedflow.finished.run import Run, once
from fedflow.metrics import predictions
from fedflow.metrics.table import DIAGNOSTICS, METRICS, NUMBER, SHARE, Metric, Unit, metric_of
from fedflow.procedures import PROCEDURES, Column
from fedflow.simulation.extensions.recording import FILE as VECTORS

# Columns that are sums over rounds already.
TOTALS = ("bytes_down", "bytes_up", "clock", "gradients", "updates", "polls", "poll_bytes")
EXPRESSION = re.compile(r"([\w/]+)(?:\(([^()]*)\))?")
PREDICTED = re.compile(
    rf"(top[1-9]\d*|{'|'.join((*predictions.WHOLE, *predictions.CALIBRATION))})"
    r"(?:_(std|weighted|worst10|best10|gini|gap))?"
)
BATCH = re.compile(r"batch\s*=\s*([1-9]\d*)")
LABELS = {
    "auroc": "AUROC",
    "macro_f1": "Macro F1",
    "balanced_accuracy": "Balanced accuracy",
    "label_accuracy": "Label accuracy",
    "exact": "Exact match",
    "micro_f1": "Micro F1",
    "ece": "ECE",
    "mce": "MCE",
}
PARTS = {
    "std": "std over clients",
    "weighted": "by samples",
    "worst10": "of the worst tenth",
    "best10": "of the best tenth",
    "gini": "Gini",
    "gap": "gap of best and worst tenth",
}
COSTS = {  # measure: field of `Reach`, and metric
    "rounds_to": ("rounds", METRICS["rounds_to_target"]),
    "transmissions": ("transmissions", Metric("transmissions", "Transmissions", unit=Unit(), better="lower")),
    "bytes_to": ("bytes", METRICS["bytes_to_target"]),
    "gradients_to": ("gradients", METRICS["gradients"]),
    "clock_to": ("clock", METRICS["clock_to_target"]),
}
# Metrics without a value where the target was not reached; measures of `COSTS` then have a lower bound.
UNBOUNDED = ("rounds_to_target", "bytes_to_target", "clock_to_target", "stopped_in")
# Measures and their numbers of arguments.
SWEEPS = {"sweep_best": 0, "sweep": 1, "sweep_plateau": 1, "sweep_most": 1}
SWEPT = {"accuracy": "local_accuracy", "loss": "loss", "ece": "ece", "mce": "mce"}  # by column
MASKS = {"mask_overlap": 0, "mask_iou": 1}
ROUNDING = 1e-9  # of a mean accuracy
OF_ROUNDS = {"best": 1, "worst": 1, "cumulative": 1, "at": 2, "last": 2}
# Metrics that are null in metrics.json unless this setting of `run` is on.
SWITCHED = {"tuned_accuracy": "fine_tune", "local_final_accuracy": "keep_trained"}


@dataclass(frozen=True)
class Measure:
    """A number of a run.

    ``of`` computes it, or None where the run has no value, such as a cost of a target that it did not reach;
    ``least`` is then the lower bound at the end of the run. Both raise `NotMeasured` where a file or column
    is absent. ``reaches`` is the column that has to reach a target.
    """

    text: str
    label: str
    unit: Unit
    better: Literal["higher", "lower", ""]
    of: Callable[[Run], float | None]
    least: Callable[[Run], float | None] = lambda run: None
    reaches: str = ""


def measure(run: Run, text: str) -> float | None:
    """The number called ``text``. Raises `BadInput` for unknown names, `NotMeasured` for absent columns."""
    return parse(text).of(run)


def parse(text: str, field: str = "measure", procedure: str = "") -> Measure:
    """The measure called ``text``; ``field`` names it in the `BadInput` for an unknown one.

    With ``procedure``, a metric of this registered procedure; without, measures of runs come first.
    """
    found = _parse(text, field, procedure)
    return replace(found, of=partial(_of, found), least=partial(_least, found))


def _of(measure: Measure, run: Run) -> float | None:
    """The number of a run, from its row of ``results.csv`` if its folder is elsewhere."""
    if not run.committed:
        return measure.of(run)
    text = _committed(measure, run)
    return None if text == NONE or text.endswith("+") else float(text)


def _least(measure: Measure, run: Run) -> float | None:
    if not run.committed:
        return measure.least(run)
    text = _committed(measure, run)
    return float(text[:-1]) if text.endswith("+") else None


def _committed(measure: Measure, run: Run) -> str:
    if measure.text not in run.committed:
        _check_switched(measure.text, run)
        raise NotMeasured(
            f"{RESULTS} has no {measure.text} of {run.partition}, {run.method}, seed {run.seed}"
        )
    return run.committed[measure.text]


def _parse(text: str, field: str, procedure: str) -> Measure:
    if procedure:
        if (listed := of_summary(procedure, text)) is None:
            raise unknown_name(field, text, PROCEDURES[procedure].metrics)
        return _measure(text, listed, partial(_final, text))
    matched = EXPRESSION.fullmatch(text.strip())
    name, arguments = (matched[1], matched[2]) if matched else (text, None)
    given = [argument.strip() for argument in arguments.split(",")] if arguments else []
    predicted = PREDICTED.fullmatch(name)
    if name in UNBOUNDED:
        raise BadInput(
            field, text, f"a measure with a target: {', '.join(f'{n}(column, target)' for n in COSTS)}"
        )
    if arguments is None and not predicted and (metric_of(name) or name.startswith(DIAGNOSTICS)):
        metric = metric_of(name) or Metric(name, name, unit=NUMBER, better="")
        return _measure(text, metric, partial(_final, name))
    if text.strip() == "pruned":
        return Measure(text, "Pruned, %", SHARE, "higher", _pruned)
    if predicted:
        if arguments is None:
            return _predicted(text, predicted[1], predicted[2])
        if (batch := BATCH.fullmatch(arguments.strip())) and predicted[1] not in predictions.WHOLE:
            return _predicted(text, predicted[1], predicted[2], int(batch[1]))
    if name in COSTS and len(given) in (2, 3):
        return _cost(text, name, field, *given)
    if name == "client" and len(given) == 2:
        return _of_client(text, field, *given)
    if SWEEPS.get(name) == len(given):
        return _swept(text, name, field, *given)
    if MASKS.get(name) == len(given):
        return _of_masks(text, name, field, *given)
    if name in OF_ROUNDS and len(given) == OF_ROUNDS[name]:
        return _of_rounds(text, name, field, *given)
    if summary := next(filter(None, (of_summary(name, text) for name in PROCEDURES)), None):
        return _measure(text, summary, partial(_final, text))
    shapes = [f"{n}(column, target)" for n in COSTS]
    shapes += [f"{n}(column)" for n, count in OF_ROUNDS.items() if count == 1]
    shapes += ["at(column, round)", "last(column, n)", "client(metric, number)"]
    shapes += ["top1", "top5", *predictions.WHOLE, *"ece mce ece(batch=10) pruned".split()]
    shapes += ["sweep(share)", "sweep_best", "sweep_most(ece)", "sweep_plateau(width)"]
    shapes += ["mask_iou(number)", "mask_overlap"]
    raise unknown_name(field, text, [*METRICS, *shapes])


def of_summary(procedure: str, name: str) -> Metric | None:
    """A metric of the summary of a registered procedure, or None if it has no such metric."""
    column = PROCEDURES[procedure].metrics.get(name) if procedure in PROCEDURES else None
    return None if column is None else as_metric(name, column)


def as_metric(name: str, column: Column) -> Metric:
    """A number of a procedure as a metric, with the unit in its label."""
    usual = SHARE.digits if column.unit == SHARE.sign else NUMBER.digits
    unit = Unit(column.unit, column.factor, usual if column.digits is None else column.digits)
    return Metric(name, column.heading, unit=unit, better=column.better)


def _measure(text: str, metric: Metric, of: Callable[[Run], float | None]) -> Measure:
    return Measure(text, metric.label, metric.unit, metric.better, of)


def _final(name: str, run: Run) -> float | None:
    if name not in run.metrics:
        file = run.folder / "metrics.json"
        raise NotMeasured(f"{file} has no {name}: it was not measured with the settings of this run")
    value = run.metrics[name]
    if value is None:
        _check_switched(name, run)
    return None if value is None else float(value)


def _check_switched(name: str, run: Run) -> None:
    """Raise `NotMeasured` for a metric without a value whose setting is off in this run."""
    setting = SWITCHED.get(name)
    if setting and not run.procedure and not run.params.get("run", {}).get(setting):
        raise NotMeasured(f"{name} was not measured: it needs run.{setting}: true")


def _pruned(run: Run) -> float | None:
    kept = _final("kept", run)
    return None if kept is None else 1 - kept


def _cost(text: str, name: str, field: str, column: str, target: str, smooth: str = "0") -> Measure:
    what, metric = COSTS[name]
    asked = (_number(field, text, target), _number(field, text, smooth))
    try:
        check_target(column, *asked)
    except BadInput as error:
        raise error.renamed(f"{field} {text}, {error.field}") from None

    def of(arrived: bool, run: Run) -> float | None:
        reached = reach(run, column, *asked)
        value = getattr(reached, what)
        if value is None:
            column_of(run, "participants" if what == "transmissions" else what)  # raises
        return float(value) if (reached.round is not None) is arrived else None

    label, cost, bound = f"{metric.label} ({column} {target})", partial(of, True), partial(of, False)
    return Measure(text, label, metric.unit, "lower", cost, bound, column)


def _of_rounds(text: str, name: str, field: str, column: str, argument: str = "") -> Measure:
    metric = metric_of(column) or Metric(column, column, unit=NUMBER, better="")
    if not metric.rounds and not column.startswith(DIAGNOSTICS):
        raise unknown_name(f"{field} {text}, column", column, [m.name for m in METRICS.values() if m.rounds])
    if name in ("best", "worst") and not metric.better:
        raise BadInput(f"{field} {text}", column, "a metric that is better higher or lower")
    if name == "cumulative" and column in TOTALS:
        raise BadInput(f"{field} {text}", column, "a column that is not a sum over rounds already")
    wanted = _number(field, text, argument) if argument else 0
    if name == "last" and (wanted < 1 or wanted != int(wanted)):
        raise BadInput(f"{field} {text}", argument, "a whole number >= 1")
    highest = (metric.better == "higher") is (name == "best")

    def of(run: Run) -> float | None:
        values = column_of(run, column)
        if name == "cumulative":
            return float(values.sum())
        file, measured = run.folder / "rounds.csv", values.dropna()
        if name == "last":
            if len(measured) < wanted:
                raise NotMeasured(f"{file} has {column} in {len(measured)} rounds, of at least {argument}")
            return float(measured.tail(int(wanted)).mean())
        if name != "at":
            return float(values.max() if highest else values.min())
        value = values[run.rounds["round"] == wanted].dropna()
        if value.empty:
            evaluated = run.rounds["round"][values.notna()].tolist()
            some = (
                f"{evaluated[0]}, {evaluated[1]}, ..., {evaluated[-1]}" if len(evaluated) > 2 else evaluated
            )
            raise NotMeasured(f"{file} has no {column} in round {argument}: it was evaluated in {some}")
        return float(value.iloc[0])

    hows = {
        "at": f"in round {argument}",
        "cumulative": "sum over rounds",
        "last": f"mean of the last {argument} evaluations",
    }
    how = hows.get(name, f"{name} round")
    return _measure(text, replace(metric, label=f"{metric.label} ({how})"), of)


def _of_client(text: str, field: str, name: str, number: str) -> Measure:
    metric, wanted = metric_of(name), _number(field, text, number)
    if metric is None or not metric.client:
        raise unknown_name(f"{field} {text}, metric", name, [m.name for m in METRICS.values() if m.client])

    def of(run: Run) -> float | None:
        rows = run.clients[run.clients["client"] == wanted][name].dropna() if name in run.clients else None
        if rows is None or rows.empty:
            raise NotMeasured(f"{run.folder / 'clients.parquet'} has no {name} of client {number}")
        return float(rows.iloc[0])

    return _measure(text, replace(metric, label=f"{metric.label} (client {number})"), of)


def _predicted(text: str, name: str, part: str | None, batch: int | None = None) -> Measure:
    column = part or "mean"
    if name in predictions.CALIBRATION:  # whose lowest values are the best
        column = {"worst10": "best10", "best10": "worst10"}.get(column, column)

    def of(run: Run) -> float | None:
        value = _summary(run, name, batch)[column]
        return None if math.isnan(value) else value

    small = name in predictions.CALIBRATION or part in ("std", "gini", "gap")
    label = " ".join([LABELS.get(name, name.replace("top", "Top-")), *([PARTS[part]] if part else [])])
    label += f", in batches of {batch}" if batch else ""
    if part == "gini":
        return Measure(text, label, Unit(digits=3), "lower", of)
    return Measure(text, f"{label}, %", SHARE, "lower" if small else "higher", of)


def _swept(text: str, name: str, field: str, argument: str = "0") -> Measure:
    if name == "sweep_most":
        if argument not in SWEPT:
            raise unknown_name(f"{field} {text}, column", argument, SWEPT)
        like = parse(SWEPT[argument])
        label = f"{like.label} (most, of mixtures)"
        return replace(like, text=text, label=label, of=partial(_most, argument))
    wanted = _number(field, text, argument)

    def of(run: Run) -> float | None:
        scores = _mixtures(run)
        by_share = scores.groupby("value")["accuracy"].mean()
        if name == "sweep_best":
            return float(scores.groupby("client")["accuracy"].max().mean())
        if name == "sweep_plateau":
            return float((by_share >= by_share.max() - wanted - ROUNDING).mean())
        if wanted not in by_share.index:
            shares = ", ".join(f"{share:g}" for share in by_share.index)
            raise NotMeasured(f"{run.folder / 'sweep.parquet'} has no share {argument}, but {shares}")
        return float(by_share[wanted])

    label = {
        "sweep_best": "Accuracy at the best mixture of every client",
        "sweep": f"Accuracy of mixtures with {argument} of the personal model",
        "sweep_plateau": f"Mixtures with an accuracy within {argument} of the highest",
    }[name]
    return Measure(text, f"{label}, %", SHARE, "higher", of)


def _mixtures(run: Run) -> pd.DataFrame:
    scores = sweep(run)
    if scores.empty:
        raise NotMeasured(f"{run.folder / 'sweep.parquet'} has no mixtures")
    return scores


def _most(column: str, run: Run) -> float:
    scores = _mixtures(run)
    best = scores.loc[scores.groupby("client")["accuracy"].idxmax(), "value"]
    return float(scores[scores["value"].isin(best)].groupby("client")[column].max().mean())


def _of_masks(text: str, name: str, field: str, number: str = "0") -> Measure:
    wanted = _number(field, text, number)

    def of(run: Run) -> float | None:
        path, recorded = run.folder / VECTORS, masks(run)
        if recorded is None:
            raise NotMeasured(f"{path} has no masks")
        if not (by_number := recorded.by_shared_labels()):
            raise NotMeasured(f"{path} has no labels")
        if name == "mask_overlap":
            return recorded.correlation()
        if wanted not in by_number:
            numbers = ", ".join(map(str, by_number))
            raise NotMeasured(f"{path} has no two clients that share {number} labels, but {numbers}")
        return by_number[int(wanted)]

    if name == "mask_overlap":
        label = "Rank correlation of mask IoU and shared labels"
        return Measure(text, label, Unit(digits=3), "higher", of)
    return Measure(text, f"Mask IoU of clients that share {number} labels, %", SHARE, "higher", of)


@once
def _summary(run: Run, name: str, batch: int | None) -> dict[str, float]:
    table, file = kept_predictions(run), run.folder / "predictions.parquet"
    if table.empty:
        raise NotMeasured(f"{file} has no predictions: set run.keep_predictions: true")
    try:
        values = predictions.by_client(table, name, batch)
    except BadInput as error:  # AUROC of more than two classes
        raise NotMeasured(f"{file}: {error}") from None
    return predictions.summary(values, predictions.sizes(table))


def _number(field: str, text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise BadInput(f"{field} {text}", value, "a number") from None
