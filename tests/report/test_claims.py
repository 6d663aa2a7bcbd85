"""Claims: verdicts from paired differences over seeds, groups of checks, and files that are refused."""

import json
import re
from dataclasses import replace
from datetime import date
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from result_folders import change, write_run
from scipy.stats import ttest_rel
from support import refused
from typer.testing import CliRunner

from fedflow.claims.claims import load_claims
from fedflow.claims.matching import matches, scale
from fedflow.claims.recorded import HEAD, read_verdicts, write_verdicts
from fedflow.claims.results import read_results, write_results
from fedflow.claims.sources import RECORDED
from fedflow.claims.verdicts import judge
from fedflow.cli import app
from fedflow.config import load_params, read_yaml
from fedflow.errors import FedflowError
from fedflow.finished.bootstrap import chance, interval
from fedflow.finished.collect import collect_runs
from fedflow.finished.run import Run
from fedflow.finished.tables import Stat
from fedflow.report.page import build_report
from fedflow.stages.experiment import Experiment

CLAIM = "- {id: a, source: b, claim: c, partition: p, %s}\n"


def run(method: str, seed: int, value: float | None, partition: str = "p", **params: float) -> Run:
    """A run with this ``loss``, which is evaluated in three rounds and falls by 0.1 to it."""
    facts = {
        "partition": partition,
        "method": method,
        "seed": seed,
        "loss": value,
        "method_label": method.upper(),
        "parameters": 10,
        "data_hash": "d",
        "partition_hash": "p",
    }
    last = 0.5 if value is None else value
    rounds = pd.DataFrame(
        {
            "round": [1, 2, 3],
            "train_loss": [last + 0.2, last + 0.1, last],
            "participants": 1,
            "bytes_down": [40, 80, 120],
            "bytes_up": [40, 80, 120],
        }
    )
    own, variant = {"method": {"name": method, **params}}, f"{method} · {params}" if params else method
    return Run(Path("r"), facts, own, rounds, pd.DataFrame(), variant=variant)


def verdict(tmp_path: Path, text: str, **values: list[float | None]) -> tuple[str, list[str]]:
    """The verdict on the claim with these checks, and what its comparisons print."""
    (tmp_path / "claims.yaml").write_text(CLAIM % text)
    runs = [run(method, seed, v) for method, found in values.items() for seed, v in enumerate(found)]
    (judged,) = judge(load_claims(tmp_path / "claims.yaml"), runs)
    return judged.verdict, [one.numbers for one in judged.comparisons]


def test_the_interval_is_that_of_the_paired_t_test():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.9, 0.02, 5), rng.normal(0.88, 0.02, 5)
    expected = ttest_rel(first, second).confidence_interval(0.95)
    assert interval(Stat(dict(enumerate(first - second)))) == pytest.approx(tuple(expected), abs=1e-12)


@pytest.mark.parametrize(
    ("check", "fedavg", "ditto", "expected"),
    [
        ("above: [fedavg]", [1.0, 1.1, 1.3], [1.5, 1.7, 1.8], "confirmed"),
        ("below: [fedavg]", [1.0, 1.1, 1.3], [1.5, 1.7, 1.8], "not confirmed"),
        ("above: [fedavg]", [1.0, 1.1, 1.3], [1.5, 1.0, 1.8], "not resolved"),
        ("above: [fedavg]", [1.0, 1.1], [1.5, 1.7], "not resolved"),
        ("above: [fedavg], by: 0.3", [1.0, 1.1, 1.3], [1.5, 1.6, 1.8], "confirmed"),
        ("above: [fedavg], by: 0.7", [1.0, 1.1, 1.3], [1.5, 1.7, 1.8], "not confirmed"),
        ("above: [fedavg]", [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], "not confirmed"),
        ("equal: [fedavg]", [1.0, 1.1, 1.3], [1.0, 1.1, 1.3], "confirmed"),
        ("equal: [fedavg]", [1.0, 1.0, 1.0], [1.5, 1.5, 1.5], "not confirmed"),
        ("equal: [fedavg], within: 0.1", [1.0, 1.1, 1.3], [1.01, 1.12, 1.31], "confirmed"),
        ("equal: [fedavg], within: 0.1", [1.0, 1.1, 1.3], [1.5, 1.7, 1.8], "not confirmed"),
        ("equal: [fedavg], within: 0.1", [1.0, 1.1, 1.3], [1.0, 1.2, 1.3], "not resolved"),
        ("within: [1, 2]", [], [1.5, 1.6, 1.7], "confirmed"),
        ("within: [2, null]", [], [1.5, 1.6, 1.7], "not confirmed"),
        ("within: [null, 1.6]", [], [1.5, 1.6, 1.7], "not resolved"),
        ("within: [0.1, 0.2]", [], [0.1, 0.1, 0.1], "confirmed"),
        ("above: [fedavg, local]", [1.0, 1.1, 1.3], [1.5, 1.7, 1.8], "not run"),
    ],
)
def test_verdicts(check, fedavg, ditto, expected, tmp_path):
    found, _ = verdict(tmp_path, f"measure: loss, of: ditto, {check}", fedavg=fedavg, ditto=ditto)
    assert found == expected


ABOVE = "{measure: %s, of: %s, above: [fedavg]}"


def test_a_deviation_that_is_small_by_luck_does_not_narrow_an_interval(tmp_path):
    """With the median deviation of its measure, 0.5, the mean of 0.3 is far from certain."""
    fedavg, lucky, wild = [1.0, 1.0, 1.0], [1.3, 1.301, 1.302], [1.5, 2.0, 2.5]
    assert verdict(tmp_path, f"all: [{ABOVE % ('loss', 'a')}]", fedavg=fedavg, a=lucky)[0] == "confirmed"
    three = ", ".join(ABOVE % ("loss", name) for name in "abc")
    found = verdict(tmp_path, f"all: [{three}]", fedavg=fedavg, a=lucky, b=wild, c=[1.1, 2.1, 3.3])
    assert "difference +0.30100 [−0.94" in found[1][0] and found[0] == "not resolved"
    other = ", ".join([ABOVE % ("loss", "a"), *(ABOVE % ("best(train_loss)", name) for name in "bc")])
    found = verdict(tmp_path, f"any: [{other}]", fedavg=fedavg, a=lucky, b=wild, c=[1.1, 2.1, 3.3])
    assert "difference +0.30100 [+0.29" in found[1][0] and found[0] == "confirmed"  # another measure


def test_the_median_deviation_is_that_of_differences_and_not_of_values(tmp_path):
    measured = {"fedavg": [1.0, 2.0, 3.0], "a": [1.3, 2.301, 3.302]}
    advantage = "{measure: loss, of: {method: a, minus: fedavg}, within: [0.2, null]}"
    values = ", ".join(f"{{measure: loss, of: {name}, within: [0, null]}}" for name in measured)
    _, (numbers, *_) = verdict(tmp_path, f"all: [{advantage}, {values}]", **measured)
    assert "[0.29" in numbers


