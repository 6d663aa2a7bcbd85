"""Adapters of ``peft``: as in its own training loop, counted, sent, kept, recorded, refused in one line."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from support import follow, forbid_fallback, images, prepare_run, refused, run
from torch import nn

import fedflow as ff
from fedflow.config.sections import ModelParams
from fedflow.data import Dataset
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.models.registry import adapted
from fedflow.simulation.federation import Federation
from fedflow.tracking.store import open_store

SIZES = (7, 12, 20)
VIT: dict[str, Any] = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "patch_size": 4, "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0,
}  # fmt: skip
FULL = {"training": {"epochs": 2, "batch_size": 0, "lr": 0.5}, "participation": 1.0, "fine_tune": False}
LORA = {"rank": 2, "alpha": 6.0}
HEAD = ["*classifier.*"]


@pytest.fixture(scope="module", autouse=True)
def peft() -> Any:
    return pytest.importorskip("peft")


def with_vit(digits: Dataset, **more: Any) -> Federation:
    """Clients of 7, 12 and 20 images, and the ViT of Transformers."""
    federation = images(digits, SIZES)
    made = partial(build, "transformers:vit", digits.input_shape, 10, **VIT, **more)
    return replace(federation, model=FlatModel(made))


def test_as_a_loop_with_peft_alone(digits: Dataset, peft: Any) -> None:
    """FedAvg by hand of `peft.get_peft_model`, with a head that is trained, too."""
    from transformers import ViTConfig, ViTForImageClassification

    rounds, training = 3, FULL["training"]
    federation = with_vit(digits, lora=LORA, trainable=HEAD)
    simulation = prepare_run("fedavg", federation, rounds=rounds, **FULL)
    first = simulation.state.server.tensors()["model"]
    ran = follow(simulation)
    sizes = {"num_labels": 10, "num_channels": 1, "image_size": 8}
    net = ViTForImageClassification(ViTConfig(**VIT, **sizes))
    layers = "^(?!classifier).*(_proj|fc1|fc2|dense)$"
    net = peft.get_peft_model(net, peft.LoraConfig(r=2, lora_alpha=6, target_modules=layers))
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(parameter.requires_grad or "classifier" in name)
    model = federation.model
    start = {n.replace("network.", "base_model.model."): v for n, v in model.views(first).items()}
    frozen = {n.replace("network.", "base_model.model."): v for n, v in model.frozen.items()}
    net.load_state_dict(start | frozen)
    server = start
    for _ in range(rounds):
        after = []
        for k in range(len(SIZES)):
            net.load_state_dict(server, strict=False)
            optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=training["lr"])
            rows = torch.as_tensor(federation.partition.train(k))
            for _ in range(training["epochs"]):
                optimizer.zero_grad()
                logits = net(federation.train.x[rows]).logits
                nn.functional.cross_entropy(logits, federation.train.y[rows]).backward()
                optimizer.step()
            after.append({n: p.detach().clone() for n, p in net.named_parameters() if n in server})
        weights = [n / sum(SIZES) for n in SIZES]
        server = {n: sum(w * own[n] for w, own in zip(weights, after)) for n in server}
    found = model.views(ran.servers[-1]["model"])
    assert len(found) == len(server) == 2 * 6 + 2
    for name, value in found.items():
        wanted = server[name.replace("network.", "base_model.model.")]
        torch.testing.assert_close(value, wanted, rtol=0, atol=1e-6)
    assert max((server[n] - start[n]).abs().max() for n in server if "lora_A" in n) > 1e-3


def test_only_adapters_are_sent_and_trained(digits: Dataset) -> None:
    """Each has rank x (inputs + outputs) numbers: four of 8 to 8, 8 to 16 and 16 to 8."""
    federation = with_vit(digits, lora=LORA)
    ran = run("fedavg", federation, rounds=2, **FULL)
    size = 2 * (4 * 16 + 24 + 24)
    assert ran.outcome().metrics["parameters"] == federation.model.size == size
    assert ran.values("bytes_up")[-1] == ran.values("bytes_down")[-1] == 2 * len(SIZES) * 4 * size
    trained = federation.model.to_module(ran.servers[-1]["model"])
    plain = build("transformers:vit", digits.input_shape, 10, **VIT, lora=LORA)
    changed = {n for n, p in trained.named_parameters() if p.requires_grad}
    assert changed == {n for n in federation.model.names if ".lora_" in n} and len(changed) == 12
    assert {n for n, p in plain.named_parameters() if p.requires_grad} == changed


@pytest.mark.parametrize("network", ["transformers:vit", "cnn"])
def test_a_vmapped_cohort_trains_them_the_same(
    network: str, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, whose noise is keyed; in the second network, convolutions have adapters as well."""
    options: dict[str, Any] = VIT | {"attn_implementation": "eager"}
    lora = LORA | {"dropout": 0.3}
    if network == "cnn":
        options = {"filters": [4, 4], "kernel": 3, "padding": 1, "hidden": [16]}
        lora["layers"] = ["*"]
    options |= {"lora": lora}
    federation = images(digits, SIZES)
    model = FlatModel(partial(build, network, digits.input_shape, 10, **options))
    federation, small = replace(federation, model=model), {"epochs": 1, "batch_size": 8, "lr": 0.5}
    loop = run("fedavg", federation, rounds=2, **FULL | {"training": small})
    forbid_fallback(monkeypatch)
    cohort = run("fedavg", federation, rounds=2, cohort="vmap", **FULL | {"training": small})
    torch.testing.assert_close(cohort.state(), loop.state(), rtol=0, atol=1e-5)
    dry = partial(build, network, digits.input_shape, 10, **options | {"lora": lora | {"dropout": 0}})
    without = run("fedavg", replace(federation, model=FlatModel(dry)), rounds=2, **FULL | {"training": small})
    assert (without.state()["server/model"] - loop.state()["server/model"]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("method", "field", "names"),
    [
        ("fedper", "private", "*.lora_*"),
        ("fedper", "private", "*.lora_B.*"),
        ("lg_fedavg", "shared", "*classifier*"),
    ],
)
def test_personal_adapters_stay_with_the_client(method: str, field: str, names: str, digits: Dataset) -> None:
    """FedPer keeps them, or only B (as FedSA-LoRA does); LG-FedAvg shares the head."""
    federation = with_vit(digits, lora=LORA, trainable=HEAD)
    part = federation.model.part(names)
    own = part.index if field == "private" else part.rest
    ran = run(method, federation, {field: [names]}, rounds=2, **FULL)
    sent = federation.model.size - len(own)
    assert ran.values("bytes_up")[-1] == 2 * len(SIZES) * 4 * sent
    (kept,) = [rows for name, rows in ran.clients[-1].items()]
    assert all(len(row) == len(own) for row in kept)
    assert not any(torch.equal(kept[0], row) for row in kept[1:])


