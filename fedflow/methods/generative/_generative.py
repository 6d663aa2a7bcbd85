"""Base of methods whose server makes labeled images, on which a classifier is trained."""

import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.local.local_training import LocalTraining
from fedflow.local.trainer import Trainer
from fedflow.methods.method import Method, Round, S
from fedflow.methods.protocols import Generative, Images
from fedflow.models.flat import FlatModel
from fedflow.settings import Settings, option


class Classifier(Settings):
    """Training of the run's network on the server's images, by Adam: the same for all methods."""

    section = "method.classifier"
    epochs: int = option(200, "epochs", ge=1, source="FedEvg's code: 1")
    batch_size: int = option(64, "images per batch", ge=1)
    lr: float = option(1e-3, "learning rate", gt=0)
    weight_decay: float = option(1e-4, "L2 penalty in the gradient", ge=0, source="FedEvg's code: 0")


class ImageMethod(Method[S], Generative):
    """A server with ``spc`` images per class, in the order of the classes."""

    spc: int = option(10, "images per class", ge=1, grid=(10, 50), source="FedEvg's scripts")
    classifier: Classifier = option(factory=Classifier, doc="training on the images, before an evaluation")

    def labels(self, model: FlatModel) -> Tensor:
        """The labels [N] of the images, int64: ``spc`` of every class, in order."""
        return torch.arange(model.classes, device=model.device).repeat_interleave(self.spc)

    def classify(self, now: Round, images: Images) -> Tensor:
        model, chosen = now.model, self.classifier
        training = LocalTraining.parse({"optimizer": "adam", **chosen.as_dict()})
        start = model.init(int(now.rng.integers(1 << 62)))
        return Trainer.central(model, Examples(*images), training, now.rng).fit(start=start)