def test_p_values_are_adjusted_for_the_comparisons_of_all_claims(tmp_path):
    fedavg, others = [1.0, 1.0, 1.0], {name: [0.8, 1.0, 1.2] for name in "bcdefghijk"}
    measured = {"fedavg": fedavg, "a": [1.3, 1.45, 1.6], **others}
    (low, high) = interval(Stat({0: 0.3, 1: 0.45, 2: 0.6}), 0.2)
    every = ", ".join(ABOVE % ("loss", name) for name in ("a", *others))
    found, (first, *_) = verdict(tmp_path, f"all: [{every}]", **measured)
    assert low < 0 < high and "adjusted" not in first  # the median deviation is 0.2
    measured["a"] = [1.5, 1.65, 1.8]
    few = ", ".join(ABOVE % ("loss", name) for name in "ab")
    found, (first, _) = verdict(tmp_path, f"any: [{few}]", **measured)
    alone = chance(Stat({0: 0.5, 1: 0.65, 2: 0.8}), 0.65, least=0.175)  # the median of 0.15 and 0.2
    assert found == "confirmed" and f"(adjusted p {2 * alone:.2g})" in first
    found, (first, *_) = verdict(tmp_path, f"any: [{every}]", **measured)
    assert found == "not resolved" and "] (adjusted p 0." in first and "[+0." in first
    mirrored = [
        *few.split(", {"),
        "measure: loss, of: fedavg, below: [a]}",
        "measure: loss, of: fedavg, above: [b]}",
    ]
    found, (again, *_) = verdict(tmp_path, f"any: [{', {'.join(mirrored)}]", **measured)
    assert f"(adjusted p {2 * alone:.2g})" in again  # the same comparisons, with the methods swapped
    exact = ", ".join([ABOVE % ("loss", "a"), "{measure: loss, of: fedavg, within: [1, 1]}"])
    found, (first, second) = verdict(tmp_path, f"all: [{exact}]", **measured)
    assert found == "confirmed" and "adjusted" not in first + second  # without spread nothing is tested


def test_a_comparison_counts_once_with_its_partitions_swapped(tmp_path):
    losses = {"p": [0.1, 0.13, 0.12], "q": [0.5, 0.52, 0.58], "r": [0.3, 0.35, 0.33]}
    runs = [run("a", seed, loss, name) for name, of in losses.items() for seed, loss in enumerate(of)]
    p, q, r = (f"{{method: a, partition: {name}}}" for name in "pqr")
    checks = [f"{{of: {q}, above: [{p}]}}", f"{{of: {q}, above: [{r}]}}", f"{{of: {p}, below: [{q}]}}"]
    file, numbers = tmp_path / "claims.yaml", []
    for some in (checks[:2], checks):
        file.write_text(f"- {{id: a, source: b, claim: c, measure: loss, all: [{', '.join(some)}]}}\n")
        (judged,) = judge(load_claims(file), runs)
        numbers.append([result.numbers for result in judged.comparisons[:2]])
    assert numbers[0] == numbers[1] and "adjusted p" in numbers[0][1]


def test_a_comparison_that_another_claim_repeats_does_not_change_the_others(tmp_path):
    """The median deviation of b and of two steady methods is theirs, however often b is compared."""
    losses = {"fedavg": [1.0] * 3, "a": [1.5, 1.51, 1.52], "b": [1.5, 2.0, 2.6], "c": [1.2, 1.22, 1.23]}
    once = ", ".join(ABOVE % ("loss", name) for name in "abc")
    mirrored = "{measure: loss, of: fedavg, below: [b]}"
    _, expected = verdict(tmp_path, f"all: [{once}]", **losses)
    _, again = verdict(tmp_path, f"all: [{once}, {mirrored}, {mirrored}]", **losses)
    assert again[:3] == expected and "[+0.4" in expected[0]


def test_seeds_are_the_fewest_of_all_comparisons_that_decide(tmp_path):
    """The fourth one, which is not printed, has two seeds."""
    losses = {"a": [1, 2, 3, 4, 5], "b": [1, 4, 9, 16, 25]}
    runs = [
        run(method, seed, loss, partition)
        for partition, (method, of) in product("pqrs", losses.items())
        for seed, loss in enumerate(of[:2] if partition == "s" else of)
    ]
    text = "- {id: a, source: b, claim: c, partition: [p, q, r, s], measure: loss, of: a, equal: [b]}\n"
    (tmp_path / "claims.yaml").write_text(text)
    for measured in runs:
        measured.metrics["settings"] = ""
    (judged,) = judge(load_claims(tmp_path / "claims.yaml"), runs)
    write_verdicts(tmp_path, [judged], "2026-01-01", {})
    (entry,) = read_verdicts(tmp_path).verdicts
    assert len(judged.deciding) == 4 and len(judged.shown) == 3
    assert entry.seeds == 2 and entry.basis == "seen, two seeds"


def test_what_decides_is_printed(tmp_path):
    check = "measure: loss, of: ditto, above: [fedavg]"
    _, (numbers,) = verdict(tmp_path, check, fedavg=[1.0, 1.1, 1.3], ditto=[1.5, 1.7, 1.8])
    assert numbers == (
        "DITTO 1.6667 ± 0.1528 against FEDAVG 1.1333 ± 0.1528; "
        "difference +0.53333 [+0.38991, +0.67676]; 3 seeds"
    )
    _, (numbers,) = verdict(tmp_path, check, fedavg=[1.0, None, 1.3], ditto=[1.5, 1.7, 1.8])
    assert numbers.endswith("; 2 shared seeds, of at least 3; FEDAVG has no run or value with seed 1")
    assert verdict(tmp_path, check, ditto=[1.5]) == ("not run", ["no results of FedAvg"])


HOLDS, FAILS = "{measure: loss, of: high, above: [low]}", "{measure: loss, of: low, above: [high]}"
OPEN, ABSENT = (
    "{measure: loss, of: high, equal: [low], within: 1}",
    "{measure: loss, of: high, above: [fedavg]}",
)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (f"all: [{HOLDS}, {OPEN}]", "not resolved"),
        (f"all: [{OPEN}, {ABSENT}]", "not run"),
        (f"all: [{ABSENT}, {FAILS}]", "not confirmed"),
        (f"any: [{FAILS}, {HOLDS}]", "confirmed"),
        (f"any: [{FAILS}, {OPEN}]", "not resolved"),
        (f"all: [{HOLDS}, {{any: [{FAILS}, {HOLDS}]}}]", "confirmed"),
    ],
)
def test_all_checks_have_the_worst_verdict_and_any_the_best(group, expected, tmp_path):
    assert verdict(tmp_path, group, low=[1.0, 1.1, 1.2], high=[1.9, 2.1, 2.3])[0] == expected


