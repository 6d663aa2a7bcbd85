"""The result of `fedflow.run`: tables, models and pictures."""

import copy
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from markupsafe import escape
from safetensors.torch import save_file
from torch import Tensor, nn

from fedflow.errors import BadInput, FedflowError, unknown_name
from fedflow.files import PARTIAL, Write, read_fact, replace_files, write_json
from fedflow.finished.results import CLIENTS, MARKER, PARAMS, ROUNDS, clients_table, rounds_table
from fedflow.front.classes import codes
from fedflow.front.inputs import titles
from fedflow.metrics.table import first_headlines, heading, metric_of, printed
from fedflow.models.flat import FlatModel
from fedflow.naming import flat, say
from fedflow.partition import Partition
from fedflow.project.digest import digest
from fedflow.project.identity import FILE as IDENTITY
from fedflow.settings import Words
from fedflow.simulation.extensions.further_scores import PREDICTIONS_FILE
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import Outcome, RoundReport

if TYPE_CHECKING:  # matplotlib takes a second
    from matplotlib.figure import Figure

    from fedflow.pictures.drawing import Drawing

WIDTH = 560  # pixels of a picture in a notebook
COLUMNS = 6  # numbers in a table in a notebook
CELL = 'style="text-align:right;white-space:nowrap;padding:2px 8px"'
FILES = {*".csv .json .npz .parquet .pickle .pkl .pt .pth .safetensors .zip".split()}  # not of folders
LATER = {"data.hash"}  # settings that results of earlier versions do not have
COLORS = (  # pictures take the colors of the notebook, which may be dark
    "stroke-linejoin:round;stroke-linecap:butt;--ink:currentColor;--card:transparent"
    ";--muted:color-mix(in srgb,currentColor 65%,transparent)"
    ";--line:color-mix(in srgb,currentColor 15%,transparent)"
)
KINDS = {"personal": "client"}  # what has a model, if it is not called as `serves`
SHOWN = ("local_accuracy", "global_accuracy", "local_loss", "global_loss")  # the first one measured is drawn


