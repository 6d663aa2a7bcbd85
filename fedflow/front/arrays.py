"""`dataset`: arrays, tensors and data frames of the caller as a dataset."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedflow.data import Dataset, need_classes
from fedflow.data.encoding import Encoding
from fedflow.data.frames import need_features, read_frames
from fedflow.data.labels import LOSSES, NUMBERED, binary_rows, labels_as_reals, misfit, reals, several
from fedflow.errors import BadInput, FedflowError
from fedflow.front.samples import Given, as_array, gathered, kinds, need_same_rows, split
from fedflow.project.terminal import say
from fedflow.settings import Words

OWN = "own"  # name of data that were given as arrays
FLOATS = "x.astype('float32')"
FRAME = 'df.drop(columns="label"), df["label"]'
TOKENS = 1 << 31  # tokens are int32


@dataclass(frozen=True, eq=False)
class OwnDataset(Dataset):
    """The caller's samples, with the index of the data frames of training and test rows, or None."""

    index: Any = None
    test_index: Any = None

    def __repr__(self) -> str:
        shapes = [f"{name} {list(getattr(self, name).shape)}" for name in ("x_train", "y_train", "x_test")]
        classes = f"{len(self.classes)} classes" if self.classes else "real targets"
        return f"<dataset {self.name}: {', '.join(shapes)}, {classes}>"


