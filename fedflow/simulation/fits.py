"""A trial of a network on a few samples, before the first round."""

import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedflow.data.examples import Examples
from fedflow.errors import BadInput, reason
from fedflow.models.binary import BinaryLinear
from fedflow.models.flat import FlatModel
from fedflow.models.noise import DRAWS

SAMPLES = 2  # and one alone: networks that squeeze its dimension away
LEAST = 8  # pixels of the sides of an image; smaller inputs may be anything
ROUNDING = 1e-4  # how far from 1 the sum of probabilities may be
ENDS = {"SoftmaxBackward0": "softmax", "SigmoidBackward0": "sigmoid"}
SHAPING = ("View", "Unsafe", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "T", "Permute", "Alias", "Clone")


class Misfit(Exception):
    """The reason why a network does not fit the samples."""


def need_fit(model: FlatModel, train: Examples, name: str, classes: int = 0) -> None:
    """Raise `BadInput` unless the network can read inputs, be scored on their targets, and learn.

    ``classes`` is their number (0: unknown, or a regression).
    """
    w, labels = model.init(0).requires_grad_(), not train.y.is_floating_point()
    shape = tuple(train.x.shape[1:])
    if labels:
        classes = train.y.shape[1] if train.several else max(classes, int(train.y.max()) + 1)
    try:
        few = torch.arange(min(SAMPLES, len(train)), device=model.device)
        before = _generators(model.device)
        with _without_draws():
            (outputs, first, again), _ = [
                _tried(model, w, train.inputs(rows, model.dtype), train.targets(rows), classes)
                for rows in (few, few[:1])
            ]
        if _generators(model.device) != before and not _is_named(model):  # other threads draw, too
            raise Misfit(DRAWS)
        if not torch.allclose(first, again):
            raise Misfit("its loss changes when it is called again: it draws random numbers, or counts calls")
        if channels_last(shape) and min(shape[:2]) >= LEAST and _reads_images(model):
            raise Misfit(f"it reads images {[shape[2], *shape[:2]]}, their channels first")
        one_logit = any(isinstance(part, BinaryLinear) for part in model.to_module(w).modules())
        if one_logit and (train.several or not labels):
            kind = "several labels" if labels else "real targets"
            raise Misfit(f"its one logit is for two classes, and {kind} need an output each")
        if labels and not model.own_losses:
            _need_logits(outputs, classes)
    except BadInput:
        raise
    except Exception as error:  # a network is anybody's code
        why = str(error) if isinstance(error, Misfit) else f"{type(error).__name__}: {reason(error)}"
        inputs = f"{_type(train.x)} inputs {list(shape)}"
        targets = f"{_type(train.y)} targets {list(train.y.shape[1:])}"
        raise BadInput("model.name", name, f"a network for {inputs} and {targets} ({why})") from error


def channels_last(shape: tuple[int, ...]) -> bool:
    """True if an input looks like an image [H, W, C]."""
    return len(shape) == 3 and shape[2] in (1, 3) and shape[0] not in (1, 3)


def _reads_images(model: FlatModel) -> bool:
    """True for a named network with convolutions, which would take rows of pixels for channels."""
    module = model.to_module(model.init(0))
    return _is_named(model) and any(isinstance(part, nn.Conv2d) for part in module.modules())


def _is_named(model: FlatModel) -> bool:
    """True for a network of `fedflow.models`."""
    return hasattr(model.to_module(model.init(0)), "architecture")


def _tried(model: FlatModel, w: Tensor, x: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs of a call in evaluation mode, and the losses of two equal calls of a local step."""
    outputs = model.outputs(w, x)
    _need_tensor(outputs, model, len(x))
    before, losses = model.counters(), [_losses(model, outputs, y, classes)]
    for _ in range(2):
        model.seed_noise(0)
        losses.append(_losses(model, model.train_outputs(w, x)[0], y, classes))
    for name, value in model.counters().items():
        if not torch.equal(value, before[name]):
            raise Misfit(f"{name} changes in training: only floating-point buffers are part of a model")
    if not losses[-1].requires_grad:
        raise Misfit("its outputs do not depend on the parameters that are trained")
    return outputs, losses[1].detach(), losses[2].detach()


@contextmanager
def _without_draws() -> Iterator[None]:
    """Raise `Misfit` if this thread draws from Python's generator. Threads of a Dask worker always do."""
    drawn, ours = list[str](), getattr(random.random, "__self__", None)
    before: Any = sys.getprofile()

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and getattr(called, "__self__", None) is ours:
            drawn.append(called.__name__)

    profiled = hasattr(before, "enable")  # by cProfile, which cannot be set like a function
    if profiled:
        before.disable()
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None if profiled else before)
        if profiled:
            before.enable()
    if {*drawn} - {"getstate", "setstate"}:  # as torch.compile calls them
        raise Misfit(DRAWS)


