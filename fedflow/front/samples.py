"""Samples as `dataset` takes them besides arrays: pairs, and datasets of torch and Hugging Face."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as loading

from fedflow.data import DataColumn
from fedflow.data.features import counted, listed
from fedflow.data.split import draw_test
from fedflow.errors import BadInput
from fedflow.project.arguments import argument
from fedflow.seeding import undisturbed
from fedflow.settings import Words

INPUTS = ("image", "img", "pixel_values", "features", "x")  # columns of Hugging Face datasets
LABELS = ("label", "labels", "fine_label", "target", "y")
SPLITS = {"train", "test", "validation", "valid", "val", "dev"}  # names that are no clients
TWICE = 8  # samples that are read again, to find random transforms
CAT = "x = torch.cat([x for x, _ in loader]), y = torch.cat([y for _, y in loader]), both for train and test"


@dataclass(frozen=True)
class Given:
    """Arrays of `dataset`, the names of its classes, its columns, and lines on what was read."""

    x: Any
    y: Any
    x_test: Any
    y_test: Any
    classes: Sequence[str] | None = None
    columns: Mapping[str, DataColumn] | None = None
    notes: tuple[str, ...] = ()

    def arrays(self) -> dict[str, Any]:
        """The arrays by the names that errors have."""
        return {"x": self.x, "y": self.y, "x_test": self.x_test, "y_test": self.y_test}


def kinds(data: Any) -> set[str]:
    """The classes of ``data``, each with the package that defines it: "torch.Dataset"."""
    return {f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in type(data).__mro__}


def gathered(given: Given) -> Given:
    """``given`` with arrays in place of samples, and numbers in place of text labels."""
    return _numbered(_unpacked(given))


def _is_samples(data: Any) -> bool:
    """True for inputs with their targets: a pair of arrays, a torch or Hugging Face dataset, or a loader."""
    pair = isinstance(data, tuple) and len(data) == 2
    arrays = pair and all(hasattr(part, "__len__") and not isinstance(part, str) for part in data)
    return arrays or bool(kinds(data) & {"torch.Dataset", "torch.DataLoader", "datasets.Dataset"})


def _is_clients(data: Any) -> bool:
    """True for samples by client: a list, or a mapping of names."""
    parts = list(data.values()) if isinstance(data, Mapping) else data if isinstance(data, list) else []
    return bool(parts) and all(map(_is_samples, parts))


def _unpacked(given: Given) -> Given:
    train, test = given.x, given.y if given.x_test is None else given.x_test
    if isinstance(train, Mapping) and not SPLITS.isdisjoint(train):
        if test is not None or not {"train", "test"} <= train.keys():
            accepted = f"two of them: fedflow.dataset(data[{next(iter(train))!r}], data[...])"
            raise BadInput("x", Words(f"splits {listed(map(str, train))}"), accepted)
        if left := [str(name) for name in train if name not in ("train", "test")]:
            given = replace(given, notes=(f"x: left out: {listed(left)}",))
        train, test = train["train"], train["test"]
    elif isinstance(train, tuple) and len(train) == 2 and all(map(_is_samples, train)) and test is None:
        train, test = train
    several = _is_clients(train) and (test is None or _is_clients(test) or _is_samples(test))
    if not (_is_samples(train) or several):
        return given
    if given.y_test is not None or (given.y is not None and given.x_test is not None):
        name = "y" if given.y is not None else "y_test"
        raise BadInput(name, Words(f"a {type(getattr(given, name)).__name__}"), "None: x has the targets too")
    if several:
        return _by_client(given, train, test)
    x, y, names, notes = _pair("x", train)
    given = replace(given, x=x, y=y, x_test=None, y_test=None, notes=(*given.notes, *notes))
    if given.classes is None and _complete(names, y):
        given = replace(given, classes=names)
    if test is None:
        return given
    if not _is_samples(test):
        raise BadInput("x_test", Words(type(test).__name__), "samples with targets, as x: (x_test, y_test)")
    x_test, y_test, _, _ = _pair("x_test", test)
    return replace(given, x_test=x_test, y_test=y_test)


def _by_client(given: Given, train: Any, test: Any) -> Given:
    """The samples of all clients, whose numbers are the column "user"."""
    names, parts = _clients(train)
    tests = dict(zip(*_clients(test))) if _is_clients(test) else {}
    if test is not None and not (tests.keys() == {*names} and len(tests) == len(names)):
        accepted = f"test samples of the {len(names)} clients of x, by the same names"
        accepted += "; of one test set for all: join x, and name the rows of every client as partition"
        raise BadInput("x_test", Words(f"a {type(test).__name__}"), accepted)
    pairs = [_pair(f"x[{name}]", part) for name, part in zip(names, parts)]
    if empty := [name for name, (x, *_) in zip(names, pairs) if not len(x)]:
        raise BadInput(f"x[{empty[0]}]", Words("no sample"), "one sample or more of every client")
    known = pairs[0][2] if all(pair[2] == pairs[0][2] for pair in pairs) else ()
    x, y, owner = _joined("x", names, pairs)
    given = replace(given, x=x, y=y, x_test=None, y_test=None, notes=(*given.notes, *pairs[0][3]))
    if given.classes is None and _complete(known, y):
        given = replace(given, classes=known)
    tested = np.empty(0, np.int64)
    if test is not None:
        pairs = [_pair(f"x_test[{name}]", tests[name]) for name in names]
        x_test, y_test, tested = _joined("x_test", names, pairs)
        given = replace(given, x_test=x_test, y_test=y_test)
    column = DataColumn(owner, tested, tuple(names))
    note = f"{counted(names, 'client')}: fedflow.natural() divides by them"
    return replace(given, columns={"user": column}, notes=(*given.notes, note))


def _clients(data: Any) -> tuple[list[str], list[Any]]:
    """Names and samples of the clients, in the order of ``data``."""
    pairs = data.items() if isinstance(data, Mapping) else enumerate(data)
    return [str(name) for name, _ in pairs], list(data.values() if isinstance(data, Mapping) else data)


def _joined(name: str, clients: Sequence[str], pairs: Sequence[tuple]) -> tuple[Any, np.ndarray, np.ndarray]:
    """Inputs and targets of all clients, and the number of the client of every row."""
    inputs = {f"{name}[{client}]": pair[0] for client, pair in zip(clients, pairs)}
    targets = [_targets(_target(field), pair[1]) for field, pair in zip(inputs, pairs)]
    for (field, x), (_, y, *_) in zip(inputs.items(), pairs):
        need_same_rows(_target(field), x, y)
        if len(x) != len(y):
            raise BadInput(field, Words(f"{len(x)} inputs"), f"as many as targets, {len(y)}")
    if len({(array.shape[1:], array.dtype.kind) for array in targets}) > 1:
        raise BadInput(_target(name), Words("clients of different targets"), "targets of one kind")
    owner = np.repeat(np.arange(len(pairs)), list(map(len, targets)))
    frames = all(hasattr(x, "iloc") and hasattr(x, "columns") for x in inputs.values())
    x = _stacked_frames(inputs) if frames else _stacked_arrays(name, inputs)
    return x, np.concatenate(targets), owner


def _targets(name: str, values: Any) -> np.ndarray:
    text = _text(name, values)
    return as_array(name, values) if text is None else text


def _stacked_arrays(name: str, inputs: Mapping[str, Any]) -> np.ndarray:
    arrays = [as_array(field, x) for field, x in inputs.items()]
    if len({(array.shape[1:], array.dtype) for array in arrays}) > 1:
        raise BadInput(name, Words("clients of different inputs"), "inputs of one shape and type")
    return np.concatenate(arrays)


def _stacked_frames(inputs: Mapping[str, Any]) -> Any:
    """One data frame, whose columns all clients have in the same order."""
    import pandas as pd

    wanted = list(next(iter(inputs.values())).columns)
    for field, frame in inputs.items():
        if (names := list(frame.columns)) != wanted:
            accepted = f"the columns of the first client in the same order: {listed(map(str, wanted))}"
            raise BadInput(field, Words(f"the columns {listed(map(str, names))}"), accepted)
    return pd.concat(inputs.values(), ignore_index=True)


def need_same_rows(name: str, x: Any, y: Any) -> None:
    """Refuse targets whose index differs from the index of the inputs: their rows would not match."""
    indices = [getattr(values, "index", None) for values in (x, y)]
    if all(hasattr(index, "equals") for index in indices) and not indices[0].equals(indices[1]):  # type: ignore[union-attr]
        raise BadInput(name, Words("an index that differs from x.index"), "the rows of x: y.loc[x.index]")


def _pair(name: str, data: Any) -> tuple[Any, Any, tuple[str, ...], tuple[str, ...]]:
    """Inputs, targets, the names of classes as far as ``data`` has them, and lines on what was left out."""
    if isinstance(data, tuple):
        return *data, (), ()
    if "datasets.Dataset" in kinds(data):
        return _columns(name, data)
    if "torch.DataLoader" in kinds(data):
        data = _behind(name, data)
    if type(data) is loading.TensorDataset and len(data.tensors) == 2:
        return *data.tensors, (), ()
    return *_read(name, data), _class_names(data), ()


def _behind(name: str, loader: loading.DataLoader) -> loading.Dataset:
    """The dataset of a loader; its order and batches do not matter, but it must yield every sample once."""
    sampler, batches = loader.sampler, loader.batch_sampler
    usual = batches is None or getattr(batches, "sampler", None) is sampler
    collated = loader.collate_fn in (loading.default_collate, loading.default_convert)
    if usual and collated and type(sampler) is loading.SubsetRandomSampler:
        return loading.Subset(loader.dataset, list(sampler.indices))
    whole = type(sampler) is loading.SequentialSampler
    if type(sampler) is loading.RandomSampler:
        whole = not sampler.replacement and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    if not (usual and collated and whole):
        what = "a custom sampler" if collated else "a custom collate_fn"
        raise BadInput(name, Words(f"a DataLoader with {what}"), f"arrays: {CAT}")
    return loader.dataset


def _read(name: str, data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a torch dataset, which is read once, without a change of the generators."""
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise BadInput(name, Words(type(data).__name__), "a dataset with a length and numbered samples")
    with undisturbed():
        samples = [_sample(name, data[i]) for i in range(len(data))]
        again = [_sample(name, data[i]) for i in range(min(TWICE, len(data)))]
    if not samples:
        raise BadInput(name, Words(f"an empty {type(data).__name__}"), "one sample or more")
    if any(not np.array_equal(a[0], b[0]) for a, b in zip(samples, again)):
        accepted = "a dataset without random transforms: training={'augment': ...} draws new ones"
        raise BadInput(name, Words("samples that differ when they are read again"), accepted)
    return _stacked(name, [x for x, _ in samples]), _stacked(
        _target(name), [np.asarray(y) for _, y in samples]
    )


