"""Images that a server generates: checked, kept at every evaluation, measured, and classified."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.errors import BadInput
from fedflow.methods.base import Generative, Images
from fedflow.simulation.federation import Federation

if TYPE_CHECKING:
    from fedflow.simulation.run import Run

MOST_BYTES = 64 << 20  # of the images that a run keeps: later ones replace those of the earliest rounds


class Generated(NamedTuple):
    """The server's images before a round, and the model [D] that was trained on them."""

    images: Images
    model: Tensor


class Generation:
    """The images of one run, made once per evaluation."""

    def __init__(self, run: "Run", method: Generative) -> None:
        self.run, self.method = run, method
        self._made: tuple[int, Generated] | None = None

    def before(self, t: int) -> Generated:
        """The images before round ``t``, and their model."""
        if self._made is None or self._made[0] != t:
            images = self.method.images(self.run.round(t, "generated", t), self.run.state.server)
            model = self.method.classify(self.run.round(t, "classifier", t), images)
            self._made = t, Generated(images, model)
        return self._made[1]

    def evaluate(self, after: int) -> dict[str, float]:
        """Keep the images after round ``after``; returns what measures them."""
        kept, found = self.run.state.generated, self.before(after + 1)
        kept[after] = Images((found.images.x * 255).round().byte().cpu(), found.images.y.cpu())
        while len(kept) > 1 and sum(each.x.nbytes for each in kept.values()) > MOST_BYTES:
            del kept[min(kept)]
        return {}


def check_generative(name: str, federation: Federation) -> None:
    """Raise `BadInput` unless clients hold images in [0, 1], of every class."""
    train, partition = federation.train, federation.partition
    if train.x.ndim != 4 or not federation.labelled:
        shape = list(train.x.shape[1:])
        accepted = f"labelled images with {name}, which generates them, not inputs of shape {shape}"
        raise BadInput("data.source", partition.params.get("dataset", ""), accepted)
    if not _unit(train):
        raise BadInput("data.normalise", "source", f"none with {name}, whose images have pixels in [0, 1]")
    indices = partition.indices[: int(partition.sizes[: partition.training_clients].sum())]
    held = set(train.y.cpu().numpy()[indices].tolist())
    if missing := sorted(set(range(federation.model.classes)) - held):
        labels = ", ".join(map(str, missing))
        accepted = f"only labels that clients hold, with {name}; none trains on label {labels}"
        raise BadInput("data.keep_labels", [], accepted)


def _unit(examples: Examples) -> bool:
    """Whether inputs are pixels in [0, 1]."""
    if not examples.images:
        return bool(examples.x.min() >= 0 and examples.x.max() <= 1)
    given = ((examples.mean, 0), (examples.std, 1))
    return all(value is None or bool((torch.as_tensor(value) == plain).all()) for value, plain in given)
