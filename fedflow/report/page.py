"""`build_report`: one self-contained HTML page, and the CSV tables behind it."""

import re
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from fedflow import __version__
from fedflow.claims.claims import load_claims
from fedflow.claims.matching import accuracies, compare, known_data
from fedflow.claims.verdicts import BY_TESTS, VERDICTS, judge, write_claims
from fedflow.errors import FedflowError
from fedflow.finished import cells, pairs
from fedflow.finished.collect import Labels, PartitionFacts, collect_partitions, collect_runs
from fedflow.finished.run import Run
from fedflow.finished.tables import (
    best,
    by_method,
    by_partition,
    columns,
    most_used,
    stat,
    write_tables,
    yardstick,
)
from fedflow.finished.variants import HASHES, settings_table
from fedflow.metrics.table import LEVEL, METRICS, unit_of, yardstick_first
from fedflow.naming import flat, spoken, text
from fedflow.pictures import accuracy
from fedflow.pictures import labels as label_pictures
from fedflow.pictures.clusters import Grouping, pictures_of, thumbnail, timeline
from fedflow.pictures.drawing import DASHES, SERIES
from fedflow.pictures.mixtures import HOW, SCORES, mixtures
from fedflow.pictures.series import series
from fedflow.report.accuracy import accuracy_table, sources
from fedflow.report.calibration import calibration
from fedflow.report.central_networks import collect_networks, curves, references
from fedflow.report.clients import client_table, differences
from fedflow.report.curricula import curricula
from fedflow.report.findings import findings, summary
from fedflow.report.images import generation, privacy
from fedflow.report.lineage import Recorded, lineage, made
from fedflow.report.procedures import Entries, collect_outcomes, sections, write_outcomes
from fedflow.report.ranks import section as ranks
from fedflow.report.subnetworks import levels, pruning
from fedflow.report.tuning import tuning
from fedflow.simulation.extensions.client_curriculum import POLLED
from fedflow.simulation.outcome import SERIES_CLIENTS

TITLE = "Federated methods compared"
COMMON = ("run", "model", "partition")  # settings that rows of one partition should share


