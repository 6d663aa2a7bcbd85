"""Which settings are tried, which are chosen, and how they get back into params.yaml."""

import math
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
import yaml
from command import one_line_error

from fedflow.config import load_params
from fedflow.config.tuning import MEASURES, Tuning, combinations
from fedflow.errors import BadInput, FedflowError, RoundFailed
from fedflow.project.yaml_text import yaml_value
from fedflow.stages.all_stages import run_experiment
from fedflow.stages.prepare import prepare_dataset
from fedflow.stages.tune import Score, Search, beyond, scores, tune, write_choice

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


def test_every_combination_is_tried_once_of_the_common_grid_or_of_the_method():
    tuning = Tuning.parse({"grid": {"training.lr": [0.1, 1]}, "methods": {"ditto": {"lam": [0.1, 1, 10]}}})
    assert list(combinations(tuning.grid_of("fedavg"))) == [{"training.lr": 0.1}, {"training.lr": 1}]
    tries = list(combinations(tuning.grid_of("ditto")))
    assert len(tries) == 6 and {"training.lr": 0.1, "lam": 10} in tries

    tuning = Tuning.parse({"methods": {"scaffold": {"training.lr": [0.5]}}})
    assert tuning.grid_of("scaffold") == {"training.lr": [0.5]}
    assert len(tuning.grid_of("fedavg")["training.lr"]) > 1


@pytest.mark.parametrize("grid", [{"training.lr": 0.1}, {"training.lr": []}, {}])
def test_a_grid_of_something_else_is_refused(grid):
    with pytest.raises(BadInput, match=r"tuning.grid: .*a mapping of at least one setting to a list"):
        Tuning.parse({"grid": grid})


def test_rounds_are_not_tuned():
    with one_line_error(
        r"^tuning.grid: 'run.rounds' is not accepted; expected other settings: tuning.rounds", BadInput
    ):
        Tuning.parse({"grid": {"run.rounds": [1, 2]}})


def test_a_method_that_is_not_there_is_refused(file):
    with pytest.raises(BadInput, match=r"tuning.methods.dito: .*did you mean 'ditto'"):
        load_params(file, ["tuning.methods.dito={lam: [1, 2]}"])


def test_the_grids_of_the_project_can_be_tried():
    root = Path(__file__).parents[1]
    params = load_params(root / "params.yaml")
    for method in ("fedavg", *params.tuning.methods):
        Search(params, "mnist5k-dir", method, root).check()


def test_scores_can_be_committed_and_runs_cannot():
    root = Path(__file__).parents[1]
    for home, (ending, code) in product(("studies/s/", ""), {".csv": 1, "/1000-ab/metrics.json": 0}.items()):
        ignored = ["git", "check-ignore", "-q", f"{home}tuning/p/m{ending}"]
        assert subprocess.run(ignored, cwd=root, check=False).returncode == code


def test_numbers_that_yaml_reads_as_text_are_numbers():
    tuning = Tuning.parse({"grid": {"training.lr": ["1e-3", 0.1]}})
    assert tuning.grid_of("fedavg") == {"training.lr": [1e-3, 0.1]}


@pytest.mark.parametrize(
    ("values", "best", "further"),
    [
        ([0.01, 0.03, 0.1], 0.1, 0.32),
        ([0.01, 0.03, 0.1], 0.01, 0.0032),
        ([0.01, 0.03, 0.1], 0.03, None),
        ([0.1, 0.01], 0.1, 1.0),
        ([2, 4, 8], 8, 16),
        ([1, 2], 1, None),  # half a cluster
        ([0.03], 0.03, None),
        ([0, 1], 1, None),
        ([0, 0.01, 0.1], 0.1, 1.0),
        ([0, 0.01, 0.1], 0, None),
        ([0, 0.01, 0.1], 0.01, None),
        ([-1, 1, 2], 2, None),
        ([True, False], True, None),
        (["single", "average"], "single", None),
    ],
)
def test_a_grid_grows_by_its_ratio(values, best, further):
    found = beyond(values, best)
    assert found == further and type(found) is type(further)


