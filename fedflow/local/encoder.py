"""Auto-encoders that a server trains on its own images, and clients may train on theirs.

Source: Jamali-Rad, Abdizadeh, Singh, "Federated Learning with Taskonomy for Non-IID Data", section 3.1,
Appendix A, and code github.com/hjraad/FLT. No labels are used. An encoder travels as a vector (`FlatModel`).
"""

import functools
import math
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.errors import BadInput
from fedflow.local.local_training import LocalTraining
from fedflow.local.optimizer import AdamState, Moving
from fedflow.local.samples import Samples
from fedflow.local.trainer import Trainer
from fedflow.models.autoencoder import Autoencoder, ConvAE, ResidualAE
from fedflow.models.flat import FlatModel
from fedflow.seeding import generator, torch_seed

ENCODERS: dict[str, type[Autoencoder]] = {"conv": ConvAE, "residual": ResidualAE}


@functools.lru_cache(maxsize=8)
def autoencoder(name: str, input_shape: tuple[int, ...], latent: int) -> FlatModel:
    """The named auto-encoder for images of ``input_shape``; `BadInput` if it does not fit them."""
    if len(input_shape) != 3 or input_shape[1] % 4 or input_shape[2] % 4:
        shape = f"{name} for inputs {input_shape}"
        raise BadInput("method.encoder", shape, "pixels, or images with sides divisible by 4")
    return FlatModel(functools.partial(ENCODERS[name], input_shape, latent))


def pixels(x: Tensor) -> Tensor:
    """Stored images or features ``x`` [n, ...] as float32: uint8 becomes 0..1."""
    return x.float() / 255 if x.dtype == torch.uint8 else x.float()


class Pixels(Examples):
    """Images as an auto-encoder reads and returns them: inputs and targets are pixels within its ``span``.

    Features stay as they are.
    """

    def __init__(self, x: Tensor, span: tuple[float, float]) -> None:
        super().__init__(x, x)
        self.span = span

    def inputs(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        low, high = self.span
        x = pixels(self.x[rows])
        return (low + (high - low) * x if self.images else x).to(dtype)

    def targets(self, rows: Tensor) -> Tensor:
        return self.inputs(rows)


def pretrain(model: FlatModel, x: Tensor, epochs: int, seed: int) -> Tensor:
    """An auto-encoder [D] trained on ``x`` [n, ...], as stored.

    A tenth of the images is held out; returns the model after the epoch with the smallest error on them.
    """
    rng = generator(seed, "encoder")
    order = torch.from_numpy(rng.permutation(len(x))).to(x.device)
    held = len(x) // 10
    first = model.init(torch_seed(seed, "encoder"))
    return _train(model, first, x[order[held:]], epochs, rng, x[order[:held]])


def fine_tune(model: FlatModel, w: Tensor, x: Tensor, epochs: int) -> Tensor:
    """The auto-encoder ``w`` [D] after more epochs on ``x`` [n, ...]: the same for the same data."""
    return _train(model, w, x, epochs, generator(0, "encoder")) if epochs else w


@torch.no_grad()
def embed(model: FlatModel, w: Tensor, x: Tensor) -> Tensor:
    """Latent vectors [n, e] of ``x`` [n, ...] under the encoder of ``w`` [D]."""
    module = _module(model, w, x)
    chunks = Samples.all_of(Pixels(x, module.span)).chunks(model.dtype)
    return torch.cat([module.encoder(batch.x) for batch in chunks])


def _train(
    model: FlatModel, w: Tensor, x: Tensor, epochs: int, rng: np.random.Generator, held: Tensor | None = None
) -> Tensor:
    """Adam on batches of 64, with learning rate 1e-3, halved every ten epochs."""
    span = _module(model, w, x).span
    w = w.to(x.device, model.dtype)
    now: Moving = AdamState.of(w)
    least, best = math.inf, None
    for epoch in range(epochs):
        lr = 1e-3 * 0.5 ** (epoch // 10)
        training = LocalTraining.parse({"batch_size": 64, "lr": lr, "optimizer": "adam"})
        trainer = Trainer.central(model, Pixels(x, span), training, rng)
        now = trainer.run_steps(trainer.step, now)
        if held is not None and len(held):
            error = _validation(model, now.w, Pixels(held, span))
            if error < least:
                least, best = error, now.w
    return (now.w if best is None else best).to(model.device)


@torch.no_grad()
def _validation(model: FlatModel, w: Tensor, held: Examples) -> float:
    chunks = Samples.all_of(held).chunks(model.dtype)
    errors = ((model.loss(model.outputs(w, batch.x), batch.y), len(batch.x)) for batch in chunks)
    return sum(error.item() * count for error, count in errors) / len(held)


def _module(model: FlatModel, w: Tensor, x: Tensor) -> Autoencoder:
    return cast(Autoencoder, model.to_module(w.to(model.dtype)).to(x.device))
