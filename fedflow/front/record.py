"""`run(record=folder)`: adds the settings to params.yaml of a project, and runs as `fedflow run` does."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from typing import Any

from fedflow.config import PARAMS, Params, load_params, read_yaml
from fedflow.config.sections import REDRAW
from fedflow.data import Dataset, DatasetParams
from fedflow.data.params import PATHS
from fedflow.data.sources import SOURCES
from fedflow.errors import BadInput, FedflowError
from fedflow.files import make_writable, replace_text
from fedflow.front.inputs import Division, Network, Source, default_network, network_entry, prepared
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS, Method
from fedflow.methods.protocols import server_data
from fedflow.partition import PartitionParams
from fedflow.plugins import plugins
from fedflow.project.yaml_text import as_yaml
from fedflow.settings import Settings, Words, explain
from fedflow.simulation.executors import Inline
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import Outcome
from fedflow.simulation.settings import RunSettings
from fedflow.stages.experiment import Experiment
from fedflow.stages.federate import Listener, perform
from fedflow.stages.inputs import make_inputs
from fedflow.stages.tune import written_alone

HEAD = "# Written by fedflow.run(record=...), which adds the settings of every further run.\n"


def recorded(
    root: Path,
    data: Source,
    division: Division,
    network: Network | None,
    method: Method,
    training: LocalTraining,
    run: RunSettings,
    seed: int,
    redraw: str,
    changes: Sequence[str],
    listeners: Sequence[Listener],
) -> tuple[Simulation, Outcome, Path]:
    """Add the run to ``params.yaml`` in the folder ``root``, and run it as ``fedflow run`` does.

    ``changes`` are as for `load_params`. Returns the finished simulation and the folder of the results.
    Raises `BadInput` for arrays, modules, unregistered methods and lists of rows, which ``params.yaml``
    cannot name, and if ``root`` has a ``params.yaml`` that `fedflow.run` did not write.
    """
    if isinstance(data, Dataset):
        accepted = "named data: save arrays with numpy.savez, and name them as {'source': 'npz', 'path': ...}"
        raise BadInput("record", Words("a run on your own arrays"), accepted)
    if not isinstance(division, PartitionParams):
        raise BadInput("record", Words("a run on lists of rows"), "a partition scheme")
    if METHODS.get(method.name) is not type(method):
        accepted = "a registered method; `fedflow new method NAME` makes a package with one"
        raise BadInput("record", Words(f"a run of {type(method).__name__}"), accepted)
    if type(method).__module__.partition(".")[0] not in {"fedflow", *plugins()}:
        accepted = "a method of fedflow or of an installed plug-in: see `fedflow new method`"
        raise BadInput(
            "record", Words(f"a run of {method.name}, which the command line does not know"), accepted
        )
    if network is not None and not isinstance(network, str | Mapping):
        raise BadInput("record", Words("a run of your own network"), "the name of a network")
    make_writable(root)
    with written_alone(root / PARAMS):
        values = _read(root / PARAMS)
        model = network_entry(default_network(prepared(data)) if network is None else network)
        if (there := values.get("grid", {"redraw": redraw}).get("redraw", REDRAW[0])) != redraw:
            raise BadInput("redraw", redraw, f"{there}, as in grid of {root / PARAMS}")
        names = _added(values, data, division, model, method, training, run, seed)
        values["grid"] |= {} if redraw == REDRAW[0] else {"redraw": redraw}
        _write(root / PARAMS, values)
    params = load_params(root / PARAMS, changes)
    experiment = Experiment(params, *names, seed, root)
    experiment.check()
    make_inputs([experiment])
    work = perform(experiment, Inline(), listeners)
    return work.simulation, work.outcome, experiment.results_folder


def _read(file: Path) -> dict[str, Any]:
    """The sections of ``params.yaml``, if it exists. Raises `BadInput` if `fedflow.run` did not write it."""
    if not file.exists():
        return {}
    values = read_yaml(file)
    if not file.read_text().startswith(HEAD) or not isinstance(values, dict):
        accepted = "a folder without your own params.yaml, whose comments would be lost; use `fedflow run`"
        raise BadInput("record", str(file.parent), accepted)
    return values


def _write(file: Path, values: dict[str, Any]) -> None:
    replace_text(file, HEAD + as_yaml(values, default_flow_style=None))


def _added(
    values: dict[str, Any],
    data: DatasetParams,
    division: PartitionParams,
    network: dict[str, Any],
    method: Method,
    training: LocalTraining,
    run: RunSettings,
    seed: int,
) -> tuple[str, str]:
    """Add missing entries to the sections, in place; returns the names of partition and method."""
    entry = _absolute(_given(data.flat(), DatasetParams, type(data.parameters)))
    title = re.sub(r"[^A-Za-z0-9._-]+", "-", data.title).strip(".-") or data.source
    source = _put(values, title, data=entry, models=network)
    if public := server_data(method).dataset:
        values["data"].setdefault(public, {"source": public})
    located = _located(division).flat() | {"dataset": source}
    shared = _given(located, PartitionParams, type(division.parameters))
    partition = _put(values, f"{source}-{division.scheme}", partitions=shared)
    if "grid" not in values:  # the first run: all methods share its settings
        values["training"] = _given(training.as_dict(), LocalTraining)
        values["run"] = _given(run.as_dict(), RunSettings)
    grid = values.setdefault("grid", {})
    cell = {"datasets": source, "partitions": partition, "methods": method.name, "seeds": seed}
    for section, item in cell.items():
        grid[section] = list(dict.fromkeys([*grid.get(section, []), item]))
    if public:
        grid["datasets"] = list(dict.fromkeys([*grid["datasets"], public]))
    values.setdefault("engine", {"executor": "inline"})
    name = _method(values, partition, method, training, run)
    grid["methods"] = list(dict.fromkeys([*(n for n in grid["methods"] if n in values["methods"]), name]))
    return partition, name


def _absolute(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of ``data``, also with those within it, whose files do not depend on the working directory."""
    hub = SOURCES[entry["source"]].by_name and not Path(entry.get("path") or "").exists()
    files = [name for name in (PATHS if hub else ("path", *PATHS)) if entry.get(name)]
    paths = {name: str(Path(entry[name]).resolve()) for name in files}
    parts = {"parts": [_absolute(part) for part in entry["parts"]]} if entry.get("parts") else {}
    rest = {"test_of": _absolute(entry["test_of"])} if entry.get("test_of") else {}
    return entry | paths | parts | rest


