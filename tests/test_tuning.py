"""Which settings are tried, which are chosen, and how they get back into params.yaml."""

import math

import pytest
import yaml

from fedflow.config import load_params
from fedflow.errors import BadInput, FedflowError
from fedflow.inline import federate
from fedflow.tuning import Tuning, choose, overrides, tune, write_choice

FILE = """\
data: {digits: {source: digits}}
models: {digits: {name: mlp, options: {hidden: [16]}}}  # small
partitions: {iid: {dataset: digits, scheme: iid, clients: 5}}
training: {lr: 0.1}
methods:
  ditto: {lam: 1.0}  # what Ditto likes
grid: {datasets: [digits], partitions: [iid], methods: [ditto], seeds: [0]}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(FILE)
    return path


def test_every_combination_is_tried_once():
    tuning = Tuning.parse({"grid": {"training.lr": [0.1, 1]}, "methods": {"ditto": {"lam": [0.1, 1, 10]}}})
    assert list(tuning.tries("fedavg")) == [{"training.lr": 0.1}, {"training.lr": 1}]
    tries = list(tuning.tries("ditto"))
    assert len(tries) == 6 and {"training.lr": 0.1, "lam": 10} in tries


def test_a_method_may_replace_the_common_grid():
    tuning = Tuning.parse({"methods": {"scaffold": {"training.lr": [0.5]}}})
    assert list(tuning.tries("scaffold")) == [{"training.lr": 0.5}]
    assert len(list(tuning.tries("fedavg"))) > 1


@pytest.mark.parametrize("grid", [{"training.lr": 0.1}, {"training.lr": []}])
def test_a_grid_of_something_else_is_refused(grid):
    with pytest.raises(BadInput, match=r"tuning.grid: .*lists of values"):
        Tuning.parse({"grid": grid})


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [([0.2, 0.5, 0.4], 1), ([0.5, 0.5, 0.1], 0), ([None, 0.1, math.nan], 1)],
)
def test_the_best_is_chosen_the_first_of_equals_and_none_that_diverged(scores, chosen):
    tries = [{"training.lr": lr} for lr in (0.01, 0.1, 1)]
    assert choose(tries, scores) is tries[chosen]


def test_when_all_diverge_it_says_so():
    with pytest.raises(FedflowError, match="every try diverged"):
        choose([{"training.lr": 1}], [None])


def test_a_try_is_a_partition_of_its_own_with_the_settings_in_place(file):
    tuning = Tuning.parse({"validation": 0.25, "rounds": 7})
    entry = load_params(file).partitions["iid"]
    changes = overrides(entry, "iid", "ditto", tuning, {"training.lr": 0.5, "lam": 3.0})
    params = load_params(file, changes)
    held = params.partition("iid-validation")
    assert held.validation == 0.25 and held.clients == 5 and params.run.rounds == 7
    assert params.partition("iid").validation == 0
    method, training = params.method("ditto", "iid-validation")
    assert (method.lam, training.lr) == (3.0, 0.5)


def test_what_is_chosen_is_used_for_its_partition_and_keeps_the_comments(file):
    write_choice(file, "iid", "ditto", {"training.lr": 0.5, "lam": 3.0})
    write_choice(file, "iid", "fedavg", {"training.lr": 0.03})
    assert "# what Ditto likes" in file.read_text() and "# small" in file.read_text()
    tuned = yaml.safe_load(file.read_text())["tuned"]
    assert tuned == {
        "iid": {"ditto": {"training": {"lr": 0.5}, "lam": 3.0}, "fedavg": {"training": {"lr": 0.03}}}
    }
    params = load_params(file)
    method, training = params.method("ditto", "iid")
    assert (method.lam, training.lr) == (3.0, 0.5)
    assert params.method("ditto")[1].lr == 0.1 and params.method("local", "iid")[1].lr == 0.1


def test_a_change_given_by_hand_wins_over_what_was_tuned(file):
    write_choice(file, "iid", "ditto", {"training.lr": 0.5, "lam": 3.0})
    method, training = load_params(file, ["methods.ditto.training.lr=0.2"]).method("ditto", "iid")
    assert (method.lam, training.lr) == (3.0, 0.2)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{idi: {ditto: {lam: 1}}}", r"tuned.idi: .*did you mean 'iid'"),
        ("{iid: {ditto: {lma: 1}}}", r"tuned.iid.ditto.lma: .*did you mean 'lam'"),
        ("{iid: {dito: {lam: 1}}}", r"method.name: 'dito' .*did you mean 'ditto'"),
    ],
)
def test_a_wrong_name_under_tuned_is_one_line(file, entry, message):
    file.write_text(FILE + f"tuned: {entry}\n")
    with pytest.raises(BadInput, match=message):
        load_params(file)


def test_a_try_that_diverges_does_not_end_the_tuning(file):
    changes = ["tuning={grid: {training.lr: [1.0e+30, 0.1]}, rounds: 1}", "engine.executor=inline"]
    params = load_params(file, changes)
    assert tune(params, "iid", federate, ["fedavg"], changes, file.parent) == {"fedavg": {"training.lr": 0.1}}
