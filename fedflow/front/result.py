"""The result of `fedflow.run`: tables, models and pictures."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from markupsafe import escape
from torch import nn

from fedflow.errors import BadInput, FedflowError
from fedflow.metrics.table import heading, headlines, printed, unit_of
from fedflow.partition import Partition
from fedflow.results import clients_table, rounds_table
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import Outcome, RoundReport

if TYPE_CHECKING:  # matplotlib takes a second
    from matplotlib.figure import Figure

    from fedflow.pictures.drawing import Drawing

WIDTH = 560  # pixels of a picture in a notebook
SHOWN = ("local_accuracy", "global_accuracy", "local_loss", "global_loss")  # the first one measured is drawn


class Result:
    """A finished run.

    ``metrics``: final numbers by name; ``rounds``: a row per round; ``clients``: a row per client.
    """

    def __init__(
        self, label: str, seed: int, simulation: Simulation, reports: Sequence[RoundReport], outcome: Outcome
    ) -> None:
        self.label, self.seed = label, seed
        self._simulation, self._reports, self._outcome = simulation, list(reports), outcome

    @property
    def metrics(self) -> dict[str, Any]:
        """Final numbers by name (docs/running.md lists them); accuracies are shares of 1."""
        return self._outcome.metrics

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A row per round: accuracies (NaN where not evaluated), bytes, clusters, failures, diagnostics.

        Columns that no round measured are left out.
        """
        return rounds_table(self._reports).astype(float, errors="ignore").dropna(axis=1, how="all")

    @cached_property
    def clients(self) -> pd.DataFrame:
        """A row per client: samples, scores, cluster, rounds that it took part in."""
        return clients_table(self._outcome, self.partition.sizes, self.partition.groups)

    @property
    def partition(self) -> Partition:
        """Who holds which samples."""
        return self._simulation.federation.partition

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """Method, training and run, with all defaults."""
        job = self._simulation.job
        return {
            "method": {"name": job.method.name, **job.method.as_dict()},
            "training": job.training.as_dict(),
            "run": self._simulation.settings.as_dict(),
        }

    def model(self, client: int | None = None) -> nn.Module:
        """The model that a ``client`` is served, in evaluation mode; without one, the only global model.

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
        found = ", ".join(
            f"{heading(name)} {printed(name, self.metrics[name])}" for name in _headline(self.metrics)
        )
        return f"<{self.label}, seed {self.seed}, {len(self._reports)} rounds: {found}>"

    def _repr_html_(self) -> str:
        return compare(self)._repr_html_()


class Comparison:
    """Several runs side by side: those with equal labels are seeds of one row."""

    def __init__(self, results: Mapping[str, Sequence[Result]]) -> None:
        self.results = {label: list(own) for label, own in results.items()}

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per label: seeds, mean and sample standard deviation (``_std``) of the headline metrics."""
        rows = {}
        for label, own in self.results.items():
            row: dict[str, Any] = {"seeds": len(own)}
            for name in _headline(own[0].metrics):
                values = [one.metrics[name] for one in own if one.metrics.get(name) is not None]
                row[name] = float(np.mean(values)) if values else float("nan")
                row[f"{name}_std"] = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
            rows[label] = row
        return pd.DataFrame.from_dict(rows, orient="index")

    def plot(self, metric: str | None = None, x: str = "round") -> "Figure":
        """Curves of ``metric`` by "round", "traffic" or "time": the mean over seeds, and a band over all."""
        return self._drawn(metric, x).figure

    def _metric(self, metric: str | None) -> str:
        """``metric``, or the first one of `SHOWN` that a round measured."""
        there = [str(name) for name in self._first.rounds if name != "round"]
        if metric is None:
            return next((name for name in SHOWN if name in there), "train_loss")
        if metric not in there:
            raise BadInput("metric", metric, f"one of {', '.join(there)}")
        return metric

    def _drawn(self, metric: str | None, x: str) -> "Drawing":
        from fedflow.pictures.accuracy import AXES, curve

        if x not in AXES:
            raise BadInput("x", x, f"one of {', '.join(AXES)}")
        metric = self._metric(metric)
        places = {label: i for i, label in enumerate(self.results)}
        named = {label: [_Named(label, one.rounds) for one in own] for label, own in self.results.items()}
        return curve(named, places, metric, x, f"notebook-{metric}-{x}")

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        head = ["", "seeds", *(heading(name) for name in _headline(self._first.metrics))]
        lines = ["".join(f"<th>{escape(word)}</th>" for word in head)]
        for label, row in self.table.iterrows():
            cells = [escape(str(label)), str(int(row["seeds"]))]
            for name in _headline(self._first.metrics):
                spread = row[f"{name}_std"]
                text = printed(name, row[name])
                cells.append(text if np.isnan(spread) else f"{text} ± {printed(name, spread)}")
            lines.append("".join(f"<td>{cell}</td>" for cell in cells))
        table = "".join(f"<tr>{line}</tr>" for line in lines)
        metric = self._metric(None)
        words = heading(metric).removesuffix(", %")
        title = f"<p>{escape(f'{words} accuracy' if metric.endswith('_accuracy') else words)} by round</p>"
        # A notebook has no page with the colours of the report: the picture brings them.
        picture = f'<div style="max-width:{WIDTH}px">{self._drawn(metric, "round").file}</div>'
        return f"<table>{table}</table>{title}{picture}"

    @property
    def _first(self) -> Result:
        return next(iter(self.results.values()))[0]


class _Named:
    def __init__(self, label: str, rounds: pd.DataFrame) -> None:
        self.label, self.rounds = label, rounds


def compare(*results: Result, **named: Result | Sequence[Result]) -> Comparison:
    """Compare runs: ``compare(a, b)`` by their labels, or ``compare(small=a, large=[b, c])`` by names."""
    groups: dict[str, list[Result]] = {}
    for one in results:
        groups.setdefault(one.label, []).append(one)
    for name, own in named.items():
        groups.setdefault(name, []).extend([own] if isinstance(own, Result) else own)
    if not groups:
        raise BadInput("results", None, "at least one result of fedflow.run")
    return Comparison(groups)


def _headline(metrics: Mapping[str, Any]) -> list[str]:
    return [n for n in headlines(metrics) if isinstance(metrics.get(n), int | float) and unit_of(n)][:6]
