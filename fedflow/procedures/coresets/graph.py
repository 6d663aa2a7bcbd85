"""Graphs of n nodes, and the matrix of l steps of a random walk (Definition 1).

A graph is given by its adjacency matrix: sparse [n, n], symmetric, with entries >= 0.
"""

import gzip
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from fedflow.errors import BadInput

MEANS = np.array([(1.0, -3.0), (-3.0, 2.0), (3.0, 0.0)])  # of the Gaussian mixture of Section 6.6.2
SHARES_TEXT = (0.2, 0.3, 0.5)  # shares of its components in the text
EDGE_WEIGHTS = ("binary", "gaussian")  # between nearest neighbors
BLOCK = 512  # rows or columns of P^l at a time
DENSE = 0.1  # share of nonzero entries above which rows of P^l are stored dense


class Operator:
    """P^l: l ``steps`` of a walk, by products with the sparse matrix P of one step.

    ``lazy``: P = (A - D) / d_max + I, symmetric, with columns that sum to 1 (Definition 1; P_ii may be below
    1/2). ``sym_norm``: (D + I)^{-1/2} (A + I) (D + I)^{-1/2}, as in graph convolutional networks; columns do
    not sum to 1. ``adjacency`` is [n, n], sparse or dense.

    Raises `BadInput` for an adjacency that is not square, finite, symmetric and >= 0, or has no edge.
    Warns if the graph is disconnected: no walk leaves a component.
    """

    def __init__(self, adjacency: Any, steps: int = 1, kind: str = "lazy") -> None:
        if steps < 1:
            raise BadInput("steps", steps, "a whole number >= 1")
        if kind not in ("lazy", "sym_norm"):
            raise BadInput("kind", kind, "lazy or sym_norm")
        self.adjacency = checked(adjacency)
        self.steps, self.kind = steps, kind
        self.n: int = self.adjacency.shape[0]
        parts = sparse.csgraph.connected_components(self.adjacency, directed=False, return_labels=False)
        if parts > 1:
            warnings.warn(f"the graph has {parts} components: no walk leaves its own", stacklevel=2)
        degrees = self.adjacency.sum(1)
        if kind == "lazy":
            self.matrix = self.adjacency / degrees.max() + sparse.diags_array(1 - degrees / degrees.max())
        else:
            scale = sparse.diags_array((degrees + 1) ** -0.5)
            self.matrix = scale @ (self.adjacency + sparse.eye_array(self.n)) @ scale
        self.matrix = sparse.csr_array(self.matrix)
        self.matrix.eliminate_zeros()
        self.matrix.sort_indices()

    def apply(self, x: np.ndarray) -> np.ndarray:
        """P^l ``x`` for [n] or [n, q]."""
        for _ in range(self.steps):
            x = self.matrix @ x
        return x

    def columns(self, indices: Any) -> np.ndarray:
        """Columns of P^l, dense [n, len(indices)]."""
        return _dense(self._walk(self._units(indices))).T

    def products(self, v: int) -> tuple[np.ndarray, np.ndarray]:
        """Column ``v`` of P^l, and its products with all columns (column v of P^2l), both [n]."""
        column = self._walk(self._units([v]))
        return _dense(column)[0], _dense(self._walk(column))[0]

    def _units(self, indices: Any) -> sparse.csr_array:
        rows = np.arange(len(indices))
        return sparse.csr_array((np.ones(len(indices)), (rows, indices)), shape=(len(indices), self.n))

    def _walk(self, rows: Any) -> Any:
        """``rows`` [k, n] times P^l, sparse while few nodes are within reach."""
        for _ in range(self.steps):
            if sparse.issparse(rows) and rows.nnz > DENSE * rows.shape[0] * self.n:
                rows = rows.toarray()
            rows = rows @ self.matrix if sparse.issparse(rows) else (self.matrix @ rows.T).T
        return rows

    @cached_property
    def sums(self) -> np.ndarray:
        """Sums of the columns of P^l, [n]."""
        return np.ones(self.n) if self.kind == "lazy" else self.apply(np.ones(self.n))

    @cached_property
    def norms(self) -> np.ndarray:
        """Euclidean norms of the columns of P^l, [n]: l products with an n x n matrix, in blocks."""
        squares = np.zeros(self.n)
        for first in range(0, self.n, BLOCK):
            block = np.arange(first, min(first + BLOCK, self.n))
            squares[block] = (self._walk(self._units(block)) ** 2).sum(1)
        return np.sqrt(squares)


def _dense(rows: Any) -> np.ndarray:
    return rows.toarray() if sparse.issparse(rows) else rows


