"""The real images of a federation: checked, and compared with generated ones; computed once per run."""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.errors import BadInput
from fedflow.methods.protocols import Images
from fedflow.metrics import generation
from fedflow.metrics.generation import Gaussian, nearest
from fedflow.partition.after.inputs import steps
from fedflow.seeding import generator
from fedflow.simulation.federation import FEATURES, Federation
from fedflow.simulation.predict import AT_ONCE

NEIGHBORS = 5  # k of precision, recall, density and coverage; smaller for fewer images
REFERENCE = 1000  # most test images whose nearest training images are searched for
RARE = 0.05  # share of test images that are closer to a training image than `RealImages.close`


class RealImages:
    """Training and test images of a federation, their features and distances, with pixels in [0, 1].

    ``labels`` [N] are the labels of the generated images: as many real ones are drawn of each class.
    """

    def __init__(self, federation: Federation, seed: int, labels: Tensor) -> None:
        self.federation, self.seed, self.labels = federation, seed, labels
        self._radii: dict[int, Tensor] = {}
        partition = federation.partition
        held = partition.indices[: int(partition.sizes[: partition.training_clients].sum())]
        self.train_rows = torch.as_tensor(np.unique(held), device=federation.train.device)

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """The features [n, d] of images [n, C, H, W] by `Federation.features`, or else the pixels."""
        network = self.federation.features
        if network is None:
            return x.flatten(1)
        parts = x.split(network.model.at_once or AT_ONCE[x.device.type])
        return torch.cat([network.model.features(network.w, part).flatten(1) for part in parts])

    @cached_property
    def train(self) -> Tensor:
        """The pixels [n, d] of all images that clients train on."""
        return self.federation.train.inputs(self.train_rows).flatten(1)

    @cached_property
    def test(self) -> Tensor:
        """The pixels [m, d] of the complete test set."""
        return self._tested().flatten(1)

    @cached_property
    def test_features(self) -> Tensor:
        return self.features(self._tested())

    @cached_property
    def gaussian(self) -> Gaussian:
        return Gaussian.of(self.test_features)

    def radii(self, k: int) -> Tensor:
        """The distances [m] of the features of the complete test set to their k-th neighbors."""
        if k not in self._radii:
            self._radii[k] = generation.radii(self.test_features, k)
        return self._radii[k]

    @cached_property
    def drawn(self) -> Images:
        """Random training images, as many of every class as are generated, or all if clients have fewer."""
        train, rows = self.federation.train, list[Tensor]()
        labels = train.y[self.train_rows]
        for label, count in enumerate(self.labels.bincount().tolist()):
            of_class = self.train_rows[labels == label]
            order = generator(self.seed, "real images", label).permutation(len(of_class))[:count]
            rows.append(of_class[torch.as_tensor(order, device=of_class.device)])
        index = torch.cat(rows)
        return Images(train.inputs(index), train.y[index])

    @cached_property
    def floor(self) -> float:
        return Gaussian.of(self.features(self.drawn.x)).distance(self.gaussian)

    @cached_property
    def reference(self) -> Tensor:
        """The distances of random test images, `REFERENCE` at most, to their nearest training images."""
        chosen = generator(self.seed, "reference images").permutation(len(self.test))[:REFERENCE]
        return nearest(self.test[torch.as_tensor(chosen, device=self.test.device)], self.train)[1]

    @cached_property
    def close(self) -> float:
        """The distance below which only `RARE` of the test images have a training image."""
        return float(self.reference.quantile(RARE))

    def _tested(self) -> Tensor:
        test, rows = self.federation.complete
        return test.inputs(torch.as_tensor(rows, device=test.device))


def check_generative(name: str, federation: Federation) -> None:
    """Raise `BadInput` unless clients hold images in [0, 1], of every class."""
    train, partition = federation.train, federation.partition
    if train.x.ndim != 4 or not federation.labeled:
        shape = list(train.x.shape[1:])
        accepted = f"labeled images with {name}, which generates them, not inputs of shape {shape}"
        raise BadInput("data.source", partition.params.get("dataset", ""), accepted)
    for change in steps(partition.params):
        if not change.pixels:
            accepted = f"null with {name}, whose images have pixels in [0, 1]"
            raise BadInput(change.section, change.as_dict(), accepted)
    if not _unit(train):
        raise BadInput("data.normalize", "source", f"none with {name}, whose images have pixels in [0, 1]")
    if federation.features and federation.features.model.last_linear is None:
        network = federation.features.model.title
        raise BadInput(FEATURES, network, "a network that ends in a linear layer with biases")
    indices = partition.indices[: int(partition.sizes[: partition.training_clients].sum())]
    held = set(train.y.cpu().numpy()[indices].tolist())
    if missing := sorted(set(range(federation.model.classes)) - held):
        labels = ", ".join(map(str, missing))
        accepted = f"only labels that clients hold, with {name}; none trains on label {labels}"
        raise BadInput("data.keep_labels", [], accepted)


def _unit(examples: Examples) -> bool:
    if not examples.images:
        return bool(examples.x.min() >= 0 and examples.x.max() <= 1)
    given = ((examples.mean, 0), (examples.std, 1))
    return all(value is None or bool((torch.as_tensor(value) == plain).all()) for value, plain in given)
