"""An experiment as a whole, in this process: what is repeated, resumed, and recorded once."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import one_line_error, prepared_project, recorded_runs

from fedflow.config import Params, load_params
from fedflow.data import load_prepared
from fedflow.errors import BadInput, FedflowError
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.registry import METHODS
from fedflow.partition import load_partition
from fedflow.project.identity import Identity
from fedflow.settings import option
from fedflow.simulation.executors import Inline
from fedflow.simulation.loop import Simulation
from fedflow.stages.experiment import Experiment
from fedflow.stages.federate import perform
from fedflow.stages.partition import prepare_partition
from fedflow.tracking.models import load_model
from fedflow.tracking.store import open_store

PARAMS = """
data: {digits: {source: digits}}
models: {digits: {name: mlp, options: {hidden: [8]}}}
partitions:
  digits-4: {dataset: digits, scheme: dirichlet, alpha: 0.5, clients: 4}
training: {epochs: 1, batch_size: 64, lr: 0.1}
run: {rounds: 2, participation: 0.5, evaluate_every: 1, checkpoint_every: 1}
grid: {datasets: [digits], partitions: [digits-4], methods: [fedavg], seeds: [0]}
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("prepared")
    prepared_project(root, PARAMS, "digits-4")
    return root


@pytest.fixture
def root(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with data and partition in place."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)


def load(root: Path, *changes: str) -> Params:
    return load_params(root / "params.yaml", changes)


def experiment(root: Path, *changes: str, **about: Any) -> Experiment:
    about = {"partition": "digits-4", "method": "fedavg", "seed": 0, "root": root} | about
    return Experiment(load(root, *changes), **about)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


class Private(FedAvg):
    """Settings of a method of one's own, whose names other methods use for the server's data."""

    noise: float = option(1.5, "noise multiplier")
    public: bool = option(True, "whether the noise is known")


def test_only_what_a_method_says_is_data_of_the_server(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "private", Private)
    private = experiment(root, method="private")
    private.check()
    assert private.datasets == ["digits"] and private.job.federation.open().public is None


@pytest.fixture
def go(root: Path) -> Callable[..., dict[str, Any]]:
    """Performs the one experiment of the project folder."""

    return lambda **more: perform(experiment(root), Inline(), **more).metrics


def test_a_partition_that_is_there_is_not_made_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params, folder = load(root), root / "data" / "partitions" / "digits-4"
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}

    def made(*_: Any) -> None:
        raise AssertionError("it was made")

    with monkeypatch.context() as patch:
        patch.setattr("fedflow.stages.partition.make_partition", made)
        assert prepare_partition(params, "digits-4", root) == folder
        for change in ("alpha=5", "newcomers=0.25"):  # another parameter
            with pytest.raises(AssertionError, match="it was made"):
                prepare_partition(load(root, f"partitions.digits-4.{change}"), "digits-4", root)
        patch.setattr("fedflow.project.identity.code_digest", lambda *parts, **aside: "of other code")
        with pytest.raises(AssertionError, match="it was made"):
            prepare_partition(params, "digits-4", root)
    monkeypatch.setattr("fedflow.project.identity.code_digest", lambda *parts, **aside: "of a comment")
    prepare_partition(params, "digits-4", root)
    after = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert after == before  # for DVC nothing changed


@pytest.mark.parametrize("spoil", ["partition.safetensors", "summary.json"])
def test_a_damaged_partition_is_made_again(root: Path, spoil: str) -> None:
    file = root / "data" / "partitions" / "digits-4" / spoil
    good = file.read_bytes()
    file.write_bytes(good[:-9])
    prepare_partition(load(root), "digits-4", root)
    assert file.read_bytes() == good


# Difficulty

HARD = "partitions.hard={dataset: digits, scheme: iid, clients: 4, difficulty: {losses: losses.npy}}"


@pytest.fixture
def consistency(root: Path) -> Callable[..., list[float]]:
    """Mean given loss of every client of the partition ``hard``, with changes to it."""

    def measure(*changes: str) -> list[float]:
        folder = prepare_partition(load(root, HARD, *changes), "hard", root)
        losses, made = np.load(root / "losses.npy"), load_partition(folder)
        return [float(losses[made.train(k)].mean()) for k in range(4)]

    count = len(load_prepared(root / "data" / "prepared" / "digits").y_train)
    np.save(root / "losses.npy", np.random.default_rng(0).random(count))
    return measure


