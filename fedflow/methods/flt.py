"""FLT: clients whose images an auto-encoder puts at the same places are averaged, as a graph or as clusters.

Source: Jamali-Rad, Abdizadeh, Singh, "Federated Learning with Taskonomy for Non-IID Data", IEEE Transactions
on Neural Networks and Learning Systems 2022, arXiv 2103.15947; Algorithms 2 and 3; code
github.com/hjraad/FLT.

The server trains an auto-encoder on public images, without labels. Before the first round every client
trains it on its own for J epochs, and sends a signature: the k means [k, e] of its embedded samples. Server:
A [N, N], how far signatures are apart; clients less than gamma apart are related. Client: w_k <- E epochs of
SGD from its model. Server: case I (graph), for every client the mean of the w_j of all those related to it;
case II (clusters), the mean of each cluster: of Ward's clustering of the graph, or its connected components.
*Reduces to* FedAvg when all are related (large gamma), to Local when nobody is, but that clients are served
by cluster; case I is case II where relatives are the same for all relatives.
*State*: server the models of clients that differ, who is related, signatures, A; clients none.
*Traffic*: 1 P down, 1 P up. Before the first round also the auto-encoder down (its encoder with J = 0) and k
means up.
*Newcomer*: sends a signature; case I: the mean of its relatives' models; case II: the cluster that is nearest
before any embedding; with assign: anew all clients are related anew.
*Differs from the paper in*: no UMAP unless reducer: umap (extra ``umap``), and without it gamma lies in the
middle of the largest gap of A, as 1 is in units of UMAP: groups that are close to each other beside one that
is far off are taken for one; A_ij pairs means one to one, as the code does (distance: min_pair is what is
printed), which wants no more means than a client has labels (k: nothing), else a label's second mean lies
anywhere; the absent do not count (absent: stale is the paper's, which moves a
model by the participants' share only). The printed averages do not sum to 1; here, as in the code, they do.
UMAP's ``fit_transform`` embeds the means; the code passes each client's through ``transform`` after the fit.
Clients are related once: their data do not change, so that to relate them again every tau rounds, or when
more than lambda of them raise a flag, would change nothing; newcomers join after the last round.
*Ambiguous*: clients of the code train one auto-encoder in turn, or on pooled data; of the paper each its own,
as here. The others would let clients wait for each other, or show their images.
"""

import numpy as np
from torch import Tensor

from fedflow.data import Examples
from fedflow.errors import BadInput
from fedflow.heterogeneity.encoder import ENCODERS, autoencoder, embed, fine_tune, pixels, pretrain
from fedflow.local.client import Client
from fedflow.local.labels import label_shares
from fedflow.methods.base import Server, ServerData, register
from fedflow.methods.related import Related
from fedflow.models.flat import FlatModel
from fedflow.settings import option

UNTRAINED = ("pixels", "labels")


@register("flt", "FLT")
class FLT(Related):
    encoder: str | None = option(
        None, "auto-encoder; nothing = conv for grey images, residual for colour; or pixels as they are; or "
        "labels = which a client has, equal ones being related (an upper bound)",
        choices=(*ENCODERS, *UNTRAINED), symbol="G", source="Table 13; the others: authors' code",
    )  # fmt: skip
    latent: int = option(128, "numbers that an image becomes", symbol="e", ge=1, source="section 4")
    pretraining: int = option(40, "epochs on the server's images", ge=1, source="authors' code: 25 to 40")
    finetuning: int = option(
        5, "epochs on a client's own images", symbol="J", ge=0, grid=(0, 5), source="Enc1: 0; Enc2: 5"
    )
    public: str | None = option(
        None, "the server's images: a data set under `data`; nothing = those that the partition sets aside",
        source="EMNIST, Fashion-MNIST, CIFAR-100",
    )  # fmt: skip

    def server_data(self) -> ServerData:
        return ServerData(self.public)

    def learn(self, public: Examples, seed: int) -> Server:
        """``encoder`` [W]: what clients get of the auto-encoder that was trained on the public images."""
        if self.encoder in UNTRAINED:
            return {}
        model = self.autoencoder(public.x)
        w = pretrain(model, public.x, self.pretraining, seed)
        return {"encoder": w if self.finetuning else model.part("encoder.*").of(w)}

    def invite(self, phase: int, server: Server, client: int) -> dict[str, Tensor]:
        if self.encoder in UNTRAINED:
            return {}
        if "encoder" not in server:
            raise BadInput(
                "partition.public", 0, f"a number >= 1, as {self.name} trains an encoder on data of the "
                "server; or set method.public to a data set, or method.encoder to pixels"
            )  # fmt: skip
        return {"encoder": server["encoder"]}

    def autoencoder(self, x: Tensor) -> FlatModel:
        """The auto-encoder for images ``x`` [n, C, H, W]."""
        shape = tuple(x.shape[1:])
        return autoencoder(self.encoder or ("residual" if shape[0] == 3 else "conv"), shape, self.latent)

    def points(self, client: Client) -> Tensor:
        if self.encoder == "labels":
            return (label_shares(client) > 0)[None].to(client.model.dtype)
        x, _ = client.data(raw=True)
        if self.encoder == "pixels":
            return pixels(x).flatten(1)
        model, w = self.autoencoder(x), client.received["encoder"]
        encoder = model.part("encoder.*")
        if len(w) not in (model.size, len(encoder.index)):
            raise BadInput("method.public", self.public, f"images of the clients' shape, {list(x.shape[1:])}")
        if not self.finetuning:
            return embed(model, encoder.join(w, w.new_zeros(len(encoder.rest))), x)
        return embed(model, fine_tune(model, w, x, self.finetuning), x)

    def threshold(self, apart: np.ndarray) -> float:
        exact = self.encoder == "labels" and self.gamma is None
        return 0.5 if exact else super().threshold(apart)
