"""A named source turned into two safetensors files and a ``meta.json``, and read back memory-mapped.

The files are the same, byte for byte, whenever the source and the parameters are. ``meta.json`` is
written last, so a folder that has one is complete.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.data.files import SPLITS, Column, RawData, reading, reason
from fedflow.data.sources import SOURCES, Source, source
from fedflow.errors import BadInput, FedflowError, unknown_name
from fedflow.random import generator
from fedflow.settings import Settings, option

META = "meta.json"


class DatasetParams(Settings):
    """One entry of ``data``: which samples, what is done to them, and the parameters of their source."""

    section = "data"

    source: str = option(doc="a named source", choices=tuple(SOURCES))
    path: str | None = option(None, "file or folder of the sources that read one")
    pad: int = option(0, "zeros added on each side, before normalisation", ge=0)
    channels: int | None = option(None, "3 repeats grey images into three channels", choices=(1, 3))
    train_limit: int | None = option(None, "keep at most so many training images, by class", ge=1)
    test_limit: int | None = option(None, "keep at most so many test images, by class", ge=1)
    seed: int = option(0, "seed of the limits' random choice, and of a source that draws", ge=0)
    parameters: dict = option(factory=dict, doc="parameters of the source")

    @classmethod
    def parse(cls, values: Mapping[str, Any], section: str | None = None) -> Self:
        """Build from the flat mapping of ``params.yaml``; unknown parameters raise `BadInput`."""
        if isinstance(values, Mapping):
            shared = _shared(cls)
            own = {name: value for name, value in values.items() if name not in shared}
            values = {k: v for k, v in values.items() if k in shared} | {"parameters": own}
        return super().parse(values, section)

    def validate(self) -> None:
        origin = SOURCES[self.source]
        takes_path = origin.kind == "path"
        if takes_path != bool(self.path):
            accepted = f"a file or folder, for source {self.source!r}" if takes_path else "nothing"
            raise BadInput("data.path", self.path, accepted)
        accepts = [f.name for f in fields(origin.options)] if origin.options else []  # type: ignore[arg-type]
        shared = _shared(type(self))
        for name in self.parameters:
            if name not in accepts:
                raise unknown_name(f"data.{name}", name, {*shared, *accepts})
        if origin.options:
            common = {name: getattr(self, name) for name in shared & set(accepts)}  # one seed for all
            complete = origin.options.parse(self.parameters | common, section="data").as_dict()
            object.__setattr__(self, "parameters", complete)  # defaults too, so that a record says it all

    @property
    def options(self) -> Settings | None:
        """The parameters of the source, None if it has none."""
        options = SOURCES[self.source].options
        return None if options is None else options.parse(self.parameters, section="data")


def _shared(cls: type[DatasetParams]) -> set[str]:
    """The fields that all sources have."""
    return {f.name for f in fields(cls)} - {"parameters"}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Prepared images on the CPU: ``x_*`` uint8 [n, C, H, W], ``y_*`` int64 [n].

    ``mean`` and ``std`` normalise pixels scaled to [0, 1], one value per channel; ``hash`` identifies the
    content (16 hexadecimal digits). The tensors may share a memory-mapped file: do not write to them.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    hash: str
    columns: dict[str, Column] = field(default_factory=dict)

    @property
    def num_classes(self) -> int:
        """The number of classes K; labels are 0..K-1."""
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        _, channels, height, width = self.x_train.shape
        return channels, height, width

    @property
    def train(self) -> Examples:
        """The training split."""
        return Examples(self.x_train, self.y_train, self.mean, self.std)

    @property
    def test(self) -> Examples:
        """The test split."""
        return Examples(self.x_test, self.y_test, self.mean, self.std)


def prepare(params: DatasetParams, out_dir: Path | str, root: Path | str | None = None) -> Dataset:
    """Write ``train.safetensors``, ``test.safetensors`` and ``meta.json`` into ``out_dir``; load them.

    ``root`` is the data root (see `fedflow.data.data_root`). Constants that the source does not state
    are those of its whole training split, unpadded. Raises `FedflowError` if the source cannot be read
    or the files cannot be written; half-written files are removed.
    """
    origin, out = source(params.source), Path(out_dir)
    raw = origin.load(root, params.path, params.options)
    mean, std = _constants(origin, raw, params)
    limits = {"train": params.train_limit, "test": params.test_limit}
    meta: dict[str, Any] = {
        "name": Path(params.path).stem if params.path else params.source,
        "source": params.source,
        "title": origin.title,
        "origin": origin.origin,
        "params": params.as_dict(),
        "classes": raw.classes,
        "class_counts": {},
        "shapes": {},
        "mean": mean,
        "std": std,
        "files": {},
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _temporary(out, [*map(_file, SPLITS), META]) as temporary:
            temporary[META].touch()
            for split in SPLITS:
                x, y = getattr(raw, f"x_{split}"), getattr(raw, f"y_{split}")
                if (limit := limits[split]) is not None:
                    kept = _stratified(y, limit, params.seed, split)
                    x, y = x[kept], y[kept]
                tensors = {"x": _images(x, params), "y": torch.from_numpy(np.ascontiguousarray(y, np.int64))}
                file = temporary[_file(split)]
                save_file(tensors, file)
                shutil.copymode(temporary[META], file)  # safetensors keeps its files to their owner
                meta["class_counts"][split] = np.bincount(y, minlength=len(raw.classes)).tolist()
                meta["shapes"][split] = list(tensors["x"].shape)
                meta["files"][_file(split)] = {"bytes": file.stat().st_size, "sha256": _sha256(file)}
            meta["hash"] = _content_hash(meta)
            temporary[META].write_text(json.dumps(meta, indent=1) + "\n")
            (out / META).unlink(missing_ok=True)  # never an old meta.json beside new images
            for name, file in temporary.items():
                os.replace(file, out / name)  # noqa: PTH105
    except (OSError, SafetensorError) as error:
        raise FedflowError(f"{out}: cannot write the prepared data: {reason(error)}") from error
    return load_prepared(out)


def load_prepared(path: Path | str, verify: bool = False) -> Dataset:
    """The data set that `prepare` wrote into the folder ``path``, memory-mapped.

    Sizes, names, shapes and types are always checked; ``verify`` also compares the SHA-256 sums.
    Raises `FedflowError` naming the file that is missing or damaged.
    """
    folder = Path(path)
    if not (folder / META).is_file():
        raise FedflowError(f"{folder / META}: missing; run prepare to make this data set")
    try:
        with reading(folder / META):
            meta = json.loads((folder / META).read_text())
            if meta["hash"] != _content_hash(meta):
                raise ValueError("its fields do not match its hash")
            name, constants = meta["name"], (tuple(meta["mean"]), tuple(meta["std"]))
            classes = tuple(meta["classes"])
            records = [(meta["files"][_file(split)], meta["shapes"][split]) for split in SPLITS]
        train, test = (
            _load_split(folder / _file(split), *record, verify) for split, record in zip(SPLITS, records)
        )
    except FedflowError as error:
        raise FedflowError(f"{error}; run prepare again") from error
    return Dataset(name, *train, *test, classes, *constants, meta["hash"])


def _load_split(file: Path, record: dict[str, Any], shape: list[int], verify: bool) -> tuple[Tensor, Tensor]:
    with reading(file):
        if not file.is_file():
            raise FedflowError(f"{file}: missing")
        if (size := file.stat().st_size) != record["bytes"]:
            raise FedflowError(f"{file}: has {size} bytes, not {record['bytes']}")
        if verify and _sha256(file) != record["sha256"]:
            raise FedflowError(f"{file}: wrong checksum")
        tensors = load_file(file)
        layout = {key: (tensor.dtype, list(tensor.shape)) for key, tensor in tensors.items()}
        if layout != {"x": (torch.uint8, shape), "y": (torch.int64, shape[:1])}:
            raise FedflowError(f"{file}: holds other tensors than {META} says")
    return tensors["x"], tensors["y"]


def _images(x: np.ndarray, params: DatasetParams) -> Tensor:
    """uint8 [n, h, w] or [n, h, w, 3] -> [n, C, h + 2 pad, w + 2 pad], contiguous."""
    images = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
    side = (params.pad, params.pad)
    images = np.pad(images, ((0, 0), (0, 0), side, side))
    if params.channels == 3 and images.shape[1] == 1:
        images = images.repeat(3, axis=1)
    return torch.from_numpy(np.ascontiguousarray(images))


def _constants(origin: Source, raw: RawData, params: DatasetParams) -> tuple[list[float], list[float]]:
    """Mean and std per channel of the prepared images."""
    channels = 3 if raw.x_train.ndim == 4 else 1
    if params.channels == 1 and channels == 3:
        raise BadInput("data.channels", 1, f"3 or nothing; the images of {params.source} are in colour")
    if origin.mean:
        mean, std = list(origin.mean), list(origin.std)
    else:
        x = raw.x_train.reshape(-1, channels)
        # Counts of the 256 levels make the sums exact, hence the same on every machine.
        levels = np.stack([np.bincount(x[:, c], minlength=256) for c in range(channels)]) / len(x)
        values = np.arange(256) / 255
        exact = levels @ values
        spread = np.sqrt(np.maximum(levels @ values**2 - exact**2, 0))
        mean = [round(float(m), 6) for m in exact]
        std = [round(float(s), 6) or 1.0 for s in spread]  # 1 where a channel is constant
    return (mean * 3, std * 3) if channels == 1 and params.channels == 3 else (mean, std)


def _stratified(y: np.ndarray, limit: int, seed: int, split: str) -> np.ndarray:
    """Sorted indices of ``limit`` random examples, each class in proportion and at least once.

    The r-th example of a class of n, in random order, has rank r / n; the lowest ranks are kept, so a
    larger limit only adds examples. A limit above the size keeps everything.
    """
    classes = np.unique(y)
    if limit < len(classes):
        raise BadInput(f"data.{split}_limit", limit, f"at least {len(classes)}, one image a class")
    rank = np.empty(len(y))
    for label in classes:
        members = np.flatnonzero(y == label)
        order = generator(seed, f"data.{split}_limit", int(label)).permutation(len(members))
        rank[members] = order / len(members)
    return np.sort(np.lexsort((y, rank))[:limit])


def _content_hash(meta: dict[str, Any]) -> str:
    """16 hexadecimal digits over both files' contents and the normalisation constants."""
    sums = [meta["files"][_file(split)]["sha256"] for split in SPLITS]
    parts = json.dumps([sums, meta["mean"], meta["std"]])
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def _file(split: str) -> str:
    return f"{split}.safetensors"


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def _temporary(folder: Path, names: list[str]) -> Iterator[dict[str, Path]]:
    """Names beside the final ones, removed again unless they were moved into place."""
    files = {name: folder / f".{name}.{os.getpid()}.tmp" for name in names}
    try:
        yield files
    finally:
        for file in files.values():
            file.unlink(missing_ok=True)
