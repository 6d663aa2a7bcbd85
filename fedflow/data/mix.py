"""Several datasets joined into one, with separate or shared labels. Every part is one domain.

The column ``domain`` names the part of each sample, and images keep the normalization constants of their
part. If the source of a part has none (EMNIST letters), they are computed from its training images: a
different copy of the file gives different constants, and a different hash. ``normalize`` of a part or of
the mix overrides this. Parts follow one another, each in its original order. MIX-4 of PACFL (Vahidian et
al., AAAI 2023) is the mix of USPS, CIFAR-10, SVHN and Fashion-MNIST: 32x32 in three channels, labels 0..39.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedflow.data import images
from fedflow.data.files import ARRAYS, DataColumn, RawData
from fedflow.errors import BadInput
from fedflow.settings import Settings, Words, check, option


class MixOptions(Settings):
    """The datasets that are joined, and the meaning of their labels.

    The parts are entries of ``data``: `DatasetParams` parses them, and fills in their defaults.
    """

    section = "data"
    parts: list[dict] = option(
        doc="entries of data; `offset` = first label of the part. Without `pad` or `channels`, a part is "
        "padded to the size of the largest part, and in color if any part is"
    )
    labels: str = option(
        "separate",
        "separate = each part has its own labels, by default after the labels of the previous part; "
        "shared = all parts have the same labels",
        choices=("separate", "shared"),
    )

    merge: bool = option(
        False,
        "add the test samples to the training samples, after them, as FL-bench and PFLlib do before they "
        "divide the data; the partition must hold out test samples",
    )

    def validate(self) -> None:
        if not self.parts:
            raise BadInput("data.parts", self.parts, "a list with at least one entry of data")
        for i, part in enumerate(self.parts):
            name, offset = f"data.parts[{i}].offset", part.get("offset")
            check(name, offset, int | None, {"bounds": {"ge": 0}})
            if offset is not None and self.labels == "shared":
                raise BadInput(name, offset, "null, for labels: shared")


def mixed(titled: Sequence[tuple[str, RawData]], options: MixOptions) -> RawData:
    """Title and samples of every part, joined: inputs of one shape, distinct labels, the shared columns.

    In a column, equal names (or numbers, if values have no names) are one value; the users of different
    parts remain different. Raises `BadInput` naming the part that does not fit.
    """
    titles, samples = zip(*titled)
    names = [
        title if title not in titles[:i] else f"{title}-{titles[: i + 1].count(title)}"
        for i, title in enumerate(titles)
    ]
    parts = _same_shape(samples, options)
    classes, parts = (_separate if options.labels == "separate" else _shared)(parts, names, options)
    domains = [_domain(part) for part in parts]
    mean, std = (
        tuple(c for part, own in zip(parts, domains) for c in _by_domain(getattr(part, what), own))
        for what in ("mean", "std")
    )
    x_train, y_train, x_test, y_test = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS
    )
    columns = _columns(parts, names) | {"domain": _apart(domains, names)}
    notes = tuple(f"{name}: {note}" for name, part in zip(names, parts) for note in part.notes)
    if options.merge:
        count = len(y_train)
        x_train, y_train = np.concatenate([x_train, x_test]), np.concatenate([y_train, y_test])
        columns = {
            name: replace(column, train=np.concatenate([column.train, column.test]))
            for name, column in columns.items()
        }
        added = len(y_train) - count
        notes += (f"{added} test samples were added after the {count} training samples (data.merge)",)
    pooled = options.merge or any(part.pooled for part in parts)
    return RawData(x_train, y_train, x_test, y_test, classes, columns, mean, std, notes, pooled=pooled)


def _same_shape(parts: Sequence[RawData], options: MixOptions) -> list[RawData]:
    """The parts with inputs of one kind and shape: images are padded, and converted to color."""
    first, made = parts[0], list[RawData]()
    for i, part in enumerate(parts):
        if part.kind != first.kind:
            source = options.parts[i]["source"]
            raise BadInput(f"data.parts[{i}].source", source, f"{first.kind}, as parts[0] has")
        shape, wanted = part.x_train.shape[1:], first.x_train.shape[1:]
        if part.kind != "images" and shape != wanted:
            raise BadInput(
                f"data.parts[{i}]", list(shape), f"{part.kind} of the shape {list(wanted)}, as parts[0]"
            )
        target, wanted = part.y_train.shape[1:], first.y_train.shape[1:]
        if target != wanted:
            raise BadInput(
                f"data.parts[{i}]",
                Words(f"targets of the shape {list(target)}"),
                f"{list(wanted)}, as parts[0]",
            )
        if options.merge and (part.pooled or np.array_equal(part.x_train, part.x_test)):
            raise BadInput(
                "data.merge", True, f"false, because test samples of parts[{i}] are training samples"
            )
    if first.kind != "images":
        return list(parts)
    height, width = (max(part.x_train.shape[axis] for part in parts) for axis in (1, 2))
    color = any(part.x_train.ndim == 4 for part in parts)
    for i, (part, given) in enumerate(zip(parts, options.parts)):
        h, w = part.x_train.shape[1:3]
        pad, odd = divmod(height - h, 2)
        if odd or height - h != width - w or (pad and "pad" in given):
            accepted = f"padding from {h}x{w} to {height}x{width} pixels, the largest part (or use resize)"
            raise BadInput(f"data.parts[{i}].pad", given.get("pad"), accepted)
        if color and part.x_train.ndim == 3 and given.get("channels") == 1:
            raise BadInput(f"data.parts[{i}].channels", 1, "3 or null; another part is in color")
        x_train, x_test = images.padded(part.x_train, pad), images.padded(part.x_test, pad)
        if color and part.x_train.ndim == 3:
            mean, std = images.repeated(part.mean), images.repeated(part.std)
            x_train, x_test = images.colored(x_train), images.colored(x_test)
            part = replace(part, mean=mean, std=std)
        made.append(replace(part, x_train=x_train, x_test=x_test))
    return made


def _shared(
    parts: list[RawData], names: list[str], options: MixOptions
) -> tuple[tuple[str, ...], list[RawData]]:
    """The classes, which all parts share, and the parts."""
    for i, part in enumerate(parts):
        if part.classes != parts[0].classes:
            both = f"the classes of parts[{i}] ({names[i]}) are not the classes of parts[0] ({names[0]})"
            raise BadInput("data.labels", "shared", f"separate: {both}")
    return parts[0].classes, parts


def _separate(
    parts: list[RawData], names: list[str], options: MixOptions
) -> tuple[tuple[str, ...], list[RawData]]:
    """All classes in the order of their labels, and the parts with shifted labels."""
    taken: list[range] = []
    for i, (part, given) in enumerate(zip(parts, options.parts)):
        if not part.classes or part.kind == "tokens":
            raise BadInput("data.labels", "separate", f"shared: parts[{i}] ({names[i]}) has no class labels")
        size, offset = len(part.classes), given.get("offset")
        first = offset if offset is not None else taken[-1].stop if taken else 0
        free = next(o for o in sorted({0, *(r.stop for r in taken)}) if not _overlaps(o, size, taken))
        for j in _overlaps(first, size, taken):
            raise BadInput(
                f"data.parts[{i}].offset",
                offset,
                f"labels that are free: {names[i]} would have "
                f"{first}..{first + size - 1}, but parts[{j}] ({names[j]}) has {taken[j].start}.."
                f"{taken[j].stop - 1}; the first free offset is {free}",
            )
        taken.append(range(first, first + size))
    classes = {
        label: f"{name}:{c}"
        for name, part, own in zip(names, parts, taken)
        for label, c in zip(own, part.classes)
    }
    if gaps := sorted(set(range(max(classes))) - set(classes)):
        starts = [own.start for own in taken]
        raise BadInput("data.parts", starts, f"offsets without a gap; no part has the label {gaps[0]}")
    moved = [
        replace(part, y_train=part.y_train + own.start, y_test=part.y_test + own.start)
        for part, own in zip(parts, taken)
    ]
    return tuple(classes[label] for label in sorted(classes)), moved


def _overlaps(first: int, size: int, taken: list[range]) -> list[int]:
    """The numbers of the taken ranges that hold a label of first..first+size-1."""
    return [j for j, labels in enumerate(taken) if first < labels.stop and labels.start < first + size]


def _domain(part: RawData) -> DataColumn:
    """The domains within a part, usually a single one without a name."""
    if "domain" in part.columns:
        return _named(part.columns["domain"])
    return DataColumn(np.zeros(len(part.y_train), np.int64), np.zeros(len(part.y_test), np.int64), ("",))


def _by_domain(constants: images.Constants, domain: DataColumn) -> tuple:
    """The constants of a part for each of its domains; empty unless inputs are images."""
    if not constants or isinstance(constants[0], tuple):
        return constants
    return (constants,) * len(domain.names)


def _columns(parts: list[RawData], names: list[str]) -> dict[str, DataColumn]:
    """The columns that all parts have."""
    columns = {}
    for name in sorted(set.intersection(*(set(part.columns) for part in parts))):
        same = [part.columns[name] for part in parts]
        columns[name] = _apart(same, names) if name == "user" else _matched(same)
    return columns


def _apart(columns: list[DataColumn], parts: list[str]) -> DataColumn:
    """Values of different parts are different: they are named after their part."""
    names: list[str] = []
    made = []
    for part, column in zip(parts, map(_named, columns)):
        made.append(DataColumn(column.train + len(names), column.test + len(names)))
        names += [f"{part}:{value}" if value else part for value in column.names]
    return _joined(made, tuple(names))


def _matched(columns: list[DataColumn]) -> DataColumn:
    """Equal names or numbers are one value in all parts."""
    if not any(column.names for column in columns):
        return _joined(columns, ())
    columns = [_named(column) for column in columns]
    number = {name: v for v, name in enumerate(dict.fromkeys(n for c in columns for n in c.names))}
    values = [np.array([number[name] for name in column.names]) for column in columns]
    return _joined([DataColumn(v[c.train], v[c.test]) for v, c in zip(values, columns)], tuple(number))


def _named(column: DataColumn) -> DataColumn:
    """The column with names for its values: their numbers, if it has none."""
    if column.names:
        return column
    values, codes = np.unique(np.concatenate([column.train, column.test]), return_inverse=True)
    train, test = np.split(codes, [len(column.train)])
    return DataColumn(train, test, tuple(map(str, values)))


def _joined(columns: list[DataColumn], names: tuple[str, ...]) -> DataColumn:
    train, test = (np.concatenate([getattr(c, split) for c in columns]) for split in ("train", "test"))
    return DataColumn(train, test, names)