def build_report(
    results_dir: Path,
    partitions_dir: Path,
    out_dir: Path,
    title: str = "",
    claims: Path | None = None,
    central: Path | None = None,
    labels: Labels | None = None,
    outcomes: Path | None = None,
    procedures: Entries | None = None,
    recorded: Recorded | None = None,
    tried: Path | None = None,
) -> Path:
    """Write ``index.html`` and the CSV tables on all runs below ``results_dir``; returns the page's path.

    A row is a method with one set of settings: runs of other settings or data are never averaged. The
    tables are ``accuracy``, ``fairness``, ``traffic`` and ``clusters`` (mean and sample std over seeds),
    ``runs`` (a row per run) and ``accuracy_curves`` (for ``dvc plots``). Verdicts on the claims in the file
    ``claims``, if it exists, are a section of the page, ``claims.csv`` and ``claims.md``; the networks in the
    folder ``central`` are another, and so are the outcomes of procedures below ``outcomes``, with
    ``outcomes.csv``. ``labels`` are those of methods in params.yaml, ``procedures`` its entries of this name;
    ``recorded`` says what MLflow knows of the runs (`fedflow.tracking.lineage.recorded_runs`); the scores of
    `fedflow tune` in the folder ``tried`` are a section.
    Equal inputs give equal bytes. Raises `FedflowError` when there are neither results nor outcomes, a file
    cannot be read, or ``out_dir`` cannot be written.
    """
    done = collect_outcomes(outcomes, procedures) if outcomes else []
    runs = collect_runs(results_dir, labels, needed=not done)
    compared = [*runs, *(row for one in done for row in one.rows)]
    registered = {name: entry for name, (entry, _) in (procedures or {}).items()}
    judged = judge(load_claims(claims), compared, labels, registered) if claims else []
    groups = by_partition(runs)
    facts = collect_partitions(partitions_dir, list(groups))
    networks = collect_networks(central) if central else []
    paired = {name: pairs.differences(by_method(group)) for name, group in groups.items()}
    places = {variant: place for place, variant in enumerate(most_used(groups))}
    methods = {run.method: run.metrics["method_label"] for run in runs}
    context = {
        "title": title or (TITLE if runs else "Procedures"),
        "summary": summary(groups),
        "runs": len(runs),
        "methods": methods,
        "variants": len(places),
        "places": places,
        "seeds": sorted({run.seed for run in runs}),
        "labels": {run.variant: run.label for run in runs},
        "partitions": [
            _partition(name, group, facts.get(name), places, recorded or {}, paired[name])
            for name, group in groups.items()
        ],
        "ranks": ranks(groups, places),
        "made": made(recorded or {}, runs),
        "local": not any(facts["served"] for facts in (recorded or {}).values()),
        "version": __version__,
        "references": {name: references(networks, group[0]) for name, group in groups.items()},
        "central": curves(networks),
        "tuning": tuning(tried, methods | dict(labels or {}), places) if tried else [],
        "procedures": sections(done),
        "outcomes": len(done),
        "published": compare(compared),
        "known_data": ", ".join(known_data()),
        "claims": judged,
        "verdicts": {name: sum(one.verdict == name for one in judged) for name in (*VERDICTS, *BY_TESTS)},
        "colors": len(SERIES),
        "dashes": len(DASHES),
    }
    page = Path(out_dir) / "index.html"
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_tables(runs, page.parent)
        pairs.write_pairs(runs, paired, page.parent / "pairs.csv")
        write_outcomes(done, page.parent)
        write_claims(judged, page.parent)
        page.write_text(_environment().get_template("page.html.j2").render(context), encoding="utf-8")
    except OSError as error:
        raise FedflowError(f"cannot write the report to {out_dir}: {error.strerror or error}") from error
    return page


def _partition(
    name: str,
    runs: list[Run],
    facts: PartitionFacts | None,
    places: dict[str, int],
    recorded: Recorded,
    paired: Mapping[str, pairs.Differences],
) -> dict[str, Any]:
    """Everything the page shows of one partition, the best methods first."""
    found = by_method(runs)
    methods = {method: found[method] for method, _ in best(found, yardstick(found))} | found
    rated = {
        m: r
        for m, r in methods.items()
        if all(run.metrics.get(name) is not None for run in r for name in accuracy.DRAWN)
    }
    key = f"p{'-'.join(str(ord(letter)) if not letter.isalnum() else letter for letter in name)}"
    published = accuracies(runs)
    clustered = {m: r for m, r in methods.items() if any(run.history for run in r)}
    pictures = [_groupings(runs, f"{key}-c{place}") for place, runs in enumerate(clustered.values())]
    return {
        "name": name,
        "key": key,
        "about": _about(runs, facts),
        "warnings": _warnings(runs, methods),
        "findings": findings(methods),
        "glance": accuracy.glance(rated, places, f"{key}-glance") if rated else None,
        "accuracy": accuracy_table(methods, published),
        "published": sources(published),
        "pairs": [
            (pairs.title(measure), pairs.pair_table(methods, known)) for measure, known in paired.items()
        ],
        "curves": _curves(methods, places, key) if rated else [],
        "diagnostics": _diagnostics(methods, places, key),
        "curricula": curricula(methods, places, key),
        "calibration": calibration(methods, places, key),
        "pruning": pruning(methods, places, key),
        "levels": levels(methods, places, key),
        "generation": generation(methods, places, key),
        "privacy": privacy(methods, key),
        "fairness": cells.metric_table(methods, columns("fairness")),
        "spread": accuracy.spread(rated, places, f"{key}-spread") if rated else None,
        "traffic": cells.metric_table(methods, columns("traffic")),
        "targets": sorted(
            {f"{100 * t:g} %" for run in runs if (t := run.metrics.get("target_accuracy")) is not None}
        ),
        "groups": _groups(runs),
        "clusters": cells.metric_table(clustered, columns("clusters")) if clustered else None,
        "agreement": _agreement(clustered, places, f"{key}-ari"),
        "groupings": [card for cards in sorted(pictures, key=len, reverse=True) for card in cards],
        "lasting": [words for runs in clustered.values() if (words := _lasting(runs))],
        "settings": settings_table(run for group in methods.values() for run in group),
        "pictures": _pictures(facts) if facts else [],
        "labels": _labels(runs, facts, f"{key}-shares"),
        "clients": client_table(methods, facts.counts if facts else None),
        "differences": differences(facts.counts if facts else None),
        "lineage": lineage(methods, recorded, key, _small(methods, facts, key)),
    }


