"""SCGIGA: worked examples E1 to E5 of the specification and its oracles 1 to 12."""

import warnings

import numpy as np
import pytest
from coreset_measures import (
    alignment,
    beta,
    error_bound,
    estimate,
    penalized,
    smooth,
    squared_error,
    tightest_bound,
    zeta0,
)
from scipy import sparse
from scipy.optimize import nnls
from support import refused
from test_coreset_graphs import weighted

from benchmarks.coresets import direct
from fedflow.procedures.coresets.baselines import BASELINES, Problem
from fedflow.procedures.coresets.graph import Operator, gaussian_mixture, knn_graph, random_graph
from fedflow.procedures.coresets.select import Selection, begin, objective_error, pick, select


def graph(n: int, *edges: tuple[int, int, float]) -> np.ndarray:
    found = np.zeros((n, n))
    for i, j, weight in edges:
        found[i, j] = found[j, i] = weight
    return found


def picked(operator: Operator, k: int, costs=None, kappa: float = 1.0) -> Selection:
    """``k`` picks, also more than there are nodes."""
    found = begin(operator)
    for _ in range(k):
        found = pick(operator, found, costs, kappa)
    return found


def only(n: int, **weights: float) -> np.ndarray:
    """Weights [n] by node, such as ``only(4, _0=0.5)``."""
    found = np.zeros(n)
    for node, weight in weights.items():
        found[int(node[1:])] = weight
    return found


PATH = graph(4, (0, 1, 1), (1, 2, 1), (2, 3, 1))
STAR = graph(5, *((0, leaf, 1) for leaf in range(1, 5)))
FIVE = graph(5, (0, 1, 1), (1, 2, 2), (2, 3, 1), (3, 4, 4), (0, 2, 0.5))
FOUR = graph(4, (0, 3, 1), (1, 2, 3), (1, 3, 1), (2, 3, 2))
TREE = graph(6, (0, 1, 1), (0, 2, 1), (0, 5, 1), (1, 3, 1), (1, 4, 1))


def sixty() -> np.ndarray:
    """The graph of oracle 10, as errata S2 define it."""
    rng = np.random.default_rng(0)
    upper = np.triu((rng.random((60, 60)) < 0.15) * rng.random((60, 60)), 1)
    return upper + upper.T


@pytest.mark.parametrize(
    ("example", "k", "picks", "weights", "error"),
    [
        (PATH, 1, [0], only(4, _0=0.5), 0.35355339),
        (PATH, 4, [0, 3], only(4, _0=0.5, _3=0.5), 0),
        (STAR, 1, [0], only(5, _0=0.8), 0.2),
        (STAR, 2, [0, 1], only(5, _0=0.72258065, _1=0.10322581), 0.18665131),
        (STAR, 5, None, None, 0.10339655),
        (STAR, 6, None, None, 0.09253716),
        (FIVE, 1, [2], only(5, _2=0.66666667), 0.25819889),
        (FIVE, 2, [2, 3], only(5, _2=0.61876248, _3=0.23952096), 0.16835472),
        (FIVE, 3, [2, 3, 0], only(5, _0=0.18169745, _2=0.54267777, _3=0.21006882), 0.11450411),
        (FIVE, 4, [2, 3, 0, 4], np.array([0.16623213, 0, 0.49648732, 0.19218864, 0.13207624]), 0.05102091),
        (FIVE, 10, None, None, 0.01770692),
        (FIVE, 50, None, None, 0.01264650),
    ],
)
def test_examples_1_to_3(example, k, picks, weights, error):
    operator = Operator(example)
    found = picked(operator, k)
    assert found.error == pytest.approx(error, abs=2e-8)
    assert objective_error(operator, found.weights()) == pytest.approx(error, abs=2e-8)
    if picks is not None:
        assert found.picks.tolist() == picks and np.allclose(found.weights(), weights, atol=1e-8)


