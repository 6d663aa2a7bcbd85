"""Data of the clients: labels, difficulty, and differences between clients."""

from base64 import b64encode

import numpy as np
from markupsafe import Markup

from fedflow.finished.cells import Cell, Row, Table
from fedflow.finished.clusters import groups_of
from fedflow.heterogeneity.distances import js, total_variation
from fedflow.pictures.labels import label_shares, ordered
from fedflow.report.blocks import Block, Drawing, Panels, Section, Text
from fedflow.report.compared import Compared, ComparedPartition
from fedflow.seeding import generator

PAIRED = 400  # random clients, whose pairs are compared: evenly spaced ones may all have the same labels
LEAD = """Labels of the training samples. A column is a client, ordered by planted group, main label and
size; a row is a label; the deeper the color, the larger the label’s share of the client’s samples."""
MEASURES = Markup("""Total variation (0 to 1) and Jensen-Shannon divergence are means over pairs of at most
{} random clients; effective labels are the exponential of the entropy, mean over clients. Distances of the
inputs: <code>fedflow partitions compare</code>.""").format(PAIRED)
IMAGE = Markup('<img alt="{} by client of {}" src="data:image/png;base64,{}">')


def section(c: Compared) -> Section | None:
    drawn = [drawing for p in c.partitions for drawing in (*_labels(p), *_pictures(p))]
    measures = {p.division: differences(p.counts) for p in c.partitions}
    rows = [
        Row("", name, [Cell(f"{value:.3g}", sort=value) for value in values.values()])
        for name, values in measures.items()
        if values
    ]
    columns = [(name, "", "") for name in next(filter(None, measures.values()), {})]
    table: list[Block] = [Text(MEASURES, "note after"), Table(columns, rows, "Partition")] if rows else []
    if not drawn and not table:
        return None
    lead = LEAD if any(drawing.key for drawing in drawn) else ""
    return Section("data", "Data of the clients", lead, [Panels(drawn, ""), *table], "Data")


def _labels(p: ComparedPartition) -> list[Drawing]:
    """The labels of every client, if known."""
    counts = p.counts
    if counts is None or not counts.size:
        return []
    dealt = planted(p)
    shown = counts[ordered(counts, *dealt)]
    deepest = (shown / shown.sum(1, keepdims=True).clip(1)).max()
    note = f"The deepest color is {100 * deepest:.0f} % of a client's samples; above, its number of samples."
    drawn = label_shares(counts, f"{p.key}-shares", *dealt).svg
    return [Drawing(p.division, drawn, note, key=f"{p.key}-labels")]


def _pictures(p: ComparedPartition) -> list[Drawing]:
    """Pictures of the partition's folder."""
    if p.facts is None:
        return []
    images = [("labels", p.facts.labels if p.counts is None else None, "")]  # `_labels` draws counts
    if (stds := p.facts.difficulty) is not None:
        note = (
            f"Std of the expert's losses within a client {stds['intra_std']:.3f} (mean over clients), "
            f"of the means of clients {stds['inter_std']:.3f}."
        )
        images.append(("difficulty", p.facts.losses, note))
    drawings = []
    for what, png, note in images:
        if png:
            image = IMAGE.format(what.capitalize(), p.name, b64encode(png).decode())
            drawings.append(Drawing(f"{p.division}: {what}", image, note, kind="card pictures"))
    return drawings


def planted(p: ComparedPartition) -> tuple[np.ndarray | None, int]:
    """Planted group of every client, newcomers included, and the number of newcomers."""
    assert p.facts is not None and p.counts is not None
    groups = groups_of(run for runs in p.divided.values() for run in runs)
    missing = len(p.counts) - len(groups)
    padded = np.array([*groups, *[-1] * missing]) if groups and missing >= 0 else None
    return padded, int(p.facts.summary.get("newcomers") or 0)


def differences(counts: np.ndarray | None) -> dict[str, float]:
    """Differences between the labels of clients, as means over pairs of clients and over clients."""
    if counts is None:
        return {}
    counts = counts[counts.sum(1) > 0]
    if len(counts) < 2:
        return {}
    shares = counts / counts.sum(1, keepdims=True)
    drawn = generator(0, "report/pairs").permutation(len(shares))[:PAIRED]
    some = shares[np.sort(drawn)]
    pairs = np.triu_indices(len(some), 1)
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(1)
    return {
        "Total variation of labels": float(total_variation(some[:, None], some[None])[pairs].mean()),
        "Jensen-Shannon of labels, nats": float(js(some[:, None], some[None])[pairs].mean()),
        "Labels per client": float((counts > 0).sum(1).mean()),
        "Effective labels": float(np.exp(entropy).mean()),
        "Largest label, %": float(100 * shares.max(1).mean()),
        "Samples, std over mean": float(counts.sum(1).std() / counts.sum(1).mean()),
    }