def checked(adjacency: Any) -> sparse.csr_array:
    """The adjacency as a sparse matrix of floats without stored zeros, which SciPy would take for edges.

    Raises `BadInput` if no walk on it is possible.
    """
    shape = np.shape(adjacency)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise BadInput("adjacency", shape, "a square matrix")
    graph = sparse.csr_array(adjacency, dtype=float, copy=True)
    if not np.isfinite(graph.data).all():
        raise BadInput("adjacency", float("nan"), "finite weights")
    if graph.nnz and graph.data.min() < 0:
        raise BadInput("adjacency", float(graph.data.min()), "weights >= 0")
    graph.sum_duplicates()
    graph.eliminate_zeros()
    if not graph.nnz:
        raise BadInput("adjacency", "no edge", "a graph with edges")
    skew = abs(graph - graph.T).max()
    if skew > 1e-12 * graph.data.max():
        raise BadInput("adjacency", f"a difference of {skew:g}", "a symmetric matrix")
    return graph


def knn_graph(points: Any, neighbors: int = 10, weights: str = "binary") -> sparse.csr_array:
    """The graph of nearest neighbors of ``points`` [n, d], with an edge if either is a neighbor of the other.

    ``weights``: ``binary``, or ``gaussian``, exp(-(d / s)^2 / 2) with s the mean distance d over all edges.
    """
    from sklearn.neighbors import NearestNeighbors

    points = np.asarray(points, dtype=float)
    if points.ndim != 2 or not np.isfinite(points).all():
        raise BadInput("points", points.shape if points.ndim != 2 else float("nan"), "finite numbers, [n, d]")
    if not 1 <= neighbors < len(points):
        raise BadInput(
            "neighbors", neighbors, f"a whole number >= 1 and < {len(points)}, the number of points"
        )
    if weights not in EDGE_WEIGHTS:
        raise BadInput("weights", weights, " or ".join(EDGE_WEIGHTS))
    distances, near = NearestNeighbors(n_neighbors=neighbors).fit(points).kneighbors()
    scale = distances.mean() or 1.0
    values = np.ones(near.shape) if weights == "binary" else np.exp(-0.5 * (distances / scale) ** 2)
    return _graph(np.repeat(np.arange(len(points)), neighbors), near.ravel(), len(points), values.ravel())


def block_model(
    sizes: Sequence[int], p_in: float, p_out: float, rng: np.random.Generator
) -> tuple[sparse.csr_array, np.ndarray]:
    """A stochastic block model, and the block of every node [n], in order."""
    if not len(sizes) or min(sizes) < 1:
        raise BadInput("sizes", list(sizes), "at least one block, of at least one node each")
    for field, chance in (("p_in", p_in), ("p_out", p_out)):
        if not 0 <= chance <= 1:
            raise BadInput(field, chance, "a probability, in [0, 1]")
    block = np.repeat(np.arange(len(sizes)), sizes)
    n = len(block)
    later = []
    for i in range(n):
        chances = np.where(block[i + 1 :] == block[i], p_in, p_out)
        later.append(i + 1 + np.flatnonzero(rng.random(len(chances)) < chances))
    heads = np.repeat(np.arange(n), [len(ends) for ends in later])
    return _graph(heads, np.concatenate(later), n), block