def _pictures(facts: PartitionFacts) -> list[tuple[str, str, str]]:
    """What is drawn, as base64, and a note, of every picture of a partition."""
    found = [("labels", facts.labels if facts.counts is None else None, "")]  # `_labels` has these
    if (stds := facts.difficulty) is not None:
        note = (
            f"Std of the expert's losses within a client {stds['intra_std']:.3f} (mean over clients), "
            f"of the means of clients {stds['inter_std']:.3f}."
        )
        found.append(("difficulty", facts.losses, note))
    return [(what, b64encode(drawn).decode(), note) for what, drawn, note in found if drawn]


def _labels(runs: Sequence[Run], facts: PartitionFacts | None, name: str) -> tuple[Markup, str] | None:
    """The labels of every client, if they are known, and a note."""
    if facts is None or facts.counts is None or not facts.counts.size:
        return None
    counts, dealt = facts.counts, _dealt(runs, facts)
    shown = counts[label_pictures.ordered(counts, *dealt)]
    deepest = (shown / shown.sum(1, keepdims=True).clip(1)).max()
    note = f"The deepest color is {100 * deepest:.0f} % of a client's samples; above, its number of samples."
    return label_pictures.label_shares(counts, name, *dealt).svg, note


def _dealt(runs: Sequence[Run], facts: PartitionFacts) -> tuple[np.ndarray | None, int]:
    """The planted group of every client, newcomers included, and the number of newcomers."""
    assert facts.counts is not None
    groups = next((run.groups for run in runs if run.groups), None)
    missing = len(facts.counts) - len(groups or ())
    known = None if groups is None or missing < 0 else np.array([*groups, *[-1] * missing])
    return known, int(facts.summary.get("newcomers") or 0)


def _small(methods: dict[str, list[Run]], facts: PartitionFacts | None, key: str) -> dict[str, Markup]:
    """Small pictures of the partition and of the first clusters, clients in the same order, by step."""
    runs, found, order = [run for own in methods.values() for run in own], {}, None
    if facts is not None and facts.counts is not None and facts.counts.size:
        dealt = _dealt(runs, facts)
        order = label_pictures.ordered(facts.counts, *dealt)
        found["Partition"] = label_pictures.thumbnail(facts.counts, f"{key}-small", *dealt).svg
    if clustered := next((run for run in runs if run.history), None):
        grouping = _grouping(clustered)
        known = len(grouping.found)
        order = grouping.order if order is None else order[order < known]
        found["Clusters"] = thumbnail(grouping, f"{key}-smallc", order).svg
    return found


def _curves(
    methods: dict[str, list[Run]], places: dict[str, int], key: str
) -> list[tuple[str, Markup, Markup | None, str]]:
    """Heading, picture, the same from 0 to 100 %, and note of every curve.

    Over simulated time only if methods differ in it. After them, scores by share of the personal model, of
    methods that mix it with the global one.
    """
    mixed = {m: r for m, r in methods.items() if all(len(run.sweep) for run in r)}
    by_share = [
        (heading, mixtures(mixed, places, column, f"{key}-mixed-{column}").svg, None, HOW)
        for column, heading in SCORES.items()
        if mixed and all(run.sweep[column].notna().any() for runs in mixed.values() for run in runs)
    ]
    return [
        (
            accuracy.heading(metric, x),
            *accuracy.zoomed_and_full(methods, places, metric.name, x, f"{key}-{metric.name}-{x}"),
            _unmeasured(methods, metric.name),
        )
        for x in accuracy.AXES
        for metric in yardstick_first(METRICS.values())
        if x in metric.curves and (x != "time" or _differ_in_time(methods))
        if any(accuracy.measured(runs, metric.name) for runs in methods.values())
    ] + by_share


