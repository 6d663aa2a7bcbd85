"""MATLAB files: inputs and labels in a ``.mat`` file, also in the form of version 7.3 (HDF5)."""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedflow.data.features import listed
from fedflow.data.files import RawData, reading, regular
from fedflow.data.labels import numbered, reals
from fedflow.data.split import draw_test
from fedflow.errors import BadInput, FedflowError
from fedflow.project.distribution import require
from fedflow.settings import Settings, option

INPUTS, TARGETS = ("x", "data", "fea", "features", "images"), ("y", "label", "labels", "gnd", "target")


class MatlabOptions(Settings):
    """The variables that are used, and the axis of the samples."""

    section = "data"
    x: str | None = option(None, f"variable of the inputs; null = {', '.join(INPUTS)}")
    y: str | None = option(None, f"variable of the targets; null = {', '.join(TARGETS)}")
    axis: int | None = option(
        None, "axis of x that counts the samples, from 0; null = the only one as long as y", ge=0
    )
    shape: list[int] = option(
        factory=list, doc="height and width of images that are rows of x, as [28, 28]", ge=1
    )
    order: str = option(
        "rows",
        "how a row of x lists the pixels of its image: row by row, or column by column as MATLAB's img(:)",
        choices=("rows", "columns"),
    )
    task: str = option("classification", "kind of target", choices=("classification", "regression"))
    test_path: str | None = option(None, "file of the test samples; null = a random share")
    test_share: float = option(0.2, "share of the random test set, in each class", gt=0, lt=1)
    seed: int = option(0, "seed of the random test set", ge=0)

    def validate(self) -> None:
        if self.test_path is not None:
            self.refuse_unused("with test_path", "test_share", "seed")
        if not self.shape:
            self.refuse_unused("without shape", "order")


def read_mat(path: Path, options: MatlabOptions) -> RawData:
    """Images uint8 [n, h, w] or [n, h, w, 3], or features float32 [n, ...]; labels in sorted order."""
    x, y, notes = _samples(path, options)
    if options.test_path is not None:
        other = Path(options.test_path)
        if not other.exists():
            raise BadInput("data.test_path", options.test_path, "a file")
        x_test, y_test, _ = _samples(other, options)
        x_train, y_train = x, y
    else:
        strata = (
            np.zeros(len(y), np.int64)
            if options.task == "regression"
            else np.unique(y, return_inverse=True)[1]
        )
        test = draw_test(strata, options.test_share, options.seed, "data.mat.split")
        x_train, x_test, y_train, y_test = x[~test], x[test], y[~test], y[test]
    with reading(path):
        if options.task == "regression":
            targets: dict[str, Any] = dict(zip(("y_train", "y_test"), reals(y_train, y_test)))
        else:
            targets = numbered(y_train, y_test)
    return RawData(x_train=x_train, x_test=x_test, notes=notes, **targets)


def _samples(path: Path, options: MatlabOptions) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Inputs, targets, and what was read."""
    with reading(regular(path, folders=False)):
        arrays = _arrays(path)
    if not arrays:
        raise FedflowError(f"{path}: has no variable of numbers")
    name_x, name_y = _chosen(arrays, "x", options.x, INPUTS), _chosen(arrays, "y", options.y, TARGETS)
    x, y = arrays[name_x], arrays[name_y].ravel()
    axes = [axis for axis, length in enumerate(x.shape) if length == len(y)]
    if options.axis is not None and options.axis not in axes:
        raise BadInput("data.axis", options.axis, f"one as long as {name_y}, {len(y)}: {axes}")
    if options.axis is None and len(axes) != 1:
        sizes = f"{name_x} is {list(x.shape)}, {name_y} has {len(y)} values"
        raise FedflowError(f"{path}: {sizes}; set data.axis to the axis of x that counts the samples")
    x = np.moveaxis(x, axes[0] if options.axis is None else options.axis, 0)
    with reading(path):
        order: Literal["F", "C"] = "F" if options.order == "columns" else "C"
        x = x.reshape(len(x), *options.shape, order=order) if options.shape else x
    image = x.dtype == np.uint8 and x.ndim > 2
    others = sorted(arrays.keys() - {name_x, name_y})
    left = f"; left out: {listed(others)}" if others else ""
    note = f"x: {name_x} {list(x.shape)}, {'images' if image else 'features'}; y: {name_y}{left}"
    return x if image else np.ascontiguousarray(x, np.float32), y, (note,)


def _chosen(arrays: dict[str, np.ndarray], field: str, name: str | None, usual: tuple[str, ...]) -> str:
    """The variable that the option names, or the only one with a usual name."""
    fit = [own for own in arrays if own.lower() in usual] if name is None else [name]
    if len(fit) != 1 or fit[0] not in arrays:
        raise BadInput(f"data.{field}", name, f"a variable of the file: {', '.join(arrays)}")
    return fit[0]


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """All variables that are arrays of numbers."""
    from scipy import io, sparse

    try:
        found = io.loadmat(path)
    except NotImplementedError:  # version 7.3
        require(f"{path}, a MATLAB file of version 7.3,", "h5py", part="hdf5")
        import h5py

        with h5py.File(path) as file:
            found = {name: value[()].T for name, value in file.items() if isinstance(value, h5py.Dataset)}
    arrays = {name: value.toarray() if sparse.issparse(value) else value for name, value in found.items()}
    return {name: a for name, a in arrays.items() if isinstance(a, np.ndarray) and a.dtype.kind in "biuf"}