def test_recorded_models_need_only_peft(
    digits: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    few = {"rounds": 1, "progress": False, "compile": "never", "record": tmp_path / "study"}
    model = {"name": "transformers:vit", "options": VIT, "lora": LORA, "trainable": HEAD}
    ran = ff.run("digits", ff.iid(clients=2), ff.FedPer(private=["*.lora_*"]), model=model, **few)
    assert "recorded models of transformers:vit need transformers and peft" in capsys.readouterr().out
    assert ran.settings["model"]["lora"] == LORA
    api = open_store(tmp_path / "study").client()
    (named,) = api.search_registered_models()
    version = api.get_model_version_by_alias(named.name, "newest")
    source = urlsplit(version.source).path
    assert {"peft", "transformers"} <= {
        line.partition("==")[0] for line in (Path(source) / "requirements.txt").read_text().split()
    }
    script = """
import sys
class Blocked:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("fedflow", "flows", "tasks"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
import mlflow, numpy as np
model = mlflow.pyfunc.load_model(sys.argv[1])
print(model.predict(np.arange(128, dtype=np.uint8).reshape(2, 1, 8, 8), params={"client": 1}).tolist())
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", script, source]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path, env=environment)
    net = ff.load_model(version.run_id, "personal", client=1, root=tmp_path / "study")
    wanted = net((torch.arange(128.0).view(2, 1, 8, 8) / 255 - digits.mean[0]) / digits.std[0]).detach()
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout)), wanted, rtol=0, atol=1e-5)
    known = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: None if name == "peft" else known(name, *more)
    )
    with pytest.raises(ImportError, match="transformers:vit needs other packages: pip install peft"):
        mlflow.pyfunc.load_model(source)
    monkeypatch.undo()
    file, x = tmp_path / "one.safetensors", digits.test.inputs(torch.arange(5))
    ff.export_model(file, version.run_id, "personal", client=1, root=tmp_path / "study")
    assert torch.equal(ff.import_model(file)(x), net(x))


def test_the_version_of_peft_decides(peft: Any) -> None:
    assert adapted("mlp", {"lora": {}}).decides == {"peft": peft.__version__}
    assert adapted("mlp", {}).decides == {}


def test_params(tmp_path: Path) -> None:
    entry = ModelParams.parse({"name": "mlp", "lora": {"rank": 4}})
    assert ModelParams.parse({"name": "mlp", "lora": None, "start": None}) == ModelParams.parse("mlp")
    assert entry.options == {"lora": {"rank": 4}}
    with refused(r"models\.lora\.rank: 0 .*a whole number >= 1"):
        ModelParams.parse({"name": "mlp", "lora": {"rank": 0}})


class Attending(nn.Module):
    """PyTorch's own attention reads the weights of a layer and does not call it."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.middle, self.last = nn.Linear(8, 8), nn.Linear(8, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1).unflatten(1, (-1, 8))
        return self.last(self.middle(self.attention(x, x, x)[0].mean(1)))


@pytest.mark.parametrize(
    ("name", "lora", "message"),
    [
        ("mlp", {"layers": ["fc9"]}, r"models\.lora\.layers: 'fc9' .*one of layers"),
        ("mlp", {"rnak": 2}, r"models\.lora\.rnak.*rank"),
        ("logistic", {}, r"models\.lora\.layers: None .*patterns that match"),
        ("mobilenet_v2", {"layers": ["*depthwise*", "*1.conv*"]}, r"models\.lora"),
        (f"{__name__}:Attending", {"layers": ["attention.out_proj"]}, "it reads the weights of this one"),
    ],
)
def test_refused_in_one_line(name: str, lora: dict, message: str) -> None:
    with refused(message):
        build(name, (1, 8, 8), 10, lora=lora)


def test_attention_of_pytorch_is_left_out_by_default() -> None:
    net = build(f"{__name__}:Attending", (1, 8, 8), 10, lora={})
    trained = {n.partition(".lora_")[0] for n, p in net.named_parameters() if p.requires_grad}
    assert trained == {"middle"}


def test_without_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedflow.models.lora.find_spec", lambda name: None)
    with refused("models.lora: a mapping .*pip install peft"):
        build("mlp", (4,), 3, lora={})
