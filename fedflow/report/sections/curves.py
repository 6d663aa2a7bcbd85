"""Curves of all methods by round, traffic and time, and the diagnostics of single methods."""

import re

from markupsafe import Markup

from fedflow.finished.cells import Methods, of_clients, write
from fedflow.finished.features import series, sweep
from fedflow.finished.run import Run
from fedflow.finished.tables import stat
from fedflow.metrics.table import LEVEL, METRICS, unit_of, yardstick_first
from fedflow.pictures.accuracy import AXES, curve, heading, measured, zoomed_and_full
from fedflow.pictures.mixtures import HOW, SCORES, Sweep, mixtures
from fedflow.pictures.series import series as drawn_series
from fedflow.report.blocks import Block, Drawing, Fold, Heading, Panels, Section, Switches, Text
from fedflow.report.compared import ALONE, Compared, ComparedPartition, leading, not_drawn
from fedflow.simulation.extensions.client_curriculum import POLLED
from fedflow.simulation.outcome import SERIES_CLIENTS

LEAD = Markup("""Line: mean over seeds. Band: lowest to highest seed. Accuracies in %. The zoomed vertical
axis starts at the lowest value after a quarter of the evaluated rounds, so earlier rounds may be below it. A
dotted horizontal line is a method without traffic. Curves over simulated time are drawn if methods differ in
it, in the unit of <code>run.timing</code>.""")
DIAGNOSTICS = Markup("""Diagnostics are numbers that a single method or a step of <code>run.updates</code>
reports: <code>method/</code> and <code>update/</code> from the server, <code>client/</code> as the mean over
the cohort. The minimum and maximum over the cohort are in <code>rounds.csv</code>. A diagnostic with a number
per client is drawn for the first seed: a line per client, or a row per client if there are more than 12.
Blank cells have no value.""")
RANGE = Markup('type="radio" name="range" value="{}"{}')
AXIS = [(RANGE.format("zoomed", " checked"), "zoomed", None), (RANGE.format("full", ""), "0 to 100 %", None)]
NO_VALUE = "No value in the last round."
METHOD = Markup('type="checkbox" checked data-place="{}"')


def section(c: Compared) -> Section | None:
    blocks = [block for partition in c.partitions for block in _part(partition)]
    if not blocks:
        return None
    labels = {v: runs[0].label for p in c.partitions for v, runs in leading(p.methods).items()}
    methods = [(METHOD.format(i), labels[v], i) for v, i in c.colors.items() if v in labels]
    controls: list[Block] = [Switches("Vertical axis of accuracies", AXIS, "Vertical axis: ")]
    controls += [Switches("Methods that are drawn", methods)] if len(methods) > 1 else []
    note = [Text(DIAGNOSTICS)] if any(isinstance(block, Fold) for block in blocks) else []
    return Section("curves", "Curves", LEAD, [*note, *controls, *blocks])


def _part(p: ComparedPartition) -> list[Block]:
    drawn, folds = [*_curves(p), *_mixtures(p)] if p.rated else [], _diagnostics(p)
    return [Heading(p.name), *not_drawn(p.methods), Panels(drawn, ""), *folds] if drawn or folds else []


def _curves(p: ComparedPartition) -> list[Drawing]:
    """Every curve; over simulated time only if methods differ in it."""
    drawings, methods = [], leading(p.methods)
    for x in AXES:
        for metric in yardstick_first(METRICS.values()):
            drawn = x in metric.curves and any(measured(runs, metric.name) for runs in methods.values())
            if drawn and (x != "time" or _differ_in_time(methods)):
                key, note = f"{p.key}-{metric.name}-{x}", _unmeasured(methods, metric.name)
                zoomed, full = zoomed_and_full(methods, p.colors, metric.name, x, key)
                drawings.append(Drawing(heading(metric, x), zoomed, note, full))
    return drawings


def _mixtures(p: ComparedPartition) -> list[Drawing]:
    """Scores by share of the personal model, for methods that mix it with the global one."""
    sweeps = {v: [Sweep(run.label, sweep(run)) for run in runs] for v, runs in leading(p.methods).items()}
    mixed = {v: runs for v, runs in sweeps.items() if all(len(run.scores) for run in runs)}
    return [
        Drawing(heading, mixtures(mixed, p.colors, column, f"{p.key}-mixed-{column}").svg, HOW)
        for column, heading in SCORES.items()
        if mixed and all(run.scores[column].notna().any() for runs in mixed.values() for run in runs)
    ]


def _diagnostics(p: ComparedPartition) -> list[Block]:
    """The diagnostics of every method; for clients of a cohort, their mean."""
    having = p.having(lambda run: _diagnosed(run) or {*series(run)["name"]} - {POLLED})
    folds: list[Block] = [*not_drawn(having, ALONE)]
    for i, variant in enumerate(p.methods):
        if variant not in leading(having, ALONE):
            continue
        runs, shown = p.methods[variant], []
        names = sorted({name for run in runs for name in _diagnosed(run)})
        for number, name in enumerate(names):
            last, key = stat(runs, name), f"{p.key}-d{i}-{number}"
            note = f"In the last round: {' '.join(write(last, unit_of(name)))}" if last else NO_VALUE
            shown.append(_diagnostic(name, curve({variant: runs}, p.colors, name, "round", key).svg, note))
        shown += _series(next((run for run in runs if len(series(run))), runs[0]), f"{p.key}-s{i}")
        folds += [Fold(f"Diagnostics of {runs[0].label}", [Panels(shown)], "card plots")] if shown else []
    return folds


def _diagnosed(run: Run) -> list[str]:
    """The diagnostics that are drawn by round."""
    names = (name for name in run.diagnostics if not name.startswith(LEVEL))
    return [name for name in names if not re.fullmatch("client/.*/(min|max)", name)]


def _diagnostic(name: str, picture: Markup, note: str) -> Drawing:
    return Drawing(Markup("<code>{}</code>").format(name), picture, note, kind="")


def _series(run: Run, key: str) -> list[Drawing]:
    """The diagnostics over clients of one run, without `POLLED`, which is among the curricula."""
    shown, rounds = min(run.metrics["clients"], SERIES_CLIENTS), run.metrics["rounds"]
    tables = [(str(name), table) for name, table in series(run).groupby("name") if name != POLLED]
    drawings = []
    for i, (name, table) in enumerate(tables):
        drawn = drawn_series(table, shown, rounds, f"{key}-{i}", f"{name} of every client by round")
        drawings.append(_diagnostic(name, drawn.svg, of_clients(run)))
    return drawings


def _differ_in_time(methods: Methods) -> bool:
    """True if runs of one seed end at different simulated times."""
    ends: dict[int, set[float]] = {}
    for run in (run for runs in methods.values() for run in runs):
        if "clock" not in run.rounds:
            return False
        ends.setdefault(run.seed, set()).add(run.rounds["clock"].iloc[-1])
    return any(len(times) > 1 for times in ends.values())


def _unmeasured(methods: Methods, column: str) -> str:
    """A note on methods with ``column`` at the end but not by round, such as scores of personal models."""
    at_end = (runs for runs in methods.values() if stat(runs, column) and not measured(runs, column))
    names = ", ".join(runs[0].label for runs in at_end)
    return f"Measured at the end only: {names}." if names else ""