class Result:
    """A finished run.

    ``label`` is the method's name; ``folder`` has the result files, or is None if the run was not recorded.
    ``result["local_accuracy"]`` is a final number. A pickled result is complete.
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
        names: Sequence[str] = (),
    ) -> None:
        self.label, self.seed, self.folder, self._inputs = label, seed, folder, inputs
        self._simulation, self._reports, self._outcome = simulation, list(reports), outcome
        self._metrics, self._partition = outcome.metrics, simulation.federation.partition
        self._files, self._names = dict(outcome.files), list(names)
        self._models, self._settings = Models(simulation, outcome), self._described()

    def __getstate__(self) -> dict[str, Any]:
        """The results without the simulation, which holds the data."""
        kept = {k: v for k, v in vars(self).items() if k not in ("_simulation", "_reports", "_outcome")}
        return kept | {"rounds": self.rounds, "clients": self.clients}

    @property
    def metrics(self) -> dict[str, Any]:
        """Final numbers by name (page reference/metrics of the docs site); accuracies are shares of 1."""
        return self._metrics

    def __contains__(self, name: object) -> bool:
        return name in self.metrics

    def __getitem__(self, name: str) -> Any:
        """The final number of this name. Raises `BadInput` for a name that `metrics` does not have."""
        if name not in self.metrics:
            raise unknown_name("metric", name, self.metrics, "result.metrics")
        return self.metrics[name]

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A row per round: accuracies (NaN where not evaluated), bytes, clusters, failures, diagnostics.

        Columns that no round measured are left out.
        """
        table = rounds_table(self._reports).dropna(axis=1, how="all")
        return table.astype(dict.fromkeys(table.select_dtypes(object), float))

    @cached_property
    def clients(self) -> pd.DataFrame:
        """A row per client: samples, scores, cluster, number of its rounds; its name, if the caller gave one.

        Columns that no client has are left out.
        """
        table = clients_table(self._outcome, self.partition.sizes, self.partition.groups)
        if self._names:
            table.insert(1, "name", [self._names[client] for client in table["client"]])
        return table.dropna(axis=1, how="all")

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """A row per client and test sample, for `fedflow.predictions`.

        Raises `FedflowError` if they were not kept, with ``keep_predictions=True``.
        """
        if PREDICTIONS_FILE not in self._files:
            raise FedflowError("predictions were not kept: run with keep_predictions=True")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / PREDICTIONS_FILE
            self._files[PREDICTIONS_FILE](file)
            return pd.read_parquet(file)

    @property
    def partition(self) -> Partition:
        """The samples of every client."""
        return self._partition

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """Data, partition, model, method, training and run, with all defaults."""
        return copy.deepcopy(self._settings)

    def _described(self) -> dict[str, dict[str, Any]]:
        simulation, job = self._simulation, self._simulation.job
        steps = [*simulation.settings.updates, *simulation.extensions]
        return {
            **{section: dict(values) for section, values in self._inputs.items()},
            "method": {"name": titles(job.method)[0], **job.method.as_dict(), **codes([job.method])},
            "training": job.training.as_dict() | codes(job.training.extensions.values()),
            "run": simulation.settings.as_dict() | codes(steps),
        }

    def model(self, client: int | None = None) -> nn.Module:
        """The model for a ``client``, in evaluation mode; without a client, the only global model.

        Raises `BadInput` for a client that does not exist, or if clients have different models.
        """
        return self._models.module(client)

    def save(self, folder: str | Path) -> Path:
        """Write the result into ``folder``, which it returns; `pickle` keeps the whole object in one file.

        ``metrics.json``, ``params.json`` with the settings, ``rounds.csv``, ``clients.parquet`` and further
        files such as ``predictions.parquet`` as in the results of ``fedflow run``, and the models in
        ``models.safetensors``, each name after ``client/``, ``cluster/``, ``level/`` or ``global/`` and its
        number. Raises `BadInput` for a folder with results of other settings, data or seed, or with files of
        these names that no run has written.
        """
        folder = Path(folder).expanduser()
        if folder.is_file() or (folder.suffix in FILES and not folder.is_dir()):
            raise BadInput("folder", str(folder), "a folder; pickle.dumps(result) is the result in one file")
        known = {"method": self.settings["method"]["name"], "seed": self.seed} | self.metrics
        held = {name: read_fact(folder / MARKER, name) for name in ("method", "seed")}
        if (folder / IDENTITY).exists():
            raise BadInput("folder", str(folder), "another folder; this one has a recorded run")
        if (folder / MARKER).exists() and held.items() - known.items():
            here = f"{held['method']} with seed {held['seed']}"
            raise BadInput("folder", str(folder), f"another folder; this one has results of {here}")
        if (folder / MARKER).exists() and (words := _other_settings(folder / PARAMS, self.settings)):
            raise BadInput("folder", str(folder), f"another folder; this one has results with {words}")
        tensors = partial(save_file, self._models.tensors())
        files: dict[str, Write | None] = {
            **self._files,
            PARAMS: partial(write_json, value=self.settings),
            ROUNDS: partial(self.rounds.to_csv, index=False, float_format="%.9g"),
            CLIENTS: partial(self.clients.to_parquet, index=False),
            "models.safetensors": tensors,
        }
        others = sorted(name for name in files if (folder / name).exists())
        if others and not any((folder / name).exists() for name in (MARKER, PARTIAL)):
            accepted = f"another folder; this one has files that no run has written, such as {others[0]}"
            raise BadInput("folder", str(folder), accepted)
        files[MARKER] = partial(write_json, value=known | {"files": sorted(files)})
        replace_files(folder, files, MARKER)
        return folder

    def plot(self, metric: str | None = None, x: str = "round") -> "Figure":
        """A curve of ``metric`` (default: the accuracy or loss) by "round", "traffic" or "time".

        Raises `BadInput` for a metric that no round measured.
        """
        return compare(self).plot(metric, x)

    def __repr__(self) -> str:
        numbers = ", ".join(_in_words(name, self.metrics[name]) for name in _headline([self]))
        rounds = f"{len(self.rounds)} round{'s' if len(self.rounds) > 1 else ''}"
        return f"<{self.label}, seed {self.seed}, {rounds}: {numbers}>"

    def _repr_html_(self) -> str:
        return compare(self)._repr_html_()


