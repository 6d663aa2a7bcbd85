"""Behavior that methods share: weights of averages, the model that is served, how cohorts are drawn."""

from typing import Any

import numpy as np
import pytest
import torch
from support import Ran, follow, near, prepare_run, products, quadratics, refused, run, same

from fedflow.errors import BadInput
from fedflow.methods import build_method
from fedflow.simulation.federation import Federation

SGD: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5}
HALF: dict[str, Any] = {"training": SGD, "participation": 0.5}


# Weights


@pytest.mark.parametrize(
    ("name", "shared", "locals_"),
    [
        ("fedper", "body", (1.04899375, 1.15958125)),
        ("lg_fedavg", "head", (0.594715625, 0.789884375)),
        ("fedrep", "body", (1.0240975, 1.0953775)),
    ],
)
def test_parts_are_averaged_with_n_k_or_uniformly(
    name: str, shared: str, locals_: tuple[float, float], cohort: str
) -> None:
    """The test-bed T2, whose clients have 10 and 30 samples and these local parts after a round."""
    uniform, samples = (
        run(name, products(), {"weighting": weighting}, rounds=1, cohort=cohort).server(shared)
        for weighting in ("uniform", "samples")
    )
    assert uniform == near([np.mean(locals_)])
    assert samples == near([0.25 * locals_[0] + 0.75 * locals_[1]])


def test_the_mean_of_mtl_has_weights_to_choose(cohort: str) -> None:
    """From 0.5, w = (0.545, -0.0525) with lambda = 1/4."""
    hyper = {"lam": 0.25, "weighting": "samples"}
    ran = run("mtl", quadratics(), hyper, rounds=1, cohort=cohort)
    assert ran.server("mean") == near([0.25 * 0.545 - 0.75 * 0.0525])


# The model served

BESIDE = {"ditto": "model", "apfl": "model", "pfedme": "model", "l2gd": "mean"}


@pytest.mark.parametrize("name", BESIDE)
def test_the_global_model_can_be_served(name: str, federation: Federation, tmp_path: Any) -> None:
    """Training is the same; the record holds one model, also for a resumed run."""
    personal, common = (
        run(name, federation, {"served": served}, **HALF) for served in ("personal", "global")
    )
    assert same(personal.state(), common.state())
    assert len(personal.outcome().models) == 8
    outcome = common.outcome()
    assert list(outcome.models) == [0]
    assert torch.equal(outcome.models[0], common.servers[-1][BESIDE[name]])
    assert len(set(outcome.scores.global_accuracy)) == 1
    folder = {"checkpoints": tmp_path, "checkpoint_every": 2}
    next(rounds := prepare_run(name, federation, {"served": "global"}, **HALF, **folder).rounds())
    next(rounds)
    again = run(name, federation, {"served": "global"}, **HALF, **folder)
    assert [r.replayed for r in again.rounds] == [True, True, False]
    assert again.outcome().metrics == outcome.metrics


def test_the_global_model_of_ditto_scores_as_fedavg(federation: Federation) -> None:
    ditto, plain = (
        run(name, federation, hyper, **HALF).outcome().metrics
        for name, hyper in (("ditto", {"served": "global"}), ("fedavg", {}))
    )
    for name in ("global_accuracy", "local_accuracy", "loss", "clusters"):
        assert ditto[name] == plain[name]


# Cohorts


def test_sampling_in_proportion_is_of_the_run(federation: Federation) -> None:
    with pytest.raises(BadInput, match=r"^method.sampling: "):
        run("fedavg", federation, {"sampling": "proportional"})
    ran = run("scaffold", federation, sampling="proportional", participation=0.125, rounds=150)
    counts = np.bincount([k for r in ran.rounds for k in r.cohort], minlength=8)
    expected = 150 * ran.simulation.sizes / ran.simulation.sizes.sum()
    assert np.abs(counts - expected).max() < 4 * np.sqrt(expected.max())


def test_samples_that_count_twice_cause_a_warning(federation: Federation, recwarn: Any) -> None:
    def messages(name: str, **settings: Any) -> list[str]:
        recwarn.clear()
        prepare_run(name, federation, sampling="proportional", **settings)
        return [str(w.message) for w in recwarn if w.category is UserWarning]

    (message,) = messages("fedavg", participation=0.5)
    assert message == (
        "fedavg: run.sampling: proportional and weighting: samples both count a client's samples"
    )
    assert not messages("fedavg", participation=1.0)
    assert not messages("scaffold", participation=0.5)


# Rates, with a learning rate of 0.1 and then of 0.05

DECAY: dict[str, Any] = {"training": {"lr_decay": 0.5}, "rounds": 2}
CURVES = np.array([[1.0, 1.0], [2.0, -1.0]])  # a_k, b_k


def gradient(w: np.ndarray) -> np.ndarray:
    """Both clients' gradients [2] on the test-bed T1."""
    return CURVES[:, 0] * (w - CURVES[:, 1])


def losses(w: float) -> np.ndarray:
    return CURVES[:, 0] / 2 * (w - CURVES[:, 1]) ** 2


def trained(w: float, lr: float, steps: int = 2, correction: Any = 0) -> np.ndarray:
    both = np.full(2, w)
    for _ in range(steps):
        both = both - lr * (gradient(both) + correction)
    return both


