import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import finish, open_run, refused

from fedflow.errors import FedflowError
from fedflow.models import ARCHITECTURES, build
from fedflow.models.flat import FlatModel
from fedflow.tracking.models import export_model, import_model, load_model
from fedflow.tracking.store import open_store


@pytest.fixture
def record_of(root, outcome, card, rounds):
    """Records a finished run that serves one kind of model, once per kind."""

    def make(serves: str, partition: str) -> str:
        options = {"params": {}, "system_metrics": False}
        with open_run(root, experiment=partition, name=serves, key=serves, **options) as record:
            record.round(rounds[0])
            finish(record, outcome(serves), card=card(serves, partition))
        return record.run_id

    return make


@pytest.mark.parametrize(
    ("serves", "calls"),
    [
        pytest.param("global", {("global", None): 0}, marks=pytest.mark.full),
        ("cluster", {("cluster-0", None): 0, ("cluster-1", None): 1}),
        ("personal", {("personal", 0): 0, ("personal", 5): 5}),
    ],
)
def test_a_recorded_model_is_loaded_with_one_call(record_of, root, outcome, vectors, serves, calls):
    run_id = record_of(serves, "round-trip")
    for (which, client), number in calls.items():
        module = load_model(run_id, which, client=client, root=root)
        with refused(f"client: 99 is not accepted; expected a client that '{which}' of run"):
            load_model(run_id, which, client=99, root=root)
        assert not module.training
        assert torch.equal(vectors(module), outcome(serves).models[number])


def test_a_pruned_model_is_loaded_and_exported_without_its_channels(root, outcome, card, model, tmp_path):
    """Channel 0 of the first layer and single weights are pruned."""
    pruned = outcome("personal")
    w = pruned.models[4]
    for name in ("norm1.weight", "norm1.bias"):
        w[model.slices[name]][0] = 0
    w[model.slices["fc1.weight"]][::2] = 0
    options = {"experiment": "pruned", "name": "n", "key": "pruned", "params": {}, "system_metrics": False}
    with open_run(root, **options) as record:
        finish(record, pruned, card=card("personal", "pruned"))
    run_id = record.run_id
    whole, small = (load_model(run_id, "personal", 4, root, compact=compact) for compact in (False, True))
    assert whole.size.parameters == model.parameters and small.size.kept < whole.size.kept < 0.95
    file = tmp_path / "client.safetensors"
    assert export_model(file, run_id, "personal", 4, root).size == small.size
    x = torch.randn(5, 1, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(small(x), whole(x), rtol=0, atol=1e-6)
        assert torch.equal(import_model(file)(x), small(x))
    assert small.conv1.out_channels == 5 and small.size.kept < 0.92
    (tmp_path / "text").touch()
    assert file.stat().st_mode == (tmp_path / "text").stat().st_mode  # what other users may read
    os.mkfifo(pipe := tmp_path / "pipe")
    with refused(f"file: {str(pipe)!r} .*; this is a folder or a device"):
        export_model(pipe, run_id, "personal", 4, root)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["client.safetensors", "pipe", "text"]
    assert small.size.bytes < file.stat().st_size < small.size.bytes + 5000


def test_a_file_with_code_is_imported_with_consent_only(tmp_path):
    file, made = tmp_path / "model.safetensors", tmp_path / "made"
    facts = {"input_shape": [4], "classes": ["a", "b"], "parameters": 10}

    def write(architecture, options):
        card = facts | {"architecture": architecture, "options": options}
        save_file(torch.nn.Linear(4, 2).state_dict(), file, {"model": json.dumps(card)})

    write("subprocess:getoutput", {"cmd": f"touch {made}"})
    with refused(r"code: False .* to import 'subprocess:getoutput', the network of .*model.safetensors,"):
        import_model(file)
    assert not made.exists()
    write("torch.nn:Linear", {"in_features": 4, "out_features": 2})
    assert import_model(file, code=True).weight.shape == (2, 4)


@pytest.mark.parametrize("compact", [False, True])
def test_a_model_of_a_level_has_its_share_of_the_whole_network(root, outcome, card, compact, tmp_path):
    model = FlatModel(partial(build, "cnn_exit", (1, 16, 16), 3, filters=[4, 4, 6]))
    small, options = model.variant(exits="first"), {"filters": [4, 4, 6]}
    levels = {"simple": ({"exits": "first"}, [0, 1, 2]), "complex": ({}, [3, 4, 5])}
    leveled = replace(card("level", "levels"), architecture="cnn_exit", options=options, levels=levels)
    about = {"experiment": "levels", "name": "n", "key": "levels", "params": {}, "system_metrics": False}
    with open_run(root, **about, resumes=True) as record:
        finish(record, replace(outcome(), models={0: small.init(0), 1: model.init(0)}), card=leveled)
    sizes = {"simple": (small.parameters, small.parameters / model.parameters, 4 * small.size)}
    for level, size in (sizes | {"complex": (model.parameters, 1, 4 * model.size)}).items():
        assert load_model(record.run_id, level, root=root, compact=compact).size == size
    file = tmp_path / "simple.safetensors"
    export_model(file, record.run_id, "simple", root=root)
    assert import_model(file).size == sizes["simple"]


def test_frozen_parameters_are_recorded_and_exported(root, outcome, card, monkeypatch, tmp_path):
    """With the network of the run and a level of it; later versions may draw others."""
    options = {"filters": [4, 4, 6], "trainable": ["fc*", "exit*"]}
    model = FlatModel(partial(build, "cnn_exit", (1, 16, 16), 3, **options))
    small, levels = model.variant(exits="first"), {"simple": ({"exits": "first"}, [0]), "complex": ({}, [1])}
    leveled = replace(card("level", "frozen"), architecture="cnn_exit", options=options, levels=levels)
    about = {"experiment": "frozen", "name": "n", "key": "frozen", "params": {}, "system_metrics": False}
    models = {0: small.init(1), 1: model.init(1)}
    with open_run(root, **about, resumes=True) as record:
        finish(record, replace(outcome(), models=models), card=leveled)
    torch_seed = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda seed: torch_seed(seed + 1))
    for level, network, w in (("simple", small, models[0]), ("complex", model, models[1])):
        loaded = load_model(record.run_id, level, root=root)
        export_model(tmp_path / level, record.run_id, level, root=root)
        plain = network.to_module(w).state_dict()
        for found in (loaded, import_model(tmp_path / level)):
            assert found.state_dict().keys() == plain.keys()
            assert all(torch.equal(value, plain[name]) for name, value in found.state_dict().items())
        assert loaded.size.kept <= 1
        assert {n for n, p in loaded.named_parameters() if not p.requires_grad} == network.frozen.keys()