class Models:
    """The models of a finished run, by number, and the number of the model of every client, -1 = none."""

    def __init__(self, simulation: Simulation, outcome: Outcome) -> None:
        job, levels = simulation.job, list(simulation.levels)
        whole = simulation.federation
        self.serves, count = job.method.serves, simulation.clients
        self._vectors = outcome.models
        self._networks: Callable[[int], FlatModel] = lambda number: whole.model
        self.numbers = np.full(count, -1)
        if self.serves == "global":
            self.numbers[:] = 0
        elif self.serves == "personal":
            self.numbers = np.arange(count)
        elif self.serves == "cluster":
            self.numbers = np.asarray(outcome.scores.cluster[:count], np.int64)
        elif self.serves == "level":
            from fedflow.simulation.levels import network

            self.numbers[:] = [levels.index(simulation.level(client)) for client in range(count)]
            self._networks = lambda number: network(job.method, whole, levels[number])
        self._modules: dict[int, nn.Module] = {}

    def __getstate__(self) -> dict[str, Any]:
        modules = {number: self._module(number) for number in self._known()}
        return {"serves": self.serves, "numbers": self.numbers, "_modules": modules, "_vectors": {}}

    def _known(self) -> list[int]:
        return list(self._vectors or self._modules)

    def _module(self, number: int) -> nn.Module:
        if number in self._modules:
            return copy.deepcopy(self._modules[number])
        return self._networks(number).to_module(self._vectors[number])

    def module(self, client: int | None) -> nn.Module:
        """The model of a client, or the only one."""
        known = self._known()
        if client is None:
            if len(known) > 1:
                kind = KINDS.get(self.serves, self.serves)
                given = f"a client, as the run has {len(known)} models, one per {kind}"
                raise BadInput("client", None, given)
            return self._module(known[0])
        if type(client) is not int and not isinstance(client, np.integer):
            raise BadInput("client", client, "a whole number")
        if not 0 <= client < len(self.numbers):
            raise BadInput("client", client, f"a whole number from 0 to {len(self.numbers) - 1}")
        if (number := int(self.numbers[client])) not in known:
            raise FedflowError(f"the model of client {client} was not kept")
        return self._module(number)

    def tensors(self) -> dict[str, Tensor]:
        """The parameters and buffers of all models, by their kinds and numbers."""
        kind = KINDS.get(self.serves, self.serves)
        return {
            f"{kind}/{number}/{name}": tensor.detach().cpu().clone().contiguous()
            for number in self._known()
            for name, tensor in self._module(number).state_dict().items()
        }


