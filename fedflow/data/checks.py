"""Checks of what a source delivers: inputs, targets, classes and columns must fit together."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np

from fedflow.data.files import KINDS, SPLITS, DataColumn, RawData
from fedflow.data.labels import binary_rows, misfit, several
from fedflow.errors import FedflowError

LAYOUTS = {"images": "[n, h, w] or [n, h, w, 3]", "features": "[n, ...]", "tokens": "[n, L]"}
TYPES = ", ".join(f"{dtype} {kind}" for dtype, kind in KINDS.items())


def checked(
    raw: RawData, origin: str, classes: tuple[str, ...], shape: tuple | None, loss: str | None = None
) -> RawData:
    """``raw`` with int64 labels and columns, and named classes; or a `FedflowError` that names ``origin``.

    ``classes`` and ``shape`` (C, H, W) are declared by the source; empty and None accept any. Training labels
    must be exactly 0..K-1, unless the reader names the classes: then classes may have no sample. With the
    ``loss`` "bce", targets are several labels per sample, bool; with "mse", they must be real.
    """
    targets = _several(raw) if loss == "bce" else _targets(raw, loss)
    for problem in chain(_inputs(raw, shape), targets, _columns(raw)):
        raise FedflowError(f"{origin}: {problem}")  # the first one: the others may follow from it
    raw = replace(raw, columns={name: _whole(column) for name, column in raw.columns.items()})
    if loss == "bce":
        y_train, y_test = raw.y_train.astype(bool), raw.y_test.astype(bool)
        names = raw.classes or tuple(map(str, range(y_train.shape[1])))
        return replace(raw, y_train=y_train, y_test=y_test, classes=names)
    try:
        return _labeled(raw, classes)
    except ValueError as error:
        raise FedflowError(f"{origin}: {error}") from None


def _inputs(raw: RawData, shape: tuple | None) -> Iterator[str]:
    """Faults of the inputs."""
    for split in SPLITS:
        x = getattr(raw, f"x_{split}")
        layout = f"x_{split} is {x.dtype} {list(x.shape)}"
        if x.dtype not in KINDS or x.dtype != raw.x_train.dtype:
            yield f"{layout}; needs {TYPES}"
        color = x.ndim == 4 and x.shape[-1] == 3
        fits = {"images": x.ndim == 3 or color, "features": x.ndim > 1, "tokens": x.ndim == 2}
        if not fits.get(raw.kind) or not x.size:
            yield f"{layout}; needs {LAYOUTS.get(raw.kind)}{_turned(x) if raw.kind == 'images' else ''}"
        if x.shape[1:] != raw.x_train.shape[1:]:
            yield f"{layout}; x_train has {list(raw.x_train.shape)}"
        dimensions = (3 if color else 1, *x.shape[1:3])
        if shape is not None and dimensions != shape:
            yield f"images are {dimensions} (channels, height, width), not {shape}"
        if raw.kind == "features" and not np.isfinite(x).all():
            yield f"x_{split} holds values that are not finite"


def _turned(x: np.ndarray) -> str:
    """A hint on the layout of images, to follow an error: channels first, or a single channel."""
    if x.ndim == 2:
        return ", or float32 features: x.astype('float32')"
    if x.ndim != 4:
        return ""
    if x.shape[3] == 1 or x.shape[1] == 1:
        return ": x[..., 0]" if x.shape[3] == 1 else ": x[:, 0]"
    return ": x.transpose(0, 2, 3, 1)" if x.shape[1] == 3 else ""


def _several(raw: RawData) -> Iterator[str]:
    """Faults of targets that are several labels per sample."""
    for split in SPLITS:
        x, y = getattr(raw, f"x_{split}"), getattr(raw, f"y_{split}")
        if not several(y):
            yield f"y_{split} is {y.dtype} {list(y.shape)}; needs 0 and 1 by label [n, labels] for loss: bce"
        if len(x) != len(y):
            yield f"{len(x)} {raw.kind} in x_{split}, {len(y)} rows in y_{split}"
        if y.shape[1] != (len(raw.classes) or raw.y_train.shape[1]):
            yield f"y_{split} has {y.shape[1]} labels, not {len(raw.classes) or raw.y_train.shape[1]}"


def _targets(raw: RawData, loss: str | None) -> Iterator[str]:
    """Faults of other targets."""
    for split in SPLITS:
        x, y = getattr(raw, f"x_{split}"), getattr(raw, f"y_{split}")
        whole, sequences = y.dtype.kind in "iu", raw.kind == "tokens" and y.ndim == 2
        fits = y.ndim == 1 if whole else y.ndim in (1, 2) and y.dtype == np.float32
        if not (whole if sequences else fits):
            more = ", or [n, L]" if raw.kind == "tokens" else ""
            yield (
                f"y_{split} is {y.dtype} {list(y.shape)}; needs whole numbers [n]{more}, or float32 [n] or "
                f"[n, k]{_flatter(y)}"
            )
        elif loss is None and not whole and y.ndim == 2 and y.shape[1] > 1 and (kind := binary_rows(y)):
            found = f"y_{split} is {kind}, {y.dtype} {list(y.shape)}"
            yield f"{found}; needs one label per sample [n]{_flatter(y)}"
        elif whole and loss == "mse":
            yield f"y_{split} is {y.dtype} {list(y.shape)}; needs float32 for loss: mse"
        if len(x) != len(y):
            yield f"{len(x)} {raw.kind} in x_{split}, {len(y)} labels in y_{split}"
        if sequences and x.shape != y.shape:
            yield f"y_{split} has the shape {list(y.shape)}, x_{split} {list(x.shape)}"
        train = raw.y_train
        if (whole, y.shape[1:]) != (train.dtype.kind in "iu", train.shape[1:]):
            yield f"y_{split} is {y.dtype} {list(y.shape)}, y_train {train.dtype} {list(train.shape)}"
        if not whole and not np.isfinite(y).all():
            yield f"y_{split} holds values that are not finite"


def _flatter(y: np.ndarray) -> str:
    """A hint on labels in one column or a column per class, to follow an error."""
    if y.ndim != 2 or y.dtype.kind not in "biuf":
        return ""
    if y.shape[1] == 1:
        return ": y[:, 0]"
    several_labels = "; several labels per sample need loss: bce, real targets loss: mse"
    return {"one-hot": ": y.argmax(1)", "multi-label": several_labels}.get(binary_rows(y), "")


def _columns(raw: RawData) -> Iterator[str]:
    """Faults of the columns."""
    for name, column in raw.columns.items():
        for split in SPLITS:
            values, n = getattr(column, split), len(getattr(raw, f"y_{split}"))
            if values.dtype.kind not in "iu" or values.shape != (n,):
                layout = f"{values.dtype} {list(values.shape)}"
                yield f"column {name!r} is {layout} in {split}; needs whole numbers [{n}]"
            if column.names and n and not 0 <= values.min() <= values.max() < len(column.names):
                yield f"column {name!r} has {len(column.names)} names, and other values in {split}"


def _whole(column: DataColumn) -> DataColumn:
    return DataColumn(column.train.astype(np.int64), column.test.astype(np.int64), column.names)


def _labeled(raw: RawData, classes: tuple[str, ...]) -> RawData:
    """``raw`` with labels of ``classes``; ValueError if they do not fit."""
    if raw.y_train.dtype.kind == "f":
        if classes or raw.classes:
            raise ValueError("y_train is float32; needs whole numbers, because there are classes")
        return raw
    if raw.kind == "tokens":
        return _worded(raw, classes or raw.classes)
    if raw.classes and classes and set(raw.classes) != set(classes):
        raise ValueError(f"class folders {list(raw.classes)}; needs {list(classes)}")
    names = classes or raw.classes
    if found := misfit(raw.y_train, raw.y_test, len(names), complete=not raw.classes):
        if found.split == "test":
            raise ValueError(f"y_test holds labels that y_train does not: {found.shown}")
        wanted = f"y_train must hold the labels 0..{found.classes - 1}"
        raise ValueError(f"{wanted}; it holds {found.shown}{found.remedy}")
    names = names or tuple(map(str, range(int(raw.y_train.max()) + 1)))
    # An image folder numbers its classes by name; a named source by its own order.
    renumber = np.array([names.index(name) for name in raw.classes or names])
    return replace(raw, y_train=renumber[raw.y_train], y_test=renumber[raw.y_test], classes=names)


def _worded(raw: RawData, vocabulary: tuple[str, ...]) -> RawData:
    """``raw`` with the tokens of one vocabulary: networks embed and predict the same ones."""
    arrays = {f"{what}_{split}": getattr(raw, f"{what}_{split}") for what in "xy" for split in SPLITS}
    words = vocabulary or tuple(map(str, range(1 + max(int(array.max()) for array in arrays.values()))))
    for name, array in arrays.items():
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= len(words):
            stray = low if low < 0 else high
            raise ValueError(f"{name} must hold tokens 0..{len(words) - 1}; it holds {stray}")
    y_train, y_test = (arrays[f"y_{split}"].astype(np.int64) for split in SPLITS)
    return replace(raw, y_train=y_train, y_test=y_test, classes=words)