def test_example_3_step_by_step():
    operator, found = Operator(FIVE), picked(Operator(FIVE), 3)
    assert np.allclose(operator.norms, [0.73484692, 0.6, 0.54772256, 0.82462113, 0.82462113])
    assert np.allclose(found.alignments, [0.81649658, 0.75818883, 0.73308594])
    assert np.allclose(found.deltas, [1, 0.36820494, 0.26871140])
    assert np.allclose(found.errors, [0.33333333, 0.14171657, 0.06555596])
    values = [1, 2, 3, 4, 5]
    assert estimate(found.weights(), values) == pytest.approx(2.65000604, abs=1e-8)
    assert estimate(found.weights("sum1"), values) == pytest.approx(2.83591731, abs=1e-8)
    two = picked(Operator(FIVE, 2), 2)
    assert two.picks.tolist() == [2, 3] and two.error == pytest.approx(0.09304610, abs=1e-8)
    assert np.allclose(two.weights()[[2, 3]], [0.71642163, 0.24029048])


def test_example_1_stops_at_the_target():
    assert np.allclose(Operator(PATH).norms, 0.70710678)
    found = picked(Operator(PATH), 4)
    assert found.stopped and found.deltas.tolist() == [1, 0.5]


@pytest.mark.parametrize(
    ("kappa", "chosen", "weights", "cost", "error"),
    [
        (1, [2, 3], [0.61876248, 0.23952096], 6, 0.16835472),
        (0.95, [2, 3], [0.61876248, 0.23952096], 6, 0.16835472),
        (0.9, [1, 4], [0.55555556, 0.29411765], 4, 0.17339365),
        *((kappa, [1, 3], [0.50335570, 0.23489933], 3, 0.22879902) for kappa in (0.7, 0.5, 0.2)),
    ],
)
def test_example_3_with_costs(kappa, chosen, weights, cost, error):
    costs = np.array([5, 1, 4, 2, 3])
    found = select(Operator(FIVE), 2, costs, kappa)
    assert found.chosen.tolist() == chosen and np.allclose(found.weights()[chosen], weights)
    assert costs[found.chosen].sum() == cost and found.error == pytest.approx(error, abs=1e-8)


def test_example_4_clips_a_step_and_pays_for_a_node_that_it_drops():
    costs = np.array([3, 1, 4, 2])
    found = select(Operator(FOUR), 3, costs, 0.5)
    assert found.picks.tolist() == [1, 3, 0] and found.chosen.tolist() == [0, 3]
    assert found.deltas[1] == 1  # 1.71778641 without clipping
    assert np.allclose(found.errors, [0.43181818, 0.10714286, 0.06914894])
    assert np.allclose(found.weights(), [0.13297872, 0, 0, 0.79787234])
    assert costs[found.chosen].sum() == 5 and found.paid(costs) == 6


def test_example_5_scaled_weights_have_the_error_of_the_corrected_6_7():
    operator = Operator(sixty())
    rng = np.random.default_rng(1)
    for _ in range(20):
        weights = rng.random(60) * (rng.random(60) < 0.2)
        best = objective_error(operator, beta(operator, weights) * weights)
        assert best**2 == pytest.approx((1 - alignment(operator, weights) ** 2) / 60, rel=1e-10)
        factors = [objective_error(operator, f * beta(operator, weights) * weights) for f in (0.99, 1.01)]
        assert best < min(factors)
        costs = np.ones(60)
        spent = 0.1 * (weights > 0).sum()
        assert penalized(operator, weights, costs, 0.1) == pytest.approx(alignment(operator, weights) - spent)


def test_without_a_positive_alignment_it_stops():
    """S4: outside the cone of the columns, which `sym_norm` allows, nothing else helps."""
    operator = Operator(TREE, kind="sym_norm")
    found = select(operator, 6, costs=np.ones(6), kappa=0.5)
    assert found.stopped and found.picks.tolist() == [0, 1]
    assert np.allclose(found.weights()[:2], 0.4023689271) and found.errors[-1] == pytest.approx(0.0285954792)
    fitted, distance = nnls(operator.matrix.toarray(), np.full(6, 1 / 6))
    assert np.allclose(found.weights(), fitted) and found.error == pytest.approx(distance)


