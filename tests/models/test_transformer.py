"""Transformers: what attends to what, and that clients learn with them as in the loop."""

from functools import partial

import pytest
import torch

from fedflow.data import Dataset
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.models.transformer import Attention
from tests.support import forbid_fallback, images, run


def test_attention_is_a_mean_weighted_by_similarity() -> None:
    """Of one head with identities as maps: softmax(x x^T / sqrt(d)) x, after normalization."""
    layer = Attention(3, 4, heads=1, width=3, activation=torch.nn.GELU).double()
    with torch.no_grad():
        layer.qkv.weight.copy_(torch.eye(3).repeat(3, 1))
        layer.out.weight.copy_(torch.eye(3))
        for dense in (layer.out.bias, layer.mlp[-1].weight, layer.mlp[-1].bias):
            dense.zero_()
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = torch.nn.functional.layer_norm(x, (3,))
    expected = x + (seen @ seen.mT / 3**0.5).softmax(-1) @ seen
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("causal", [True, False])
def test_causal_tokens_do_not_see_later_ones(causal: bool) -> None:
    layer = Attention(4, 8, heads=2, width=2, activation=torch.nn.GELU, causal=causal)
    x = torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    (g,) = torch.autograd.grad(layer(x)[0, 2].sum(), x)
    assert g[0, :3].abs().sum(-1).min() > 0
    assert bool(g[0, 3:].abs().sum() == 0) is causal


def test_positions_tell_equal_patches_apart() -> None:
    """Without them a ViT has the same outputs for patches in another order."""
    model = build("vit", (1, 8, 8), 3)
    x = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    turned = torch.cat([x[..., 4:, :], x[..., :4, :]], -2)
    assert not torch.allclose(model(x), model(turned), atol=1e-5)
    with torch.no_grad():
        model.positions.zero_()
    assert torch.allclose(model(x), model(turned), atol=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "ditto", "scaffold"])
def test_a_cohort_trains_a_vit_as_the_loop_does(digits: Dataset, monkeypatch, method: str) -> None:
    forbid_fallback(monkeypatch)
    options = {"patch": 2, "dim": 8, "heads": 2, "depth": 2, "mlp": 8}
    federation = images(digits, (5, 9, 14), "vit", dtype=torch.float64, **options)
    settings = {"training": {"batch_size": 4, "epochs": 2, "lr": 0.1}, "rounds": 2}
    loop, vmap = (run(method, federation, cohort=cohort, **settings).state() for cohort in ("loop", "vmap"))
    torch.testing.assert_close(vmap, loop, rtol=0, atol=1e-9)


@pytest.mark.full
def test_a_vit_learns_digits(digits: Dataset) -> None:
    options = {"patch": 2, "dim": 16, "heads": 2, "depth": 1, "mlp": 32}
    federation = images(digits, (700, 700), "vit", **options)
    training = {"batch_size": 20, "epochs": 5, "lr": 0.003, "optimizer": "adam"}
    assert run("fedavg", federation, training=training, rounds=5).values("global_accuracy")[-1] > 0.7


def test_bad_sizes_are_named() -> None:
    for shape, options, message in (
        ((1, 9, 8), {}, "sides divisible by 4"),
        ((1, 8, 8), {"dim": 10, "heads": 3}, "multiple of heads"),
    ):
        with pytest.raises(Exception, match=message):
            FlatModel(partial(build, "vit", shape, 10, **options))