def dataset(
    x: Any,
    y: Any = None,
    x_test: Any = None,
    y_test: Any = None,
    classes: Sequence[str] | None = None,
    *,
    encode: str | None = None,
    missing: str = "refuse",
    test_share: float | None = None,
    seed: int = 0,
    loss: str | None = None,
) -> Dataset:
    """A dataset of your own arrays, tensors or data frames, which are copied.

    ``x`` [n, ...]: uint8 images [n, C, H, W], [n, H, W, C] or [n, H, W], which are scaled to [0, 1], float
    features, or whole numbers [n, L], which are tokens for a network that embeds them. ``y`` [n]: labels
    0..K-1, each with a training sample, text labels, float targets of a regression ([n, k]: k targets), or
    the next tokens [n, L]. ``classes``: K names, of which some may have no training samples; default: the
    labels' numbers or texts.

    ``dataset(train, test)``: each is a pair (x, y), a torch ``Dataset`` or ``DataLoader``, or a Hugging Face
    ``Dataset``, read once; or a list of these, or a mapping, of all clients, by which `natural` divides.
    Of data frames, ``encode`` ("onehot" or "codes") says how text becomes inputs, and ``missing`` ("mean",
    "median" or "category") what replaces a missing value, both learned from the training rows; `encoding` of
    the result turns new rows into inputs.
    ``test_share``: without a test set, this share of every class, drawn with ``seed``, is one.
    ``loss``: "bce" for several labels per sample, ``y`` [n, K] of 0 and 1 (binary cross-entropy), "mse" for
    real targets (squared error); by default, whole numbers are labels, and floats are real targets.

    Raises `BadInput` for shapes, types or labels that do not fit together.
    """
    if loss not in (None, *LOSSES):
        raise BadInput("loss", loss, f"None or one of {', '.join(LOSSES)}")
    if test_share is None and seed:
        raise BadInput("seed", seed, "0 without test_share, whose samples it draws")
    read = gathered(Given(x, y, x_test, y_test, _names(classes)))
    for name, values in read.arrays().items():
        if (advice := instead(values)) and (name == "x" or values is not None):
            raise BadInput(name, Words(type(values).__name__), f"an array or tensor: {advice}")
    if test_share is not None:
        read = split(read, test_share, seed)
    given, x, classes = read.arrays(), read.x, _names(read.classes)
    notes, columns = list(read.notes), dict(read.columns or {})
    for name, values in given.items():
        if values is None:
            share = ", or fedflow.dataset(x, y, test_share=0.2)" if "test" in name and y_test is None else ""
            accepted = f"an array; all are needed: fedflow.dataset(x[:n], y[:n], x[n:], y[n:]){share}"
            if name == "y" and hasattr(x, "columns"):
                accepted = f"the labels: fedflow.dataset({FRAME}, test_share=0.2)"
            raise BadInput(name, None, accepted)
    for part in ("", "_test"):
        need_same_rows(f"y{part}", given[f"x{part}"], given[f"y{part}"])
    indices = {
        "index": _index(given["x"], given["y"]),
        "test_index": _index(given["x_test"], given["y_test"]),
    }
    encoding = None
    if all(hasattr(given[name], "columns") for name in ("x", "x_test")):
        *frames, encoding, note = read_frames(given["x"], given["x_test"], encode, missing)
        notes.append(note)
        given |= {"x": _inputs(encoding, frames[0]), "x_test": _inputs(encoding, frames[1])}
    else:
        for name in ("x", "x_test"):
            if hasattr(given[name], "columns"):
                need_features(name, given[name])
    if encoding is None and (encode is not None or missing != "refuse"):
        raise BadInput("x", Words(type(x).__name__), "data frames x and x_test, with `encode` or `missing`")
    arrays = {name: _array(name, values) for name, values in given.items()}
    if all(_last_are_channels(arrays[name]) for name in ("x", "x_test")):
        arrays |= {name: arrays[name].transpose(0, 3, 1, 2) for name in ("x", "x_test")}
        notes.append("x: images [n, H, W, C] are read as [n, C, H, W]")
    x_train, y_train, x_test, y_test = arrays.values()
    for part in ("", "_test"):
        _need_inputs(f"x{part}", arrays[f"x{part}"], arrays[f"y{part}"])
    if x_train.shape[1:] != x_test.shape[1:]:
        accepted = f"inputs of the shape {x_train.shape[1:]} and type of x"
        raise BadInput("x_test", x_test.shape[1:], accepted)
    if x_train.dtype != x_test.dtype:
        raise BadInput("x_test", Words(x_test.dtype), f"the type of x, {x_train.dtype}")
    tokens = x_train.dtype.kind in "iu" and x_train.dtype != np.uint8
    for part in ("", "_test"):
        if loss == "bce":
            _need_several(f"y{part}", arrays[f"y{part}"])
        else:
            _need_targets(f"y{part}", arrays[f"y{part}"], x_train.shape[1:] if tokens else (), loss)
    if loss == "bce":
        y_train, y_test = y_train.astype(bool), y_test.astype(bool)
    real = y_train.dtype.kind == "f"
    if real != (y_test.dtype.kind == "f") or y_train.shape[1:] != y_test.shape[1:]:
        layout = f"{y_train.dtype} {['n', *y_train.shape[1:]]}".replace("'", "")
        raise BadInput("y_test", Words(_layout(y_test)), f"targets as y, {layout}")
    if real and classes is not None:
        raise BadInput("classes", list(classes), "None with real targets")
    if loss == "bce":
        names = _labels(given["y"], y_train.shape[1], classes)
    else:
        names = () if real else _classes(arrays, classes, tokens)

    content = hashlib.blake2b(digest_size=8)
    columned = (values for column in columns.values() for values in (column.train, column.test))
    for array in (x_train, x_test, y_train, y_test, *columned):  # equal bytes may be of other shapes
        content.update(f"{array.dtype.str}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    images = x_train.dtype == np.uint8
    kind = np.uint8 if images else np.int32 if tokens else np.float32
    inputs = [torch.from_numpy(array.astype(kind)) for array in (x_train, x_test)]
    if images and x_train.ndim == 3:
        inputs = [values.unsqueeze(1) for values in inputs]
    if real:
        try:
            reals(y_train, y_test)
        except ValueError as error:
            raise FedflowError(f"y: {error}") from None
    target_kind = np.float32 if real else bool if loss == "bce" else np.int64
    targets = [torch.from_numpy(array.astype(target_kind)) for array in (y_train, y_test)]
    depth = inputs[0].shape[1] if images else 0
    parts = inputs[0], targets[0], inputs[1], targets[1]
    constants = (0.0,) * depth, (1.0,) * depth
    told = tuple(notes)
    made = OwnDataset(OWN, *parts, names, *constants, content.hexdigest(), columns, told, encoding, **indices)
    need_classes(made, "y")
    for line in made.notes:
        say(line)
    return made


def _index(*parts: Any) -> Any:
    """The row labels of the first of these ``parts`` that has some."""
    indices = (getattr(values, "index", None) for values in parts)
    return next((index for index in indices if hasattr(index, "equals")), None)


def _inputs(encoding: Encoding, frame: Any) -> Any:
    """The inputs of a data frame; one of real numbers only as it is."""
    plain = all(feature.kind == "number" for feature in encoding.features)
    if plain and all(column.dtype.kind == "f" and not column.isna().any() for _, column in frame.items()):
        return frame
    return encoding.encode(frame)


def instead(data: Any) -> str:
    """A replacement for a loader, a path or other refused data; empty if there is none."""
    kind = kinds(data)
    if kind & {"torch.Dataset", "torch.DataLoader", "datasets.Dataset"}:
        return "fedflow.dataset(train, test)"
    if kind & {"datasets.DatasetDict", "datasets.IterableDataset"}:
        return 'fedflow.dataset(data["train"], data["test"])'
    if hasattr(data, "toarray"):
        return "x.toarray(), which is not sparse"
    if isinstance(data, str | Path):
        return f"fedflow.run({_entry(Path(data))}) reads a file"
    if isinstance(data, tuple | dict) or callable(data):
        return "fedflow.dataset(x, y, x_test, y_test)"
    return ""


def _entry(path: Path) -> str:
    """The mapping that names a file as data."""
    tables = (".csv", ".tsv", ".parquet", ".txt", ".data")
    source = "table" if path.suffix in tables else "npz" if path.suffix == ".npz" else "folder"
    target = ', "target": ...' if source == "table" else ""
    return f'{{"source": "{source}", "path": "{path}"{target}}}'


def _array(name: str, values: Any) -> np.ndarray:
    """The same numbers, with the same type, in the byte order of this machine."""
    if isinstance(values, Tensor) and values.layout != torch.strided:
        raise BadInput(name, Words("a sparse tensor"), "x.to_dense()")
    try:
        array = as_array(name, values)
    except (TypeError, ValueError) as error:
        raise BadInput(name, Words(f"a {type(values).__name__}"), "an array or tensor of numbers") from error
    if array.dtype.kind not in "biuf":
        text = array.dtype.kind in "OUST" and name.startswith("y")
        cast = FLOATS if name[0] == "x" else f"{name}.astype(int)"
        advice = f", as in {cast}" + (f"; text: {NUMBERED}" if text else "")
        accepted = f"an array or tensor of numbers{advice}; it holds {array.dtype}"
        raise BadInput(name, type(values).__name__, accepted)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _last_are_channels(x: np.ndarray) -> bool:
    """True for uint8 images [n, H, W, C]."""
    return x.dtype == np.uint8 and x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3)


