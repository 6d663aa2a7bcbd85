"""Client data as subspaces: truncated-SVD signatures and the angles between them.

A signature holds the leading left singular vectors of the data matrix D [F, n], one flattened sample a
column, not centered. The distance of two clients is an angle between their signatures (Morafah et al., PACFL,
2022, Eq. 3.1 and 3.2). All angles are in degrees.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import scipy

from fedflow.errors import BadInput, unknown_name

Signatures = Sequence[np.ndarray]  # per client [F, q_k]; an array [N, F, q] is one
GRAM_SIDE = 32  # times p, at least 8: up to this many rows or columns the Gram matrix beats iteration
BLOCK_ROWS = 1024  # columns of signatures compared at once: 8 MB of cosines
RELATIVE_RANK = 1e-7  # directions weaker than this, relative to the strongest, are rounding errors
NEAR = 1e-5  # squared cosines closer to 0 or 1 do not give angles within 1e-10 degrees
DOUBLE_ROOT = 1e-3  # nor do roots of a cubic whose trigonometric form is closer to a double root


def signature(x: np.ndarray, p: int, labels: np.ndarray | None = None) -> np.ndarray:
    """The ``p`` leading directions of the samples ``x`` [n, ...], as orthonormal columns [F, q].

    q = min(p, rank). With ``labels`` [n], each label contributes p directions, in the order of the labels;
    directions of different labels are not orthogonal. The entry of largest magnitude of a column is positive.
    All-zero data have one direction, the zero vector.
    """
    if p < 1:
        raise BadInput("p", p, "a whole number >= 1")
    if len(x) == 0:
        raise BadInput("x", tuple(x.shape), "at least one sample")
    if labels is not None:
        return np.hstack([signature(x[labels == label], p) for label in np.unique(labels)])
    rows = np.asarray(x).reshape(len(x), -1).astype(np.float64)
    u, s = _leading(rows, min(p, *rows.shape))
    kept = s > RELATIVE_RANK * s[0]
    if not kept.any():
        return np.zeros((rows.shape[1], 1))
    u = u[:, kept]
    return u * np.where(u[np.abs(u).argmax(0), np.arange(u.shape[1])] < 0, -1.0, 1.0)


def _leading(rows: np.ndarray, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Right singular vectors [F, p] of ``rows`` [n, F] and their singular values, largest first."""
    n, features = rows.shape
    side = min(n, features)
    if side > GRAM_SIDE * max(p, 8) and rows.any():
        with suppress(scipy.sparse.linalg.ArpackError):  # fewer than p directions, on some processors
            _, s, v = scipy.sparse.linalg.svds(rows, k=p, v0=np.ones(side))
            if s[0] > RELATIVE_RANK * s[-1]:  # otherwise random directions were needed
                return v[::-1].T, s[::-1]
    squares, vectors = scipy.linalg.eigh(
        rows @ rows.T if n <= features else rows.T @ rows, subset_by_index=(side - p, side - 1)
    )
    s, vectors = np.sqrt(np.maximum(squares[::-1], 0)), vectors[:, ::-1]
    return (rows.T @ vectors / np.where(s > 0, s, 1) if n <= features else vectors), s