def test_what_decides_is_of_the_parts_with_the_verdict(tmp_path):
    """The failed check within the part that holds has no effect."""
    (tmp_path / "claims.yaml").write_text(CLAIM % f"all: [{{any: [{FAILS}, {HOLDS}]}}, {FAILS}]")
    losses = {"low": [1.0, 1.1, 1.2], "high": [1.9, 2.1, 2.3]}
    runs = [run(name, seed, value) for name, of in losses.items() for seed, value in enumerate(of)]
    (judged,) = judge(load_claims(tmp_path / "claims.yaml"), runs)
    assert judged.verdict == "not confirmed" and judged.deciding == judged.comparisons[2:]


def test_a_bound_is_another_question_than_a_number(tmp_path):
    """Whichever claim comes first: equal numbers of rounds, but one method did not reach its target."""
    losses = {"a": [0.8, 0.9, 0.8], "b": [1.0, 1.0, 1.0], "c": [1.2, 1.2, 1.2]}
    runs = [run(name, seed, value) for name, of in losses.items() for seed, value in enumerate(of)]
    checks = [f"{{measure: 'rounds_to(train_loss, 1.05)', of: a, equal: [{b}], within: 5}}" for b in "bc"]
    file, numbers = tmp_path / "claims.yaml", []
    for order in (1, -1):
        file.write_text(CLAIM % f"all: [{', '.join(checks[::order])}]")
        (judged,) = judge(load_claims(file), runs)
        numbers.append([result.numbers for result in judged.comparisons][::order])
    assert numbers[0] == numbers[1] and "adjusted p" in numbers[0][0] and "adjusted" not in numbers[0][1]


def test_the_measure_of_a_group_is_that_of_its_checks(tmp_path):
    text = "measure: loss, all: [{of: high, above: [low]}, {any: [{of: low, below: [high]}]}]"
    assert verdict(tmp_path, text, low=[1.0, 1.1, 1.2], high=[1.9, 2.1, 2.3])[0] == "confirmed"


@pytest.mark.parametrize(
    ("of", "other", "target", "expected", "interval"),
    [
        ("fast", "slow", 1.05, "confirmed", "[−∞, −2.00]"),
        ("slow", "fast", 1.05, "not confirmed", "[+2.00, +∞]"),
        ("fast", "slow", 0.85, "not resolved", "[−∞, +0.00]"),
        ("fast", "slow", 0.5, "not resolved", "[−∞, +∞]"),
    ],
)
def test_a_target_that_was_not_reached_is_a_lower_bound(of, other, target, expected, interval, tmp_path):
    """Fast reaches 1.05 in round 1, slow in round 3 with two seeds, and later than that with the third."""
    check = f"measure: 'rounds_to(train_loss, {target})', of: {of}, below: [{other}]"
    found, (numbers,) = verdict(tmp_path, check, fast=[0.8, 0.8, 0.8], slow=[1.0, 1.0, 1.2])
    assert (found, interval in numbers) == (expected, True)


COST = "measure: '%s(train_loss, 1.05)', of: %s"


@pytest.mark.parametrize(
    ("check", "coarse", "span", "note"),
    [
        (
            COST % ("rounds_to", "slow, above: [fast], by: 1"),
            "not resolved",
            "[+1.00, +3.00]",
            "allows for it",
        ),
        (COST % ("rounds_to", "slow, above: [fast]"), "confirmed", "[+1.00, +3.00]", "allows for it"),
        (COST % ("rounds_to", "slow, within: [3, 3]"), "not resolved", "[2.00, 3.00]", "allows for it"),
        (COST % ("transmissions", "slow, above: [fast]"), "not resolved", "+2.00", "too coarse"),
        (
            COST % ("rounds_to", "{method: slow, over: fast}, within: [3, 9]"),
            "not resolved",
            "",
            "too coarse",
        ),
    ],
)
def test_a_target_may_be_reached_in_a_round_that_was_not_evaluated(check, coarse, span, note, tmp_path):
    """Fast reaches it in round 1, slow in round 3, or in round 2, which is then not evaluated."""
    (tmp_path / "claims.yaml").write_text(CLAIM % check)
    runs = [run(name, seed, v) for name, v in {"fast": 0.8, "slow": 1.0}.items() for seed in range(3)]
    (judged,) = judge(load_claims(tmp_path / "claims.yaml"), runs)
    assert judged.verdict == "confirmed"
    for one in runs:
        one.rounds.loc[1, "train_loss"] = np.nan
    (judged,) = judge(load_claims(tmp_path / "claims.yaml"), runs)
    (result,) = judged.comparisons
    assert (result.verdict, span in result.span) == (coarse, True), result.span
    assert result.note.startswith("evaluated every 2 rounds: ") and note in result.note


def test_a_comparison_without_spread_but_with_an_open_end_does_not_count(tmp_path):
    """Fast reaches its target in the first round with every seed, slow with none: no p-value of 0."""
    text = "- {id: a, source: b, claim: c, partition: p, measure: loss, of: high, above: [low]}\n"
    cost = "measure: 'rounds_to(train_loss, 1.05)', of: fast, below: [slow]"
    (tmp_path / "claims.yaml").write_text(text + (CLAIM % cost).replace("id: a", "id: k"))
    values = {"low": [0.0, 0.1, 0.2], "high": [1.0, 1.3, 1.1], "fast": [0.8] * 3, "slow": [2.0] * 3}
    runs = [run(name, seed, v) for name, found in values.items() for seed, v in enumerate(found)]
    (first,), (second,) = (one.comparisons for one in judge(load_claims(tmp_path / "claims.yaml"), runs))
    assert np.isnan(first.adjusted)  # the only comparison
    assert second.verdict == "confirmed" and second.span == "difference −2.00 [−∞, −2.00] (no spread)"


def test_ties_do_not_lower_the_median_deviation(tmp_path):
    others = ", ".join(f"tie{i}" for i in range(4))
    text = "measure: loss, of: lucky, above: [%s]"
    values = {"fedavg": [0.0] * 3, "lucky": [1.3, 1.301, 1.302], "wild": [1.0, 3.0, 1.1]}
    values |= {f"tie{i}": [0.0] * 3 for i in range(4)}
    checks = [text % "fedavg", "measure: loss, of: wild, above: [fedavg]"]
    found, numbers = verdict(tmp_path, f"all: [{{{checks[0]}}}, {{{checks[1]}}}]", **values)
    tied = f"measure: loss, of: fedavg, equal: [{others}]"
    _, with_ties = verdict(tmp_path, f"all: [{{{checks[0]}}}, {{{checks[1]}}}, {{{tied}}}]", **values)
    assert found == "not resolved" and with_ties[0] == numbers[0]


