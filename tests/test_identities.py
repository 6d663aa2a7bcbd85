"""Which identities an edit changes, and how a finished result says why it is not current."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import fedflow
from fedflow.config import load_params
from fedflow.project import code
from fedflow.project.digest import digest
from fedflow.project.identity import Identity
from fedflow.stages.central_network import CentralRun
from fedflow.stages.experiment import Experiment
from fedflow.stages.partition import partition_identity
from fedflow.stages.procedure import ProcedureRun

HOME = Path(fedflow.__file__).parent
PARAMS = """
data: {digits: {source: digits}, mnist: {source: mnist}}
models: {digits: {name: mlp, options: {hidden: [8]}}, mnist: {name: lenet5}}
central: {expert: {dataset: digits, training: {epochs: 1}}}
partitions:
  skewed: {dataset: digits, scheme: dirichlet, alpha: 0.5, clients: 3, difficulty: {expert: expert}}
  even: {dataset: mnist, scheme: iid, clients: 2, difficulty: {losses: losses.npy}}
methods: {fedavg: {}, ditto: {lam: 1.0}}
grid: {datasets: [digits, mnist], partitions: [skewed, even], methods: [fedavg, ditto], seeds: [0]}
procedures: {ring: {procedure: coreset, graph: {kind: edges, file: edges.txt}, picks: 2, methods: [scgiga]}}
"""
RUNS = {f"{partition}/{method}" for partition in ("skewed", "even") for method in ("fedavg", "ditto")}
FEDAVG, DITTO = {"skewed/fedavg", "even/fedavg"}, {"skewed/ditto", "even/ditto"}
SKEWED, EVEN = {"skewed/fedavg", "skewed/ditto"}, {"even/fedavg", "even/ditto"}
DIGITS = {*SKEWED, "skewed", "expert"}
PARTITIONS = {"skewed", "even"}
ALL = {*RUNS, *PARTITIONS, "expert", "ring"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project in which only what `Identity` reads is there: hashes, and no data."""
    (tmp_path / "params.yaml").write_text(PARAMS)
    facts = [
        "prepared/digits/meta",
        "prepared/mnist/meta",
        "partitions/skewed/summary",
        "partitions/even/summary",
    ]
    for name in [*facts, "central/expert/metrics"]:
        record(tmp_path, name, "before")
    for name in ("losses.npy", "edges.txt"):
        (tmp_path / name).write_text("before")
    return tmp_path


def record(root: Path, name: str, content: str) -> None:
    """The hash of a dataset, a partition or a network."""
    file = root / "data" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"hash": f"{content} {name}"}))


def identities(root: Path, *changes: str) -> dict[str, Identity]:
    params = load_params(root / "params.yaml", changes)
    cells = [name.split("/") for name in sorted(RUNS)]
    return {
        **{"/".join(cell): Experiment(params, *cell, seed=0, root=root).identity for cell in cells},
        **{name: partition_identity(params, name, root) for name in PARTITIONS},
        "expert": CentralRun(params, "expert", root).identity,
        "ring": ProcedureRun(params, "ring", 0, root).identity,
    }  # fmt: skip


def changed(before: dict[str, Identity], after: dict[str, Identity]) -> dict[str, list[str]]:
    """The differences of those that changed."""
    found = {name: before[name].differences(after[name]) for name in before}
    assert {n for n in found if found[n]} == {n for n in before if before[n].key != after[n].key}
    return {name: each for name, each in found.items() if each}


EDITED = {  # the table of docs/howto/grid.md; users of a changed partition or network change with its content
    "methods/personal/ditto.py": DITTO,
    "methods/averaging/_averaging.py": RUNS,
    "methods/averaging/fedprox.py": set(),
    "partition/dirichlet.py": {"skewed"},
    "partition/iid.py": {"even"},
    "partition/shards.py": set(),
    "local/central_training.py": {"expert"},
    "local/trainer.py": {*RUNS, "expert"},
    "simulation/worker.py": RUNS,
    "finished/results.py": RUNS,
    "models/lenet.py": EVEN,
    "procedures/coresets/select.py": {"ring"},
    "pictures/coresets.py": {"ring"},
    "pictures/accuracy.py": set(),
    "tracking/record.py": set(),
}


@pytest.mark.parametrize(("file", "reruns"), EDITED.items(), ids=EDITED)
def test_edited_code_changes_the_identities_that_the_documents_say(root, monkeypatch, file, reruns) -> None:
    before, content = identities(root), code._content
    edited = HOME / file
    assert edited.is_file()
    monkeypatch.setattr(code, "_content", lambda each: content(each) + "edited" * (each == edited))
    assert changed(before, identities(root)) == {name: ["code"] for name in reruns}


