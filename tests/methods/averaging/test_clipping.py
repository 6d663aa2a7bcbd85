"""What gradient clipping limits, by hand on the test-bed T1 (see `test_oracles`).

In FedDyn's experiments corrections and proximal terms are inside the clipped vector, weight decay outside.
"""

from typing import Any

import numpy as np
import pytest
from support import quadratics, run

from fedflow.errors import BadInput

LR, DECAY, MOMENTUM, LIMIT = 0.1, 0.05, 0.5, 0.4
TRAINING = {"epochs": 3, "lr": LR, "weight_decay": DECAY, "clip_norm": LIMIT}
A, B, SIZES = np.array([1.0, 2.0]), np.array([1.0, -1.0]), np.array([10, 30])


def near(value: Any) -> Any:
    return pytest.approx(np.asarray(value).tolist(), rel=0, abs=1e-12)


def clipped(gradient: np.ndarray) -> np.ndarray:
    return np.clip(gradient, -LIMIT, LIMIT)


def test_a_proximal_term_is_clipped(cohort: str) -> None:
    hyper = {"mu": 3, "weighting": "uniform"}
    ran = run("fedprox", quadratics(), hyper, training=TRAINING, rounds=1, cohort=cohort)
    w = np.full(2, 0.5)
    for _ in range(3):
        w = w - LR * (clipped(A * (w - B) + 3 * (w - 0.5)) + DECAY * w)
    assert ran.server("model") == near([w.mean()])


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("clip", ["whole", "replicate"])
def test_feddyn_clips_all_of_its_regularizer_or_the_linear_part(
    clip: str, weighting: str, cohort: str
) -> None:
    hyper = {"alpha": 0.5, "clip": clip, "weighting": weighting}
    training = TRAINING | {"momentum": MOMENTUM}
    ran = run("feddyn", quadratics(), hyper, training=training, cohort=cohort)
    alpha = 0.5 / (SIZES / SIZES.mean() if weighting == "samples" else np.ones(2))
    theta, h, g, states = 0.5, 0.0, np.zeros(2), []
    for _ in range(3):
        w, v = np.full(2, theta), np.zeros(2)
        for _ in range(3):
            if clip == "whole":
                step = clipped(A * (w - B) - g + alpha * (w - theta)) + DECAY * w
            else:
                step = clipped(A * (w - B) - g - alpha * theta) + (DECAY + alpha) * w
            v = MOMENTUM * v + step
            w = w - LR * v
        g = g - alpha * (w - theta)
        h = h - 0.5 * (w - theta).mean()
        theta = w.mean() - h / 0.5
        states.append([theta, h, *g])
    assert [[x, h, *g] for x, h, g in zip(ran.server("model"), ran.server("h"), ran.kept("g"))] == [
        near(state) for state in states
    ]


@pytest.mark.parametrize("clip", ["gradient", "whole"])
def test_scaffold_clips_the_gradient_or_the_corrected_gradient(clip: str, cohort: str) -> None:
    training = TRAINING | {"momentum": MOMENTUM}
    ran = run("scaffold", quadratics(), {"clip": clip}, training=training, cohort=cohort)
    x, c, own, states = 0.5, 0.0, np.zeros(2), []
    for _ in range(3):
        y, v, inside = np.full(2, x), np.zeros(2), clip == "whole"
        for _ in range(3):
            v = MOMENTUM * v + clipped(A * (y - B) + inside * (c - own)) + DECAY * y
            y = y - LR * (v + (not inside) * (c - own))
        own = own - c + (x - y) / (3 * LR)
        x, c = y.mean(), own.mean()
        states.append([x, c, *own])
    assert [[x, c, *k] for x, c, k in zip(ran.server("model"), ran.server("c"), ran.kept("c"))] == [
        near(state) for state in states
    ]


@pytest.mark.parametrize(
    ("name", "clip", "instead"), [("feddyn", "replicate", "whole"), ("scaffold", "whole", "gradient")]
)
def test_a_choice_without_clipping_is_refused(name: str, clip: str, instead: str) -> None:
    with pytest.raises(
        BadInput, match=rf"^method\.clip: '{clip}' .*expected {instead}, as training\.clip_norm is null$"
    ):
        run(name, quadratics(), {"clip": clip})
