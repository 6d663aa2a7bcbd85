"""Pictures of online meta-learning: a line per learner, by task."""

import pandas as pd

from fedflow.pictures.accuracy import End, name_ends
from fedflow.pictures.drawing import Drawing, drawing, look

PICTURES = {  # column: name, what it shows, label of the axis, scale, whether it is a running mean
    "ctm": ("online-ctm", "Accuracy on the current task, mean so far", "CTM so far, %", 100, True),
    "ltm": ("online-ltm", "Accuracy on all tasks so far", "LTM, %", 100, False),
    "needed": ("online-efficiency", "Samples to reach the threshold, mean so far", "samples", 1, True),
    "floats": ("online-memory", "Floats kept", "floats, millions", 1e-6, False),
}


def by_task(table: pd.DataFrame) -> list[Drawing]:
    """Of the columns that ``table`` (learner, task, and those of `PICTURES`) has values for."""
    return [_lines(table, column) for column in PICTURES if table[column].notna().any()]


def _lines(table: pd.DataFrame, column: str) -> Drawing:
    name, described, label, scale, running = PICTURES[column]
    ends = []
    with drawing(name, described, 2.7, (0.7, 0.4, 1.25, 0.1)) as work:
        for place, learner in enumerate(table["learner"].unique()):
            own, style = table[table["learner"] == learner].dropna(subset=[column]), look(place)
            y = scale * (own[column].expanding().mean() if running else own[column])
            work.axes.plot(own["task"], y, lw=1.6, marker="." if len(own) == 1 else "", **style)
            ends.append(End(own["task"].iloc[-1], y.iloc[-1], learner, style["color"]))
        work.axes.set(xlabel="task", ylabel=label)
        work.axes.margins(x=0.01)
        work.axes.locator_params(axis="x", integer=True, nbins=6)
        name_ends(work.axes, ends)
    return work
