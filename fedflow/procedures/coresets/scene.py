"""The graph of a procedure with its node functions, groups, points and costs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import sparse

from fedflow.errors import BadInput
from fedflow.procedures.coresets.graph import (
    EDGE_WEIGHTS,
    SHARES_TEXT,
    block_model,
    distances,
    gaussian_mixture,
    knn_graph,
    power_law_tree,
    random_graph,
    read_cora,
    read_edges,
)
from fedflow.procedures.coresets.table import costs_of, in_one_piece, numbers, points_of, read_table
from fedflow.procedures.interface import World
from fedflow.seeding import generator, torch_seed
from fedflow.settings import Settings, option

FILES = {  # meaning of `file`, by kind
    "cora": "the folder of cora.content and cora.cites",
    "edges": "a list of edges, such as facebook_combined.txt",
    "table": "a table of points: csv, tsv, parquet or npy",
}
BLOCKS = (0.1, 0.5, 0.4)  # shares of the blocks of Figure 6.2
POINTS = ("mixture", "table")  # kinds whose nodes are points, joined to their nearest neighbors
ARGUMENTS = {"n": "nodes", "p": "p_in", "neighbors": "neighbors"}  # of generators -> field of `Graph`
OF_FILES = {"adjacency", "edges", "cora.content", "cora.cites", "file", "table", "columns", "points"}


class Graph(Settings):
    """A graph. Its node functions follow from its kind.

    ``sbm``, ``mixture``, ``cora``: the indicator of the first group (block, component, class). ``tree``,
    ``random``, ``edges``: n functions, the distances to every node. ``table``: the column ``value``.
    """

    section: ClassVar[str] = "graph"
    kind: str = option(
        "sbm",
        "stochastic block model, neighbors in a Gaussian mixture, power-law tree, random graph, or a file",
        choices=("sbm", "mixture", "tree", "random", *FILES),
    )
    nodes: int = option(1000, "nodes of a random graph (the first four kinds)", symbol="n", ge=2)
    shares: list[float] | None = option(
        None, "share of the nodes by block or component; null: 10, 50, 40 % (sbm) or 20, 30, 50 % (mixture)"
    )
    p_in: float = option(0.1, "probability of an edge within a block, or in a random graph", ge=0, le=1)
    p_out: float = option(0.005, "probability of an edge between blocks", ge=0, le=1)
    neighbors: int = option(10, "nearest neighbors of a point (mixture, table)", ge=1, source="Section 6.6")
    edge_weights: str = option(
        "binary",
        "weights of edges between neighbors (mixture, table): 1, or exp(-(d / s)^2 / 2) of the "
        "distance d, with its mean s over all edges",
        choices=EDGE_WEIGHTS,
    )
    file: str | None = option(None, "; ".join(f"{kind}: {what}" for kind, what in FILES.items()))
    value: str | None = option(None, "column of a table whose mean is estimated")
    cost: str | None = option(None, "column of a table with the costs; null: costs are drawn")

    def validate(self) -> None:
        none = f"null, as a graph of kind {self.kind} has no"
        if (self.file is None) is (self.kind in FILES):
            raise BadInput("graph.file", self.file, FILES.get(self.kind, f"{none} file"))
        if (self.value is None) is (self.kind == "table"):
            raise BadInput("graph.value", self.value, "a column" if self.value is None else f"{none} table")
        if self.edge_weights != "binary" and self.kind not in POINTS:
            accepted = f"binary, as a graph of kind {self.kind} has no distances"
            raise BadInput("graph.edge_weights", self.edge_weights, accepted)
        if self.cost is not None and self.kind != "table":
            raise BadInput("graph.cost", self.cost, f"{none} table")
        if self.shares is not None:
            if self.kind not in ("sbm", "mixture"):
                raise BadInput("graph.shares", self.shares, f"{none} groups")
            wrong = min(self.shares, default=0) <= 0 or abs(sum(self.shares) - 1) > 1e-9
            if wrong or (self.kind == "mixture" and len(self.shares) != 3):
                three = "three " if self.kind == "mixture" else ""
                raise BadInput("graph.shares", self.shares, f"{three}numbers > 0 that sum to 1")

    @property
    def files(self) -> tuple[str, ...]:
        """The files to read."""
        if self.file is None:
            return ()
        if self.kind == "cora":
            return f"{self.file}/cora.content", f"{self.file}/cora.cites"
        return (self.file,)


@dataclass(frozen=True)
class Scene:
    """A graph of n nodes, and data about the nodes."""

    adjacency: sparse.csr_array  # [n, n]
    functions: np.ndarray  # [n, q]; their means are estimated
    groups: np.ndarray | None = None  # [n]: block, component or class
    points: np.ndarray | None = None  # [n, d]
    features: sparse.csr_array | None = None  # [n, d]
    costs: np.ndarray | None = None  # [n]


@contextmanager
def fields_of(graph: Graph) -> Iterator[None]:
    """Within this context, errors in making the graph or walking on it name the field of ``graph``."""
    try:
        yield
    except BadInput as error:
        field = ARGUMENTS.get(error.field)
        if field is None and error.field in OF_FILES:
            field = "kind" if graph.file is None else "file"
        if field is None:
            raise
        raise error.renamed(f"graph.{field}") from None


def make_scene(graph: Graph, world: World) -> Scene:
    """The graph for a seed. Raises `BadInput`; call it within `fields_of`."""
    random, kind, n = generator(world.seed, "coreset.graph"), graph.kind, graph.nodes
    if kind == "sbm":
        sizes = _sizes(n, graph.shares or BLOCKS)
        adjacency, groups = block_model(sizes, graph.p_in, graph.p_out, random)
        return Scene(adjacency, _indicator(groups), groups)
    if kind == "mixture":
        points, groups = gaussian_mixture(n, graph.shares or SHARES_TEXT, random)
        adjacency = knn_graph(points, graph.neighbors, graph.edge_weights)
        return Scene(adjacency, _indicator(groups), groups, points)
    if kind == "tree":
        return _distances(power_law_tree(n, torch_seed(world.seed, "coreset.graph") % 2**31))
    if kind == "random":
        return _distances(random_graph(n, graph.p_in, torch_seed(world.seed, "coreset.graph") % 2**31))
    path = world.files[graph.files[0]]
    if kind == "edges":
        return _distances(read_edges(path))
    if kind == "cora":
        adjacency, features, groups = read_cora(path.parent)
        return Scene(adjacency, _indicator(groups), groups, features=features)
    table, columns = read_table(path), [c for c in (graph.value, graph.cost) if c is not None]
    points = points_of(table, ignore=columns)
    values = numbers(table, columns[0], "graph.value")[:, None]
    costs = costs_of(table, graph.cost, "graph.cost") if graph.cost is not None else None
    adjacency = in_one_piece(knn_graph(points, graph.neighbors, graph.edge_weights), graph.neighbors)
    return Scene(adjacency, values, points=points, costs=costs)


def _sizes(nodes: int, shares: list[float] | tuple[float, ...]) -> list[int]:
    """``nodes`` divided by ``shares``, as whole numbers."""
    ends = np.rint(np.cumsum(shares) * nodes).astype(int)
    sizes = np.diff(ends, prepend=0).tolist()
    if min(sizes) < 1:
        raise BadInput("graph.nodes", nodes, "enough nodes for one in every group")
    return sizes


def _indicator(groups: np.ndarray) -> np.ndarray:
    return (groups == 0).astype(float)[:, None]


def _distances(adjacency: sparse.csr_array) -> Scene:
    return Scene(adjacency, distances(adjacency))
