"""Signatures and angles: worked numbers, what holds for any subspace, and blocks against pairs."""

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedflow.heterogeneity import MODES, clusters, extend, principal_angles, proximity, signature
from fedflow.heterogeneity import subspace as module

E = np.eye(4)
U = E[:, :2]
W = np.column_stack(
    [np.cos(np.pi / 6) * E[0] + np.sin(np.pi / 6) * E[2], np.cos(np.pi / 3) * E[1] + np.sin(np.pi / 3) * E[3]]
)
ROTATED = W @ np.array([[1, -1], [1, 1]]) / np.sqrt(2)
NEGATED = W * [-1, 1]
SWAPPED = W[:, ::-1]
TOLERANCE = 1e-5  # degrees: arccos near 1 keeps half of the digits


def angle(u: np.ndarray, w: np.ndarray, mode: str) -> float:
    return float(proximity([u], [w], mode)[0, 0])


def random_signatures(seed: int, columns: list[int], features: int = 12) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [signature(rng.normal(size=(q + 3, features)) + 0.5, q) for q in columns]


@pytest.mark.parametrize(
    ("w", "expected"),
    [
        (W, (30, 90, 30, 30, 90, 90, 60)),
        (ROTATED, (30, 90, 52.2388, 52.2388, 121.5339, 121.5339, 2 * 52.2388)),
        (NEGATED, (30, 90, 60, 30, 210, 90, 60)),
        (SWAPPED, (30, 90, 30, 30, 180, 180, 60)),
        (U, (0, 0, 0, 0, 0, 0, 0)),
    ],
    ids=["W", "rotated", "negated", "swapped", "equal"],
)
def test_every_mode_gives_its_worked_angle(w, expected):
    modes = tuple(MODES)
    assert modes == (
        "principal_min",
        "principal_sum",
        "entry_min",
        "entry_min_abs",
        "trace",
        "trace_abs",
        "greedy_repo",
    )
    assert [angle(U, w, mode) for mode in modes] == pytest.approx(expected, abs=1e-4)


def test_principal_angles_are_30_and_60_whatever_the_basis():
    for w in (W, ROTATED, NEGATED, SWAPPED, 7 * W @ [[1, 2], [0, 1]]):
        assert principal_angles(U, w) == pytest.approx([30, 60])


HARD = np.array([0, 1e-9, 1e-6, 1e-3, 0.1, 0.2, 1, 30, 30 + 1e-9, 30.01, 60, 89.8, 89.99, 90 - 1e-6, 90])


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (3, 3), (2, 3), (4, 3), (5, 5)])
def test_angles_are_right_to_ten_digits_near_0_near_90_and_where_two_are_equal(sizes):
    """Pairs of subspaces at known angles, some with fewer columns than others."""
    rng, features = np.random.default_rng(sum(sizes)), 24
    us, ws, known = [], [], []
    for k in range(60):
        p, q = (max(1, size - (k % 4 == 3)) for size in sizes)
        theta = np.sort(rng.choice(HARD, min(p, q)))
        u, w = np.eye(features)[:, :p], np.eye(features)[:, 12 : 12 + q]
        for column, turn in enumerate(np.radians(theta)):
            w[:, column] = np.cos(turn) * u[:, column] + np.sin(turn) * w[:, column]
        map_, left, right = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (features, p, q))
        us.append(map_ @ u @ left)
        ws.append(map_ @ w @ right)
        known.append(theta)
        # SciPy looks at the cosine of another angle to choose between arcsin and arccos.
        assert principal_angles(us[-1], ws[-1]) == pytest.approx(theta, rel=0, abs=TOLERANCE)
    least, total = (proximity(us, ws, mode).diagonal() for mode in ("principal_min", "principal_sum"))
    assert least == pytest.approx([theta[0] for theta in known], rel=0, abs=1e-10)
    assert total == pytest.approx([theta.sum() for theta in known], rel=0, abs=1e-10)
    both = proximity([us[0], ws[0], us[0]], mode="principal_sum")
    assert both[0, 1] == pytest.approx(known[0].sum(), rel=0, abs=1e-10) and both[0, 2] < 1e-10


