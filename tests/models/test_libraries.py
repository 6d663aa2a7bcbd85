"""Small networks of timm and Transformers are trained, started from files and refused in one line."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file
from support import refused
from torch import nn

import fedflow as ff
from fedflow.config import ModelParams
from fedflow.models import build
from fedflow.models.registry import architecture

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "networks.md"
SHORT: dict[str, Any] = {
    "rounds": 1,
    "progress": False,
    "training": {"epochs": 1, "batch_size": 64, "lr": 0.1},
}
TINY = {
    "timm": ("timm:vit_tiny_patch16_224", {"img_size": 8, "patch_size": 4, "depth": 1, "embed_dim": 12}),
    "transformers": (
        "transformers:vit",
        {
            "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
            "patch_size": 4, "attention_probs_dropout_prob": 0.0,
        },
    ),
}  # fmt: skip
BERT = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "vocab_size": 20, "max_position_embeddings": 12, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("library", TINY)
def test_a_run_trains_it_and_head_only_trains_the_head(library: str) -> None:
    pytest.importorskip(library)
    name, options = TINY[library]
    head = ["*head.*", "*classifier.*"][library == "transformers"]
    for trainable in ({}, {"trainable": [head]}):
        model = {"name": name, **options, **trainable}
        run = ff.run("digits", ff.iid(clients=2), model=model, **SHORT)
        before = build(name, (1, 8, 8), 10, **options | trainable)
        trained = run.model().state_dict()
        assert (
            set(trained) == set(before.state_dict())
            and torch.isfinite(run.model()(torch.zeros(2, 1, 8, 8))).all()
        )
        if trainable:
            assert sum(p.requires_grad for p in before.parameters()) == 2


@pytest.mark.parametrize("library", TINY)
def test_published_names_start_it(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    name, options = TINY[library]
    state = build(name, (1, 8, 8), 10, **options).state_dict()
    published = {key.removeprefix("network."): torch.ones_like(value) for key, value in state.items()}
    save_file(published, tmp_path / "w.safetensors")
    started = build(name, (1, 8, 8), 10, start=str(tmp_path / "w.safetensors"), **options)
    assert all((value == 1).all() for value in started.state_dict().values())


def test_a_network_for_tokens_is_trained() -> None:
    pytest.importorskip("transformers")
    net = build("transformers:bert", (12,), 3, **BERT)
    assert net(torch.zeros(2, 12, dtype=torch.int64)).shape == (2, 3)
    x = torch.randint(0, 20, (60, 12), generator=torch.Generator().manual_seed(0)).numpy()
    data = ff.dataset(x, x[:, 0] % 3, x, x[:, 0] % 3)
    run = ff.run(data, ff.iid(clients=2), model={"name": "transformers:bert", **BERT}, **SHORT)
    assert isinstance(run.model(), nn.Module)


def test_the_examples_of_the_page_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the first has a head for 1000 classes, as published ones do."""
    for library in TINY:
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    save_file(build("timm:resnet18", (3, 32, 32), 1000).state_dict(), "resnet18.safetensors")
    entries = re.findall(r"^  \w+: (\{name: \"(?:timm|transformers):.*\})$", PAGE.read_text(), re.M)
    pictures, reviews = (ModelParams.parse(yaml.safe_load(entry)) for entry in entries)
    head = build(pictures.name, (3, 32, 32), 10, **pictures.options)
    assert [name for name, p in head.named_parameters() if p.requires_grad] == ["fc.weight", "fc.bias"]
    assert build(reviews.name, (64,), 10, **reviews.options)(torch.ones(2, 64).long()).shape == (2, 10)


def test_the_version_decides() -> None:
    timm = pytest.importorskip("timm")
    found = architecture("timm:resnet18")
    assert found.decides == {"library": timm.__version__} and found.package == "timm"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("timm:resnet19", {}, "model.name: 'resnet19' .*resnet1"),
        ("timm:resnet18", {"pretrained": True}, r"model\.options\.pretrained: True .*safetensors"),
        ("timm:resnet18", {"depht": 3}, "depht"),
        ("timm:vit_tiny_patch16_224", {}, "AssertionError: Input"),
        (TINY["timm"][0], TINY["timm"][1] | {"depth": 2, "drop_path_rate": 0.5}, "draws random numbers"),
        ("transformers:berd", {}, "model.name: 'berd' .*bert"),
        ("transformers:vit", {"hidden_size": 12, "patch_size": 16}, "RuntimeError: .*padded input size"),
        (
            "transformers:vit",
            TINY["transformers"][1] | {"attention_probs_dropout_prob": 0.1},
            "draws random numbers",
        ),
    ],
)  # fmt: skip
def test_refused_in_one_line(name: str, options: dict, message: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    with refused(message):
        build(name, (1, 8, 8), 10, **options)


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedflow.models.external.find_spec", lambda name: None)
    with refused("models.name: 'timm:resnet18' .*pip install timm"):
        ModelParams.parse("timm:resnet18")


def test_noise_of_an_own_class_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from torch import nn\n\nclass Net(nn.Linear):\n    def forward(self, x):\n"
    text += "        return nn.functional.dropout(super().forward(x), 0.5, self.training)\n"
    (tmp_path / "nets_with_noise.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with refused("it draws random numbers in training outside these layers: Dropout,"):
        build("nets_with_noise:Net", (5,), 3, in_features=5, out_features=3)
