"""A named source turned into two safetensors files and a ``meta.json``, and read back memory-mapped.

Equal sources and parameters give equal files, byte for byte. ``meta.json`` is written last, so a folder
that has one is complete.
"""

import contextlib
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedflow.data.encoding import Encoding
from fedflow.data.examples import Examples
from fedflow.data.files import SPLITS, DataColumn, RawData, reading, regular
from fedflow.data.images import Constants, channels_first
from fedflow.data.params import DatasetParams
from fedflow.data.sources import source
from fedflow.data.transform import transformed
from fedflow.errors import BadInput, FedflowError, reason
from fedflow.project.code import plugin_code
from fedflow.settings import Words

META = "meta.json"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Prepared samples on the CPU.

    ``x_*``: uint8 images [n, C, H, W], float32 features [n, ...] or int32 tokens [n, L]. ``y_*``: int64
    labels [n], bool labels [n, K] (several per sample), float32 targets [n] or [n, k] (regression: no
    classes), or int64 tokens [n, L], with the vocabulary as classes. ``columns`` are metadata of samples.

    ``mean`` and ``std`` normalize pixels scaled to [0, 1]: one value per channel, or one such tuple for
    each value of the column ``domain``; empty for other inputs. ``hash`` identifies the content (16
    hexadecimal digits). The tensors may be mapped from a file: do not write to them. ``notes`` are lines for
    the user: what was read, and what was not. ``encoding`` turns new rows of a table into inputs.
    ``pooled``: the test samples are training samples too.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    mean: Constants
    std: Constants
    hash: str
    columns: dict[str, DataColumn] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    encoding: Encoding | None = None
    pooled: bool = False

    @property
    def num_classes(self) -> int:
        """The number of classes K (labels are 0..K-1); with real targets, how many a sample has."""
        return len(self.classes) or self.y_train[:1].numel()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: (C, H, W) for an image."""
        return tuple(self.x_train.shape[1:])

    @property
    def by_domain(self) -> bool:
        """True if every domain has its own normalization constants."""
        return bool(self.mean) and isinstance(self.mean[0], tuple)

    @property
    def train(self) -> Examples:
        """The training split."""
        return self._examples(self.x_train, self.y_train, "train")

    @property
    def test(self) -> Examples:
        """The test split."""
        return self._examples(self.x_test, self.y_test, "test")

    def _examples(self, x: Tensor, y: Tensor, split: str) -> Examples:
        domain = torch.from_numpy(getattr(self.columns["domain"], split)) if self.by_domain else None
        return Examples(x, y, self.mean or None, self.std or None, domain)


def prepare(params: DatasetParams, out_dir: Path | str, root: Path | str | None = None) -> Dataset:
    """Write ``train.safetensors``, ``test.safetensors`` and ``meta.json`` into ``out_dir``; load them.

    ``root`` is the data root (see `fedflow.data.data_root`). Raises `FedflowError` if the source cannot be
    read or the files cannot be written; half-written files are removed.
    """
    origin, out = source(params.source), Path(out_dir)
    sums = origin_sums(params, root)  # before reading: the next call notices a file that is replaced now
    raw = transformed(params, root)
    meta: dict[str, Any] = {
        "name": params.title,
        "source": params.source,
        "title": origin.title,
        "origin": origin.origin,
        "params": params.as_dict(),
        "origin_files": sums,
        "classes": raw.classes,
        "class_counts": {},
        "columns": {name: column.names for name, column in raw.columns.items()},
        "shapes": {},
        "target_shape": raw.y_train.shape[1:],
        "types": {},
        "mean": raw.mean,
        "std": raw.std,
        "notes": raw.notes,
        "files": {},
    }
    if raw.encoding is not None:
        meta["encoding"] = raw.encoding.as_dict()
    if raw.pooled:
        meta["pooled"] = True
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _temporary(out, [*map(_file, SPLITS), META]) as temporary:
            temporary[META].touch()
            for split in SPLITS:
                tensors, file = _tensors(raw, split), temporary[_file(split)]
                save_file(tensors, file)
                shutil.copymode(temporary[META], file)  # safetensors lets only the owner read its files
                meta["class_counts"][split] = _counts(tensors["y"], len(raw.classes))
                meta["shapes"][split] = list(tensors["x"].shape)
                meta["types"] = {name: _type(tensor) for name, tensor in tensors.items()}
                meta["files"][_file(split)] = {"bytes": file.stat().st_size, "sha256": file_sum(file)}
            meta["hash"] = _content_hash(meta)
            temporary[META].write_text(json.dumps(meta, indent=1) + "\n")
            (out / META).unlink(missing_ok=True)  # never an old meta.json next to new images
            for name, file in temporary.items():
                os.replace(file, out / name)  # noqa: PTH105
    except (OSError, SafetensorError) as error:
        raise FedflowError(f"{out}: cannot write the prepared data: {reason(error)}") from error
    return load_prepared(out)


def _counts(y: Tensor, classes: int) -> list[int]:
    """The number of samples of every class; none for real targets."""
    if y.dtype == torch.bool:
        return y.sum(0).tolist()
    return torch.bincount(y.flatten(), minlength=classes).tolist() if classes else []


def load_prepared(path: Path | str, verify: bool = False) -> Dataset:
    """The dataset that `prepare` wrote into the folder ``path``, memory-mapped.

    Sizes, names, shapes and types are always checked; ``verify`` also compares the SHA-256 sums.
    Raises `FedflowError` naming the file that is missing or damaged.
    """
    folder = Path(path)
    if not (folder / META).is_file():
        raise FedflowError(f"{folder / META}: missing; `fedflow prepare {folder.name}` makes it")
    try:
        with reading(folder / META):
            meta = json.loads((folder / META).read_text())
            if meta["hash"] != _content_hash(meta):
                raise ValueError("its fields do not match its hash")
            constants = _tuples(meta["mean"]), _tuples(meta["std"])
            classes, names, notes = tuple(meta["classes"]), meta["columns"], tuple(meta.get("notes", ()))
            encoding = Encoding.parse(meta["encoding"]) if "encoding" in meta else None
            layouts = [_layout(meta, split) for split in SPLITS]
        train, test = (
            _load_split(folder / _file(split), meta["files"][_file(split)], layout, verify)
            for split, layout in zip(SPLITS, layouts)
        )
    except FedflowError as error:
        raise FedflowError(f"{error}; `fedflow prepare {folder.name}` makes it again") from error
    columns = {
        name: DataColumn(train[_column(name)].numpy(), test[_column(name)].numpy(), tuple(values))
        for name, values in names.items()
    }
    x_and_y = train["x"], train["y"], test["x"], test["y"]
    return Dataset(
        meta["name"], *x_and_y, classes, *constants, meta["hash"], columns, notes, encoding, "pooled" in meta
    )


def need_classes(dataset: Dataset, field: str) -> None:
    """Refuse training samples that all have one label, as every score would be 1; ``field`` named them."""
    labels = dataset.y_train
    several = labels.dtype == torch.bool
    if dataset.classes and (labels.ndim == 1 or several) and bool((labels == labels[0]).all()):
        same = "same labels" if several else f"label {dataset.classes[int(labels[0])]!r}"
        found = f"{dataset.name}, whose training samples all have the {same},"
        raise BadInput(field, Words(found), "samples of two classes or more")


def is_current(path: Path | str, params: DatasetParams, root: Path | str | None = None) -> bool:
    """Return whether ``path`` was prepared with these parameters, from files that have not changed since.

    A file that no longer exists counts as unchanged: prepared data suffice. The code of a plug-in's source
    counts like a file; code that is in no file may always have changed. ``root`` is the data root.
    """
    try:
        meta, sums = json.loads((Path(path) / META).read_text()), origin_sums(params, root)
        same = meta["params"] == params.as_dict() and meta["hash"] == _content_hash(meta)
        same = same and sums.items() <= meta["origin_files"].items()
        return same and all(sums.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def changed_code(path: Path | str, params: DatasetParams) -> list[str]:
    """The sources of plug-ins with other code than when ``path`` was prepared, as "code of source NAME"."""
    try:
        sums = json.loads((Path(path) / META).read_text())["origin_files"]
        return [name for name, code in _source_code(params).items() if code != sums.get(name)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def origin_sums(params: DatasetParams, root: Path | str | None = None) -> dict[str, str]:
    """SHA-256 of every existing file that the data are read from, by its name in `DatasetParams.files`.

    For the sources of plug-ins, also a digest of their code. An upgrade of fedflow makes no data outdated.
    """
    files = params.files(root).items()
    sums = {name: path_sum(path) for name, path in files if path is not None and path.exists()}
    return sums | _source_code(params)


def _source_code(params: DatasetParams) -> dict[str, str]:
    """The code of the plug-ins' sources of an entry and the entries within it."""
    code = plugin_code(*source(params.source).modules)
    codes = {} if code is None else {f"code of source {params.source}": code}
    for entry in params.entries.values():
        codes |= _source_code(entry)
    return codes


