"""The first model comes from a file or a recorded run, which must fit and is part of the identity."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from command import fedflow, one_cell, prepared_project
from safetensors.torch import load_file, save_file
from support import refused
from torch import Tensor

import fedflow as ff
from fedflow.config import load_params
from fedflow.local.trained import load_network
from fedflow.models import build
from fedflow.project.identity import Identity
from fedflow.simulation.setup import RunSetup
from fedflow.stages.central_network import CentralRun, prepare_network
from fedflow.stages.experiment import Experiment
from fedflow.tracking.store import open_store

SHORT = "\nrun: {rounds: 1, participation: 1.0}\ntraining: {epochs: 1, batch_size: 64}\n"
COMMAND = ("run", "--partition", "few", "--method", "fedavg", "--set", "engine.executor=inline")
ENTRY = "{name: mlp, options: {hidden: [8]}, start: w.safetensors}"
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "networks.md"


def params(entry: str = ENTRY, more: str = "") -> str:
    return one_cell("{source: digits}", entry, "scheme: iid, clients: 3") + SHORT + more


def values(seed: int = 5, **changes: Tensor | None) -> dict[str, Tensor]:
    """The values of a network by name, with these changes; None removes a tensor."""
    torch.manual_seed(seed)
    state = build("mlp", (1, 8, 8), 10, hidden=[8]).state_dict()
    state |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    return {name: tensor for name, tensor in state.items() if tensor is not None}


def started(read: Any, root: Path) -> dict[str, Tensor]:
    """The first model of the run, by name."""
    experiment = Experiment(read, "few", "fedavg", 0, root)
    setup = RunSetup(experiment.job, experiment.run)
    return setup.federation.model.views(setup.state.server.model)


def test_a_run_starts_from_the_values_of_a_file(tmp_path: Path) -> None:
    save_file(values(), tmp_path / "w.safetensors")
    first = started(prepared_project(tmp_path, params(), "few"), tmp_path)
    assert first.keys() == values().keys()
    assert all(torch.equal(first[name], value) for name, value in values().items())


def test_fresh_names_are_drawn_by_the_seed(tmp_path: Path) -> None:
    save_file(values(layers__last__weight=torch.ones(1000, 8)), tmp_path / "w.safetensors")
    fresh = ENTRY[:-1] + ", fresh: ['layers.last.*']}"
    read = prepared_project(tmp_path, params(fresh), "few")
    first = started(read, tmp_path)
    plain = load_params(tmp_path / "params.yaml", ["models.data={name: mlp, options: {hidden: [8]}}"])
    drawn = started(plain, tmp_path)
    assert torch.equal(first["layers.1.weight"], values()["layers.1.weight"])
    assert torch.equal(first["layers.last.weight"], drawn["layers.last.weight"])


def test_the_content_of_the_file_is_part_of_the_identity(tmp_path: Path) -> None:
    save_file(values(), tmp_path / "w.safetensors")
    read = prepared_project(tmp_path, params(more="central: {whole: {dataset: data}}\n"), "few")

    def identities() -> list[Identity]:
        run = Experiment(read, "few", "fedavg", 0, tmp_path)
        return [run.identity, CentralRun(read, "whole", tmp_path).identity]

    before = identities()
    assert before == identities()
    save_file(values(6), tmp_path / "w.safetensors")
    changed = [old.differences(new) for old, new in zip(before, identities())]
    assert changed == [["file w.safetensors"]] * 2


def test_a_central_network_starts_from_a_file(tmp_path: Path) -> None:
    save_file(values(), tmp_path / "w.safetensors")
    more = "central: {whole: {dataset: data, training: {epochs: 1, lr: 1e-30}}}\n"
    read = prepared_project(tmp_path, params(more=more), "few")
    network = load_network(prepare_network(read, "whole", tmp_path))
    assert torch.equal(network.w, torch.cat([value.flatten() for value in values().values()]))
    (tmp_path / "w.safetensors").unlink()
    assert network.teacher(torch.device("cpu")).model.size == network.w.numel()


def test_frozen_values_are_those_of_the_file_also_in_recorded_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's example, then a run that starts from the recorded model, and one from its exported file."""
    monkeypatch.chdir(tmp_path)
    (entry,) = re.findall(r"^models: \{digits: (\{name: lenet5, start.*fresh.*\})\}$", PAGE.read_text(), re.M)
    entry = entry.replace("lenet5", "mlp, options: {hidden: [8]}").replace("fc3", "layers.last")
    save_file(values(), "weights.safetensors")
    Path("params.yaml").write_text(params(entry))
    done = fedflow(capsys, *COMMAND)
    assert done.code == 0, done.err
    (run_id,) = re.findall(r"run ([0-9a-f]{32})", done.err + done.out)
    Path("weights.safetensors").unlink()
    net = ff.load_model(run_id).state_dict()
    assert torch.equal(net["layers.1.weight"], values()["layers.1.weight"])
    assert not torch.equal(net["layers.last.weight"], values()["layers.last.weight"])
    ff.export_model("exported.safetensors", run_id)
    assert load_file("exported.safetensors").keys() == net.keys()
    for start in ("exported.safetensors", run_id):
        network = f"{{name: mlp, options: {{hidden: [8]}}, start: '{start}'}}"
        first = started(load_params(Path("params.yaml"), [f"models.data={network}"]), Path())
        assert all(torch.equal(first[name], value) for name, value in net.items())
        model = {"name": "mlp", "hidden": [8], "start": start}
        still = {"rounds": 1, "progress": False, "training": {"lr": 1e-30}}
        plain = ff.run("digits", ff.iid(clients=3), model=model, **still)
        assert all(torch.equal(value, net[name]) for name, value in plain.model().state_dict().items())


