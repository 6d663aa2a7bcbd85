import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command import one_line_error
from safetensors.torch import save_file
from support import images, prepare_run, quadratics, run, with_cohorts

from fedflow.data import Dataset
from fedflow.errors import FedflowError
from fedflow.local.local_training import LocalTraining
from fedflow.methods import build_method
from fedflow.simulation.checkpoint import FILE, load_checkpoint, save_checkpoint
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation
from fedflow.simulation.settings import RunSettings


def test_a_checkpoint_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    odd = {"none": torch.zeros(0), "one": torch.zeros(1).expand(1), "bool": torch.tensor(True)}
    tensors = {"server/w": torch.rand(3), "ids": torch.arange(2), **odd}
    save_checkpoint(tmp_path / "new" / "folder", tensors, {"round": 3, "loss": 1 / 3})
    loaded, facts = load_checkpoint(tmp_path / "new" / "folder")
    assert all(torch.equal(loaded[name], t) for name, t in tensors.items())
    assert facts == {"round": 3, "loss": 1 / 3} and load_checkpoint(tmp_path) is None


SPOILT: dict[str, Any] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "empty": lambda path: path.write_bytes(b""),
    "garbled": lambda path: path.write_bytes(b"\xff" * 300),
    "without facts": lambda path: save_file({"w": torch.zeros(2)}, path),
    "no facts": lambda path: save_file({"w": torch.zeros(2)}, path, {"facts": "{"}),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", SPOILT.values(), ids=SPOILT)
def test_a_damaged_checkpoint_is_one_clear_line(tmp_path: Path, damage: Any) -> None:
    save_checkpoint(tmp_path, {"w": torch.rand(100)}, {"round": 3})
    damage(tmp_path / FILE)
    with one_line_error(f"{tmp_path / FILE} .*delete its folder to start over"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_tensors_return_to_the_host_or_to_the_device_that_they_were_on(tmp_path: Path, device: str) -> None:
    """Tensors without values stand for those of a GPU."""
    state, gpu = prepare_run("lcfl", quadratics(), checkpoints=tmp_path).state, torch.device("meta")
    models, assignment = torch.zeros(2, 1, device=device), torch.tensor([0, 1])
    state.server = replace(state.server, models=models, assignment=assignment)
    tensors, facts = state.packed(torch.device(device))
    saved = {name: torch.zeros(t.shape, dtype=t.dtype) for name, t in tensors.items()}
    state.unpack(saved, json.loads(json.dumps(facts)), gpu)
    assert state.server.models.device == gpu and state.server.models.shape == (2, 1)
    # A run of a CPU does not know what a GPU would leave on the host.
    assert state.server.assignment.device.type == ("cpu" if device == "meta" else "meta")
    state.unpack(saved, facts, torch.device("cpu"))
    assert {t.device.type for t in state.server.tensors().values()} == {"cpu"}


def test_a_kill_while_saving_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: Any) -> None:
    save_checkpoint(tmp_path, {"w": torch.zeros(2)}, {"round": 1})

    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", cut)
        save_checkpoint(tmp_path, {"w": torch.ones(2)}, {"round": 2})
    assert load_checkpoint(tmp_path)[1] == {"round": 1}
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


def flip_tensor(path: Path, name: str) -> None:
    """Change one bit of the tensor ``name`` of a safetensors file."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    flip(path, start + json.loads(content[8:start])[name]["data_offsets"][0])


DAMAGES: dict[str, tuple[str, Any]] = {
    "a server tensor": (FILE, lambda path: flip_tensor(path, "server/model")),
    "participations": (FILE, lambda path: flip_tensor(path, "participations")),
    "a row": ("clients-c/0/0-1.bin", lambda path: flip(path, 1)),
    "half of a row": ("clients-c/0/0-1.bin", lambda path: os.truncate(path, path.stat().st_size // 2)),
    "a file": ("clients-c/0/0-1.bin", Path.unlink),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_is_not_resumed_from_damaged_files(tmp_path: Path, damage: str) -> None:
    """Client 0 takes part in round 1, client 1 in round 2."""
    settings: dict[str, Any] = {"rounds": 3, "checkpoint_every": 1, "checkpoints": tmp_path}
    simulation = prepare_run(with_cohorts(build_method("scaffold"), [[0], [1]]), quadratics(), **settings)
    rounds = simulation.rounds()
    for _ in range(2):
        next(rounds)
    name, spoil = DAMAGES[damage]
    file = simulation.folder / name
    spoil(file)
    with one_line_error(f"{file}.*delete .* to start over$"):
        run(with_cohorts(build_method("scaffold"), [[0]]), quadratics(), **settings)


def test_a_checkpoint_of_another_experiment_is_not_taken_up(tmp_path: Path) -> None:
    run("fedavg", quadratics(), checkpoints=tmp_path)
    assert prepare_run("fedavg", quadratics(), checkpoints=tmp_path).state.history
    method = ({"training": {"lr": 0.2}}, {"hyper": {"server_lr": 0.5}})
    for change in ({"seed": 1}, *method, {"rounds": 4}, {"participation": 0.5}):
        assert not prepare_run("fedavg", quadratics(), checkpoints=tmp_path, **change).state.history, change
    assert not prepare_run("fedprox", quadratics(), checkpoints=tmp_path).state.history
    assert not prepare_run("fedavg", quadratics(sizes=(20, 20)), checkpoints=tmp_path).state.history


def test_a_finished_run_can_delete_its_checkpoint(tmp_path: Path) -> None:
    ran = run("local", quadratics(), checkpoints=tmp_path)
    names = {p.name for p in (tmp_path / ran.simulation.fingerprint).iterdir()}
    assert names == {FILE, "history.jsonl", "clients-model"}
    ran.simulation.forget()
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_knows_who_took_part(tmp_path: Path) -> None:
    method = with_cohorts(build_method("fedavg"), [[0], [0, 1]])
    run(method, quadratics(), rounds=2, checkpoints=tmp_path, checkpoint_every=1)
    again = prepare_run(method, quadratics(), rounds=2, checkpoints=tmp_path, checkpoint_every=1)
    assert again.state.participations.tolist() == [2, 1]


def test_checkpoint_every_can_change_between_a_kill_and_the_resume(tmp_path: Path) -> None:
    rounds = prepare_run("fedavg", quadratics(), checkpoints=tmp_path, checkpoint_every=1).rounds()
    next(rounds)
    again = prepare_run("fedavg", quadratics(), checkpoints=tmp_path, checkpoint_every=2)
    assert len(again.state.history) == 1


def test_a_simulation_touches_its_files_only_when_it_runs(tmp_path, monkeypatch) -> None:
    loaded = "fedflow.simulation.setup.load_checkpoint"
    monkeypatch.setattr(loaded, lambda *_: pytest.fail("the checkpoint was loaded"))
    simulation = prepare_run("scaffold", quadratics(), checkpoints=tmp_path)
    assert simulation.fingerprint and simulation.groups is None
    with pytest.raises(pytest.fail.Exception, match="was loaded"):
        next(simulation.rounds())


def test_other_public_data_are_another_experiment(digits: Dataset) -> None:
    federation = images(digits)
    other = replace(federation, public=federation.public.only(torch.arange(59)))
    jobs = [Job(f, build_method("flis_dc"), LocalTraining(), seed=0) for f in (federation, other, federation)]
    one, another, again = (Simulation(job, RunSettings()).fingerprint for job in jobs)
    assert one == again != another
