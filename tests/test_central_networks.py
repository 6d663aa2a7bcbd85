"""Central networks as a stage: when they are trained, what survives a kill, and who uses them."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from command import fedflow, make_project, one_line_error, recorded_runs
from safetensors.torch import load_file

from fedflow.config import Params, load_params
from fedflow.data import load_prepared
from fedflow.errors import FedflowError
from fedflow.local.trained import load_network
from fedflow.partition import load_partition
from fedflow.simulation.federation import FederationFiles, Stored, StoredInput
from fedflow.simulation.setup import RunSetup
from fedflow.stages.all_stages import run_experiment
from fedflow.stages.central_network import CentralRun, prepare_network
from fedflow.stages.experiment import Experiment
from fedflow.stages.fingerprints import write_fingerprints
from fedflow.stages.partition import prepare_partition
from fedflow.stages.prepare import prepare_dataset
from fedflow.tracking.models import load_model
from fedflow.tracking.store import open_store

PARAMS = """
data: {digits: {source: digits}, few: {source: digits, train_limit: 300}}
models: {digits: {name: mlp, options: {hidden: [8]}}, few: linear}
central:
  expert: {dataset: digits, training: {epochs: 3, lr: 0.1}}
  wide: {dataset: digits, model: {name: mlp, options: {hidden: [16]}}, training: {epochs: 2}}
  few: {dataset: few, model: mlp}
partitions:
  plain: {dataset: digits, scheme: iid, clients: 4}
  noisy: {dataset: digits, scheme: iid, clients: 4, label_noise: {kind: pair, ratio: 0.2}}
  renamed: {dataset: digits, scheme: acid, classes_per_client: 3, anonymous: true, clients: 4}
  hard: {dataset: digits, scheme: iid, clients: 4, difficulty: {expert: expert}}
training: {epochs: 1, batch_size: 64, lr: 0.1}
run: {rounds: 2, participation: 0.5, evaluate_every: 2}
grid: {datasets: [digits], partitions: [plain], methods: [fedavg], seeds: [0]}
engine: {executor: inline, device: cpu}
"""
CURRICULUM = "training.curriculum={score: expert, expert: expert}"
DISTIL = "training.objective={name: distil, teacher: wide}"
CLIENTS = "run.client_curriculum={score: expert, expert: expert}"
EASY = "run.sampling=easy_first"
FEATURES = "partitions.hard.feature_noise={sigma: 0.1}"
NOISE = "partitions.hard.label_noise={kind: pair, ratio: 0.2}"
RENAMED = (
    "partitions.hard={dataset: digits, scheme: acid, classes_per_client: 3, anonymous: true, clients: 4, "
    "difficulty: {expert: expert}}"
)
FILES = ("epochs.csv", "identity.json", "losses.npy", "metrics.json", "model.safetensors")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return make_project(tmp_path, PARAMS)


def load(root: Path, *changes: str) -> Params:
    return load_params(root / "params.yaml", changes)


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose expert was trained without interruption."""
    root = make_project(tmp_path_factory.mktemp("whole"), PARAMS)
    prepare_network(load(root), "expert", root)
    return root


@pytest.fixture
def copy(whole: Path, root: Path) -> Path:
    """A project with the trained expert, and nothing recorded."""
    shutil.copytree(whole / "data", root / "data")
    return root


def test_a_network_that_sees_the_test_samples_says_so(root: Path, capsys: pytest.CaptureFixture) -> None:
    merged = "data.few={source: mix, parts: [{source: digits, train_limit: 300}], merge: true}"
    prepare_network(load(root, merged, "central.few.training={epochs: 1}"), "few", root)
    assert "central.few: trained on the test samples of few too" in capsys.readouterr().out


