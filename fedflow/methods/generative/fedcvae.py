"""FedCVAE: FedAvg of a conditional variational auto-encoder, whose decoder then makes the server's images.

Source: Hahn, doctoral thesis, UNIST 2024, Chapter IV, and the authors' code (vaseline555/FedEvg, 24251ca);
model of Sohn, Lee, Yan, NeurIPS 2015.

Client: receives an encoder and a decoder. For every batch (x, y): (mu, sigma) = encoder(x), without y;
x' = decoder(mu + sigma eps, y) with eps ~ N(0, I); a step of both on the mean over the batch of
(|x' - x|^2 + beta KL(N(mu, sigma^2) || N(0, I))) / d for d pixels, where KL is the sum over j of
(mu_j^2 + sigma_j^2 - 1 - log sigma_j^2) / 2.
Server: averages both networks, with their buffers, with weights n_k. Makes spc images per class from
z ~ N(0, I), with the running statistics of the decoder, and serves a classifier that is trained on them.
*Reduces to* a central auto-encoder with a single client.
*State*: server encoder and decoder; clients none. *Traffic*: P_networks down, P_networks up.
*Newcomer*: needs nothing.
Images have side 8, 16, 32 or 64 (in the source 32 or 64). Clients train no classifier, so `run.keep_trained`
keeps and scores the initial one. Recorded: KL and the squared error, per sample. Weight decay and
clip_norm apply to each network. The authors train with training: {optimizer: adam,
betas: [0.5, 0.999], lr: 1.0e-3, weight_decay: 1.0e-4, batch_size: 64, lr_decay: 0.9, lr_decay_every: 5}.
*Differs from the authors' code in*: KL, which is not divided by d there (as with beta = d), so that it
dominates and images of a class are alike; scales of BatchNorm, which start from N(1, 1) there; counters of
batches, which do not travel; and the classifier, trained there for one epoch and tested on images in [-1, 1],
which it was not trained on.
*Ambiguous*: the thesis gives no equations; losses and networks follow the code.
"""

from typing import ClassVar

import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.optimizer import Moving
from fedflow.local.samples import Batch
from fedflow.methods.generative._networks import NetworkMethod, Networks, conditioned, leaf, means, stepped
from fedflow.methods.method import Passes, Round
from fedflow.methods.registry import register
from fedflow.models.vae import LATENT, Decoder, Encoder
from fedflow.settings import option

State = tuple[Moving, Moving]  # encoder and decoder


@register("fedcvae", "FedCVAE")
class FedCVAE(NetworkMethod):
    parts: ClassVar = {"encoder": Encoder, "decoder": Decoder}
    maker = "decoder"

    beta: float = option(1.0, "weight of KL", symbol="beta", ge=0, grid=(0.1, 1.0))

    def noise(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randn(count, LATENT, generator=generator, device=generator.device)

    def local(self, client: Client) -> Update:
        encode, decode = (client.on(network) for network in self.trained_networks(client.model).values())
        values: list[dict[str, Tensor]] = []

        def step(now: State, batch: Batch) -> tuple[State, Tensor]:
            (encoder, decoder), x, y = now, batch.x, batch.y
            v, w = leaf(encoder.w), leaf(decoder.w)
            code, statistics = encode.train_outputs(v, x)
            mean, spread = code.chunk(2, 1)
            z = mean + spread * self.noise(len(y), client.noise).to(spread)
            made, buffers = decode.train_outputs(w, conditioned(z, y, client.model))
            error, divergence = (made - x).square().flatten(1).sum(1).mean(), kl(mean, spread).mean()
            loss = error / x[0].numel() + self.beta / x[0].numel() * divergence
            of_encoder, of_decoder = torch.autograd.grad(loss, (v, w))
            encoder = stepped(encode, encoder, of_encoder, statistics, client.lr)
            decoder = stepped(decode, decoder, of_decoder, buffers, client.lr)
            values.append({"kl": divergence, "squared_error": error})
            return (encoder, decoder), loss.detach()

        received = client.received
        start = encode.initial_state(received["encoder"]), decode.initial_state(received["decoder"])
        encoder, decoder = client.run_steps(step, start)
        return client.update(encoder=encoder.w, decoder=decoder.w, diagnostics=means(values))

    def work(self, now: Round, server: Networks, epochs: float, steps: int) -> Passes:
        return Passes(2 * epochs)  # one of each network


def kl(mean: Tensor, spread: Tensor) -> Tensor:
    """KL(N(mean, spread^2) || N(0, I)) [B] of means and standard deviations [B, n]."""
    return (mean.square() + spread.square() - 1 - 2 * spread.log()).sum(1) / 2
