"""Generated images: the file of a run that has them, and the data source that reads it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load
from torch import Tensor

from fedflow.data.files import RawData
from fedflow.errors import BadInput, FedflowError, reason
from fedflow.settings import Settings, option

FILE = "images.safetensors"
Pair = tuple[Tensor, Tensor]  # images uint8 [N, C, H, W], labels int64 [N]


class LastImages(NamedTuple):
    """A comparison of the images of the last round with real ones.

    ``image`` [c]: the numbers of those nearest to a training image, the nearest first; ``x`` [c, C, H, W],
    uint8: these training images; ``distance`` [c], float64: between the two, for pixels in [0, 1].
    ``accuracy`` [K], float64: accuracy of the classifier on the complete test set, by class; NaN: no samples.
    """

    image: Tensor
    x: Tensor
    distance: Tensor
    accuracy: Tensor


class GeneratedImages(NamedTuple):
    """Images and labels by evaluated round, and what is known about the last ones; empty without images."""

    rounds: dict[int, Pair]
    last: LastImages | None


def save_generated(path: Path, rounds: Mapping[int, Pair], last: LastImages | None) -> None:
    """Write the file: tensors ``<round>/x``, ``<round>/y`` and ``last/<field>``. Raises `OSError`."""
    tensors = {f"{t}/{name}": values for t, pair in rounds.items() for name, values in zip("xy", pair)}
    tensors |= {f"last/{name}": values for name, values in (last._asdict() if last else {}).items()}
    # As arrays: of tensors, several rounds could not share the memory of their labels.
    path.write_bytes(save({name: np.ascontiguousarray(values.numpy()) for name, values in tensors.items()}))


def load_generated(path: Path) -> GeneratedImages:
    """Read the file. Raises `FedflowError` if it is missing, damaged or invalid."""
    try:
        tensors = load(path.read_bytes())
        names = [name for name in tensors if re.fullmatch(r"\d+/x", name)]
        inputs = {int(name[:-2]): tensors.pop(name) for name in names}
        rounds = {t: (inputs[t], tensors.pop(f"{t}/y")) for t in sorted(inputs)}
        fields = {
            name: tensors.pop(f"last/{name}") for name in LastImages._fields if f"last/{name}" in tensors
        }
        last = LastImages(**fields) if fields else None
        if tensors or (last is None) == bool(rounds):
            raise ValueError("holds tensors that generated images do not have")
        for t, (x, y) in rounds.items():
            if x.dtype != torch.uint8 or x.ndim != 4 or x.shape[1] not in (1, 3) or not len(x):
                raise ValueError(f"the images of round {t} are not uint8 [N, 1 or 3, H, W]")
            if y.dtype != torch.int64 or y.shape != x.shape[:1] or y.min() < 0:
                raise ValueError(f"the labels of round {t} are not int64 [N], from 0")
        if last and not _fits(last, *rounds[max(rounds)]):
            raise ValueError("what it holds of the last images is not about these")
        return GeneratedImages(rounds, last)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
        raise FedflowError(f"cannot read {path}: {reason(error)}; run this experiment again") from error


def _fits(last: LastImages, x: Tensor, y: Tensor) -> bool:
    """Return whether ``last`` can be about the images ``x`` with labels ``y``."""
    count = len(last.image)
    fits = bool(((last.image >= 0) & (last.image < len(x))).all())
    fits = fits and len(last.accuracy) > int(y.max())
    return fits and last.x.shape == (count, *x.shape[1:]) and last.distance.shape == (count,)


class GeneratedOptions(Settings):
    """The images that are training samples, and the source of the test samples."""

    section = "data"
    round: int | None = option(None, "the evaluated round whose images are used; null = the last", ge=1)
    test_of: dict = option(
        doc="an entry of data: the images have its test samples, classes and normalization"
    )


def generated(path: Path, options: GeneratedOptions, real: RawData) -> RawData:
    """The images of one round as training samples, and the test samples of ``real``.

    Raises `BadInput` if the file has no such round, or if shapes or labels do not agree.
    """
    missing = not path.exists() and (path.parent / "metrics.json").exists()
    rounds = {} if missing else load_generated(path).rounds
    if not rounds:
        raise BadInput("data.path", str(path), "the images of a method that generates some; it has none")
    t = max(rounds) if options.round is None else options.round
    if t not in rounds:
        raise BadInput("data.round", t, f"one of the evaluated rounds {', '.join(map(str, rounds))}")
    x, y = (tensor.numpy() for tensor in rounds[t])
    made = np.ascontiguousarray(x[:, 0] if x.shape[1] == 1 else x.transpose(0, 2, 3, 1))
    source, wanted = options.test_of.get("source", ""), list(real.x_test.shape[1:])
    if real.kind != "images" or list(made.shape[1:]) != wanted:
        found = f"images {list(made.shape[1:])}, as the generated ones, not {real.kind} {wanted}"
        raise BadInput("data.test_of", source, f"an entry with {found}")
    if differ := sorted({*y.tolist()} ^ {*range(len(real.classes))}):
        found = f"the labels of the generated images; they differ in {differ[0]}"
        raise BadInput("data.test_of", source, f"an entry with {found}")
    return RawData(made, y, real.x_test, real.y_test, real.classes, mean=real.mean, std=real.std)
