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


def test_methods_are_ordered_by_their_mean_rank(leaderboard: dict[str, Any]) -> None:
    scores = {"A": (0.9, 0.5, 0.6), "B": (0.8, 0.7, 0.7), "C": (0.1, 0.6, 0.5)}
    rows = [
        {"method_label": name, "partition": f"p{i}", "local_accuracy": score + shift, "local_worst10": 0.25}
        | {"bytes_up": 1e6, "bytes_down": 2e6}
        | ({"onboarding_bytes_up": 5e5} if name == "B" else {})
        for name, shares in scores.items()
        for i, score in enumerate(shares)
        for shift in (-0.01, 0.01)
    ]
    table = leaderboard["board"](pd.DataFrame(rows))
    assert table["mean rank"].to_dict() == pytest.approx({"B": 4 / 3, "A": 2.0, "C": 8 / 3})
    assert table.loc["B"].tolist() == pytest.approx([4 / 3, 80, 70, 70, 25, 3.5])
    page = leaderboard["page"](table, 2, {"fedbn": "needs BatchNorm"})
    assert "| A | 2.00 | 90.0 | 50.0 | 60.0 | 25.0 | 3 |" in page and "- `fedbn`: needs BatchNorm" in page
    assert "from a difference of 1.9" in page  # 2.343 sqrt(3 x 4 / (6 x 3)), Demsar's table


def test_a_method_whose_trials_all_diverge_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning ends at the first such method; it goes on after it, and the method is left out."""
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
        main()
    assert calls[1] == ("--partition", "p", "--method=c") and calls[3] == ("--set", "grid.methods=[a, c]")
