"""Pictures of central training: a line per network, by epoch."""

from collections.abc import Mapping

import pandas as pd
from markupsafe import Markup

from fedflow.metrics.table import NUMBER, SHARE
from fedflow.pictures.accuracy import End, name_ends
from fedflow.pictures.drawing import drawing, look

COLUMNS = {  # of `epochs.csv`: what a picture of it is called, and its unit
    "test_accuracy": ("Test accuracy by epoch, %", SHARE),
    "train_loss": ("Training loss by epoch", NUMBER),
    "test_loss": ("Test loss by epoch", NUMBER),
}


def by_epoch(networks: Mapping[str, pd.DataFrame], column: str, name: str) -> Markup:
    """The values of ``column`` of every network that has it; the network's name is at the end of its line."""
    ends = []
    described, unit = COLUMNS[column]
    with drawing(name, described, 2.7, (0.52, 0.4, 1.25, 0.08)) as work:
        for place, (network, epochs) in enumerate(networks.items()):
            if column not in epochs:
                continue
            x, y, style = epochs["epoch"], unit.factor * epochs[column], look(place)
            work.axes.plot(x, y, lw=1.6, marker="." if len(x) == 1 else "", **style)
            ends.append(End(x.iloc[-1], y.iloc[-1], network, style["color"]))
        work.axes.set_xlabel("epoch")
        work.axes.margins(x=0.01)
        work.axes.locator_params(axis="x", integer=True, nbins=6)
        name_ends(work.axes, ends)
    return work.svg