def test_files_record_and_model_agree(whole: Path) -> None:
    folder = whole / "data" / "central" / "expert"
    facts, epochs = json.loads((folder / "metrics.json").read_text()), pd.read_csv(folder / "epochs.csv")
    assert list(epochs) == ["epoch", "lr", "train_loss", "test_loss", "test_accuracy"] and len(epochs) == 3
    assert facts["test_accuracy"] == pytest.approx(epochs["test_accuracy"].iloc[-1]) and facts["epochs"] == 3
    (run,) = recorded_runs(whole)
    assert run.info.status == "FINISHED" and run.info.run_name == "expert"
    assert run.data.metrics["test_accuracy"] == facts["test_accuracy"]
    assert run.data.params["central.training.lr"] == "0.1"
    api = open_store(whole).client()
    assert [m.step for m in api.get_metric_history(run.info.run_id, "train_loss")] == [1, 2, 3]
    assert {file.path for file in api.list_artifacts(run.info.run_id, "results")} == {
        f"results/{name}" for name in FILES
    }
    dataset, net = (
        load_prepared(whole / "data" / "prepared" / "digits"),
        load_model(run.info.run_id, root=whole),
    )
    outputs = net(dataset.test.inputs(torch.arange(len(dataset.y_test))))
    hits = (outputs.argmax(-1) == dataset.y_test).double().mean().item()
    assert hits == pytest.approx(facts["test_accuracy"]) and hits > 0.8
    losses, train = np.load(folder / "losses.npy"), dataset.train.inputs(torch.arange(len(dataset.y_train)))
    expected = torch.nn.functional.cross_entropy(net(train), dataset.y_train, reduction="none")
    assert losses.dtype == np.float64 and losses == pytest.approx(expected.detach().numpy(), abs=1e-5)


def test_a_network_is_trained_again_only_if_it_may_change(copy: Path, monkeypatch) -> None:
    trained: list[str] = []
    monkeypatch.setattr(CentralRun, "run", lambda run, *rest: trained.append(run.name))

    def again(*changes: str) -> bool:
        trained.clear()
        prepare_network(load(copy, *changes), "expert", copy)
        return trained == ["expert"]

    assert not again() and not again("training.lr=9", "engine.workers=3", "central.wide.seed=5")
    for change in ("training.lr=0.2", "seed=1", "label_smoothing=0.1", "schedule=cosine", "model=mlp"):
        assert again(f"central.expert.{change}"), change
    assert again("data.digits.train_limit=500")
    prepare_network(load(copy), "expert", copy)
    with monkeypatch.context() as patch:
        patch.setattr("fedflow.project.identity.code_digest", lambda *parts, **aside: "of other code")
        assert again()
    for name in FILES:
        before = (copy / "data" / "central" / "expert" / name).read_bytes()
        (copy / "data" / "central" / "expert" / name).write_bytes(before[:-9])
        assert again()
        (copy / "data" / "central" / "expert" / name).write_bytes(before)


KILLED = """
import os, signal, sys
from pathlib import Path
from fedflow.config import load_params
from fedflow.stages.central_network import prepare_network
root = Path(sys.argv[1])
def listen(epoch, epochs):
    if epoch == 2:
        os.kill(os.getpid(), signal.SIGKILL)
prepare_network(load_params(root / "params.yaml"), "expert", root, listeners=[listen])
"""


@pytest.mark.parametrize("moment", ["in an epoch", "Record.end", "drop_checkpoint"])
def test_a_killed_training_ends_as_an_undisturbed_one(
    root: Path, whole: Path, moment, monkeypatch, preloaded
) -> None:
    epochs: list[int] = []
    if moment == "in an epoch":
        command = [preloaded / "python", "-c", KILLED, str(root)]
        assert subprocess.run(command, env=os.environ, check=False).returncode == -signal.SIGKILL
        assert not any((root / "data" / "central" / "expert").iterdir())
    else:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(f"fedflow.stages.steps.{moment}", interrupted)
            prepare_network(load(root), "expert", root)
    torch.backends.cudnn.allow_tf32 = True  # PyTorch's default
    prepare_network(load(root), "expert", root, listeners=[lambda epoch, of: epochs.append(epoch)])
    assert epochs == ([3] if moment == "in an epoch" else [])
    assert torch.backends.cudnn.allow_tf32 == (moment == "drop_checkpoint")  # then nothing was left to run
    folder = Path("data", "central", "expert")
    assert contents(root / folder) == contents(whole / folder)
    assert not any((root / ".fedflow" / "checkpoints").iterdir())
    (run,), api = recorded_runs(root), open_store(root).client()
    assert run.info.status == "FINISHED"
    assert [m.step for m in api.get_metric_history(run.info.run_id, "test_loss")] == [1, 2, 3]
    assert len(run.outputs.model_outputs) == 1


