"""FedCVAE: counts of the thesis, KL, and a client against a plain auto-encoder of torch."""

import numpy as np
import pytest
import torch
from support import images, one_client, run, suited, with_pixels
from torch import nn

from fedflow.data import Dataset
from fedflow.local.local_training import LocalTraining
from fedflow.methods import build_method
from fedflow.methods.generative.fedcvae import kl
from fedflow.models.vae import Decoder, Encoder

ADAM = LocalTraining(optimizer="adam", betas=[0.5, 0.999], lr=1e-3, weight_decay=1e-4, batch_size=25)
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


@pytest.mark.parametrize("beta", [0.5, 64.0])
def test_a_client_trains_a_plain_auto_encoder(beta: float, digits: Dataset) -> None:
    federation = suited("fedcvae", images(digits, sizes=(60,), dtype=torch.float64))
    method = build_method("fedcvae", {"beta": beta})
    networks = method.trained_networks(federation.model)
    first = {name: network.init(0) for name, network in networks.items()}
    client = one_client(federation, training=ADAM, **first)
    client.noise = torch.Generator().manual_seed(7)
    update = method.local(client)

    encoder, decoder = (networks[name].to_module(first[name]).train() for name in ("encoder", "decoder"))
    adam = torch.optim.Adam(
        [*encoder.parameters(), *decoder.parameters()], lr=1e-3, betas=(0.5, 0.999), weight_decay=1e-4
    )
    drawn, losses = torch.Generator().manual_seed(7), []
    for positions, *_ in client._schedules["batches"].batches():
        rows = torch.as_tensor(federation.partition.train(0))[positions]
        x, y = federation.train.x[rows].double(), federation.train.y[rows]
        mean, spread = encoder(x).chunk(2, 1)
        z = mean + spread * torch.randn(len(x), 128, generator=drawn)
        made = decoder(torch.cat([z, nn.functional.one_hot(y, 10)], 1))
        error = nn.functional.mse_loss(made, x)
        divergence = -0.5 * (1 + spread.pow(2).log() - mean.pow(2) - spread.pow(2)).sum(1).mean()
        loss = error + beta / 64 * divergence
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())

    assert len(losses) == 3
    for name, module in (("encoder", encoder), ("decoder", decoder)):
        expected = networks[name].from_module(module)
        torch.testing.assert_close(update.vectors[name], expected, rtol=0, atol=1e-6)
        assert (expected - first[name]).abs().max() > 1e-3
    assert client.train_loss.item() == pytest.approx(sum(losses) / 3, rel=1e-9)


@pytest.mark.full
def test_the_error_falls(digits: Dataset) -> None:
    ran = run(
        "fedcvae",
        with_pixels(images(digits, sizes=(200, 200))),
        {"spc": 1},
        rounds=3,
        training={"optimizer": "adam", "betas": [0.5, 0.999], "lr": 1e-3, "epochs": 4, "batch_size": 40},
    )
    errors = ran.values("client/squared_error/mean")
    assert errors[-1] < 0.8 * errors[0]
