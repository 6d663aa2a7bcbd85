"""The calibration section of the page: its table over clients and seeds, and a diagram per method."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from result_folders import write_run

from fedflow.report.page import build_report


def table(ranks: Sequence[Sequence[int]], confidence: float = 0.5) -> pd.DataFrame:
    """Predictions of clients 0, 1, .. with these ranks of their labels."""
    rows = [
        (client, sample, 2, 2, confidence, rank)
        for client, own in enumerate(ranks)
        for sample, rank in enumerate(own)
    ]
    return pd.DataFrame(rows, columns=["client", "sample", "label", "predicted", "confidence", "rank"])


def shown(root: Path) -> str:
    """The section of the page; empty without one."""
    page = build_report(root / "results", root / "partitions", root / "report").read_text()
    assert ('href="#calibration"' in page) == ('id="calibration"' in page)
    return page.partition('<section id="calibration">')[2].partition("</section>")[0]


def rows(section: str) -> dict[str, list[str]]:
    """The text of every cell by label of the method, with its spreads."""
    found = {}
    for row in re.findall("<tr>(.*?)</tr>", section, re.DOTALL)[1:]:
        label, *cells = re.findall("<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL)
        plain = [" ".join(re.sub("<[^>]*>", " ", cell).split()) for cell in (label, *cells)]
        found[plain[0]] = plain[1:]
    return found


def test_the_table_has_means_over_clients_and_seeds_and_the_std_over_clients(tmp_path):
    """Training batches of 2 cut the 3 samples of a client into two, of which the second is short."""
    write_run(
        tmp_path / "results",
        "p",
        "fedavg",
        0,
        training={"batch_size": 2},
        predictions=table([[1, 2, 1], [1, 1, 9]]),
    )
    write_run(
        tmp_path / "results",
        "p",
        "fedavg",
        1,
        training={"batch_size": 2},
        predictions=table([[1, 1, 1], [2, 2, 1]]),
    )
    write_run(
        tmp_path / "results",
        "p",
        "ditto",
        0,
        training={"batch_size": 0},
        predictions=table([[1, 1, 1], [1, 1, 1]], 0.75),
    )
    write_run(tmp_path / "results", "p", "local", 0)  # has kept none
    section = shown(tmp_path)
    headings = ["Top-1, %", "Top-5, %", "ECE, %", "MCE, %", "ECE by batch, %", "MCE by batch, %"]
    headings += ["Macro F1, %", "Balanced, %"]
    assert re.findall(r'title="[^"]+">([^<]*)<small>', section) == headings
    calibrated = ["25.0 ± 11.8 ± 8.3 over clients"] * 2
    assert rows(section) == {
        "Ditto": ["100.0 ± 0.0 over clients"] * 2
        + ["25.0 ± 0.0 over clients"] * 4
        + ["100.0 ± 0.0 over clients"] * 2,
        "FedAvg": [
            "66.7 ± 0.0 ± 16.7 over clients",
            "91.7 ± 11.8 ± 8.3 over clients",
            *calibrated,
            *["43.8 ± 8.8 ± 6.2 over clients"] * 2,
            *["100.0 ± 0.0 ± 0.0 over clients"] * 2,  # by label, not by rank
        ],
    }
    assert section.count('class="best"') == 12  # ECE and MCE tie, and the measures of classes
    assert re.findall("<h4>(.*?)</h4><svg", section) == ["Ditto", "FedAvg"]
    assert re.findall("<figcaption>(.*?)</figcaption>", section) == ["Seed 0.", "Seeds 0, 1."]


def test_without_kept_predictions_there_is_no_section_and_top_5_needs_a_wrong_answer(tmp_path):
    write_run(tmp_path / "results", "p", "local", 0)
    assert not shown(tmp_path)
    write_run(tmp_path / "results", "p", "fedavg", 0, predictions=table([[1, 2], [1, 1]]))
    section = shown(tmp_path)
    assert "Top-1, %" in section and "Top-5, %" not in section and 'class="best"' not in section


def test_diverged_seeds_are_left_out_and_a_method_without_others_has_a_dash(tmp_path):
    ranks = [[1, 2, 1, 9], [1, 2, 1, 1]]
    for method, confidences in (("fedavg", (np.nan, 0.5)), ("ditto", (np.nan, np.nan))):
        for seed, confidence in enumerate(confidences):
            predictions = table(ranks, confidence)
            write_run(tmp_path / "results", "p", method, seed, predictions=predictions)
    section = shown(tmp_path)
    found = rows(section)
    assert found["Ditto"][0].startswith("62.5 ±") and found["Ditto"][2:6] == ["–"] * 4
    assert found["FedAvg"][2:6] == ["12.5 ± 12.5 over clients, 1 of 2 seeds"] * 4
    assert re.findall(r"ECE [–\d][^<]*", section) == ["ECE –, MCE –", "ECE 12.5 %, MCE 12.5 %"]
