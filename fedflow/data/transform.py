"""The changes to the samples of a source before they are stored, as the fields of `DatasetParams` say."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedflow.data import images
from fedflow.data.files import SPLITS, DataColumn, RawData
from fedflow.data.params import FOR_IMAGES, DatasetParams, within
from fedflow.data.sources import SOURCES
from fedflow.errors import BadInput, FedflowError
from fedflow.seeding import generator


def transformed(params: DatasetParams, root: Path | str | None = None) -> RawData:
    """The samples of one entry of ``data``, processed as its fields say.

    Images get the normalization constants that ``normalize`` names. "source": constants of the source, or
    else computed from all its training images as read; "train": computed from the training images that are
    kept, before they are resized or padded (the parts of a mix are padded before). With a column ``domain``,
    they are computed for each domain.
    Raises `FedflowError` if the source cannot be read, `BadInput` for what cannot be done to its samples.
    """
    raw = SOURCES[params.source].load(root, *params.opened, _parts(params, root), params.loss)
    if raw.kind != "images":
        for name in FOR_IMAGES:
            if (value := getattr(params, name)) and value != "source":
                raise BadInput(f"data.{name}", value, f"its default: {params.title} holds {raw.kind}")
        return _limited(_kept(raw, params), params)
    if params.normalize == "source":
        raw = _with_constants(raw, params)
    raw = _limited(_kept(raw, params), params)
    if params.normalize != "source":
        raw = _normalized(raw, params)
    return _drawn(raw, params)


def _parts(params: DatasetParams, root: Path | str | None) -> list[tuple[str, RawData]]:
    """Title and samples of the entries within this one, such as the parts of a mix."""
    parts = []
    for name, entry in params.entries.items():
        with within(f"data.{name}"):
            parts.append((entry.title, transformed(entry.start_from(params.base), root)))
    return parts


def _with_constants(raw: RawData, params: DatasetParams) -> RawData:
    """With the constants of the source, or else of its training images."""
    origin = SOURCES[params.source]
    if raw.mean:
        return raw
    if origin.mean:
        return replace(raw, mean=origin.mean, std=origin.std)
    return _computed(raw, params)


def _normalized(raw: RawData, params: DatasetParams) -> RawData:
    """With other constants than the source has."""
    channels, chosen = 3 if raw.x_train.ndim == 4 else 1, params.normalize
    if chosen == "train":
        return _computed(raw, params)
    if isinstance(chosen, str):
        return replace(raw, mean=(0.0,) * channels, std=(1.0,) * channels)
    if {len(chosen.mean), len(chosen.std)} != {channels}:
        accepted = f"{channels} numbers each in mean and std, one per channel of {params.title}"
        raise BadInput("data.normalize", chosen.as_dict(), accepted)
    return replace(raw, mean=tuple(chosen.mean), std=tuple(chosen.std))


def _computed(raw: RawData, params: DatasetParams) -> RawData:
    """With constants computed from the training images, for each domain."""
    domain = raw.columns.get("domain")
    if domain is None:
        mean, std = images.mean_and_std(raw.x_train)
        return replace(raw, mean=mean, std=std)
    values = range(len(domain.names) or 1 + int(max(domain.train.max(), domain.test.max())))
    trained, tested = set(domain.train.tolist()), set(domain.test.tolist())
    if strange := min(trained - {*values}, default=None):
        raise FedflowError(f"{params.title}: a training image has the domain {strange}; needs 0, 1, ...")
    if missing := sorted({*values, *tested} - trained):
        name = domain.names[missing[0]] if domain.names else missing[0]
        raise FedflowError(f"{params.title}: no training image has the domain {name}; needs all of 0, 1, ...")
    means, stds = zip(*(images.mean_and_std(raw.x_train[domain.train == value]) for value in values))
    named = DataColumn(domain.train, domain.test, domain.names or tuple(map(str, values)))
    return replace(raw, mean=means, std=stds, columns=raw.columns | {"domain": named})


def _kept(raw: RawData, params: DatasetParams) -> RawData:
    """Only the samples of ``keep_labels``."""
    wanted, classes = params.keep_labels, len(raw.classes)
    if not wanted:
        return raw
    if not classes or raw.kind == "tokens" or raw.y_train.ndim > 1:
        raise BadInput("data.keep_labels", wanted, f"an empty list: {params.title} has no class labels")
    if max(wanted) >= classes:
        raise BadInput("data.keep_labels", wanted, f"labels 0..{classes - 1} of {params.title}")
    number = np.full(classes, -1)
    number[wanted] = np.arange(len(wanted))
    raw = _chosen(raw, *(np.flatnonzero(number[y] >= 0) for y in (raw.y_train, raw.y_test)))
    if not (len(raw.y_train) and len(raw.y_test)):
        raise BadInput("data.keep_labels", wanted, "labels that occur in both training and test samples")
    names = tuple(raw.classes[label] for label in wanted)
    return replace(raw, y_train=number[raw.y_train], y_test=number[raw.y_test], classes=names)


def _limited(raw: RawData, params: DatasetParams) -> RawData:
    """At most ``train_limit`` and ``test_limit`` samples."""
    limits = {"train": params.train_limit, "test": params.test_limit}
    if limits == {"train": None, "test": None}:
        return raw
    rows = []
    for split in SPLITS:
        y, limit = getattr(raw, f"y_{split}"), limits[split]
        strata = y if raw.classes and y.ndim == 1 else np.zeros(len(y), np.int64)
        rows.append(np.arange(len(y)) if limit is None else _stratified(strata, limit, params.seed, split))
    return _chosen(raw, *rows)


def _stratified(y: np.ndarray, limit: int, seed: int, split: str) -> np.ndarray:
    """Sorted indices of ``limit`` random examples, each class in proportion and at least once.

    The r-th example of a class of n, in random order, has rank r / n; the lowest ranks are kept, so a
    larger limit only adds examples. A limit above the size keeps everything.
    """
    classes = np.unique(y)
    if limit < len(classes):
        raise BadInput(f"data.{split}_limit", limit, f"at least {len(classes)}, one sample per class")
    rank = np.empty(len(y))
    for label in classes:
        members = np.flatnonzero(y == label)
        order = generator(seed, f"data.{split}_limit", int(label)).permutation(len(members))
        rank[members] = order / len(members)
    return np.sort(np.lexsort((y, rank))[:limit])


def _chosen(raw: RawData, train: np.ndarray, test: np.ndarray) -> RawData:
    """The samples at these positions."""
    return replace(
        raw,
        x_train=raw.x_train[train],
        y_train=raw.y_train[train],
        x_test=raw.x_test[test],
        y_test=raw.y_test[test],
        columns={n: DataColumn(c.train[train], c.test[test], c.names) for n, c in raw.columns.items()},
    )


def _drawn(raw: RawData, params: DatasetParams) -> RawData:
    """Resized, padded, in color and rotated, as the fields say."""

    def each(change: Callable[[np.ndarray], np.ndarray]) -> RawData:
        return replace(raw, x_train=change(raw.x_train), x_test=change(raw.x_test))

    color = raw.x_train.ndim == 4
    if (side := params.resize) is not None:
        raw = each(lambda x: images.resized(x, side, params.crop))
    raw = each(lambda x: images.padded(x, params.pad))
    if params.channels == 1 and color:
        raise BadInput("data.channels", 1, f"3 or null; the images of {params.title} are in color")
    if params.channels == 3 and not color:
        raw = replace(each(images.colored), mean=images.repeated(raw.mean), std=images.repeated(raw.std))
    return _turned(raw, params.rotations) if params.rotations else raw


def _turned(raw: RawData, angles: list[int]) -> RawData:
    """Every image at each angle, with the column ``rotation``."""
    height, width = raw.x_train.shape[1:3]
    if height != width and {90, 270} & set(angles):
        raise BadInput("data.rotations", angles, f"0 and 180 only, for images of {height}x{width} pixels")
    if "rotation" in raw.columns:
        raise BadInput("data.rotations", angles, "an empty list: the data already have a column 'rotation'")
    times, names = len(angles), tuple(map(str, angles))
    columns = {
        name: DataColumn(np.tile(column.train, times), np.tile(column.test, times), column.names)
        for name, column in raw.columns.items()
    }
    train, test = (np.arange(times).repeat(len(y)) for y in (raw.y_train, raw.y_test))
    return replace(
        raw,
        x_train=images.rotated(raw.x_train, angles),
        y_train=np.concatenate([raw.y_train] * times),
        x_test=images.rotated(raw.x_test, angles),
        y_test=np.concatenate([raw.y_test] * times),
        columns=columns | {"rotation": DataColumn(train, test, names)},
    )