@pytest.mark.parametrize("content", [None, b"", b"PK junk", {"other": "{}"}, {"model": "{"}])
def test_another_file_is_not_imported(content, tmp_path):
    file = tmp_path / "some.safetensors"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content:
        save_file({"w": torch.ones(2)}, file, content)
    with refused(f"{file} is not a network that export_model wrote", FedflowError):
        import_model(file)


def test_mlflow_serves_logits_of_raw_images(record_of, root, model, outcome):
    import mlflow

    run_id = record_of("personal", "served")
    store = open_store(root)
    version = store.client().get_model_version_by_alias("served.fedavg", "newest")
    assert version.tags == {"run": "personal", "seed": "0"}
    images = np.random.default_rng(0).integers(0, 256, (7, 1, 16, 16), dtype=np.uint8)
    served = mlflow.pyfunc.load_model(version.source)
    assert served.metadata.signature is not None and served.input_example.shape == (1, 1, 16, 16)
    x = (torch.from_numpy(images) / 255 - 0.3) / 0.5
    for client in (0, 4):
        expected = model.outputs(outcome("personal").models[client], x).detach().numpy()
        found = served.predict(images, params={"client": client})
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    with refused(r"one of 0, 1, 2, 3, 4, 5", FedflowError):
        served.predict(images, params={"client": 99})
    assert version.run_id == run_id


def newest(root, name) -> Path:
    """The folder of the newest version of a registered model."""
    version = open_store(root).client().get_model_version_by_alias(name, "newest")
    return Path(urlsplit(version.source).path)


ALONE = """
import json, sys

class Blocked:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("fedflow", "flows", "tasks"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Blocked())
import mlflow, numpy as np
served = [mlflow.pyfunc.load_model(source) for source in sys.argv[1:]]
images = np.random.default_rng(0).integers(0, 256, (7, 1, 16, 16), dtype=np.uint8)
print(json.dumps([model.predict(images).tolist() for model in served]))
try:
    served[0].predict(images, params={"client": 99})
except Exception as error:
    print(error)
"""


