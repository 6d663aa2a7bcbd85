"""The rounds of a run in an append-only file."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import one_line_error
from support import images, prepare_run, quadratics, run, same

from fedflow.data import Dataset
from fedflow.errors import FedflowError
from fedflow.simulation.checkpoint import FILE
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import RoundReport

HISTORY = "history.jsonl"
OFTEN = {"rounds": 40, "evaluate_every": 1, "checkpoint_every": 1}


def comparable(rounds: list[RoundReport]) -> list[RoundReport]:
    """Without the fields that a resume and wall-clock time change."""
    return [replace(report, seconds=0, replayed=False) for report in rounds]


def killed_at(simulation: Simulation, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run until the rounds of checkpoint ``number`` are appended, but the checkpoint is not yet written."""
    left = iter(range(number - 1))

    def save(*arguments: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        real(*arguments)

    from fedflow.simulation.checkpoint import save_checkpoint as real

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fedflow.simulation.loop.save_checkpoint", save)
        list(simulation.rounds())


@pytest.mark.parametrize("method", ["fedavg", "ifca"])
def test_what_a_checkpoint_writes_does_not_grow_with_the_round(digits, tmp_path, method) -> None:
    simulation = prepare_run(method, images(digits), checkpoints=tmp_path, **OFTEN)
    written, before = [], 0
    for _ in simulation.rounds():
        total = sum(file.stat().st_size for file in simulation.folder.iterdir() if file.name != FILE)
        written.append((simulation.folder / FILE).stat().st_size + total - before)
        before = total
    digits = 60  # numbers get longer
    assert max(written[20:]) <= max(written[2:20]) + digits


def test_a_kill_before_the_checkpoint_is_in_place_changes_no_round(tmp_path: Path, monkeypatch: Any) -> None:
    whole = run("scaffold", quadratics(), **OFTEN)
    killed_at(prepare_run("scaffold", quadratics(), checkpoints=tmp_path, **OFTEN), 7, monkeypatch)
    (file,) = tmp_path.glob(f"*/{HISTORY}")
    assert len(file.read_text().splitlines()) == 7
    again = run("scaffold", quadratics(), checkpoints=tmp_path, **OFTEN)
    assert [report.replayed for report in again.rounds] == [True] * 6 + [False] * 34
    assert comparable(again.rounds) == comparable(whole.rounds)
    assert same(again.servers[-1], whole.servers[-1])
    assert [json.loads(line)["round"] for line in file.read_text().splitlines()] == list(range(1, 41))


def test_assignments_and_failures_are_restored(digits: Dataset, tmp_path: Path) -> None:
    settings = {"rounds": 4, "evaluate_every": 1, "checkpoint_every": 2, "checkpoints": tmp_path}
    simulation = prepare_run("ifca", images(digits), **settings)
    rounds = simulation.rounds()
    before = [next(rounds), next(rounds)]
    simulation.state.history.append(replace(before[1], round=3, failed={1: "ValueError: [no]"}))
    simulation._checkpoint()
    history = prepare_run("ifca", images(digits), **settings).state.history
    assert comparable(history[:2]) == comparable(before) and history[0].assignment is not None
    assert history[2].failed == {1: "ValueError: [no]"}


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda data: data[:50] + bytes([data[50] ^ 1]) + data[51:],
    "cut": lambda data: data[:-20],
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("damage", [*DAMAGES, "missing"])
def test_a_damaged_history_is_one_clear_line(tmp_path: Path, damage: str) -> None:
    run("fedavg", quadratics(), checkpoints=tmp_path)
    (file,) = tmp_path.glob(f"*/{HISTORY}")
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(DAMAGES[damage](content))
    with one_line_error(f"{file}.*delete its folder to start over$"):
        list(prepare_run("fedavg", quadratics(), checkpoints=tmp_path).rounds())


def test_an_unwritable_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    simulation = prepare_run("fedavg", quadratics(), checkpoints=tmp_path, checkpoint_every=1)
    (simulation.folder / HISTORY).mkdir(parents=True)
    with pytest.raises(FedflowError, match=rf"cannot write the checkpoint .*{HISTORY}: Is a directory"):
        list(simulation.rounds())
