"""Rows of a table to acquire: a coreset for the points, graph and costs of a user."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import sparse

from fedflow.errors import BadInput, FedflowError, reason
from fedflow.procedures.coresets.graph import EDGE_WEIGHTS, Operator, knn_graph
from fedflow.procedures.coresets.select import Selection, select

READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": pd.read_csv,
    ".tsv": pd.read_table,
    ".parquet": pd.read_parquet,
}


def read_table(path: Path) -> pd.DataFrame:
    """The rows of a csv, tsv, parquet or npy file. Raises `FedflowError`."""
    try:
        if path.suffix == ".npy":
            values = np.load(path, allow_pickle=False)
            return pd.DataFrame(values.reshape(len(values), -1)).add_prefix("x")
        if path.suffix not in READERS:
            raise BadInput("table", str(path), f"a file that ends in {', '.join([*READERS, '.npy'])}")
        return READERS[path.suffix](path)
    except FedflowError:
        raise
    except FileNotFoundError:
        raise FedflowError(f"there is no table {path}") from None
    except Exception as error:  # parsers raise almost anything on a damaged file
        raise FedflowError(f"cannot read {path}: {reason(error)}") from error


def numbers(table: pd.DataFrame, column: str, field: str) -> np.ndarray:
    """A column as numbers [n]. Raises `BadInput` for ``field`` if it is missing, has text or has gaps."""
    if column not in table:
        raise BadInput(field, column, f"a column of the table: {', '.join(map(str, table.columns))}")
    values = table[column]
    if not pd.api.types.is_numeric_dtype(values):
        raise BadInput(field, column, "a column of numbers; this one has text, leave it out with `ignore`")
    array = values.to_numpy(float)
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array))[0])
        raise BadInput(field, column, f"a number in every row; row {row} has none")
    return array


def costs_of(table: pd.DataFrame, column: str | None, field: str = "cost") -> np.ndarray:
    """The costs of the rows [n], 1 without a column. Raises `BadInput` for negative costs."""
    if column is None:
        return np.ones(len(table))
    costs = numbers(table, column, field)
    if (costs < 0).any():
        row = int(np.argmin(costs))
        raise BadInput(field, column, f"costs >= 0; row {row} has {costs[row]:g}")
    return costs


def points_of(
    table: pd.DataFrame, columns: Sequence[str] | None = None, ignore: Sequence[str] = (), scaled: bool = True
) -> np.ndarray:
    """The rows as points [n, d]: ``columns``, or all columns except ``ignore``.

    If ``scaled``, every column has mean 0 and standard deviation 1, so that units do not matter; constant
    columns are 0.
    """
    for name in ignore:
        if name not in table:
            raise BadInput("ignore", name, f"a column of the table: {', '.join(map(str, table.columns))}")
    names = [name for name in table.columns if name not in ignore] if columns is None else list(columns)
    if not names:
        raise BadInput("columns", names, "at least one column of numbers, without the costs")
    points = np.stack([numbers(table, name, "columns") for name in names], axis=1)
    if scaled:
        spread = points.std(0)
        points = (points - points.mean(0)) / np.where(spread == 0, 1, spread)
    return points


def in_one_piece(adjacency: sparse.csr_array, neighbors: int | None) -> sparse.csr_array:
    """The graph, made with ``neighbors`` or given (None). Raises `BadInput` unless it is connected."""
    parts = sparse.csgraph.connected_components(adjacency, directed=False, return_labels=False)
    if parts > 1:
        if neighbors is None:
            raise BadInput("adjacency", f"{parts} components", "a connected graph")
        raise BadInput("neighbors", neighbors, f"more, as the graph has {parts} components")
    return adjacency


@dataclass(frozen=True)
class Choice:
    """The result of `choose`: ``rows`` has the columns order, row, weight, cost and alignment."""

    rows: pd.DataFrame
    points: np.ndarray | None  # [n, d], scaled
    adjacency: sparse.csr_array  # [n, n]
    selection: Selection


def choose(
    table: pd.DataFrame | None = None,
    k: int = 20,
    cost: str | None = None,
    kappa: float = 1.0,
    columns: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    scaled: bool = True,
    neighbors: int = 10,
    walk: int = 16,
    budget: float | None = None,
    weights: str = "sum1",
    adjacency: sparse.csr_array | None = None,
    edge_weights: str = "binary",
) -> Choice:
    """Choose at most ``k`` rows of ``table`` that represent all rows, preferring cheap rows if ``kappa`` < 1.

    The rows are nodes of the graph ``adjacency`` [n, n], by default the `knn_graph` with ``neighbors`` and
    ``edge_weights``. ``budget`` is the largest total cost. Raises `BadInput`.
    """
    if table is None and adjacency is None:
        raise BadInput("table", None, "a table of points, or the edges of a graph")
    if edge_weights not in EDGE_WEIGHTS:
        raise BadInput("edge_weights", edge_weights, " or ".join(EDGE_WEIGHTS))
    columns, ignore = None if columns is None else [*columns], [*ignore]
    if adjacency is not None:
        for name, value, default in (  # of the graph that is made without edges
            ("columns", columns, None),
            ("ignore", ignore, []),
            ("scaled", scaled, True),
            ("neighbors", neighbors, 10),
            ("edge_weights", edge_weights, "binary"),
        ):
            if value != default:
                raise BadInput(name, value, f"{default}, as the edges are given")
    if columns is not None and ignore:
        raise BadInput("ignore", ignore, "[] with columns, which names all columns to use")
    if cost is None and kappa != 1:
        raise BadInput("kappa", kappa, "1 without costs")
    if table is None:
        assert adjacency is not None
        table = pd.DataFrame(index=range(adjacency.shape[0]))
    costs = costs_of(table, cost)
    points = None
    if adjacency is None:
        points = points_of(table, columns, [*ignore, *([cost] if cost is not None else [])], scaled)
        adjacency = knn_graph(points, neighbors, edge_weights)
    elif adjacency.shape[0] != len(table):
        accepted = f"the edges of a graph with {len(table)} nodes, one per row"
        raise BadInput("adjacency", f"{adjacency.shape[0]} nodes", accepted)
    in_one_piece(adjacency, None if points is None else neighbors)
    if walk < 1:
        raise BadInput("walk", walk, "a whole number of steps >= 1")
    if not 1 <= k <= len(costs):
        raise BadInput("k", k, f"a whole number from 1 to {len(costs)}, the number of rows")
    selection = select(Operator(adjacency, walk), k, costs, kappa, budget)
    if not selection.picks.size:
        raise BadInput("budget", budget, "at least the cost of the first row that would be chosen")
    nodes, order = np.unique(selection.picks, return_index=True)  # a row may be picked again for more weight
    columns_of_rows = {
        "order": order,
        "row": nodes,
        "weight": selection.weights(weights)[nodes],
        "cost": costs[nodes],
        "alignment": selection.alignments[order],
    }
    rows = pd.DataFrame(columns_of_rows).query("weight > 0").sort_values("order", ignore_index=True)
    return Choice(rows.assign(order=rows.index + 1), points, adjacency, selection)
