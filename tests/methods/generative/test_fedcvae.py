"""FedCVAE: counts of the thesis, KL, and a single client against a plain auto-encoder of torch."""

from typing import Any

import numpy as np
import pytest
import torch
from support import images, prepare_run, run, suited
from torch import nn

from fedflow.data import Dataset
from fedflow.methods import build_method
from fedflow.methods.generative.fedcvae import kl
from fedflow.models.vae import Decoder, Encoder
from fedflow.seeding import torch_seed

ADAM: dict[str, Any] = {"optimiser": "adam", "betas": [0.5, 0.999], "lr": 1e-3, "weight_decay": 1e-4}
COUNTS = [
    ((1, 32, 32), 10, 985_856, 865_025),
    ((3, 32, 32), 10, 987_904, 867_075),
    ((1, 64, 64), 11, 1_772_288, 1_296_129),
    ((3, 64, 64), 7, 1_774_336, 1_281_795),
    ((1, 16, 16), 10, 920_128, 799_297),
    ((1, 8, 8), 10, 789_888, 669_057),
]


@pytest.mark.parametrize(("shape", "classes", "of_encoder", "of_decoder"), COUNTS)
def test_networks_have_the_parameters_of_the_thesis(
    shape: tuple[int, int, int], classes: int, of_encoder: int, of_decoder: int
) -> None:
    encoder, decoder = Encoder(shape, classes), Decoder(shape, classes)
    assert sum(p.numel() for p in encoder.parameters()) == of_encoder
    assert sum(p.numel() for p in decoder.parameters()) == of_decoder
    made = decoder(torch.randn(2, 128 + classes))
    assert made.shape == (2, *shape)
    mean, spread = encoder(made).chunk(2, 1)
    assert mean.shape == (2, 128) and (spread > 0).all()


def test_kl_is_the_closed_form() -> None:
    """KL(N(1, 1) || N(0, 1)) = 1 / 2 and KL(N(0, 4) || N(0, 1)) = (3 - 2 ln 2) / 2; another by quadrature."""
    assert kl(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 2.0]])).item() == pytest.approx(1.3068528194)
    at = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    mean, spread = torch.tensor(-0.7).double(), torch.tensor(0.4).double()
    log_p = -((at - mean) / spread).square() / 2 - spread.log()
    density = (log_p - np.log(2 * np.pi) / 2).exp()
    expected = torch.trapezoid(density * (log_p + at.square() / 2), at)
    torch.testing.assert_close(kl(mean[None, None], spread[None, None])[0], expected)


@pytest.mark.parametrize(("scale", "beta"), [("sums", 0.5), ("code", 1.0)])
def test_one_client_is_a_plain_auto_encoder(scale: str, beta: float, digits: Dataset) -> None:
    federation = suited("fedcvae", images(digits, sizes=(20,), dtype=torch.float64))
    hyper, training = {"kl": scale, "beta": beta}, ADAM | {"epochs": 3}
    simulation = prepare_run("fedcvae", federation, hyper, training=training, rounds=1)
    networks = build_method("fedcvae").networks(federation.model)
    first = simulation.state.server.vectors
    encoder, decoder = (networks[name].to_module(first[name]).train() for name in ("encoder", "decoder"))

    rows = torch.as_tensor(federation.partition.train(0))
    x, y = federation.train.x[rows].double(), federation.train.y[rows]
    drawn = torch.Generator().manual_seed(torch_seed(0, "method noise", 1, 0))
    adam = torch.optim.Adam(
        [*encoder.parameters(), *decoder.parameters()], lr=1e-3, betas=(0.5, 0.999), weight_decay=1e-4
    )
    losses = []
    for _ in range(3):
        mean, spread = encoder(x).chunk(2, 1)
        z = mean + spread * torch.randn(20, 128, generator=drawn)
        made = decoder(torch.cat([z, nn.functional.one_hot(y, 10)], 1))
        error = nn.functional.mse_loss(made, x, reduction="sum" if scale == "sums" else "mean")
        divergence = -0.5 * (1 + spread.pow(2).log() - mean.pow(2) - spread.pow(2)).sum(1).mean()
        loss = (error / 20 if scale == "sums" else error) + beta * divergence
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())

    (report,) = simulation.rounds()
    last = simulation.state.server.vectors
    for name, module in (("encoder", encoder), ("decoder", decoder)):
        torch.testing.assert_close(last[name], networks[name].from_module(module), rtol=0, atol=1e-6)
        assert (last[name] - first[name]).abs().max() > 1e-3
    assert report.values["train_loss"] == pytest.approx(sum(losses) / 3, rel=1e-9)


def test_images_become_digits(digits: Dataset) -> None:
    """A classifier that was trained on the images recognises real digits."""
    ran = run(
        "fedcvae", suited("fedcvae", images(digits, sizes=(300, 300, 300))),
        {"classifier": {"epochs": 30}}, training=ADAM | {"epochs": 2, "batch_size": 30}, rounds=6,
        evaluate_every=6,
    )  # fmt: skip
    errors = ran.values("client/squared_error/mean")
    assert errors[-1] < errors[0] / 2
    assert ran.values("global_accuracy")[-1] > 0.5
