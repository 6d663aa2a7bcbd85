"""S-MNIST: a stream of small tasks for online meta-learning (Acar et al.'s MOML), by the column ``task``.

In every task each class has its own transformations, the same for training and test images, in this
order: a rotation by 0, 90, 180 or 270 degrees, a flip (none, horizontal, vertical), half the size or not, a
shift (none, or 4 pixels in one of four directions). Rainbow-MNIST transforms all classes of a task alike.
"""

import numpy as np
import torch

from fedflow.data.files import SPLITS, DataColumn, RawData
from fedflow.errors import BadInput
from fedflow.seeding import generator
from fedflow.settings import Settings, option

TURNS, FLIPS, SIZES = 4, 3, 2
SHIFTS = ((0, 0), (4, 0), (-4, 0), (0, 4), (0, -4))  # none, down, up, right, left
EDGE = 33  # the gray level next to 0.1307, MNIST's mean: zero once it is normalized


class SMNISTOptions(Settings):
    """The number of tasks, and the images of which they are made."""

    section = "data"
    of: str = option("mnist", "the source whose images are used", choices=("mnist", "fmnist", "mnist5k"))
    tasks: int = option(1000, "tasks; fewer leave images unused", symbol="T", ge=1, source="A.1.4")
    train: int = option(60, "training images of a task", ge=1, source="A.1.4")
    test: int = option(10, "test images of a task", ge=1, source="A.1.4")
    seed: int = option(0, "seed of the order of images and of the transformations", ge=0)


def smnist(raw: RawData, options: SMNISTOptions) -> RawData:
    """Images uint8 [n, 28, 28] by task; ``raw`` holds the images of the source.

    Training images are permuted and dealt in runs, so are test images: a task may lack a class. More tasks
    only add tasks. The authors transform normalized images. Here pixels stay whole levels: images of half
    the size are rounded and cut to 0..255, and a shift fills with level 33, which is -0.004 normalized.
    Raises `BadInput` if there are too few images.
    """
    most = min(len(raw.y_train) // options.train, len(raw.y_test) // options.test)
    if options.tasks > most:
        each = f"{options.train} training and {options.test} test images of {options.of}"
        raise BadInput("data.tasks", options.tasks, f"at most {most}, with {each} each")
    choices = (TURNS, FLIPS, SIZES, len(SHIFTS))
    how = np.stack(
        [
            generator(options.seed, "data.smnist", task).integers(
                choices, size=(len(raw.classes), len(choices))
            )
            for task in range(options.tasks)
        ]
    )

    def drawn(split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Images, labels and tasks."""
        x, y = (getattr(raw, f"{what}_{split}") for what in "xy")
        task = np.arange(options.tasks).repeat(getattr(options, split))
        rows = generator(options.seed, f"data.smnist.{split}").permutation(len(y))[: len(task)]
        turn, flip, size, shift = how[task, y[rows]].T
        return shifted(scaled(turned(x[rows], turn, flip), size == 1), shift), y[rows], task

    (x_train, y_train, train), (x_test, y_test, test) = map(drawn, SPLITS)
    return RawData(x_train, y_train, x_test, y_test, raw.classes, {"task": DataColumn(train, test)})


def turned(x: np.ndarray, turn: np.ndarray, flip: np.ndarray) -> np.ndarray:
    """Square images [n, s, s] rotated by ``turn`` [n] quarters counter-clockwise, then flipped.

    ``flip`` [n] is 0 for none, 1 for horizontal (left and right exchanged), 2 for vertical.
    """
    x = x.copy()
    for quarters in range(1, TURNS):
        x[turn == quarters] = np.rot90(x[turn == quarters], quarters, axes=(1, 2))
    x[flip == 1] = x[flip == 1, :, ::-1]
    x[flip == 2] = x[flip == 2, ::-1]
    return x


def scaled(x: np.ndarray, small: np.ndarray) -> np.ndarray:
    """Images [n, 28, 28] with those where ``small`` [n] at half their size, around the center.

    Their central 26x26 pixels become 13x13 (bicubic and antialiased, as in Pillow), at rows and columns 7 to
    19; the mean of the 108 pixels around the 26x26 fills the rest.
    """
    x, center = x.copy(), torch.from_numpy(x[small, None, 1:-1, 1:-1]).float()
    if len(center):
        half = torch.nn.functional.interpolate(center, size=13, mode="bicubic", antialias=True)[:, 0].numpy()
        outside = x[small].sum((1, 2)) - center.sum((1, 2, 3)).numpy()
        made = np.broadcast_to((outside / 108)[:, None, None], (len(half), 28, 28)).copy()
        made[:, 7:20, 7:20] = half
        x[small] = made.round().clip(0, 255)
    return x


def shifted(x: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Images [n, h, w] moved as ``shift`` [n], places in `SHIFTS`, says; level 33 fills what is left."""
    wide = np.pad(x, ((0, 0), (4, 4), (4, 4)), constant_values=EDGE)
    x = x.copy()
    for number, (down, right) in enumerate(SHIFTS):
        rows, columns = (slice(4 - by, 4 - by + side) for by, side in zip((down, right), x.shape[1:]))
        x[shift == number] = wide[shift == number, rows, columns]
    return x
