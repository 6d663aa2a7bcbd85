"""Base of methods whose server averages networks that make images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fedflow.errors import BadInput
from fedflow.local.optimizer import Moving
from fedflow.local.trainer import Step, Trainer
from fedflow.methods.generative._generative import ImageMethod
from fedflow.methods.method import Cohort, Conditions, Initial, Message, Next, Round, ServerState
from fedflow.methods.protocols import Images, Noisy, Published
from fedflow.models.flat import FlatModel
from fedflow.models.gan import SIDES
from fedflow.settings import shown

CHUNK = 512  # images that are made at a time


@dataclass(frozen=True)
class Networks(ServerState):
    """Networks by name, each a vector [D]."""

    vectors: Mapping[str, Tensor]

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.vectors)

    def restored(self, tensors: Mapping[str, Tensor]) -> "Networks":
        return Networks(dict(tensors))


class NetworkMethod(Noisy, Published, ImageMethod[Networks]):
    """Clients train two networks, and the server averages them with weights n_k.

    ``parts`` are their modules by name; the ``maker`` turns noise and one-hot labels [B, 128 + C] into
    images, in evaluation mode.
    """

    alone = True
    parts: ClassVar[Mapping[str, Callable[[tuple[int, ...], int], nn.Module]]] = {}
    maker: ClassVar[str] = ""

    def noise(self, count: int, generator: torch.Generator) -> Tensor:
        """Noise [count, 128] for ``count`` images, on the device of the generator."""
        raise NotImplementedError

    def pixels(self, outputs: Tensor) -> Tensor:
        """Images in [0, 1] from outputs of the maker."""
        return outputs

    def trained_networks(self, model: FlatModel) -> dict[str, FlatModel]:
        """The networks for the images and classes of ``model``, or `BadInput` if images have other sides."""
        shape = tuple(model.input_shape)
        if len(shape) != 3 or shape[1] != shape[2] or shape[1] not in SIDES:
            sides = ", ".join(map(str, SIDES))
            accepted = f"one of {sides} with {self.name}, or data.pad, as inputs have shape {list(shape)}"
            raise BadInput("data.resize", None, accepted)
        return {
            name: _network(part, shape, model.classes, model.device, model.dtype)
            for name, part in self.parts.items()
        }

    def check(self, run: Conditions) -> None:
        training = run.training
        training.need_no_adaptation(self.name, "which trains no classifier on clients")
        accepted = f"null with {self.name}, which trains no classifier on clients"
        if training.objective is not None:
            raise BadInput("training.objective", training.objective.name, accepted)
        if training.curriculum is not None:
            raise BadInput("training.curriculum", shown(training.curriculum), accepted)

    def setup(self, model: FlatModel, initial: Initial) -> Networks:
        networks = self.trained_networks(model)
        return Networks({name: initial(0).new_zeros(net.size) for name, net in networks.items()})

    def begin(self, now: Round, server: Networks) -> Networks:
        networks = self.trained_networks(now.model)
        return Networks({name: net.init(int(now.rng.integers(1 << 62))) for name, net in networks.items()})

    def broadcast(self, now: Round, server: Networks, client: int) -> Message:
        return server.tensors()

    def aggregate(self, now: Round, server: Networks, cohort: Cohort) -> Next[Networks]:
        return Networks({name: cohort.mean(name) for name in server.vectors}), {}

    def images(self, now: Round, server: Networks) -> Images:
        network, w = self.trained_networks(now.model)[self.maker], server.vectors[self.maker]
        labels = self.labels(now.model)
        generator = torch.Generator(labels.device).manual_seed(int(now.rng.integers(1 << 62)))
        inputs = conditioned(self.noise(len(labels), generator), labels, now.model)
        made = [self.pixels(network.outputs(w, some)) for some in inputs.split(CHUNK)]
        return Images(torch.cat(made), labels)

    def published_bytes(self, model: FlatModel, rounds: int, cohort: int) -> float:
        """All parameters and buffers, down and up."""
        return 8.0 * rounds * cohort * sum(network.size for network in self.trained_networks(model).values())


@lru_cache(maxsize=16)
def _network(
    part: Callable[[tuple[int, ...], int], nn.Module],
    shape: tuple[int, ...],
    classes: int,
    device: torch.device,
    dtype: torch.dtype,
) -> FlatModel:
    return FlatModel(partial(part, shape, classes), device=device, dtype=dtype)


def conditioned(noise: Tensor, y: Tensor, model: FlatModel) -> Tensor:
    """``noise`` [B, .] joined with the one-hot labels ``y`` [B]."""
    return torch.cat([noise, one_hot(y, model.classes)], 1).to(model.dtype)


def leaf(w: Tensor) -> Tensor:
    """``w`` [D] as a leaf that requires gradients."""
    return w.detach().requires_grad_()


def stepped(
    trainer: Trainer, now: Moving, gradient: Tensor, buffers: Tensor | None, lr: float | Tensor
) -> Moving:
    """The state after a step along ``gradient`` [D], with the ``buffers`` [Q] after it."""
    step = Step(trainer.model.trainable(gradient), torch.zeros(()), buffers)
    return trainer.descend(now, step, lr=lr)


def means(steps: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Means over the steps of values by name."""
    return {name: torch.stack([values[name] for values in steps]).mean().detach() for name in steps[0]}
