"""The result of `fedflow.run`: tables, models and pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from markupsafe import escape
from torch import nn

from fedflow.errors import BadInput, FedflowError, unknown_name
from fedflow.finished.results import clients_table, rounds_table
from fedflow.front.inputs import titles
from fedflow.metrics.table import heading, headlines, metric_of, printed
from fedflow.naming import flat, say
from fedflow.partition import Partition
from fedflow.project.digest import digest
from fedflow.settings import Words
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import Outcome, RoundReport

if TYPE_CHECKING:  # matplotlib takes a second
    from matplotlib.figure import Figure

    from fedflow.pictures.drawing import Drawing

WIDTH = 560  # pixels of a picture in a notebook
COLUMNS = 6  # numbers in a table in a notebook
CELL = 'style="text-align:right;white-space:nowrap;padding:2px 8px"'
COLORS = (  # pictures take the colors of the notebook, which may be dark
    "stroke-linejoin:round;stroke-linecap:butt;--ink:currentColor;--card:transparent"
    ";--muted:color-mix(in srgb,currentColor 65%,transparent)"
    ";--line:color-mix(in srgb,currentColor 15%,transparent)"
)
SHOWN = ("local_accuracy", "global_accuracy", "local_loss", "global_loss")  # the first one measured is drawn


class Result:
    """A finished run.

    ``label`` is the method's name; ``folder`` has the result files, or is None if the run was not recorded.
    """

    def __init__(
        self,
        label: str,
        seed: int,
        simulation: Simulation,
        reports: Sequence[RoundReport],
        outcome: Outcome,
        inputs: Mapping[str, Mapping[str, Any]],
        folder: Path | None = None,
    ) -> None:
        self.label, self.seed, self.folder, self._inputs = label, seed, folder, inputs
        self._simulation, self._reports, self._outcome = simulation, list(reports), outcome

    @property
    def metrics(self) -> dict[str, Any]:
        """Final numbers by name (docs/reference/measures.md lists them); accuracies are shares of 1."""
        return self._outcome.metrics

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A row per round: accuracies (NaN where not evaluated), bytes, clusters, failures, diagnostics.

        Columns that no round measured are left out.
        """
        table = rounds_table(self._reports).dropna(axis=1, how="all")
        return table.astype(dict.fromkeys(table.select_dtypes(object), float))

    @cached_property
    def clients(self) -> pd.DataFrame:
        """A row per client: samples, scores, cluster, number of its rounds.

        Columns that no client has are left out.
        """
        table = clients_table(self._outcome, self.partition.sizes, self.partition.groups)
        return table.dropna(axis=1, how="all")

    @property
    def partition(self) -> Partition:
        """The samples of every client."""
        return self._simulation.federation.partition

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """Data, partition, model, method, training and run, with all defaults."""
        job = self._simulation.job
        return {
            **{section: dict(values) for section, values in self._inputs.items()},
            "method": {"name": titles(job.method)[0], **job.method.as_dict()},
            "training": job.training.as_dict(),
            "run": self._simulation.settings.as_dict(),
        }

    def model(self, client: int | None = None) -> nn.Module:
        """The model for a ``client``, in evaluation mode; without a client, the only global model.

        Raises `BadInput` for a client that does not exist, or if clients have different models.
        """
        models, serves = self._outcome.models, self._simulation.job.method.serves
        if client is None:
            if len(models) > 1:
                raise BadInput("client", None, f"a client, as the run has {len(models)} models, by {serves}")
            key = next(iter(models))
        else:
            count = self._simulation.clients
            if not 0 <= client < count:
                raise BadInput("client", client, f"a whole number from 0 to {count - 1}")
            key = {"global": 0, "personal": client}.get(serves, -1)
            if serves == "cluster":
                key = int(self._outcome.scores.cluster[client])
            if serves == "level":
                key = list(self._simulation.levels).index(self._simulation.level(client))
            if key not in models:
                raise FedflowError(f"the model of client {client} was not kept")
        vector = models[key]
        network = self._simulation.federation.model
        if serves == "level" and client is not None:
            from fedflow.simulation.levels import network as network_of

            job = self._simulation.job
            network = network_of(job.method, self._simulation.federation, self._simulation.level(client))
        return network.to_module(vector)

    def plot(self, metric: str | None = None, x: str = "round") -> "Figure":
        """A curve of ``metric`` (default: the accuracy or loss) by "round", "traffic" or "time".

        Raises `BadInput` for a metric that no round measured.
        """
        return compare(self).plot(metric, x)

    def __repr__(self) -> str:
        numbers = ", ".join(_in_words(name, self.metrics[name]) for name in _headline([self]))
        rounds = f"{len(self._reports)} round{'s' if len(self._reports) > 1 else ''}"
        return f"<{self.label}, seed {self.seed}, {rounds}: {numbers}>"

    def _repr_html_(self) -> str:
        return compare(self)._repr_html_()


