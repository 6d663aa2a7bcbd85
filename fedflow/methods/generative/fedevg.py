"""FedEvg: the server draws labeled images from the mixture of all clients' energy-based models.

Source: Hahn, doctoral thesis, UNIST 2024, Chapter IV; the authors' code (vaseline555/FedEvg, 24251ca).
Target: p(x, y) = sum_k pi_k exp(-E_k(x, y)) / Z with E_k(x, y) = -f_k(x)[y]: the logits of a classifier are
energies, and all Z_k are taken as equal. energy: marginal has E_k(x) = -log sum_y exp f_k(x)[y].

Client: receives X and trains a fresh network on its samples, with a copy X' of X. For every batch (x, y) of b
samples: draws b distinct images I (all N if b > N), takes L steps x- <- x- - alpha clip(dE/dx) + sigma eps
from x- = X'_I (proposal: pcd), from x (cd) or from noise, in evaluation mode, clips x- to [0, 1], and stores
it in X'_I; then a step on CE(f(x), y) + lambda CE(f(X_I), y_I) + mean E(x, y) - mean E(x-, y-), with x-
constant and all outputs from one call of the network. Sends g_k = clip(dE_k/dX) and sign E_k(X), at the X
that it received. Clips are to [-c, c], by entry.
Server: X_0 ~ N(0, 1), spc images of every class; G = sum_k a_k g_k / sum_k a_k by image, with a_k = n_k
exp(-sign E_k) (weights: signed), n_k exp(-E_k) (raw; clients send E_k) or n_k (mean; they send g_k only);
X <- clip(X - beta_t G + sigma_s eps, 0, 1). Serves a classifier, trained on X.
*Reduces to* class-conditional SGLD on the energy of a single client; locally to the training of FedAvg from a
fresh network when lambda = 0 and generative: false.
*State*: server X; clients none, or their network if reinit is not 1. *Newcomer*: needs nothing.
*Traffic*: 1 X down, 1 X and the signs up. With weights: mean, no signs.
Labels are known from spc, so they do not travel. The trained model (`run.keep_trained`) is the client's own
network. Recorded: energies of batches and negatives, their gap, the norms of G and of all g_k, the share of
clipped entries in g_k, the share of images with E_k < 0 (energy: joint: their label has a positive logit;
marginal: logsumexp f_k > 0), and beta_t. The authors train with training: {optimizer: adam, betas: [0.5,
0.999], lr: 1.0e-3, weight_decay: 1.0e-4, batch_size: 64, lr_decay: 0.9, lr_decay_every: 50}.
*Differs from the authors' code in*: the classifier, trained there for one epoch; the `noise` and `cd`
proposals, which crash there; and its Metropolis step, whose acceptance is wrong there; it is not implemented.
*Ambiguous*: the thesis ties the server's noise to beta_t; the code has 1e-4 (server_noise: const). The exact
sqrt(2 beta_t) = 4.5 would bury images in noise. The code trains fresh networks in every round, the thesis is
silent; half_cosine and constant are not in the code. With reinit: n, networks are new in every n-th
round; a client that misses it keeps its older network. The default schedule is the noise variance of a
diffusion model, so beta_t stays near beta_first until the last rounds.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.local.optimizer import Moving
from fedflow.local.samples import Batch
from fedflow.methods.generative._generative import ImageMethod
from fedflow.methods.method import (
    ClientState,
    Cohort,
    Conditions,
    Initial,
    Message,
    Next,
    Passes,
    Round,
    ServerState,
)
from fedflow.methods.protocols import Images, Noisy, Phased, Published, Specialized
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import Words, option

CHUNK = 128  # images whose gradients are computed at a time

Chain = tuple[Moving, Tensor]  # the network, X'


@dataclass(frozen=True)
class State(ServerState):
    """``images`` X [N, C, H, W], in the order of the classes."""

    images: Tensor


@register("fedevg", "FedEvg")
class FedEvg(Noisy, Phased, Published, Specialized, ImageMethod[State]):
    gathers = True
    alone = True
    example = "resnet10"

    energy: str = option("joint", "E(x, y), or E(x)", choices=("joint", "marginal"))
    weights: str = option(
        "signed", "client weights: n_k exp(-sign E), n_k exp(-E) or n_k", choices=("signed", "raw", "mean")
    )
    beta_first: float = option(
        10.0, "first step size of the server", symbol="beta_1", ge=0, grid=(1, 10, 100)
    )
    beta_last: float = option(1.0, "last step size of the server", symbol="beta_T", ge=0)
    schedule: str = option(
        "ddpm_cosine",
        "schedule of beta_t from the first to the last round",
        choices=("ddpm_cosine", "linear", "quadratic", "sigmoid", "half_cosine", "constant"),
    )
    server_noise: str = option(
        "const", "noise scale: sigma_s, sigma_s beta_t, sqrt(2 beta_t)", choices=("const", "prop", "langevin")
    )
    server_sigma: float = option(1e-4, "scale of the server's noise", symbol="sigma_s", ge=0)
    proposal: str = option(
        "pcd", "start of negatives: X', the batch, or noise", choices=("pcd", "cd", "noise")
    )
    sgld_steps: int = option(1, "steps of SGLD per batch", symbol="L", ge=0, grid=(1, 5, 10))
    alpha: float = option(1.0, "step size of SGLD", symbol="alpha", ge=0, source="JEM")
    sigma: float = option(0.01, "standard deviation of the noise of SGLD", symbol="sigma", ge=0, source="JEM")
    clip: float | None = option(
        3.0, "largest entry of a gradient of the energy; null = no limit", symbol="c", gt=0
    )
    limits: bool = option(True, "clip images and negatives to [0, 1] after their steps")
    lam: float = option(
        0.1, "weight of the cross-entropy on the images", symbol="lambda", ge=0, grid=(0, 0.1)
    )
    generative: bool = option(True, "train the energy too, not only the classifier")
    reinit: int | None = option(
        1, "rounds after which clients start from fresh networks; null = never", ge=1, grid=(1, 5, None)
    )

    def validate(self) -> None:
        if self.beta_last > self.beta_first:
            accepted = f"at most method.beta_first = {self.beta_first:g}"
            raise BadInput("method.beta_last", self.beta_last, accepted)

    def check(self, run: Conditions) -> None:
        training, rounds = run.training, run.rounds
        if self.reinit is not None and 1 < self.reinit >= rounds:
            raise BadInput("method.reinit", self.reinit, f"less than the {rounds} rounds of the run, or null")
        training.need_no_adaptation(self.name, "whose energy comes from the model as it is")
        if training.objective is not None:
            raise BadInput("training.objective", training.objective.name, f"null with {self.name}")

    def setup(self, model: FlatModel, initial: Initial) -> State:
        blank = torch.zeros(
            self.spc * model.classes, *model.input_shape, dtype=model.dtype, device=model.device
        )
        if model.train_outputs(initial(0), blank[:1])[0].shape != (1, model.classes):
            accepted = f"a network with one logit per class, {self.name}'s energies"
            raise BadInput("model.name", Words(model.title), accepted)
        return State(blank)

    def begin(self, now: Round, server: State) -> State:
        return State(normal(now, server.images))

    def client_state(self, model: FlatModel, initial: Tensor) -> ClientState:
        return {} if self.reinit == 1 else {"network": model.init}

    def phase(self, now: Round) -> str:
        return "fresh" if self.reinit is not None and max(now.t - 1, 0) % self.reinit == 0 else "kept"

    def broadcast(self, now: Round, server: State, client: int) -> Message:
        return {"images": server.images}

    def local(self, client: Client) -> Update:
        model, images, labels = client.model, client.received["images"], self.labels(client.model)
        w = model.init(int(integers(client, 1 << 62))) if client.phase == "fresh" else client.kept["network"]
        energies: list[Tensor] = []  # of the batch and of the negatives, by step

        def step(now: Chain, batch: Batch) -> tuple[Chain, Tensor]:
            network, chain = now
            chosen = torch.randperm(len(images), generator=client.noise, device=images.device)[: len(batch.x)]
            others, y_neg = [images[chosen]] if self.lam else [], labels[chosen]
            if self.generative:
                x_neg, y_neg = self.start(client, batch, chain[chosen], y_neg)
                x_neg = self.sample(client, network.w, x_neg, y_neg)
                others.append(x_neg)
                if self.proposal == "pcd":
                    chain = chain.index_copy(0, chosen, x_neg)

            def loss(v: Tensor, batch: Batch) -> Tensor:
                value, (real, *more) = client.data_loss_beside(v, batch, *others)
                if self.lam:
                    value = value + self.lam * model.loss(more[0], labels[chosen])
                if self.generative:
                    gap = self.energies(real, batch.y).mean(), self.energies(more[-1], y_neg).mean()
                    energies.append(torch.stack(gap).detach())
                    value = value + gap[0] - gap[1]
                return value

            gradient = client.gradient(network.w, batch, loss)
            return (client.descend(network, gradient), chain), gradient.loss

        (network, _) = client.run_steps(step, (client.initial_state(w), images))
        client.trained = network.w
        energy, g = self.field(model, network.w, images, labels)
        clipped = g.abs() >= (torch.inf if self.clip is None else self.clip)
        diagnostics = {
            "norm_g": g.norm(),
            "clipped": clipped.to(g).mean(),
            "positive": (energy < 0).to(g).mean(),
        }
        if self.generative:
            real, negative = torch.stack(energies).mean(0)
            diagnostics |= {"energy_real": real, "energy_negative": negative, "energy_gap": real - negative}
        update = client.update(gradients=g, diagnostics=diagnostics)
        if self.weights != "mean":
            update.vectors["energies"] = energy.sign() if self.weights == "signed" else energy
        if self.reinit != 1:
            update.keep["network"] = network.w
        return update

    def start(self, client: Client, batch: Batch, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Start of the chains of negatives, and their labels: by default ``x``, ``y`` of X'."""
        if self.proposal == "pcd":
            return x, y
        if self.proposal == "cd":
            return batch.x, batch.y
        labels = integers(client, client.model.classes, len(x))
        return noise(client, x).clamp(0, 1), labels

    def sample(self, client: Client, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Negatives after L steps of SGLD from ``x``, clipped once."""
        for _ in range(self.sgld_steps):
            _, g = self.field(client.model, w, x, y)
            x = x - self.alpha * g + self.sigma * noise(client, x)
        return x.clamp(0, 1) if self.limits else x

    def energies(self, outputs: Tensor, y: Tensor) -> Tensor:
        """E [B] by logits [B, K]."""
        if self.energy == "marginal":
            return -outputs.logsumexp(1)
        return -outputs.gather(1, y[:, None])[:, 0]

    def field(self, model: FlatModel, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """E [N] at ``x`` [N, ...], and clip(dE/dx) of the same shape as ``x``, in evaluation mode."""
        chunks = []
        for inputs, targets in zip(x.split(CHUNK), y.split(CHUNK)):
            at = inputs.detach().requires_grad_()
            energy = self.energies(model.outputs(w, at), targets)
            (g,) = torch.autograd.grad(energy.sum(), at)
            chunks.append((energy.detach(), g if self.clip is None else g.clamp(-self.clip, self.clip)))
        energies, gradients = zip(*chunks)
        return torch.cat(energies), torch.cat(gradients)

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        g = cohort.stack("gradients")
        energies = None if self.weights == "mean" else cohort.stack("energies")
        direction = mixed(g, energies, cohort.weights)
        beta = float(self.betas(now.rounds)[now.t - 1])
        sigma = {"const": self.server_sigma, "prop": self.server_sigma * beta, "langevin": (2 * beta) ** 0.5}
        x = server.images - beta * direction + sigma[self.server_noise] * normal(now, server.images)
        after = State(x.clamp(0, 1) if self.limits else x)
        return after, {"beta": beta, "norm_G": float(direction.norm())}

    def betas(self, rounds: int) -> np.ndarray:
        """beta_1 to beta_T [T]."""
        betas: np.ndarray
        first, last, s = self.beta_first, self.beta_last, np.linspace(0, 1, rounds)
        if self.schedule == "quadratic":
            betas = (first**0.5 + s * (last**0.5 - first**0.5)) ** 2
            return betas
        h = np.cos((np.arange(rounds + 1) / rounds + 0.008) / 1.008 * np.pi / 2) ** 2
        way = {
            "ddpm_cosine": 1 - h[1:] / h[:-1],
            "linear": s,
            "sigmoid": 1 / (1 + np.exp(6 - 12 * s)),
            "half_cosine": (1 - np.cos(np.pi * s)) / 2,
            "constant": 0 * s,
        }
        betas = first + way[self.schedule] * (last - first)
        return betas

    def images(self, now: Round, server: State) -> Images:
        return Images(server.images.clamp(0, 1), self.labels(now.model))

    def work(self, now: Round, server: State, epochs: float, steps: int) -> Passes:
        """Every sample of a batch adds an image and a negative, while batches have at most N samples."""
        added = (self.lam > 0) + (1 + self.sgld_steps if self.generative else 0)
        return Passes(epochs * (1 + added), inputs=len(server.images))

    def published_bytes(self, model: FlatModel, rounds: int, cohort: int) -> float:
        """N d down, N (d + 1) up; N d up if weights: mean."""
        n, d = self.spc * model.classes, int(np.prod(model.input_shape))
        return 4.0 * rounds * cohort * n * (2 * d + (self.weights != "mean"))


def mixed(g: Tensor, energies: Tensor | None, sizes: np.ndarray) -> Tensor:
    """G [N, ...]: mean of ``g`` [m, N, ...] by image with weights ``sizes`` [m] exp(-``energies`` [m, N]).

    Computed in logarithms, which do not overflow; without ``energies``, all are equal.
    """
    log_a = torch.from_numpy(np.log(sizes))[:, None].to(g.device)
    if energies is not None:
        log_a = log_a - energies
    a = log_a.softmax(0).to(g.dtype)
    return (a[(...,) + (None,) * (g.ndim - 2)] * g).sum(0)


def normal(now: Round, like: Tensor) -> Tensor:
    """Standard normal numbers of the server."""
    return torch.from_numpy(now.rng.standard_normal(like.shape)).to(like)


def noise(client: Client, like: Tensor) -> Tensor:
    """Standard normal numbers of a client."""
    return torch.randn(like.shape, generator=client.noise, dtype=like.dtype, device=like.device)


def integers(client: Client, end: int, *shape: int) -> Tensor:
    """Uniform whole numbers of a client below ``end``."""
    return torch.randint(end, shape, generator=client.noise, device=client.noise.device)
