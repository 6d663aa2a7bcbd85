"""Datasets of Hugging Face: Parquet files, folders of `save_to_disk`, and names on the Hub.

Files are read by pyarrow. Only a name such as ``ylecun/mnist`` needs the package `datasets`, which downloads
the samples or finds them in its cache (``HF_HUB_OFFLINE=1`` forbids the network).
"""

import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedflow.data.features import listed
from fedflow.data.files import DataColumn, RawData, decode_image, equal_images, is_junk, reading
from fedflow.data.labels import labels_as_reals, numbered, reals
from fedflow.data.split import draw_test
from fedflow.errors import BadInput, FedflowError, reason
from fedflow.project.distribution import require
from fedflow.settings import Settings, option

if TYPE_CHECKING:
    import pyarrow as pa

WORDS = re.compile(
    r"(?:^|[-_./])(train|training|test|testing|eval|evaluation|validation|valid|val|dev)\d*(?=[-_./]|$)",
    re.IGNORECASE,
)
SAME = {"training": "train", "testing": "test", "evaluation": "eval"}


class HuggingFaceOptions(Settings):
    """The columns and splits that are used."""

    section = "data"
    config: str | None = option(None, "configuration of a dataset that has several, for a name on the Hub")
    revision: str | None = option(None, "branch, tag or commit, for a name on the Hub")
    input: str | None = option(None, "column of images or lists of numbers; null = the only one")
    target: str | None = option(
        None, "column to predict; null = the only one with names of classes, or `label`"
    )
    user: str | None = option(None, "column with the user of each sample; kept as `user`")
    columns: list[str] = option(factory=list, doc="further columns to keep as facts, such as attributes")
    train: str = option("train", "split of the training samples")
    test: str = option("test", "split of the test samples")
    test_share: float = option(
        0.2, "share of a random test set, in each class, if there is a single split", gt=0, lt=1
    )
    resize: int | None = option(None, "height and width, needed for images of several sizes", ge=1)
    crop: bool = option(False, "crop images to their central square before they are resized")
    seed: int = option(0, "seed of the random test set", ge=0)


class Part(NamedTuple):
    """The rows of one split, and the description of the columns in its first file and in ``further`` ones."""

    table: "pa.Table"
    features: Mapping[str, Any]
    further: tuple[Mapping[str, Any], ...] = ()


def read_huggingface(path: Path, options: HuggingFaceOptions) -> RawData:
    """Images or float32 features, and labels in the order of the named classes, or real targets.

    Raises `FedflowError` for a dataset that cannot be read, `BadInput` for a column or split that it lacks.
    """
    with reading(path):
        parts = _files(path) if path.exists() else _named(path, options)
    train, test, others = _splits(parts, options, path)
    notes = [f"left out: the {'split' if len(others) == 1 else 'splits'} {listed(others)}"] if others else []
    tables = [train] if test is None else [train, test]
    chosen = _input(train, options), _target(train, options)
    if options.user is not None and "user" in options.columns:
        raise BadInput("data.columns", options.columns, "other columns than `user`, which data.user makes")
    used = [*chosen, *filter(None, [options.user]), *options.columns]
    for name in used:
        _column(train, name, "columns")
        _need_one_order(name, tables, path)
    left = [name for name in train.table.column_names if name not in used]
    notes.append(f"input: {chosen[0]}; target: {chosen[1]}" + (f"; left out: {listed(left)}" if left else ""))
    with reading(path):
        x = _inputs(tables, chosen[0], options)
        y = np.concatenate([_values(part, chosen[1]) for part in tables])
    described = train.features.get(chosen[1])
    names = described.get("names") if isinstance(described, Mapping) else None
    tested = np.arange(len(y)) >= train.table.num_rows
    if test is None:
        plain = y.ndim > 1 or y.dtype.kind == "f"
        strata = np.zeros(len(y), np.int64) if plain else np.unique(y, return_inverse=True)[1]
        tested = draw_test(strata, options.test_share, options.seed, "data.huggingface.split")
        notes.append(f"one split: {tested.sum()} of {len(y)} samples are for testing (data.test_share)")
    with reading(path):
        columns = {name: _fact(tables, name, tested) for name in options.columns}
        if options.user is not None:
            columns["user"] = _fact(tables, options.user, tested)
    y_train, y_test = y[~tested], y[tested]
    if labels := labels_as_reals(y_train):
        raise FedflowError(
            f"{path}: column {chosen[1]!r} is {y.dtype} and holds {labels}; save labels as whole numbers, "
            "and real targets as lists of one number"
        )
    if y.dtype.kind == "f":
        with reading(path):
            targets: dict[str, Any] = dict(zip(("y_train", "y_test"), reals(y_train, y_test)))
    elif names or y.ndim > 1:
        targets = {"y_train": y_train, "y_test": y_test, "classes": tuple(names or ())}
    else:
        targets = numbered(y_train, y_test)
    return RawData(x_train=x[~tested], x_test=x[tested], columns=columns, notes=tuple(notes), **targets)


