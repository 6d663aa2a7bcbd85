"""The paired bootstrap of a difference: coverage, pairing, seeds, and what it leaves out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from result_folders import write_run

from fedflow.finished.bootstrap import apart, difference
from fedflow.finished.collect import collect_runs
from fedflow.finished.pairs import SHOWN, differences, limits, pair_table, write_pairs
from fedflow.finished.run import Run
from fedflow.finished.tables import Stat, by_method
from fedflow.report.page import build_report
from fedflow.report.paper import latex, write_paper
from fedflow.report.sections.findings import findings


@pytest.fixture
def run(tmp_path: Path) -> Run:
    write_run(tmp_path, "p", "fedavg", 0)
    (made,) = collect_runs(tmp_path)
    return made


def interval(one: list[Run], other: list[Run], measure: str) -> tuple[float, float] | None:
    found = difference(one, other, measure)
    return found.interval if found is not None else None


def with_scores(run: Run, seed: int, values: np.ndarray) -> Run:
    clients = pd.DataFrame({"client": np.arange(len(values)), "local_accuracy": values})
    return replace(run, clients=clients, metrics=run.metrics | {"seed": seed})


def test_an_interval_has_the_width_of_the_normal_one(run: Run) -> None:
    """Of one seed and many clients: mean ± 1.96 standard errors of the differences."""
    rng = np.random.default_rng(0)
    base = rng.uniform(0, 1, 400)
    step = rng.normal(0.02, 0.1, 400)
    found = interval([with_scores(run, 0, base + step)], [with_scores(run, 0, base)], "local_accuracy")
    error = step.std() / 20
    assert found == pytest.approx((step.mean() - 1.96 * error, step.mean() + 1.96 * error), abs=0.1 * error)
    assert found == interval(
        [with_scores(run, 0, base + step)], [with_scores(run, 0, base)], "local_accuracy"
    )


def test_seeds_that_disagree_widen_it(run: Run) -> None:
    rng = np.random.default_rng(1)
    base = rng.uniform(0, 1, 100)
    far = [with_scores(run, seed, base + gain) for seed, gain in enumerate((0.0, 0.1, 0.2))]
    near = [with_scores(run, seed, base + 0.1) for seed in range(3)]
    other = [with_scores(run, seed, base) for seed in (2, 0, 1)]  # paired by seed, not by place
    low, high = interval(far, other, "local_accuracy") or (0, 0)
    assert low < 0.05 and high > 0.15
    assert interval(near, other, "local_accuracy") == pytest.approx((0.1, 0.1))


def test_only_what_both_measured_counts(run: Run) -> None:
    one, other = np.array([0.5, 0.7, np.nan]), np.array([0.4, np.nan, 0.2])
    assert interval([with_scores(run, 0, one)], [with_scores(run, 1, other)], "local_accuracy") is None
    assert interval([with_scores(run, 0, one)], [with_scores(run, 0, other)], "local_accuracy") is None


@pytest.mark.parametrize(("seeds", "words"), [(1, "one seed"), (2, "two seeds")])
def test_fewer_than_three_seeds_have_no_interval(tmp_path: Path, seeds: int, words: str) -> None:
    for seed in range(seeds):
        for method in ("fedavg", "ditto"):
            write_run(tmp_path, "p", method, seed)
    methods = by_method(collect_runs(tmp_path))
    details = [one.detail for one in findings(methods) if one.question.startswith("Best")]
    few = f" {words.capitalize()}: too few for a reliable interval."
    assert len(details) == 3 and all(detail.endswith(few) and "[" not in detail for detail in details)
    whole = differences(methods)["global_accuracy"]  # all clients alike: Student's, over seeds
    assert not any(cell.spread for row in pair_table(methods, whole).rows for cell in row.cells)
    page = build_report(tmp_path, tmp_path / "partitions", tmp_path / "report").read_text()
    assert f"<h4>Global accuracy, points<small>{words}: no interval</small></h4>" in page
    table = pd.read_csv(tmp_path / "report" / "pairs.csv").set_index("measure").loc[["global_accuracy"]]
    assert table[["low", "high", "interval"]].isna().all(axis=None) and table["difference"].notna().all()
    write_paper(collect_runs(tmp_path), tmp_path / "paper")
    comment = (tmp_path / "paper" / "p-pairs-global_accuracy.tex").read_text().splitlines()[0]
    assert comment.endswith(f"; {words}: no interval")


def test_the_finding_says_it(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        for method in ("fedavg", "ditto"):
            write_run(tmp_path, "p", method, seed)
    methods = by_method(collect_runs(tmp_path))
    found = {finding.question: finding.detail for finding in findings(methods)}
    low, high = interval(methods["ditto"], methods["fedavg"], "local_accuracy") or (0, 0)
    assert found["Best for the clients"].endswith(
        f"Paired bootstrap over seeds and clients, 95 %: [{100 * low:.1f}, {100 * high:.1f}] points."
    )
    asked = ("Best for the clients", "Best on the complete test set", "Best for the worst-served 10 %")
    assert all(", 95 %: [" in found[question] for question in asked)
    assert "Student's t over seeds, 95 %" in found["Best on the complete test set"]


def test_the_worst_tenth_is_drawn_with_its_own_clients(run: Run) -> None:
    """Only the worst tenth differs, by 0.1: the mean by a tenth of it."""
    base = np.linspace(0.5, 1, 200)
    better = [with_scores(run, seed, np.where(base < base[20], base + 0.1, base)) for seed in range(3)]
    other = [with_scores(run, seed, base) for seed in range(3)]
    found = difference(better, other, "local_worst10")
    lowest = np.sort(better[0].clients["local_accuracy"])[:20].mean() - base[:20].mean()
    assert found is not None and found.mean == pytest.approx(lowest)
    assert found.interval is not None
    assert 0 < found.interval[0] < found.mean < found.interval[1]
    mean = difference(better, other, "local_accuracy")
    assert mean is not None and mean.mean == pytest.approx(0.01)


def test_a_global_model_varies_with_the_seed_only(run: Run) -> None:
    def scored(seed: int, value: float) -> Run:
        clients = pd.DataFrame({"client": range(5), "global_accuracy": value})
        return replace(run, clients=clients, metrics=run.metrics | {"seed": seed})

    other = [scored(seed, 0.5) for seed in range(3)]
    alone = difference([scored(0, 0.6)], other, "global_accuracy")
    assert alone is not None and alone.mean == pytest.approx(0.1) and alone.interval is None
    for gains, half in {(0.1, 0.2, 0.3): 0.2484, (0.19, 0.2, 0.21): 0.02484}.items():  # 4.303 std / sqrt(3)
        one = [scored(seed, 0.5 + gain) for seed, gain in enumerate(gains)]
        found = difference(one, other, "global_accuracy")
        assert found is not None and found.origin == "Student's t over seeds"
        assert found.interval == pytest.approx((0.2 - half, 0.2 + half), abs=1e-4)
        assert found.significant is (half < 0.2)


def test_two_seeds_make_nothing_certain(run: Run) -> None:
    """Of two, an interval excludes 0 whenever both have the same sign: every other time by chance."""
    base = np.linspace(0.3, 0.6, 50)
    for seeds, certain in ((2, False), (3, True)):
        one = [with_scores(run, seed, base + 0.1 + 0.01 * (seed + 1) * base) for seed in range(seeds)]
        found = difference(one, [with_scores(run, seed, base) for seed in range(seeds)], "local_accuracy")
        assert found is not None and found.interval is not None and found.interval[0] > 0.1
        assert found.origin == "paired bootstrap over seeds and clients" and found.significant is certain


@pytest.mark.parametrize("part", ["data_hash", "partition_hash"])
def test_clients_of_other_data_are_not_paired(run: Run, part: str) -> None:
    one, other = (with_scores(run, 0, np.array([0.4, 0.6]) + gain) for gain in (0.1, 0.0))
    assert difference([one], [other], "local_accuracy") is not None
    elsewhere = replace(other, metrics=other.metrics | {part: "another"})
    assert difference([one], [elsewhere], "local_accuracy") is None


def test_pairs_are_antisymmetric_and_bold_where_the_interval_excludes_0(run: Run, tmp_path: Path) -> None:
    rng, base = np.random.default_rng(2), np.linspace(0.4, 0.7, 60)
    methods: dict[str, list[Run]] = {}
    for name, gain in {"a": 0.2, "b": 0.0, "c": 0.001}.items():
        methods[name] = []
        for seed in range(3):
            scores = base + gain + rng.normal(0, 0.02, 60)
            made = with_scores(run, seed, scores)
            facts = made.metrics | {"local_accuracy": scores.mean(), "local_worst10": None}
            methods[name].append(replace(made, variant=name, label=name.upper(), metrics=facts))
    known = differences(methods)
    assert list(known) == ["local_accuracy"]  # clients have no other here
    table = pair_table(methods, known["local_accuracy"])
    names = [row.label for row in table.rows]
    assert names[0] == "A" and [name for name, *_ in table.columns] == names
    cells = {(row.label, name): cell for row in table.rows for name, cell in zip(names, row.cells)}
    assert all(cells[name, name].text == "" for name in names)
    assert (
        cells["A", "B"].text.startswith("+") and cells["B", "A"].text == f"\u2212{cells['A', 'B'].text[1:]}"
    )
    bold = {pair for pair, cell in cells.items() if cell.best}
    assert bold == {("A", "B"), ("A", "C"), ("B", "A"), ("C", "A")}
    of_p = [each for runs in methods.values() for each in runs]
    of_q = [
        replace(each, label=f"{each.label} of q", metrics=each.metrics | {"partition": "q"}) for each in of_p
    ]
    write_pairs([*of_p, *of_q], {of_p[0].partition: known}, tmp_path / "pairs.csv")
    rows = pd.read_csv(tmp_path / "pairs.csv").set_index(["label", "other_label"])["difference"].to_dict()
    assert len(rows) == 3 and cells["A", "B"].text == f"{100 * rows['A', 'B']:+.1f}"
    assert r"\textbf{$-$" in latex(table)


def test_no_pair_is_bold_that_a_claim_would_not_resolve(run: Run) -> None:
    """The bootstrap of three seeds excludes 0, Student's t does not; nor does it among many other pairs."""
    base = np.linspace(0.3, 0.6, 50)
    other = [with_scores(run, seed, base) for seed in range(3)]
    found = difference(
        [with_scores(run, seed, base + gain + 0.01 * base) for seed, gain in enumerate((0.1, 0.2, 0.3))],
        other,
        "local_accuracy",
    )
    assert found is not None and found.interval is not None and found.interval[0] > 0.05
    assert not found.significant
    gains = Stat({0: 0.2, 1: 0.25, 2: 0.33})
    assert apart([gains]) == [True]
    assert apart([gains, *[Stat({0: -0.05, 1: 0.0, 2: 0.06})] * 9]) == [False] * 10
    assert apart([gains, Stat({0: 0.3})]) == [True, False]  # one seed counts for nothing


@pytest.mark.parametrize("same", [0.0, 0.3])
def test_a_pair_without_spread_makes_no_other_pair_certain(same: float) -> None:
    """It has no p-value; as 0, it would lower the adjusted p-values of others."""
    gains = [Stat(dict(enumerate(mean + np.arange(-2.0, 3)))) for mean in (2.5, 2.5, 0.5, 0.5, 0.4)]
    assert apart([*gains, Stat(dict.fromkeys(range(5), same))]) == [False] * 6


def test_a_table_of_pairs_says_how_many_methods_it_lacks(run: Run) -> None:
    methods = {}
    for number in range(SHOWN + 3):
        scored = with_scores(run, 0, np.array([0.25, 0.5]) + number / 64)
        facts = scored.metrics | {"local_accuracy": 0.375 + number / 64}
        methods[f"m{number}"] = [replace(scored, label=f"M{number}", metrics=facts)]
    words = f"the {SHOWN} best of {SHOWN + 3} methods"
    assert limits(methods, "local_accuracy", {}) == words
    single = differences(methods)["local_accuracy"]  # all clients differ alike
    assert limits(methods, "local_accuracy", single) == f"{words}; one seed: no interval"
