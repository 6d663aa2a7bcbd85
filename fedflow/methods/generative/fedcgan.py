"""FedCGAN: FedAvg of an AC-GAN, whose generator then makes the server's images.

Source: Rasouli, Sun, Rajagopal, "FedGAN", 2020, with labels, as in Hahn, doctoral thesis, UNIST 2024, Chapter
IV, and the authors' code (vaseline555/FedEvg, 24251ca).

Client: receives a generator G and a discriminator D with two kinds of outputs, d for real or fake and c for
the class. For every batch (x, y): noise z ~ U(-1, 1)^128 and x' = G(z, y); a step of D on BCE(d(x), 1) +
BCE(d(x'), 0) + CE(c(x), y) + CE(c(x'), y); then a step of G on BCE(d(x'), 1) + CE(c(x'), y) with the new D
and the same x'. Each has its own optimizer. Pixels are in [-1, 1] inside. The running statistics of D come
from real images.
Server: averages both networks, with their buffers, with weights n_k. Makes spc images per class from new
noise, with the running statistics of G, and serves a classifier that is trained on them.
*Reduces to* a central AC-GAN with a single client.
*State*: server G and D; clients none. *Traffic*: P_networks down, P_networks up. *Newcomer*: needs nothing.
Images have side 8, 16, 32 or 64 (in the source 32 or 64). Clients train no classifier, so `run.keep_trained`
keeps and scores the initial one. Recorded: the losses of D (also train_loss) and of G, and the shares of
real and fake images that D recognizes. Weight decay and clip_norm apply to each network.
The authors train with training: {optimizer: adam, betas: [0.5, 0.999], lr: 1.0e-3, weight_decay: 1.0e-4,
batch_size: 64, lr_decay: 0.9, lr_decay_every: 5}.
*Differs from the authors' code in*: the labels of fake images in the step of D, which are random there
instead of the labels that G was given; x and x', which are one batch of D there, so that BatchNorm separates
them as it never does in the step of G, which then does not learn; running statistics, which also count x'
there; counters of batches, which do not travel; and the classifier, trained there for one epoch.
*Ambiguous*: the thesis gives no equations; losses and networks follow the code.
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from fedflow.local.client import Client, Update
from fedflow.local.optimizer import Moving
from fedflow.local.samples import Batch
from fedflow.methods.generative._networks import NetworkMethod, Networks, conditioned, leaf, means, stepped
from fedflow.methods.method import Passes, Round
from fedflow.methods.registry import register
from fedflow.models.gan import NOISE, Discriminator, Generator

State = tuple[Moving, Moving]  # D and G


@register("fedcgan", "FedCGAN")
class FedCGAN(NetworkMethod):
    parts: ClassVar = {"generator": Generator, "discriminator": Discriminator}
    maker = "generator"

    def noise(self, count: int, generator: torch.Generator) -> Tensor:
        return 2 * torch.rand(count, NOISE, generator=generator, device=generator.device) - 1

    def pixels(self, outputs: Tensor) -> Tensor:
        return (outputs + 1) / 2

    def local(self, client: Client) -> Update:
        networks = self.trained_networks(client.model)
        d, g = client.on(networks["discriminator"]), client.on(networks["generator"])
        d.model.seed_noise(
            int(torch.randint(1 << 62, (), generator=client.noise, device=client.noise.device))
        )
        values: list[dict[str, Tensor]] = []

        def step(now: State, batch: Batch) -> tuple[State, Tensor]:
            (judge, maker), x, y = now, 2 * batch.x - 1, batch.y
            inputs = conditioned(self.noise(len(y), client.noise), y, client.model)
            v, w = leaf(judge.w), leaf(maker.w)
            fake, statistics = g.train_outputs(w, inputs)
            on_real, buffers = d.train_outputs(v, x)
            on_fake, _ = d.train_outputs(v, fake.detach())
            loss_d = judged(on_real, 1, y) + judged(on_fake, 0, y)
            (of_judge,) = torch.autograd.grad(loss_d, v)
            judge = stepped(d, judge, of_judge, buffers, client.lr)
            loss_g = judged(d.train_outputs(judge.w, fake)[0], 1, y)
            (of_maker,) = torch.autograd.grad(loss_g, w)
            maker = stepped(g, maker, of_maker, statistics, client.lr)
            values.append(
                {
                    "loss_d": loss_d,
                    "loss_g": loss_g,
                    "real_recognized": (on_real[:, 0] > 0).to(x).mean(),
                    "fake_recognized": (on_fake[:, 0] < 0).to(x).mean(),
                }
            )
            return (judge, maker), loss_d.detach()

        start = (
            d.initial_state(client.received["discriminator"]),
            g.initial_state(client.received["generator"]),
        )
        judge, maker = client.run_steps(step, start)
        return client.update(discriminator=judge.w, generator=maker.w, diagnostics=means(values))

    def work(self, now: Round, server: Networks, epochs: float, steps: int) -> Passes:
        return Passes(4 * epochs)  # G on z, D on x, and on x' twice


def judged(outputs: Tensor, real: int, y: Tensor) -> Tensor:
    """BCE(d, real) + CE(c, y), means over a batch of outputs [B, 1 + C] of the discriminator."""
    d = outputs[:, 0]
    return softplus(-d if real else d).mean() + cross_entropy(outputs[:, 1:], y)
