"""Pictures of a method's diagnostics over clients, by round: a line per client, or a heat map of many."""

import pandas as pd
from matplotlib.ticker import MaxNLocator

from fedflow.pictures.drawing import LINE, Drawing, drawing, line_style
from fedflow.pictures.lines import LARGEST, count_axis, name_ends, plot

FEW = 12  # clients up to which each has a line
WIDTH = 3.8  # inches, as the curves
COLUMNS = 400  # of the heat map: of more rounds, a column is the mean of several
SCALE = "viridis"  # neither end is the color of a light or dark page, which means "no value"


def series(table: pd.DataFrame, clients: int, rounds: int, name: str, described: str) -> Drawing:
    """The values of ``table`` (round, client, value) by round; infinite ones are not drawn."""
    table = table[table["value"].abs() < LARGEST]
    if clients <= FEW:
        return _lines(table, name, described)
    return _heat(table, clients, rounds, name, described)


def _lines(table: pd.DataFrame, name: str, described: str) -> Drawing:
    """A line per client through the rounds with a value, with the client's number at its end."""
    ends = []
    with drawing(name, described, 2.7, (0.52, 0.4, 0.75, 0.08), WIDTH) as work:
        for client in sorted(table["client"].unique().tolist()):
            rows, label = table[table["client"] == client], f"client {client}"
            ends.append(plot(work.axes, rows["round"], rows["value"], label, line_style(client), 1.4))
        count_axis(work.axes, "round")
        name_ends(work.axes, ends)
    return work


def _heat(table: pd.DataFrame, clients: int, rounds: int, name: str, described: str) -> Drawing:
    """A row per client and a column per round, blank without a value, below the color scale."""
    step = -(-rounds // COLUMNS)
    cells = table.assign(column=(table["round"] - 1) // step).pivot_table("value", "client", "column")
    grid = cells.reindex(index=range(clients), columns=range(-(-rounds // step))).to_numpy()
    side, (left, bottom, right, top) = min(2.6, max(1.6, 0.1 * clients)), (0.42, 0.42, 0.1, 0.42)
    with drawing(name, described, side + bottom + top, (left, bottom, right, top), WIDTH) as work:
        axes = work.axes
        extent = (0.5, 0.5 + step * grid.shape[1], clients - 0.5, -0.5)
        shown = axes.imshow(grid, cmap=SCALE, aspect="auto", interpolation="none", extent=extent)
        axes.grid(False)
        axes.spines[:].set(visible=True, color=LINE)
        axes.set(xlabel="round", ylabel="client")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=(1, 2, 5, 10)))
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True, steps=(1, 2, 5, 10)))
        work.scale(shown, left, bottom + side + 0.1, WIDTH - left - right)
    return work