def _layout(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _need_inputs(name: str, x: np.ndarray, y: np.ndarray) -> None:
    """Refuse inputs that are neither images, features nor tokens for the targets ``y``."""
    shape, count = x.shape, len(y) if y.ndim else 0
    if x.ndim < 2 or len(x) != count or not x.size:
        advice = f"; of one feature: {name}[:, None]" if x.ndim == 1 and len(x) == count else ""
        raise BadInput(name, shape, f"inputs [n, ...] with n = {count} > 0 targets{advice}")
    if x.dtype == np.uint8:
        gray, color = x.ndim == 3, x.ndim == 4 and shape[1] in (1, 3)
        if not (gray or color):
            accepted = "uint8 images [n, H, W], [n, C, H, W] or [n, H, W, C] with C = 1 or 3"
            raise BadInput(name, shape, accepted + (f"; a table: {FLOATS}" if x.ndim == 2 else ""))
    elif x.dtype.kind in "iu" and (x.ndim != 2 or x.min() < 0 or x.max() >= TOKENS):
        layout = _layout(x) if x.ndim != 2 else f"{x.dtype} {x.min()} to {x.max()}"
        accepted = f"uint8 images, {name}.astype('uint8') if pixels are 0 to 255; float features, "
        accepted += f"{name}.astype('float32'); or tokens [n, L] from 0"
        raise BadInput(name, Words(layout), accepted)
    elif x.dtype.kind == "b":
        raise BadInput(name, Words(_layout(x)), f"float features: {name}.astype('float32')")
    elif x.dtype.kind == "f":
        _need_finite(name, x)


def _need_finite(name: str, array: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        finite = np.isfinite(array.astype(np.float32))
    if not finite.all():
        raise BadInput(name, float(array[~finite][0]), "finite numbers (of float32)")


def _need_several(name: str, y: np.ndarray) -> None:
    """Refuse targets other than several labels per sample."""
    if not several(y):
        raise BadInput(name, Words(_layout(y)), 'an array [n, labels] of 0 and 1, with loss="bce"')


def _names(classes: Any) -> list[str] | None:
    """The names of the classes as text, in the order of their numbers, which a set does not have."""
    if classes is None:
        return None
    array = getattr(classes, "ndim", 0) == 1 and not isinstance(classes, Tensor)
    names = list(map(str, classes)) if isinstance(classes, list | tuple) or array else []
    if not names or len(set(names)) < len(names):
        raise BadInput("classes", names or classes, "a list of different names")
    return names


def _labels(y: Any, count: int, classes: Sequence[str] | None) -> tuple[str, ...]:
    """The names of several labels: given, or the names of a data frame's columns."""
    names = [*map(str, getattr(y, "columns", range(count)) if classes is None else classes)]
    if len(set(names)) != count:
        raise BadInput("classes", classes, f"different names of the {count} labels, the columns of y")
    return tuple(names)


def _need_targets(name: str, y: np.ndarray, sequence: tuple[int, ...], loss: str | None) -> None:
    """Refuse targets other than labels [n], real values [n] or [n, k], or next tokens [n, *sequence]."""
    rows, size = Words(_layout(y)), y.shape[1:]
    if loss == "mse" and y.dtype.kind != "f":
        raise BadInput(name, rows, f'real targets, {name}.astype("float32"), with loss="mse"')
    if y.dtype.kind == "f":
        _need_finite(name, y)
        if loss is None and (labels := labels_as_reals(y)):
            accepted = f"labels as whole numbers, {name}.astype(int); real targets, {name}[:, None]"
            raise BadInput(name, Words(f"floats {labels}"), accepted)
    elif y.ndim == 1 or (y.ndim == 2 and size == sequence):
        return
    if loss is None and y.ndim == 2 and size[0] > 1 and (kind := binary_rows(y)):
        advice = f"{name}.argmax(1)" if kind == "one-hot" else 'or several, with loss="bce"'
        raise BadInput(name, Words(f"{kind} {rows}"), f"one label per sample [n]: {advice}")
    if y.dtype.kind != "f" or y.ndim not in (1, 2) or not y.size:
        accepted = "labels [n], or float targets [n] or [n, k]"
        single = f": np.ravel({name})" if y.size == len(y) else ""
        raise BadInput(name, rows, accepted + single)


def _classes(arrays: dict[str, np.ndarray], classes: Sequence[str] | None, tokens: bool) -> tuple[str, ...]:
    """The names of the labels, or of the tokens where networks predict some."""
    y_train, y_test = (arrays[name].astype(np.int64, copy=False) for name in ("y", "y_test"))
    if tokens:
        whole = arrays.values() if y_train.ndim == 2 else (y_train, y_test)
        count = len(classes) if classes is not None else 1 + max(int(array.max()) for array in whole)
    else:
        count = len(classes) if classes is not None else 0
    if wrong := misfit(y_train, y_test, count, complete=classes is None and not tokens):
        name = "y" if wrong.split == "train" else "y_test"
        more = "; `classes` names labels without training samples" if classes is None else ""
        accepted = f"labels 0 to {wrong.classes - 1}{wrong.remedy}{more}"
        raise BadInput(name, Words(wrong.shown), accepted)
    return tuple(map(str, classes if classes is not None else range(count or int(y_train.max()) + 1)))