def test_rounding_errors_break_no_ties(tmp_path):
    values = {"a": [0.3] * 3, "b": [0.1] * 3, "c": [0.2] * 3, "d": [0.0] * 3}
    of = "measure: loss, of: {method: c, minus: d}"
    assert verdict(tmp_path, f"{of}, above: [{{method: a, minus: b}}]", **values)[0] == "not confirmed"
    assert verdict(tmp_path, f"{of}, equal: [{{method: a, minus: b}}]", **values)[0] == "confirmed"
    values = {"a": [0.75] * 3, "b": [0.7] * 3}
    assert verdict(tmp_path, "measure: loss, of: a, above: [b], by: 0.05", **values)[0] == "not confirmed"


def test_equal_numbers_with_three_seeds_are_equal(tmp_path):
    """The median deviation of other comparisons does not count for a tie with every seed."""
    text = "all: [{measure: loss, of: a, equal: [b]}, {measure: loss, of: a, above: [c]}]"
    values = {"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0, 3.0], "c": [0.0, 1.9, 2.0]}
    _, (tie, _) = verdict(tmp_path, text, **values)
    assert "difference +0.00000 (no spread)" in tie


def test_settings_of_the_data_in_where_are_no_clash(tmp_path):
    """A comparison of two divisions under one name, one of them with a changed setting."""
    text = "measure: loss, of: {method: a, where: {partition.alpha: 1}}, above: [a]"
    (tmp_path / "claims.yaml").write_text(CLAIM % text)
    runs = [run("a", seed, 1.0) for seed in range(3)]
    for one in [run("a", seed, 2.0) for seed in range(3)]:
        one.params["partition"] = {"alpha": 1}
        one.metrics["partition_hash"] = "q"
        runs.append(replace(one, variant="a · partition.alpha 1"))
    (judged,) = judge(load_claims(tmp_path / "claims.yaml"), runs)
    assert judged.verdict == "confirmed" and judged.comparisons[0].note == ""


def test_runs_that_differ_in_other_sections_than_where_do_not_count(tmp_path):
    text = "measure: loss, of: {method: a, where: {method.lam: 1}}, within: [0, 9]"
    (tmp_path / "claims.yaml").write_text(CLAIM % text)
    claims, runs = load_claims(tmp_path / "claims.yaml"), [run("a", seed, 1.0, lam=1) for seed in range(3)]
    assert judge(claims, runs, changed=lambda run: {"method": 1})[0].verdict == "confirmed"
    (judged,) = judge(claims, runs, changed=lambda run: {"method": 1, "training": 2})
    assert judged.comparisons[0].reason == "no results of A (lam 1) with the settings of params.yaml"


def test_there_is_no_ratio_to_0(tmp_path):
    text = "measure: loss, of: {method: a, over: b}, within: [0, 2]"
    found, (numbers,) = verdict(tmp_path, text, a=[1.0, 1.1, 1.2, 9, 9], b=[1.0, 1.0, 1.0, 0, 0])
    assert (found, numbers) == ("not run", "no ratio: B is 0 with seed 3, 4")


def test_seeds_with_other_data_or_without_a_run_do_not_count_and_are_noted(tmp_path):
    (tmp_path / "claims.yaml").write_text(CLAIM % "measure: loss, of: high, above: [low]")
    runs = [run(name, seed, v) for name, v in {"low": 1.0, "high": 2.0}.items() for seed in range(6)]
    del runs[-1]  # it failed
    runs[-1].metrics["data_hash"] = "other"
    for one in runs:
        one.metrics["settings"] = ""
    judged = judge(load_claims(tmp_path / "claims.yaml"), runs)
    (result,) = judged[0].comparisons
    assert [*result.difference.values] == [0, 1, 2, 3]
    assert result.note == "HIGH has no run or value with seed 5; other data with seed 4"
    write_verdicts(tmp_path, judged, "2026-01-02", {})
    assert read_verdicts(tmp_path).verdicts[0].ours.endswith(f"; {result.note}")
    for one in runs[6:]:
        one.metrics["data_hash"] = "other"
    (judged,) = judge(load_claims(tmp_path / "claims.yaml"), runs)
    assert judged.comparisons[0].reason == "other data of the same name"


def test_methods_are_chosen_by_their_settings(tmp_path):
    runs = [run("ditto", seed, 1.0 + seed) for seed in range(3)]
    runs += [run("ditto", seed, 2.0 + seed, lam=lam) for seed in range(3) for lam in (0.1, 1.0)]
    text = "measure: loss, of: {method: ditto, where: {method.lam: 0.1}}, above: [ditto]"
    (tmp_path / "claims.yaml").write_text(CLAIM % text)
    (judged,) = judge(load_claims(tmp_path / "claims.yaml"), runs)
    assert judged.verdict == "confirmed" and "DITTO (lam 0.1) above DITTO" in judged.comparisons[0].statement


ADVANTAGE = "{method: easy, minus: fedavg, partition: %s}"
PLACES = ", ".join(ADVANTAGE % place for place in ("low", "middle", "high"))


def advantages(tmp_path: Path, text: str, gains: dict[str, list[float]]) -> tuple[str, list[str], list[str]]:
    """Verdict, numbers and statements; the base and the seed effect differ by partition, the gains count."""
    (tmp_path / "claims.yaml").write_text(f"- {{id: a, source: b, claim: c, measure: loss, {text}}}\n")
    runs = []
    for level, (place, found) in enumerate(gains.items()):
        for seed, value in enumerate(found):
            base = 5.0 * level + (7, -3, 2)[seed]  # far larger than the gains
            runs += [run("fedavg", seed, base, place), run("easy", seed, base + value, place)]
    (judged,) = judge(load_claims(tmp_path / "claims.yaml"), runs)
    comparisons = judged.comparisons
    return judged.verdict, [one.numbers for one in comparisons], [one.statement for one in comparisons]


GROWS = {"low": [1.0, 1.1, 1.2], "middle": [2.0, 2.1, 2.3], "high": [3.1, 3.0, 3.3]}
FLAT = {"low": [1.0, 1.1, 1.2], "middle": [0.9, 1.2, 1.3], "high": [3.1, 3.0, 3.3]}


@pytest.mark.parametrize(
    ("text", "gains", "expected"),
    [
        (f"of: {ADVANTAGE % 'high'}, above: [{ADVANTAGE % 'low'}]", GROWS, "confirmed"),
        (f"of: {ADVANTAGE % 'high'}, above: [{ADVANTAGE % 'low'}], by: 3", GROWS, "not confirmed"),
        (f"of: {ADVANTAGE % 'low'}, equal: [{ADVANTAGE % 'middle'}], within: 0.5", FLAT, "confirmed"),
        (f"of: {ADVANTAGE % 'low'}, within: [0.5, 2]", GROWS, "confirmed"),
        (f"rising: [{PLACES}]", GROWS, "confirmed"),
        (f"rising: [{PLACES}]", FLAT, "not resolved"),
        (f"rising: [{PLACES}], by: 1.5", GROWS, "not confirmed"),
        (f"trend: [{PLACES}]", FLAT, "confirmed"),
        (f"trend: [{PLACES}], by: 1.5", GROWS, "not confirmed"),
    ],
)
def test_advantages_are_compared_seed_by_seed_between_partitions(text, gains, expected, tmp_path):
    assert advantages(tmp_path, text, gains)[0] == expected


def test_the_slope_is_that_of_least_squares_and_is_printed(tmp_path):
    slopes = [np.polyfit([0, 1, 2], [GROWS[place][seed] for place in GROWS], 1)[0] for seed in range(3)]
    _, (numbers,), (statement,) = advantages(tmp_path, f"trend: [{PLACES}]", GROWS)
    assert statement.endswith(
        "rises over EASY − FEDAVG on low, EASY − FEDAVG on middle, EASY − FEDAVG on high"
    )
    assert numbers.startswith(
        "EASY − FEDAVG on low 1.1000 ± 0.1000, EASY − FEDAVG on middle 2.1333 ± 0.1528, "
    )
    assert f"; slope +{np.mean(slopes):.5f} [+" in numbers and numbers.endswith("; 3 seeds")
    _, numbers, statements = advantages(tmp_path, f"rising: [{PLACES}]", GROWS)
    assert len(numbers) == 2 and "on middle above EASY − FEDAVG on low" in statements[0]


def test_an_advantage_in_rounds_may_be_a_bound_on_either_side(tmp_path):
    """Slow needs 3 rounds with two seeds and more with the third, so its lead over it is at most -2 there."""
    lead = "{method: fast, minus: slow}"
    check = f"measure: 'rounds_to(train_loss, 1.05)', of: {lead}, within: [null, -1]"
    found, (numbers,) = verdict(tmp_path, check, fast=[0.8, 0.8, 0.8], slow=[1.0, 1.0, 1.2])
    assert found == "confirmed" and "SLOW −2.0 or less ± 0.0 [−∞, −2.00]" in numbers
    absent = "measure: loss, of: {method: ditto, minus: slow}, within: [0, 1]"
    assert verdict(tmp_path, absent, slow=[1.0])[1] == ["no results of Ditto"]


def test_gains_are_ratios_seed_by_seed_and_may_be_bounds(tmp_path):
    """Fast needs one round with all seeds, Slow 3, 3 and more: a gain of 3, 3 and more than 3."""
    rounds = "measure: 'rounds_to(train_loss, 1.05)', of: {method: %s, over: %s}, within: [%s]"
    seeds = {"fast": [0.8, 0.8, 0.8], "slow": [1.0, 1.0, 1.2]}
    found, (numbers,) = verdict(tmp_path, rounds % ("slow", "fast", "2.5, null"), **seeds)
    assert found == "confirmed" and numbers.startswith("SLOW / FAST 3.00+ ± 0.00 [3.000, ∞]")
    found, (numbers,) = verdict(tmp_path, rounds % ("fast", "slow", "null, 0.4"), **seeds)
    assert found == "confirmed" and numbers.startswith("FAST / SLOW 0.33 or less ± 0.00 [−∞, 0.333]")
    gains = "of: {method: easy, over: fedavg, partition: high}, above: [{method: easy, over: fedavg}]"
    (tmp_path / "claims.yaml").write_text(CLAIM % f"measure: loss, {gains}, by: 0.5")
    pairs = {"p": [(1.0, 1.5), (2.0, 3.2), (4.0, 6.0)], "high": [(10.0, 24.0), (5.0, 12.5), (1.0, 2.5)]}
    runs = [
        run(name, seed, value, place)
        for place, found in pairs.items()
        for seed, values in enumerate(found)
        for name, value in zip(("fedavg", "easy"), values)
    ]
    (judged,) = judge(load_claims(tmp_path / "claims.yaml"), runs)
    (only,) = judged.comparisons
    assert only.statement == "Ratio: Loss: EASY / FEDAVG on high above EASY / FEDAVG by more than 0.5"
    ratios = [high[1] / high[0] - low[1] / low[0] for low, high in zip(pairs["p"], pairs["high"])]
    assert judged.verdict == "confirmed" and list(only.difference.values.values()) == pytest.approx(ratios)


def test_a_method_may_be_measured_by_a_column_of_its_own(tmp_path):
    """The worst training loss of a run is 0.2 above its final loss, with every seed."""
    text = "measure: loss, of: {method: ditto, measure: worst(train_loss)}, above: [%s], by: 0.1"
    found, (numbers,) = verdict(tmp_path, text % "ditto", ditto=[1.0, 1.1, 1.3])
    assert found == "confirmed" and "against DITTO [Loss] 1.1333" in numbers
    assert "difference +0.20000 (no spread)" in numbers
    own = "{method: ditto, measure: best(train_loss)}"
    assert verdict(tmp_path, text % own, ditto=[1.0, 1.1, 1.3])[0] == "confirmed"
    lead = "of: {method: ditto, measure: worst(train_loss), minus: {method: ditto, measure: loss}}"
    assert verdict(tmp_path, f"{lead}, within: [0.19, 0.21]", ditto=[1.0, 1.1, 1.3])[0] == "confirmed"
    slow = "of: fast, below: [{method: slow, measure: 'rounds_to(train_loss, 1.05)'}]"
    check = f"measure: 'rounds_to(train_loss, 1.15)', {slow}"
    found, (numbers,) = verdict(tmp_path, check, fast=[0.9, 0.9, 0.9], slow=[1.0, 1.0, 1.2])
    assert found == "confirmed" and numbers.startswith("FAST 1.0 ± 0.0 against SLOW [Rounds to target (")


def test_a_name_of_params_yaml_without_results_is_not_run(tmp_path):
    (tmp_path / "claims.yaml").write_text(CLAIM % "measure: loss, of: easy, above: [fedavg]")
    claims = load_claims(tmp_path / "claims.yaml")
    (judged,) = judge(claims, [], {"easy": "FedAvg, easy first"})
    assert judged.comparisons[0].numbers == "no results of FedAvg, easy first and FedAvg"
    with refused("claim a.of: 'easy' is not accepted"):
        judge(claims, [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{id: a}", "claims.yaml: {'id': 'a'} is not accepted; expected a list of claims"),
        (CLAIM % "measure: loss", "claim a.measure: 'loss' is not accepted; expected null, unless"),
        (
            CLAIM % "measure: loss, of: x, above: [y], below: [z]",
            r"checks: ['above', 'below'] is not accepted",
        ),
        (CLAIM % "where: {}", "claim a.checks: None is not accepted; expected exactly one of above, below"),
        (CLAIM % "of: x, above: [y]", "claim a.measure: None is not accepted"),
        (CLAIM % "measure: los, of: x, above: [y]", "did you mean 'loss'?"),
        (CLAIM % "all: [{measure: los, of: x, above: [y]}]", "claim a.all[0].measure: 'los' is not accepted"),
        (CLAIM % "measure: loss, of: x, above: y", "claim a.above: 'y' is not accepted; expected a list"),
        (CLAIM % "measure: loss, of: x, above: [{name: y}]", "claim a.above[0].name: 'name' is not accepted"),
        (CLAIM % "measure: loss, of: x, within: 1", "within: 1.0 is not accepted; expected [low, high]"),
        (CLAIM % "measure: loss, of: x, within: [2, 1]", "with low <= high"),
        (CLAIM % "measure: loss, of: x, equal: [y], within: [0, 1]", "expected a number >= 0 with equal"),
        (CLAIM % "measure: loss, of: x, equal: [y], by: 1", "by: 1.0 is not accepted; expected 0"),
        (CLAIM % "measure: loss, rising: [x]", "claim a.rising: ['x'] is not accepted; expected a list of"),
        (CLAIM % "measure: loss, trend: [x, y]", "expected a list of at least 3 methods"),
        (CLAIM % "measure: loss, of: z, rising: [x, y]", "claim a.of: "),
        (CLAIM % "measure: loss, of: {method: x, minus: {mehod: y}}, above: [z]", "did you mean 'method'?"),
        (
            "- {id: a, source: b, claim: c, measure: loss, of: {method: x, partition: p}, above: [y]}",
            "claim a.partition: None is",
        ),
        (CLAIM % "measure: loss, of: {method: x, minus: {method: y, minus: z}}, above: [w]", "minus.minus: "),
        (CLAIM % "measure: loss, of: {method: x, over: {method: y, minus: z}}, above: [w]", "over.over: "),
        (CLAIM % "measure: loss, of: {method: x, over: y, minus: z}, above: [w]", "null, as there is minus"),
        (CLAIM % "measure: loss, of: {method: x, over: y}, above: [w]", "for all that are compared"),
        (
            CLAIM % "measure: loss, of: {method: x, partition: a}, above: [{method: x, partition: b}]",
            "claim a.partition: 'p' is not accepted; expected null, as every method has its own",
        ),
        (
            CLAIM % "measure: loss, of: x, above: [{method: y, measure: los}]",
            "above[0].measure: 'los' is not",
        ),
        (CLAIM % "of: {method: x, measure: loss}, above: [y]", "claim a.measure: None is not accepted"),
        (
            CLAIM % "measure: loss, of: x, above: [{method: y, measure: ece}]",
            "claim a.measure: 'ece' is not accepted; expected one in the unit of loss",
        ),
        (CLAIM % "measure: loss, of: x, within: [null, null]", "of which one may be null"),
        (CLAIM % "measure: clock_to_target, of: x, within: [1, 2]", "clock_to(column, target)"),
        (CLAIM % "sauce: z, test: x", "did you mean 'source'?"),
        (2 * (CLAIM % "test: x::y"), "claim 2.id: 'a' is not accepted; expected a name that no"),
        ("- {id: a, source: b, claim: c, measure: loss, of: x, above: [y]}", "claim a.partition: None is"),
        ("- [", "claims.yaml, line 1: not valid YAML"),
    ],
)
def test_bad_files_are_refused_in_one_line(text, says, tmp_path):
    (tmp_path / "claims.yaml").write_text(text)
    with refused(re.escape(says), FedflowError):
        load_claims(tmp_path / "claims.yaml")


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ("of: dito, above: [fedavg]", "claim a.of: 'dito' is not accepted (did you mean"),
        ("of: ditto, where: {method.lambda: 1}, above: [ditto]", "claim a.where: 'method.lambda' is not"),
        ("of: {method: ditto, where: {method.name: ditto, method.lam: 1}}, within: [0, 1]", "claim a.where"),
    ],
)
def test_claims_about_nothing_are_refused_in_one_line(check, says, tmp_path):
    (tmp_path / "claims.yaml").write_text(CLAIM % f"measure: loss, {check}")
    runs = [run("ditto", 0, 1.0, lam=1, mu=mu) for mu in (1, 2)]
    with refused(re.escape(says)):
        judge(load_claims(tmp_path / "claims.yaml"), runs)