def _diagnostics(methods: dict[str, list[Run]], places: dict[str, int], key: str) -> list[tuple[str, list]]:
    """By label of a method: name, picture and note of its diagnostics; of a cohort's clients, the mean."""
    found = []
    for place, (variant, runs) in enumerate(methods.items()):
        found_names = {name for run in runs for name in run.diagnostics if not name.startswith(LEVEL)}
        names = sorted(name for name in found_names if not re.fullmatch("client/.*/(min|max)", name))
        shown = [
            (
                name,
                accuracy.curve({variant: runs}, places, name, "round", f"{key}-d{place}-{number}").svg,
                f"In the last round: {' '.join(cells.write(last, unit_of(name)))}"
                if (last := stat(runs, name))
                else "No value in the last round.",
            )
            for number, name in enumerate(names)
        ]
        shown += _series(next((run for run in runs if len(run.series)), runs[0]), f"{key}-s{place}")
        found += [(cells.label(runs), shown)] if shown else []
    return found


def _series(run: Run, key: str) -> list[tuple[str, Markup, str]]:
    """Name, picture and note of the diagnostics over clients of one run. `POLLED` is among its curricula."""
    shown, rounds = min(run.metrics["clients"], SERIES_CLIENTS), run.metrics["rounds"]
    return [
        (
            name,
            series(table, shown, rounds, f"{key}-{number}", f"{name} of every client by round").svg,
            cells.of_clients(run),
        )
        for number, (name, table) in enumerate(
            (str(name), table) for name, table in run.series.groupby("name") if name != POLLED
        )
    ]


def _about(runs: Sequence[Run], facts: PartitionFacts | None) -> dict[str, Any]:
    first = runs[0].metrics
    sizes = facts.summary.get("sizes") if facts else None
    return {
        "dataset": first["dataset"],
        "model": first["model"],
        "parameters": first["parameters"],
        "clients": first["clients"],
        "participation": first["participation"],
        "rounds": first["rounds"],
        "scheme": facts.scheme.replace("_", " ") if facts else "",
        "params": ", ".join(f"{name} {text(value)}" for name, value in facts.parameters.items())
        if facts
        else "",
        "sizes": f"{sizes['min']:g} to {sizes['max']:g}"
        if sizes and {"min", "max"} <= sizes.keys()
        else None,
        "data_hash": first["data_hash"],
        "partition_hash": first["partition_hash"],
        "failed": sum(run.metrics["failed_clients"] for run in runs),
    }


def _groups(runs: Sequence[Run]) -> str:
    """How many groups are planted, and how large they are."""
    sizes = sorted(Counter(next((run.groups for run in runs if run.groups), ())).values())
    each = f"{sizes[0]}" if len(set(sizes)) == 1 else f"{sizes[0]} to {sizes[-1]}" if sizes else ""
    return f"{len(sizes)} planted groups of {each} clients" if len(sizes) > 1 else ""


def _agreement(methods: dict[str, list[Run]], places: dict[str, int], name: str) -> Markup | None:
    """ARI by round, if any method has one."""
    known = any(run.rounds["ari"].notna().any() for runs in methods.values() for run in runs)
    return accuracy.curve(methods, places, "ari", "round", name, top=1).svg if known else None