def _sample(name: str, sample: Any) -> tuple[np.ndarray, Any]:
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        parts = f" of {len(sample)}" if isinstance(sample, tuple | list | dict) else ""
        raise BadInput(name, Words(f"samples that are a {type(sample).__name__}{parts}"), "pairs (x, y)")
    return np.array(as_numpy(sample[0])), as_numpy(sample[1])


def as_numpy(values: Any) -> Any:
    """NumPy's form of a tensor."""
    if not isinstance(values, Tensor):
        return values
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def as_array(name: str, values: Any) -> np.ndarray:
    """Inputs or targets as an array. Raises `BadInput` for masked values, which NumPy would uncover."""
    if np.ma.is_masked(values):
        raise BadInput(name, Words("a masked array"), "numbers without missing values, as in x.filled(0)")
    return np.asarray(as_numpy(values))


def _stacked(name: str, values: list[np.ndarray]) -> np.ndarray:
    if len(shapes := dict.fromkeys(value.shape for value in values)) > 1:
        first, second = list(shapes)[:2]
        raise BadInput(name, Words(f"samples of the shapes {first} and {second}"), "samples of one shape")
    return np.stack(values)


def _target(name: str) -> str:
    """The name of the targets of the inputs ``name``."""
    return f"y{name[1:]}"