def test_networks_with_equal_settings_are_separate_runs(root: Path, preloaded) -> None:
    """One of them is trained to its end while the other, which was killed, keeps its checkpoint."""
    text = (root / "params.yaml").read_text()
    twin = text.replace("  wide:", "  twin: {dataset: digits, training: {epochs: 3, lr: 0.1}}\n  wide:")
    (root / "params.yaml").write_text(twin)
    command = [preloaded / "python", "-c", KILLED, str(root)]
    assert subprocess.run(command, env=os.environ, check=False).returncode == -signal.SIGKILL
    epochs: list[int] = []
    for name in ("twin", "expert"):
        prepare_network(load(root), name, root, listeners=[lambda epoch, of: epochs.append(epoch)])
    assert epochs == [1, 2, 3, 3]
    assert sorted(run.info.run_name for run in recorded_runs(root)) == ["expert", "twin"]


def interrupted(*given: object, **more: object) -> None:
    raise KeyboardInterrupt


def test_the_command_trains_one_and_says_how_good_it_is(root: Path, capsys) -> None:
    done = fedflow(capsys, "central", "wide", "--root", root)
    assert done.code == 0 and "epoch 2/2, test accuracy" in done.out and "test_accuracy 0." in done.out
    for name, words in (("expart", "(did you mean 'expert'?); expected one of expert"),):
        done = fedflow(capsys, "central", name, "--root", root)
        assert done.code == 2 and words in done.err and done.err.count("\n") == 1
    done = fedflow(capsys, "central", "wide", "--set", "central.wide.training.lr=1e9", "--root", root)
    assert done.code == 2 and "central.wide: diverged in epoch" in done.err and done.err.count("\n") == 1


def test_a_loss_that_is_not_finite_is_never_saved(root: Path, monkeypatch) -> None:
    monkeypatch.setattr("fedflow.stages.central_network.evaluate", lambda *_: (np.array([1, np.nan]), None))
    with one_line_error("central.expert: diverged: 1 training samples have no finite loss", FedflowError):
        prepare_network(load(root), "expert", root)
    assert not any((root / "data" / "central" / "expert").iterdir())
    assert [run.info.status for run in recorded_runs(root)] == ["FAILED"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            [
                "data.real={source: mixed_regression}",
                "models.real={name: linear}",
                "central.expert={dataset: real, label_smoothing: 0.1}",
                "partitions={plain: {dataset: digits, scheme: iid, clients: 4}}",
            ],
            "central.expert.label_smoothing: 0.1 .*expected 0, as this network has its own loss",
        ),
        (["central.expert.training.augment=flip_crop_cutout"], "central.expert.training.augment: 'flip_crop"),
        (["central.expert.model=lenet5"], "central.expert.model.name: 'lenet5'"),
    ],
)
def test_what_the_data_cannot_be_trained_with_is_refused_before(root: Path, changes, message) -> None:
    with one_line_error(message):
        prepare_network(load(root, *changes), "expert", root)
    assert recorded_runs(root) == []


def test_clients_hold_samples_by_the_losses_of_an_expert(copy: Path) -> None:
    made = load_partition(prepare_partition(load(copy), "hard", copy))
    losses = load_network(copy / "data" / "central" / "expert").losses
    assert np.all(np.diff([losses[made.train(k)].mean() for k in range(4)]) > 0)
    shutil.rmtree(copy / "data" / "central")
    changed = load(copy, "partitions.hard.seed=1")
    with one_line_error(r"expert/metrics.json: missing; `fedflow central expert` trains this network"):
        prepare_partition(changed, "hard", copy)


def test_the_command_partition_trains_a_missing_expert(root: Path, capsys) -> None:
    done = fedflow(capsys, "partition", "hard", "--root", root)
    assert done.code == 0 and "central · expert: epoch 3/3" in done.out
    assert load_partition(root / "data" / "partitions" / "hard").params["difficulty"]["expert"] == "expert"


INPUTS = {
    "teacher": lambda stored: StoredInput("teacher", stored, field="training.objective.teacher"),
    "expert": lambda stored: StoredInput("expert", stored, losses=True, field="training.curriculum.expert"),
}


@pytest.fixture
def opened(copy: Path) -> Callable[..., FederationFiles]:
    """The files of a run on a partition, with the expert as teacher or expert."""
    stored = Stored(str(copy / "data" / "central" / "expert"), "")

    def files(partition: str, *uses: str, params: Params | None = None) -> FederationFiles:
        params = params or load(copy)
        prepare_partition(params, partition, copy)
        job = Experiment(params, partition, "fedavg", 0, copy).job
        assert isinstance(job.federation, FederationFiles)
        return replace(job.federation, inputs=tuple(INPUTS[name](stored) for name in uses))

    return files