@pytest.mark.parametrize("kind", ["lazy", "sym_norm"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kappa", [1, 0.6, 0.1])
def test_invariants_of_every_step(kind, steps, kappa):
    """Oracles 1 to 3, the error identity and the recursion of J."""
    for seed in range(3):
        operator = Operator(weighted(seed), steps, kind)
        power = np.linalg.matrix_power(operator.matrix.toarray(), steps)
        costs = np.random.default_rng(seed).random(30)
        found = begin(operator)
        for _ in range(12):
            last, found = found, pick(operator, found, costs, kappa)
            x = power @ (found.w_bar / operator.norms)
            assert np.linalg.norm(x) == pytest.approx(1, abs=1e-10) and (found.w_bar >= 0).all()
            assert found.zeta1 == pytest.approx(x.sum() / np.sqrt(30), abs=1e-10)
            assert np.allclose(found.product, power @ x, atol=1e-10)
            before, after, delta = 1 - last.zeta1**2, found.errors[-1], found.deltas[-1]
            assert after <= before + 1e-12 and 0 <= delta <= 1
            if delta < 1 or len(found.picks) == 1:
                assert after == pytest.approx(before * (1 - found.alignments[-1] ** 2), abs=1e-10)
            weights = found.weights()
            assert np.linalg.norm(power @ weights - 1 / 30) == pytest.approx(np.sqrt(after / 30), abs=1e-10)
            assert found.error == pytest.approx(np.sqrt(after / 30), abs=1e-12)
            assert found.weights("sum1").sum() == pytest.approx(1)
            if kind == "lazy":
                assert weights.sum() == pytest.approx(1 - after, abs=1e-10)
                assert weights.sum() == pytest.approx(1 - 30 * found.error**2, abs=1e-10)
                assert estimate(weights, np.ones(30)) == pytest.approx(1 - after)
        assert np.sqrt(found.errors[0]) <= np.sqrt(1 - kappa**2 * zeta0(operator).max() ** 2) + 1e-12  # eta
        if kind == "lazy":  # Lemma 9
            first = np.sqrt(1 - found.errors[0])
            assert first >= kappa * np.sqrt(30) / operator.norms.sum() - 1e-12


def test_without_costs_it_is_giga_on_the_columns():
    """Oracle 4, against the geodesic form: directions on the sphere, and a projection on their plane."""
    columns = Operator(weighted(7)).matrix.toarray()
    unit, target = columns / np.linalg.norm(columns, axis=0), np.full(30, 30**-0.5)
    x, weights, picks = np.zeros(30), np.zeros(30), []
    for _ in range(15):
        towards = target - (target @ x) * x
        sideways = unit - np.outer(x, x @ unit)
        lengths = np.linalg.norm(sideways, axis=0)
        gains = np.where(lengths > 1e-9, towards @ sideways / np.maximum(lengths, 1e-9), -np.inf)
        picks.append(int(gains.argmax()))
        one = np.linalg.lstsq(np.column_stack([x, unit[:, picks[-1]]]), target)[0]
        weights *= one[0]
        weights[picks[-1]] += one[1]
        x = unit @ weights
        weights, x = weights / np.linalg.norm(x), x / np.linalg.norm(x)
    found = select(Operator(weighted(7)), 15)
    assert found.picks.tolist() == picks and np.allclose(found.w_bar, weights, atol=1e-13)


@pytest.mark.parametrize("kappa", [1, 0.5, 0.1])
def test_what_does_not_change_the_selection(kappa):
    """Oracle 5: scale and offset of costs, scale of edges, order of nodes."""
    rng = np.random.default_rng(0)
    costs, order = rng.random(30), rng.permutation(30)
    found = select(Operator(weighted(4), 2), 10, costs, kappa)
    for changed in (3.5 * costs, costs + 7):
        assert select(Operator(weighted(4), 2), 10, changed, kappa).picks.tolist() == found.picks.tolist()
    scaled = select(Operator(weighted(4) * 8, 2), 10, costs, kappa)
    assert np.allclose(scaled.weights(), found.weights(), atol=1e-12)
    permuted = select(Operator(weighted(4)[order][:, order], 2), 10, costs[order], kappa)
    assert order[permuted.picks].tolist() == found.picks.tolist()
    assert np.allclose(permuted.weights(), found.weights()[order], atol=1e-12)


def test_regular_and_complete_graphs_leave_the_first_pick_open():
    """Oracles 6 (as errata S3 have it) and 7."""
    ring = np.roll(np.eye(7), 1, 0) + np.roll(np.eye(7), -1, 0)
    assert np.allclose(zeta0(Operator(ring)), zeta0(Operator(ring))[0])
    complete = Operator(np.ones((7, 7)) - np.eye(7))
    assert np.allclose(complete.matrix.toarray(), (1 - np.eye(7)) / 6)
    assert select(complete, 1).picks.tolist() == [0]
    assert select(complete, 1, costs=np.arange(7)[::-1]).picks.tolist() == [6]  # a tie: the cheapest


def test_a_long_walk_needs_one_node():
    """Oracle 8."""
    sums = [select(Operator(weighted(5), steps), 1).weights().sum() for steps in (1, 10, 100, 10_000)]
    assert (np.diff(sums) > 0).all() and sums[-1] == pytest.approx(1, abs=1e-9)
    assert select(Operator(weighted(5), 10_000), 1).error < 1e-6


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
def test_errors_of_smooth_functions_are_within_the_bounds(threshold):
    """Oracle 9, (D.1) and (6.2)."""
    rng = np.random.default_rng(0)
    operators = [Operator(weighted(6), steps) for steps in (1, 2, 3)]
    for operator in operators:
        for _ in range(20):
            values = smooth(operator, threshold, rng.normal(size=30))
            weights = rng.random(30) * (rng.random(30) < 0.3)
            error = np.sqrt(squared_error(weights, values))
            assert 0 < error <= error_bound(operator, weights, values, threshold)
            scaled = weights / weights.sum()
            tightest = tightest_bound(operators, scaled, values, threshold)
            assert np.sqrt(squared_error(scaled, values)) <= tightest
            assert tightest == min(error_bound(o, scaled, values, threshold) for o in operators)
            gap = np.linalg.norm(operator.apply(scaled)) ** 2 - 1 / 30  # oracle 10, first part
            assert gap == pytest.approx(objective_error(operator, scaled) ** 2, abs=1e-12)
        weights = select(operator, 5).weights()
        bound = error_bound(operator, weights, values, threshold)
        assert abs(estimate(weights, values) - values.mean()) <= bound


def test_it_is_below_frank_wolfe_on_the_graph_of_the_errata():
    """Oracle 10, second part: errata S2."""
    operator = Operator(sixty())
    problem = Problem(operator.adjacency, operator)
    errors = {}
    for k in range(1, 51):
        both = []
        for name in ("giga", "frank_wolfe"):
            nodes, weights = BASELINES[name](problem, k, np.random.default_rng(0))
            full = np.zeros(60)
            full[nodes] = weights
            both.append(objective_error(operator, full))
        errors[k] = both
    expected = {1: (0.1142, 0.4829), 5: (0.0858, 0.1827), 10: (0.0679, 0.1082), 20: (0.0436, 0.0619)}
    for k, pair in (expected | {50: (0.0184, 0.0197)}).items():
        assert errors[k] == pytest.approx(pair, abs=6e-5)
    assert all(ours < theirs for ours, theirs in errors.values())


@pytest.mark.parametrize("steps", [1, 2])
def test_one_node_against_all_of_them(steps):
    """The first pick is the best single node; Theorem 5 and oracles 11 and 12, by brute force."""
    rng = np.random.default_rng(0)
    for seed in range(5):
        operator, costs = Operator(weighted(seed), steps), rng.random(30)
        singles = [np.eye(30)[v] * beta(operator, np.eye(30)[v]) for v in range(30)]
        errors = [objective_error(operator, single) for single in singles]
        found = select(operator, 1)
        assert found.picks[0] == np.argmin(errors) and np.allclose(
            found.weights(), singles[np.argmin(errors)]
        )
        assert found.picks[0] == np.argmin(operator.norms)
        for kappa in (0.1, 0.5, 0.9):
            trade = (1 - kappa) / (costs.max() * operator.norms.min() * np.sqrt(30))
            best = np.argmax([penalized(operator, single, costs, trade) for single in singles])
            aligned = zeta0(operator)
            assert aligned[best] >= kappa * aligned.max()
            window = np.flatnonzero(aligned >= kappa * aligned.max())
            assert select(operator, 1, costs, kappa).picks[0] == window[np.argmin(costs[window])]
        assert select(operator, 1, costs, 1e-9).picks[0] == np.argmin(costs)


def test_clipped_steps_keep_weights_positive_and_errors_falling():
    rng, clipped = np.random.default_rng(0), 0
    for _ in range(100):
        n = int(rng.integers(3, 7))
        upper = np.triu(rng.integers(1, 5, (n, n)), 1)
        found = picked(Operator(upper + upper.T), 3, rng.permutation(n), rng.choice([0.05, 0.2, 0.5, 0.9]))
        clipped += bool((found.deltas[1:] == 1).any())
        assert (found.w_bar >= 0).all() and (np.diff(found.errors) <= 1e-12).all()
        assert found.weights().sum() == pytest.approx(1 - found.errors[-1])
    assert clipped


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("kappa", [1, 0.4])
def test_the_incremental_form_is_the_direct_one(steps, kappa):
    operator = Operator(random_graph(150, 0.05, 0), steps)
    costs = np.random.default_rng(0).random(150)
    power = np.linalg.matrix_power(operator.matrix.toarray(), steps)
    norms = np.linalg.norm(power, axis=0)
    unit = power / norms
    weights = direct(norms, lambda w: unit @ w, lambda x: unit.T @ x, 60, costs, kappa)
    assert np.allclose(select(operator, 60, costs, kappa).weights(), weights, atol=1e-12)


def test_an_extended_selection_is_that_of_one_go_and_the_first_stays_as_it_was():
    operator, costs = Operator(weighted(8), 2), np.random.default_rng(0).random(30)
    whole, part = select(operator, 12, costs, 0.5), select(operator, 5, costs, 0.5)
    kept = {name: value.copy() for name, value in vars(part).items()}
    longer = select(operator, 12, costs, 0.5, start=part)
    for name, value in vars(whole).items():
        assert np.array_equal(getattr(longer, name), value)
        assert np.array_equal(getattr(part, name), kept[name])
    assert longer.picks[:5].tolist() == part.picks.tolist()


def test_a_budget_ends_the_picks_before_it_is_exceeded():
    operator, costs = Operator(weighted(9)), np.random.default_rng(1).random(30)
    whole = select(operator, 20, costs)
    paid = [np.unique(whole.picks[: k + 1]) for k in range(20)]
    affordable = sum(costs[nodes].sum() <= 3 for nodes in paid)
    found = select(operator, 20, costs, budget=3)
    assert 0 < len(found.picks) == affordable < 20
    assert found.paid(costs) <= 3 and found.picks.tolist() == whole.picks[:affordable].tolist()
    assert select(operator, 20, costs, budget=0).weights("sum1").sum() == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k: 0 .* >= 1 and <= 5, the number of nodes"),
        ({"k": 6}, "k: 6 .* >= 1 and <= 5, the number of nodes"),
        ({"kappa": 0}, r"kappa: 0 .* a number in \(0, 1\]"),
        ({"kappa": float("nan")}, "kappa: nan"),
        ({"costs": [1, -2, 1, 1, 1]}, "costs: -2.0 .* finite numbers >= 0"),
        ({"costs": [1, np.nan, 1, 1, 1]}, "costs: nan .* finite numbers >= 0"),
        ({"costs": [1, 2]}, r"costs: \(2,\) .* a cost per node, \[5\]"),
        ({"budget": 1.0}, "budget: 1.0 .* >= 0, with costs"),
        ({"budget": -1.0, "costs": np.ones(5)}, "budget: -1.0 .* >= 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with refused(message):
        select(Operator(FIVE), **{"k": 2} | settings)
    with refused("weights: 'mean' .* beta or sum1"):
        select(Operator(FIVE), 1).weights("mean")


def test_nodes_of_two_components_can_be_chosen():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        operator = Operator(sparse.block_diag([FIVE, FOUR]))
    found = select(operator, 9)
    assert found.chosen[0] < 5 <= found.chosen[-1] and found.weights().sum() == pytest.approx(1, abs=0.05)


def test_costs_fall_and_the_cheap_component_is_sampled_more():
    """Section 11: cost, and placement as in Figure 6.3 (means of 4 seeds, n = 1000, l = 4)."""
    rows = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        points, component = gaussian_mixture(1000, (0.3, 0.5, 0.2), rng)
        operator = Operator(knn_graph(points), 4)
        costs = 2 * np.array([2.04, 3.25, 0.51])[component] * rng.random(1000)
        even, cheap = select(operator, 20), select(operator, 20, costs, 0.2)
        counts = [np.bincount(component[found.picks], minlength=3) for found in (even, cheap)]
        rows.append([*counts[0], *counts[1], costs[even.chosen].sum(), costs[cheap.chosen].sum()])
    even_counts, cheap_counts, paid = np.split(np.mean(rows, 0), [3, 6])
    assert np.allclose(even_counts, [6.3, 10.3, 3.5], atol=1.5)
    assert np.allclose(cheap_counts, [4.8, 5.3, 9.3], atol=1.5)
    assert 35 < paid[0] < 52 and paid[1] < 1.5