def test_the_report_has_a_section_and_tables_of_claims(tmp_path):
    for method in ("fedavg", "ditto"):
        for seed in range(3):
            write_run(tmp_path / "results", "p", method, seed)
    checks = "measure: %s, of: ditto, above: [fedavg]"
    held = '- {id: t, source: s, claim: "x |\\n y", test: "test_a.py::test_b"}\n'
    refuted = '- {id: u, source: s, claim: z, test: "test_a.py::test_c", refuted: true}\n'
    absent = (CLAIM % checks % "top5").replace("id: a", "id: k")
    (tmp_path / "claims.yaml").write_text(CLAIM % checks % "local_accuracy" + held + refuted + absent)
    arguments = (tmp_path / "results", tmp_path / "none", tmp_path / "report")
    page = build_report(*arguments, claims=tmp_path / "claims.yaml").read_text()
    (judged,) = judge(load_claims(tmp_path / "claims.yaml")[:1], collect_runs(tmp_path / "results"))
    section = page.split('<section id="claims">')[1].split("</section>")[0]
    assert judged.comparisons[0].numbers in section and f">{judged.verdict}</span>" in section
    assert "held by a test" in section and "test_a.py::test_b" in section and 'href="#claims"' in page
    reason = "p/ditto/0/predictions.parquet has no predictions: set run.keep_predictions: true"
    assert f"<b>{reason}</b>" in section and str(tmp_path) not in page
    table = pd.read_csv(tmp_path / "report" / "claims.csv").set_index("id")
    assert list(table["verdict"]) == [judged.verdict, "held by a test", "refuted by a test", "not run"]
    assert "1 refuted by a test" in section
    assert table.loc["a", "seeds"] == 3 and table.loc["k", "reason"] == reason
    lines = (tmp_path / "report" / "claims.md").read_text().splitlines()
    assert len(lines) == 6 and judged.comparisons[0].numbers in lines[2] and r"| x \| y | s |" in lines[3]
    plain = build_report(*arguments, claims=tmp_path / "gone.yaml").read_text()
    assert "#claims" not in plain and not list((tmp_path / "report").glob("claims.*"))