class Runs:
    """Stands for the flow: local accuracy is a function of the settings, and the runs are listed."""

    def __init__(self, accuracy):
        self.accuracy, self.tried = accuracy, []

    def __call__(self, experiment, out):
        own, training = experiment.params.method(experiment.method, experiment.partition)
        self.tried.append((training.lr, getattr(own, "server_lr", None)))
        value = self.accuracy(*self.tried[-1])
        if value is None:
            raise RoundFailed("it diverged")
        out.mkdir(parents=True, exist_ok=True)
        clients = {"local_accuracy": [value - 0.1, value + 0.1, 0.5], "newcomer": [False, False, True]}
        pd.DataFrame(clients).to_parquet(out / "clients.parquet")
        return {"local_accuracy": value, "loss": 1.0, "settings": out.name}


def search(file, accuracy, method="fedavg", **tuning):
    """What is chosen, and all that was tried."""
    runs, params = Runs(accuracy), load_params(file, [f"tuning={tuning}"])
    chosen = tune(params, "iid", runs, [method], file.parent, write=False)
    return chosen[method], runs.tried


LR = {"training.lr": [0.01, 0.1]}


def test_the_best_is_chosen_and_the_first_of_equals(file):
    best = search(file, lambda lr, _: -abs(lr - 0.1), grid={"training.lr": [0.01, 0.1, 1]})
    assert best[0] == {"training.lr": 0.1}
    equal = search(file, lambda lr, _: float(lr < 1), grid={"training.lr": [0.1, 0.01, 0.001, 1]}, widen=0)
    assert equal[0] == {"training.lr": 0.1}


def test_a_grid_is_widened_while_the_best_value_is_at_its_edge(file, capsys):
    best, tried = search(file, lambda lr, _: -abs(math.log10(lr) - 1), grid=LR)
    assert best == {"training.lr": 10} and [lr for lr, _ in tried] == [0.01, 0.1, 1, 10, 100]
    assert "at the edge" not in capsys.readouterr().out
    best, tried = search(file, lambda lr, _: lr, grid=LR, widen=2)
    assert best == {"training.lr": 10} and len(tried) == 4
    edge = "fedavg: the best training.lr, 10.0, is at the edge of the values tried: 0.01, 0.1, 1.0, 10.0"
    assert edge in " ".join(capsys.readouterr().out.split())
    assert search(file, lambda lr, _: lr, grid=LR, widen=0)[1] == [(0.01, 1), (0.1, 1)]


def test_candidates_and_unused_settings_are_named(file, capsys):
    changed = [f"tuning={{grid: {LR}, widen: 0}}", "training.lr=5", "methods.fedavg.server_lr=0.5"]
    changed += ["methods.fedavg.run.rounds=9", "tuning.rounds=1", "run.stop_at=null"]
    tune(load_params(file, changed), "iid", Runs(lambda lr, _: lr), ["fedavg"], file.parent, write=False)
    assert capsys.readouterr().out.splitlines()[:5] == [
        "fedavg: --set training.lr: not used: tuning.grid sets this value",
        "fedavg: --set methods.fedavg.run.rounds: not used: tuning.rounds sets this value",
        "fedavg: --set run.stop_at: not used: tries are compared after the same number of rounds",
        "fedavg, candidate 1: training.lr 0.01",
        "fedavg, candidate 2: training.lr 0.1",
    ]


def test_a_best_value_of_0_is_said_to_be_at_the_edge(file, capsys):
    grid = {"training.weight_decay": [0, 0.01, 0.1]}
    runs = []
    best, _ = search(file, lambda *_: runs.append(0) or -len(runs), grid=grid)
    assert best == {"training.weight_decay": 0} and len(runs) == 3
    assert "the best training.weight_decay, 0, is at the edge" in " ".join(capsys.readouterr().out.split())


def test_widening_ends_where_a_run_diverges_and_at_the_bounds_of_a_setting(file, capsys):
    best, tried = search(file, lambda lr, _: lr if lr < 1 else None, grid=LR)
    assert best == {"training.lr": 0.1} and [lr for lr, _ in tried] == [0.01, 0.1, 1]
    grid = {"training.lr": [0.1], "training.momentum": [0.5, 0.9]}  # at most below 1
    runs = []
    best, _ = search(file, lambda *_: runs.append(0) or len(runs), grid=grid)
    assert best == {"training.lr": 0.1, "training.momentum": 0.9} and len(runs) == 2
    assert "the best training.momentum, 0.9, is at the edge" in " ".join(capsys.readouterr().out.split())


