import json
import re
from base64 import b64encode
from functools import partial
from hashlib import sha256
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command import disk_of
from result_folders import METHODS, change, listed, write_partition, write_run
from support import refused

from fedflow.errors import FedflowError
from fedflow.finished.collect import collect_runs
from fedflow.pictures.clusters import FILLS
from fedflow.report.compared import LINES, grouped
from fedflow.report.page import build_report

POLICY = '<meta http-equiv="Content-Security-Policy" content="([^"]*)">'
SKEW = ("label_skew", {"fraction": 0.2})


def build(workplace: Path, out: str = "report") -> str:
    page = build_report(workplace / "results", workplace / "partitions", workplace / out)
    return page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A report of 3 methods x 2 partitions x 2 seeds, one partition with published numbers beside it."""
    root = tmp_path_factory.mktemp("built")
    for seed in (0, 1):
        for method in ("fedavg", "local", "ifca"):
            write_run(root / "results", "mnist5k-groups", method, seed)
            write_run(root / "results", "skew", method, seed, groups=False, dataset="cifar10", scheme=SKEW)
    write_partition(root / "partitions", "mnist5k-groups", scheme="label_groups", groups=2)
    write_partition(root / "partitions", "skew", scheme="label_skew", fraction=0.2, dataset="cifar10")
    return root, build(root)


def test_page_asks_nothing_of_a_network(built):
    page = built[1]
    assert not re.findall(r"https?://|@import|url\((?!#)", page)
    assert all(link.startswith(("#", "data:")) for link in re.findall(r'(?:src|href)="([^"]*)"', page))


def test_the_policy_names_all_scripts_and_style_sheets_of_the_page(built):
    page, kinds = built[1], {"script": "script-src", "style": "style-src-elem"}
    policy = dict(rule.strip().split(" ", 1) for rule in re.search(POLICY, page)[1].split(";"))
    for element, rule in kinds.items():
        (text,) = re.findall(rf"<{element}\b[^>]*>(.*?)</{element}>", page, flags=re.DOTALL)
        assert policy.pop(rule) == f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
    assert policy == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_page_has_no_id_twice(built):
    ids = re.findall(r'\bid="([^"]+)"', built[1])
    assert len(ids) == len(set(ids))
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', built[1])
    assert set(used) <= set(ids)


def test_equal_inputs_give_equal_bytes(built):
    root, page = built
    assert build(root, "again") == page
    for first in sorted((root / "report").iterdir()):
        assert first.read_bytes() == (root / "again" / first.name).read_bytes(), first.name


def test_figures_take_their_colors_from_the_page(built):
    drawn = "".join(re.findall(r"<svg.*?</svg>", built[1], flags=re.DOTALL))
    assert "var(--s0)" in drawn and "var(--ink)" in drawn
    fixed = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", drawn))
    assert fixed <= set(FILLS)  # clusters keep theirs, as on matrices, which are images
    assert "DejaVu" not in drawn


def test_tables_hold_mean_and_sample_std_over_seeds(built):
    root = built[0]
    runs = [json.loads(p.read_text()) for p in root.glob("results/skew/ifca/*/metrics.json")]
    metrics = {"accuracy": "global_accuracy", "fairness": "local_gini", "traffic": "bytes_down"}
    for name, metric in (metrics | {"clusters": "clusters"}).items():
        table = pd.read_csv(root / "report" / f"{name}.csv").set_index(["partition", "method", "metric"])
        row, values = table.loc[("skew", "ifca", metric)], [run[metric] for run in runs]
        expected = [np.mean(values), np.std(values, ddof=1)]  # nine digits are written
        np.testing.assert_allclose([row["mean"], row["std"]], expected, rtol=1e-8)
        assert row["seeds"] == 2


def test_runs_table_has_a_row_per_run(built):
    table = pd.read_csv(built[0] / "report" / "runs.csv")
    assert len(table) == 12 and table["bytes_down"].dtype == np.int64


def test_published_numbers_stand_beside_their_partition_only(built):
    accuracy = built[1].split('id="accuracy"')[1].split('id="curves"')[0]
    before, beside = accuracy.split("<h3>skew")
    assert "Published" not in before
    assert "49.8" in beside and "SOLO" in beside and "IFCA" in beside and "label skew 20 %" in beside


def test_published_tables_have_our_numbers_in_their_cells(built):
    root, page = built
    section = page.split('<section id="published">')[1].split("</section>")[0]
    table = section.split("<h3>Tables 3.1 and 3.8")[1].split("<h3>")[0]
    runs = [json.loads(p.read_text()) for p in root.glob("results/skew/fedavg/*/metrics.json")]
    values = [100 * run["global_accuracy"] for run in runs]
    ours = f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}<small>2 seeds"
    row = re.search(r'<tr><th scope="row">CIFAR-10<small>skew</small>.*?</tr>', table, flags=re.DOTALL)[0]
    assert re.search(r"<td>49.8 ± 3.3<sup>1</sup><span class=.ours.>" + re.escape(ours), row)
    assert row.count("not run") == 12 - 2  # FedAvg and SOLO; IFCA has other settings than theirs
    assert "NIID-Bench" in table and "clients 20 here, 100 there" in table
    assert "rounds 20 here, 200 there" in table and "seeds 2 here, 3 there" in table
    assert "Table 2.1" not in section


def test_without_a_matching_table_the_page_names_the_data_of_the_books(tmp_path):
    write_run(tmp_path / "results", "p", "fedavg", 0)
    page = build(tmp_path)
    assert 'id="published"' not in page and '"#published"' not in page
    (line,) = re.findall(r"There are published numbers for (.*?)\.</p>", page)
    assert {"CIFAR-10", "MNIST", "Fashion-MNIST", "FedDyn&#39;s convex problem"} <= set(line.split(", "))


def test_a_partition_shows_how_its_groups_were_found(tmp_path):
    """Four pictures where the server compares clients, then those of methods that only assign them."""
    for method in ("fedavg", "ifca", "pacfl"):
        write_run(tmp_path / "results", "p", method, 3)
    write_run(tmp_path / "results", "q", "fedavg", 3)
    write_run(tmp_path / "results", "r", "fedavg", 3, groups=False)
    section = build(tmp_path).split('<section id="groups">')[1].split("</section>")[0]
    clustered, other = section.split(">q<small>")
    assert re.findall(r"<h4>(.*?)</h4>", clustered) == [
        "ARI by round",
        "pacfl, seed 3: assignment by round",
        "pacfl, seed 3: clients that changed cluster",
        "pacfl, seed 3: dissimilarity",
        "pacfl, seed 3: embedding",
        "IFCA, seed 3: assignment by round",
        "IFCA, seed 3: clients that changed cluster",
    ]
    assert clustered.count("<svg") == 7 and "cut at 20" in clustered and "angle, degrees" in clustered
    assert "2 planted groups of 10 clients" in clustered and "Clustering error" in clustered
    assert "None of these methods serves clusters" in other and "<h3>r" not in section


def test_a_partition_by_difficulty_shows_how_hard_its_clients_are(tmp_path):
    for name, hard in (("easy", False), ("hard", True)):
        write_run(tmp_path / "results", name, "fedavg", 0)
        write_partition(tmp_path / "partitions", name, scheme="iid", difficulty=hard)
    shown = build(tmp_path).split('<section id="data">')[1].split("</section>")[0]
    assert re.findall("<h4>(.*?)</h4>", shown) == ["easy: labels", "hard: labels", "hard: difficulty"]
    stds = "within a client 0.018 (mean over clients), of the means of clients 0.499."
    assert shown.count("<figcaption>") == 1 and stds in shown


def test_an_assignment_that_never_changes_is_a_sentence(tmp_path):
    folder = write_run(tmp_path / "results", "p", "ifca", 3)
    found = [0, 1] * 9 + [2, 0]
    change(
        folder / "clusters.json",
        history=[{"round": 2, "assignment": found}, {"round": 6, "assignment": found}],
    )
    section = build(tmp_path).split('<section id="groups">')[1].split("</section>")[0]
    assert "IFCA, seed 3: 3 clusters of 10, 9 and 1 clients, the same from round 2 on." in section
    assert (
        re.findall(r"<h4>(.*?)</h4>", section) == ["ARI by round"]
        and '<div class="panels three">' not in section
    )


def test_accuracies_are_also_drawn_from_0_to_100(built):
    section = built[1].split('<section id="curves">')[1].split("</section>")[0]
    for zoomed, full in re.findall(
        r'<div class="zoomed">(.*?)</div><div class="full" hidden>(.*?)</div>', section, re.S
    ):
        ticks = [re.findall(r"<text[^>]*>(\d+)</text>", drawn) for drawn in (zoomed, full)]
        assert {"0", "100"} <= set(ticks[1]) and not {"0", "100"} <= set(ticks[0])
        assert all("IFCA" in drawn for drawn in (zoomed, full))
    assert section.count('class="full" hidden') == section.count("<figure")


def test_best_mean_is_bold(built):
    table = pd.read_csv(built[0] / "report" / "accuracy.csv")
    means = table[(table["partition"] == "skew") & (table["metric"] == "local_accuracy")]["mean"]
    accuracy = built[1].split('id="accuracy"')[1].split('id="curves"')[0].split("<h3>skew")[1]
    bold = re.findall(r'class="best">([\d.]+)', accuracy)
    assert f"{100 * means.max():.1f}" in bold


def test_every_method_is_named_at_its_line(built):
    curve = re.search(r'<svg[^>]*aria-label="local accuracy by round".*?</svg>', built[1], flags=re.DOTALL)
    assert all(f">{METHODS[name]}</text>" in curve[0] for name in ("fedavg", "local", "ifca"))


def test_newcomers_have_columns_where_there_are_some(tmp_path):
    write_run(tmp_path / "results", "late", "fedavg", 0, newcomers=3)
    write_run(tmp_path / "results", "plain", "fedavg", 0)
    page = build(tmp_path)
    late, plain = page.split('id="accuracy"')[1].split('id="curves"')[0].split("<h3>plain")
    assert "Newcomers, %" in late and "71.0" in late and "Newcomers, tuned, %" in late and "84.0" in late
    assert "Newcomers" not in plain
    runs = pd.read_csv(tmp_path / "report" / "runs.csv").set_index("partition")
    assert runs.loc["late", "newcomer_accuracy"] == 0.71 and np.isnan(runs.loc["plain", "newcomer_accuracy"])
    write_run(tmp_path / "other" / "results", "plain", "fedavg", 0)
    build(tmp_path / "other")
    assert "newcomer_accuracy" not in pd.read_csv(tmp_path / "other" / "report" / "runs.csv")


def test_diagnostics_of_methods_have_curves_and_columns(tmp_path):
    names = ["client/alpha/max", "client/alpha/mean", "method/entropy"]
    for seed in (0, 1):
        write_run(tmp_path / "results", "p", "ditto", seed, diagnostics=names)
        write_run(tmp_path / "results", "p", "fedavg", seed)
    page = build(tmp_path)
    section = page.split("<summary>Diagnostics of Ditto</summary>")[1].split("</details>")[0]
    assert re.findall(r"<h4><code>(.*?)</code>", section) == names[1:] and section.count("<svg") == 2
    assert re.search(r"In the last round: 0\.\d{4} ±", section) and "Diagnostics of FedAvg" not in page
    runs = pd.read_csv(tmp_path / "report" / "runs.csv").set_index("method")
    assert list(runs)[-3:] == names and runs.loc["fedavg", names].isna().all(axis=None)


def test_diagnostics_over_clients_are_drawn_as_lines_or_as_rows(tmp_path):
    values = np.random.default_rng(0).random((20, 150))
    values[values < 0.3] = np.nan
    for name, clients in (("few", 12), ("many", 150)):
        given = {"clients": clients, "series": {"method/p": values[:, : min(clients, 100)]}}
        write_run(tmp_path / "results", name, "ditto", 3, **given)
        write_run(tmp_path / "results", name, "ditto", 4, clients=clients)
    sections = build(tmp_path).split("<summary>Diagnostics of Ditto</summary>")[1:]
    few, many = (section.split("</details>")[0] for section in sections)
    for section in (few, many):
        assert re.findall(r"<h4><code>(.*?)</code>", section) == ["method/p"] and section.count("<svg") == 1
    assert {f">client {k}<" for k in range(12)} <= {*re.findall(">client [0-9]+<", few)} and "Seed 3." in few
    assert "<image" in many and "client 1<" not in many
    assert "Seed 3, the first 100 of 150 clients." in many


@pytest.mark.parametrize("clients", [1, 13])
@pytest.mark.parametrize("value", [pytest.param(1.0, marks=pytest.mark.full), -2.5, np.inf])
def test_a_single_number_or_none_can_be_drawn(tmp_path, clients, value):
    series = {"method/p": np.full((1, clients), value)}
    write_run(tmp_path / "results", "p", "ditto", 0, rounds=1, clients=clients, series=series)
    assert build(tmp_path).count("<h4><code>method/p") == 1


def test_names_are_escaped(tmp_path):
    write_run(tmp_path / "results", "p", "fedavg", 0, label="<b>Fed & $x_1$</b>")
    page = build(tmp_path)
    assert "<b>" not in page and "$x_1$" in page
    assert "&lt;b&gt;Fed &amp; $x_1$" in page


def test_one_run_without_partition_folder_makes_a_page(tmp_path):
    write_run(tmp_path / "results", "p", "local", 3)
    page = build(tmp_path)
    assert "1 run: 1 method, 1 partition, 1 seed." in page and "from 1 result folder." in page
    assert "The only method." in page and "one seed does not show how much results vary" in page


def test_run_without_optional_metrics_makes_a_page(tmp_path):
    folder = write_run(tmp_path / "results", "p", "fedavg", 0, groups=False)
    optional = "tuned_accuracy local_final_accuracy target_accuracy rounds_to_target bytes_to_target"
    change(folder / "metrics.json", **dict.fromkeys(optional.split()))
    page = build(tmp_path)
    assert "After fine-tuning, %" not in page and "Least traffic" not in page


@pytest.mark.parametrize("name", ["local_accuracy", "global_accuracy", "local_best10", "target_accuracy"])
def test_an_absent_metric_is_one_that_was_not_measured(tmp_path, name):
    path = write_run(tmp_path / "results", "p", "fedavg", 0) / "metrics.json"
    metrics = json.loads(path.read_text())
    path.write_text(json.dumps(metrics | {name: None}))
    page = build(tmp_path)
    path.write_text(json.dumps({key: value for key, value in metrics.items() if key != name}))
    assert build(tmp_path) == page


def test_a_regression_is_ordered_by_its_loss(tmp_path):
    for method, loss in (("fedavg", 1.25), ("ifca", 0.0125)):
        folder = write_run(tmp_path / "results", "p", method, 0)
        metrics = json.loads((folder / "metrics.json").read_text())
        absent = [name for name in metrics if "accuracy" in name or name.startswith("local_")]
        change(folder / "metrics.json", **dict.fromkeys(absent), loss=loss)
        for name, read, write in (
            ("rounds.csv", pd.read_csv, partial(pd.DataFrame.to_csv, index=False)),
            ("clients.parquet", pd.read_parquet, pd.DataFrame.to_parquet),
        ):
            table = read(folder / name)
            write(table.assign(**{c: np.nan for c in table if "local" in c or "global" in c}), folder / name)
    page = build(tmp_path)
    assert "Smallest loss of the clients" in page and "1.24 ahead of FedAvg" in page
    assert "0.0125" in page and "Best for the clients" not in page
    assert page.index('data-sort="IFCA"') < page.index('data-sort="FedAvg"')
    write_run(tmp_path / "results", "q", "fedavg", 0)
    write_run(tmp_path / "results", "q", "ditto", 0)
    assert "On the clients&#39; own test sets, Ditto is ahead (one seed) on q." in build(tmp_path)


def test_unlike_runs_and_missing_seeds_are_noted(tmp_path):
    for method, seed in (("fedavg", 0), ("fedavg", 1), ("ditto", 1), ("local", 0), ("local", 1)):
        write_run(tmp_path / "results", "p", method, seed)
    change(tmp_path / "results" / "p" / "fedavg" / "1" / "metrics.json", data_hash="other")
    page = build(tmp_path)
    assert "Not all rows have the same data: 5f2c9e01, but other for FedAvg · data other." in page
    lacking = re.findall("No result for seed .*?: .*?\\.", page)
    wanted = ["No result for seed 0: Ditto and FedAvg · data other.", "No result for seed 1: FedAvg."]
    assert sorted(lacking) == wanted


def test_runs_that_stopped_in_different_rounds_are_noted(tmp_path):
    stop = {"stop_at": {"metric": "local_accuracy", "value": 0.5}}
    for seed, rounds in enumerate((3, 8, 4)):
        folder = write_run(tmp_path / "results", "p", "fedavg", seed, rounds=rounds, sampling=stop)
        params = json.loads((folder / "params.json").read_text())
        change(folder / "params.json", settings="same", run=params["run"] | {"rounds": 8})
        change(folder / "metrics.json", settings="same")
    page = build(tmp_path)
    assert "20 clients, 3 to 8 rounds" in page and "3 to 8 rounds, at most 8, until" in page
    assert "Runs stopped after 3 to 8 rounds: their final accuracies are not comparable." in page


def test_curve_says_which_methods_it_lacks(tmp_path):
    write_run(tmp_path / "results", "p", "fedavg", 0)
    path = write_run(tmp_path / "results", "p", "ditto", 0) / "rounds.csv"
    pd.read_csv(path).assign(global_accuracy=np.nan).to_csv(path, index=False)
    assert "Measured at the end only: Ditto." in build(tmp_path)


@pytest.mark.parametrize(("times", "shown"), [((2, 3), True), ((2, 2), False), ((None, 2), False)])
def test_simulated_time_is_drawn_where_methods_differ_in_it(tmp_path, times, shown):
    for method, time in zip(("fedavg", "scaffold"), times, strict=True):
        write_run(tmp_path / "results", "p", method, 0, time=time)
    assert ("<h4>Local accuracy by simulated time</h4>" in build(tmp_path)) is shown


def test_mixtures_of_all_methods_are_one_picture(tmp_path):
    """Of those that have any; calibration too, where it was measured."""
    shares = np.linspace(0, 1, 11)
    for method in ("fedavg", "apfl", "superfed"):
        for seed in range(2):
            folder = write_run(tmp_path / "results", "p", method, seed, label=method.upper())
            if method != "fedavg":
                scores = {"accuracy": 0.9 - (shares - 0.4) ** 2, "loss": 1.0, "mce": np.nan, "samples": 9}
                scores["ece"] = 0.1 if seed else np.nan
                tables = [pd.DataFrame({"client": k, "value": shares} | scores) for k in range(3)]
                pd.concat(tables).to_parquet(folder / "sweep.parquet", index=False)
                listed(folder)
    page = build(tmp_path)
    picture = page.split("<h4>Local accuracy by λ</h4>")[1].split("</figure>")[0]
    assert "APFL" in picture and "SUPERFED" in picture and "FEDAVG" not in picture
    curves = {int(number) for number in re.findall(r'-local_accuracy-round-line-(\d+)"', page)}
    hidden = {int(number) for number in re.findall(r'line-(\d+)"', picture)}
    assert len(hidden) == 2 and hidden < curves  # the switch of a method hides these too
    assert "<h4>ECE by λ</h4>" not in page  # one seed has none
    (folder / "sweep.parquet").write_bytes(b"half")
    with refused(r"sweep.parquet", FedflowError):
        build(tmp_path)


@pytest.mark.full
def test_more_methods_than_colors_stay_apart(tmp_path):
    for place in range(16):
        write_run(tmp_path / "results", "p", f"m{place:02}", 0)
    page = build(tmp_path)
    assert 'swatch d2" style="border-color: var(--s1)' in page


def test_unwritable_folder_is_one_line(tmp_path):
    write_run(tmp_path / "results", "p", "fedavg", 0)
    (tmp_path / "report").write_text("a file")
    with refused(r"cannot write the report to .*report", FedflowError):
        build(tmp_path)


def test_a_full_disk_and_a_linked_copy_leave_the_earlier_page(tmp_path):
    """DVC may link outputs to its cache."""
    write_run(tmp_path / "results", "p", "fedavg", 0)
    page, cached = build(tmp_path), tmp_path / "cached"
    cached.hardlink_to(tmp_path / "report" / "index.html")
    write_run(tmp_path / "results", "p", "ditto", 0)
    with disk_of(30_000), refused(r"cannot write the report to .*report: File too large", FedflowError):
        build(tmp_path)
    assert (tmp_path / "report" / "index.html").read_text() == page
    assert build(tmp_path) != page == cached.read_text()


def test_curves_have_a_row_per_evaluated_round(built):
    table = pd.read_csv(built[0] / "report" / "accuracy_curves.csv")
    assert list(table) == ["partition", "method", "seed", "round", "local_accuracy", "global_accuracy"]
    assert len(table) == 2 * 3 * 2 * 10 and table.notna().all(axis=None)


def test_a_partition_with_many_methods_draws_the_best_and_says_so(tmp_path):
    """Tables have all of them."""
    for number in range(LINES + 1):
        write_run(tmp_path / "results", "p", "fedavg", 0, plain=False, rounds=4, mu=number / 100)
    page = build(tmp_path)
    assert f"Drawn: the {LINES} best of {LINES + 1} methods." in page
    shown = page.partition('<section id="fairness">')[2].partition("</section>")[0]
    assert shown.count("<tr>") - 1 == LINES + 1
    lines = set(re.findall(r'id="pp-local_accuracy-round-line-(\d+)"', page))
    assert lines == {str(number) for number in range(LINES)}  # no color and dash twice


def test_methods_of_different_partitions_do_not_share_a_look_in_a_picture(tmp_path):
    """More methods than looks in all, and fewer in each picture."""
    for partition, number in product("pqr", range(LINES // 2)):
        write_run(tmp_path, partition, f"{partition}{number:02}", 0, rounds=2)
    for partition, number in product("pqr", range(4)):
        write_run(tmp_path, partition, f"all{number}", 0, rounds=2)
    for partition in grouped(collect_runs(tmp_path)).partitions:
        looks = {partition.colors[variant] % LINES for variant in partition.methods}
        assert len(looks) == len(partition.methods) == 4 + LINES // 2


def test_outdated_runs_are_marked(tmp_path):
    for method in ("fedavg", "ditto"):
        write_run(tmp_path / "results", "p", method, 0)
    facts = json.loads((tmp_path / "results" / "p" / "ditto" / "0" / "metrics.json").read_text())
    now = {"p/fedavg": ("other", "code"), "p/ditto": (facts["settings"], "code")}
    folders = [tmp_path / name for name in ("results", "partitions", "report")]
    page = build_report(*folders, now=now).read_text(encoding="utf-8")
    assert "Outdated (settings changed): 1 run of FedAvg." in page and page.count("Outdated (") == 1