def test_a_recorded_model_predicts_where_fedflow_is_not_installed(record_of, root, tmp_path):
    """Two models, one of them moved, as MLflow downloads them."""
    import mlflow

    record_of("personal", "alone")
    source = newest(root, "alone.fedavg")
    moved = shutil.copytree(source, tmp_path / "moved")
    command = [sys.executable, "-c", ALONE, source, moved]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    found, said = done.stdout.splitlines()
    images = np.random.default_rng(0).integers(0, 256, (7, 1, 16, 16), dtype=np.uint8)
    expected = mlflow.pyfunc.load_model(str(source)).predict(images)
    assert np.array_equal(np.array(json.loads(found), np.float32), [expected, expected])
    assert said == "client: 99 is not accepted; expected one of 0, 1, 2, 3, 4, 5"


def test_a_recorded_model_requires_no_package_named_fedflow(record_of, root):
    """On the package index that name belongs to another project."""
    record_of("global", "required")
    source = newest(root, "required.fedavg")
    for name in ("requirements.txt", "conda.yaml", "python_env.yaml", "MLmodel"):
        assert not re.search(r"fedflow\s*([=<>~\[]|$)", (source / name).read_text(), re.MULTILINE), name
    required = (source / "requirements.txt").read_text().split()
    assert [line.partition("==")[0] for line in required] == ["mlflow", "numpy", "safetensors", "torch"]
    (code,) = (source / "artifacts").glob("*.zip")
    assert code.stat().st_size < 68_000


def test_requirements_are_not_compared_with_all_packages(record_of, root, monkeypatch):
    """They are versions of installed packages, and to look through all takes half a second."""
    from mlflow.utils import environment, requirements_utils

    check, looks = environment.warn_dependency_requirement_mismatches, []
    monkeypatch.setattr(requirements_utils, "_init_modules_to_packages_map", lambda: looks.append(1))
    record_of("global", "unchecked")
    assert not looks
    assert (newest(root, "unchecked.fedavg") / "requirements.txt").read_text().startswith("mlflow==")
    assert environment.warn_dependency_requirement_mismatches is check  # as other users of MLflow expect