def test_planes_of_three_dimensions_always_meet():
    d1 = np.array([[3, 4, 5], [4, 3, 5], [0, 0, 0]])  # columns are samples
    d2 = np.array([[1, 0, 2], [0, 1, 1], [2, 2, 4]])
    u, w = signature(d1.T, 2), signature(d2.T, 2)
    assert principal_angles(u, w) == pytest.approx([0, 65.7537], abs=1e-4)
    assert angle(u[:, :1], w[:, :1], "principal_min") == pytest.approx(64.7759, abs=1e-4)


def test_a_newcomer_extends_the_matrix():
    turned = np.radians([0, 10, 80])
    signatures = np.stack([np.cos(turned), np.sin(turned)], axis=1)[:, :, None]  # [3, 2, 1]
    for mode in MODES:
        whole = proximity(signatures, mode=mode)
        assert whole == pytest.approx(np.array([[0, 10, 80], [10, 0, 70], [80, 70, 0]]), abs=TOLERANCE)
        extended = extend(whole[:2, :2], signatures[:2], signatures[2:], mode)
        assert extended == pytest.approx(whole, abs=TOLERANCE)


def test_any_threshold_from_5_to_30_degrees_recovers_four_sources():
    rng = np.random.default_rng(0)
    clients = []
    for _ in range(4):  # sources in R^64: a positive mean image and a five-dimensional subspace of noise
        mean, noise = rng.exponential(size=64) ** 2, rng.normal(size=(5, 64))
        clients += [mean + 0.1 * rng.normal(size=(100, 5)) @ noise for _ in range(10)]
    angles = proximity([signature(x, 3) for x in clients])
    for beta in (5, 30):
        assert clusters(angles, beta).tolist() == np.repeat(range(4), 10).tolist()


@pytest.mark.parametrize("shape", [(9, 30), (30, 9), (12, 12)])
def test_a_signature_spans_the_leading_left_singular_vectors(shape):
    x = np.random.default_rng(1).normal(size=shape)
    u = signature(x, 4)
    expected = np.linalg.svd(x.T, full_matrices=False)[0][:, :4]
    assert np.abs(np.sum(u * expected, axis=0)) == pytest.approx(np.ones(4))
    assert u[np.abs(u).argmax(0), np.arange(4)].min() > 0


def test_iterating_agrees_with_the_gram_matrix(monkeypatch):
    x = np.random.default_rng(2).integers(0, 256, (60, 3, 5, 5)).astype(np.uint8)
    by_gram = signature(x, 3)
    monkeypatch.setattr(module, "GRAM_SIDE", 1)
    assert signature(x, 3) == pytest.approx(by_gram, abs=1e-8)


@pytest.mark.parametrize("different", [0, 1, 2])
def test_few_different_images_of_a_large_client_give_the_same_bits_again(different):
    images = np.random.default_rng(2).integers(1, 256, (different, 20, 20)).astype(np.uint8)
    x = np.resize(images, (300, 20, 20)) if different else np.zeros((300, 20, 20), np.uint8)
    first, *others = (signature(x, 3) for _ in range(4))
    assert first.shape == (400, max(1, different)) and first.any() == bool(different)
    assert all((u == first).all() for u in others)


def test_data_whose_iteration_fails_get_their_gram_matrix(monkeypatch):
    """On some processors, ARPACK ends with an error if there are fewer directions than it looks for."""

    def failing(*_, **__):
        raise scipy.sparse.linalg.ArpackError(3)

    image = np.random.default_rng(2).integers(1, 256, (1, 20, 20)).astype(np.uint8)
    monkeypatch.setattr(scipy.sparse.linalg, "svds", failing)
    assert signature(np.repeat(image, 300, 0), 3)[:, 0] == pytest.approx(
        image.ravel() / np.linalg.norm(image)
    )


def test_more_directions_than_a_large_client_has_are_all_of_them():
    u = signature(np.random.default_rng(2).normal(size=(290, 300)), 300)
    assert u.shape == (300, 290) and u.T @ u == pytest.approx(np.eye(290), abs=1e-6)


