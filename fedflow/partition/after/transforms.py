"""Transforms: the images of each client, or of each group of clients, pass through torchvision's transforms.

``sets`` are lists of classes of ``torchvision.transforms.v2`` by ``name`` with their arguments, such as
``[[], [{name: RandomRotation, degrees: [90, 90]}], [{name: GaussianBlur, kernel_size: 5}]]``; an empty list
changes nothing. With S sets, client k = 0, 1, ... has set k mod S, or all clients of planted group g have set
g mod S (``by: group``). The results must be uint8 images of the same shape.
Every process that opens the data applies them once, to each sample with the torch seed of its row, so random
transforms give the same image in all epochs and for any workers. They come before ``feature_noise``.
Clients are tested on samples with the same transforms, so every test sample must belong to clients of one
set: set ``holdout``, or use groups with own test samples, such as ``domains``. The complete test set stays,
and `fedflow partitions compare` and central networks read the images as they were.

>>> Transforms(sets=[[], [{"name": "GaussianBlur", "kernel_size": 3}]]).variants(5, None).tolist()
[0, 1, 0, 1, 0]
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedflow.data import Examples
from fedflow.errors import BadInput, reason, unknown_name
from fedflow.seeding import torch_seed, undisturbed
from fedflow.settings import Settings, option

Transform = Callable[[Tensor], Tensor]


class Transforms(Settings):
    section = "partition.transforms"
    pixels: ClassVar[bool] = True

    sets: list[list[dict[str, Any]]] = option(
        doc="lists of transforms, each a name with arguments; [] changes nothing"
    )
    by: str = option("client", "what has one of the sets", choices=("client", "group"))

    def validate(self) -> None:
        if not self.sets:
            raise BadInput(f"{self.section}.sets", self.sets, "at least one list of transforms")
        self.built()

    def built(self) -> list[list[Transform]]:
        """The transforms of every set. Raises `BadInput` for unknown names and arguments."""
        return [
            [_built(f"{self.section}.sets[{i}][{j}]", entry) for j, entry in enumerate(entries)]
            for i, entries in enumerate(self.sets)
        ]

    def check(self, inputs: np.ndarray) -> None:
        """Raise `BadInput` unless every set makes images like ``inputs`` [n, C, H, W]."""
        if inputs.dtype != np.uint8 or inputs.ndim != 4:
            raise BadInput(
                self.section, self.as_dict(), "null, because the inputs of this dataset are no images"
            )
        image = torch.from_numpy(inputs[0].copy())
        for i, transforms in enumerate(self.built()):
            accepted = f"transforms that keep uint8 images of shape {list(image.shape)}"
            field = f"{self.section}.sets[{i}]"
            try:
                with undisturbed():
                    torch.manual_seed(0)
                    made = _passed(image, transforms)
            except Exception as error:  # anybody's code
                raise BadInput(field, self.sets[i], f"{accepted} ({reason(error)})") from error
            if not _alike(made, image):
                raise BadInput(field, self.sets[i], accepted)

    def variants(self, clients: int, groups: np.ndarray | None) -> np.ndarray:
        """The set of every client [N]."""
        if self.by == "client":
            return np.arange(clients) % len(self.sets)
        if groups is None:
            raise BadInput(f"{self.section}.by", self.by, "client, because this scheme has no groups")
        return groups % len(self.sets)

    def applied(
        self, examples: Examples, variant: np.ndarray, clients: int, seed: int, split: str
    ) -> Examples:
        """A copy of ``examples`` with the images of ``variant`` [n] transformed; -1 is not."""
        x, built = examples.x.clone(), self.built()
        with undisturbed():
            for row in np.flatnonzero(variant >= 0).tolist():
                torch.manual_seed(torch_seed(seed, f"partition/transforms/{split}", row))
                made = _passed(x[row], built[variant[row]])
                if not _alike(made, x[row]):
                    field, accepted = (
                        f"{self.section}.sets[{variant[row]}]",
                        f"images of shape {list(x.shape[1:])}",
                    )
                    raise BadInput(
                        field, self.sets[variant[row]], f"transforms that keep {accepted} in every row"
                    )
                x[row] = made
        return Examples(x, examples.y, examples.mean, examples.std, examples.domain)


def _built(field: str, entry: dict[str, Any]) -> Transform:
    from torchvision.transforms import v2  # slow to import

    known = {n: c for n, c in vars(v2).items() if isinstance(c, type) and issubclass(c, v2.Transform)}
    arguments = {key: value for key, value in entry.items() if key != "name"}
    name = entry.get("name")
    if name not in known:
        raise unknown_name(f"{field}.name", name, known)
    try:
        made: Transform = known[name](**arguments)
    except Exception as error:  # anybody's code
        accepted = f"arguments of torchvision.transforms.v2.{name} ({reason(error)})"
        raise BadInput(field, entry, accepted) from error
    return made


def _alike(made: object, image: Tensor) -> bool:
    return isinstance(made, Tensor) and (made.dtype, made.shape) == (image.dtype, image.shape)


def _passed(image: Tensor, transforms: list[Transform]) -> Tensor:
    for transform in transforms:
        image = transform(image)
    return image