PARAMS = """
data: {digits: {source: digits}}
models: {digits: mlp}
partitions: {p: {dataset: digits, scheme: iid, clients: 4}}
grid: {datasets: [digits], partitions: [p], methods: [fedavg, ditto], seeds: [0, 1, 2]}
"""


def write_plain(root: Path, method: str, seed: int) -> None:
    """A run with the digest of the settings of params.yaml."""
    settings = Experiment(load_params(root / "params.yaml"), "p", method, seed, root).digest
    folder = root / "results" / "p" / method / str(seed)
    if not folder.exists():
        write_run(root / "results", "p", method, seed)
    for name in ("metrics.json", "params.json"):
        change(folder / name, settings=settings)


def test_runs_with_other_settings_than_params_yaml_decide_no_claim(tmp_path):
    """FedAvg ran before params.yaml changed, under the same names."""
    (tmp_path / "params.yaml").write_text(PARAMS)
    (tmp_path / "claims.yaml").write_text(CLAIM % "measure: local_accuracy, of: ditto, above: [fedavg]")
    for seed in range(3):
        write_plain(tmp_path, "ditto", seed)
        write_run(tmp_path / "results", "p", "fedavg", seed)

    def judged() -> pd.Series:
        assert CliRunner().invoke(app, ["report", "--verdicts", "--root", str(tmp_path)]).exit_code == 0
        return pd.read_csv(tmp_path / "claims.csv", keep_default_na=False).iloc[0]

    assert judged()["reason"] == "no results of FedAvg with the settings of params.yaml"
    assert "no results of FedAvg with the settings" in (tmp_path / "report" / "index.html").read_text()
    for seed in range(3):
        write_plain(tmp_path, "fedavg", seed)
    assert (judged()["reason"], judged()["seeds"]) == ("", 3)
    for method, seed in product(("ditto", "fedavg"), range(3, 7)):  # more of them, of an earlier sweep
        write_run(tmp_path / "results", "p", method, seed)
    assert (judged()["reason"], judged()["seeds"]) == ("", 3)


