"""Auto-encoders: published sizes, training, and embeddings."""

import pytest
import torch
from torch import Tensor

from fedflow.data import Dataset, Examples
from fedflow.errors import BadInput
from fedflow.local.encoder import autoencoder, embed, fine_tune, pixels, pretrain
from fedflow.models.flat import FlatModel


def error(model: FlatModel, w: Tensor, x: Tensor) -> float:
    module = model.to_module(w)
    with torch.no_grad():
        return float(module.losses(module(pixels(x)), pixels(x)).mean())


def count(model: FlatModel, part: str) -> int:
    return sum(p.numel() for name, p in model.to_module(model.init(0)).named_parameters() if part in name)


@pytest.mark.parametrize(
    ("name", "shape", "latent", "encoder", "decoder"),
    [
        ("conv", (1, 28, 28), 128, 25_956, 25_621),
        ("residual", (3, 32, 32), 64, 406_232, 405_891),
        ("residual", (3, 32, 32), 128, 439_064, 438_659),
    ],
)
def test_parameters_are_as_many_as_published(name, shape, latent, encoder, decoder) -> None:
    model = autoencoder(name, shape, latent)
    assert (count(model, "encoder."), count(model, "decoder.")) == (encoder, decoder)
    module, x = model.to_module(model.init(0)), torch.rand(2, *shape)
    assert module.encoder(x).shape == (2, latent) and module(x).shape == x.shape
    assert module.losses(module(x), x).shape == (2,)


def test_training_lowers_the_error_and_is_repeatable(digits: Dataset) -> None:
    x = digits.train.x[:120]
    model = autoencoder("conv", tuple(x.shape[1:]), 16)
    w = pretrain(model, x, 5, 0)
    assert torch.equal(w, pretrain(model, x, 5, 0)) and not torch.equal(w, pretrain(model, x, 5, 1))
    tuned = fine_tune(model, w, x[:20], 5)
    assert torch.equal(tuned, fine_tune(model, w, x[:20], 5)) and torch.equal(fine_tune(model, w, x, 0), w)
    assert error(model, tuned, x[:20]) < error(model, w, x[:20]) < error(model, model.init(0), x[:20])


def test_the_best_epoch_counts(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of 3, 1 and 2: the model of the second epoch is returned."""
    x = digits.train.x[:40]
    model = autoencoder("conv", tuple(x.shape[1:]), 4)
    seen, errors = [], iter((3.0, 1.0, 2.0))

    def validation(model: FlatModel, w: Tensor, held: Examples) -> float:
        seen.append(w)
        return next(errors)

    monkeypatch.setattr("fedflow.local.encoder._validation", validation)
    assert torch.equal(pretrain(model, x, 3, 0), seen[1]) and not torch.equal(seen[1], seen[2])


def test_embedding_is_in_evaluation_mode_and_image_by_image(digits: Dataset) -> None:
    x = digits.train.x[:6]
    model = autoencoder("residual", tuple(x.shape[1:]), 8)
    w = fine_tune(model, model.init(0), x, 1)
    together = embed(model, w, x)
    assert together.shape == (6, 8)
    torch.testing.assert_close(torch.cat([embed(model, w, x[i : i + 1]) for i in range(6)]), together)


def test_uint8_images_become_what_the_network_is_made_for() -> None:
    x = torch.tensor([0, 255], dtype=torch.uint8).reshape(1, 1, 1, 2).repeat(1, 1, 4, 2)
    assert pixels(x).unique().tolist() == [0, 1]
    for name, low in ("conv", 0.0), ("residual", -1.0):
        model = autoencoder(name, (1, 4, 4), 4)
        w = model.init(0)
        scaled = low + (1 - low) * pixels(x)
        with torch.no_grad():
            torch.testing.assert_close(embed(model, w, x), model.to_module(w).encoder(scaled))


@pytest.mark.parametrize("shape", [(5,), (1, 9, 8)])
def test_unreadable_inputs_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match=r"method.encoder: 'conv for inputs .* pixels, or images with sides"):
        autoencoder("conv", shape, 4)