def principal_angles(u: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The min(p, q) angles between the spans of ``u`` [F, p] and ``w`` [F, q], smallest first."""
    return np.degrees(scipy.linalg.subspace_angles(u, w))[::-1]


def proximity(
    signatures: Signatures, others: Signatures | None = None, mode: str = "principal_min"
) -> np.ndarray:
    """Angle of every pair of signatures: [N, N], symmetric with a zero diagonal, or [N, M] to ``others``.

    ==================  =====================================================================================
    ``principal_min``   smallest principal angle (Eq. 3.1, 5.1)
    ``principal_sum``   sum of the principal angles: Eq. 3.2, 5.2 independent of the basis
    ``entry_min``       smallest angle of any two columns, where opposite columns are at 180 (released PACFL)
    ``entry_min_abs``   the same without signs
    ``trace``           sum of the angles of columns at equal places (Eq. 3.2, 5.2 as written)
    ``trace_abs``       the same without signs
    ``greedy_repo``     min(p, q) times ``entry_min_abs``: the published values of Eq. 3.2
    ==================  =====================================================================================

    The principal modes orthonormalize columns; the others only scale them to length 1. Sums run over
    min(p, q) angles. Memory is bounded: each block of pairs is one matrix product.
    """
    if mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    rows, ranks = _stack(signatures, mode)
    if others is None:
        upper = np.triu(_blocks(rows, ranks, rows, ranks, mode, symmetric=True), 1)
        _sharpen(upper, rows, ranks, rows, ranks, mode)
        return upper + upper.T
    other_rows, other_ranks = _stack(others, mode)
    if rows.shape[2] != other_rows.shape[2]:
        raise BadInput("others", other_rows.shape[2], f"signatures of {rows.shape[2]} features")
    angles = _blocks(rows, ranks, other_rows, other_ranks, mode)
    _sharpen(angles, rows, ranks, other_rows, other_ranks, mode)
    return angles


def extend(
    matrix: np.ndarray, signatures: Signatures, newcomers: Signatures, mode: str = "principal_min"
) -> np.ndarray:
    """The proximity ``matrix`` [M, M] of ``signatures`` extended by ``newcomers``, [M + B, M + B].

    Only pairs that involve a newcomer are measured (PACFL, Algorithm 8).
    """
    cross = proximity(signatures, newcomers, mode)
    return np.block([[matrix, cross], [cross.T, proximity(newcomers, mode=mode)]])


def _stack(signatures: Signatures, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Columns as rows [N, P, F], padded with zeros, and the number of columns of each signature [N]."""
    if len(signatures) == 0:
        raise BadInput("signatures", 0, "at least one")
    features = {len(u) for u in signatures}
    if len(features) > 1:
        raise BadInput("signatures", sorted(features), "the same number of features for every client")
    prepare = _orthonormal if mode.startswith("principal") else _unit
    columns = [prepare(np.asarray(u, np.float64)) for u in signatures]
    ranks = np.array([u.shape[1] for u in columns])
    rows = np.zeros((len(columns), ranks.max(), features.pop()))
    for k, u in enumerate(columns):
        rows[k, : ranks[k]] = u.T
    return rows, ranks


def _unit(u: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(u, axis=0)
    return u / np.where(length > 0, length, 1)


def _orthonormal(u: np.ndarray) -> np.ndarray:
    if np.allclose(u.T @ u, np.eye(u.shape[1]), rtol=0, atol=1e-9):
        return u
    basis = scipy.linalg.orth(u)
    return basis if basis.size else np.zeros((len(u), 1))


def _blocks(
    rows: np.ndarray,
    ranks: np.ndarray,
    others: np.ndarray,
    other_ranks: np.ndarray,
    mode: str,
    symmetric: bool = False,
) -> np.ndarray:
    """Angles of all pairs, block by block; below the diagonal, blocks of a ``symmetric`` matrix are zero."""
    features, angles = rows.shape[2], np.zeros((len(rows), len(others)))
    step = max(1, BLOCK_ROWS // max(rows.shape[1], others.shape[1]))
    for i in range(0, len(rows), step):
        ours = rows[i : i + step].reshape(-1, features)
        for j in range(i if symmetric else 0, len(others), step):
            theirs = others[j : j + step].reshape(-1, features)
            cosines = (ours @ theirs.T).reshape(-1, rows.shape[1], len(others[j : j + step]), others.shape[1])
            pairs = cosines.transpose(0, 2, 1, 3)  # [I, J, P, Q]
            block = MODES[mode](pairs, ranks[i : i + step], other_ranks[j : j + step])
            angles[i : i + step, j : j + step] = block
    return angles


def _sharpen(
    angles: np.ndarray,
    rows: np.ndarray,
    ranks: np.ndarray,
    others: np.ndarray,
    other_ranks: np.ndarray,
    mode: str,
) -> None:
    """Replace NaN in ``angles``, where a principal angle is small: its sine keeps the digits."""
    i, j = np.nonzero(np.isnan(angles))
    step = max(1, BLOCK_ROWS // max(rows.shape[1], others.shape[1]))
    for part in range(0, len(i), step):
        a, b = i[part : part + step], j[part : part + step]
        u, w = rows[a], others[b]  # [S, P, F], [S, Q, F]
        cosines = u @ w.swapaxes(1, 2)
        values = _singular(cosines)
        sines = _singular(w - cosines.swapaxes(1, 2) @ u)  # largest first, padding last
        order = np.maximum(other_ranks[b, None] - 1 - np.arange(values.shape[1]), 0)
        small = np.degrees(np.arcsin(np.clip(np.take_along_axis(sines, order, 1), 0, 1)))
        exact = np.where(values > np.sqrt(0.5), small, _degrees(values))
        counted = np.arange(values.shape[1]) < np.minimum(ranks[a], other_ranks[b])[:, None]
        angles[a, b] = exact[:, 0] if mode == "principal_min" else (exact * counted).sum(1)


def _degrees(cosines: np.ndarray) -> np.ndarray:
    return np.degrees(np.arccos(np.clip(cosines, -1, 1)))


def _first(angles: np.ndarray, ranks: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Sum of the first min(p, q) of ``angles`` [I, J, P]: the others belong to padding."""
    counted = np.arange(angles.shape[2]) < np.minimum.outer(ranks, others)[..., None]
    return (angles * counted).sum(2)


def _entry_min(cosines: np.ndarray, ranks: np.ndarray, others: np.ndarray) -> np.ndarray:
    p, q = cosines.shape[2:]
    real = (np.arange(p) < ranks[:, None])[:, None, :, None] & (np.arange(q) < others[:, None])[:, None, :]
    return _degrees(np.where(real, cosines, -1).max((2, 3)))


def _entry_min_abs(cosines: np.ndarray) -> np.ndarray:
    return _degrees(np.abs(cosines).max((2, 3)))


def _singular(matrices: np.ndarray) -> np.ndarray:
    return np.linalg.svd(matrices, compute_uv=False)


def _principal(cosines: np.ndarray, count: int | None = None) -> np.ndarray:
    """The first ``count`` principal angles [I, J, R] in degrees, smallest first; NaN where one is too small.

    Cosines are roots of eigenvalues of a small Gram matrix; singular values where those lose digits.
    """
    tall = cosines if cosines.shape[2] >= cosines.shape[3] else cosines.swapaxes(2, 3)
    columns = np.ascontiguousarray(tall.transpose(2, 3, 0, 1))
    gram = np.einsum("kpij,kqij->pqij", columns, columns)
    if len(gram) == 3:
        squares, sure = _eigenvalues_of_3(gram, count)
    else:
        squares = np.linalg.eigvalsh(gram.transpose(2, 3, 0, 1))[..., ::-1]
        sure = np.ones(squares.shape[:2], bool)
    squares = squares[..., :count]
    again = ~(sure & (squares[..., -1] > NEAR))
    values = np.sqrt(np.maximum(squares, 0))
    values[again] = _singular(tall[again])[:, :count]
    values[values[..., 0] ** 2 > 1 - NEAR] = np.nan
    return _degrees(values)


def _eigenvalues_of_3(g: np.ndarray, count: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of symmetric matrices ``g`` [3, 3, I, J], largest first, and False where two are close.

    With ``count`` 1 only the largest, which only the second can be close to.

    A closed form: Smith, "Eigenvalues of a symmetric 3 x 3 matrix", Communications of the ACM 1961.
    """
    mean = (g[0, 0] + g[1, 1] + g[2, 2]) / 3
    a, b, c = (g[k, k] - mean for k in range(3))
    d, e, f = g[0, 1], g[0, 2], g[1, 2]
    p = np.sqrt((a * a + b * b + c * c + 2 * (d * d + e * e + f * f)) / 6)
    half = (a * (b * c - f * f) - d * (d * c - e * f) + e * (d * f - b * e)) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        r = half / p**3
    angle = np.arccos(np.clip(r, -1, 1)) / 3
    first = mean + 2 * p * np.cos(angle)
    if count == 1:
        return first[..., None], r > DOUBLE_ROOT - 1
    last = mean + 2 * p * np.cos(angle + 2 * np.pi / 3)
    return np.stack([first, 3 * mean - first - last, last], -1), np.abs(r) < 1 - DOUBLE_ROOT


def _diagonal(cosines: np.ndarray) -> np.ndarray:
    return np.diagonal(cosines, axis1=2, axis2=3)


# Angles [I, J] of signatures with ``p`` [I] and ``q`` [J] columns, from the cosines ``c`` [I, J, P, Q].
MODES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "principal_min": lambda c, p, q: _principal(c, 1)[..., 0],
    "principal_sum": lambda c, p, q: _first(_principal(c), p, q),
    "entry_min": _entry_min,
    "entry_min_abs": lambda c, p, q: _entry_min_abs(c),
    "trace": lambda c, p, q: _first(_degrees(_diagonal(c)), p, q),
    "trace_abs": lambda c, p, q: _first(_degrees(np.abs(_diagonal(c))), p, q),
    "greedy_repo": lambda c, p, q: np.minimum.outer(p, q) * _entry_min_abs(c),
}