def test_new_results_replace_what_follows_from_runs_and_keep_the_rest(tmp_path):
    (tmp_path / "params.yaml").write_text(PARAMS)
    for method in ("fedavg", "ditto"):
        for seed in range(3):
            write_plain(tmp_path, method, seed)
    check = "measure: local_accuracy, of: %s, above: [fedavg]"
    claims = [
        (CLAIM % check % of).replace("id: a", f"id: {name}")
        for name, of in {"a": "ditto", "k": "ifca", "n": "scaffold"}.items()
    ]
    held = '- {id: t, source: s, claim: d, test: "test_a.py::test_b"}\n'
    (tmp_path / "claims.yaml").write_text("".join(claims) + held)
    (tmp_path / "test_a.py").write_text("import pytest\n\n\n@pytest.mark.slow\ndef test_b(): ...\n")
    (tmp_path / RECORDED).write_text(
        "paper: P\nscale: small\nverdicts:\n"
        "- {id: hand, source: x, claim: y, verdict: not confirmed, seeds: 1}\n"
        "- {id: a, verdict: not resolved, ours: old, interval: old, planned: true, note: w, published: '1'}\n"
        "- {id: k, verdict: confirmed, ours: earlier, seeds: 3}\n"
        "- {id: t, ours: by hand}\n"
    )
    judged, *_ = judge(load_claims(tmp_path / "claims.yaml"), collect_runs(tmp_path / "results"))
    (result,) = judged.comparisons
    assert f"{result.means}; {result.span}; 3 seeds" == result.numbers
    for _ in range(2):  # the second time changes nothing
        assert CliRunner().invoke(app, ["report", "--verdicts", "--root", str(tmp_path)]).exit_code == 0
        found = {entry["id"]: entry for entry in read_yaml(tmp_path / RECORDED)["verdicts"]}
        assert list(found) == ["hand", "a", "k", "t", "n"]
        kept = {"planned": True, "note": "w", "published": "1", "was": "not resolved; other seeds"}
        new = {"verdict": judged.verdict, "ours": f"p: {result.means}", "interval": result.span, "seeds": 3}
        assert found["a"] == {"id": "a", "date": date.today().isoformat()} | kept | new
        assert found["k"] == {"id": "k", "verdict": "confirmed", "ours": "earlier", "seeds": 3}
        assert found["n"] == {"id": "n", "verdict": "not run"}
        assert found["t"] == {"id": "t", "ours": "by hand", "verdict": "held by a test"}
    (tmp_path / "claims.yaml").write_text(held.replace("test_b", "test_b test_a.py::test_c"))
    done = CliRunner().invoke(app, ["report", "--verdicts", "--root", str(tmp_path)])
    assert "claim t.test: 'test_a.py::test_c' is not accepted" in str(done.exception)
    rows = read_results(tmp_path)
    assert [(row["method"], row["seed"]) for row in rows] == list(product(("ditto", "fedavg"), "012"))
    values = [float(row["local_accuracy"]) for row in rows[:3]]
    assert values == pytest.approx([*result.values[0].stat.values.values()], abs=1e-6)
    assert rows[0]["registered"] == "ditto" and rows[0]["commit"] == "" and rows[0]["rounds"] == "20"


def test_results_have_what_claims_read_and_where_runs_were_made(tmp_path):
    for seed in (1, 0):
        write_run(tmp_path / "results", "p", "ditto", seed)
    text = CLAIM % "of: {method: ditto, measure: 'rounds_to(local_accuracy, %s)'}, within: [0, 9]"
    (tmp_path / "claims.yaml").write_text(text % 0.01 + (text % 1).replace("id: a", "id: k"))
    runs = collect_runs(tmp_path / "results")
    facts = {"end": 86400.0, "seconds": 12.3, "commit": "0123456789ab", "changed": True}
    key = ("p", "ditto", "1", runs[1].settings)
    recorded = {key: facts | {"lock": "ba9876543210", "processor": "Abacus"}}
    write_results(tmp_path, runs, load_claims(tmp_path / "claims.yaml"), recorded)
    first, second = read_results(tmp_path)
    assert float(second["rounds_to(local_accuracy, 0.01)"]) <= 20
    assert second["rounds_to(local_accuracy, 1)"] == "20+"
    made = ("date", "commit", "lock", "processor", "seconds")
    assert [second[name] for name in made] == ["1970-01-02", "01234567-dirty", "ba987654", "Abacus", "12"]
    assert [first[name] for name in made] == [""] * 5


