"""Commands on finished runs: ``ls``, ``show``, ``compare``. They read result files only, without torch."""

import json
import statistics
import time
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from fedflow.cli.options import Root
from fedflow.cli.printing import print_line, print_table
from fedflow.errors import BadInput, FedflowError, unknown_name
from fedflow.metrics.table import heading, headlines, metric_of, printed
from fedflow.naming import flat, say
from fedflow.running import running

COLUMNS, SHOWN = 6, 4  # numbers in JSON, and in a table, which should fit into 80 columns
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

    @property
    def ended(self) -> str:
        """When its results were written, in local time."""
        return f"{datetime.fromtimestamp((self.folder / MARKER).stat().st_mtime):%Y-%m-%d %H:%M}"

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
    """List the finished runs in results, the newest first, and those that are running on this machine.

    Example: `fedflow ls 'mnist5k-dir/*'`.
    """
    live = [one for one in running(root) if not runs or any(_matches(one.name, each) for each in runs)]
    for one in () if as_json else live:
        print_line(f"running: {one.name}, process {one.pid}, since {one.started}; `fedflow stop {one.name}`")
    if live and not as_json and not any((root / "results").glob(f"*/*/*/{MARKER}")):
        return
    found = sorted(finished(root, runs or []), key=lambda run: run.ended, reverse=True)
    if as_json:
        print(json.dumps([{"run": run.name, "ended": run.ended} | run.numbers for run in found], indent=1))
        return
    names = _measured(found)[:SHOWN]
    rows = [(run.name, *(printed(name, run.metrics.get(name)) for name in names), run.ended) for run in found]
    counted = "1 finished run" if len(found) == 1 else f"{len(found):,} finished runs"
    print_table(counted, ("run", *map(heading, names), "ended"), rows)


