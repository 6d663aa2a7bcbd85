"""Pictures of distillation: accuracy by epochs of the student, and what the guide discounts."""

from collections.abc import Mapping

import matplotlib as mpl
import pandas as pd

from fedflow.pictures.drawing import (
    INK,
    MUTED,
    SERIES,
    STYLE,
    WIDTH,
    Drawing,
    drawing,
    line_style,
    panel_grid,
)
from fedflow.pictures.lines import End, count_axis, margin, name_ends, plot

HEIGHT = 2.2  # inches, of a panel of guidance
FEW = 2  # panels one below the other; more are side by side in a wider picture


def by_epoch(parts: Mapping[str, pd.DataFrame], summary: Mapping[str, Mapping[str, float | None]]) -> Drawing:
    """Test accuracy of every method by epochs of its student; teacher and first student are levels."""
    right = margin([*parts, "teacher", "student"]) + 0.1
    described = "Test accuracy by epochs of the student"
    with drawing("distillation-epochs", described, 2.9, (0.52, 0.42, right, 0.1), 3 + right) as work:
        axes, ends, last = work.axes, [], max(rows["epochs"].max() for rows in parts.values())
        for i, (part, rows) in enumerate(parts.items()):
            ends.append(plot(axes, rows["epochs"], 100 * rows["test_accuracy"], part, line_style(i)))
        for name, color in (("teacher", INK), ("student", MUTED)):
            level = 100 * (summary[name]["test_accuracy"] or 0)
            axes.axhline(level, color=color, lw=1, linestyle=(0, (1, 1.2)))
            ends.append(End(last, level, name, color))
        count_axis(axes, "epochs of the student after its first training")
        axes.set_ylabel("test accuracy, %")
        name_ends(axes, ends)
    return work


def guidance(table: pd.DataFrame) -> Drawing:
    """A panel per method: samples by guidance g, split by whether the student is right at the end.

    ``table`` has a row per method and bin: method, from, to, right, wrong.
    """
    methods = list(table["method"].unique())
    columns, width = (1, WIDTH) if len(methods) <= FEW else (3, 7.2)
    with mpl.rc_context(rc=STYLE):
        figure, panels = panel_grid(len(methods), columns, (width / columns, HEIGHT))
        for i, (panel, method) in enumerate(zip(panels.flat, methods)):
            bins = table[table["method"] == method]
            edges = [*bins["from"], bins["to"].iloc[-1]]
            for name, color in (("right", SERIES[0]), ("wrong", SERIES[1])):
                shares = 100 * bins[name] / max(1, bins[name].sum())
                panel.stairs(shares, edges, color=color, lw=1.6, label=f"{name}, {bins[name].sum():,}")
                panel.stairs(shares, edges, color=color, fill=True, alpha=0.15)
            panel.set_title(method, loc="left", fontsize=9)
            panel.legend(frameon=False, fontsize=8, handlelength=1.2, loc="upper center")
            panel.set_xlabel("guidance g")
            if i % columns == 0:
                panel.set_ylabel("samples, %")
    described = "Training samples by guidance g, of those that the student gets right and wrong"
    return Drawing(figure, panels[0, 0], "distillation-guide", described)