def test_equal_code_stays_with_rows_of_runs_that_are_still_here(tmp_path):
    write_run(tmp_path / "results", "p", "ditto", 0)
    runs = collect_runs(tmp_path / "results")
    written = write_results(tmp_path, runs, [], {})
    written.write_text(pd.read_csv(written, dtype=str).assign(equal_code="abc").to_csv(index=False))
    write_results(tmp_path, runs, [], {})
    assert [row["equal_code"] for row in read_results(tmp_path)] == ["abc"]
    write_results(tmp_path, [replace(runs[0], metrics=runs[0].metrics | {"settings": "f" * 40})], [], {})
    assert "equal_code" not in read_results(tmp_path)[0]


def test_the_scale_is_that_of_the_table_which_the_source_names(tmp_path):
    scheme = ("label_skew", {"fraction": 0.2})
    for seed in range(3):
        write_run(tmp_path, "p", "pacfl", seed, dataset="fmnist", scheme=scheme)
    runs = collect_runs(tmp_path)

    def of(source: str, runs: list[Run] = runs) -> str:
        return scale([*matches(collect_runs(tmp_path))], runs, source)

    assert of("PACFL, Table 3.1").startswith("20 of 100 clients, participation 0.3, 20 of 200 rounds")
    assert of("PACFL, Tables 3.7 and 3.8") == of("Table 3.1")
    assert of("PACFL, claim 3.1") == of("PACFL, Table 3.10") == of("PACFL, Table 3.1", []) == ""
    assert of("PACFL, Figure 3.1") == ""


@pytest.mark.parametrize(
    ("sources", "settings", "expected"),
    [
        ("cifar10 fmnist svhn usps", {}, "full"),
        ("cifar10 usps emnist_letters", {}, "full, but data from cifar10, emnist_letters, usps"),
        ("cifar10 fmnist svhn usps", {"stop_at": {"metric": "all_accuracy", "value": 0.9}}, "full"),
        ("cifar10 fmnist svhn usps", {"rounds": 60}, "60 of 50 rounds"),
    ],
)
def test_other_data_are_no_smaller_scale(sources, settings, expected, tmp_path):
    """MIX-4 at the published size. A run that ends at a target has the rounds that it was given."""
    rounds = 30 if "stop_at" in settings else 50
    training = {"epochs": 5}
    sampling = {"rounds": 50, **settings}
    for seed in range(3):
        folder = write_run(
            tmp_path, "p", "pacfl", seed, settings.get("rounds", rounds), 100, dataset="mix4",
            scheme=("domains", {}), participation=0.1, training=training, sampling=sampling,
        )  # fmt: skip
        file = folder / "params.json"
        params = json.loads(file.read_text())
        params["data"]["mix4"] |= {"source": "mix", "parts": [{"source": name} for name in sources.split()]}
        file.write_text(json.dumps(params))
    runs = collect_runs(tmp_path)
    assert scale([*matches(runs)], runs, "PACFL, Table 3.11") == expected


@pytest.mark.parametrize(
    ("earlier", "was"),
    [
        ("verdict: not confirmed, seeds: 3, commit: abc", "not confirmed; other seeds"),
        ("verdict: not resolved, seeds: 5, commit: abc", "not resolved; other runs"),
        ("verdict: not resolved, seeds: 5, commit: a123", "not resolved; another claim or statistic"),
        ("verdict: not resolved, seeds: 5", "not resolved; other runs"),
        ("verdict: not resolved, seeds: 2", ""),  # a study that is run in parts
        ("verdict: confirmed, seeds: 3, was: not resolved; other seeds", "not resolved; other seeds"),
        (
            "verdict: not confirmed, seeds: 5, was: not resolved; other seeds",
            "not confirmed; other runs; before that, other seeds",
        ),
        ("verdict: not run", ""),
        ("verdict: not recorded, ours: '1'", ""),
    ],
)
def test_a_verdict_that_changes_names_the_earlier_one_and_the_cause(earlier, was, tmp_path):
    (tmp_path / "claims.yaml").write_text(CLAIM % "measure: loss, of: ditto, above: [fedavg]")
    claims = load_claims(tmp_path / "claims.yaml")
    losses = {"fedavg": [1.0] * 5, "ditto": [2.0, 2.1, 2.2, 2.3, 2.4]}
    runs = [run(name, seed, value) for name, of in losses.items() for seed, value in enumerate(of)]
    for one in runs:
        one.metrics["settings"] = ""
    fact = {"end": 0.0, "seconds": 1.0, "commit": "a123", "changed": False, "lock": "", "processor": ""}
    facts = {("p", one.method, str(one.seed), ""): fact for one in runs} if "a123" in earlier else {}
    (tmp_path / "verdicts.yaml").write_text(f"verdicts: [{{id: {claims[0].id}, {earlier}}}]\n")
    for _ in range(2):  # the same verdict again keeps it
        write_verdicts(tmp_path, judge(claims, runs), "2026-01-02", facts)
        (entry,) = read_verdicts(tmp_path).verdicts
        assert (entry.verdict, entry.was, entry.date) == ("confirmed", was, "2026-01-02")


def test_a_claim_that_is_partly_run_counts_its_comparisons(tmp_path):
    (tmp_path / "claims.yaml").write_text(CLAIM % f"all: [{OPEN}, {ABSENT}]")
    claims = load_claims(tmp_path / "claims.yaml")
    runs = [run(name, seed, seed) for name in ("low", "high") for seed in range(3)]
    for one in runs:
        one.metrics["settings"] = ""
    for earlier, ours in (("not run", "2 comparisons: 1 %s, 1 not run"), ("confirmed", "earlier")):
        (tmp_path / RECORDED).write_text(f"verdicts: [{{id: a, verdict: {earlier}, ours: earlier}}]\n")
        judged = judge(claims, runs)
        write_verdicts(tmp_path, judged, "2026-01-02", {})
        (entry,) = read_verdicts(tmp_path).verdicts
        expected = ours % judged[0].comparisons[0].verdict if "%" in ours else ours
        assert (entry.verdict, entry.ours) == (earlier, expected)


def test_comments_in_verdicts_are_kept(tmp_path):
    file = tmp_path / RECORDED
    file.write_text(
        "# of us\npaper: P\n# all\nverdicts:\n# first\n- id: a\n  ours: 'a # b'  # behind\n  # within\n"
        "  note: long\n# second\n- {id: b, note: '#1'}\n# end\n"
    )
    for _ in range(2):
        write_verdicts(tmp_path, [], "2026-01-02", {})
        lines = [line for line in file.read_text().splitlines() if "#" in line]
        assert lines[0] == HEAD.strip() and lines.count(lines[0]) == 1
        above = ["# of us", "# all", "# first", "# behind", "# within", "  ours: 'a # b'", "# second"]
        assert lines[1:] == [*above, "  note: '#1'", "# end"]
    assert [entry.ours for entry in read_verdicts(tmp_path).verdicts] == ["a # b", ""]