def _located(division: PartitionParams) -> PartitionParams:
    """The division, whose files do not depend on the working directory."""
    files, changes = division.files(), dict[str, Any]()
    for field in fields(division):
        if isinstance(part := getattr(division, field.name), Settings):
            free = [f.name for f in fields(part) if not f.metadata.get("choices")]  # type: ignore[arg-type]
            named = {name: value for name in free if (value := getattr(part, name)) in files}
            paths = {name: str(Path(file).resolve()) for name, file in named.items()}
            changes[field.name] = replace(part, **paths)  # type: ignore[type-var]
    return replace(division, **changes)


def _method(
    values: dict[str, Any], partition: str, method: Method, training: LocalTraining, run: RunSettings
) -> str:
    """The name of the entry of ``methods`` with these settings on ``partition``, added if necessary."""
    entries = values.setdefault("methods", {})
    params, wanted = Params.parse(values), (method, training, run)
    for name, entry in entries.items():
        if (entry.get("method") or name) == method.name and _settings(params, name, partition) == wanted:
            return str(name)
    base = _settings(params, method.name, partition)
    changed, local, rounds = (
        {k: v for k, v in new.as_dict().items() if v != old.as_dict()[k]} for new, old in zip(wanted, base)
    )
    entry = changed | ({"training": local} if local else {}) | ({"run": rounds} if rounds else {})
    tuned = entry and method.name in (params.tuned.get(partition) or {})  # they override an entry of its name
    if method.name not in entries and not tuned:
        name = method.name
    else:
        entry, name = {"method": method.name} | entry, _free(entries, method.name)
    entries[name] = entry
    if _settings(Params.parse(values), name, partition) != wanted:
        raise FedflowError(f"record: these settings of {method.name} cannot be written to params.yaml")
    return name


def _settings(params: Params, name: str, partition: str) -> tuple[Settings, ...]:
    return (*params.method(name, partition), params.run_of(name, partition))


def _put(values: dict[str, Any], name: str, **entries: Mapping[str, Any]) -> str:
    """Add an entry to each of these sections, under ``name`` or, if it has other entries, a similar name."""
    for section in entries:
        values.setdefault(section, {})
    if any(values[section].get(name, entry) != entry for section, entry in entries.items()):
        names = values[next(iter(entries))]
        same = (n for n in names if all(values[s].get(n) == e for s, e in entries.items()))
        name = next(same, None) or _free(names, name)
    for section, entry in entries.items():
        values[section][name] = dict(entry)
    return name


def _free(names: Mapping[str, Any], name: str) -> str:
    return next(other for i in count(2) if (other := f"{name}-{i}") not in names)


def _given(values: Mapping[str, Any], *classes: type[Settings]) -> dict[str, Any]:
    """``values`` without the defaults of these settings."""
    defaults = {row["name"]: row["default"] for cls in classes for row in explain(cls)}
    plain = {k: v.as_dict() if isinstance(v, Settings) else v for k, v in defaults.items()}
    return {name: value for name, value in values.items() if plain.get(name, "required") != value}