def _class_names(data: Any) -> tuple[str, ...]:
    """The class names of a torchvision dataset; a subset has the names of its parent."""
    while isinstance(data, loading.Subset):
        data = data.dataset
    names = getattr(data, "classes", None)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names)


def _columns(name: str, data: Any) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """The columns of inputs and labels of a Hugging Face dataset."""
    there = list(data.column_names)
    inputs, labels = ([column for column in known if column in there] for known in (INPUTS, LABELS))
    if len(inputs) != 1 or len(labels) != 1:
        accepted = f"one column of {', '.join(INPUTS)}, and one of {', '.join(LABELS)}; or columns as pairs: "
        accepted += 'fedflow.dataset((train["..."], train["..."]), (test["..."], test["..."]))'
        raise BadInput(name, Words(f"columns {listed(there)}"), accepted)
    (x,), (y,) = inputs, labels
    names = getattr(data.features[y], "names", None) or ()
    left = [column for column in there if column not in (x, y)]
    note = f"{name}: {x}, labels: {y}" + (f"; left out: {listed(left)}" if left else "")
    arrays = [np.array(as_numpy(values)) for values in data[x]]
    targets = [np.asarray(as_numpy(value)) for value in data[y]]
    return _stacked(name, arrays), _stacked(_target(name), targets), tuple(names), (note,)


def _complete(names: Sequence[str], y: Any) -> bool:
    """True if every one of the ``names`` has a sample: names without any are not taken unasked."""
    if not names:
        return False
    labels = np.asarray(as_numpy(y))
    return labels.dtype.kind in "iu" and np.array_equal(np.unique(labels), np.arange(len(names)))


