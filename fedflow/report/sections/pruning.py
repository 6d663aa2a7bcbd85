"""Clients that prune their networks: shares kept, costs, and overlap of masks."""

from fedflow.finished.cells import Methods, metric_table, of_clients
from fedflow.finished.features import masks, series
from fedflow.finished.run import Run
from fedflow.metrics.table import METRICS, SHARE, Metric
from fedflow.pictures.masks import One, accuracy_by_share, by_shared_labels, layers, matrix, pruned
from fedflow.report.blocks import Block, Drawing, Heading, Panels
from fedflow.report.compared import ALONE, ComparedPartition, leading, not_drawn, partitioned
from fedflow.simulation.extensions.recording import GATE, PRUNED
from fedflow.simulation.outcome import SERIES_CLIENTS

MACS = ("macs", "macs_ratio", "macs_convolutions", "macs_convolutions_ratio")
COSTS = ("kept", *MACS, "bytes_down", "bytes_up", "paper_bytes")
SHARES = {  # of diagnostics: heading and explanation
    "pruned": ("Pruned, %", "of all parameters"),
    "pruned_channels": ("Channels, %", "pruned"),
    "pruned_dense": ("Linear layers, %", "pruned weights of linear layers"),
}
GATED = "Accuracy of the network that the client keeps, on the samples of method.gate."
LEAD = """Clients prune their own networks: each keeps a mask of its parameters, and the server averages
every parameter over the clients that keep it. Pruned shares are by mask. MACs are the multiplications for
one sample: removed channels reduce them, single zeros do not. In the pictures by round and by
pruned share, a thin line is a client and the thick one is the mean; accuracy is on the samples by which a
client decides whether to prune further. IoU compares two masks: the parameters that both keep, divided by
those that at least one keeps. It is also lower where one client has pruned more than the other. Clients
are sorted by their labels. In the picture of layers, a bar is the mean over clients, and its line extends
from the 10th to the 90th percentile; layers that all clients keep whole are left out."""


@partitioned("pruning", "Pruning", LEAD)
def section(p: ComparedPartition) -> list[Block]:
    masked = p.having(masks)
    if not masked:
        return []
    shares = [
        Metric(f"client/{name}/mean", label, f"{of}, mean over the clients of the last round", SHARE, "")
        for name, (label, of) in SHARES.items()
    ]
    costs = [METRICS[name] for name in COSTS]
    table = metric_table(p.methods, [METRICS["local_accuracy"], METRICS["global_accuracy"], *shares, *costs])
    labeled = {variant: runs for variant, runs in masked.items() if all(map(_labeled, runs))}
    drawn = _overlap(p, leading(labeled))
    for i, runs in enumerate(leading(masked, ALONE).values()):
        drawn += _of_run(runs[0], f"{p.key}-m{i}")
    return [Heading(p.name), table, *not_drawn(masked, ALONE), Panels(drawn)]


def _overlap(p: ComparedPartition, labeled: Methods) -> list[Drawing]:
    """The overlap of masks, by the labels that two clients share."""
    if not labeled:
        return []
    compared = {v: [One(r.label, kept) for r in runs if (kept := masks(r))] for v, runs in labeled.items()}
    correlations = ", ".join(f"{_correlation(runs)} for {runs[0].label}" for runs in labeled.values())
    note = f"Rank correlation over pairs of clients, mean over seeds: {correlations}."
    if any(_first(run) for runs in labeled.values() for run in runs):
        note += " Masks are of the first clients only."
    drawn = by_shared_labels(compared, p.colors, f"{p.key}-shared-labels").svg
    return [Drawing("Mask IoU by number of shared labels", drawn, note)]


def _of_run(run: Run, key: str) -> list[Drawing]:
    """The pictures of one run."""
    pictures, recorded, table, note = [], masks(run), series(run), of_clients(run)
    assert recorded is not None, "only of runs with masks"
    names = {*table["name"]}
    if PRUNED in names:
        shown = min(run.metrics["clients"], SERIES_CLIENTS)
        drawn = pruned(table, shown, run.metrics["rounds"], f"{key}-pruned")
        pictures.append(("pruned share by round", drawn, note))
    if {PRUNED, GATE} <= names:
        drawn = accuracy_by_share(table, f"{key}-gate")
        pictures.append(("accuracy by pruned share", drawn, f"{note} {GATED}"))
    note = f"Seed {run.seed}, {len(recorded.clients):,} clients that took part{_first(run)}."
    pictures.append(("overlap of masks, IoU in %", matrix(recorded, f"{key}-overlap"), note))
    if recorded.layers:
        pictures.append(("what clients keep of each layer", layers(recorded, f"{key}-layers"), note))
    return [Drawing(f"{run.label}: {words}", drawn.svg, note) for words, drawn, note in pictures]


def _first(run: Run) -> str:
    """The number of clients that took part, if only the first of them have masks, or an empty text."""
    recorded, took_part = masks(run), int((run.clients["participations"] > 0).sum())
    return f", the first of {took_part:,}" if recorded and len(recorded.clients) < took_part else ""


def _labeled(run: Run) -> bool:
    recorded = masks(run)
    return recorded is not None and recorded.labels is not None


def _correlation(runs: list[Run]) -> str:
    """Correlation of mask IoU and shared labels, mean over seeds that have it."""
    correlations = [recorded.correlation() for run in runs if (recorded := masks(run))]
    values = [value for value in correlations if value is not None]
    return f"{sum(values) / len(values):.2f}" if values else "none"