def test_workers_have_the_outputs_of_the_teacher_and_the_losses_of_the_expert(copy: Path, opened) -> None:
    plain, both = opened("plain").open(), opened("plain", "teacher", "expert").open()
    assert not plain.inputs and plain.shipped == 0
    w = load_file(copy / "data" / "central" / "expert" / "model.safetensors")["w"]
    assert both.shipped == 4 * len(w)  # one network, sent once
    x = both.train.inputs(torch.arange(5))
    assert both.inputs["teacher"].outputs(x).equal(both.model.outputs(w, x))
    losses = np.load(copy / "data" / "central" / "expert" / "losses.npy")
    assert both.inputs["expert"].numpy() == pytest.approx(losses)
    job = Experiment(load(copy), "plain", "fedavg", 0, copy).job
    used = [(), ("teacher",), ("expert",), ("teacher", "expert")]
    federations = [replace(job, federation=opened("plain", *names)) for names in used]
    settings = load(copy).run
    assert len({RunSetup(each, settings).fingerprint for each in federations}) == 4


@pytest.mark.parametrize(
    ("partition", "use", "message"),
    [
        ("renamed", "teacher", "training.objective.teacher: 'expert' .*null, as this partition changes the"),
        ("renamed", "expert", "training.curriculum.expert: 'expert' .*null, as this partition changes the"),
        ("noisy", "expert", "training.curriculum.expert: 'expert' .*null, as this partition changes the"),
        ("noisy", "teacher", None),
    ],
)
def test_networks_of_other_labels_are_refused(opened, partition, use, message) -> None:
    if message is None:
        assert "teacher" in opened(partition, use).open().inputs
    else:
        with one_line_error(message):
            opened(partition, use).open()


def test_a_run_whose_teacher_has_seen_test_samples_warns_once(copy: Path, opened, recwarn) -> None:
    for change, says in (("holdout=0.2", "test"), ("validation=0.2", "validation"), ("seed=7", "")):
        params = load(copy, f"partitions.plain.{change}")
        job = replace(Experiment(params, "plain", "fedavg", 0, copy).job)
        for uses in ((), ("teacher", "expert")):
            recwarn.clear()
            RunSetup(replace(job, federation=opened("plain", *uses, params=params)), params.run)
            reason = f"learned from all samples, also those that clients hold out as {says} samples"
            expected = [f"fedavg: its teacher and its expert {reason}"] if uses and says else []
            assert [str(each.message) for each in recwarn] == expected


def test_a_network_of_older_data_is_refused(copy: Path, opened) -> None:
    params = load(copy, "data.digits.train_limit=500")
    prepare_dataset(params, "digits", copy)
    with one_line_error(r"teacher: 'expert' .*the dataset as it is now; `fedflow central expert` trains it"):
        opened("plain", "teacher", params=params).open()


@pytest.mark.parametrize(
    ("changes", "partition", "names", "shipped"),
    [
        ([CURRICULUM], "hard", ["expert"], 610),
        ([CLIENTS, "run.sampling=easy_first", "run.rounds=6"], "plain", ["expert"], 610),
        ([CURRICULUM, DISTIL], "plain", ["wide", "expert"], 1210 + 610),
    ],
    ids=["data curriculum", "client curriculum", "teacher and expert"],
)
def test_a_run_makes_its_networks_and_counts_their_bytes(root, changes, partition, names, shipped) -> None:
    experiment = Experiment(load(root, *changes), partition, "fedavg", 0, root)
    metrics = run_experiment(experiment)
    assert metrics["shipped_bytes"] == 4 * 4 * shipped  # 4 clients, float32
    assert list(experiment.effective["central"]) == names
    other = Experiment(load(root, *changes, "central.expert.seed=1"), partition, "fedavg", 0, root)
    assert other.digest != experiment.digest
    assert {run.data.tags.get("central") for run in recorded_runs(root)} == {*names, None}