def test_clients_hold_samples_by_the_losses_of_a_file(root: Path, consistency: Callable) -> None:
    folder = root / "data" / "partitions" / "hard"
    means = consistency()
    assert means == pytest.approx([1 / 8, 3 / 8, 5 / 8, 7 / 8], abs=0.03)
    before = load_partition(folder)
    assert before.facts["difficulty"]["inter_std"] == pytest.approx(np.std(means))
    assert (folder / "difficulty.png").read_bytes().startswith(b"\x89PNG")
    np.save(root / "losses.npy", 10 * np.load(root / "losses.npy"))  # the same partition, other facts
    consistency()
    after = load_partition(folder)
    assert after.hash == before.hash
    assert after.facts["difficulty"]["inter_std"] == pytest.approx(10 * np.std(means))
    np.save(root / "losses.npy", -np.load(root / "losses.npy") / 10)  # another file of the same name
    assert consistency() == pytest.approx([-7 / 8, -5 / 8, -3 / 8, -1 / 8], abs=0.03)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"losses.npy"),
        (b"text", r"losses.npy"),
        (np.zeros(3), r"partition.difficulty.losses: 'losses.npy' .* 1438 finite numbers, one per training"),
        (np.full(1438, np.nan), r"partition.difficulty.losses: .* finite numbers"),
        (np.full(1438, "a"), r"partition.difficulty.losses: .* finite numbers"),
        (np.full(1438, None), r"losses.npy.*pickle"),
    ],
    ids=["missing", "no array", "too few", "nan", "text", "pickled"],
)
def test_losses_that_cannot_be_used_are_one_line(root, consistency, content, message) -> None:
    file = root / "losses.npy"
    if content is None:
        file.unlink()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        np.save(file, content, allow_pickle=True)
    with one_line_error(message):
        consistency()
    assert not (root / "data" / "partitions" / "hard").exists()


# Runs


def test_clients_with_separate_classes_share_a_network_with_all_outputs(root: Path) -> None:
    """ALID: classes 0..2 mean something else at every client, in training, scores and the recorded model."""
    anonymous = "{dataset: digits, scheme: acid, classes_per_client: 3, anonymous: true, clients: 4}"
    short = ("run.participation=1", "training.batch_size=10", "run.rounds=4")
    params = load(root, f"partitions.alid={anonymous}", *short)
    made = load_partition(prepare_partition(params, "alid", root))
    ditto = Experiment(params, "alid", "ditto", 0, root)
    metrics = perform(ditto, Inline()).metrics
    (run,) = recorded_runs(root)
    dataset = load_prepared(root / "data" / "prepared" / "digits")
    accuracies = []
    for k in range(4):
        network = load_model(run.info.run_id, "personal", client=k, root=root)
        rows = torch.as_tensor(made.test(k))
        outputs = network(dataset.test.inputs(rows))
        assert outputs.shape[-1] == 3
        names = torch.as_tensor(made.test_labels)[rows]
        accuracies.append(float((outputs.argmax(-1) == names).double().mean()))
    assert metrics["local_accuracy"] == pytest.approx(np.mean(accuracies))
    assert metrics["local_accuracy"] > 0.7 > metrics["global_accuracy"]


def test_pictures_of_the_partition_and_of_what_grows_are_recorded(root: Path, consistency: Callable) -> None:
    consistency()
    curriculum = (
        "training.curriculum={order: anti}",
        "run.rounds=2",
        "run.sampling=easy_first",
        "run.client_curriculum.b=1",
    )
    perform(experiment(root, HARD, *curriculum, partition="hard"), Inline())
    (run,) = recorded_runs(root)
    list_files, recorded = open_store(root).client().list_artifacts, ["partition", "curriculum"]
    files = [file.path for folder in recorded for file in list_files(run.info.run_id, folder)]
    assert files == [
        "partition/difficulty.png",
        "partition/labels.png",
        "curriculum/pool.png",
        "curriculum/prefix.png",
    ]