def gaussian_mixture(
    n: int, shares: Sequence[float], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """``n`` points [n, 2] around `MEANS` with unit covariance, and the component of each [n], in order.

    ``shares`` of the points by component are rounded to whole numbers of points.
    """
    if len(shares) != len(MEANS) or min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise BadInput("shares", list(shares), f"{len(MEANS)} numbers >= 0 that sum to 1")
    sizes = np.diff(np.rint(np.cumsum(shares) * n).astype(int), prepend=0)
    component = np.repeat(np.arange(len(MEANS)), sizes)
    return MEANS[component] + rng.standard_normal((n, 2)), component


def power_law_tree(n: int, seed: int) -> sparse.csr_array:
    """A tree with degrees of a power law with exponent 3 (``networkx.random_powerlaw_tree``)."""
    import networkx as nx

    if n < 2:
        raise BadInput("n", n, "a whole number >= 2")
    try:
        tree = nx.random_powerlaw_tree(n, seed=seed, tries=100_000)
    except nx.NetworkXError:
        raise BadInput("n", n, "a size for which 100,000 draws contain the degrees of a tree") from None
    return sparse.csr_array(nx.to_scipy_sparse_array(tree, dtype=float))


def random_graph(n: int, p: float, seed: int) -> sparse.csr_array:
    """The largest component of a random graph with edge probability ``p`` (Erdős and Rényi).

    Warns if it is not the whole graph.
    """
    import networkx as nx

    if n < 2:
        raise BadInput("n", n, "a whole number >= 2")
    if not 0 < p <= 1:
        raise BadInput("p", p, "a probability, in (0, 1]")
    graph = sparse.csr_array(nx.to_scipy_sparse_array(nx.gnp_random_graph(n, p, seed=seed), dtype=float))
    parts, part = sparse.csgraph.connected_components(graph, directed=False)
    if parts == 1:
        return graph
    kept = np.flatnonzero(part == np.bincount(part).argmax())
    if len(kept) < 2:
        raise BadInput("p", p, f"a probability at which {n} nodes have an edge")
    warnings.warn(f"the random graph of {n} nodes is its largest component, of {len(kept)}", stacklevel=2)
    return graph[kept][:, kept]


def read_cora(folder: Path | str) -> tuple[sparse.csr_array, sparse.csr_array, np.ndarray]:
    """The graph of citations, words [n, d] and classes [n] in ``cora.content`` and ``cora.cites``.

    Classes are numbered in the order of their names.
    """
    content, cites = Path(folder) / "cora.content", Path(folder) / "cora.cites"
    rows = [line.split() for line in _lines(content)]
    if not rows or {len(row) for row in rows} != {len(rows[0])} or len(rows[0]) < 3:
        raise BadInput("cora.content", content.name, "lines of a paper, equally many 0/1 words and a class")
    number = {row[0]: i for i, row in enumerate(rows)}
    try:
        words = sparse.csr_array(np.array([row[1:-1] for row in rows]).astype(float))
    except ValueError:
        raise BadInput("cora.content", content.name, "words as numbers") from None
    labels = np.unique([row[-1] for row in rows], return_inverse=True)[1]
    pairs = [line.split() for line in _lines(cites)]
    lost = next((pair for pair in pairs if len(pair) != 2 or not set(pair) <= set(number)), None)
    if lost is not None:
        raise BadInput("cora.cites", " ".join(lost), f"two papers of {content.name} per line")
    ends = np.array([[number[a], number[b]] for a, b in pairs]).reshape(-1, 2)
    return _graph(ends[:, 0], ends[:, 1], len(rows)), words, labels


def read_edges(file: Path | str) -> sparse.csr_array:
    """A graph from a text file, possibly compressed (.gz): two node numbers per line, maybe with a weight.

    They are separated by blanks or commas; lines with ``#`` are comments, a first line of names is skipped.
    Nodes are numbered from 0 in the order of their numbers in the file; an edge counts once, in whichever
    direction it is listed. The combined ego networks of Facebook (SNAP) have this form.
    """
    ends, weights = _edges(Path(file), "edges")
    nodes, ends = np.unique(ends, return_inverse=True)
    ends = ends.reshape(-1, 2)
    return _graph(ends[:, 0], ends[:, 1], len(nodes), weights)


def read_adjacency(file: Path | str, n: int | None = None) -> sparse.csr_array:
    """Edges between the rows of a table with ``n`` rows, from a file in the form of `read_edges`.

    Rows count from 0 and keep their numbers, also without edges. By default, ``n`` follows from the largest
    number in the file.
    """
    ends, weights = _edges(Path(file), "adjacency")
    last = np.inf if n is None else n - 1
    wrong = ends[~((ends >= 0) & (ends <= last) & np.isfinite(ends) & (ends == np.floor(ends)))]
    if wrong.size:
        accepted = "rows from 0" if n is None else f"rows from 0 to {n - 1}, as the table has {n}"
        raise BadInput("adjacency", f"{wrong[0]:g}", accepted)
    ends = ends.astype(int)
    return _graph(ends[:, 0], ends[:, 1], int(ends.max()) + 1 if n is None else n, weights)


def _edges(file: Path, field: str) -> tuple[np.ndarray, np.ndarray | None]:
    """The ends [m, 2] of the edges in a file, and their weights [m] or None."""
    lines = [line.replace(",", " ") for line in _lines(file)]
    if lines and not lines[0].strip().lstrip("-")[:1].isdigit():
        lines = lines[1:]
    try:
        table = np.loadtxt(lines or ["x"], ndmin=2)
    except ValueError:
        table = np.empty((0, 0))
    if not table.size or table.shape[1] not in (2, 3):
        raise BadInput(field, file.name, "a file with two node numbers per line, and maybe a weight")
    if table.shape[1] == 2:
        return table, None
    if table[:, 2].min() < 0:  # before both directions of an edge are merged
        raise BadInput(field, float(table[:, 2].min()), "weights >= 0")
    return table[:, :2], table[:, 2]


def _lines(file: Path) -> list[str]:
    try:
        data = file.read_bytes()
        text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("file", file.name, f"a text file that can be read ({error})") from None
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def distances(adjacency: Any) -> np.ndarray:
    """Edges on the shortest paths between all nodes, [n, n]; `BadInput` for a disconnected graph."""
    lengths = sparse.csgraph.shortest_path(checked(adjacency), method="D", directed=False, unweighted=True)
    if np.isinf(lengths).any():
        raise BadInput("adjacency", "a disconnected graph", "a connected one, as some distances are infinite")
    return lengths


def _graph(
    heads: np.ndarray, tails: np.ndarray, n: int, weights: np.ndarray | None = None
) -> sparse.csr_array:
    """The symmetric adjacency without loops; of repeated edges, the largest weight."""
    apart = heads != tails
    weights = np.ones(len(heads)) if weights is None else weights
    ends = heads[apart] * n + tails[apart]
    order = np.lexsort((-weights[apart], ends))
    ends, first = np.unique(ends[order], return_index=True)
    values = weights[apart][order][first]
    graph = sparse.csr_array((values, (ends // n, ends % n)), shape=(n, n))
    return sparse.csr_array(graph.maximum(graph.T))