class Comparison:
    """Several runs side by side: ``results`` of every label, which differ in their seeds."""

    def __init__(self, results: Mapping[str, Sequence[Result]]) -> None:
        self.results = {label: list(group) for label, group in results.items()}

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per label: seeds, mean and sample standard deviation (``_std``) of the headline metrics.

        NaN if a seed has no value, such as a target that it did not reach. If seeds draw the division of the
        data, also the number of divisions.
        """
        rows = {}
        for label, group in self.results.items():
            row: dict[str, Any] = {"seeds": len(group)} | self._divisions(group)
            for name in self._columns:
                values = _values(group, name)
                complete = len(values) == len(group)
                row[name] = float(np.mean(values)) if complete else float("nan")
                several = complete and len(values) > 1
                row[f"{name}_std"] = float(np.std(values, ddof=1)) if several else float("nan")
            rows[label] = row
        return pd.DataFrame.from_dict(rows, orient="index")

    def _divisions(self, group: Sequence[Result]) -> dict[str, int]:
        """The number of divisions of the data, if seeds draw them."""
        redrawn = any("redraw" in r.settings["partition"] for rs in self.results.values() for r in rs)
        return {"divisions": len({r.partition.hash for r in group})} if redrawn else {}

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
        from fedflow.pictures.accuracy import AXES, Line, curve
        from fedflow.pictures.accuracy import heading as title

        if x not in AXES:
            raise BadInput("x", x, f"one of {', '.join(AXES)}")
        colors = {label: i for i, label in enumerate(self.results)}
        lines = {label: [Line(label, r.rounds) for r in group] for label, group in self.results.items()}
        metric = self._metric(metric)
        facts = metric_of(metric)
        words = f"{title(facts, x)}{', %' * facts.label.endswith(', %')}" if facts else f"{metric} by {x}"
        return curve(lines, colors, metric, x, name, title=words)

    def __repr__(self) -> str:
        some = [f"{label}: {words} have {name}" for (label, name), words in self._incomplete.items()]
        return "\n".join([repr(self.table), *some])

    def _repr_html_(self) -> str:
        from fedflow.pictures.drawing import SERIES

        counts = [name for name in ("seeds", "divisions") if name in self.table]
        head = ["", *counts, *map(heading, self._columns)]
        lines = ["".join(f"<th {CELL}>{escape(word)}</th>" for word in head)]
        for label, row in self.table.iterrows():
            cells = [escape(str(label)), *(str(int(row[name])) for name in counts)]
            for name in self._columns:
                mean, spread = (None if np.isnan(v) else v for v in (row[name], row[f"{name}_std"]))
                text = printed(name, mean) + ("" if spread is None else f" ± {printed(name, spread)}")
                cells.append(self._incomplete.get((str(label), name), text))
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
    def _incomplete(self) -> dict[tuple[str, str], str]:
        """Labels and metrics that some seeds have and others not, as "2 of 3 seeds"."""
        return {
            (label, name): f"{count} of {len(group)} seeds"
            for label, group in self.results.items()
            for name in self._columns
            if 0 < (count := len(_values(group, name))) < len(group)
        }

    @cached_property
    def _columns(self) -> list[str]:
        return _headline([result for group in self.results.values() for result in group])


def compare(
    *results: Result | Sequence[Result | Sequence[Result]] | Mapping[str, Result | Sequence[Result]],
    **named: Result | Sequence[Result],
) -> Comparison:
    """Compare runs: ``compare(a, b)`` by their methods, or ``compare(small=a, large=[b, c])`` by names.

    A list stands for its runs, and a mapping for its names. Runs that differ only in their seeds are one row.
    Runs of one method with different settings are rows named after the differences. Raises `BadInput` for two
    runs with equal settings and seed, and for runs with different settings under one name.
    """
    groups: dict[str, list[Result]] = {}
    loose = [
        result for given in results if not isinstance(given, Mapping) for result in _runs("results", given)
    ]
    names = [entry for given in results if isinstance(given, Mapping) for entry in given.items()]
    for label in dict.fromkeys(result.label for result in loose):
        group = [result for result in loose if result.label == label]
        for result, words in zip(group, _differences(group)):
            groups.setdefault(" · ".join([label, *words]), []).append(result)
    for name, given in [*((str(name), given) for name, given in names), *named.items()]:
        if not (runs := _runs(name, given)):
            raise BadInput(name, given, "at least one result of fedflow.run")
        group = groups.setdefault(name, [])
        group.extend(runs)
        if differ := next((words for words in _differences(group) if words), None):
            raise BadInput(name, Words(differ[0]), "runs that differ only in their seeds")
    if not any(groups.values()):
        raise BadInput("results", None, "at least one result of fedflow.run")
    for label, group in groups.items():
        seeds = [result.seed for result in group]
        if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
            accepted = "different seeds, or a name for each: compare(a=..., b=...)"
            raise BadInput("results", Words(f"{label} twice with seed {twice[0]}"), accepted)
    return Comparison(groups)


def _runs(name: str, given: Any) -> list[Result]:
    """The runs of a list, also of lists, or a single one."""
    parts = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    runs = [run for part in parts for run in (part if isinstance(part, list | tuple) else [part])]
    if wrong := [run for run in runs if not isinstance(run, Result)]:
        raise BadInput(
            name, Words(f"a {type(wrong[0]).__name__}"), "results of fedflow.run, or lists of them"
        )
    return runs


def _differences(results: Sequence[Result]) -> list[list[str]]:
    """For every run, the settings that differ between the runs, in words."""
    settings = [flat(result.settings, empty=True) for result in results]
    names = _differing(settings)
    return [[", ".join(say(name, v.get(name)) for name in names)] if names else [] for v in settings]


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the settings that are not the same in all of these."""
    names = dict.fromkeys(name for values in settings for name in values)
    rows = {name: [v.get(name) for v in settings if name in v or name not in LATER] for name in names}
    return [name for name, row in rows.items() if any(value != row[0] for value in row)]


def _other_settings(file: Path, settings: Mapping[str, Any]) -> str:
    """The settings in a saved ``params.json`` that differ from these, in words; empty if none do."""
    if not file.exists():
        return ""
    saved, now = json.loads(file.read_text()), json.loads(json.dumps(settings))
    held, ours = (flat(values, empty=True) for values in (saved, now))
    return ", ".join(say(name, held.get(name)) for name in _differing([held, ours]))


def _values(results: Sequence[Result], name: str) -> list[float]:
    """The metric of all results that have it."""
    return [r.metrics[name] for r in results if r.metrics.get(name) is not None]


def _headline(results: Sequence[Result]) -> list[str]:
    """The headline metrics that some of these runs have."""
    numbers = {n for r in results for n, v in r.metrics.items() if isinstance(v, int | float)}
    return first_headlines(filter(metric_of, numbers), COLUMNS)


def _in_words(name: str, value: float) -> str:
    """A number as "Local 89.6 %"."""
    words, _, unit = heading(name).rpartition(", ")
    return f"{words} {printed(name, value)} {unit}" if words else f"{unit} {printed(name, value)}"