class Comparison:
    """Several runs side by side: ``results`` of every label, which differ in their seeds."""

    def __init__(self, results: Mapping[str, Sequence[Result]]) -> None:
        self.results = {label: list(group) for label, group in results.items()}

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per label: seeds, mean and sample standard deviation (``_std``) of the headline metrics."""
        rows = {}
        for label, group in self.results.items():
            row: dict[str, Any] = {"seeds": len(group)}
            for name in self._columns:
                values = [r.metrics[name] for r in group if r.metrics.get(name) is not None]
                row[name] = float(np.mean(values)) if values else float("nan")
                row[f"{name}_std"] = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
            rows[label] = row
        return pd.DataFrame.from_dict(rows, orient="index")

    def plot(self, metric: str | None = None, x: str = "round") -> "Figure":
        """Curves of ``metric`` by "round", "traffic" or "time": the mean over seeds, and a band over all.

        Raises `BadInput` for a metric that no round measured.
        """
        return self._drawn(metric, x, "notebook").figure

    def _metric(self, metric: str | None) -> str:
        """``metric``, or the first one of `SHOWN` that a round measured."""
        tables = [result.rounds for group in self.results.values() for result in group]
        measured = list(dict.fromkeys(str(name) for table in tables for name in table if name != "round"))
        if metric is None:
            return next((name for name in SHOWN if name in measured), "train_loss")
        if metric not in measured:
            raise unknown_name("metric", metric, measured)
        return metric

    def _drawn(self, metric: str | None, x: str, name: str) -> "Drawing":
        from fedflow.pictures.accuracy import AXES, curve
        from fedflow.pictures.accuracy import heading as title

        if x not in AXES:
            raise BadInput("x", x, f"one of {', '.join(AXES)}")
        colors = {label: i for i, label in enumerate(self.results)}
        lines = {label: [_Line(label, r.rounds) for r in group] for label, group in self.results.items()}
        metric = self._metric(metric)
        facts = metric_of(metric)
        words = f"{title(facts, x)}{', %' * facts.label.endswith(', %')}" if facts else f"{metric} by {x}"
        return curve(lines, colors, metric, x, name, title=words)

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        from fedflow.pictures.drawing import SERIES

        head = ["", "seeds", *map(heading, self._columns)]
        lines = ["".join(f"<th {CELL}>{escape(word)}</th>" for word in head)]
        for label, row in self.table.iterrows():
            cells = [escape(str(label)), str(int(row["seeds"]))]
            for name in self._columns:
                mean, spread = (None if np.isnan(v) else v for v in (row[name], row[f"{name}_std"]))
                cells.append(printed(name, mean) + ("" if spread is None else f" ± {printed(name, spread)}"))
            lines.append("".join(f"<td {CELL}>{cell}</td>" for cell in cells))
        table = "".join(f"<tr>{line}</tr>" for line in lines)
        # All outputs of a notebook are one page, so that ids in a picture must be unique.
        name = f"n{digest(table, 12)}"
        colors = ";".join([COLORS, *(f"--s{i}:{color}" for i, color in enumerate(SERIES))])
        picture = self._drawn(None, "round", name).svg
        return (
            f'<div style="overflow-x:auto"><table>{table}</table></div>'
            f'<div style="max-width:{WIDTH}px;{colors}">{picture}</div>'
        )

    @cached_property
    def _columns(self) -> list[str]:
        return _headline([result for group in self.results.values() for result in group])


@dataclass(frozen=True)
class _Line:
    """A run for `curve`."""

    label: str
    rounds: pd.DataFrame


def compare(*results: Result, **named: Result | Sequence[Result]) -> Comparison:
    """Compare runs: ``compare(a, b)`` by their methods, or ``compare(small=a, large=[b, c])`` by names.

    Runs that differ only in their seeds are one row. Runs of one method with different settings are rows
    named after the differences. Raises `BadInput` for two runs with equal settings and seed, and for runs
    with different settings under one name.
    """
    groups: dict[str, list[Result]] = {}
    for label in dict.fromkeys(result.label for result in results):
        group = [result for result in results if result.label == label]
        for result, words in zip(group, _differences(group)):
            groups.setdefault(" · ".join([label, *words]), []).append(result)
    for name, given in named.items():
        group = [given] if isinstance(given, Result) else list(given)
        if differ := next((words for words in _differences(group) if words), None):
            raise BadInput(name, Words(differ[0]), "runs that differ only in their seeds")
        groups.setdefault(name, []).extend(group)
    if not any(groups.values()):
        raise BadInput("results", None, "at least one result of fedflow.run")
    for label, group in groups.items():
        seeds = [result.seed for result in group]
        if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
            raise BadInput("results", Words(f"{label} twice with seed {twice[0]}"), "different seeds")
    return Comparison(groups)


def _differences(results: Sequence[Result]) -> list[list[str]]:
    """For every run, the settings that differ between the runs, in words."""
    settings = [flat(result.settings, empty=True) for result in results]
    names = dict.fromkeys(name for values in settings for name in values)
    differ = [name for name in names if any(v.get(name) != settings[0].get(name) for v in settings)]
    return [[", ".join(say(name, v.get(name)) for name in differ)] if differ else [] for v in settings]


def _headline(results: Sequence[Result]) -> list[str]:
    """The headline metrics that some of these runs have."""
    numbers = {n for r in results for n, v in r.metrics.items() if isinstance(v, int | float)}
    return headlines(filter(metric_of, numbers))[:COLUMNS]


def _in_words(name: str, value: float) -> str:
    """A number as "Local 89.6 %"."""
    words, _, unit = heading(name).rpartition(", ")
    return f"{words} {printed(name, value)} {unit}" if words else f"{unit} {printed(name, value)}"
