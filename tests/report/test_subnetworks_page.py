"""The sections of the page on pruning and on levels, and measures of masks."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from result_folders import change, write_run
from support import refused

from fedflow.claims.claims import load_claims
from fedflow.claims.measures import measure
from fedflow.claims.targets import NotMeasured
from fedflow.claims.verdicts import judge
from fedflow.errors import FedflowError
from fedflow.finished.collect import collect_runs
from fedflow.finished.features import masks
from fedflow.report.page import build_report
from fedflow.report.sections.levels import _with_targets
from fedflow.simulation.extensions.recording import FILE, ClientVectors

CLIENTS, ROUNDS = 6, 4
LABELS = np.eye(3, dtype=bool)[np.arange(CLIENTS) % 3]  # one label each


def vectors(labels: np.ndarray | None = LABELS) -> ClientVectors:
    """Clients of the same label have the same mask of 12 entries; those of other labels share 2 of 6."""
    rows = torch.ones(3, 12, dtype=torch.bool)
    for group in range(3):
        rows[group, 2:] = torch.arange(10) // 2 == group
    return ClientVectors([{"mask": rows[k % 3]} for k in range(CLIENTS)], {"a.w": 4, "b.w": 8}, labels)


def shares() -> dict[str, np.ndarray]:
    steps = np.linspace(0.1, 0.4, ROUNDS)[:, None] * np.ones(CLIENTS)
    return {"client/pruned": steps, "client/gate_kept": 1 - steps}


def write(root: Path, method: str, seed: int = 0, **options: object) -> Path:
    folder = write_run(root / "results", "p", method, seed, ROUNDS, CLIENTS, **options)  # type: ignore[arg-type]
    return folder


def pruned_run(root: Path, method: str = "un", seed: int = 0, **options: object) -> Path:
    found = {"vectors": vectors(), "series": shares(), "diagnostics": ["client/pruned/mean"]} | options
    folder = write(root, method, seed, **found)
    clients = pd.read_parquet(folder / "clients.parquet")
    clients.assign(participations=1).to_parquet(folder / "clients.parquet", index=False)
    return folder


def section(root: Path, name: str) -> str:
    """A section of the page; empty without one."""
    page = build_report(root / "results", root / "partitions", root / "report").read_text()
    assert (f'href="#{name}"' in page) == (f'id="{name}"' in page)
    return page.partition(f'<section id="{name}">')[2].partition("</section>")[0]


def test_pruning_has_a_table_of_all_methods_and_pictures_of_those_with_masks(tmp_path: Path) -> None:
    write(tmp_path, "fedavg")
    for seed in (0, 1):
        pruned_run(tmp_path, seed=seed, label="Sub-FedAvg")
    shown = section(tmp_path, "pruning")
    assert set(re.findall('<th scope="row" data-sort="(.*?)">', shown)) == {"FedAvg", "Sub-FedAvg"}
    headings = ["Local, %", "Global, %", "Pruned, %", "Down, MB", "Up, MB"]
    assert [h for h in re.findall(r'title="[^"]*">([^<]*)<', shown) if h in headings] == headings
    assert re.findall("<h4>(.*?)</h4>", shown) == ["Mask IoU by number of shared labels"] + [
        f"Sub-FedAvg: {what}"
        for what in (
            "pruned share by round",
            "accuracy by pruned share",
            "overlap of masks, IoU in %",
            "what clients keep of each layer",
        )
    ]
    assert "mean over seeds: 1.00 for Sub-FedAvg." in shown
    assert shown.count("on the samples of method.gate.") == 1


def test_masks_of_the_first_clients_only_are_said_to_be_these(tmp_path: Path) -> None:
    every = vectors()
    pruned_run(tmp_path, vectors=ClientVectors(every.vectors[:4], every.sizes, LABELS[:4]))
    shown = section(tmp_path, "pruning")
    assert "Seed 0, 4 clients that took part, the first of 6." in shown
    assert "Masks are of the first clients only." in shown


def test_methods_without_masks_have_no_section(tmp_path: Path) -> None:
    write(tmp_path, "fedavg", vectors=ClientVectors())
    write(tmp_path, "scaffold")
    assert not section(tmp_path, "pruning") and not section(tmp_path, "levels")


def test_measures_of_masks(tmp_path: Path) -> None:
    """Two clients of the same label have one mask; others keep the same 2 of 6 entries."""
    pruned_run(tmp_path)
    pruned_run(tmp_path, "unlabeled", vectors=vectors(None))
    write(tmp_path, "fedavg")
    fedavg, un, unlabeled = collect_runs(tmp_path / "results")
    assert measure(un, "mask_iou(1)") == 1 and measure(un, "mask_iou(0)") == pytest.approx(2 / 6)
    assert measure(un, "mask_overlap") == pytest.approx(1)
    for run, text, says in (
        (fedavg, "mask_overlap", f"{FILE} has no masks"),
        (unlabeled, "mask_iou(1)", f"{FILE} has no labels"),
        (un, "mask_iou(2)", f"{FILE} has no two clients that share 2 labels, but 0, 1"),
    ):
        with refused(says, NotMeasured):
            measure(run, text)


def test_the_pruned_share_is_that_of_all_clients(tmp_path: Path) -> None:
    change(pruned_run(tmp_path) / "metrics.json", kept=0.7)
    write(tmp_path, "fedavg")
    fedavg, un = collect_runs(tmp_path / "results")
    assert measure(un, "pruned") == pytest.approx(0.3)
    with refused("metrics.json has no kept", NotMeasured):
        measure(fedavg, "pruned")


def test_overlap_is_a_claim(tmp_path: Path) -> None:
    for seed in range(3):
        pruned_run(tmp_path, seed=seed)
    claims = tmp_path / "claims.yaml"
    claims.write_text(
        "- {id: overlap, source: Table 1, claim: Masks overlap., partition: p, all: [\n"
        "  {measure: mask_overlap, of: un, within: [0.1, null]},\n"
        "  {measure: mask_iou(1), of: un, above: [{method: un, measure: mask_iou(0)}], by: 0.6}]}\n"
    )
    (found,) = judge(load_claims(claims), collect_runs(tmp_path / "results"))
    assert found.verdict == "confirmed"


def test_clients_that_never_took_part_are_not_compared(tmp_path: Path) -> None:
    folder = pruned_run(tmp_path)
    clients = pd.read_parquet(folder / "clients.parquet")
    for took_part, expected in ([0, 2, 3], (0, 2, 3)), ([1], None):
        clients.assign(participations=clients["client"].isin(took_part).astype(int)).to_parquet(
            folder / "clients.parquet", index=False
        )
        (run,) = collect_runs(tmp_path / "results")
        found = masks(run)
        assert (tuple(found.clients) if found else None) == expected


def test_damaged_vectors_are_one_line(tmp_path: Path) -> None:
    file = pruned_run(tmp_path) / FILE
    file.write_bytes(file.read_bytes()[:-9])
    with refused(f"cannot read .*{FILE}: .*; run this experiment again", FedflowError):
        section(tmp_path, "pruning")
    ClientVectors([{"mask": torch.ones(3, dtype=torch.bool)}] * 9).save(file)
    with refused(f"cannot read .*{FILE}: not of 6 clients; run this experiment again", FedflowError):
        section(tmp_path, "pruning")


def test_levels_have_accuracies_and_rounds_to_the_target(tmp_path: Path) -> None:
    """The larger network has the accuracy of all clients, the smaller one 10 points less."""
    write(tmp_path, "fedavg")
    folder = write(tmp_path, "fedhen", levels=("simple", "complex"), label="FedHeN")
    scores = pd.read_csv(folder / "rounds.csv")["local_accuracy"]
    change(folder / "metrics.json", target_accuracy=float(scores.max()))
    shown = section(tmp_path, "levels")
    assert re.findall('<th scope="row" data-sort="(.*?)">', shown) == ["FedHeN"]
    headings = re.findall(r'<th scope="col" title="[^"]*">([^<]*)<', shown)
    cells = [cell.strip() for cell in re.findall(r"<td [^>]*>([^<]*)<", shown)]
    found = dict(zip(headings, cells, strict=True))
    assert found["Rounds to target (simple)"] == "not reached"
    assert found["Rounds to target (complex)"] == f"{scores.idxmax() + 1:.1f}"
    gap = float(found["Local, % (complex)"]) - float(found["Local, % (simple)"])
    assert gap == pytest.approx(10, abs=0.11)
    assert re.findall("<h4>(.*?)</h4>", shown) == [
        f"Local accuracy by round, {level}" for level in ("complex", "simple")
    ]
    (run,) = (run for run in collect_runs(tmp_path / "results") if run.label == "FedHeN")
    with refused("no column level/all_accuracy/simpel: the levels are complex, simple", NotMeasured):
        measure(run, "rounds_to(level/all_accuracy/simpel, 0.8)")


def test_levels_reach_the_target_by_the_mean_of_their_models_if_it_is_recorded(tmp_path: Path) -> None:
    folder = write(tmp_path, "fedhen", levels=("simple", "complex"), label="FedHeN")
    rounds = pd.read_csv(folder / "rounds.csv")
    scores = rounds["local_accuracy"]
    change(folder / "metrics.json", target_accuracy=float(scores.max()))
    rounds.assign(**{"level/all_accuracy/simple": scores}).to_csv(folder / "rounds.csv", index=False)
    (run,) = collect_runs(tmp_path / "results")
    reached = _with_targets(run, ["simple"]).metrics["level/rounds_to_target/simple"]
    assert reached == scores.idxmax() + 1  # by local accuracy, never
