"""Calibration: top-k accuracy, ECE and MCE over clients, and a reliability diagram per method."""

from markupsafe import Markup

from fedflow.claims.measures import parse
from fedflow.finished.cells import SPREAD, Cell, Methods, Row, Table, write
from fedflow.finished.features import predictions
from fedflow.finished.run import Run
from fedflow.finished.tables import Stat
from fedflow.metrics.predictions import CALIBRATION, several
from fedflow.metrics.table import SHARE, UNMEASURED, in_unit
from fedflow.pictures.reliability import diagram
from fedflow.report.blocks import Block, Drawing, Heading, Panels
from fedflow.report.compared import ALONE, ComparedPartition, leading, not_drawn, partitioned

COLUMNS = {  # measure, by batch of training or not: heading and explanation
    ("top1", False): ("Top-1, %", "share of samples whose label is the prediction"),
    ("top5", False): ("Top-5, %", "share of samples whose label is among the five largest outputs"),
    ("ece", False): ("ECE, %", "expected calibration error on a client's test set"),
    ("mce", False): ("MCE, %", "maximum calibration error on a client's test set"),
    ("ece", True): ("ECE by batch, %", "mean over test batches of the run's batch size, as in SuPerFed"),
    ("mce", True): ("MCE by batch, %", "mean over test batches of the run's batch size, as in SuPerFed"),
    ("macro_f1", False): ("Macro F1, %", "mean F1 over the classes of a client's labels and predictions"),
    ("balanced_accuracy", False): ("Balanced, %", "mean recall over the classes of a client's labels"),
}
LEAD = Markup("""From the predictions that runs have kept (<code>run.keep_predictions</code>). In the table,
means over clients, each on its own test set, then over seeds; below them the population std over clients.
ECE and MCE compare accuracy and confidence (the probability of the prediction) in 15 equal bins; by batch,
they are means over batches of the run’s batch size, and larger. In the pictures, the predictions of
all clients are pooled, so ECE is usually smaller than in the table. A line is a seed, above the dashed line
where models are right more often than their confidence says; the area of a dot and the histogram show the
share of samples in each bin.""")


@partitioned("calibration", "Calibration", LEAD)
def section(p: ComparedPartition) -> list[Block]:
    kept = p.having(lambda run: len(kept := predictions(run)) and not several(kept))
    if not kept:
        return []
    columns = {heading: _column(kept, *measure) for measure, (heading, _) in COLUMNS.items()}
    columns = {heading: cells for heading, cells in columns.items() if cells}
    spread = SPREAD if any(len(runs) > 1 for runs in kept.values()) else ""
    rows = [
        Row(variant, runs[0].label, [cells[variant] for cells in columns.values()])
        for variant, runs in kept.items()
    ]
    shown = [(heading, spread, hint) for heading, hint in COLUMNS.values() if heading in columns]
    diagrams = []
    for i, (variant, runs) in enumerate(leading(kept, ALONE).items()):
        drawn = diagram((predictions(run) for run in runs), p.colors[variant], f"{p.key}-reliability{i}")
        note = f"Seed{'s' if len(runs) > 1 else ''} {', '.join(str(run.seed) for run in runs)}."
        diagrams.append(Drawing(runs[0].label, drawn.svg, note))
    return [Heading(p.name), Table(shown, rows), *not_drawn(kept, ALONE), Panels(diagrams)]


def _column(methods: Methods, name: str, by_batch: bool) -> dict[str, Cell]:
    """The cells of one measure by variant; none for top-5 if all are 1, as with five classes or fewer."""
    means = {variant: _over_seeds(runs, name, by_batch) for variant, runs in methods.items()}
    measured = {variant: mean for variant, mean in means.items() if mean is not None}
    if name == "top5" and all(value == 1 for mean in measured.values() for value in mean.values.values()):
        return {}
    printed = {variant: float(write(mean)[0]) for variant, mean in measured.items()}
    best = (min if name in CALIBRATION else max)(printed.values()) if len(printed) > 1 else None
    cells = dict.fromkeys(methods, Cell(UNMEASURED))
    for variant, mean in measured.items():
        runs, over_clients = methods[variant], _over_seeds(methods[variant], f"{name}_std", by_batch)
        assert over_clients is not None, "with the mean"
        note = f"±\u2009{in_unit(over_clients.mean, SHARE)} over clients"
        if len(mean.values) < len(runs):
            note += f", {len(mean.values)} of {len(runs)} seeds"
        cells[variant] = Cell(*write(mean), note, 100 * mean.mean, printed[variant] == best)
    return cells


def _over_seeds(runs: list[Run], name: str, by_batch: bool) -> Stat | None:
    """The measure of every seed that has one, or None; confidences of diverged models are NaN."""
    values = {}
    for run in runs:
        size = run.params["training"]["batch_size"] if by_batch else 0  # 0: all samples in one batch
        value = parse(f"{name}(batch={size})" if size else name).of(run)
        if value is not None:
            values[run.seed] = value
    return Stat(values) if values else None