def path_sum(path: Path) -> str:
    """The SHA-256 of a file; of a folder, one over the names and sums of all its files."""
    with reading(path):
        if not path.is_dir():
            return file_sum(regular(path))
        names = sorted(_inside(path), key=lambda entry: PurePosixPath(entry[0]))
        return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def _inside(folder: Path) -> Iterator[list[str]]:
    """The names and sums of files, also through links to folders; a folder's second name stands for it."""
    first: dict[str, str] = {}
    for at, folders, files in os.walk(folder, followlinks=True):
        name, real = Path(at).relative_to(folder).as_posix(), os.path.realpath(at)
        if real in first:  # a loop, too
            folders.clear()
            yield [name, f"the folder {first[real]}"]
            continue
        first[real] = name
        folders.sort()  # the first name must not depend on the file system
        for file in files:
            if (path := Path(at, file)).is_file():
                yield [path.relative_to(folder).as_posix(), file_sum(path)]


def _tensors(raw: RawData, split: str) -> dict[str, Tensor]:
    """The tensors that are stored for one split."""
    x, y = getattr(raw, f"x_{split}"), getattr(raw, f"y_{split}")
    arrays = {"x": channels_first(x) if raw.kind == "images" else x, "y": y}
    arrays |= {_column(name): getattr(column, split) for name, column in raw.columns.items()}
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def _layout(meta: dict[str, Any], split: str) -> dict[str, tuple[str, list[int]]]:
    """Type and shape of every stored tensor of a split."""
    shape, types = meta["shapes"][split], meta["types"]
    shapes = {"x": shape, "y": [*shape[:1], *meta["target_shape"]]}
    shapes |= {_column(name): shape[:1] for name in meta["columns"]}
    return {name: (types[name], shapes[name]) for name in shapes}