@pytest.mark.parametrize("control_lr", ["current", "initial"])
def test_scaffold_divides_by_the_rate_of_the_round_or_the_first(control_lr: str, cohort: str) -> None:
    x, c, own = 0.5, 0.0, np.zeros(2)
    for lr in (0.1, 0.05):
        y = trained(x, lr, correction=c - own)
        new = own - c + (x - y) / (2 * (lr if control_lr == "current" else 0.1))
        x, c, own = y.mean(), c + (new - own).mean(), new
    ran = run("scaffold", quadratics(), {"control_lr": control_lr}, cohort=cohort, **DECAY)
    assert (ran.server("model")[-1], ran.server("c")[-1]) == (near(x), near(c))


def test_a_gradient_is_divided_by_no_rate() -> None:
    with refused(r"^method\.control_lr: 'initial' .*expected current with variate: I"):
        build_method("scaffold", {"variate": "I", "control_lr": "initial"})


def test_qfedavg_has_the_lipschitz_constant_of_the_round(cohort: str) -> None:
    w = 0.5
    for lr in (0.1, 0.05):
        f, dw = losses(w), (w - trained(w, lr)) / lr
        w -= (f * dw).sum() / (dw**2 + f / lr).sum()
    ran = run("qfedavg", quadratics(), {"q": 1}, cohort=cohort, **DECAY)
    assert ran.server("model")[-1] == near(w)


def test_fednova_has_the_pull_of_the_round(cohort: str) -> None:
    """Batches of 10: one step and three; a_k = (1 - (1 - eta mu)^tau) / (eta mu)."""
    w, mu, p, tau = 0.5, 0.5, np.array([0.25, 0.75]), np.array([1, 3])
    for lr in (0.1, 0.05):
        local = np.full(2, w)
        for step in range(3):
            moved = local - lr * (gradient(local) + mu * (local - w))
            local = np.where(step < tau, moved, local)
        a = (1 - (1 - lr * mu) ** tau) / (lr * mu)
        w -= (p @ tau) * (p @ ((w - local) / a))
    training = {"epochs": 1, "batch_size": 10, "lr_decay": 0.5}
    ran = run("fednova", quadratics(), {"mu": mu}, training=training, rounds=2, cohort=cohort)
    assert ran.server("model")[-1] == near(w)


def test_apfl_moves_alpha_by_the_rate_of_the_round(cohort: str) -> None:
    w, v, alpha = 0.5, np.zeros(2), np.full(2, 0.5)
    for lr in (0.1, 0.05):
        local = np.full(2, w)
        for step in range(2):
            g = gradient(alpha * v + (1 - alpha) * local)
            moved = alpha - lr * (v - local) * g if step == 0 else alpha
            local, v, alpha = local - lr * gradient(local), v - lr * alpha * g, moved.clip(0, 1)
        w = local.mean()
    simulation = prepare_run("apfl", quadratics(), cohort=cohort, **DECAY)
    simulation.state.store.first["personal"] = torch.zeros(1, dtype=torch.float64)
    ran = follow(simulation)
    assert ran.kept("alpha")[-1] == near(alpha.tolist())
    assert ran.kept("personal")[-1] == near(v.tolist())


def test_l2gd_pulls_by_the_rate_of_the_round(cohort: str) -> None:
    """One step a round; theta = eta lambda (1 - p) / p."""
    hyper, training = {"lam": 1, "p": 0.4}, {"epochs": 1, "lr_decay": 0.5}
    simulation = prepare_run("l2gd", quadratics(), hyper, training=training, rounds=2, cohort=cohort)
    simulation.state.server.zeros.fill_(1)
    ran = follow(simulation)
    first = trained(0.5, 0.1, steps=1)
    ones, zeros = (int(ran.servers[0][name]) for name in ("ones", "zeros"))
    pulled = first + (1 - (1 - 0.05 * 1.5) ** ones) * (first.mean() - first)
    second = pulled - 0.05 * gradient(pulled) * (zeros > 0)
    assert ran.kept("model") == [near(first.tolist()), near(second.tolist())]


@pytest.mark.parametrize(
    ("name", "rate", "kept"),
    [
        ("ditto", "personal_lr", "personal"),
        ("pfedme", "personal_lr", "personal"),
        ("perfedavg", "beta", None),
    ],
)
def test_a_rate_that_is_given_does_not_decay_and_null_does(name: str, rate: str, kept: str | None) -> None:
    def last(ran: Ran) -> Any:
        return ran.server("model")[-1] if kept is None else ran.kept(kept)[-1]

    halved: dict[str, Any] = {"lr": 0.1, "lr_decay": 0.5}
    follows, given = (
        run(name, quadratics(), {rate: value}, training=halved, rounds=2) for value in (None, 0.1)
    )
    assert last(follows) != near(last(given))
    swapped = prepare_run(name, quadratics(), {rate: 0.1}, training=halved, rounds=2)
    next(rounds := swapped.rounds())
    object.__setattr__(swapped.job.method, rate, 0.05)
    list(rounds)
    store = swapped.state.store
    expected = (
        float(swapped.state.server.model) if kept is None else [float(store.get(k)[kept]) for k in (0, 1)]
    )
    assert last(follows) == near(expected)