def test_a_regression_is_tuned_by_its_losses_and_refused_for_other_measures(file):
    """Before a try if the data are prepared, otherwise after the first."""
    none = dict.fromkeys(MEASURES.values())
    score = Score({}, "", none | {"loss": 1.0, "global_loss": 3.0})
    assert (score.value("local"), score.value("global"), score.loss("global")) == (-1, -3, 3)
    file.write_text(FILE.replace("{source: digits}", "{source: mixed_regression, clients: 5}"))
    changes = ["models.digits=linear", f"tuning={ {'grid': LR, 'measure': 'worst'} }"]
    params, tried = load_params(file, changes), []

    def federate(experiment, out):
        tried.append(out)
        return none | {"loss": 1.0, "global_loss": 3.0}

    for _ in range(2):
        with one_line_error("^tuning.measure: 'worst' .* local or global, as these samples have no accuracy"):
            tune(params, "iid", federate, ["fedavg"], file.parent)
        assert len(tried) == 1
        prepare_dataset(params, "digits", file.parent)


def test_two_settings_are_tuned_together(file):
    methods = {"fedavg": {"server_lr": [1, 10]}}
    best, tried = search(file, lambda lr, s: -abs(lr - 0.1) - abs(s - 10), grid=LR, methods=methods)
    assert best == {"training.lr": 0.1, "server_lr": 10}
    assert len(tried) == len(set(tried)) and {(1.0, 1), (1.0, 10), (0.01, 100), (0.1, 100)} < set(tried)


def test_an_entry_with_another_name_is_tuned_with_the_grid_of_its_method(file):
    file.write_text(
        FILE.replace("methods:\n", "methods:\n  ours: {method: fedavg, training: {momentum: 0.5}}\n")
    )
    methods = {"fedavg": {"server_lr": [1, 10]}, "ours": {"training.lr": [0.1]}}
    best, tried = search(file, lambda lr, s: s, "ours", methods=methods, widen=0)
    assert best == {"training.lr": 0.1, "server_lr": 10} and tried == [(0.1, 1), (0.1, 10)]
    folders = (file.parent / "tuning" / "iid" / "ours").iterdir()
    assert sorted(f.name for f in folders) == sorted(
        f"1000-{d[:8]}" for d in scores(file.parent, "iid", "ours")["settings"]
    )
    write_choice(file, "iid", "ours", best)
    params = load_params(file)
    own, training = params.method("ours", "iid")
    assert (own.server_lr, training.lr, training.momentum) == (10, 0.1, 0.5)
    assert params.method("fedavg", "iid")[0].server_lr == 1


def test_scores_of_all_candidates_are_kept(file):
    search(file, lambda lr, _: None if lr == 1 else lr / 2, grid=LR | {"training.epochs": [1]})
    table = scores(file.parent, "iid", "fedavg")
    assert table["training.lr"].tolist() == [0.01, 0.1, 1]
    assert table["chosen"].tolist() == [False, True, False]
    assert table["accuracy"].tolist()[:2] == [0.005, 0.05] and math.isnan(table["accuracy"][2])
    assert table["spread"][0] == pytest.approx(0.1)  # the newcomer does not count
    folders = {folder.name for folder in (file.parent / "tuning" / "iid" / "fedavg").iterdir()}
    assert folders == {f"1000-{digest[:8]}" for digest in table["settings"][:2]}


def test_tuning_again_takes_the_place_of_what_was_tuned(file):
    write_choice(file, "iid", "fedavg", {"training.lr": 0.5, "server_lr": 3.0})
    write_choice(file, "iid", "fedavg", {"training.lr": 0.1})
    assert yaml.safe_load(file.read_text())["tuned"] == {"iid": {"fedavg": {"training": {"lr": 0.1}}}}