def _generators(device: torch.device) -> tuple[object, ...]:
    """The states of the generators of PyTorch and NumPy, which would depend on the workers."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    drawn = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return *(state.numpy().tobytes() for state in states), drawn["key"].tobytes(), drawn["pos"]


def _losses(model: FlatModel, outputs: Tensor, y: Tensor, classes: int) -> Tensor:
    if not model.own_losses:
        _need_tensor(outputs, model, len(y))
        _need_shape(outputs, y, classes)
    losses: Any = model.losses(outputs, y)
    if not isinstance(losses, Tensor) or losses.shape != y.shape[:1]:
        returned = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise Misfit(f"losses(outputs, y) gives {returned} for {len(y)} samples, not one loss each")
    return losses


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _need_tensor(outputs: Any, model: FlatModel, count: int) -> None:
    """Raise `Misfit` unless a call returned one tensor, with finite numbers for ``count`` samples."""
    if not isinstance(outputs, Tensor):
        part = "[0]" if isinstance(outputs, tuple | list) else "[...]"
        part = ".logits" if hasattr(outputs, "logits") else part
        raise Misfit(
            f"forward returns {type(outputs).__name__}, and must return one tensor of logits [n, classes]; "
            f"wrap it in a module whose forward returns self.network(x){part}"
        )
    if outputs.dtype != model.dtype:
        wanted = str(model.dtype).removeprefix("torch.")
        raise Misfit(f"forward returns {_type(outputs)}, and must return {wanted}")
    if not outputs.ndim or len(outputs) != count:
        shape = list(outputs.shape)
        raise Misfit(f"forward returns {shape} for {count} samples, whose dimension is the first")
    if not outputs.isfinite().all():
        raise Misfit("forward returns numbers that are not finite, with its first parameters")


def _need_shape(outputs: Tensor, y: Tensor, classes: int) -> None:
    """Raise `Misfit` unless the default loss can compare outputs [n, ...] with targets [n, ...]."""
    returned, targets = (f"[{', '.join(map(str, ['n', *t.shape[1:]]))}]" for t in (outputs, y))
    if y.is_floating_point():
        if outputs.numel() != y.numel() or (y.ndim > 1 and outputs.shape[1:] != y.shape[1:]):
            raise Misfit(f"the network gives {returned} for targets {targets}")
    elif y.dtype == torch.bool:
        if outputs.shape != y.shape:
            raise Misfit(f"the network gives {returned}, and {classes} labels need {targets} logits")
    elif y.ndim > 1:
        raise Misfit(f"targets {targets} are several labels a sample, which need losses(outputs, y)")
    elif outputs.ndim != 2:
        raise Misfit(f"the network gives {returned}, and labels need logits [n, classes]")
    elif outputs.shape[1] < classes:
        raise Misfit(f"the network gives {returned} for {classes} classes")


def _need_logits(outputs: Tensor, classes: int) -> None:
    """Raise `Misfit` for outputs [B, K] that are probabilities; warn of more outputs than classes."""
    if outputs.shape[1] > classes:
        warnings.warn(f"the network has {outputs.shape[1]} outputs for {classes} classes", stacklevel=3)
    sums = (outputs >= 0).all() and ((outputs.sum(1) - 1).abs() < ROUNDING).all()
    if end := "softmax" if sums else _end(outputs):
        raise Misfit(f"its outputs are probabilities, and the loss expects logits; remove the last {end}")


def _end(outputs: Tensor) -> str | None:
    """The name of the last operation if it makes probabilities."""
    node = outputs.grad_fn
    while node is not None and node.name().startswith(SHAPING):
        node = node.next_functions[0][0]
    return ENDS.get(node.name()) if node is not None else None