def _differ_in_time(methods: dict[str, list[Run]]) -> bool:
    """Whether runs of one seed end at different simulated times; if not, the curve by round suffices."""
    ends: dict[int, set[float]] = {}
    for run in (run for runs in methods.values() for run in runs):
        if "clock" not in run.rounds:
            return False
        ends.setdefault(run.seed, set()).add(run.rounds["clock"].iloc[-1])
    return any(len(found) > 1 for found in ends.values())


def _groupings(runs: Sequence[Run], name: str) -> list[tuple[str, Markup]]:
    """The pictures of the first seed that has clusters, with their headings."""
    run = next(run for run in runs if run.history)
    grouping = _grouping(run)
    title = f"{cells.label(runs)}, seed {run.seed}"
    return [
        (f"{title}: {heading}", draw(grouping, f"{name}-{what}").svg)
        for what, heading, draw in pictures_of(grouping)
        if draw is not timeline or not grouping.unchanged
    ]


def _lasting(runs: Sequence[Run]) -> str:
    """A sentence in place of the picture of an assignment that never changed; else empty."""
    run = next(run for run in runs if run.history)
    grouping = _grouping(run)
    if not grouping.unchanged:
        return ""
    sizes = sorted(Counter(grouping.found[grouping.order].tolist()).values(), reverse=True)
    shown = [str(size) for size in sizes[:8]] + (["smaller ones"] if len(sizes) > 8 else [])
    of = " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
    count = "one cluster" if len(sizes) == 1 else f"{len(sizes)} clusters"
    first = min(grouping.steps)
    return f"{cells.label(runs)}, seed {run.seed}: {count} of {of} clients, the same from round {first} on."


def _grouping(run: Run) -> Grouping:
    history = {step["round"]: step["assignment"] for step in run.history}
    return Grouping(history, run.metrics["rounds"], run.groups, run.dissimilarity, run.stable_cluster_ids)


def _warnings(runs: Sequence[Run], methods: dict[str, list[Run]]) -> list[str]:
    """What makes the rows of one partition not fully comparable."""
    shared = {variant: _shared(repeats[0]) for variant, repeats in methods.items()}
    found = []
    for name in dict.fromkeys(name for values in shared.values() for name in values):
        rows: dict[str, list[str]] = {}
        for variant, values in shared.items():
            rows.setdefault(text(values.get(name)), []).append(cells.label(methods[variant]))
        usual, *others = sorted(rows, key=lambda value: -len(rows[value]))
        differ = "; ".join(f"{value} for {', '.join(rows[value])}" for value in others)
        found += [f"Not all rows have the same {spoken(name)}: {usual}, but {differ}."] if others else []
    found += [
        f"{run.label}, seed {run.seed} has two results: {run.repeated} is not shown."
        for run in runs
        if run.repeated
    ]
    seeds = {run.seed for run in runs}
    for repeats in methods.values():
        if gone := seeds - {run.seed for run in repeats}:
            found.append(
                f"{cells.label(repeats)} has no result for seed {', '.join(map(str, sorted(gone)))}."
            )
    return found


def _shared(run: Run) -> dict[str, Any]:
    """The settings and data that compared methods should share; not the method's own settings.

    Whether clients have a curriculum follows from ``run.sampling``.
    """
    params = {name: run.params[name] for name in COMMON}
    params["run"] = {name: value for name, value in params["run"].items() if name != "client_curriculum"}
    params["data"] = {run.metrics["dataset"]: run.params["data"].get(run.metrics["dataset"], {})}
    return flat(params) | {name: run.metrics[name][:8] for name in HASHES}


def _unmeasured(methods: dict[str, list[Run]], column: str) -> str:
    """The methods whose rounds do not have ``column``: personal models are not all scored in every round."""
    names = [
        cells.label(runs)
        for runs in methods.values()
        if stat(runs, column) is not None and not accuracy.measured(runs, column)
    ]
    return f"Measured at the end only: {', '.join(names)}." if names else ""


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedflow.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["hashed"] = _hashed
    return environment


def _hashed(text: str) -> str:
    """The name of an inline script or style in a Content-Security-Policy."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