@pytest.mark.parametrize("before", ["", "tuned:\n  iid:\n    # by hand\n    ditto: {}\n", "tuned: {}\n"])
def test_lines_that_tuning_does_not_change_stay_as_they_are(tmp_path, before):
    first = "a: {b: 1,\n    c: 2}\nlong: [" + ", ".join(["one"] * 40) + "]\n"
    rest = "\n# of the grid\ngrid:   {seeds: [0]}\n"
    file = tmp_path / "params.yaml"
    file.write_text(first + before + (rest if before else ""))
    write_choice(file, "iid", "fedavg", {"training.lr": 0.1})
    text = file.read_text()
    assert text.startswith(first) and text.endswith(rest if before else "lr: 0.1\n")
    assert ("# by hand" in text) == ("# by hand" in before)
    assert yaml.safe_load(text)["tuned"]["iid"]["fedavg"] == {"training": {"lr": 0.1}}


def test_a_comment_after_the_tuned_values_stays_there(tmp_path):
    file = tmp_path / "params.yaml"
    rest = "\n# The grid\ngrid: {seeds: [0]}\n"
    file.write_text(f"# tuned: by fedflow\ntuned:\n  d:\n    ditto: {{lam: 2.0}}\n{rest}")
    for method in ("fedavg", "fedprox"):
        write_choice(file, "d", method, {"training.lr": 0.1})
    text = file.read_text()
    assert (
        text.endswith(f"fedprox:\n      training:\n        lr: 0.1\n{rest}") and text.count("# The grid") == 1
    )
    assert [*yaml.safe_load(text)["tuned"]["d"]] == ["ditto", "fedavg", "fedprox"]


@pytest.mark.parametrize(
    "text", ["{a: 1, tuned: {iid: {}}}\n", "tuned: {iid: {\n}}\na: 1\n", '"tuned": {}\na: 1\n']
)
def test_tuning_of_a_file_in_braces(tmp_path, text):
    file = tmp_path / "params.yaml"
    file.write_text(text)
    write_choice(file, "iid", "fedavg", {"training.lr": 0.1})
    tuned = {"iid": {"fedavg": {"training": {"lr": 0.1}}}}
    assert yaml_value(file.read_text()) == {"a": 1, "tuned": tuned}


def test_tuning_keeps_the_file_and_the_ends_of_its_lines(tmp_path):
    real, link = tmp_path / "real.yaml", tmp_path / "params.yaml"
    real.write_bytes(b"a: 1\r\n")
    real.chmod(0o664)
    link.symlink_to(real)
    write_choice(link, "on", "fedavg", {"server": "no"})
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o664
    assert real.read_bytes().count(b"\r\n") == real.read_bytes().count(b"\n") == 5
    assert yaml.safe_load(link.read_text())["tuned"] == {"on": {"fedavg": {"server": "no"}}}


def test_tuning_replaces_an_entry_under_a_label(file):
    file.write_text(f"{FILE}tuned: {{iid: {{FedAvg: {{training: {{lr: 0.5}}}}}}}}\n")
    write_choice(file, "iid", "fedavg", {"training.lr": 0.1})
    assert yaml.safe_load(file.read_text())["tuned"] == {"iid": {"FedAvg": {"training": {"lr": 0.1}}}}
    assert load_params(file).method("fedavg", "iid")[1].lr == 0.1


def test_when_all_diverge_it_says_so(file):
    with pytest.raises(FedflowError, match="every try of fedavg diverged"):
        search(file, lambda *_: None, grid=LR)
    assert scores(file.parent, "iid", "fedavg")["accuracy"].isna().all()


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"training.lr": [0.1, 1e-1]}, "tuning.grid: .*values that change a setting of fedavg"),
        (
            {"training.lr": [0.1, 0.3, "1e-1"]},
            r"tuning.grid.training.lr: \[0.1, 0.3, 0.1\] .*every value once",
        ),
        ({"lam": [0.1, 1]}, "methods.fedavg.lam: 'lam'"),
    ],
)
def test_a_useless_grid_is_refused_before_anything_runs(file, grid, message):
    with pytest.raises(BadInput, match=message):
        search(file, pytest.fail, grid=grid)


def test_a_grid_that_changes_no_result_is_refused(file):
    """Per-FedAvg's own rate is beta."""
    changes = ["tuning={grid: {training.lr: [0.01, 0.1]}, rounds: 1}", "methods.perfedavg.beta=0.05"]
    with one_line_error(r"no value of training\.lr changes any result of perfedavg"):
        tune(load_params(file, changes), "iid", methods=["perfedavg"], root=file.parent)
    assert "tuned" not in file.read_text()