def test_a_student_is_trained_after_its_teacher_and_again_with_it(copy: Path, monkeypatch) -> None:
    training = "{epochs: 1, objective: {name: distil, teacher: wide}}"
    student = f"central.student={{dataset: digits, training: {training}}}"
    prepare_network(load(copy, student), "student", copy)
    folder = copy / "data" / "central"
    assert sorted(each.name for each in folder.iterdir()) == ["expert", "student", "wide"]
    before = contents(folder / "student")
    prepare_network(load(copy, student, "central.wide.seed=1"), "student", copy)
    assert contents(folder / "student")["model.safetensors"] != before["model.safetensors"]
    with one_line_error(r"wide.training.objective.teacher: 'student' .*that does not learn from this one"):
        load(copy, student, "central.wide.training.objective={name: distil, teacher: student}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["central.expert.dataset=mnist"], r"central.expert.dataset: 'mnist' .*one of digits, few"),
        (["central.expert.training.stragglers=0.5"], r"central.expert.training.stragglers: 0.5"),
        (["central.expert.label_smoothing=1"], r"central.expert.label_smoothing: 1.* < 1"),
        (["grid.central=[expart]"], r"grid.central: 'expart' .*did you mean 'expert'"),
        (["grid.central=[few]"], r"grid.datasets: \['digits'\] .*'few', which few is trained on"),
        (["partitions.hard.difficulty.expert=few"], r"difficulty.expert: 'few' .*on digits, not on few"),
        (["partitions.hard.difficulty.expert=lenet5"], r"difficulty.expert: 'lenet5' .*one of expert, few"),
        (["partitions.hard.difficulty.expert=null"], r"difficulty.expert: None .*a name under central"),
        (["partitions.hard.difficulty.losses=a.npy"], r"difficulty.expert: 'expert' .*or null with losses"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line(root: Path, changes: list[str], message: str) -> None:
    with one_line_error(message):
        load(root, *changes)


@pytest.mark.parametrize("changes", [["grid.partitions=[hard]"], [CURRICULUM]])
def test_dvc_and_doctor_ask_for_the_networks_of_the_grid(root: Path, changes: list[str]) -> None:
    with one_line_error(r"^grid.central: \[\] .*expected a list with 'expert', which \w+ / fedavg uses"):
        write_fingerprints(load(root, *changes), root)
    write_fingerprints(load(root, *changes, "grid.central=[expert]"), root)
    assert (root / "data" / "fingerprints" / "central" / "expert.json").is_file()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["training.curriculum={score: expert, expert: few}"], r"curriculum.expert: 'few' .*not on few"),
        (["training.curriculum={score: expert, expert: gone}"], r"curriculum.expert: 'gone' .*one of expert"),
        (["training.curriculum={order: random, score: expert, expert: gone}"], r"'gone' .*one of expert"),
        (
            [CURRICULUM, "run.client_curriculum={score: expert, expert: wide}", "run.sampling=easy_first"],
            r"run.client_curriculum.expert: 'wide' .*'expert', as training.curriculum.expert",
        ),
        ([CURRICULUM, NOISE], r"^training.curriculum.expert: 'expert' .*null, as this partition changes the"),
        (
            [CURRICULUM, FEATURES],
            r"^training.curriculum.expert: 'expert' .*null, as this partition changes the",
        ),
        ([CLIENTS, EASY, NOISE], r"^run.client_curriculum.expert: 'expert' .*null, as this partition chan"),
        ([DISTIL, RENAMED], r"^training.objective.teacher: 'wide' .*null, as this partition changes the lab"),
        ([RENAMED], r"^partitions.hard.difficulty.expert: 'expert' .*null, as this partition changes the la"),
    ],
)
def test_experts_that_a_run_cannot_use_are_one_line(root: Path, changes: list[str], message: str) -> None:
    with one_line_error(message, FedflowError):
        Experiment(load(root, *changes), "hard", "fedavg", 0, root).check()


@pytest.mark.parametrize("unused", [{"order": "random"}, {"order": "vanilla"}, {"a": 0}, {"b": 1}])
def test_an_expert_that_sorts_nothing_is_neither_trained_nor_shipped(root: Path, unused: dict) -> None:
    curriculum = json.dumps({"score": "expert", "expert": "expert"} | unused)
    changes = [f"training.curriculum={curriculum}", f"run.client_curriculum={curriculum}", EASY]
    params = load(root, *changes)
    experiment = Experiment(params, "noisy", "fedavg", 0, root)
    experiment.check()
    assert experiment.networks == [] and experiment.effective["central"] == {}
    assert experiment.job.federation.inputs == ()
    both = Experiment(
        load(root, *changes, "run.client_curriculum={score: expert, expert: wide}"),
        "plain",
        "fedavg",
        0,
        root,
    )
    assert both.read_networks == {"run.client_curriculum.expert": "wide"}
    assert [each.field for each in both.job.federation.inputs] == ["run.client_curriculum.expert"]
