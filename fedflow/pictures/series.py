"""Pictures of a method's diagnostics over clients, by round: a line per client, or a heat map of many."""

import pandas as pd
from matplotlib.ticker import MaxNLocator

from fedflow.pictures.accuracy import LARGEST, End, name_ends
from fedflow.pictures.drawing import LINE, Drawing, drawing, look

FEW = 12  # clients up to which each has a line
WIDTH = 3.8  # inches, like the curves beside them
COLUMNS = 400  # of the heat map: of more rounds, a column is the mean of several
SCALE = "viridis"  # neither end is the color of the page, light or dark, which means "no value"


def series(table: pd.DataFrame, clients: int, rounds: int, name: str, described: str) -> Drawing:
    """The values of ``table`` (round, client, value) by round; infinite ones are not drawn."""
    table = table[table["value"].abs() < LARGEST]
    if clients <= FEW:
        return lines(table, name, described)
    return heat(table, clients, rounds, name, described)


def lines(table: pd.DataFrame, name: str, described: str) -> Drawing:
    """A line per client, with its number at the end; it connects the rounds that have a value."""
    ends = []
    with drawing(name, described, 2.7, (0.52, 0.4, 0.75, 0.08), WIDTH) as work:
        for client in sorted(table["client"].unique().tolist()):
            own, style = table[table["client"] == client], look(client)
            last = own.iloc[-1]
            work.axes.plot(own["round"], own["value"], lw=1.4, marker="." if len(own) == 1 else "", **style)
            ends.append(End(last["round"], last["value"], f"client {client}", style["color"]))
        work.axes.set_xlabel("round")
        work.axes.margins(x=0.01)
        work.axes.locator_params(axis="x", integer=True, nbins=6)
        name_ends(work.axes, ends)
    return work


def heat(table: pd.DataFrame, clients: int, rounds: int, name: str, described: str) -> Drawing:
    """A row per client, a column per round, with the scale of colors above; blank: no value."""
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