def _named(path: Path, options: HuggingFaceOptions) -> dict[str, Part]:
    """The splits of a dataset on the Hub or in the cache."""
    name = path.as_posix()
    if name.count("/") > 1 or path.suffix:
        raise ValueError("there is no such file or folder (data.path)")
    require(f"the dataset {name!r} of the Hub", "datasets", part="huggingface")
    import datasets

    try:
        found = datasets.load_dataset(name, options.config, revision=options.revision)
    except Exception as error:  # of many libraries
        raise ValueError(f"not a file or folder here, and the Hub or its cache: {reason(error)}") from None
    return {
        split: Part(rows.with_format("arrow")[:], rows.features.to_dict()) for split, rows in found.items()
    }


def _files(path: Path) -> dict[str, Part]:
    """The splits of a Parquet file, of a folder of such files, or of a folder of `save_to_disk`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if (path / "dataset_dict.json").is_file():
        names = json.loads((path / "dataset_dict.json").read_text())["splits"]
        return {name: _saved(path / name) for name in names}
    if (path / "state.json").is_file():
        return {"train": _saved(path)}
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    files = [file for file in files if file == path or not any(map(is_junk, file.relative_to(path).parts))]
    if not files:
        raise ValueError("has no *.parquet file, and is no folder of save_to_disk")
    shards: dict[str, list[pa.Table]] = {}
    kinds: dict[bool, str] = {}  # a file without a split in its name, and one with it
    for file in files:
        inside = file.name if path.is_file() else file.relative_to(path).as_posix()
        words = WORDS.findall(inside.removesuffix(".parquet").lower())
        with reading(file):
            shards.setdefault(SAME.get(words[-1], words[-1]) if words else "", []).append(pq.read_table(file))
        kinds.setdefault(not words, inside)
    if len(kinds) == 2:
        raise ValueError(f"{kinds[True]} names no split, such as train or test, as {kinds[False]} does")
    for given, name in (("", "train"), ("eval", "test")):
        if given in shards and name not in shards:
            shards[name] = shards.pop(given)
    parts = {}
    for name, tables in shards.items():
        features, *further = map(_described, tables)
        parts[name] = Part(pa.concat_tables(tables), features, tuple(further))
    return parts


def _need_one_order(column: str, parts: Sequence[Part], path: Path) -> None:
    """Refuse files that number the classes of a column in different ways."""
    features = [described.get(column) for part in parts for described in (part.features, *part.further)]
    first, *others = [f.get("names") or [] for f in features if isinstance(f, Mapping)] or [[]]
    for names in others:
        if any(a != b for a, b in zip(first, names)):
            words = f"{listed(first)} in one file, and {listed(names)} in another"
            raise FedflowError(f"{path}: column {column!r} has the classes {words}")


def _saved(folder: Path) -> Part:
    """The rows of a folder that `Dataset.save_to_disk` wrote."""
    import pyarrow as pa

    tables = []
    for entry in json.loads((folder / "state.json").read_text())["_data_files"]:
        name = Path(entry["filename"]).name
        with reading(folder / name), (folder / name).open("rb") as stream:
            tables.append(pa.ipc.open_stream(stream).read_all())
    return Part(pa.concat_tables(tables), json.loads((folder / "dataset_info.json").read_text())["features"])


def _described(table: "pa.Table") -> dict[str, Any]:
    """The features that `datasets` writes into a Parquet file; empty for files of other programs."""
    text = (table.schema.metadata or {}).get(b"huggingface")
    return json.loads(text)["info"]["features"] if text else {}


def _splits(
    parts: Mapping[str, Part], options: HuggingFaceOptions, path: Path
) -> tuple[Part, Part | None, list[str]]:
    """The training samples, the test samples unless a share of the only split is drawn, and other splits."""
    if len(parts) == 1:
        ((only, part),) = parts.items()
        if options.train != only:
            options.refuse_unused(f"as the only split of {path} is {only}", "train")
        options.refuse_unused(f"as {path} has one split, {only}", "test")
        return part, None, []
    for field in ("train", "test"):
        if (name := getattr(options, field)) not in parts or options.train == options.test:
            raise BadInput(
                f"data.{field}", name, f"another split of {path} than the other one: {', '.join(parts)}"
            )
    options.refuse_unused(f"as the split {options.test} of {path} is the test set", "test_share")
    others = [name for name in parts if name not in (options.train, options.test)]
    return parts[options.train], parts[options.test], others


def _input(part: Part, options: HuggingFaceOptions) -> str:
    """The column of images or lists."""
    if options.input is not None:
        return _column(part, options.input, "input")
    fit = [name for name in part.table.column_names if _is_input(part, name)]
    if len(fit) != 1:
        there = ", ".join(part.table.column_names)
        found = (
            f"one of {', '.join(fit)}"
            if fit
            else f"a column of images or lists of numbers, not of text: {there}"
        )
        raise BadInput("data.input", None, found)
    return fit[0]


def _is_input(part: Part, name: str) -> bool:
    import pyarrow as pa

    kind = part.table.schema.field(name).type
    kind = kind.storage_type if isinstance(kind, pa.ExtensionType) else kind
    image = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    if image or pa.types.is_binary(kind):
        return True
    depth = 0
    while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind):
        kind, depth = kind.value_type, depth + 1
    return depth > 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _target(part: Part, options: HuggingFaceOptions) -> str:
    """The column to predict."""
    if options.target is not None:
        return _column(part, options.target, "target")
    features = part.features.items()
    named = [n for n, f in features if isinstance(f, Mapping) and f.get("_type") == "ClassLabel"]
    fit = named or [name for name in ("label", "labels") if name in part.table.column_names]
    if len(fit) != 1:
        raise BadInput("data.target", None, f"one of {', '.join(fit or part.table.column_names)}")
    return fit[0]


def _column(part: Part, name: str, field: str) -> str:
    if name not in part.table.column_names:
        raise BadInput(f"data.{field}", name, f"a column: {', '.join(part.table.column_names)}")
    return name


def _values(part: Part, name: str) -> np.ndarray:
    """The values of a column of numbers or text [n], or of lists [n, k]; ValueError for missing ones."""
    column = part.table.column(name)
    if column.null_count:
        raise ValueError(f"column {name!r} has {column.null_count} missing values")
    values = column.to_numpy()
    if values.dtype.kind == "O" and isinstance(values[0], np.ndarray):
        values = np.stack(values)
    return values if values.dtype.kind in "iuf" else values.astype(str)


def _fact(parts: list[Part], name: str, tested: np.ndarray) -> DataColumn:
    """A column as a fact of every sample: whole numbers as they are, text numbered in sorted order."""
    values = np.concatenate([_values(part, name) for part in parts])
    if values.dtype.kind in "iu" and name not in ("user",):
        return DataColumn(values[~tested].astype(np.int64), values[tested].astype(np.int64))
    names, codes = np.unique(values, return_inverse=True)
    return DataColumn(codes[~tested], codes[tested], tuple(map(str, names)))


def _inputs(parts: list[Part], name: str, options: HuggingFaceOptions) -> np.ndarray:
    """Images uint8 [n, h, w] or [n, h, w, 3], or features float32 [n, ...], of all parts."""
    import pyarrow as pa

    if not _is_input(parts[0], name):
        accepted = "a column of images or of lists of numbers; `source: table` reads columns of numbers"
        raise BadInput("data.input", name, accepted)
    columns = [part.table.column(name).combine_chunks() for part in parts]
    columns = [column.storage if isinstance(column, pa.ExtensionArray) else column for column in columns]
    values = [value for column in columns for value in column.to_pylist()]
    if pa.types.is_struct(columns[0].type) or pa.types.is_binary(columns[0].type):
        images = [_image(value, row) for row, value in enumerate(values, 1)]
        return equal_images(images, options.resize, options.crop)
    inner = columns[0].type
    while not pa.types.is_primitive(inner):
        inner = inner.value_type
    try:
        x = np.array(values, inner.to_pandas_dtype())
    except (TypeError, ValueError):
        raise ValueError(f"column {name!r} needs as many numbers in every row") from None
    return x if x.dtype == np.uint8 and x.ndim > 2 else x.astype(np.float32)


def _image(value: Any, row: int) -> np.ndarray:
    data = value.get("bytes") if isinstance(value, dict) else value
    if data is None and isinstance(value, dict) and value.get("path"):
        data = Path(value["path"]).read_bytes()
    if data is None:
        raise ValueError(f"the image in row {row} is missing")
    with reading(f"the image in row {row}"):
        return decode_image(io.BytesIO(data))
