"""FedCGAN: counts of the thesis, and a single client against a plain AC-GAN of torch."""

import copy
from typing import Any

import pytest
import torch
from support import images, prepare_run, run, suited
from torch import Tensor, nn

from fedflow.data import Dataset
from fedflow.methods import build_method
from fedflow.models.gan import Discriminator, Generator
from fedflow.seeding import torch_seed

ADAM: dict[str, Any] = {"optimiser": "adam", "betas": [0.5, 0.999], "lr": 1e-3, "weight_decay": 1e-4}
COUNTS = [
    ((1, 32, 32), 10, 1_222_528, 1_708_555),
    ((3, 32, 32), 10, 1_224_576, 1_710_603),
    ((1, 64, 64), 11, 1_489_024, 2_757_900),
    ((3, 64, 64), 7, 1_474_688, 2_758_920),
    ((1, 16, 16), 10, 829_056, 659_467),
    ((1, 8, 8), 10, 569_856, 265_995),
]


@pytest.mark.parametrize(("shape", "classes", "of_generator", "of_discriminator"), COUNTS)
def test_networks_have_the_parameters_of_the_thesis(
    shape: tuple[int, int, int], classes: int, of_generator: int, of_discriminator: int
) -> None:
    generator, discriminator = Generator(shape, classes), Discriminator(shape, classes)
    assert sum(p.numel() for p in generator.parameters()) == of_generator
    assert sum(p.numel() for p in discriminator.parameters()) == of_discriminator
    made = generator(torch.randn(2, 128 + classes))
    assert made.shape == (2, *shape)
    assert discriminator(made).shape == (2, 1 + classes)
    scales = [m.weight for m in generator.modules() if isinstance(m, nn.BatchNorm2d)]
    assert all(abs(scale.mean() - 1) < 0.02 for scale in scales)
    assert generator.layers[1].weight.std().item() == pytest.approx(0.02, rel=0.02)


class KeyedDropout(nn.Module):
    """Dropout 0.5 from a generator."""

    def __init__(self, source: torch.Generator) -> None:
        super().__init__()
        self.source = source

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(x.shape, generator=self.source, dtype=x.dtype) >= 0.5) * 2


@pytest.mark.parametrize("fake_labels", ["given", "random"])
def test_one_client_is_a_plain_gan(fake_labels: str, digits: Dataset) -> None:
    federation = suited("fedcgan", images(digits, sizes=(20,), dtype=torch.float64))
    hyper, training = {"fake_labels": fake_labels}, ADAM | {"epochs": 3, "clip_norm": None}
    simulation = prepare_run("fedcgan", federation, hyper, training=training, rounds=1)
    networks = build_method("fedcgan").networks(federation.model)
    first = simulation.state.server.vectors
    g, d = (networks[name].to_module(first[name]).train() for name in ("generator", "discriminator"))

    rows = torch.as_tensor(federation.partition.train(0))
    x, y = 2 * federation.train.x[rows].double() - 1, federation.train.y[rows]
    drawn = torch.Generator().manual_seed(torch_seed(0, "method noise", 1, 0))
    dropout = torch.Generator().manual_seed(int(torch.randint(1 << 62, (), generator=drawn)))
    for name, layer in list(d.named_modules()):
        if isinstance(layer, nn.Dropout):
            d.set_submodule(name, KeyedDropout(dropout))
    of_d, of_g = (
        torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.5, 0.999), weight_decay=1e-4) for net in (d, g)
    )
    bce, ce, losses = nn.BCEWithLogitsLoss(), nn.CrossEntropyLoss(), []
    for _ in range(3):
        z = 2 * torch.rand(20, 128, generator=drawn) - 1
        fake = g(torch.cat([z, nn.functional.one_hot(y, 10)], 1).double())
        claimed = y if fake_labels == "given" else torch.randint(10, (20,), generator=drawn)
        real_out, fake_out = d(torch.cat([x, fake.detach()])).split(20)
        ones, zeros = torch.ones(20).double(), torch.zeros(20).double()
        loss = bce(real_out[:, 0], ones) + ce(real_out[:, 1:], y)
        loss = loss + bce(fake_out[:, 0], zeros) + ce(fake_out[:, 1:], claimed)
        of_d.zero_grad()
        loss.backward()
        of_d.step()
        statistics = copy.deepcopy(dict(d.named_buffers()))
        judged = d(fake)
        of_g.zero_grad()
        (bce(judged[:, 0], ones) + ce(judged[:, 1:], y)).backward()
        of_g.step()
        d.load_state_dict(statistics, strict=False)  # those of the step of D only
        losses.append(loss.item())

    (report,) = simulation.rounds()
    last = simulation.state.server.vectors
    for name, module in (("generator", g), ("discriminator", d)):
        torch.testing.assert_close(last[name], networks[name].from_module(module), rtol=0, atol=1e-6)
        assert (last[name] - first[name]).abs().max() > 1e-3
    assert report.values["train_loss"] == pytest.approx(sum(losses) / 3, rel=1e-9)
    assert report.values["client/loss_d/mean"] == pytest.approx(sum(losses) / 3, rel=1e-9)


def test_both_networks_recognise_and_fool(digits: Dataset) -> None:
    """Shares of recognised images start near chance, and D is right about most images before G learns."""
    ran = run(
        "fedcgan", suited("fedcgan", images(digits, sizes=(60, 60))),
        training=ADAM | {"epochs": 1, "batch_size": 20}, rounds=4,
    )  # fmt: skip
    for name in ("real", "fake"):
        shares = ran.values(f"client/{name}_recognised/mean")
        assert all(0 <= share <= 1 for share in shares)
    losses = ran.values("client/loss_d/mean")
    assert losses[-1] < losses[0] - 0.5
