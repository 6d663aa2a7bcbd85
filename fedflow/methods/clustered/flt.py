"""FLT: clients whose images an auto-encoder maps to similar points are averaged, as a graph or as clusters.

Source: Jamali-Rad, Abdizadeh, Singh, "Federated Learning with Taskonomy for Non-IID Data", IEEE Transactions
on Neural Networks and Learning Systems 2022, arXiv 2103.15947; Algorithms 2 and 3; code
github.com/hjraad/FLT.

The server trains an auto-encoder on public images, without labels. Before the first round, every client
trains it on its own images for J epochs, and sends a signature: the k means [k, e] of its embedded samples.
Server: A [N, N], the distances of signatures; clients at distances below gamma are related. Client: w_k <- E
epochs of SGD from its model. Server: case I (graph), for every client the mean of the w_j of its relatives;
case II (clusters), the mean of each cluster: of Ward's clustering of the graph, or its connected components.
*Reduces to* FedAvg when all clients are related (large gamma), to Local when no two are, except that clients
are served by cluster; case I is case II where relatives have the same relatives.
*State*: server the distinct models, the graph, signatures, A; clients none.
*Traffic*: 1 P down, 1 P up. Before the first round also the auto-encoder down (its encoder with J = 0) and k
means up; with finetune: sequential also the auto-encoder up and the encoder down, with central the images up
and only the encoder down.
*Newcomer*: sends a signature; case I: the mean of its relatives' models; case II: the cluster that is nearest
before any embedding; with assign: all, all clients are related again. With finetune: sequential or central,
it uses the encoder as it is.
*Differs from the paper in*: no UMAP unless reducer: umap (extra ``umap``); without it, gamma is the middle of
the largest gap of A, as the paper's 1 is in units of UMAP: groups that are close to each other are merged if
another is far away. A_ij matches means one to one, as in the code (distance: min_pair is as printed);
this needs at most as many means as a client has labels (k: null), as the second mean of a label is arbitrary.
Absent clients are left out (absent: stale is the paper's, which moves a model by the cohort's share only).
The printed averages do not sum to 1; here, as in the code, they do. UMAP's ``fit_transform`` embeds the
means; the code passes each client's through ``transform`` after the fit. Clients are related once: their data
do not change, so relating them again every tau rounds would give the same signatures, and no flags are
raised. Newcomers join after the last round.
*Ambiguous*: in the paper, each client trains its own auto-encoder. One version of the code trains a single
auto-encoder at the clients in turn, in random order (finetune: sequential); a later version trains it on all
clients' images (finetune: central, which shares data and is for reproduction only). There, the learning rate
is halved every ten epochs of all clients together or every ten batches, which soon stops the training; here
it starts again at every client and is halved every ten epochs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedflow.data import Examples
from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.local.encoder import ENCODERS, autoencoder, embed, fine_tune, pixels, pretrain
from fedflow.local.labels import label_shares
from fedflow.methods.clustered._related import Related, RelatedState
from fedflow.methods.method import Cohort, Initial, Message, Round
from fedflow.methods.protocols import Pretrained, ServerData
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option

UNTRAINED = ("pixels", "labels")
FINETUNE = ("per_client", "sequential", "central")


@dataclass(frozen=True, kw_only=True)
class State(RelatedState):
    """``encoder`` is the whole auto-encoder if every client trains its own."""

    encoder: Tensor | None = None  # [W], which clients receive, or None without public images or encoder
    decoder: Tensor | None = None  # [W'], the rest; None unless one auto-encoder is trained for all clients


@register("flt", "FLT")
class FLT(Pretrained, Related[State]):
    encoder: str | None = option(
        None,
        "auto-encoder; null = conv for gray images, residual for color; pixels = none; labels = clients with "
        "the same labels are related (an upper bound)",
        choices=(*ENCODERS, *UNTRAINED),
        symbol="G",
        source="Table 13; the others: authors' code",
    )
    latent: int = option(128, "dimensions of an embedded image", symbol="e", ge=1, source="section 4")
    pretraining: int = option(40, "epochs on the server's images", ge=1, source="authors' code: 25 to 40")
    finetuning: int = option(
        5, "epochs on clients' images", symbol="J", ge=0, grid=(0, 5), source="Enc1: 0; Enc2: 5"
    )
    finetune: str = option(
        "per_client",
        "who trains the encoder: each client its own, all clients one in turn, or the server on all images",
        choices=FINETUNE,
    )
    public: str | None = option(
        None, "the server's images: a dataset under `data`; null = what the partition sets aside"
    )

    def validate(self) -> None:
        super().validate()
        if self.finetune != "per_client" and self.encoder in UNTRAINED:
            accepted = f"per_client where encoder is {self.encoder}: it is not trained"
            raise BadInput("method.finetune", self.finetune, accepted)
        if self.encoder in UNTRAINED:  # not `pretraining`, which entries keep when they try pixels
            self.refuse_unused(f"with encoder: {self.encoder}", "latent")

    @property
    def together(self) -> bool:
        """True if one encoder is trained for all clients before they send signatures."""
        return self.finetune != "per_client" and self.finetuning > 0

    def onboarding_phases(self) -> int:
        return 1 + self.together

    def signing(self, phase: int) -> bool:
        """True if clients send their signatures in this phase, the last one."""
        return phase == self.onboarding_phases() - 1

    def onboarding_turns(
        self, now: Round, phase: int, server: State, clients: Sequence[int]
    ) -> Sequence[Sequence[int]]:
        if self.signing(phase):
            return [clients]
        if server.signatures is not None:  # newcomers: the encoder is trained
            return []
        return [clients] if self.finetune == "central" else [[int(k)] for k in now.rng.permutation(clients)]

    def server_data(self) -> ServerData:
        return ServerData(self.public)

    def needs_data(self) -> str:
        return "" if self.encoder in UNTRAINED else "method.public to a dataset, or method.encoder to pixels"

    def setup(self, model: FlatModel, initial: Initial) -> State:
        first = initial(0)
        return State(models=first[None], initial=first)

    def pretrain_server(self, server: State, public: Examples, seed: int) -> State:
        """The auto-encoder trained on the public images, of which the state holds what clients receive."""
        if self.encoder in UNTRAINED:
            return server
        model = self.autoencoder(public.x)
        w = pretrain(model, public.x, self.pretraining, seed)
        if self.together:
            return replace(server, **split(model, w))
        return replace(server, encoder=w if self.finetuning else model.part("encoder.*").of(w))

    def onboarding_broadcast(self, now: Round, phase: int, server: State, client: int) -> Message:
        if self.encoder in UNTRAINED:
            return {}
        assert server.encoder is not None, "checked at the start"
        if self.signing(phase):
            return {"encoder": server.encoder}
        if self.finetune == "central":
            return {}
        assert server.decoder is not None
        return {"encoder": server.encoder, "decoder": server.decoder}

    def onboarding_local(self, phase: int, client: Client) -> Update:
        if self.signing(phase):
            return super().onboarding_local(phase, client)
        x, _ = client.data(raw=True)
        if self.finetune == "central":
            return client.update(images=x)
        tuned = self.tune(client.received["encoder"], client.received["decoder"], x)
        return client.update(encoder=tuned["encoder"], decoder=tuned["decoder"])

    def onboarding_aggregate(self, now: Round, phase: int, server: State, cohort: Cohort) -> State:
        if self.signing(phase):
            return super().onboarding_aggregate(now, phase, server, cohort)
        if self.finetune == "sequential":
            (encoder,), (decoder,) = cohort.vectors("encoder"), cohort.vectors("decoder")
            return replace(server, encoder=encoder, decoder=decoder)
        assert server.encoder is not None and server.decoder is not None
        images = torch.cat(cohort.vectors("images"))
        return replace(server, **self.tune(server.encoder, server.decoder, images))

    def tune(self, encoder: Tensor, decoder: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``encoder`` and ``decoder`` after J more epochs on the images ``x`` [n, C, H, W], as stored."""
        model = self.fitting(x, len(encoder))
        w = model.part("encoder.*").join(encoder, decoder)
        return split(model, fine_tune(model, w, x, self.finetuning))

    def autoencoder(self, x: Tensor) -> FlatModel:
        """The auto-encoder for images ``x`` [n, C, H, W]."""
        shape = tuple(x.shape[1:])
        return autoencoder(self.encoder or ("residual" if shape[0] == 3 else "conv"), shape, self.latent)

    def fitting(self, x: Tensor, size: int) -> FlatModel:
        """The same, or `BadInput` unless it or its encoder has ``size`` parameters."""
        model = self.autoencoder(x)
        if size not in (model.size, len(model.part("encoder.*").index)):
            raise BadInput("method.public", self.public, f"images of the clients' shape, {list(x.shape[1:])}")
        return model

    def points(self, client: Client) -> Tensor:
        if self.encoder == "labels":
            return (label_shares(client) > 0)[None].to(client.model.dtype)
        x, _ = client.data(raw=True)
        if self.encoder == "pixels":
            return pixels(x).flatten(1)
        w = client.received["encoder"]
        model = self.fitting(x, len(w))
        encoder = model.part("encoder.*")
        if len(w) < model.size:  # trained already
            return embed(model, encoder.join(w, w.new_zeros(len(encoder.rest))), x)
        return embed(model, fine_tune(model, w, x, self.finetuning), x)

    def threshold(self, matrix: np.ndarray) -> float:
        exact = self.encoder == "labels" and self.gamma is None
        return 0.5 if exact else super().threshold(matrix)


def split(model: FlatModel, w: Tensor) -> dict[str, Tensor]:
    """The ``encoder`` [E] and the ``decoder`` [D - E] of an auto-encoder ``w`` [D]."""
    encoder = model.part("encoder.*")
    return {"encoder": encoder.of(w), "decoder": encoder.outside(w)}