def test_a_picture_that_cannot_be_drawn_costs_no_results_and_no_rounds(root, go, monkeypatch) -> None:
    def damaged(*_: Any) -> Any:
        raise ValueError("no colors\nare left")

    folder = root / "results" / "digits-4" / "fedavg" / "0"
    with (
        monkeypatch.context() as patch,
        pytest.warns(UserWarning, match=r"missing \(ValueError: no colors\);"),
    ):
        patch.setattr("fedflow.stages.federate.drawn", damaged)
        go()
    files, (run,) = contents(folder), recorded_runs(root)
    assert "metrics.json" in files and run.info.status == "FINISHED"
    assert run.data.tags["fedflow.incomplete"] == "pictures are missing (ValueError: no colors)"
    replayed: list[bool] = []
    go(listeners=[lambda report, rounds: replayed.append(report.replayed)])
    assert replayed == [True, True] and contents(folder) == files
    (run,) = recorded_runs(root)
    assert run.info.status == "FINISHED" and "fedflow.incomplete" not in run.data.tags
    assert not any((root / ".fedflow" / "checkpoints").iterdir())


def test_a_run_too_short_for_its_method_is_refused_before_it_is_recorded(root: Path) -> None:
    short = experiment(root, "methods.cfl.warm_up=9", "run.rounds=9", method="cfl")
    for refused in (short.check, lambda: perform(short, Inline())):
        with pytest.raises(BadInput, match=r"^method.warm_up: 9 .*less than 9, the rounds of the run"):
            refused()
    assert recorded_runs(root) == []


def test_a_global_model_that_is_served_is_the_one_recorded(root: Path) -> None:
    for method in ("ditto", "fedavg"):
        each = experiment(root, "methods.ditto.served=global", method=method)
        perform(each, Inline())
    states = [load_model(run.info.run_id, "global", root=root).state_dict() for run in recorded_runs(root)]
    assert len(states) == 2 and all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_run_killed_after_it_was_recorded_is_not_recorded_twice(root, go, monkeypatch) -> None:
    def killed(simulation: Simulation) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "forget", killed)
        with pytest.raises(KeyboardInterrupt):
            go()
    folder = root / "results" / "digits-4" / "fedavg" / "0"
    files = contents(folder)
    assert len(list((root / ".fedflow" / "checkpoints").iterdir())) == 1
    seen: list[Any] = []
    go(listeners=[lambda report, rounds: seen.append(report.replayed)])
    assert seen == [True, True]
    assert list((root / ".fedflow" / "checkpoints").iterdir()) == []
    assert contents(folder) == files
    (run,) = recorded_runs(root)
    assert run.info.status == "FINISHED"
    go()  # there is nothing to resume: a new run
    assert len(recorded_runs(root)) == 2


