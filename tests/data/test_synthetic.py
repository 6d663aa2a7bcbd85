from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from support import refused

from fedflow.data.files import RawData
from fedflow.data.synthetic import (
    ConvexOptions,
    RegressionOptions,
    mixed_regression,
    synthetic_convex,
    true_models,
)


def convex(heterogeneity: str = "homogeneous", **options: Any) -> RawData:
    return synthetic_convex(ConvexOptions(heterogeneity=heterogeneity, **options))


def best_loss(raw: RawData) -> float:
    """The smallest cross-entropy of one logistic regression on all devices together."""
    fitted = LogisticRegression(C=1e4, max_iter=1000).fit(raw.x_train, raw.y_train)
    return log_loss(raw.y_train, fitted.predict_proba(raw.x_train))


def test_the_convex_problem_has_the_shape_of_the_paper():
    raw = convex()
    assert raw.x_train.shape == (4000, 30) and raw.x_train.dtype == np.float32
    assert raw.classes == ("0", "1", "2", "3", "4") and set(raw.y_train.tolist()) == set(range(5))
    assert np.bincount(raw.columns["user"].train).tolist() == [200] * 20
    assert raw.x_test is raw.x_train and raw.y_test is raw.y_train
    # Variances j^-1.2, means 0: 4,000 draws give them within a few standard errors.
    np.testing.assert_allclose(raw.x_train.var(0), np.arange(1, 31) ** -1.2, rtol=0.12)
    np.testing.assert_allclose(raw.x_train.mean(0), 0, atol=0.08)


def test_only_the_parameters_of_devices_keep_one_model_from_fitting_them_all():
    # Losses that FedDyn's paper aims at after some hundred rounds: 0.08 to 0.09, and 1.57 for Type 1.
    assert best_loss(convex("parameters")) > 1
    for heterogeneity in "homogeneous", "inputs", "sizes":
        assert best_loss(convex(heterogeneity)) < 0.05


def test_inputs_and_sizes_differ_between_devices_where_they_should():
    def centers(raw: RawData) -> np.ndarray:
        user = raw.columns["user"].train
        return np.array([raw.x_train[user == i].mean(0) for i in range(20)])

    assert np.abs(centers(convex())).max() < 0.4 < np.abs(centers(convex("inputs"))).mean()
    sizes = np.bincount(convex("sizes").columns["user"].train)
    assert sizes.min() < 100 and sizes.max() > 400
    assert np.ptp(np.bincount(convex("sizes", gamma3=0).columns["user"].train)) == 0
    assert np.bincount(convex("inputs").columns["user"].train).tolist() == [200] * 20


def test_the_mean_of_the_parameters_changes_no_label():
    plain, moved = (convex("parameters", gamma1=gamma1) for gamma1 in (0, 9))
    np.testing.assert_array_equal(plain.x_train, moved.x_train)
    np.testing.assert_array_equal(plain.y_train, moved.y_train)


def test_more_devices_only_add_devices_and_another_seed_changes_all():
    few, many = convex("inputs", devices=3), convex("inputs", devices=5)
    np.testing.assert_array_equal(few.x_train, many.x_train[:600])
    np.testing.assert_array_equal(few.y_train, many.y_train[:600])
    assert np.isin(few.x_train, convex("inputs", devices=3, seed=1).x_train).mean() < 0.01  # by chance


SMALL = {"clients": 7, "groups": 3, "dimension": 12, "samples": 40, "scale": 0.5, "seed": 4}


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_least_squares_on_a_group_finds_its_true_model(noise):
    options = RegressionOptions(**(SMALL | {"noise": noise}))
    raw, theta = mixed_regression(options), true_models(options)
    assert theta.shape == (3, 12) and set(np.unique(theta)) == {0.0, 0.5}
    for split in "train", "test":
        x, y = getattr(raw, f"x_{split}"), getattr(raw, f"y_{split}")
        group = getattr(raw.columns["group"], split)
        assert x.shape == (280, 12) and x.dtype == y.dtype == np.float32
        for j in range(3):
            found, *_ = np.linalg.lstsq(x[group == j], y[group == j])
            # Standard error of a coordinate: noise / sqrt(80).
            np.testing.assert_allclose(found, theta[j], atol=5 * noise / 80**0.5 + 1e-5)
            residuals = y[group == j] - x[group == j] @ theta[j]
            assert residuals.std() == pytest.approx(noise, rel=0.25, abs=1e-6)


def test_groups_are_consecutive_blocks_of_clients_and_tests_are_fresh():
    raw = mixed_regression(RegressionOptions(**SMALL))
    user, group = raw.columns["user"], raw.columns["group"]
    assert np.bincount(user.train).tolist() == np.bincount(user.test).tolist() == [40] * 7
    assert [int(group.train[user.train == k][0]) for k in range(7)] == [0, 0, 0, 1, 1, 2, 2]
    assert np.isin(raw.x_train, raw.x_test).mean() < 0.01  # as many as float32 makes equal
    np.testing.assert_allclose(raw.x_train.std(), 1, rtol=0.05)


def test_the_default_is_a_setting_of_the_paper():
    options = RegressionOptions()
    assert (options.clients, options.samples, options.dimension) == (100, 100, 1000)
    assert true_models(options).mean() == pytest.approx(0.5, abs=0.05)


def test_more_groups_than_clients_are_refused():
    with refused(r"data.groups: 3 .* at most 2"):
        RegressionOptions(clients=2, groups=3)


@pytest.mark.parametrize("heterogeneity", ["homogeneous", "parameters", "inputs", "sizes"])
def test_only_the_variance_of_what_differs_is_accepted(heterogeneity):
    used = {"parameters": "gamma1", "inputs": "gamma2", "sizes": "gamma3"}
    for gamma in used.values():
        if gamma != used.get(heterogeneity):
            with refused(f"data.{gamma}: 2.0 .* 1.0, its default, with heterogeneity: {heterogeneity}"):
                ConvexOptions.parse({"heterogeneity": heterogeneity, gamma: 2})
