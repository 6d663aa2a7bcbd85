import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support import images, prepare_run, quadratics, run, with_cohorts

from fedflow.data import Dataset
from fedflow.errors import FedflowError
from fedflow.local.training import LocalTraining
from fedflow.methods import build_method
from fedflow.simulation.checkpoint import FILE, load_checkpoint, save_checkpoint
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation
from fedflow.simulation.run import RunSettings


def test_a_checkpoint_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    odd = {"none": torch.zeros(0), "one": torch.zeros(1).expand(1), "bool": torch.tensor(True)}
    tensors = {"server/w": torch.rand(3), "ids": torch.arange(2), **odd}
    save_checkpoint(tmp_path / "new" / "folder", tensors, {"round": 3, "loss": 1 / 3})
    loaded = load_checkpoint(tmp_path / "new" / "folder")
    assert loaded is not None
    assert all(torch.equal(loaded[0][name], t) for name, t in tensors.items())
    assert loaded[1] == {"round": 3, "loss": 1 / 3}


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    path.write_bytes(b"\xff" * 300)


def strip(path: Path) -> None:
    save_file({"w": torch.zeros(2)}, path)  # no facts


def misspell(path: Path) -> None:
    save_file({"w": torch.zeros(2)}, path, {"facts": "{"})


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [truncate, empty, garble, strip, misspell, replace_by_folder])
def test_a_damaged_checkpoint_is_refused_in_one_line(tmp_path: Path, damage: Any) -> None:
    save_checkpoint(tmp_path, {"w": torch.rand(100)}, {"round": 3})
    damage(tmp_path / FILE)
    with pytest.raises(FedflowError) as error:
        load_checkpoint(tmp_path)
    assert str(tmp_path / FILE) in str(error.value)
    assert "delete its folder to start over" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_kill_while_saving_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: Any) -> None:
    save_checkpoint(tmp_path, {"w": torch.zeros(2)}, {"round": 1})

    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", cut)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path, {"w": torch.ones(2)}, {"round": 2})
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    assert loaded[1] == {"round": 1}
    save_checkpoint(tmp_path, {"w": torch.ones(2)}, {"round": 2})  # over what the kill left behind


def test_an_unwritable_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FedflowError, match="cannot write the checkpoint"):
        save_checkpoint(tmp_path / "file", {}, {})


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def flip_tensor(name: str) -> Any:
    """Change one bit of the tensor ``name`` of a safetensors file."""

    def spoil(path: Path) -> None:
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        flip(path, start + json.loads(content[8:start])[name]["data_offsets"][0])

    return spoil


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, tuple[str, Any]] = {
    "a server tensor": (FILE, flip_tensor("server/model")),
    "participations": (FILE, flip_tensor("participations")),
    "a row": ("clients-c.bin", lambda path: flip(path, 1)),
    "half of the rows": ("clients-c.bin", halve),
    "all rows": ("clients-c.bin", Path.unlink),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_is_not_resumed_from_damaged_files(tmp_path: Path, damage: str) -> None:
    """Client 0 takes part in round 1, client 1 in round 2, whose row is settled again."""
    settings: dict[str, Any] = {"rounds": 3, "checkpoint_every": 1, "checkpoints": tmp_path}
    simulation = prepare_run(with_cohorts(build_method("scaffold"), [[0], [1]]), quadratics(), **settings)
    rounds = simulation.rounds()
    for _ in range(2):
        next(rounds)
    assert simulation.folder is not None
    name, spoil = DAMAGES[damage]
    file = simulation.folder / name
    spoil(file)
    with pytest.raises(FedflowError) as error:
        run(with_cohorts(build_method("scaffold"), [[0]]), quadratics(), **settings)
    assert str(file) in str(error.value)
    assert str(error.value).endswith("delete its folder to start over")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"training": {"lr": 0.2}},
        {"hyper": {"server_lr": 0.5}},
        {"rounds": 4},
        {"participation": 0.5},
    ],
    ids=str,
)
def test_a_checkpoint_of_another_experiment_is_not_resumed(tmp_path: Path, change: dict) -> None:
    run("fedavg", quadratics(), checkpoints=tmp_path)
    assert prepare_run("fedavg", quadratics(), checkpoints=tmp_path).state.history
    assert not prepare_run("fedavg", quadratics(), checkpoints=tmp_path, **change).state.history
    assert not prepare_run("fedprox", quadratics(), checkpoints=tmp_path).state.history
    assert not prepare_run("fedavg", quadratics(sizes=(20, 20)), checkpoints=tmp_path).state.history


def test_a_finished_run_can_delete_its_checkpoint(tmp_path: Path) -> None:
    ran = run("local", quadratics(), checkpoints=tmp_path)
    names = {p.name for p in (tmp_path / ran.simulation.fingerprint).iterdir()}
    assert names == {FILE, "history.jsonl", "clients-model.bin"}
    ran.simulation.forget()
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_every_can_change_between_a_kill_and_the_resume(tmp_path: Path) -> None:
    rounds = prepare_run("fedavg", quadratics(), checkpoints=tmp_path, checkpoint_every=1).rounds()
    next(rounds)
    again = prepare_run("fedavg", quadratics(), checkpoints=tmp_path, checkpoint_every=2)
    assert len(again.state.history) == 1


def test_a_simulation_touches_its_files_only_when_it_runs(tmp_path, monkeypatch) -> None:
    def touched(*_: object) -> None:
        raise AssertionError("the checkpoint was loaded")

    monkeypatch.setattr("fedflow.simulation.run.load_checkpoint", touched)
    simulation = prepare_run("scaffold", quadratics(), checkpoints=tmp_path)
    assert simulation.fingerprint and simulation.groups is None
    with pytest.raises(AssertionError, match="was loaded"):
        next(simulation.rounds())


def test_other_public_data_are_another_experiment(digits: Dataset) -> None:
    federation = images(digits)
    assert federation.public is not None
    other = replace(federation, public=federation.public.only(torch.arange(59)))
    jobs = [Job(f, build_method("flis_dc"), LocalTraining(), seed=0) for f in (federation, other, federation)]
    one, another, again = (Simulation(job, RunSettings()).fingerprint for job in jobs)
    assert one == again != another
