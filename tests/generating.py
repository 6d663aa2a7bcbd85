"""A tiny method whose server makes images, registered while a test needs it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods import METHODS
from fedflow.methods.generative._generative import ImageMethod
from fedflow.methods.method import Cohort, Diagnostics, Message, Round, ServerState
from fedflow.methods.protocols import Images, Noisy
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class Means(ServerState):
    """The mean image of every class [K, d]."""

    means: Tensor


class Blend(Noisy, ImageMethod):
    """Images are the means of the clients' classes, with uniform noise of width ``noise``."""

    name: ClassVar[str] = "blend"
    label: ClassVar[str] = "Blend"
    alone: ClassVar[bool] = True

    noise: float = option(0.2, "width of the noise", ge=0)

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> Means:
        return Means(torch.zeros(model.classes, torch.Size(model.input_shape).numel()))

    def broadcast(self, now: Round, server: Means, client: int) -> Message:
        return {}

    def local(self, client: Client) -> Update:
        x, y = client.data()
        one_hot = torch.nn.functional.one_hot(y, client.model.classes).to(x.dtype)
        return client.update(sums=(one_hot.T @ x.flatten(1)).flatten() / len(x), counts=one_hot.mean(0))

    def aggregate(self, now: Round, server: Means, cohort: Cohort) -> tuple[Means, Diagnostics]:
        counts = cohort.mean("counts")[:, None]
        found = cohort.mean("sums").view_as(server.means) / counts.clamp(min=1e-9)
        return Means(torch.where(counts > 0, found, server.means)), {}

    def images(self, now: Round, server: Means) -> Images:
        y = self.labels(now.model)
        x = server.means[y]
        x = x + self.noise * torch.from_numpy(now.rng.random(x.shape)).float()
        return Images(x.clamp(0, 1).view(-1, *now.model.input_shape), y)

    def model_for(self, client: Client) -> Tensor:
        return client.received["model"]


@contextmanager
def blending() -> Iterator[type[Blend]]:
    """Within this context, the method ``blend`` is registered."""
    METHODS[Blend.name] = Blend
    try:
        yield Blend
    finally:
        del METHODS[Blend.name]


def blend(**settings: Any) -> Blend:
    """The method with a short training of its classifier."""
    return Blend.parse({"spc": 10, "classifier": {"epochs": 30}} | settings)