def test_per_class_signatures_stand_side_by_side():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(12, 6)), np.array([7] + [2] * 11)
    u = signature(x, 3, y)
    assert u.shape == (6, 4)  # label 7 has a single sample
    assert u[:, :3] == pytest.approx(signature(x[1:], 3)) and u[:, 3:] == pytest.approx(signature(x[:1], 3))


def test_a_signature_has_no_directions_that_are_rounding_error():
    x = np.outer(np.arange(1, 6), [3.0, 4.0, 0.0])
    assert signature(x, 3) == pytest.approx(np.array([[0.6], [0.8], [0]]))


def test_black_images_are_90_degrees_from_everything():
    black = signature(np.zeros((4, 1, 2, 2), np.uint8), 3)
    assert black.shape == (4, 1) and not black.any()
    for mode in MODES:
        assert angle(black, E[:, :1], mode) == pytest.approx(90)


@given(seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3), p=st.integers(1, 5))
def test_a_signature_forgets_the_scale_of_its_data(seed, scale, p):
    x = np.random.default_rng(seed).normal(size=(7, 10))
    assert signature(scale * x, p) == pytest.approx(signature(x, p), abs=1e-6)


@pytest.mark.parametrize("mode", MODES)
@given(seed=st.integers(0, 10**6), columns=st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_a_proximity_matrix_is_symmetric_bounded_and_permutes_with_its_clients(mode, seed, columns):
    signatures = random_signatures(seed, columns)
    angles = proximity(signatures, mode=mode)
    assert (angles == angles.T).all() and not angles.diagonal().any() and (angles >= 0).all()
    largest = 180 if mode in ("entry_min", "trace") else 90
    if mode in ("principal_sum", "trace", "trace_abs", "greedy_repo"):
        largest *= max(columns)
    assert angles.max() <= largest
    order = np.random.default_rng(seed).permutation(len(columns))
    permuted = proximity([signatures[k] for k in order], mode=mode)
    assert permuted == pytest.approx(angles[np.ix_(order, order)], abs=TOLERANCE)


@given(seed=st.integers(0, 10**6), columns=st.lists(st.integers(1, 4), min_size=2, max_size=5))
def test_principal_modes_are_those_of_single_pairs_in_any_basis(seed, columns):
    signatures = random_signatures(seed, columns)
    rng = np.random.default_rng(seed)
    turned = [u @ (rng.normal(size=(u.shape[1],) * 2) + 3 * np.eye(u.shape[1])) for u in signatures]
    least, total = proximity(turned, mode="principal_min"), proximity(turned, mode="principal_sum")
    released = proximity(signatures, mode="entry_min_abs")
    assert (least <= released + TOLERANCE).all()
    for i in range(len(columns)):
        for j in range(i):
            angles = principal_angles(signatures[i], signatures[j])
            assert least[i, j] == pytest.approx(angles[0], abs=1e-5)
            assert total[i, j] == pytest.approx(angles.sum(), abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_blocks_change_nothing(mode, monkeypatch):
    signatures = random_signatures(4, [3, 1, 2, 4, 4, 2, 3])
    whole, cross = proximity(signatures, mode=mode), proximity(signatures[:5], signatures[2:], mode)
    monkeypatch.setattr(module, "BLOCK_ROWS", 8)  # two clients at once
    assert proximity(signatures, mode=mode) == pytest.approx(whole, abs=TOLERANCE)
    assert proximity(signatures[:5], signatures[2:], mode) == pytest.approx(cross, abs=TOLERANCE)
    assert cross == pytest.approx(whole[:5, 2:], abs=TOLERANCE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: proximity([U], mode="principle_min"), "mode: .*did you mean 'principal_min'"),
        (lambda: proximity([]), "signatures: 0 is not accepted; expected at least one"),
        (lambda: proximity([U, U[:3]]), "same number of features for every client"),
        (lambda: proximity([U], [U[:3]]), "others: 3 is not accepted; expected signatures of 4 features"),
        (lambda: signature(np.ones((2, 3)), 0), "p: 0 is not accepted; expected a whole number >= 1"),
        (lambda: signature(np.ones((0, 3)), 1), "expected at least one sample"),
    ],
)
def test_bad_input_is_named(call, message):
    with refused(message):
        call()