def stop(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Running ones: PARTITION/METHOD/SEED, or patterns.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Stop all runs of the project.")] = False,
    root: Root = Path(),
) -> None:
    """Stop runs of this project that are running on this machine, as Ctrl-C does; the same command resumes.

    Example: `fedflow stop mnist5k-dir/ditto/0`. Without a name it lists what is running.
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
    run: Annotated[str, typer.Argument(help="A finished run: PARTITION/METHOD/SEED below results.")],
    file: Annotated[Path, typer.Argument(help="The safetensors file to write.")],
    client: Annotated[
        int | None, typer.Option(help="The client whose model is wanted; needed where clients differ.")
    ] = None,
    root: Root = Path(),
) -> None:
    """Write the model that a finished run serves to a safetensors file, without its pruned channels.

    Example: `fedflow export mnist5k-dir/ditto/0 client7.safetensors --client 7`. In Python:
    `fedflow.tracking.import_model("client7.safetensors")`.
    """
    from fedflow.tracking import export_model, served_model

    one = _single(root, run)
    about = one.metrics
    tags = {name: about[name] for name in ("partition", "method", "seed", "settings")}
    number, which = served_model(tags, f"{about['dataset']}/{about['partition']}", client, root)
    size: Any = export_model(file, number, which, client, root).size
    print_line(f"{file}: {which} model, {size.parameters:,} parameters, {size.bytes:,} bytes")


def show(
    run: Annotated[str, typer.Argument(help="A finished run: PARTITION/METHOD/SEED below results.")],
    as_json: Json = False,
    root: Root = Path(),
) -> None:
    """Show one finished run: where it comes from, its numbers and its files.

    Example: `fedflow show mnist5k-dir/ditto/0`.
    """
    one = _single(root, run)
    if as_json:
        about = {"run": one.name, "ended": one.ended, "metrics": one.metrics, "settings": one.settings}
        print(json.dumps(about | {"record": _recorded(root, one)}, indent=1))
        return
    metrics, partition = one.metrics, one.params["partition"]
    scheme = [say(f"method.{name}", value) for name, value in (partition.get("parameters") or {}).items()]
    print_table(one.name, ("", ""), [
        ("data", f"{metrics['dataset']}  {metrics['data_hash']}"),
        ("partition", f"{metrics['partition']}  {metrics['partition_hash']}"),
        ("", ", ".join([partition["scheme"], *scheme, f"{metrics['clients']} clients"])),
        ("method", f"{metrics['method_label']} ({metrics['method']}), seed {metrics['seed']}"),
        ("network", f"{metrics['model']}, {metrics['parameters']:,} parameters"),
        ("run", f"{metrics['rounds']} rounds, settings {metrics['settings']}"),
        ("ended", one.ended),
    ])  # fmt: skip
    print_line("")
    print_table("numbers", ("", ""), [(heading(name), printed(name, v)) for name, v in one.numbers.items()])
    print_line("")
    files = sorted(file for file in one.folder.iterdir() if file.is_file())
    print_table("files", ("", "bytes"), [(str(file), f"{file.stat().st_size:,}") for file in files])
    if recorded := {name: value for name, value in _recorded(root, one).items() if value}:
        print_line("")
        print_table("record", ("", ""), [*recorded.items()])


def compare(
    runs: Annotated[
        list[str], typer.Argument(help="PARTITION/METHOD/SEED, or patterns: 'mnist5k-dir/*' (all below).")
    ],
    as_json: Json = False,
    root: Root = Path(),
) -> None:
    """Compare finished runs: means over their seeds, and the settings in which they differ.

    Example: `fedflow compare 'mnist5k-dir/fedavg/*' 'mnist5k-dir/ditto/*'`. Runs of equal settings are
    averaged, ± is the sample standard deviation. The report says more: `fedflow report`.
    """
    groups: dict[tuple[str, ...], list[Finished]] = {}
    for run in finished(root, runs):
        about = run.metrics
        groups.setdefault((about["partition"], about["method"], about["settings"]), []).append(run)
    names = _measured([run for own in groups.values() for run in own])
    settings = [own[0].settings for own in groups.values()]
    both = min(2, len(settings))  # what only one of several methods has is on its page: `fedflow methods`
    differ = [
        name
        for name in dict.fromkeys(name for each in settings for name in each)
        if name not in ("seed", "settings", "method.name")
        and sum(name in each for each in settings) >= both
        and len({str(each.get(name)) for each in settings}) > 1
    ]
    if as_json:
        print(json.dumps([
            {
                "partition": key[0], "method": key[1], "seeds": [run.metrics["seed"] for run in own],
                "metrics": {name: _values(own, name) for name in names},
                "settings": {name: own[0].settings.get(name) for name in differ},
            }
            for key, own in groups.items()
        ], indent=1))  # fmt: skip
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


def _single(root: Path, run: str) -> Finished:
    found = finished(root, [run])
    if len(found) > 1:
        raise BadInput("run", run, f"one run, not {len(found)}: {', '.join(each.name for each in found[:5])}")
    return found[0]


def finished(root: Path, patterns: list[str]) -> list[Finished]:
    """The finished runs that match any of the patterns (none: all), by name. `FedflowError` without any."""
    results, found = root / "results", []
    for file in sorted(results.glob(f"*/*/*/{MARKER}")):
        name = "/".join(file.parts[-4:-1])
        if patterns and not any(_matches(name, pattern) for pattern in patterns):
            continue
        try:
            metrics = json.loads(file.read_text())
            params = json.loads((file.parent / "params.json").read_text())
        except (OSError, ValueError) as error:
            raise FedflowError(f"{file.parent}: damaged ({error}); run this experiment again") from error
        found.append(Finished(name, file.parent, metrics, params))
    if not found:
        wanted = " or ".join(patterns) if patterns else "a finished run"
        raise FedflowError(f"no results of {wanted} in {results}; `fedflow ls` lists those that there are")
    return found


def _matches(name: str, pattern: str) -> bool:
    """Whether a run is the one named, below a folder that is named, or matched by a pattern."""
    pattern = pattern.removeprefix("results/").rstrip("/")
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
    mean = printed(name, statistics.mean(values))
    spread = statistics.stdev(values) if len(values) > 1 else 0
    return f"{mean} ± {printed(name, spread)}" if spread else mean


def _short(value: Any, length: int = 40) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _recorded(root: Path, run: Finished) -> dict[str, str]:
    """What MLflow knows of a run: number, origin, clusters and models; empty without a record."""
    from fedflow.tracking.lineage import recorded_runs

    about = run.metrics
    key = (about["partition"], about["method"], str(about["seed"]), about["settings"])
    found = recorded_runs(root).get(key)
    if found is None:
        return {}
    return {
        "recorded": found["run_id"],
        "command": found["command"],
        "commit": f"{found['commit']} {'+ changes' if found['changed'] else ''}".strip(),
        "version": found["version"],
        "user": found["user"],
        "clusters": found["clusters"],
        "models": ", ".join(found["models"]),
    }
