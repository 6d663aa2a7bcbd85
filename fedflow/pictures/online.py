"""Pictures of online meta-learning: a line per learner, by task."""

import pandas as pd

from fedflow.pictures.drawing import Drawing, drawing, line_style
from fedflow.pictures.lines import count_axis, name_ends, plot

PICTURES = {  # column: name, description, label of the axis, factor, whether to draw a running mean
    "ctm": ("online-ctm", "Accuracy on the current task, mean so far", "CTM so far, %", 100, True),
    "ltm": ("online-ltm", "Accuracy on all tasks so far", "LTM, %", 100, False),
    "needed": ("online-efficiency", "Samples to reach the threshold, mean so far", "samples", 1, True),
    "floats": ("online-memory", "Floats kept", "floats, millions", 1e-6, False),
}


def by_task(table: pd.DataFrame) -> list[Drawing]:
    """A picture per column of `PICTURES` with values; ``table`` also has learner and task."""
    return [_lines(table, column) for column in PICTURES if table[column].notna().any()]


def _lines(table: pd.DataFrame, column: str) -> Drawing:
    name, described, label, factor, running = PICTURES[column]
    ends = []
    with drawing(name, described, 2.7, (0.7, 0.4, 1.25, 0.1)) as work:
        for i, learner in enumerate(table["learner"].unique()):
            tasks = table[table["learner"] == learner].dropna(subset=[column])
            y = factor * (tasks[column].expanding().mean() if running else tasks[column])
            ends.append(plot(work.axes, tasks["task"], y, learner, line_style(i)))
        count_axis(work.axes, "task")
        work.axes.set_ylabel(label)
        name_ends(work.axes, ends)
    return work
