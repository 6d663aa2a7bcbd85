"""What is recorded of single clients: diagnostics by round, and vectors that they keep at the end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from support import Workers, images, prepare_run, quadratics, refused, with_cohorts

from fedflow.data import Dataset
from fedflow.errors import FedflowError
from fedflow.local.client import Client, Update
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.protocols import Recording
from fedflow.models.flat import FlatModel
from fedflow.simulation.extensions.recording import FILE, ClientVectors, Recorded, load_vectors
from fedflow.simulation.loop import Simulation

COHORTS = [[0, 2], [2], [0, 1], [1, 2]]


class Halving(Recording, FedAvg):
    """Each time a client takes part, it drops the smaller half of what its mask keeps."""

    series = ("kept",)
    records = ("mask",)

    def client_state(self, model: FlatModel, initial: torch.Tensor) -> dict:
        return {"mask": torch.ones_like(initial, dtype=torch.bool)}

    def local(self, client: Client) -> Update:
        w, mask = client.fit(start=client.received["model"]), client.kept["mask"]
        ranks = torch.where(mask, w.abs(), torch.inf).argsort().argsort()
        mask = mask & (ranks >= mask.sum() // 2)
        share = mask.to(w.dtype).mean()
        return client.update(model=w, keep={"mask": mask}, diagnostics={"kept": share})


def start(dataset: Dataset, after: int = 0, **how: Any) -> Simulation:
    method = with_cohorts(Halving(), COHORTS[after:])
    return prepare_run(method, images(dataset), rounds=4, checkpoint_every=1, **how)


def recorded(simulation: Simulation) -> tuple[str, list[dict[str, torch.Tensor]]]:
    series = repr([report.series for report in simulation.rounds()])  # nan != nan
    return series, simulation.extension(Recorded).vectors().vectors


@pytest.mark.parametrize("how", ["vmap", "workers", "resumed"])
def test_series_and_vectors_are_those_of_every_client(how: str, digits: Dataset, tmp_path: Path) -> None:
    whole = start(digits)
    series, vectors = recorded(whole)
    shares = np.array([report.series["client/kept"] for report in whole.state.history])  # [T, N]
    took_part = [[k in cohort for k in range(whole.clients)] for cohort in COHORTS]
    assert (~np.isnan(shares) == np.array(took_part)).all()
    masks = torch.stack([own["mask"] for own in vectors]).double()
    assert masks.mean(1)[:3].tolist() == pytest.approx(shares[[2, 3, 3], [0, 1, 2]].tolist())
    assert len(masks) == whole.clients and masks[3:].all()  # these never took part
    if how == "resumed":
        stopped = start(digits, checkpoints=tmp_path).rounds()
        assert [next(stopped).round, next(stopped).round] == [1, 2]
        again = start(digits, after=2, checkpoints=tmp_path)
    else:
        again = start(digits, **({"cohort": "vmap"} if how == "vmap" else {"executor": Workers(2)}))
    found = recorded(again)
    assert found[0] == series
    assert all(torch.equal(a["mask"], b["mask"]) for a, b in zip(found[1], vectors, strict=True))


def test_a_file_has_eight_bits_in_a_byte_and_reads_back(digits: Dataset, tmp_path: Path) -> None:
    simulation = start(digits)
    list(simulation.rounds())
    written = simulation.extension(Recorded).vectors()
    written.save(tmp_path / FILE)
    found, size = load_vectors(tmp_path / FILE), simulation.federation.model.size
    assert found.named("mask").equal(torch.stack([own["mask"] for own in written.vectors]))  # type: ignore[union-attr]
    assert found.named("mask").dtype == torch.bool and found.named("other") is None  # type: ignore[union-attr]
    assert found.sizes == written.sizes and sum(found.sizes.values()) == size and size % 8
    assert found.labels is not None and found.labels.tolist() == written.labels.tolist()  # type: ignore[union-attr]
    with safe_open(tmp_path / FILE, framework="numpy") as file:
        assert file.get_tensor("mask/1").nbytes == -(-size // 8)
    bytes_ = (tmp_path / FILE).read_bytes()
    written.save(tmp_path / FILE)
    assert (tmp_path / FILE).read_bytes() == bytes_


def test_vectors_of_different_lengths_and_none_read_back(tmp_path: Path) -> None:
    own = [{"w": torch.tensor([0.5, -1.0])}, {"mask": torch.tensor([True, False, True]), "w": torch.ones(3)}]
    for vectors in (own, []):
        ClientVectors(vectors, {"a": 2}).save(tmp_path / FILE)
        found = load_vectors(tmp_path / FILE)
        assert repr(found.vectors) == repr(vectors) and found.labels is None and found.named("w") is None


def test_the_first_clients_are_recorded(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = start(digits)
    list(simulation.rounds())
    monkeypatch.setattr(
        "fedflow.simulation.extensions.recording.PERSONAL_BYTES", 2 * simulation.federation.model.size
    )
    recorded = simulation.extension(Recorded).vectors()
    assert len(recorded.vectors) == len(recorded.labels) == 2  # type: ignore[arg-type]
    monkeypatch.setattr("fedflow.simulation.extensions.recording.PERSONAL_CLIENTS", 1)
    assert len(simulation.extension(Recorded).vectors().vectors) == 1


def spoilt(path: Path, **about: Any) -> None:
    with safe_open(path, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        known = json.loads(file.metadata()["about"])
    save_file(tensors, path, {"about": json.dumps(known | about)})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "."),
        (lambda path: save_file({"mask/0": np.ones(2, np.uint8)}, path), "."),
        (lambda path: spoilt(path, bits={"mask/0": 99}), "mask/0 has 2 bytes for 99 bits"),
        (lambda path: spoilt(path, clients=0), "."),
        (lambda path: spoilt(path, clients=2), "labels of 1 clients, not 2"),
    ],
)
def test_a_damaged_file_is_one_line(spoil: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    mask = torch.arange(9) % 2 == 0
    ClientVectors([{"mask": mask}], {"w": 9}, np.ones((1, 2), dtype=bool)).save(tmp_path / FILE)
    spoil(tmp_path / FILE)
    with refused(f"cannot read .*{FILE}: .*{message}.*; run this experiment again", FedflowError):
        load_vectors(tmp_path / FILE)


def test_what_clients_do_not_keep_cannot_be_recorded() -> None:
    class Other(Halving):
        records = ("mask", "other")

    with refused("fedavg: its clients do not keep other to be recorded", FedflowError):
        list(prepare_run(Other(), quadratics()).rounds())