def test_a_model_of_a_plug_in_names_the_package_that_it_needs(root, outcome, card, tmp_path, capsys):
    """The network is registered by a module of another package."""
    import mlflow

    (tmp_path / "my_networks.py").write_text(
        "from fedflow.models import ARCHITECTURES, Architecture\n"
        "from fedflow.models.lenet import LeNet5\n"
        "class Mine(LeNet5): ...\n"
        "ARCHITECTURES['mine'] = Architecture(Mine, 'my own', {'batch_norm': True})\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        import_module("my_networks")
        about = {"experiment": "plug-in", "name": "n", "key": "k", "params": {}, "system_metrics": False}
        with open_run(root, **about) as record:
            finish(record, outcome(), card=replace(card("global", "plug-in"), architecture="mine"))
        assert "do not hold the code of mine: install my_networks" in capsys.readouterr().out
        source = newest(root, "plug-in.fedavg")
        images = np.zeros((2, 1, 16, 16), np.uint8)
        assert mlflow.pyfunc.load_model(str(source)).predict(images).shape == (2, 3)
    del ARCHITECTURES["mine"], sys.modules["my_networks"]
    with pytest.raises(ImportError, match="the network mine is part of the package my_networks, which"):
        mlflow.pyfunc.load_model(str(source))


def test_images_of_several_domains_are_served_as_they_are_normalized(root, model, outcome, card, rounds):
    import mlflow

    options = {"experiment": "domains", "name": "n", "key": "domains", "params": {}, "system_metrics": False}
    with open_run(root, **options) as record:
        record.round(rounds[0])
        facts = replace(card("global", "domains"), mean=None, std=None, input_type="float32")
        finish(record, outcome("global"), card=facts)
    version = open_store(root).client().get_model_version_by_alias("domains.fedavg", "newest")
    served = mlflow.pyfunc.load_model(version.source)
    assert served.input_example.dtype == np.float32
    x = np.random.default_rng(0).normal(size=(3, 1, 16, 16)).astype(np.float32)
    expected = model.outputs(outcome("global").models[0], torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(served.predict(x), expected, rtol=1e-5, atol=1e-6)


def test_every_cluster_is_registered_and_versions_count_up(record_of, root):
    first, second = (record_of("cluster", "counted") for _ in range(2))
    api = open_store(root).client()
    for j in (0, 1):
        name = f"counted.fedavg.cluster-{j}"
        assert [api.get_model_version(name, v).run_id for v in ("1", "2")] == [first, second]
        assert api.get_model_version_by_alias(name, "newest").version == 2


def test_a_run_killed_while_it_finished_logs_no_model_twice(root, outcome, card, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    options = {"experiment": "twice", "name": "n", "key": "k", "params": {}, "system_metrics": False}
    with pytest.raises(KeyboardInterrupt), open_run(root, **options) as record:
        monkeypatch.setattr(record, "_close", killed)
        finish(record, outcome("cluster"), card=card("cluster", "twice"))
    record._writer.release()
    with open_run(root, **options) as again:
        finish(again, outcome("cluster"), card=card("cluster", "twice"))
    api = open_store(root).client()
    assert again.run_id == record.run_id
    assert len(api.get_run(again.run_id).outputs.model_outputs) == 2
    assert len(api.get_metric_history(again.run_id, "accuracy/tuned_accuracy")) == 1


@pytest.mark.parametrize(
    "call",
    [  # of one model, in their order
        "log_model_artifacts",
        "finalize_logged_model",
        "log_outputs",
        "create_registered_model",
        "create_model_version",
        "set_registered_model_alias",
        "set_logged_model_tags",
    ],
)
def test_a_run_killed_at_any_call_ends_with_its_model_logged_and_registered_once(
    root, outcome, card, monkeypatch, call
):
    from mlflow import MlflowClient

    def killed(*_, **__):
        raise KeyboardInterrupt

    name = call.replace("_", "-")
    options = {"experiment": name, "name": "n", "key": "k", "params": {}, "system_metrics": False}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), open_run(root, **options) as first:
        patch.setattr(MlflowClient, call, killed)
        finish(first, outcome(), card=card(partition=name))
    with open_run(root, **options) as again:
        finish(again, outcome(), card=card(partition=name))
    assert again.run_id == first.run_id
    api = open_store(root).client()
    (model,) = api.search_logged_models([again.experiment_id])
    (output,) = api.get_run(again.run_id).outputs.model_outputs
    assert (model.model_id, model.status.name) == (output.model_id, "READY")
    (version,) = api.search_model_versions(f"name = '{name}.fedavg'")
    assert (version.run_id, version.source) == (again.run_id, model.artifact_location)
    assert api.get_model_version_by_alias(f"{name}.fedavg", "newest").version == version.version
    assert f"{name}.fedavg" in model.tags["mlflow.modelVersions"]


def test_finishing_a_run_again_leaves_the_alias_with_the_newer_run(root, outcome, card):
    options = {"experiment": "alias", "name": "n", "params": {}, "system_metrics": False, "resumes": True}
    for key in ("older", "newer", "older"):
        with open_run(root, key=key, **options) as record:
            finish(record, outcome("global"), card=card("global", "alias"))
    api = open_store(root).client()
    assert len(api.search_model_versions("name = 'alias.fedavg'")) == 2
    assert api.get_model_version_by_alias("alias.fedavg", "newest").run_id != record.run_id


def test_no_pickle_is_stored(record_of, root):
    record_of("personal", "no-pickle")
    stored = [p for p in (root / "mlruns" / "artifacts").rglob("*") if p.is_file()]
    assert any(p.name == "weights.safetensors" for p in stored)
    assert not [p for p in stored if p.suffix in (".pkl", ".pickle", ".pth", ".pt")]


def test_what_is_missing_is_named_with_what_exists(record_of, root):
    run_id = record_of("personal", "missing")
    with refused(r"'global' is not accepted; expected one of personal", FedflowError):
        load_model(run_id, root=root)
    with refused(r"client: 9 is not accepted; .*: 0-5$", FedflowError):
        load_model(run_id, "personal", client=9, root=root)
    with refused(rf"no run 'nonsense' in .*{run_id}", FedflowError):
        load_model("nonsense", root=root)