def _text(name: str, values: Any) -> np.ndarray | None:
    """Labels that are text, or None for other values; refuses text with missing labels."""
    try:
        array = np.asarray(as_numpy(values))
    except (TypeError, ValueError):  # of other kinds, which `dataset` names
        return None
    if array.ndim != 1 or not array.size or array.dtype.kind not in "OTUS":
        return None
    # An array of text has "nan" for a missing value.
    given = values if isinstance(values, list | tuple) else array
    text = [isinstance(value, str) for value in given]
    if any(text) and (missing := [row for row, value in enumerate(given) if _is_missing(value)]):
        raise BadInput(name, Words(f"no label in row {missing[0]}"), "a label for every sample")
    if array.dtype.kind in "US":
        return array.astype(str)
    return np.array(array.tolist()) if all(text) else None


def _is_missing(value: Any) -> bool:
    """True for None, NaN and the missing values of pandas."""
    import pandas as pd

    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value)


def _numbered(given: Given) -> Given:
    """Text labels as the numbers of their names, which are the ``classes``, or sorted."""
    y, y_test = _text("y", given.y), _text("y_test", given.y_test)
    if y is None or (given.y_test is not None and y_test is None):
        return given
    names = sorted(set(y.tolist())) if given.classes is None else [str(name) for name in given.classes]
    numbers = {name: number for number, name in enumerate(names)}
    for field, labels in (("y", y), ("y_test", y_test)):
        if labels is not None and (stray := sorted({*labels.tolist()} - {*names})):
            raise BadInput(
                field, Words(listed(stray)), f"labels of {'y' if field == 'y_test' else 'classes'}"
            )
    coded = [
        None if v is None else _like(old, [numbers[name] for name in v.tolist()])
        for v, old in ((y, given.y), (y_test, given.y_test))
    ]
    note = f"y: {counted(names, 'class')}: {listed(names)}"
    return replace(given, y=coded[0], y_test=coded[1], classes=names, notes=(*given.notes, note))


def _like(labels: Any, numbers: list[int]) -> Any:
    """``numbers`` with the index of the ``labels`` of a data frame, which must match its row index."""
    index = getattr(labels, "index", None)
    if not hasattr(index, "equals"):
        return np.array(numbers)
    import pandas as pd

    return pd.Series(numbers, index=index)


def split(given: Given, share: float, seed: int) -> Given:
    """``given`` with a random test set: this share of every class and, if there are some, of every client."""
    if given.x_test is not None or given.y_test is not None:
        raise BadInput("test_share", share, "None with test samples")
    if isinstance(share, bool) or not isinstance(share, int | float | np.number) or not 0 < share < 1:
        raise BadInput("test_share", share, "a number > 0 and < 1")
    for name in "x", "y":
        if (values := getattr(given, name)) is None:
            return given  # `dataset` names it
        if not hasattr(values, "__len__"):
            accepted = "an array or tensor with a row for every sample"
            raise BadInput(name, Words(type(values).__name__), accepted)
    count, labels = len(given.y), _rows("y", given.y)
    if len(given.x) != count:
        raise BadInput("x", Words(f"{len(given.x)} inputs"), f"as many as targets, {count}")
    classes = labels.ndim == 1 and labels.dtype.kind in "iub"
    strata = np.unique(labels, return_inverse=True)[1] if classes else np.zeros(count, np.int64)
    owner = given.columns["user"].train if given.columns else None
    test = (
        draw_test(strata, float(share), argument("seed", seed), "front.split", owner)
        if count
        else np.zeros(0, bool)
    )
    if not test.any():
        raise BadInput("test_share", share, f"a share of which {count} samples leave one for testing")
    note = f"{test.sum()} of {count} samples are for testing"
    columns = {
        name: DataColumn(column.train[~test], column.train[test], column.names)
        for name, column in (given.columns or {}).items()
    }
    x, y = (
        (_rows(name, values, ~test), _rows(name, values, test))
        for name, values in (("x", given.x), ("y", given.y))
    )
    return Given(x[0], y[0], x[1], y[1], given.classes, columns, (*given.notes, note))


def _rows(name: str, values: Any, chosen: np.ndarray | slice = slice(None)) -> Any:
    """The ``chosen`` rows of the inputs or targets; an array, or rows of a table."""
    if hasattr(values, "iloc") and isinstance(chosen, np.ndarray):
        return values.iloc[chosen]
    try:
        return as_array(name, values)[chosen]
    except (TypeError, ValueError) as error:
        accepted = "an array or tensor with a row for every sample, not sparse"
        raise BadInput(name, Words(f"a {type(values).__name__}"), accepted) from error
