"""Studies at the published scale: their settings agree with the books, and one round of a cell runs."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import fedflow
from support import OnMeta, forbid_fallback
from torch import Tensor

from fedflow.claims.books import Line, books
from fedflow.config import load_params
from fedflow.config.sections import ModelParams
from fedflow.data import Examples, data_root
from fedflow.local.teacher import Teacher
from fedflow.methods.protocols import Leveled
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.simulation.cohort import cohort_call
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job, Shard
from fedflow.simulation.levels import level, network
from fedflow.simulation.loop import Simulation
from fedflow.stages.experiment import Experiment
from fedflow.stages.grid import Cell, cells

STUDIES = Path(__file__).parents[1] / "studies"
TABLES = {  # book and table of each study
    "mix4": ("pacfl-flis", "Tables 3.11"),
    "online_full": ("moml", "Table 5.1"),
    "feddyn_full": ("feddyn", "Table 2.3"),
    "label_noise_full": ("superfed", "Table 2.6"),
    "curricula_full": ("curricula", "Table 2.2"),
    "fedhen_full": ("fedhen", "Table 4.1"),
    "side_losses_full": ("side-losses", "Table 7.1"),
    "disk_full": ("disk", "Table 6.3"),
}
ROOT = data_root()
REPLACED = {"emnist_letters": "svhn"}  # in MIX-4, as its page says
FEWER_ROUNDS = {("feddyn_full", "scaffold"), ("feddyn_full", "feddyn")}  # as their page says


def grid(study: str) -> list[Cell]:
    return cells(load_params(STUDIES / study / "params.yaml"), STUDIES / study, "sweep")


def lines(study: str) -> list[Line]:
    book, label = TABLES[study]
    (found,) = (table for table in books()[book].tables if table.label.startswith(label))
    return found.lines


def settings(run: Experiment) -> dict[str, Any]:
    """The settings that a book's `Setup` may name, except the number of seeds."""
    _, training = run.params.method(run.method, run.partition)
    parts = run.params.dataset(run.dataset).as_dict().get("parameters", {}).get("parts", [])
    return {
        "clients": run.params.partition(run.partition).clients,
        "participation": run.run.participation,
        "rounds": run.run.rounds,
        "model": run.params.model(run.dataset).name,
        "epochs": training.epochs,
        "batch_size": training.batch_size,
        "sources": sorted(REPLACED.get(part["source"], part["source"]) for part in parts) or None,
    }


RUNS = [(study, cell) for study in TABLES for cell in grid(study) if isinstance(cell, Experiment)]


@pytest.mark.parametrize("study", dict(RUNS))
def test_settings_are_those_of_the_published_table(study: str) -> None:
    for run in (run for name, run in RUNS if name == study):
        source = run.params.dataset(run.dataset).source
        scheme = run.params.partition(run.partition).scheme
        names = {run.dataset, source}
        known = [line for line in lines(study) if line.where.dataset in names and line.where.scheme == scheme]
        assert known, run.title
        method, _ = run.params.method(run.method, run.partition)
        assert method.name.removesuffix("_as_published") in {cell.method for cell in known[0].cells}
        for line in known:
            for name, value in settings(run).items():
                published = getattr(line.setup, name)
                fewer = name == "rounds" and (study, run.method) in FEWER_ROUNDS
                assert fewer or published in (None, value), (run.title, name)


def test_online_learning_has_the_published_stream_and_grids() -> None:
    """MOML, Tables 5.1 and 5.3 on S-MNIST: section 5.1 of its specification."""
    (run, *_) = grid("online_full")
    assert run.params.dataset("smnist").parameters.tasks == 1000
    names = (
        "gradient_steps",
        "adaptation_steps",
        "adaptation_lr",
        "alpha",
        "lr",
        "batch_size",
        "weight_decay",
    )
    values = [run.effective["procedure"][name] for name in names]
    assert values == [[10, 20], [1, 5], [0.1, 0.01], [1, 5, 10], 0.1, 10, 1e-3]


def trained_without_values(
    job: Job, federation: Federation, shard: Shard, members: list[int], *more: Any, **settings: Any
) -> Callable[[], dict[str, Tensor]]:
    """A cohort call whose training runs on tensors without values; its outputs are zeros."""
    meta = torch.device("meta")
    teachers = {
        name: Teacher(OnMeta(read.model), read.w.to(meta)) for name, read in federation.inputs.items()
    }
    nowhere = replace(
        federation, model=OnMeta(federation.model), train=federation.train.to(meta), inputs=teachers
    )
    empty = replace(shard, vectors=[w.to(meta) for w in shard.vectors])
    name = level(job.method, federation, shard.clients[members[0]])
    call = cohort_call(job, nowhere, empty, members, *more, **settings)
    with network(job.method, nowhere, name).for_cohorts():
        outputs = call()
    assert {tensor.device.type for tensor in outputs.values()} == {"meta"}
    zeros = {name: torch.zeros(t.shape, dtype=t.dtype) for name, t in outputs.items()}
    group = [*job.method.networks()].index(name) if isinstance(job.method, Leveled) else 0
    known = {"accepted": 1, "weight": 1, "group": group}
    return lambda: zeros | {key: torch.full((len(members),), value) for key, value in known.items()}


