"""Commands on finished runs: ``ls``, ``show``, ``compare``, ``stop``, ``export``."""

import json
import re
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from fedflow.cli.options import Root
from fedflow.cli.printing import console, cut, print_indented, print_line, print_table
from fedflow.cli.remembered import remembered, short
from fedflow.errors import BadInput, FedflowError, unknown_name
from fedflow.files import finished_folders, read_fact
from fedflow.finished.contents import HASHES, hashes
from fedflow.metrics.table import first_headlines, heading, headlines, metric_of, printed
from fedflow.naming import counted, flat, say, text
from fedflow.project.identity import changed
from fedflow.project.running import Running, killed, running
from fedflow.tracking.shared import TAGS

IMPORTED = re.compile(rb"\w:[A-Za-z_]")  # a network at an import path, whose code may change
NEEDED = {"clients", "dataset", "method_label", "model", "parameters", "rounds", *TAGS, *HASHES}  # printed
HOMES = ("results", "runs")  # folders of finished runs
COLUMNS, SHOWN = 6, 4  # most numbers in JSON and in a table
SIDE_BY_SIDE = 4  # most runs with a column each in a table of settings
NUMBER, WORDS = 11, 20  # least widths of a number and of settings in a terminal
Json = Annotated[bool, typer.Option("--json", help="Print JSON, with accuracies as shares of 1.")]
MARKER = "metrics.json"
FACTS = ("version", "user", "clusters", "models", "serves", "artifacts", "end", "seconds")  # of recorded runs
PATIENCE = 10.0  # seconds between an interrupt and the end of a process that ignores it


@dataclass(frozen=True)
class Finished:
    """A finished run: name below ``results``, folder, ``metrics.json`` and ``params.json``."""

    name: str
    folder: Path
    metrics: dict[str, Any]
    params: dict[str, Any]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings by dotted name."""
        return flat(self.params, empty=True)

    def facts(self, ended: float | None) -> dict[str, Any]:
        """JSON entries of every finished run."""
        division = {"division": self.division} if self.division else {}
        state = {"state": "finished", "ended": None if ended is None else _local(ended)}
        return {"run": self.name, **division, **state}

    @property
    def division(self) -> str:
        """The partition as the run's seed drew it, or an empty text if all seeds have the same."""
        return self.metrics.get("division", "")

    @property
    def hashes(self) -> dict[str, str]:
        return hashes(self.metrics)

    @property
    def numbers(self) -> dict[str, Any]:
        """The headline metrics that were measured."""
        named = [name for name in headlines(self.metrics) if metric_of(name)]
        return {name: self.metrics[name] for name in named if self.metrics[name] is not None}


