"""Base of both forms of FLIS: the server compares what models predict for its own inputs."""

import torch
from torch import Tensor

from fedflow.data import Examples
from fedflow.errors import BadInput
from fedflow.local.samples import Samples
from fedflow.methods.method import Cohort, Conditions, Method, Round, S
from fedflow.methods.protocols import Pretrained, ServerData
from fedflow.models.flat import FlatModel
from fedflow.settings import option


class FLIS(Pretrained, Method[S]):
    """The server's inputs, and the inferences of models on them."""

    public: str | None = option(
        None, "the server's inputs: a dataset under `data`; null = what the partition sets aside"
    )
    noise: int = option(
        0, "number of uniform random inputs, instead of a dataset", ge=0, source="thesis: 2500"
    )
    inference: str = option(
        "one_hot", "models are compared by predicted classes, or probabilities", choices=("one_hot", "soft")
    )

    def validate(self) -> None:
        if self.noise and self.public is not None:
            raise BadInput("method.noise", self.noise, "0 where public names a dataset")

    def check(self, run: Conditions) -> None:
        super().check(run)
        if run.several:
            accepted = "another method, as FLIS compares classes, and samples have several labels"
            raise BadInput("method.name", self.name, accepted)

    def server_data(self) -> ServerData:
        return ServerData(self.public, self.noise)

    def needs_data(self) -> str:
        return "method.public to a dataset, or method.noise to a number"

    def inferences(self, now: Round, cohort: Cohort) -> Tensor:
        """Predictions of the cohort's models for the server's inputs: classes [m, M] or probabilities [m, F].

        F = M * K; for models that predict at every position, each position counts as an input.
        """
        public, soft = now.need_public(self.name), self.inference == "soft"
        return torch.stack([infer(now.model, w, public, soft) for w in cohort.stack("model")])


@torch.no_grad()
def infer(model: FlatModel, w: Tensor, public: Examples, soft: bool) -> Tensor:
    """Predicted class of each input [M], or the probabilities of all inputs, flat [M * K]."""
    chunks = Samples.all_of(public).chunks(model.dtype)
    try:
        outputs = torch.cat([model.outputs(w, batch.x, batch.real) for batch in chunks])
    except (IndexError, RuntimeError, ValueError) as error:
        inputs = f"inputs {list(public.x.shape[1:])}"
        raise BadInput("method.public", inputs, "inputs that the clients' network can read") from error
    if outputs.ndim < 2 or outputs.shape[-1] < 2:
        raise BadInput("method.name", "flis", "another method, as FLIS compares classes and there are none")
    return (outputs.softmax(-1) if soft else outputs.argmax(-1)).flatten().cpu()


def similarity(ours: Tensor, theirs: Tensor) -> Tensor:
    """Cosine of the inferences, [m, n] float64 in [0, 1]: sum(B_i * B_j) / (||B_i|| ||B_j||), B [M, K].

    Of classes [m, M] and [n, M] this is the share of inputs on which two models agree; probabilities are
    [m, M * K] and [n, M * K].
    """
    if not ours.is_floating_point():
        return torch.stack([(theirs == row).double().mean(1) for row in ours])
    unit, other = (torch.nn.functional.normalize(b.double()) for b in (ours, theirs))
    return (unit @ other.T).clamp(0, 1)