def test_a_second_process_is_refused_before_it_reads_the_checkpoint(root, go, monkeypatch) -> None:
    """It would settle rows that the first process is writing."""

    def again(report: Any, rounds: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("fedflow.simulation.setup.load_checkpoint", lambda folder: pytest.fail("read"))
            with pytest.raises(FedflowError, match=r"digits-4 · fedavg · seed 0 is already running"):
                go()

    go(listeners=[again])
    assert [run.info.status for run in recorded_runs(root)] == ["FINISHED"]


def test_two_runs_at_once_never_share_a_folder(root: Path, go: Callable) -> None:
    folder = root / "mine"

    def other(report: Any, rounds: int) -> None:
        with one_line_error("mine is in use by another run"):
            perform(experiment(root, "training.lr=0.05"), Inline(), out=folder)

    go(out=folder, listeners=[other])
    assert len(recorded_runs(root)) == 1 and not list(folder.glob("*lock*"))


# Settings and where results go


def test_results_say_by_which_settings_they_came(root: Path) -> None:
    metrics = perform(changed := experiment(root, "training.lr=0.05"), Inline()).metrics
    params = json.loads((changed.results_folder / "params.json").read_text())
    assert params["method"]["name"] == "fedavg" and "weighting" in params["method"]  # a default
    assert params["training"]["lr"] == 0.05 and params["run"]["rounds"] == 2 and params["seed"] == 0
    assert params["model"] == {"name": "mlp", "options": {"hidden": [8]}}
    assert params["data"]["digits"]["source"] == "digits"
    assert params["partition"]["parameters"]["alpha"] == 0.5
    assert params["settings"] == metrics["settings"] == changed.digest
    stored = json.loads((changed.results_folder / "metrics.json").read_text())
    assert stored["settings"] == changed.digest
    made = Identity.read(changed.results_folder)
    assert made is not None and not made.differences(changed.identity)
    assert made.differences(experiment(root).identity) == ["settings: training.lr 0.05 -> 0.1"]
    (run,) = recorded_runs(root)
    assert run.data.tags["settings"] == changed.digest and run.data.params["data.digits.source"] == "digits"


def test_an_entry_with_another_name_has_a_folder_and_the_settings_of_its_method(root: Path) -> None:
    (root / "params.yaml").write_text(PARAMS + "methods: {same: {method: fedavg, label: Ours}}\n")
    same = experiment(root, method="same")
    assert same.digest == experiment(root).digest and same.effective["method"]["name"] == "fedavg"
    other = experiment(root, "methods.same.training.lr=0.05", method="same")
    assert other.effective == experiment(root, "training.lr=0.05").effective
    assert other.results_folder.name == f"0-{other.digest[:8]}"

    plain, named = (perform(e, Inline()).metrics for e in (experiment(root), same))
    assert (named["method"], named["method_label"]) == ("same", "Ours")
    assert contents(same.results_folder).keys() == contents(experiment(root).results_folder).keys()
    assert {n: v for n, v in named.items() if "method" not in n} == {
        n: plain[n] for n in named if "method" not in n
    }
    assert same.results_folder == root / "runs" / "digits-4" / "same" / "0"
    recorded = {run.info.run_name: run.data for run in recorded_runs(root)}
    assert recorded.keys() == {"fedavg seed 0", "same seed 0"}
    assert recorded["same seed 0"].params["method.name"] == "fedavg"


@pytest.mark.parametrize(
    "change",
    [
        "training.lr=0.05",
        "methods.fedavg.weighting=uniform",
        "run.rounds=3",
        "run.target_accuracy=0.5",
        "models.digits=mlp",
        "data.digits.train_limit=500",
        "partitions.digits-4.alpha=5",
        "methods.fedavg.training.epochs=2",
        "tuned.digits-4.fedavg.training.lr=0.2",
    ],
)
def test_whatever_can_change_the_numbers_changes_the_digest_and_the_folder(root: Path, change: str) -> None:
    plain, other = experiment(root), experiment(root, change)
    assert other.digest != plain.digest
    assert plain.results_folder == root / "results" / "digits-4" / "fedavg" / "0"
    assert other.results_folder.name == f"0-{other.digest[:8]}"


@pytest.mark.parametrize(
    "change",
    [
        "engine.executor=inline",
        "engine.workers=7",
        "run.checkpoint_every=2",
        "training.lr=0.1",
        "grid.seeds=[0,1]",
        "methods.ditto.lam=3",
        "training.momentum=0.0",
    ],
)
def test_what_changes_no_number_changes_neither(root: Path, change: str) -> None:
    plain, other = experiment(root), experiment(root, change)
    assert (other.digest, other.results_folder) == (plain.digest, plain.results_folder)
    assert experiment(root, seed=1).digest == plain.digest


def test_a_file_that_is_edited_keeps_the_plain_folder(root: Path, go: Callable, capsys: Any) -> None:
    before = go()
    (root / "params.yaml").write_text(PARAMS.replace("lr: 0.1", "lr: 0.05"))
    after = go()
    assert after["settings"] != before["settings"]
    folder = root / "results" / "digits-4" / "fedavg" / "0"
    assert json.loads((folder / "metrics.json").read_text())["settings"] == after["settings"]
    assert "replacing results of another run (other settings)" in " ".join(capsys.readouterr().out.split())


def test_a_file_that_needs_the_changes_to_be_valid_gives_no_plain_results(root: Path) -> None:
    (root / "params.yaml").write_text(PARAMS.replace("partitions: [digits-4]", "partitions: [other]"))
    repaired = experiment(root, "partitions.other={dataset: digits, scheme: iid, clients: 4}")
    assert repaired.results_folder.name == f"0-{repaired.digest[:8]}"


def test_a_named_folder_with_results_of_another_run_is_left_alone(root: Path, go: Callable) -> None:
    folder = root / "mine"
    go(out=folder)
    go(out=folder)  # the same run may replace its own
    kept = contents(folder)
    for other, what in ((experiment(root, "run.rounds=1"), "settings"), (experiment(root, seed=1), "seed")):
        with one_line_error(rf"mine holds results of another run \(other {what}\): name"):
            perform(other, Inline(), out=folder)
    assert contents(folder) == kept
    assert len(recorded_runs(root)) == 2
