"""What the pictures of curricula show, read from the figures themselves."""

import numpy as np
import pandas as pd
import pytest

from fedflow.local.extensions.curriculum import Curriculum
from fedflow.local.local_training import LocalTraining
from fedflow.local.pacing import FAMILIES
from fedflow.pictures.curriculum import (
    CLIENTS,
    SAMPLES,
    alike,
    draw_curricula,
    families,
    growth,
    polled,
    prefix,
)

SIZES = np.array([10, 500, 9000])  # the median client has 500 samples
NONE = pd.DataFrame({"round": [1, 2], "pool": [np.nan, np.nan]})


def training(**options: object) -> LocalTraining:
    return LocalTraining(epochs=10, batch_size=10, curriculum=Curriculum(**options))


def test_the_prefix_is_that_of_the_passes_of_the_median_client():
    """The 19 passes over 500 samples in 500 steps, linear from a fifth to all after four fifths."""
    growing = growth(training(), SIZES)
    assert growing is not None and growing[2] == 500
    axes = prefix(*growing, "p").axes
    stairs = axes.patches[-1].get_data()
    starts = [0, 10, 21, 34, 48, 63, 80, 98, 118, 140, 164, 191, 221, 254, 290, 329, 372, 420, 470, 500]
    sizes = [100, 110, 121, 134, 148, 163, 180, 198, 218, 240, 264, 291, 321, 354, 390, 429, 472, 500, 500]
    np.testing.assert_array_equal(stairs.edges, starts)
    np.testing.assert_allclose(stairs.values, np.array(sizes) / 5)
    x, y = axes.lines[0].get_data()
    assert (x[0], y[0], x[-1], y[-1]) == (0, 20, 500, 100) and np.all(np.diff(y) >= 0)
    lazy = growth(training(mode="lazy_epoch"), SIZES)
    assert lazy is not None and not prefix(*lazy, "p").axes.lines  # its T is smaller than its steps


LOSSES = pd.DataFrame({"round": [1, 1, 1, 3, 3], "client": [0, 1, 2, 0, 2], "value": [3.0, 1, 2, 0.5, 1]})


@pytest.mark.parametrize(
    ("given", "rounds", "losses", "written"),
    [
        (training(), NONE, 0, ["prefix.png"]),
        (training(), NONE.assign(pool=[4, 5]), 5, ["polled_loss.png", "pool.png", "prefix.png"]),
        (training(b=1.0), NONE.assign(pool=[4, 5]), 0, ["pool.png"]),
        (LocalTraining(), NONE[["round"]], 0, []),
    ],
)
def test_only_what_was_measured_is_drawn(tmp_path, given, rounds, losses, written):
    draw_curricula(tmp_path, given, SIZES, rounds, LOSSES[:losses])
    assert sorted(file.name for file in tmp_path.iterdir()) == written


def test_every_family_grows_from_a_fifth_to_all_after_four_fifths():
    lines = {line.get_label(): line.get_data() for line in families("p").axes.lines}
    assert [*lines] == [*FAMILIES]
    for x, y in lines.values():
        assert (x[0], y[0], x[800]) == (0, 20, 80) and np.all(y[800:] == 100) and np.all(np.diff(y) >= 0)
    assert [lines[name][1][200] for name in ("linear", "step", "root", "quadratic")] == [40, 20, 60, 25]


def test_losses_of_clients_hold_until_the_next_ranking():
    """A client whose model diverged has no loss, rather than an old one."""
    lines = [line.get_data() for line in polled(LOSSES, 3, 4, "p").axes.lines]
    assert [(x.tolist(), y.tolist()) for x, y in lines] == [
        ([1, 2, 3, 4], [3, 3, 0.5, 0.5]),
        ([1, 2], [1, 1]),
        ([1, 2, 3, 4], [2, 2, 1, 1]),
    ]


def test_only_settings_that_differ_in_the_order_alone_are_alike():
    curriculum, other = {"training.curriculum.b": 0.2}, {"training.curriculum.b": 0.5}
    order = "training.curriculum.order"
    settings = [
        {"lr": 1, "training.curriculum": None},
        {"lr": 1, order: "anti", **curriculum},
        {"lr": 1, order: "curriculum", **curriculum},
        {"lr": 1, order: "anti", **curriculum},
        {"lr": 1, order: "anti", **other},
        {"lr": 2, order: "anti", **curriculum},
        {"lr": 1, order: "vanilla", **other},
    ]
    plain = [0, 6]
    assert alike(settings, SAMPLES) == [
        {"anti": [1, 3], "curriculum": [2], "vanilla": plain},
        {"anti": [4], "vanilla": plain},
    ]


def test_networks_that_only_the_curriculum_uses_do_not_separate_the_orders():
    """An expert, and the teacher that it was trained with; but not the teacher of the clients."""
    own = {"training.curriculum.expert": "E", "central.E.seed": 0, "central.T.seed": 0}
    own |= {"central.E.training.objective.teacher": "T"}
    orders = [own | {"training.curriculum.order": order} for order in ("anti", "curriculum")]
    assert alike([*orders, {}], SAMPLES) == [{"anti": [0], "curriculum": [1], "vanilla": [2]}]
    teacher = {"training.objective.teacher": "E"}
    taught = [one | teacher for one in orders]
    networks = {name: value for name, value in own.items() if name.startswith("central.")}
    assert alike([*taught, {}], SAMPLES) == [{"anti": [0], "curriculum": [1]}]
    assert alike([*taught, networks | teacher], SAMPLES)[0]["vanilla"] == [2]


@pytest.mark.parametrize(
    ("samplers", "vanilla"), [(["uniform", "sweep"], [3]), (["uniform"], [2]), (["bernoulli"], None)]
)
def test_orders_of_clients_are_alike_too(samplers, vanilla):
    """Without an order, clients of equal chances; preferably of the sweep, which the curriculum extends."""
    order, chosen = "run.client_curriculum.order", {"run.sampling": "easy_first"}
    settings = [{order: "anti", **chosen}, {order: "random", **chosen}]
    settings += [{"run.sampling": sampler, "run.client_curriculum": None} for sampler in samplers]
    orders = {"anti": [0], "random": [1]} | ({"vanilla": vanilla} if vanilla else {})
    assert alike(settings, CLIENTS) == [orders] and alike(settings, SAMPLES) == []
