"""Write what ``benchmarks/results/`` holds into docs/benchmarks.md: ``python -m benchmarks table``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
WAYS = [(machine, way) for machine in ("run", "one", "two") for way in ("sent", "received")]
BEGIN, END = "<!-- results -->\n", "<!-- /results -->\n"


def main() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n" + "\n".join(sections()) + "\n" + END + after)
    print(f"wrote {PAGE.name}")


def sections(folder: Path = RESULTS) -> list[str]:
    """The tables of all files in ``folder``, under a heading for every machine that one was measured on."""
    measured: dict[str, dict[str, Any]] = {}
    for kind in ("cpu", "gpu"):
        for path in sorted(folder.glob(f"{kind}-*.json")):
            found = json.loads(path.read_text())
            part, own = path.stem.removeprefix(f"{kind}-"), found["measured"]
            if part.startswith("first-"):  # of `first_gpu`: rounds and cohorts have tables
                part, own = part.removeprefix("first-"), own.get("all")
            if own:
                measured.setdefault(_heading(kind, found["machine"]), {})[part] = own
    return ["\n".join([heading, *_tables(rows)]) for heading, rows in measured.items()]


def _heading(kind: str, machine: dict[str, Any]) -> str:
    about = ", ".join(str(machine[key]) for key in ("gpu", "driver", "cpu") if key in machine)
    return f"### {kind.upper()}: {about}, {machine['cores']} cores, torch {machine['torch']}\n"


def _tables(rows: dict[str, Any]) -> list[str]:
    """All tables of one machine, from what its parts measured."""
    known: dict[str, Callable[[Any], str]] = {
        "engine": _engine,
        "peers": _peers,
        "peers-pfl": _peers,
        "workers": _workers,
        "flow": _flow,
        "memory": _memory,
        "scores": _scores,
        "scale": _scale,
        "large": _large,
        "partition": _partition,
        "proximity": _proximity,
        "curriculum": _curriculum,
        "coresets": _coresets,
        "counts": _counts,
        "report": _report,
        "traffic": _traffic,
    }
    tables = [table(rows[name]) for name, table in known.items() if name in rows]
    headlines = {name: measured for name, measured in rows.items() if name.startswith("headline")}
    tables += [_headlines(headlines)] if headlines else []
    tables += [_cohorts(measured) for name, measured in rows.items() if name.startswith("cohorts")]
    return tables


def _engine(rows: dict[str, Any]) -> str:
    head = "client steps per second | of the hand-written loop"
    return _table(
        "one worker's shard",
        head,
        [(n, _median(r["client_steps_per_second"]), _range(r["ratio"])) for n, r in rows.items()],
    )


def _peers(rows: dict[str, Any]) -> str:
    parts = []
    for size in (100, 1000):
        found = rows.get(f"clients_{size}", {})
        lines = [
            (
                f"{name} ({row['package']})" if row["package"] else name,
                row["client_steps_per_second"],
                row["against_hand_written"],
                row["warm_up_seconds"],
                row["peak_memory_mib"] or "",
            )
            for name, row in found.items()
        ]
        head = "client steps per second | of the hand-written loop | warm-up, s | peak memory, MiB"
        if lines:
            about = f"{rows['cohort']} a round, {rows['steps_per_round']} steps"
            parts.append(_table(f"{size:,} clients, {about}", head, lines))
    parts += [f"{name}: skipped, {reason}.\n" for name, reason in rows["skipped"].items()]
    return "\n".join(parts)


def _workers(rows: dict[str, Any]) -> str:
    lines = [
        (kind, _median(row["one_worker_seconds"]), _range(row["ratio"]))
        for kind, row in rows.items()
        if isinstance(row, dict)
    ]
    return _table("two workers", "s a round of one | times as fast as one", lines)


def _flow(row: dict[str, Any]) -> str:
    found = {"on a CPU, a checkpoint every round": row}
    if short := row.get("short_rounds"):
        found["on a device that sleeps, a checkpoint every 5"] = short
    lines = [
        (name, _median(each["bare_seconds"]), _median(each["flow_seconds"]), _range(each["ratio"]))
        for name, each in found.items()
    ]
    return _table("a round", "bare engine, s | whole flow, s | ratio", lines)


def _large(row: dict[str, Any]) -> str:
    seconds = ", ".join(f"{each:.1f}" for each in row["seconds_per_round"])
    rows = ", ".join(f"{each:.2f}" for each in row["rows_gib_per_round"])
    line = (f"{row['parameters']:,}", seconds, rows, row["row_gib"], row["peak_gib"])
    head = "parameters | s of each round | GiB of rows written in each | GiB of a row | peak memory, GiB"
    return _table(f"{row['clients']:,} clients, {row['cohort']} a round, Ditto", head, [("mlp", *line)])


def _memory(rows: dict[str, Any]) -> str:
    lines = [(name, row["peak_mib"], row["peak_mib"] - row["before_mib"]) for name, row in rows.items()]
    return _table("1,000 clients, 50 a round", "peak, MiB | above Python, torch and images", lines)


def _scores(rows: dict[str, Any]) -> str:
    lines = [
        (
            f"{method}, {part}",
            _median(row[f"{part}_cpu"]["forgotten"]),
            _median(row[f"{part}_cpu"]["remembered"]),
            *(_range(row[f"{part}_{clock}"]["ratio"]) for clock in ("cpu", "wall")),
        )
        for method, row in rows.items()
        for part in ("round", "evaluation")
    ]
    head = "all scored, processor s | remembered, processor s | times as fast | by wall time"
    return _table("100 clients, 10 a round", head, lines)


def _scale(rows: dict[str, Any]) -> str:
    lines = [
        (
            f"{name} images",
            " and ".join(f"{run['clients']:,}" for run in row["runs"]),
            " and ".join(f"{run['round_s']:.3f}" for run in row["runs"]),
            f"{row['ratio']:.3f}",
            f"{row['processor_ratio']:.3f}",
            f"{row['mib_above_images']:,}",
        )
        for name, row in rows.items()
    ]
    head = "clients | s a round | ratio | of processor time | memory above the images, MiB"
    return _table("100 clients a round", head, lines)


def _partition(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        options = [f"{name}: {value}" for name, value in row["scheme"].items() if name != "scheme"]
        name = ", ".join([row["scheme"]["scheme"], *options])
        lines.append((name, row["split_seconds"], row["whole_seconds"]))
    head = "split alone, s | with test sets and facts, s"
    return _table("a million samples over 100,000 clients", head, lines)


def _proximity(row: dict[str, Any]) -> str:
    parts = ("signatures", "angles")
    medians = [(_median(row[part]["batched_seconds"]), _median(row[part]["loop_seconds"])) for part in parts]
    lines = [
        *((part, *both, "") for part, both in zip(parts, medians)),
        ("both", "", "", _range(row["ratio"])),
    ]
    head = "batched, s | loop over pairs (scaled), s | times as fast"
    return _table(f"{row['clients']:,} clients", head, lines)


def _coresets(row: dict[str, Any]) -> str:
    lines = [
        (
            f"l = {steps.removeprefix('steps_')}, {form}",
            found["setup_seconds"],
            found["seconds"],
            f"{found['peak_mib'] - found['before_mib']:,.0f}",
            found["ratio"],
        )
        for steps, forms in row["forms"].items()
        for form, found in forms.items()
    ]
    head = "set up, s | all picks, s | memory above the graph, MiB | times as long as incremental"
    return _table(f"{row['picks']} picks of {row['nodes']:,} nodes", head, lines)


def _curriculum(rows: dict[str, Any]) -> str:
    """A cost is shown if every repeat had one; else the difference is noise."""
    head = "local steps | processor time, s | ms more | of vanilla"
    parts = []
    for name, ways in rows.items():
        lines = []
        for way, row in ways.items():
            extra = _median(row["extra_milliseconds"]) if row["ratio"]["min"] > 1 else "within noise"
            cost = ("", "") if way == "vanilla" else (extra, _range(row["ratio"]))
            lines.append((way, row["steps"], _median(row["seconds"]), *cost))
        epochs = name.removeprefix("epochs_")
        word = "epoch" if epochs == "1" else "epochs"
        parts.append(_table(f"a client in a round, {epochs} local {word}", head, lines))
    return "\n".join(parts)


def _counts(rows: dict[str, Any]) -> str:
    lines = [
        (
            f"{name}, {row['clients']} clients, {row['steps']} steps",
            f"{row['launches']:,}",
            row["gigabytes"],
            row["host_ms"]["now"],
            row["host_ms"]["ahead"],
        )
        for name, row in rows.items()
    ]
    head = "kernel launches | gigabytes read and written | ms to prepare it on the host | batches drawn ahead"
    return _table("a round of a cohort, counted", head, lines)


def _report(rows: dict[str, Any]) -> str:
    names = {"`fedflow ls --json`": "ls", "`fedflow ls`": "table", "show": "show", "compare": "compare"}
    names["report"] = "report"
    lines = [
        (f"{int(n):,} runs", *(row[f"{name}_seconds"] for name in names.values()), row["page_mb"])
        for n, row in rows.items()
        if n != "large"
    ]
    many = _table("processor seconds", " | ".join([*names, "page, MB"]), lines)
    steps = [(name, row["seconds"], row["mib"]) for name, row in rows["large"].items() if name != "page_mb"]
    return many + "\n" + _table("large runs", "processor seconds | peak memory, MiB", steps)


def _traffic(rows: dict[str, Any]) -> str:
    names = {"first": "first round", "later": "later round"}
    lines = [
        (f"{executor}, {words}", *(f"{row[name][f'{machine} {way}']:.2f}" for machine, way in WAYS))
        for executor, row in rows.items()
        for name, words in names.items()
    ]
    row = next(iter(rows.values()))
    title = f"MB; data {row['content']:.1f}, a model {row['model']:.2f}"
    return _table(title, " | ".join(f"{machine} {way}" for machine, way in WAYS), lines)


def _headlines(rows: dict[str, Any]) -> str:
    lines = [
        (
            f"{row.get('network', 'simple_cnn')}, {row['precision']}, "
            f"{'real' if row['real_images'] else 'random'} images",
            row["rounds_run"],
            _median(row["seconds_per_round"]),
            row["client_steps_per_second"],
            f"{row['seconds_for_1500_rounds'] / 60:.2f}{' (scaled)' if row['scaled'] else ''}",
            row.get("accuracy", ""),
        )
        for row in rows.values()
    ]
    head = "rounds run | s a round | client steps per second | minutes for 1,500 rounds | accuracy"
    return _table("headline setting", head, lines)


def _cohorts(rows: dict[str, Any]) -> str:
    rates = ", ".join(f"{name} {rate / 1e12:.0f}" for name, rate in rows["matrix_flops_per_second"].items())
    lines = [
        (
            f"{cell['model']}, batch {cell['batch']}, {cell['way']}{' (fell back)' * ('fell_back' in cell)}",
            cell["clients"]
            if cell.get("width", cell["clients"]) == cell["clients"]
            else f"{cell['clients']}, {cell['width']} in a call",
            f"{cell['convolution']}, {cell['precision']}",
            *(
                (
                    _median(cell["client_steps_per_second"]),
                    cell["against_loop"] or "",
                    ", ".join(f"{100 * share:.3g}" for share in cell["share_of_matrix_rate"].values()),
                )
                if "skipped" not in cell
                else (cell["skipped"], "", "")
            ),
        )
        for cell in rows["cells"]
    ]
    names = ", ".join(rows["matrix_flops_per_second"])
    head = f"clients at once | form | client steps per second | of the engine's loop | % of {names}"
    return f"Large matrix products reach, in TFLOP/s: {rates}.\n\n" + _table("cohort", head, lines)


def _table(name: str, head: str, lines: list[tuple]) -> str:
    columns = head.count("|") + 1
    rows = [f"| {name} | {head} |", "|---|" + "---:|" * columns]
    rows += ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]
    return "\n".join(rows) + "\n"


def _median(row: dict[str, float]) -> float:
    return row["median"]


def _range(row: dict[str, float]) -> str:
    return f"{row['median']:.2f} ({row['min']:.2f} to {row['max']:.2f})"