def test_comments_and_docstrings_change_no_identity(tmp_path: Path) -> None:
    texts = ['"""One."""\n\nX = 1\n', '"""Other."""\nX = 1  # a comment\n', "X = 2\n"]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.py").write_text(text)
    plain, comment, other = (code._content(tmp_path / f"{i}.py") for i in range(3))
    assert plain == comment != other


def test_another_version_of_a_library_changes_all_and_another_build_none(root, monkeypatch) -> None:
    versions: dict[str, str] = dict.fromkeys(fedflow.project.identity.LIBRARIES, "2.8")
    monkeypatch.setattr("fedflow.project.identity.versions", lambda: versions)
    before = identities(root)
    versions |= {"torch": "2.8+cu126"}
    assert not changed(before, identities(root))
    versions |= {"torch": "2.9", "pandas": "3.0"}
    why = ["libraries: pandas 2.8 -> 3.0", "libraries: torch 2.8 -> 2.9"]
    assert changed(before, identities(root)) == dict.fromkeys(ALL, why)


@pytest.mark.parametrize(
    ("change", "why", "reruns"),
    [
        (lambda root: record(root, "prepared/mnist/meta", "after"), "data of mnist", {*EVEN, "even"}),
        (lambda root: record(root, "prepared/digits/meta", "after"), "data of digits", DIGITS),
        (lambda root: record(root, "partitions/even/summary", "after"), "partition even", EVEN),
        (lambda root: record(root, "central/expert/metrics", "after"), "central network expert", {"skewed"}),
        (lambda root: (root / "losses.npy").write_text("after"), "file losses.npy", {"even"}),
        (lambda root: (root / "edges.txt").unlink(), "file edges.txt", {"ring"}),
    ],
    ids=["data", "other data", "a partition", "a network", "a file", "a lost file"],
)  # fmt: skip
def test_another_input_changes_what_reads_it(
    root: Path, change: Callable, why: str, reruns: set[str]
) -> None:
    before = identities(root)
    change(root)
    assert changed(before, identities(root)) == {name: [why] for name in reruns}


@pytest.mark.parametrize(
    ("change", "why", "reruns"),
    [
        ("methods.ditto.lam=2", "method.lam 1.0 -> 2.0", DITTO),
        ("run.rounds=3", None, RUNS),
        ("methods.fedavg.weighting=uniform", "method.weighting samples -> uniform", FEDAVG),
        ("models.mnist={name: mlp}", "model.name lenet5 -> mlp", EVEN),
        ("procedures.ring.picks=3", "procedure.picks 2 -> 3", {"ring"}),
        ("run.checkpoint_every=7", None, set()),
        ("engine.workers=3", None, set()),
    ],
)  # fmt: skip
def test_a_changed_setting_is_named(root: Path, change: str, why: str | None, reruns: set[str]) -> None:
    found = changed(identities(root), identities(root, change))
    assert found.keys() == reruns
    assert why is None or all(f"settings: {why}" in each for each in found.values())


def test_a_run_knows_the_networks_that_it_reads(root: Path) -> None:
    params = load_params(root / "params.yaml", ["training.curriculum={score: expert, expert: expert}"])
    run = Experiment(params, "skewed", "fedavg", 0, root)
    before = run.identity
    record(root, "central/expert/metrics", "after")
    assert before.differences(run.identity) == ["central network expert"]


def test_seeds_share_the_digest_of_their_settings_and_not_the_key(root: Path) -> None:
    params = load_params(root / "params.yaml")
    one, other = (Experiment(params, "even", "ditto", seed, root) for seed in (0, 1))
    assert one.digest == other.digest
    assert one.identity.key != other.identity.key and len(one.identity.key) == 24
    assert one.identity.differences(other.identity) == ["seed 0 -> 1"]


def test_a_file_has_the_identity_and_not_the_machine(root: Path) -> None:
    one = Experiment(load_params(root / "params.yaml"), "even", "ditto", 0, root).identity
    (root / "identity.json").write_text(json.dumps(one.on(compiled=True).as_dict()))
    read = Identity.read(root)
    assert read is not None and read.key == one.key != one.on(compiled=True).key
    assert not read.differences(one) and Identity.read(root / "data") is None


@pytest.mark.parametrize("text", ["", "[]", '{"settings": {}}', "{"])
def test_a_file_that_is_no_identity_is_none(root: Path, text: str) -> None:
    (root / "identity.json").write_text(text)
    assert Identity.read(root) is None


def test_a_list_in_place_of_inputs_is_no_identity(root: Path) -> None:
    one = Experiment(load_params(root / "params.yaml"), "even", "ditto", 0, root).identity
    (root / "identity.json").write_text(json.dumps(one.as_dict() | {"inputs": []}))
    assert Identity.read(root) is None


def test_the_digest_knows_content_and_not_order() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1, "b": 3})
    assert digest([1], 24).startswith(digest([1], 8)) and digest([1]) != digest([1.0])
