"""Targets, gains and measures, computed from the files of finished runs."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support import refused

from fedflow.claims.measures import measure, parse
from fedflow.claims.targets import NotMeasured, Stat, compared, cost, costs, gain, reach, reached, spacing
from fedflow.errors import BadInput
from fedflow.finished.run import Run

P, CLIENTS = 797_962, 10  # the CIFAR-10 network and the cohort of the worked example


def finished(
    column: str,
    values: list[float | None],
    models: int = 1,
    seed: int = 0,
    cohort: int = CLIENTS,
    **more: object,
) -> Run:
    """A run whose rounds have these values; a client and the server exchange ``models`` models each way."""
    rounds, each = np.arange(1, len(values) + 1), 4 * P * cohort * models
    table = pd.DataFrame(
        {
            "round": rounds,
            column: np.array(values, float),
            "participants": cohort,
            "gradients": 500 * rounds,
            "bytes_down": each * rounds,
            "bytes_up": each * rounds,
        }
    )
    facts = {"partition": "p", "method": "m", "seed": seed, "parameters": P, "loss": 0.5, "ari": None} | more
    return Run(Path("r"), facts, {}, table, pd.DataFrame())


NEVER = finished("global_accuracy", [0.7, 0.71, 0.72, 0.73])
FEDDYN = finished("global_accuracy", [0.70, 0.799, 0.800, 0.79])
SCAFFOLD = finished("global_accuracy", [0.60, 0.75, 0.79, 0.802], models=2)


def test_the_worked_example():
    """Target 80: FedDyn 3, SCAFFOLD 8, gain 2.7; FedAvg 4+, >1.3; bytes of the CIFAR-10 example."""
    rows = compared([costs([run], "global_accuracy", 0.8) for run in (FEDDYN, SCAFFOLD, NEVER)])
    assert [row.transmissions.text() for row in rows] == ["3", "8", "4+"]
    assert [row.gain for row in rows] == ["1.0", "2.7", ">1.3"]
    assert [row.bytes.number for row in rows[:2]] == [3 * 63_836_960, 4 * 127_673_920]
    assert rows[0].gradients.number == 1500 and rows[2].rounds.text() == "4+"


@pytest.mark.parametrize(
    ("ours", "theirs", "printed"),
    [(36, 16, "2.2"), (73, 20, "3.6"), (61, 20, "3.0"), (136, 32, "4.2"), (49, 20, "2.4"), (47, 20, "2.4")],
)
def test_gains_round_exact_halves_to_even(ours, theirs, printed):
    assert gain(cost({0: (ours, True)}), cost({0: (theirs, True)})) == printed


def test_a_loss_reaches_its_target_from_above():
    rounds = finished("loss_", [0.5, 0.3, 0.2, 0.25]).rounds.rename(columns={"loss_": "train_loss"})
    assert [reached(rounds, "train_loss", target) for target in (0.3, 0.2, 0.1)] == [2, 3, None]


def test_rounds_that_were_not_evaluated_are_skipped():
    run = finished("global_accuracy", [None, 0.5, None, 0.7, None, 0.9])
    found = [reach(run, "global_accuracy", target) for target in (0.4, 0.6, 0.95)]
    assert [(one.round, one.rounds, one.budget) for one in found] == [(2, 2, 6), (4, 4, 6), (None, 6, 6)]
    assert spacing([run], "global_accuracy") == 2


def test_smoothing_delays_what_a_single_round_reaches():
    values = [0.5, 0.9, 0.6, 0.9, 0.9, 0.9]
    smooth = [values[0]]
    for value in values[1:]:
        smooth.append(0.8 * smooth[-1] + 0.2 * value)
    rounds = finished("global_accuracy", values).rounds
    assert reached(rounds, "global_accuracy", 0.7) == 2
    expected = next(i for i, value in enumerate(smooth, 1) if value >= 0.7)
    assert reached(rounds, "global_accuracy", 0.7, smooth=0.8) == expected == 6


def test_transmissions_are_rounds_of_fedavg_with_the_same_cohorts():
    """Cohorts of random size cancel; the traffic of an onboarding counts."""
    run = finished("global_accuracy", [0.1, 0.2, 0.9], cohort=1)
    sizes = np.array([1, 3, 2])
    run.rounds["participants"] = sizes
    for way in ("bytes_down", "bytes_up"):
        run.rounds[way] = 4 * P * np.cumsum(sizes)
    assert reach(run, "global_accuracy", 0.9).transmissions == 3
    run.metrics.update(onboarding_bytes_down=8 * P, onboarding_bytes_up=4 * P)
    found = reach(run, "global_accuracy", 0.9)
    assert found.bytes == 8 * P * 6 + 12 * P and found.transmissions == 3 * (8 * 6 + 12) / (8 * 6)
    silent = finished("local_accuracy", [0.9], models=0)
    assert reach(silent, "local_accuracy", 0.8).transmissions == 0


@pytest.mark.parametrize("models", [1, 2])
@pytest.mark.parametrize("failed", [(1, 1, 1, 1), (2, 2, 2, 2), (0, 4, 1, 0), (4, 4, 4, 4)])
def test_clients_that_fail_do_not_lower_transmissions(failed, models):
    """Their updates are missing from the bytes, which stay those that crossed."""
    run = finished("global_accuracy", [0.1, 0.2, 0.3, 0.9], cohort=4, models=models)
    run.rounds["failed"] = failed
    run.rounds["bytes_up"] = 4 * P * models * np.cumsum(4 - np.array(failed))
    found = reach(run, "global_accuracy", 0.9)
    assert found.transmissions == 4 * models
    assert found.bytes == 4 * P * models * (2 * 16 - sum(failed))


@pytest.mark.parametrize("column", ["maml_accuracy", "proto_accuracy", "proto_min", "maml_max"])
def test_scores_after_adaptation_have_targets(column):
    run = finished(column, [0.5, None, 0.81], models=2, **{column: 0.81})
    assert measure(run, f"transmissions({column}, 0.8)") == 6 and measure(run, column) == 0.81
    assert costs([run], column, 0.8).rounds.text() == "3"


def test_seeds_that_did_not_reach_the_target_are_counted():
    runs = [
        finished("global_accuracy", [0.5, 0.6, last], seed=seed) for seed, last in enumerate((0.7, 0.8, 0.9))
    ]
    every, some, none = (costs(runs, "global_accuracy", target).rounds for target in (0.6, 0.8, 0.95))
    assert (every.text(), some.text(), none.text()) == ("2 ± 0", "3+ ± 0", "3+")
    assert some.share == "2 of 3"
    assert some.number == 3 and some.sign == "+" and some.reached == Stat({1: 3, 2: 3})
    assert gain(some, every) == ">1.5" and gain(every, some) == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("loss", 0.5),
        ("ari", None),
        ("rounds_to(global_accuracy, 0.8)", 3),
        ("rounds_to(global_accuracy,0.9)", None),
        ("transmissions(global_accuracy, 0.8)", 3),
        ("bytes_to(global_accuracy, 0.75)", 2 * 63_836_960),
        ("rounds_to(global_accuracy, 0.75, 0.8)", None),
        ("gradients_to(global_accuracy, 0.7)", 500),
        ("best(global_accuracy)", 0.8),
        ("worst( global_accuracy )", 0.7),
        ("at(global_accuracy, 2)", 0.799),
        ("last(global_accuracy, 2)", 0.795),
        ("last(global_accuracy, 4)", 0.77225),
        ("cumulative(participants)", 40),
        ("method/regret", 0.25),
        ("cumulative(method/regret)", 1.5),
    ],
)
def test_measures(text, value):
    run = finished("global_accuracy", [0.70, 0.799, 0.800, 0.79], **{"method/regret": 0.25})
    run.rounds["method/regret"] = [0.5, 0.5, 0.25, 0.25]
    assert measure(run, text) == (value if value is None else pytest.approx(value, abs=1e-12))
    if text.startswith("last"):  # rounds without an evaluation do not count
        run.rounds.loc[3, "global_accuracy"] = None
        assert measure(run, "last(global_accuracy, 2)") == pytest.approx(0.7995)


def test_what_a_run_did_not_reach_has_a_lower_bound():
    asked = parse("transmissions(global_accuracy, 0.801)")
    assert (asked.of(FEDDYN), asked.least(FEDDYN)) == (None, 4) and (
        asked.of(SCAFFOLD),
        asked.least(SCAFFOLD),
    ) == (8, None)
    assert asked.better == "lower" and asked.label == "Transmissions (global_accuracy 0.801)"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("top1", 0.5625),
        ("top1_weighted", 2 / 3),
        ("top1_worst10", 0.25),
        ("top1_gap", 0.625),
        ("top2", 0.875),
        ("ece", 0.3125),
        ("mce_best10", 0.25),
        ("mce_worst10", 0.375),
        ("top1_std", 0.3125),
        ("ece(batch=4)", 0.3125),
        ("mce(batch = 3)", 1 / 3),
        ("top1_worst10(batch=3)", 1 / 6),
        ("top1_std(batch=3)", 1 / 3),
    ],
)
def test_measures_of_predictions(text, value, tmp_path):
    """Client 0 has one of four samples right, client 1 seven of eight."""
    table = pd.DataFrame({"client": [0] * 4 + [1] * 8, "rank": [1, 2, 2, 3] + [1] * 7 + [2]})
    run = replace(
        finished("global_accuracy", [0.7], clients=2, rounds=1, files=["predictions.parquet"]),
        folder=tmp_path,
    )
    table = table.assign(sample=0, label=2, predicted=2, confidence=0.5)
    table.to_parquet(tmp_path / "predictions.parquet")
    assert measure(run, text) == pytest.approx(value)
    with refused("predictions.parquet: measure: 'auroc'", NotMeasured):
        measure(run, "auroc")


def test_a_measure_of_one_client():
    clients = pd.DataFrame({"client": [0, 2], "local_accuracy": [0.9, 0.4]})
    clients["local_final_accuracy"] = [0.8, np.nan]
    run = replace(finished("global_accuracy", [0.7]), clients=clients)
    assert measure(run, "client(local_accuracy, 2)") == 0.4
    assert measure(run, "client(local_final_accuracy, 0)") == 0.8
    for text in ("client(local_accuracy, 1)", "client(local_final_accuracy, 2)", "client(maml_accuracy, 0)"):
        with refused("clients.parquet has no .*_accuracy of client [012]", NotMeasured):
            measure(run, text)
    with refused("clock.*did you mean|clock.*expected"):
        parse("client(clock, 0)")


def test_measures_of_classes(tmp_path):
    """Client 0 has F1 6/7 and 0, and recall 3/4; client 1 has all right, so one class."""

    def saved(name, table):
        run = finished("global_accuracy", [0.7], clients=2, rounds=1, files=["predictions.parquet"])
        (tmp_path / name).mkdir()
        table.to_parquet(tmp_path / name / "predictions.parquet")
        return replace(run, folder=tmp_path / name)

    columns = {"client": [0] * 4 + [1] * 8, "label": 2, "predicted": [1] + [2] * 11, "rank": [2] + [1] * 11}
    table = pd.DataFrame(columns).assign(sample=0, confidence=0.5)
    run = saved("two", table)
    assert measure(run, "macro_f1") == pytest.approx((3 / 7 + 1) / 2)
    assert measure(run, "balanced_accuracy_gap") == pytest.approx(1 / 4)
    probabilities = {"p0": 0.1, "p1": 0.3, "p2": [0.6, 0.5] * 6, "label": [2, 1] * 6}
    assert measure(saved("all", table.assign(**probabilities)), "auroc") == pytest.approx((1 + 0.5) / 2)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sweep(0)", 0.2),
        ("sweep(0.5)", 0.8),
        ("sweep_best", 0.85),
        ("sweep_most(accuracy)", 0.85),
        ("sweep_most(ece)", 0.3),
        ("sweep_plateau(0.1)", 2 / 3),
    ],
)
def test_measures_of_mixtures(text, value, tmp_path):
    """Client 0 is best in the middle, client 1 with its own model."""
    table = pd.DataFrame(
        {"client": [0] * 3 + [1] * 3, "value": [0, 0.5, 1.0] * 2, "accuracy": [0.1, 0.8, 0.6, 0.3, 0.8, 0.9]}
    )
    with refused("sweep.parquet has no mixtures", NotMeasured):
        measure(finished("global_accuracy", [0.7]), text)
    run = replace(
        finished("global_accuracy", [0.7], clients=2, rounds=1, files=["sweep.parquet"]), folder=tmp_path
    )
    ece = [0.9, 0.1, 0.2, 0.9, 0.4, 0.3]  # the shares 0.5 and 1 are the best ones of a client each
    table.assign(loss=1.0, ece=ece, mce=0.1, samples=9).to_parquet(tmp_path / "sweep.parquet")
    assert measure(run, text) == pytest.approx(value)
    assert parse(text).unit.sign == "%"
    with refused(re.escape("sweep.parquet has no share 0.3, but 0, 0.5, 1"), NotMeasured):
        measure(run, "sweep(0.3)")
    at_limit = table.assign(accuracy=[0.1, 0.8, 0.6, 0.3, 0.8, 0.8])  # 0.8 - 0.1 is above 0.7 in binary
    at_limit.assign(loss=1.0, ece=ece, mce=0.1, samples=9).to_parquet(tmp_path / "sweep.parquet")
    assert measure(replace(run), "sweep_plateau(0.1)") == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("sweep", BadInput, "(did you mean 'sweep(share)'?)"),
        ("sweep(half)", BadInput, "'half' is not accepted; expected a number"),
        ("accuracy", BadInput, "measure: 'accuracy' is not accepted (did you mean 'all_accuracy'?)"),
        ("local_acuracy", BadInput, "(did you mean 'local_accuracy'?)"),
        ("best(a(b))", BadInput, "measure: 'best(a(b))' is not accepted"),
        ("rounds_to(global_accuracy)", BadInput, "rounds_to(column, target)"),
        ("rounds_to(global_accuracy, high)", BadInput, "'high' is not accepted; expected a number"),
        ("rounds_to(global_accuracy, 80)", BadInput, "target: 80.0 is not accepted; expected a share"),
        ("rounds_to(clusters, 3)", BadInput, "column: 'clusters' is not accepted (did you mean 'clustering_"),
        ("rounds_to(global_accuracy, 0.8, 1)", BadInput, "smooth: 1.0 is not accepted"),
        ("rounds_to(train_loss, nan)", BadInput, "target: nan is not accepted; expected a finite number"),
        ("best(method/regret)", BadInput, "expected a metric that is better higher or lower"),
        ("cumulative(bytes_up)", BadInput, "not a sum over rounds already"),
        ("best(tuned_accuracy)", BadInput, "column: 'tuned_accuracy' is not accepted (did you mean 'active_"),
        ("tuned_accuracy", NotMeasured, "metrics.json has no tuned_accuracy"),
        ("best(local_accuracy)", NotMeasured, "rounds.csv has no column local_accuracy: it has global_acc"),
        ("rounds_to(all_loss, 1)", NotMeasured, "rounds.csv has no column all_loss: set run.reports: [all]"),
        (
            "rounds_to(level/all_accuracy/simple, 0.8)",
            NotMeasured,
            "no column level/all_accuracy/simple: set run.reports: [all]",
        ),
        (
            "rounds_to(proto_accuracy, 1)",
            NotMeasured,
            "no column proto_accuracy: set run.adapt: [{name: proto}]",
        ),
        ("best(maml_min)", NotMeasured, "rounds.csv has no column maml_min: set run.adapt: [{name: maml}]"),
        ("maml_max", NotMeasured, "metrics.json has no maml_max"),
        ("at(global_accuracy, 9)", NotMeasured, "no global_accuracy in round 9: it was evaluated in 1, 2, "),
        (
            "last(global_accuracy, 9)",
            NotMeasured,
            "rounds.csv has global_accuracy in 4 rounds, of at least 9",
        ),
        ("last(global_accuracy, 0)", BadInput, "'0' is not accepted; expected a whole number >= 1"),
        ("last(global_accuracy)", BadInput, "last(column, n)"),
        ("top5_worst10", NotMeasured, "set run.keep_predictions: true"),
        ("auroc(batch=10)", BadInput, "ece(batch=10)"),
        ("macro_f1(batch=10)", BadInput, "ece(batch=10)"),
        ("ece(10)", BadInput, "ece(batch=10)"),
        ("mce(batch=0)", BadInput, "ece(batch=10)"),
    ],
)
def test_bad_measures_are_refused_in_one_line(text, error, says):
    with refused(re.escape(says), error):
        measure(FEDDYN, text)