@pytest.mark.full
@pytest.mark.parametrize("study", ["fedhen_full", "side_losses_full"])
def test_a_cohort_trains_at_full_size(study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of 10 of 100 clients: an epoch of 500 images, batches of 50, by the last method of the grid."""
    monkeypatch.setattr("fedflow.simulation.cohort.cohort_call", trained_without_values)
    forbid_fallback(monkeypatch)
    run = [cell for name, cell in RUNS if name == study][-1]
    method, training = run.params.method(run.method, run.partition)
    x, y = torch.zeros(1, 3, 32, 32).expand(50_000, 3, 32, 32), torch.arange(50_000) % 100

    def built(model: ModelParams) -> FlatModel:
        return FlatModel(partial(build, model.name, (3, 32, 32), 100, **model.options))

    teachers = {
        read.name: Teacher(
            teacher := built(run.params.network(read.network).model), torch.zeros(teacher.size)
        )
        for read in run.params.reads(run.method, run.partition)
    }
    federation = Federation(
        built(run.params.model(run.dataset)),
        Examples(x, y),
        Examples(x[:10], y[:10]),
        Partition.from_lists(np.split(np.arange(50_000), 100), [np.arange(1)] * 100, [np.arange(1)] * 100),
        inputs=teachers,
    )
    settings = replace(run.run, rounds=1, reports=[], fine_tune=False)
    job = Job(federation, method, replace(training, epochs=1), 0, "vmap")
    (report,) = Simulation(job, settings).rounds()
    assert len(report.cohort) == 10


ROUNDS = {  # one round of a cell of each study for a CPU
    "mix4": ("grid.methods=[pacfl]", "run.rounds=1", "run.keep_trained=false"),
    "online_full": ("procedures.smnist.tasks=1",),
    "feddyn_full": ("grid.partitions=[dir-0.3]", "grid.methods=[feddyn]", "methods.feddyn.run.rounds=1"),
    "label_noise_full": (
        "grid.partitions=[official-pair-0.4]",
        "grid.methods=[superfed_lm]",
        "methods.superfed_lm.start=0",
        "run.rounds=1",
    ),
    "curricula_full": ("grid.partitions=[dir-0.05]", "grid.methods=[fedavg_curriculum]", "run.rounds=1"),
}


FILES = "mnist.npz fmnist.npz usps.npz emnist_letters.npz cifar100_mini.npz cifar10.tar".split()


@pytest.mark.slow
@pytest.mark.skipif(not all((ROOT / file).is_file() for file in FILES), reason="no images in the data root")
@pytest.mark.parametrize("study", ROUNDS)
def test_one_round_on_real_data(study: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "params.yaml").write_text((STUDIES / study / "params.yaml").read_text())
    changes = [flag for change in ("grid.seeds=[0]", *ROUNDS[study]) for flag in ("--set", change)]
    done = fedflow(capsys, "sweep", "--root", tmp_path, "--jobs", 1, *changes)
    assert done.code == 0 and done.out.count("1 of 1: ") == 1, done.err


@pytest.mark.slow
def test_one_round_of_distillation_on_few_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The published networks, batches and epochs on 400 images; the accuracy means nothing."""
    rng, labels = np.random.default_rng(0), np.arange(400) % 100
    x = rng.integers(0, 256, (400, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "few.npz", x_train=x, y_train=labels, x_test=x[:100], y_test=labels[:100])
    (tmp_path / "params.yaml").write_text((STUDIES / "disk_full" / "params.yaml").read_text())
    pair, networks = "l-xxs", ("teacher-l", "xxs")
    changes = [
        f"data.cifar100={{source: npz, path: {tmp_path}/few.npz}}",
        f"grid.central=[{', '.join(networks)}]",
        f"grid.procedures=[{pair}]",
        "grid.seeds=[0]",
        f"procedures.{pair}.rounds=1",
        f"procedures.{pair}.methods.disk.lambda_period=1",
        *(f"central.{name}.training.epochs=1" for name in networks),
    ]
    given = [flag for change in changes for flag in ("--set", change)]
    done = fedflow(capsys, "sweep", "--root", tmp_path, "--jobs", 1, *given)
    assert done.code == 0 and done.out.count("1 of 1: ") == 1, done.err
