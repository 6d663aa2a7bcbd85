"""FedBN: all layers are shared, except BatchNorm, which stays with the client.

Source: Li, Jiang, Zhang, Kamp, Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021, arXiv 2102.07623, Algorithm 1.

Client: SGD on the whole network, from the received layers and its own BatchNorm layers (gamma, beta and
running statistics); sends the other layers. Server: averages them as FedPer.
*Reduces to* FedPer with the BatchNorm layers as ``private``, to FedAvg with ``private: []``.
*State*: server shared layers; client BatchNorm. *Traffic*: P_shared down, P_shared up. *Newcomer*: the
shared layers, and BatchNorm as it was initialized.
*Differs from the paper in*: the average is weighted by n_k (the authors have equal clients).
"""

from fedflow.errors import BadInput
from fedflow.methods.personal.fedper import FedPer
from fedflow.methods.protocols import Specialized
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel, Part
from fedflow.settings import Words, option


@register("fedbn", "FedBN")
class FedBN(Specialized, FedPer):
    example = "lenet5_bn"

    private: list[str] | None = option(
        None, "names of the private parameters; null = the BatchNorm layers", source="section 3"
    )

    def head(self, model: FlatModel) -> Part:
        if self.private is not None:
            return model.part(*self.private)
        if not model.batch_norms:
            raise BadInput("model.name", Words(model.title), "a network with BatchNorm for fedbn")
        return model.part(*(f"{name}.*" for name in model.batch_norms))
