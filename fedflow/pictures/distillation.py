"""Pictures of distillation: accuracy by epochs of the student, and what the guide discounts."""

from collections.abc import Mapping

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from fedflow.pictures.accuracy import End, margin, name_ends
from fedflow.pictures.drawing import INK, MUTED, SERIES, STYLE, WIDTH, Drawing, drawing, look

HEIGHT = 2.2  # inches, of a panel of guidance
FEW = 2  # panels one below the other; more are side by side in a wider picture


def by_epoch(parts: Mapping[str, pd.DataFrame], summary: Mapping[str, Mapping[str, float | None]]) -> Drawing:
    """Test accuracy of every method by epochs of its student; teacher and first student are levels."""
    right = margin([*parts, "teacher", "student"]) + 0.1
    described = "Test accuracy by epochs of the student"
    with drawing("distillation-epochs", described, 2.9, (0.52, 0.42, right, 0.1), 3 + right) as work:
        axes, ends, last = work.axes, [], max(rows["epochs"].max() for rows in parts.values())
        for place, (part, rows) in enumerate(parts.items()):
            style, values = look(place), 100 * rows["test_accuracy"]
            axes.plot(rows["epochs"], values, lw=1.6, marker="." if len(rows) == 1 else "", **style)
            ends.append(End(rows["epochs"].iloc[-1], values.iloc[-1], part, style["color"]))
        for name, color in (("teacher", INK), ("student", MUTED)):
            level = 100 * (summary[name]["test_accuracy"] or 0)
            axes.axhline(level, color=color, lw=1, linestyle=(0, (1, 1.2)))
            ends.append(End(last, level, name, color))
        axes.set(xlabel="epochs of the student after its first training", ylabel="test accuracy, %")
        axes.margins(x=0.01)
        axes.locator_params(axis="x", integer=True, nbins=6)
        name_ends(axes, ends)
    return work


def guidance(table: pd.DataFrame) -> Drawing:
    """A panel per method: samples by guidance g, of those that the student gets right and wrong at the end.

    ``table`` has a row per method and bin: method, from, to, right, wrong.
    """
    methods = list(table["method"].unique())
    columns, width = (1, WIDTH) if len(methods) <= FEW else (3, 7.2)
    rows = -(-len(methods) // columns)
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(width, rows * HEIGHT), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False)
        for panel in panels.flat[len(methods) :]:
            panel.set_visible(False)
        for place, (panel, method) in enumerate(zip(panels.flat, methods)):
            own = table[table["method"] == method]
            edges = [*own["from"], own["to"].iloc[-1]]
            for name, color in (("right", SERIES[0]), ("wrong", SERIES[1])):
                shares = 100 * own[name] / max(1, own[name].sum())
                panel.stairs(shares, edges, color=color, lw=1.6, label=f"{name}, {own[name].sum():,}")
                panel.stairs(shares, edges, color=color, fill=True, alpha=0.15)
            panel.set_title(method, loc="left", fontsize=9)
            panel.legend(frameon=False, fontsize=8, handlelength=1.2, loc="upper center")
            panel.set_xlabel("guidance g")
            if place % columns == 0:
                panel.set_ylabel("samples, %")
    described = "Training samples by guidance g, of those that the student gets right and wrong"
    return Drawing(figure, panels[0, 0], "distillation-guide", described)