def test_a_single_setting_that_changes_nothing_is_said(file, capsys):
    grid = LR | {"server_lr": [1, 2]}
    search(file, lambda lr, _: -abs(lr - 0.1), grid=grid, widen=0)
    assert "fedavg: no value of server_lr changes any result" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "measure",
    ["tuned", *(pytest.param(name, marks=pytest.mark.full) for name in ("local", "global", "worst"))],
)
def test_test_data_play_no_part(file, measure):
    """With another test set, tuning gives the same numbers to the last digit."""
    tables = []
    for limit in ("null", "50"):
        tuning = f"tuning={{grid: {{training.lr: [0.05, 0.1]}}, rounds: 1, measure: {measure}, widen: 0}}"
        changes = [tuning, f"data.digits.test_limit={limit}", "run.participation=1", "engine.executor=inline"]
        chosen = tune(load_params(file, changes), "iid", methods=["ditto"], root=file.parent, write=False)
        tables.append(scores(file.parent, "iid", "ditto").drop(columns="settings"))
        assert len(chosen) == 1
    pd.testing.assert_frame_equal(*tables)
    assert tables[0]["accuracy"].notna().all()


def test_a_try_is_a_separate_partition_with_the_settings_in_place(file):
    """Newcomers stay newcomers; what they hold is no part of what others are scored on (`test_after.py`)."""
    entry = "{dataset: digits, scheme: dirichlet, alpha: 0.5, clients: 8, newcomers: 0.25}"
    changes = [f"partitions.iid={entry}", "tuning={validation: 0.25, rounds: 7}"]
    search = Search(load_params(file, changes), "iid", "ditto", file.parent)
    experiment = search.experiment({"training.lr": 0.5, "lam": 3.0, "personal_lr": None})
    params, held = experiment.params, experiment.params.partition(experiment.partition)
    assert (held.validation, held.clients, held.newcomers, experiment.run.rounds) == (0.25, 8, 0.25, 7)
    assert params.partition("iid").validation == 0
    method, training = params.method("ditto", "iid-validation")
    assert (method.lam, method.personal_lr, training.lr) == (3.0, None, 0.5)
    settings = experiment.parameters["settings"]  # what Prefect records, and what the flow uses
    assert settings[-3:] == [f"methods.ditto.{x}" for x in ("training.lr=0.5", "lam=3.0", "personal_lr=null")]
    assert load_params(file, settings) is params
    again = replace(experiment, params=load_params(file, list(settings)))  # from the recorded text alone
    assert again.digest == experiment.digest


def test_an_entry_of_the_user_is_not_replaced_by_the_partition_of_the_tries(file):
    params = load_params(file, ["partitions.iid-validation={dataset: digits, scheme: iid, clients: 3}"])
    with one_line_error("^partitions: 'iid-validation' .* another name: tuning iid makes", BadInput):
        tune(params, "iid", lambda *given: pytest.fail("a try ran"), ["fedavg"], file.parent)
    tune(params, "iid-validation", Runs(lambda lr, _: lr), ["fedavg"], file.parent, write=False)
    long = "p" * 118
    params = load_params(file, [f"partitions.{long}={{dataset: digits, scheme: iid, clients: 3}}"])
    with one_line_error(r"^partition: 'p+' .* shorter name: NAME-validation has at most 128", BadInput):
        tune(params, long, lambda *given: pytest.fail("a try ran"), ["fedavg"], file.parent)


def test_a_named_entry_is_tuned_with_what_was_tuned_for_its_method(file):
    file.write_text(FILE + "tuned: {iid: {ditto: {lam: 3.0, training: {momentum: 0.5}}}}\n")
    changes = ["methods.mine={method: ditto, training: {batch_size: 20}}", "methods.mine.lam=2.0"]
    experiment = Search(load_params(file, changes), "iid", "mine", file.parent).experiment(
        {"training.lr": 0.5}
    )
    method, training = experiment.params.method("mine", experiment.partition)
    assert (method.lam, training.momentum, training.batch_size, training.lr) == (2.0, 0.5, 20, 0.5)
    settings = list(experiment.parameters["settings"])
    assert replace(experiment, params=load_params(file, settings)).digest == experiment.digest


