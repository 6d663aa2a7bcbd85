"""The rounds of a run in a file that only grows."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import images, prepare_run, quadratics, run, same

from fedflow.data import Dataset
from fedflow.errors import FedflowError
from fedflow.simulation.checkpoint import FILE
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import RoundReport

HISTORY = "history.jsonl"
OFTEN = {"rounds": 40, "evaluate_every": 1, "checkpoint_every": 1}


def told(rounds: list[RoundReport]) -> list[RoundReport]:
    """Without what a resume and the clock on the wall change."""
    return [replace(report, seconds=0, replayed=False) for report in rounds]


def killed_at(simulation: Simulation, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run until the rounds of checkpoint ``number`` are appended, but not yet the checkpoint written."""
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
        assert simulation.folder is not None
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
    assert told(again.rounds) == told(whole.rounds)
    assert same(again.servers[-1], whole.servers[-1])
    assert [json.loads(line)["round"] for line in file.read_text().splitlines()] == list(range(1, 41))


def test_assignments_and_failures_are_told_again(digits: Dataset, tmp_path: Path) -> None:
    settings = {"rounds": 4, "evaluate_every": 1, "checkpoint_every": 2, "checkpoints": tmp_path}
    simulation = prepare_run("ifca", images(digits), **settings)
    rounds = simulation.rounds()
    before = [next(rounds), next(rounds)]
    simulation.state.history.append(replace(before[1], round=3, failed={1: "ValueError: [no]"}))
    simulation._checkpoint()
    history = prepare_run("ifca", images(digits), **settings).state.history
    assert told(history[:2]) == told(before) and history[0].assignment is not None
    assert history[2].failed == {1: "ValueError: [no]"}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip, cut, empty, Path.unlink])
def test_a_damaged_history_is_one_clear_line(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    run("fedavg", quadratics(), checkpoints=tmp_path)
    (file,) = tmp_path.glob(f"*/{HISTORY}")
    damage(file)
    with pytest.raises(FedflowError) as error:
        list(prepare_run("fedavg", quadratics(), checkpoints=tmp_path).rounds())
    assert str(file) in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).endswith("delete its folder to start over")


def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    simulation = prepare_run("fedavg", quadratics(), checkpoints=tmp_path, checkpoint_every=1)
    assert simulation.folder is not None
    (simulation.folder / HISTORY).mkdir(parents=True)
    with pytest.raises(FedflowError, match=rf"cannot write the checkpoint .*{HISTORY}: Is a directory"):
        list(simulation.rounds())
