"""The leaderboard: who takes part, and how rows are ordered."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from fedflow.config import load_params
from fedflow.methods import METHODS
from fedflow.methods.averaging.fedavg import FedAvg

STUDY = Path(__file__).parents[1] / "studies" / "leaderboard"


@pytest.fixture(scope="module")
def leaderboard() -> dict[str, Any]:
    return runpy.run_path(str(STUDY / "run.py"))


def test_a_new_method_takes_part(leaderboard: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """And every other one is named with its reason."""
    monkeypatch.setitem(METHODS, "fresh", type("Fresh", (FedAvg,), {"name": "fresh", "title": "Fresh"}))
    names, others = leaderboard["entrants"](load_params(STUDY / "params.yaml"))
    assert {"fresh", "fedavg", "ditto", "pacfl"} <= set(names)
    assert sorted([*names, *others]) == sorted(METHODS)
    assert "with the option exits" in others["fedhen"] and all(others.values())


def test_second_derivatives_are_not_compiled(leaderboard: dict[str, Any]) -> None:
    (compiled, none), (adapted, auto) = leaderboard["parts"](["fedavg", "pavg", "ditto", "pfldyn"])
    assert compiled == ["fedavg", "ditto"] and adapted == ["pavg", "pfldyn"] and not none
    assert load_params(STUDY / "params.yaml", auto[1:]).engine.compile == "auto"
    assert [*leaderboard["parts"](["fedavg"])] == [(["fedavg"], [])]


def test_methods_are_ordered_by_their_mean_rank(leaderboard: dict[str, Any]) -> None:
    """A method without a seed is left out, however good it is."""
    scores = {
        "fedavg": (0.9, 0.5, 0.6),
        "ditto": (0.8, 0.7, 0.7),
        "local": (0.1, 0.6, 0.5),
        "apfl": (1, 1, 1),
    }
    rows = [
        {"method": name, "partition": f"p{i}", "local_accuracy": score + shift, "local_worst10": 0.25}
        | {"bytes_up": 1e6, "bytes_down": 2e6}
        | ({"onboarding_bytes_up": 5e5} if name == "ditto" else {})
        for name, shares in scores.items()
        for i, score in enumerate(shares)
        for shift in ((-0.01, 0.01) if (name, i) != ("apfl", 1) else (0.01,))
    ]
    table = leaderboard["board"](pd.DataFrame(rows), 2)
    assert table["mean rank"].to_dict() == pytest.approx({"Ditto": 4 / 3, "FedAvg": 2.0, "Local": 8 / 3})
    assert table.loc["Ditto"].tolist() == pytest.approx([4 / 3, 80, 70, 70, 25, 3.5])
    board = leaderboard["lines"](table, 2, {"fedbn": "needs BatchNorm"})
    assert (
        "| FedAvg | 2.00 | 90.0 | 50.0 | 60.0 | 25.0 | 3 |" in board and "- needs BatchNorm: `fedbn`" in board
    )
    assert "from a difference of 1.9" in board[0]  # 2.343 sqrt(3 x 4 / (6 x 3)), Demsar's table
    ranks, traffic = leaderboard["ranks_drawn"](table).file, leaderboard["traffic_drawn"](table).file
    assert all(name in ranks for name in table.index)
    assert (
        "FedAvg" in traffic and "Ditto" in traffic and ">Local<" not in traffic
    )  # more traffic, less accurate


def test_fedavg_after_fine_tuning_is_a_row(
    leaderboard: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that fine-tuned; its worst tenth is not measured. Runs with other settings are left out."""
    rows = [
        {"method": "fedavg", "partition": "p", "local_accuracy": "0.5", "local_worst10": "0.2"}
        | {"tuned_accuracy": "0.7", "bytes_up": "1e6", "bytes_down": "1e6"},
        {"method": "local", "partition": "p", "local_accuracy": "0.6", "local_worst10": "0.4"}
        | {"tuned_accuracy": "none", "bytes_up": "0", "bytes_down": "0"},
        {"method": "local", "partition": "p", "local_accuracy": "0.9", "changes": "other settings"},
    ]
    monkeypatch.setitem(leaderboard["finished"].__globals__, "read_results", lambda root: rows)
    board = leaderboard["lines"](leaderboard["board"](leaderboard["finished"](), 1), 1, {})
    assert [row for row in board if row.startswith("| ")][1:] == [
        "| FedAvg, fine-tuned | 1.00 | 70.0 | – | 2 |",
        "| Local | 2.00 | 60.0 | 40.0 | 0 |",
        "| FedAvg | 3.00 | 50.0 | 20.0 | 2 |",
    ]


def test_the_board_is_filled_into_the_readme_again_and_again(tmp_path: Path) -> None:
    names = runpy.run_path(str(STUDY / "run.py"))
    names["write"].__globals__["HERE"] = tmp_path
    (tmp_path / "README.md").write_text((STUDY / "README.md").read_text())
    scores = {
        "mean rank": [1.0, 2.0],
        "p": [90.0, 80.0],
        "q": [80.0, 70.0],
        "worst tenth": [50.0, 40.0],
        "MB": [2, 1],
    }
    for _ in range(2):
        names["write"](pd.DataFrame(scores, index=["A", "B"]), 5, {})
    assert (tmp_path / "README.md").read_text().count("| A | 1.00 |") == 1
    assert {file.name for file in tmp_path.iterdir()} == {"README.md", "ranks.svg", "traffic.svg"}


def test_a_method_whose_trials_all_diverge_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning resumes with the next method, and the leaderboard lists the failed one as left out."""
    tuned: dict[str, dict[str, Any]] = {"p": {}, "q": {}}
    grid, calls = SimpleNamespace(partitions=["p", "q"], seeds=[0]), []

    def call(command: str, *arguments: str) -> int:
        calls.append(arguments)
        names = [name.removeprefix("--method=") for name in arguments if name.startswith("--method=")]
        for name in names:
            if (name, arguments[1]) == ("bad", "p"):
                return 2
            tuned[arguments[1]][name] = {}
        return int(command == "report")

    main = runpy.run_path(str(STUDY / "run.py"))["main"]
    monkeypatch.setitem(main.__globals__, "call", call)
    monkeypatch.setitem(main.__globals__, "entrants", lambda params: (["a", "bad", "c"], {}))
    monkeypatch.setitem(main.__globals__, "load_params", lambda path: SimpleNamespace(grid=grid, tuned=tuned))
    with pytest.raises(SystemExit):
        main([])
    assert calls[1] == ("--partition", "p", "--method=c") and calls[3] == (
        "--rest",
        "--set",
        "grid.methods=[a, c]",
    )