def test_too_few_rounds_for_the_updates_of_a_client_curriculum_are_refused_before_anything_runs(file):
    clients = "{participation: 0.4, sampling: easy_first, client_curriculum: {updates: 40}, rounds: 90}"
    params = load_params(file, [f"run={clients}", "tuning.rounds=3"])
    with one_line_error(r"^tuning.rounds: 3 is not accepted; expected at least \d+ for 40 updates"):
        tune(params, "iid", lambda *given: pytest.fail("a try ran"), ["fedavg"], file.parent)
    Search(load_params(file, [f"run={clients}"]), "iid", "fedavg", file.parent).check()


def test_what_is_chosen_is_used_for_its_partition_and_keeps_the_comments(file):
    write_choice(file, "iid", "ditto", {"training.lr": 0.5, "lam": 3.0})
    write_choice(file, "iid", "fedavg", {"training.lr": 0.03})
    assert "# what Ditto likes" in file.read_text() and "# small" in file.read_text()
    tuned = yaml.safe_load(file.read_text())["tuned"]["iid"]
    assert tuned == {"ditto": {"training": {"lr": 0.5}, "lam": 3.0}, "fedavg": {"training": {"lr": 0.03}}}
    params = load_params(file)
    method, training = params.method("ditto", "iid")
    assert (method.lam, training.lr) == (3.0, 0.5)
    assert params.method("ditto")[1].lr == 0.1 and params.method("local", "iid")[1].lr == 0.1


def test_a_change_given_by_hand_wins_over_what_was_tuned(file):
    write_choice(file, "iid", "ditto", {"training.lr": 0.5, "lam": 3.0})
    method, training = load_params(file, ["methods.ditto.training.lr=0.2"]).method("ditto", "iid")
    assert (method.lam, training.lr) == (3.0, 0.2)
    write_choice(file, "iid", "ditto", {"training.epochs": 4})
    assert load_params(file, ["methods.ditto.training.steps=3"]).method("ditto", "iid")[1].steps == 3


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
    assert tune(params, "iid", methods=["fedavg"], root=file.parent) == {"fedavg": {"training.lr": 0.1}}


def test_tries_that_are_finished_are_not_repeated(file, monkeypatch):
    changes = ["tuning={grid: {training.lr: [0.1, 0.3]}, rounds: 1, widen: 0}", "engine.executor=inline"]
    params, done = load_params(file, changes), []

    def run(experiment, out):
        done.append(out)
        return run_experiment(experiment, out)

    first, second = (tune(params, "iid", run, ["fedavg"], file.parent, write=False) for _ in range(2))
    assert first == second and len(done) == 2


@pytest.mark.parametrize("name", ["metrics.json", "clients.parquet"])
def test_a_damaged_try_is_repeated(name, file, capsys):
    changes = ["tuning={grid: {training.lr: [0.1, 0.3]}, rounds: 1, widen: 0}", "engine.executor=inline"]
    params = load_params(file, changes)
    first = tune(params, "iid", run_experiment, ["fedavg"], file.parent, write=False)
    next(file.parent.glob(f"tuning/iid/fedavg/*/{name}")).write_bytes(b"")
    assert tune(params, "iid", run_experiment, ["fedavg"], file.parent, write=False) == first
    assert capsys.readouterr().out.count("already finished") == 1


def test_a_method_that_cannot_be_tuned_does_not_end_the_others(file, capsys):
    def run(experiment, out):
        if experiment.method == "fedavg":
            raise FedflowError("a mistake in a method")
        return Runs(lambda lr, _: lr)(experiment, out)

    params = load_params(file, [f"tuning={ {'grid': LR, 'widen': 0} }"])
    with pytest.raises(FedflowError, match=r"^not tuned: fedavg$"):
        tune(params, "iid", run, ["fedavg", "ditto"], file.parent)
    assert "fedavg: tuning failed: a mistake in a method" in capsys.readouterr().out
    assert load_params(file).tuned["iid"]["ditto"].training == {"lr": 0.1}


