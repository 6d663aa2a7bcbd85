"""``coreset``: rows of a table that represent all rows."""

from pathlib import Path
from typing import Annotated

import typer

from fedflow.cli.printing import print_line, print_table

PRINTED = 20  # rows; the file has all


def coreset(
    table: Annotated[
        Path | None,
        typer.Argument(help="A row per point, as CSV, TSV, Parquet or NPY. Not needed with --adjacency."),
    ] = None,
    k: Annotated[int, typer.Option(help="Maximum number of rows to choose.")] = 20,
    cost: Annotated[str | None, typer.Option(help="Column with costs >= 0; default: each costs 1.")] = None,
    kappa: Annotated[
        float,
        typer.Option(help="Take the cheapest row whose alignment is at least this share of the best one's."),
    ] = 1.0,
    budget: Annotated[float | None, typer.Option(help="Largest total cost.")] = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="A column to use. Repeatable; default: all except costs.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="A column to ignore, such as a name. Repeatable.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not standardize the columns.")] = False,
    neighbors: Annotated[int, typer.Option(help="Nearest neighbors that each row is connected to.")] = 10,
    edge_weights: Annotated[
        str, typer.Option(help="Weights of edges between neighbors: binary, or gaussian in their distance.")
    ] = "binary",
    adjacency: Annotated[
        Path | None, typer.Option(help="Edges instead of neighbors: `from,to[,weight]` a line, rows from 0.")
    ] = None,
    walk: Annotated[int, typer.Option(help="Steps of the random walk; more steps reach farther.")] = 16,
    weights: Annotated[
        str, typer.Option(help="sum1: weights sum to 1; beta: scaled to the smallest objective error.")
    ] = "sum1",
    out: Annotated[
        Path | None,
        typer.Option(help="CSV file; default: TABLE.coreset.csv. A picture is written next to it."),
    ] = None,
) -> None:
    """Choose a few rows of a table that represent all rows, and weights for means over them.

    Example: `fedflow coreset houses.csv --cost price --k 20 --kappa 0.2`. A larger k keeps the rows of a
    smaller one. Columns are standardized; rows are connected to their nearest neighbors.
    """
    from fedflow.errors import BadInput
    from fedflow.files import check_output, make_writable, naming
    from fedflow.pictures.coresets import placed
    from fedflow.procedures.coresets.graph import read_adjacency
    from fedflow.procedures.coresets.table import choose, read_table

    source = table or adjacency
    if source is None:
        raise BadInput("table", None, "a table of points, or --adjacency with the edges of a graph")
    file = out or Path(f"{source.stem}.coreset.csv")
    picture = file.with_suffix(".png")
    check_output("--out", file, ".csv")
    check_output("--out", picture)
    read = [path for path in (table, adjacency) if path is not None and path.exists()]
    if any(path.exists() and path.samefile(other) for path in (file, picture) for other in read):
        raise BadInput("--out", str(file), "another file: this one or its picture would replace the input")
    make_writable(file.parent)
    points = None if table is None else read_table(table)
    edges = None
    if adjacency is not None:
        edges = read_adjacency(adjacency, None if points is None else len(points))
    chosen = choose(
        points,
        k,
        cost,
        kappa,
        columns or None,
        ignore or (),
        not raw,
        neighbors,
        walk,
        budget,
        weights,
        edges,
        edge_weights,
    )
    rows, n = chosen.rows, chosen.adjacency.shape[0]
    with naming(file):
        rows.to_csv(file, index=False)
    title = "rows" if cost is None else f"kappa {kappa:g}"
    picks = {title: (rows["row"].to_numpy(), rows["weight"].to_numpy())}
    placed(chosen.points, chosen.adjacency, None, picks).png(picture)
    cells = [
        (str(r.order), str(r.row), f"{r.weight:.4g}", f"{r.cost:.4g}", f"{r.alignment:.3g}")
        for r in rows.head(PRINTED).itertuples()
    ]
    print_table("", tuple(rows.columns), cells)
    if len(rows) > PRINTED:
        print_line(f"and {len(rows) - PRINTED} more")
    count = len(chosen.selection.picks)
    if count < k:
        reason = "nothing to improve" if chosen.selection.stopped else "budget spent"
        print_line(f"stopped after {count} picks: {reason}")
    if len(rows) < count:
        print_line(f"{count} picks: some gave more weight to a row chosen before, or replaced rows")
    if chosen.points is not None and not raw:
        print_line("columns were standardized; --raw leaves them as they are")
    print_line(
        f"{len(rows)} of {n} rows, total cost {rows['cost'].sum():.4g}, weights sum to "
        f"{rows['weight'].sum():.4g}, objective error {chosen.selection.error:.3g}"
    )
    for path in (file, picture):
        print_line(path)
