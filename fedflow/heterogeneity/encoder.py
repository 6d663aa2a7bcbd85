"""Encoders: auto-encoders that a server trains on its images, and that clients may fine-tune on theirs.

Source: Jamali-Rad, Abdizadeh, Singh, "Federated Learning with Taskonomy for Non-IID Data", section 3.1,
Appendix A, and code github.com/hjraad/FLT. No labels are used. An encoder travels as a vector (`FlatModel`).
"""

import copy
import functools
import math
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.models.autoencoder import Autoencoder, ConvAE, ResidualAE
from fedflow.models.flat import FlatModel
from fedflow.seeding import generator, torch_seed

ENCODERS: dict[str, type[Autoencoder]] = {"conv": ConvAE, "residual": ResidualAE}
BATCH = 64


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


def pretrain(model: FlatModel, x: Tensor, epochs: int, seed: int) -> Tensor:
    """An auto-encoder [D] trained on ``x`` [n, ...], as stored.

    A tenth of the images is held out; the model after the epoch with the smallest error on them is returned.
    """
    rng = generator(seed, "encoder")
    order = torch.from_numpy(rng.permutation(len(x))).to(x.device)
    held = len(x) // 10
    first = model.init(torch_seed(seed, "encoder"))
    return _train(model, first, x[order[held:]], epochs, rng, x[order[:held]])


def fine_tune(model: FlatModel, w: Tensor, x: Tensor, epochs: int) -> Tensor:
    """The auto-encoder ``w`` [D] after ``epochs`` more on ``x`` [n, ...]; equal data give equal results."""
    return _train(model, w, x, epochs, generator(0, "encoder")) if epochs else w


@torch.no_grad()
def embed(model: FlatModel, w: Tensor, x: Tensor) -> Tensor:
    """Latent vectors [n, e] of ``x`` [n, ...] under the encoder of ``w`` [D]."""
    module = _module(model, w, x)
    return torch.cat([module.encoder(_scaled(module, chunk)) for chunk in x.split(512)])


def _train(
    model: FlatModel, w: Tensor, x: Tensor, epochs: int, rng: np.random.Generator, held: Tensor | None = None
) -> Tensor:
    """Adam with learning rate 1e-3, halved every ten epochs, on batches of 64."""
    module = _module(model, w, x)
    adam = torch.optim.Adam(module.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(adam, step_size=10, gamma=0.5)
    least, best = math.inf, None
    for _ in range(epochs):
        module.train()
        for rows in torch.from_numpy(rng.permutation(len(x))).to(x.device).split(BATCH):
            adam.zero_grad()
            _error(module, x[rows]).backward()
            adam.step()
        schedule.step()
        if held is not None and len(held):
            error = _validation(module, held)
            if error < least:
                least, best = error, copy.deepcopy(module.state_dict())
    if best is not None:
        module.load_state_dict(best)
    return model.from_module(module)


@torch.no_grad()
def _validation(module: Autoencoder, x: Tensor) -> float:
    module.eval()
    return sum(_error(module, chunk).item() * len(chunk) for chunk in x.split(512)) / len(x)


def _error(module: Autoencoder, x: Tensor) -> Tensor:
    """Mean squared error of the reconstructed images, scalar."""
    y = _scaled(module, x)
    return module.losses(module(y), y).mean()


def _scaled(module: Autoencoder, x: Tensor) -> Tensor:
    """Images in the range of the network; features unchanged."""
    low, high = module.span
    return low + (high - low) * pixels(x) if x.dtype == torch.uint8 else pixels(x)


def _module(model: FlatModel, w: Tensor, x: Tensor) -> Autoencoder:
    return cast(Autoencoder, model.to_module(w.to(model.dtype)).to(x.device))