def test_a_bug_in_a_method_does_not_end_the_tuning_of_the_others(file, capsys):
    def run(experiment, out):
        return Runs(lambda lr, _: 1 / 0 if experiment.method == "fedavg" else lr)(experiment, out)

    params = load_params(file, [f"tuning={ {'grid': LR, 'widen': 0} }"])
    with one_line_error(r"^not tuned: fedavg$"):
        tune(params, "iid", run, ["fedavg", "ditto"], file.parent)
    done = capsys.readouterr()
    assert "fedavg: tuning failed: ZeroDivisionError: division by zero" in done.out
    assert "Traceback" in done.err
    assert load_params(file).tuned["iid"]["ditto"].training == {"lr": 0.1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{FILE}grid: [1,\n", r"params\.yaml, line \d+: not valid YAML: "),
        ("digits\n", r"params\.yaml: 'digits' .* a mapping of sections"),
    ],
)
def test_a_choice_is_printed_if_the_file_is_being_edited(file, capsys, text, message):
    runs, params = Runs(lambda lr, _: lr), load_params(file, [f"tuning={ {'grid': LR, 'widen': 0} }"])
    file.write_text(text)
    with one_line_error(message):
        tune(params, "iid", runs, ["fedavg"], file.parent)
    with one_line_error(r"^not tuned: fedavg and ditto$"):
        tune(params, "iid", runs, ["fedavg", "ditto"], file.parent)
    printed = " ".join(capsys.readouterr().out.split())
    assert "ditto: chosen, but not written to params.yaml: training.lr 0.1" in printed
    assert file.read_text() == text


def test_other_searches_try_as_many_samples_of_every_method(file):
    """Numbers between the smallest and the largest of the grid, choices from it; equal seeds try the same."""
    grid = {"training.lr": [0.001, 1], "training.batch_size": [8, 64], "weighting": ["uniform", "samples"]}
    params = load_params(file, ["methods.fedavg={}", "tuning.trials=12", "tuning.validation=0.2"])
    params = params.replace(tuning=replace(params.tuning, grid=grid))

    def federate(experiment, out):
        """Best at lr 0.1, whatever the rest."""
        lr = experiment.job.training.lr
        out.mkdir(parents=True)
        pd.DataFrame({"local_accuracy": [0.5], "newcomer": [False]}).to_parquet(out / "clients.parquet")
        return {"local_accuracy": 1 - abs(math.log10(lr) + 1) / 10, "loss": 1.0}

    def tries(search: str, root: Path) -> list[dict]:
        changed = params.replace(tuning=replace(params.tuning, search=search))
        found = Search(changed, "iid", "fedavg", root)
        found.check()
        best = found.run(federate)
        assert best == max(found.scores, key=lambda score: score.metrics["local_accuracy"]).tried
        return [score.tried for score in found.scores]

    for search in ("random", "tpe"):
        first = tries(search, file.parent / search)
        assert len(first) == 12 and first == tries(search, file.parent / f"{search}-again")
        assert all(0.001 <= each["training.lr"] <= 1 for each in first)
        assert {type(each["training.batch_size"]) for each in first} == {int}
        assert {each["weighting"] for each in first} == {"uniform", "samples"}
        assert scores(file.parent / search, "iid", "fedavg")["chosen"].sum() == 1


def test_equal_samples_do_not_show_that_a_setting_is_idle(file):
    params = load_params(file, ["tuning.trials=2", "tuning.search=random"])
    federate, drawn = Runs(lambda *_: 0.5), set()
    for seed in range(8):
        tuning = replace(params.tuning, grid={"weighting": ["uniform", "samples"]}, seed=seed)
        found = Search(params.replace(tuning=tuning), "iid", "fedavg", file.parent / str(seed))
        try:
            found.run(federate)
            error = ""
        except FedflowError as raised:
            error = str(raised)
        several = len({score.tried["weighting"] for score in found.scores}) > 1
        assert ("no value of weighting changes any result" in error) == several
        drawn.add(several)
    assert drawn == {True, False}


def test_a_search_without_optuna_is_refused_in_one_line(file, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    params = load_params(file, ["tuning.search=tpe"])
    with pytest.raises(FedflowError, match=r"tuning.search needs Optuna: `pip install -e '\.\[optuna\]'`"):
        tune(params, "iid", lambda *_: {}, root=file.parent)
