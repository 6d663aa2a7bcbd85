"""FedCGAN: counts of the thesis, and a client against a plain AC-GAN of torch."""

import copy

import pytest
import torch
from support import images, one_client, run, suited
from torch import Tensor, nn

from fedflow.data import Dataset
from fedflow.local.local_training import LocalTraining
from fedflow.methods import build_method
from fedflow.models.gan import Discriminator, Generator
from fedflow.models.noise import Noise, noise_key

ADAM = LocalTraining(optimizer="adam", betas=[0.5, 0.999], lr=1e-3, weight_decay=1e-4, batch_size=25)
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
    """Dropout 0.5 from keys."""

    def __init__(self, source: Noise) -> None:
        super().__init__()
        self.source = source

    def forward(self, x: Tensor) -> Tensor:
        return x * self.source.kept(x, 0.5) * 2


def test_a_client_trains_a_plain_gan(digits: Dataset) -> None:
    """Three batches; statistics of the discriminator are those of real images."""
    federation = suited("fedcgan", images(digits, sizes=(60,), dtype=torch.float64))
    method = build_method("fedcgan")
    networks = method.trained_networks(federation.model)
    first = {name: network.init(0) for name, network in networks.items()}
    client = one_client(federation, training=ADAM, **first)
    client.noise = torch.Generator().manual_seed(7)
    update = method.local(client)

    g, d = (networks[name].to_module(first[name]).train() for name in ("generator", "discriminator"))
    drawn = torch.Generator().manual_seed(7)
    dropout = Noise()
    dropout.seed(noise_key(int(torch.randint(1 << 62, (), generator=drawn))))
    d.register_forward_pre_hook(lambda *_: dropout.start_call())
    for name, layer in list(d.named_modules()):
        if isinstance(layer, nn.Dropout):
            d.set_submodule(name, KeyedDropout(dropout))
    of_d, of_g = (
        torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.5, 0.999), weight_decay=1e-4) for net in (d, g)
    )
    bce, ce, losses = nn.BCEWithLogitsLoss(), nn.CrossEntropyLoss(), []
    for positions, *_ in client._schedules["batches"].batches():
        rows = torch.as_tensor(federation.partition.train(0))[positions]
        x, y = 2 * federation.train.x[rows].double() - 1, federation.train.y[rows]
        z = 2 * torch.rand(len(x), 128, generator=drawn) - 1
        fake = g(torch.cat([z, nn.functional.one_hot(y, 10)], 1).double())
        of_real = d(x)
        statistics = copy.deepcopy(dict(d.named_buffers()))
        of_fake = d(fake.detach())
        ones, zeros = torch.ones(len(x)).double(), torch.zeros(len(x)).double()
        loss = bce(of_real[:, 0], ones) + ce(of_real[:, 1:], y)
        loss = loss + bce(of_fake[:, 0], zeros) + ce(of_fake[:, 1:], y)
        of_d.zero_grad()
        loss.backward()
        of_d.step()
        judged = d(fake)
        of_g.zero_grad()
        (bce(judged[:, 0], ones) + ce(judged[:, 1:], y)).backward()
        of_g.step()
        d.load_state_dict(statistics, strict=False)
        losses.append(loss.item())

    assert len(losses) == 3
    for name, module in (("generator", g), ("discriminator", d)):
        expected = networks[name].from_module(module)
        torch.testing.assert_close(update.vectors[name], expected, rtol=0, atol=1e-6)
        assert (expected - first[name]).abs().max() > 1e-3
    assert client.train_loss.item() == pytest.approx(sum(losses) / 3, rel=1e-9)
    assert update.diagnostics["loss_d"] == client.train_loss


def test_the_discriminator_learns(digits: Dataset) -> None:
    ran = run(
        "fedcgan",
        suited("fedcgan", images(digits, sizes=(60, 60))),
        {"spc": 1},
        training={"optimizer": "adam", "lr": 1e-3, "epochs": 2, "batch_size": 20},
        rounds=4,
    )
    for name in ("real", "fake"):
        shares = ran.values(f"client/{name}_recognized/mean")
        assert all(0 <= share <= 1 for share in shares)
    losses = ran.values("client/loss_d/mean")
    assert 6 > losses[0] > losses[-1] + 0.2  # 2 ln 2 + 2 ln 10 = 5.99 without knowledge