def ls(
    runs: Annotated[
        list[str] | None, typer.Argument(help="PARTITION/METHOD/SEED, or patterns such as `*/ditto/*`.")
    ] = None,
    as_json: Json = False,
    root: Root = Path(),
) -> None:
    """List finished runs, newest first, and runs that are running or were killed on this machine.

    Example: `fedflow ls 'mnist5k-dir/*'`.
    """
    live, dead = (
        [run for run in noted if not runs or any(_matches(run.name, pattern) for pattern in runs)]
        for noted in (running(root), killed(root))
    )
    unfinished, named = [run.name for run in (*live, *dead)], runs or []
    unknown = [pattern for pattern in named if not any(_matches(name, pattern) for name in unfinished)]
    if as_json:
        entries: list[dict[str, Any]] = [
            {"run": run.name, "state": "running", "pid": run.pid, "started": run.started} for run in live
        ]
        entries += [{"run": run.name, "state": "killed", "started": run.started} for run in dead]
        # An unknown name is an error, a project without runs is not.
        listed = finished(root, named, unfinished) if unknown else found_below(root, named)
        done, ended = _newest_first(root, listed)
        entries += [run.facts(ended[run.name]) | run.numbers | {"settings": run.settings} for run in done]
        print(json.dumps(entries, indent=1))
        return
    for run in live:
        print_line(f"running: {run.name}, process {run.pid}, since {run.started}; `fedflow stop {run.name}`")
    for run in dead:
        print_line(f"killed: {run.name}, started {run.started}; rerun its command to resume")
    if unfinished and not unknown and not found_below(root, named):
        return
    done, ended = _newest_first(root, finished(root, named, unfinished))
    redrawn = any(run.division for run in done)
    room = console.width - max(len(run.name + run.division) for run in done) - len("2026-01-01") - WORDS
    names = _measured(done)[: max(1, min(SHOWN, room // NUMBER))]
    settings, rows = _own_settings(done), []
    for finished_run in done:
        numbers = (printed(name, finished_run.metrics.get(name)) for name in names)
        of_seed = [finished_run.division] if redrawn else []
        day = _day(ended[finished_run.name])
        rows.append((finished_run.name, *of_seed, *numbers, day, settings[finished_run.name]))
    columns = ("run", *["division"] * redrawn, *map(heading, names), "ended", "settings that differ")
    print_table(counted(len(done), "finished run"), columns, rows)
    _say_outdated(root, done)


def _say_outdated(root: Path, runs: list[Finished]) -> None:
    """Print how many of the runs had other settings or code than the grid of params.yaml now has."""
    if not (file := root / "params.yaml").is_file():
        return

    def make() -> dict[str, tuple[str, str]]:
        from fedflow.config import load_params
        from fedflow.stages.grid import current  # imports torch

        return current(load_params(file), root)

    try:
        text = file.read_bytes()
        named = f"current-{short(root.resolve())}"
        now = make() if IMPORTED.search(text) else remembered(named, make, text)
    except FedflowError as error:
        warnings.warn(f"cannot tell which runs have outdated settings or code ({error})", stacklevel=1)
        return
    counts = Counter(why for run in runs if (why := changed(run.folder, run.metrics, now)))
    for why, count in counts.items():
        print_line(f"outdated: {counted(count, 'run')}, whose {why} changed; see `fedflow sweep --dry-run`")


def _own_settings(runs: list[Finished]) -> dict[str, str]:
    """Settings of every run that differ from its method's runs, or for training and rounds, from all runs."""
    by_method: dict[str, list[Finished]] = {}
    for run in runs:
        by_method.setdefault(run.name.rpartition("/")[0], []).append(run)
    shared = [n for n in _differing([run.settings for run in runs]) if n.startswith(("training.", "run."))]
    words = {}
    for group in by_method.values():
        differ = dict.fromkeys([*_differing([run.settings for run in group]), *shared])
        for run in group:
            words[run.name] = ", ".join(say(n, run.settings[n]) for n in differ if n in run.settings)
    return words


def _newest_first(root: Path, runs: list[Finished]) -> tuple[list[Finished], dict[str, float | None]]:
    """Runs by recorded end, newest first, and the ends in seconds since 1970 (None and last if unknown).

    Times of files are not used, because copies, git and `dvc pull` change them.
    """
    from fedflow.tracking.lineage import ends, run_key

    recorded = {}
    if runs:
        try:
            recorded = ends(root)
        except FedflowError as error:
            warnings.warn(f"cannot tell when runs ended ({error})", stacklevel=1)
    ended = {run.name: recorded.get(key) if (key := run_key(run.metrics)) else None for run in runs}
    return sorted(runs, key=lambda run: ended[run.name] or 0, reverse=True), ended


def _local(moment: float | None) -> str:
    """Date and time of seconds since 1970, in local time."""
    return "unknown" if moment is None else f"{datetime.fromtimestamp(moment):%Y-%m-%d %H:%M}"


def _day(ended: float | None) -> str:
    """The day of a moment, or the time if it is today."""
    day, _, clock = _local(ended).partition(" ")
    return clock if day == f"{datetime.now():%Y-%m-%d}" else day


def stop(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Running runs: PARTITION/METHOD/SEED, or patterns.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Stop all runs of the project.")] = False,
    root: Root = Path(),
) -> None:
    """Stop this project's runs on this machine, as Ctrl-C does; rerun their commands to resume.

    Example: `fedflow stop mnist5k-dir/ditto/0`. Without a name, it lists all running runs.
    """
    live = running(root)
    if everything and runs:
        raise BadInput("--all", "with names", "either --all or names")
    if not live:
        raise FedflowError("no run of this project is running on this machine")
    wanted = [run for run in live if everything or any(_matches(run.name, pattern) for pattern in runs or [])]
    for pattern in runs or ():
        if not any(_matches(run.name, pattern) for run in live):
            raise unknown_name("run", pattern, [run.name for run in live])
    for run in live if not wanted else ():
        print_line(f"running: {run.name}, process {run.pid}, since {run.started}")
    sent = [run for run in wanted if run.interrupt()]
    end = time.monotonic() + PATIENCE
    for run in sent:
        if not _ended(run, root, end):
            run.terminate()
            if not _ended(run, root, time.monotonic() + PATIENCE):
                raise FedflowError(
                    f"cannot stop {run.name}: process {run.pid} is still running; `kill -9 {run.pid}` ends it"
                )
        print_line(f"stopped: {run.name}; rerun its command to resume")
    if others := [run.name for run in wanted if run not in sent]:
        raise FedflowError(f"not stopped, as they belong to other users: {', '.join(others)}")


def _ended(run: Running, root: Path, latest: float) -> bool:
    """Wait for the end of a run until the moment ``latest``; False if it is still running then."""
    while run in running(root):
        if time.monotonic() > latest:
            return False
        time.sleep(0.2)
    return True


def export(
    run: Annotated[str, typer.Argument(help="A finished run: PARTITION/METHOD/SEED, or its folder.")],
    file: Annotated[Path, typer.Argument(help="The safetensors file to write.")],
    client: Annotated[
        int | None,
        typer.Option(help="The client whose model to export; needed if clients have different models."),
    ] = None,
    root: Root = Path(),
) -> None:
    """Write the model that a finished run serves to a safetensors file, without pruned channels.

    Example: `fedflow export mnist5k-dir/ditto/0 client7.safetensors --client 7`. To load it in Python:
    `fedflow.import_model("client7.safetensors")`.
    """
    import pandas as pd

    exported = _single(root, run)
    if client is not None:
        clients = pd.read_parquet(exported.folder / "clients.parquet", columns=["client"])["client"]
        if client not in set(clients):
            raise BadInput("--client", client, f"a client of {exported.name}: 0 to {clients.max()}")
    if not file.parent.is_dir():
        raise BadInput("file", str(file), f"a file in an existing folder; {file.parent} is not one")

    from fedflow.tracking.models import export_model, served_model, sought  # imports torch

    try:
        number, which = served_model(*sought(exported.metrics), client, root)
    except BadInput as error:
        raise error.renamed("--client") from None
    size: Any = export_model(file, number, which, client, root).size
    print_line(f"{file}: {which} model, {size.parameters:,} parameters, {size.bytes:,} bytes")


def show(
    run: Annotated[str, typer.Argument(help="A finished run: PARTITION/METHOD/SEED, or its folder.")],
    as_json: Json = False,
    root: Root = Path(),
) -> None:
    """Show one finished run: its lineage from data to models, settings, numbers and files.

    Example: `fedflow show mnist5k-dir/ditto/0`.
    """
    shown = _single(root, run)
    recorded = _recorded(root, shown)
    metrics, partition = shown.metrics, shown.params["partition"]
    if as_json:
        facts = {"metrics": metrics, "settings": shown.settings, "record": recorded}
        print(json.dumps(shown.facts(recorded.get("end")) | facts, indent=1))
        return
    scheme = [say(f"method.{name}", value) for name, value in (partition.get("parameters") or {}).items()]
    method = f"{metrics['method_label']} ({metrics['method']}), seed {metrics['seed']}"
    origin = ((name, recorded.get(name, "")) for name in ("command", "commit", "version", "user"))
    took = f" after {recorded['seconds']:,.0f} s" if recorded else ""
    took += ", with interruptions" if recorded.get("resumed") else ""
    rows = [
        ("data", f"{metrics['dataset']}  {metrics['data_hash']}"),
        ("partition", f"{shown.division or metrics['partition']}  {metrics['partition_hash']}"),
        ("", ", ".join([partition["scheme"], *scheme, f"{metrics['clients']} clients"])),
        ("run", recorded["recorded"] if recorded else "no record found"),
        ("", f"{method}, {counted(metrics['rounds'], 'round')}, ended {_local(recorded.get('end'))}{took}"),
        ("network", f"{metrics['model']}, {metrics['parameters']:,} parameters"),
        *_clusters_and_models(shown, recorded),
        *((name, value) for name, value in origin if value),
    ]
    print_table(shown.name, ("", ""), rows)
    print_line("")
    print_table(f"settings {metrics['settings']}", ("", ""), _by_section(shown.params))
    print_line("")
    print_table("numbers", ("", ""), [(heading(name), printed(name, v)) for name, v in shown.numbers.items()])
    print_line("")
    files = sorted(file for file in shown.folder.iterdir() if file.is_file())
    print_line(f"files in {shown.folder}")
    print_table("", ("", "bytes"), [(file.name, f"{file.stat().st_size:,}") for file in files])
    if recorded:
        print_line("")
        print_line(f"artifacts: {recorded['artifacts']}")


def _clusters_and_models(run: Finished, recorded: dict[str, Any]) -> list[tuple[str, str]]:
    """Clusters, and registered models with the clients that they serve."""
    rows = []
    if digest := recorded.get("clusters"):
        rows.append(("clusters", f"{counted(run.metrics['clusters'], 'cluster')}  {digest}"))
    for name in recorded.get("models", []):
        serves = recorded["serves"][name]
        rows.append(("model", f"{name}, serves {serves}" if serves else name))
    return rows


def _by_section(params: dict[str, Any]) -> list[tuple[str, str]]:
    """Settings other than null, a row per section."""
    rows = []
    for section, values in params.items():
        settings = flat(values) if isinstance(values, dict) else {}
        if words := [say(f"run.{name}", value) for name, value in settings.items() if value is not None]:
            rows.append((section, ", ".join(words)))
    return rows


def compare(
    runs: Annotated[
        list[str], typer.Argument(help="PARTITION/METHOD/SEED, or patterns: 'mnist5k-dir/*' (all below).")
    ],
    as_json: Json = False,
    root: Root = Path(),
) -> None:
    """Compare finished runs: means over their seeds, and the settings in which they differ.

    Example: `fedflow compare 'mnist5k-dir/fedavg/*' 'mnist5k-dir/ditto/*'`. Runs of equal settings and
    data are averaged; ± is the sample standard deviation. For more detail, run `fedflow report`.
    """
    by_seed: dict[tuple[str, ...], dict[int, Finished]] = {}
    for run in finished(root, runs):  # of two with an equal key and seed, the one in <seed> comes first
        key = tuple(run.metrics[name] for name in ("partition", "method", "settings"))
        key += tuple(run.hashes.values())
        by_seed.setdefault(key, {}).setdefault(run.metrics["seed"], run)
    groups = {key: [*seeds.values()] for key, seeds in by_seed.items()}
    names = _measured([run for group in groups.values() for run in group])
    firsts = [group[0] for group in groups.values()]
    settings, unlike = [run.settings | run.hashes for run in firsts], _unlike_data(firsts)
    differ = [*unlike, *_differing([run.settings for run in firsts])]
    if as_json:
        entries = [
            {
                "partition": partition,
                "method": method,
                "seeds": [run.metrics["seed"] for run in group],
                **({"divisions": [run.division for run in group]} if group[0].division else {}),
                "metrics": {name: _values(group, name) for name in names},
                "settings": {name: values.get(name) for name in differ},
            }
            for ((partition, method, *_), group), values in zip(groups.items(), settings, strict=True)
        ]
        print(json.dumps(entries, indent=1))
        return
    shown = first_headlines(names, SHOWN)
    labels, redrawn = _labels(firsts, unlike), any(run.division for run in firsts)
    rows = [
        (
            label,
            str(len(group)),
            *[str(len({run.division for run in group}))] * redrawn,
            *(_spread(name, _values(group, name), len(group)) for name in shown),
        )
        for label, group in zip(labels, groups.values(), strict=True)
    ]
    print_table("", ("run", "seeds", *["divisions"] * redrawn, *map(heading, shown)), rows)
    _say_outdated(root, [run for group in groups.values() for run in group])
    if differ and len(groups) > 1:
        print_line("")
        if len(groups) <= SIDE_BY_SIDE:
            rows = [(name, *(cut(values.get(name), 40) for values in settings)) for name in differ]
            print_table("settings that differ", ("", *labels), rows)
        else:
            print_line("settings that differ")
            _print_by_value(differ, labels, settings)


def _unlike_data(runs: list[Finished]) -> list[str]:
    """The hashes in which runs on one partition differ."""
    pairs = {name: {(run.metrics["partition"], run.hashes.get(name)) for run in runs} for name in HASHES}
    return [name for name in HASHES if len(pairs[name]) > len({partition for partition, _ in pairs[name]})]


def _labels(runs: list[Finished], unlike: list[str]) -> list[str]:
    """Names of rows, with hashes of the data where rows would have the same name."""
    labels = [_label(run) for run in runs]
    shared = {label for label, count in Counter(labels).items() if count > 1}
    return [
        " · ".join([label, *(say(name, run.hashes[name][:8]) for name in unlike if name in run.hashes)])
        if label in shared
        else label
        for label, run in zip(labels, runs, strict=True)
    ]


def _label(run: Finished) -> str:
    """PARTITION/METHOD, or the pattern of its runs with changed settings."""
    partition, method, last = run.name.split("/")[-3:]
    _, changed, digest = last.partition("-")
    return f"{partition}/{method}/*-{digest}" if changed else f"{partition}/{method}"


def _print_by_value(names: list[str], labels: list[str], settings: list[dict[str, Any]]) -> None:
    """Print every setting with several values, and below it the runs that have each of them."""
    for name in names:
        having: dict[str, list[str]] = {}
        for label, values in zip(labels, settings, strict=True):
            if name in values:
                having.setdefault(text(values[name]), []).append(label)
        lines = [f"{value}: {', '.join(runs)}" for value, runs in having.items()]
        if len(lines) > 1:
            print_line(name)
            for line in lines:
                print_indented(line)


def _differing(settings: list[dict[str, Any]]) -> list[str]:
    """Names of settings in which runs differ, without settings of a single method."""
    digests = [values.get("settings", i) for i, values in enumerate(settings)]
    runs, distinct = Counter(digests), dict(zip(digests, settings))
    if len(distinct) == 1:
        return []

    def differs(name: str) -> bool:
        having = sum(runs[digest] for digest, values in distinct.items() if name in values)
        return having > 1 and len({str(values.get(name)) for values in distinct.values()}) > 1

    names = dict.fromkeys(name for values in distinct.values() for name in values)
    return [name for name in names if name not in ("seed", "settings", "method.name") and differs(name)]


def _single(root: Path, run: str) -> Finished:
    """The one finished run that matches, or the run in a folder of ``--out``."""
    of_run = read_fact(Path(run) / MARKER, "method") is not None
    if of_run and len(found_below(root, [run])) != 1:
        return _read(run, Path(run))
    matching = finished(root, [run])
    if len(matching) > 1:
        raise BadInput(
            "run", run, f"one run, not {len(matching)}: {', '.join(one_run.name for one_run in matching[:5])}"
        )
    return matching[0]


def finished(root: Path, patterns: list[str], others: Sequence[str] = ()) -> list[Finished]:
    """The finished runs that match the patterns (default: all).

    Raises `FedflowError` if there are none, or none for a pattern that matches none of ``others`` either.
    """
    matching = found_below(root, patterns)
    listed = [*((name, "") for name in others), *((run.name, run.folder.parts[-4]) for run in matching)]
    empty = [pattern for pattern in patterns if not any(_matches(n, pattern, home) for n, home in listed)]
    if matching and not empty:
        return matching
    names = [run.name for run in found_below(root, [])]
    if not names and not (root / "params.yaml").exists():
        from fedflow.config.changing import read_yaml  # imports torch

        read_yaml(root / "params.yaml")  # raises: no project
    close = dict.fromkeys(guess for pattern in empty for guess in get_close_matches(pattern, names))
    meant = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
    matching_none = f" matches {' or '.join(empty or patterns)}" if patterns else ""
    more = "`fedflow ls` lists all finished runs" if names else "`fedflow sweep` runs the grid"
    live = [run.name for run in running(root) if any(_matches(run.name, pattern) for pattern in empty)]
    more = f"{', '.join(live)}: still running" if live else more
    raise FedflowError(f"no finished run{matching_none}{meant}; {more}")


def found_below(root: Path, patterns: list[str]) -> list[Finished]:
    """The finished runs in results and runs that match any of the patterns (default: all), by name."""
    by_name = dict[str, Finished]()
    for folder in finished_folders(root / "results", 2):
        home, name = folder.parts[-4], "/".join(folder.parts[-3:])
        if not (folder / MARKER).is_file():
            continue
        twin = home == "runs" and (root / "results" / name / MARKER).is_file()
        if patterns and not any(
            _matches(name, pattern, home) and not (twin and pattern == name) for pattern in patterns
        ):
            continue
        name = f"{home}/{name}" if twin else name
        by_name[name] = _read(name, folder)
    return sorted(by_name.values(), key=lambda run: (run.name.startswith("runs/"), run.name))


def _read(name: str, folder: Path) -> Finished:
    """A finished run that is called ``name``, from its folder."""
    try:
        metrics, params = (json.loads((folder / file).read_text()) for file in (MARKER, "params.json"))
        if not isinstance(metrics, dict) or not isinstance(params, dict):
            raise ValueError("not a mapping")
        if missing := NEEDED - metrics.keys() or {"partition"} - params.keys():
            raise ValueError(f"lacks {min(missing)}")
    except (OSError, ValueError) as error:
        raise FedflowError(f"{folder}: damaged ({error}); run this experiment again, with --again") from error
    return Finished(name, folder, metrics, params)


def _matches(name: str, pattern: str, home: str = "") -> bool:
    """True if a run in ``home`` has this name, is below this folder, or matches the pattern."""
    first, _, rest = pattern.rstrip("/").partition("/")
    if first in HOMES and home not in ("", first):
        return False
    name, pattern = name.removeprefix("runs/"), (rest or "*") if first in HOMES else pattern.rstrip("/")
    return name.startswith(f"{pattern}/") or fnmatch(name, pattern) or fnmatch(name, f"{pattern}/*")


def _measured(runs: list[Finished]) -> list[str]:
    """Headline metrics of these runs."""
    return first_headlines({name for run in runs for name in run.numbers}, COLUMNS)


def _values(runs: list[Finished], name: str) -> list[float]:
    return [run.metrics[name] for run in runs if run.metrics.get(name) is not None]


def _spread(name: str, values: list[float], runs: int) -> str:
    """Mean ± sample standard deviation, and the number of values if some of the ``runs`` have none."""
    if not values:
        return ""
    mean = printed(name, statistics.fmean(values) if len(set(values)) > 1 else values[0])
    spread = statistics.stdev(values) if len(values) > 1 else 0
    mean += f" ± {printed(name, spread)}" if spread else ""
    return mean if len(values) == runs else f"{mean} ({len(values)} of {runs})"


def _recorded(root: Path, run: Finished) -> dict[str, Any]:
    """Facts from MLflow on a run, empty without a record or if it cannot be read."""
    from fedflow.tracking.lineage import recorded_runs, run_key

    key = run_key(run.metrics)
    try:
        facts = recorded_runs(root, key).get(key) if key else None
    except FedflowError as error:
        warnings.warn(f"without facts from the record: {error}", stacklevel=2)
        return {}
    if facts is None:
        return {}
    commit = f"{facts['commit']} {'+ changes' if facts['changed'] else ''}".strip()
    others = {name: facts[name] for name in FACTS}
    return {"recorded": facts["run_id"], "command": facts["command"], "commit": commit} | others