def _load_split(
    file: Path, record: dict[str, Any], layout: dict[str, tuple[str, list[int]]], verify: bool
) -> dict[str, Tensor]:
    with reading(file):
        if not file.is_file():
            raise FedflowError(f"{file}: missing")
        if (size := file.stat().st_size) != record["bytes"]:
            raise FedflowError(f"{file}: has {size} bytes, not {record['bytes']}")
        if verify and file_sum(file) != record["sha256"]:
            raise FedflowError(f"{file}: wrong checksum")
        tensors = load_file(file)
        if {name: (_type(tensor), list(tensor.shape)) for name, tensor in tensors.items()} != layout:
            raise FedflowError(f"{file}: holds other tensors than {META} says")
    return tensors


def _content_hash(meta: dict[str, Any]) -> str:
    """16 hexadecimal digits over both files' contents and the normalization constants.

    Of a table, also over the names of classes and facts, and how its columns became inputs.
    """
    sums = [meta["files"][_file(split)]["sha256"] for split in SPLITS]
    table = [meta["classes"], meta["columns"], meta["encoding"]] if "encoding" in meta else []
    parts = json.dumps([sums, meta["mean"], meta["std"], *table])
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def _tuples(constants: list) -> Constants:
    return tuple(tuple(c) if isinstance(c, list) else c for c in constants)


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _column(name: str) -> str:
    return f"column.{name}"


def _file(split: str) -> str:
    return f"{split}.safetensors"


def file_sum(file: Path) -> str:
    """The SHA-256 of a file; each version of it is read once."""
    about = file.stat()
    return _sum_of(file, about.st_ino, about.st_size, about.st_mtime_ns)


@functools.lru_cache
def _sum_of(file: Path, *version: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def _temporary(folder: Path, names: list[str]) -> Iterator[dict[str, Path]]:
    """Temporary names in the same folder; files that were not moved into place are removed."""
    files = {name: folder / f".{name}.{os.getpid()}.tmp" for name in names}
    try:
        yield files
    finally:
        for file in files.values():
            file.unlink(missing_ok=True)
