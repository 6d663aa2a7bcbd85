"""Commands on finished runs: ``ls``, ``show``, ``compare``, ``stop``, ``export``."""

import json
import statistics
import time
import warnings
from datetime import datetime
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from fedflow.cli.options import Root
from fedflow.cli.printing import console, print_line, print_table
from fedflow.errors import BadInput, FedflowError, unknown_name
from fedflow.files import check_output, finished_folders
from fedflow.metrics.table import heading, headlines, metric_of, printed
from fedflow.naming import flat, say
from fedflow.project.running import running

COLUMNS, SHOWN = 6, 4  # numbers in JSON, and at most in a table
NUMBER, WORDS = 11, 20  # columns of a terminal that a number and settings need at least
Json = Annotated[bool, typer.Option("--json", help="Print JSON, with accuracies as shares of 1.")]
MARKER = "metrics.json"
PATIENCE = 10.0  # seconds between an interrupt and the end of a process that ignores it


class Finished(NamedTuple):
    """A finished run: its name below ``results``, ``metrics.json`` and ``params.json``."""

    name: str
    folder: Path
    metrics: dict[str, Any]
    params: dict[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """Settings by dotted name."""
        return flat(self.params, empty=True)

    def facts(self, ended: float | None) -> dict[str, Any]:
        """What JSON says of every finished run."""
        return {"run": self.name, "state": "finished", "ended": None if ended is None else _local(ended)}

    @property
    def numbers(self) -> dict[str, Any]:
        """The headline metrics that were measured."""
        named = [name for name in headlines(self.metrics) if metric_of(name)]
        return {name: self.metrics[name] for name in named if self.metrics[name] is not None}


def ls(
    runs: Annotated[
        list[str] | None, typer.Argument(help="PARTITION/METHOD/SEED, or patterns such as '*/ditto/*'.")
    ] = None,
    as_json: Json = False,
    root: Root = Path(),
) -> None:
    """List finished runs, newest first, and runs that are running on this machine.

    Example: `fedflow ls 'mnist5k-dir/*'`.
    """
    live = [one for one in running(root) if not runs or any(_matches(one.name, each) for each in runs)]
    if as_json:
        entries: list[dict[str, Any]] = [
            {"run": one.name, "state": "running", "pid": one.pid, "started": one.started} for one in live
        ]
        named = runs or []
        must_exist = named and not live  # a name of nothing is an error, a project without runs is not
        done, ended = _newest_first(root, finished(root, named) if must_exist else found_below(root, named))
        entries += [run.facts(ended[run.name]) | run.numbers | {"settings": run.settings} for run in done]
        print(json.dumps(entries, indent=1))
        return
    for one in live:
        print_line(f"running: {one.name}, process {one.pid}, since {one.started}; `fedflow stop {one.name}`")
    if live and not found_below(root, []):
        return
    found, ended = _newest_first(root, finished(root, runs or []))
    room = console.width - max(len(run.name) for run in found) - len("2026-01-01") - WORDS
    names = _measured(found)[: max(1, min(SHOWN, room // NUMBER))]
    own = _own_settings(found)
    rows = [
        (
            run.name,
            *(printed(name, run.metrics.get(name)) for name in names),
            _day(ended[run.name]),
            own[run.name],
        )
        for run in found
    ]
    counted = "1 finished run" if len(found) == 1 else f"{len(found):,} finished runs"
    print_table(counted, ("run", *map(heading, names), "ended", "settings that differ"), rows)


def _own_settings(runs: list[Finished]) -> dict[str, str]:
    """By run, its settings that differ: of training and rounds from all others, else from its method's."""
    alike: dict[str, list[Finished]] = {}
    for run in runs:
        alike.setdefault(run.name.rpartition("/")[0], []).append(run)
    shared = [n for n in _differing([run.settings for run in runs]) if n.startswith(("training.", "run."))]
    found = {}
    for group in alike.values():
        differ = dict.fromkeys([*_differing([run.settings for run in group]), *shared])
        for run in group:
            found[run.name] = ", ".join(say(n, run.settings[n]) for n in differ if n in run.settings)
    return found


def _newest_first(root: Path, runs: list[Finished]) -> tuple[list[Finished], dict[str, float | None]]:
    """Runs by their recorded end, and that in seconds since 1970; without one, last and None.

    Times of files are not used: copies, git and `dvc pull` change them.
    """
    from fedflow.tracking.lineage import ends, run_key

    recorded = {}
    if runs:
        try:
            recorded = ends(root)
        except FedflowError as error:
            warnings.warn(f"the ends of runs are unknown ({error})", stacklevel=1)
    ended = {run.name: recorded.get(key) if (key := run_key(run.metrics)) else None for run in runs}
    return sorted(runs, key=lambda run: ended[run.name] or 0, reverse=True), ended


def _local(moment: float | None) -> str:
    """Date and time of seconds since 1970, in local time."""
    return "unknown" if moment is None else f"{datetime.fromtimestamp(moment):%Y-%m-%d %H:%M}"


def _day(ended: float | None) -> str:
    """The day of a moment; the time if that is today."""
    day, _, clock = _local(ended).partition(" ")
    return clock if day == f"{datetime.now():%Y-%m-%d}" else day


def stop(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Running runs: PARTITION/METHOD/SEED, or patterns.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Stop all runs of the project.")] = False,
    root: Root = Path(),
) -> None:
    """Stop runs of this project that are running on this machine, as Ctrl-C does; the same command resumes.

    Example: `fedflow stop mnist5k-dir/ditto/0`. Without a name, it lists all running runs.
    """
    live = running(root)
    if not live:
        raise FedflowError("no run of this project is running on this machine")
    wanted = [one for one in live if everything or any(_matches(one.name, each) for each in runs or [])]
    if not wanted and runs:
        raise unknown_name("run", runs[0], [one.name for one in live])
    for one in live if not wanted else ():
        print_line(f"running: {one.name}, process {one.pid}, since {one.started}")
    for one in wanted:
        one.interrupt()
    end = time.monotonic() + PATIENCE
    for one in wanted:
        while one in running(root) and time.monotonic() < end:
            time.sleep(0.2)
        if one in running(root):
            one.terminate()
        print_line(f"stopped: {one.name}; the same command resumes it")


def export(
    run: Annotated[str, typer.Argument(help="A finished run: PARTITION/METHOD/SEED below results or runs.")],
    file: Annotated[Path, typer.Argument(help="The safetensors file to write.")],
    client: Annotated[
        int | None,
        typer.Option(help="The client whose model to export; needed if clients have different models."),
    ] = None,
    root: Root = Path(),
) -> None:
    """Write the model that a finished run serves to a safetensors file, without pruned channels.

    Example: `fedflow export mnist5k-dir/ditto/0 client7.safetensors --client 7`. To load it in Python:
    `fedflow.tracking.import_model("client7.safetensors")`.
    """
    import pandas as pd

    one = _single(root, run)
    if client is not None:
        clients = pd.read_parquet(one.folder / "clients.parquet", columns=["client"])["client"]
        if client not in set(clients):
            raise BadInput("--client", client, f"a client of {one.name}: 0 to {clients.max()}")
    if not file.parent.is_dir():
        raise BadInput("file", str(file), f"a file in an existing folder; {file.parent} is not one")
    check_output("file", file)

    from fedflow.tracking.models import export_model, served_model  # imports torch and opens the store

    about = one.metrics
    tags = {name: about[name] for name in ("partition", "method", "seed", "settings")}
    try:
        number, which = served_model(tags, f"{about['dataset']}/{about['partition']}", client, root)
    except BadInput as error:
        raise error.renamed("--client") from None
    size: Any = export_model(file, number, which, client, root).size
    print_line(f"{file}: {which} model, {size.parameters:,} parameters, {size.bytes:,} bytes")


def show(
    run: Annotated[str, typer.Argument(help="A finished run: PARTITION/METHOD/SEED below results or runs.")],
    as_json: Json = False,
    root: Root = Path(),
) -> None:
    """Show one finished run: its lineage from data to models, settings, numbers and files.

    Example: `fedflow show mnist5k-dir/ditto/0`.
    """
    one = _single(root, run)
    recorded = _recorded(root, one)
    if as_json:
        about = {"metrics": one.metrics, "settings": one.settings, "record": recorded}
        print(json.dumps(one.facts(recorded.get("end")) | about, indent=1))
        return
    metrics, partition = one.metrics, one.params["partition"]
    scheme = [say(f"method.{name}", value) for name, value in (partition.get("parameters") or {}).items()]
    made = {name: recorded.get(name, "") for name in ("command", "commit", "version", "user")}
    print_table(
        one.name,
        ("", ""),
        [
            ("data", f"{metrics['dataset']}  {metrics['data_hash']}"),
            ("partition", f"{metrics['partition']}  {metrics['partition_hash']}"),
            ("", ", ".join([partition["scheme"], *scheme, f"{metrics['clients']} clients"])),
            ("run", recorded["recorded"] if recorded else "not in the record"),
            (
                "",
                f"{metrics['method_label']} ({metrics['method']}), seed {metrics['seed']}, "
                f"{_counted(metrics['rounds'], 'round')}, ended {_local(recorded.get('end'))}",
            ),
            ("network", f"{metrics['model']}, {metrics['parameters']:,} parameters"),
            *_clusters_and_models(one, recorded),
            *((name, value) for name, value in made.items() if value),
        ],
    )
    print_line("")
    print_table(f"settings {metrics['settings']}", ("", ""), _by_section(one.params))
    print_line("")
    print_table("numbers", ("", ""), [(heading(name), printed(name, v)) for name, v in one.numbers.items()])
    print_line("")
    files = sorted(file for file in one.folder.iterdir() if file.is_file())
    print_line(f"files in {one.folder}")
    print_table("", ("", "bytes"), [(file.name, f"{file.stat().st_size:,}") for file in files])
    if recorded:
        print_line("")
        print_line(f"artifacts: {recorded['artifacts']}")


def _clusters_and_models(run: Finished, recorded: dict[str, Any]) -> list[tuple[str, str]]:
    """The end of the chain: clusters, and registered models with the clients that each serves."""
    rows = []
    if digest := recorded.get("clusters"):
        rows.append(("clusters", f"{_counted(run.metrics['clusters'], 'cluster')}  {digest}"))
    for name in recorded.get("models", []):
        serves = recorded["serves"][name]
        rows.append(("model", f"{name}, serves {serves}" if serves else name))
    return rows


def _by_section(params: dict[str, Any]) -> list[tuple[str, str]]:
    """The settings that are given, a row per section."""
    rows = []
    for section, values in params.items():
        if isinstance(values, dict):
            words = [say(f"run.{name}", value) for name, value in flat(values).items() if value is not None]
            rows.append((section, ", ".join(words)))
    return [row for row in rows if row[1]]


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def compare(
    runs: Annotated[
        list[str], typer.Argument(help="PARTITION/METHOD/SEED, or patterns: 'mnist5k-dir/*' (all below).")
    ],
    as_json: Json = False,
    root: Root = Path(),
) -> None:
    """Compare finished runs: means over their seeds, and the settings in which they differ.

    Example: `fedflow compare 'mnist5k-dir/fedavg/*' 'mnist5k-dir/ditto/*'`. Runs of equal settings are
    averaged; ± is the sample standard deviation. For more detail, run `fedflow report`.
    """
    groups: dict[tuple[str, ...], list[Finished]] = {}
    for run in finished(root, runs):
        about = run.metrics
        groups.setdefault((about["partition"], about["method"], about["settings"]), []).append(run)
    names = _measured([run for own in groups.values() for run in own])
    settings = [own[0].settings for own in groups.values()]
    differ = _differing(settings)
    if as_json:
        print(
            json.dumps(
                [
                    {
                        "partition": key[0],
                        "method": key[1],
                        "seeds": [run.metrics["seed"] for run in own],
                        "metrics": {name: _values(own, name) for name in names},
                        "settings": {name: own[0].settings.get(name) for name in differ},
                    }
                    for key, own in groups.items()
                ],
                indent=1,
            )
        )
        return
    rows = []
    for (partition, method, _), own in groups.items():
        numbers = (_spread(name, _values(own, name)) for name in names[:SHOWN])
        rows.append((f"{partition}/{method}", str(len(own)), *numbers))
    print_table("", ("run", "seeds", *map(heading, names[:SHOWN])), rows)
    if differ and len(groups) > 1:
        print_line("")
        labels = [f"{partition}/{method}" for partition, method, _ in groups]
        rows = [(name, *(_short(each.get(name)) for each in settings)) for name in differ]
        print_table("settings that differ", ("", *labels), rows)


def _differing(settings: list[dict[str, Any]]) -> list[str]:
    """The names of settings in which runs differ.

    What only one of several methods has is on its page: `fedflow methods`.
    """
    both = min(2, len(settings))
    return [
        name
        for name in dict.fromkeys(name for each in settings for name in each)
        if name not in ("seed", "settings", "method.name")
        and sum(name in each for each in settings) >= both
        and len({str(each.get(name)) for each in settings}) > 1
    ]


def _single(root: Path, run: str) -> Finished:
    found = finished(root, [run])
    if len(found) > 1:
        raise BadInput("run", run, f"one run, not {len(found)}: {', '.join(each.name for each in found[:5])}")
    return found[0]


def finished(root: Path, patterns: list[str]) -> list[Finished]:
    """The finished runs that match any of the patterns (none: all), by name. `FedflowError` without any."""
    if not (found := found_below(root, patterns)):
        wanted = " or ".join(patterns) if patterns else "a finished run"
        names = [run.name for run in found_below(root, [])] if patterns else []
        close = dict.fromkeys(guess for each in patterns for guess in get_close_matches(each, names))
        meant = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
        raise FedflowError(
            f"no results of {wanted} in {root / 'results'}{meant}; `fedflow ls` lists all finished runs"
        )
    return found


def found_below(root: Path, patterns: list[str]) -> list[Finished]:
    """The finished runs in results and runs that match any of the patterns (none: all), by name."""
    found = dict[str, Finished]()
    for folder in finished_folders(root / "results", 2):
        name, file = "/".join(folder.parts[-3:]), folder / MARKER
        if not file.is_file() or name in found:
            continue
        if patterns and not any(_matches(name, pattern) for pattern in patterns):
            continue
        try:
            metrics = json.loads(file.read_text())
            params = json.loads((folder / "params.json").read_text())
        except (OSError, ValueError) as error:
            raise FedflowError(f"{folder}: damaged ({error}); run this experiment again") from error
        found[name] = Finished(name, folder, metrics, params)
    return [found[name] for name in sorted(found)]


def _matches(name: str, pattern: str) -> bool:
    """Whether a run is the one named, below a folder that is named, or matched by a pattern."""
    pattern = pattern.removeprefix("results/").removeprefix("runs/").rstrip("/")
    return name.startswith(f"{pattern}/") or fnmatch(name, pattern) or fnmatch(name, f"{pattern}/*")


def _measured(runs: list[Finished]) -> list[str]:
    """The headline metrics that some of these runs have."""
    return headlines({name for run in runs for name in run.numbers})[:COLUMNS]


def _values(runs: list[Finished], name: str) -> list[float]:
    return [run.metrics[name] for run in runs if run.metrics.get(name) is not None]


def _spread(name: str, values: list[float]) -> str:
    """Mean ± sample standard deviation."""
    if not values:
        return ""
    mean = printed(name, statistics.fmean(values) if len(set(values)) > 1 else values[0])
    spread = statistics.stdev(values) if len(values) > 1 else 0
    return f"{mean} ± {printed(name, spread)}" if spread else mean


def _short(value: Any, length: int = 40) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _recorded(root: Path, run: Finished) -> dict[str, Any]:
    """What MLflow knows of a run: number, origin, clusters, models, artifacts; empty without a record."""
    from fedflow.tracking.lineage import recorded_runs, run_key

    key = run_key(run.metrics)
    found = recorded_runs(root).get(key) if key else None
    if found is None:
        return {}
    return {
        "recorded": found["run_id"],
        "command": found["command"],
        "commit": f"{found['commit']} {'+ changes' if found['changed'] else ''}".strip(),
        "version": found["version"],
        "user": found["user"],
        "clusters": found["clusters"],
        "models": found["models"],
        "serves": found["serves"],
        "artifacts": found["artifacts"],
        "end": found["end"],
    }