@pytest.mark.parametrize("method", ["ifca", "ditto"])
def test_a_model_of_a_cluster_or_client_is_chosen_by_name(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small: dict[str, Any] = {"rounds": 1, "progress": False}
    network = {"name": "mlp", "hidden": [8]}
    done = ff.run("digits", ff.iid(clients=4), method, model=network, record=tmp_path, **small)
    (run_id,) = open_store(tmp_path).client().search_runs(["1"])
    run_id = run_id.info.run_id
    cluster = done.clients["cluster"][2]
    names = [f"{run_id}#client-2", *([f"{run_id}#cluster-{cluster}"] if method == "ifca" else [])]
    still = {"training": {"lr": 1e-30}, **small}
    for start in names:
        first = ff.run("digits", ff.iid(clients=3), model=network | {"start": start}, **still).model()
        for name, value in done.model(2).state_dict().items():
            assert torch.equal(first.state_dict()[name], value), name
    one = r"cluster-\d" if method == "ifca" else "personal"
    for start, message in (
        (run_id, rf"model.start: '{run_id}' .* a run, # and a name: client-0, ..., .*{one}"),
        (f"{run_id}#cluster-9", rf"#cluster-9' .*{one}"),
        (f"{run_id}#client-9", "#client-9' .* a client with a recorded model: 0-3"),
    ):
        with refused(message):
            ff.run("digits", ff.iid(clients=3), model=network | {"start": start}, **still)
    fresh = {"start": names[0], "fresh": ["layers.last.*"]}
    ff.run("digits", ff.iid(clients=3), "ifca", model=network | fresh, **still)
    with refused("method.clusters: .* always starts from the same values, .*names in `fresh`"):
        ff.run("digits", ff.iid(clients=3), "ifca", model=network | {"start": names[0]}, **still)


@pytest.mark.parametrize(
    ("changes", "entry", "message"),
    [
        ({"layers__1__weight": torch.ones(8, 63)}, ENTRY, r"layers\.1\.weight of .*\[8, 64\], not \[8, 63\]"),
        ({"layers__1__bias": None}, ENTRY, r"a file with layers\.1\.bias"),
        ({"more": torch.ones(1)}, ENTRY, "which has no more$"),
        ({}, ENTRY.replace("w.s", "v.s"), r"model\.start: '.*v\.safetensors' .*there is none"),
        ({}, ENTRY[:-1] + ", fresh: [head]}", r"model\.fresh: 'head' .*layers\.1\.weight"),
        ({}, ENTRY.replace("w.safetensors", "params.yaml"), r"model\.start: .*a safetensors file"),
        ({}, ENTRY.replace("w.safetensors", "3"), r"models\.data\.start: 3 .*text"),
        ({}, "{name: mlp, fresh: [x]}", r"models\.data\.fresh: \['x'\] .*`start`"),
        ({}, ENTRY.replace("w.safetensors", "0" * 31 + "a"), "no run '0*a' in"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, changes: dict, entry: str, message: str
) -> None:
    save_file(values(**changes), tmp_path / "w.safetensors")
    with refused(message, ff.FedflowError):
        started(prepared_project(tmp_path, params(entry), "few"), tmp_path)
