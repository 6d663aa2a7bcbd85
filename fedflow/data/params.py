"""One entry of ``data`` in ``params.yaml``."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from fedflow.choice import Choice
from fedflow.data.labels import LOSSES
from fedflow.data.sources import SOURCES
from fedflow.errors import BadInput
from fedflow.settings import Settings, option

NORMALIZE = ("source", "train", "none")
LEFT_TO_MIX = ("pad", "channels")  # no defaults: the mix chooses them if a part does not
PATHS = ("test_path", "table")  # parameters of sources that are files
FOR_IMAGES = ("resize", "crop", "pad", "channels", "rotations", "normalize")


class Normalization(Settings):
    """Constants that the user gives."""

    section = "data.normalize"
    mean: list[float] = option(doc="mean of pixels scaled to [0, 1], one per channel")
    std: list[float] = option(doc="their standard deviation, one per channel", gt=0)


class DatasetParams(Choice):
    """One entry of ``data``: the shared fields, and the parameters of the source.

    Samples are processed in this order: ``keep_labels``, ``train_limit`` and ``test_limit``, ``resize`` and
    ``crop`` (of a folder with images of several sizes: while they are read), ``pad``, ``channels``,
    ``rotations``.
    """

    section = "data"
    key: ClassVar[str] = "source"
    command: ClassVar[str] = "fedflow datasets"
    base = Path()  # see `start_from`

    source: str = option(doc="a named source", choices=SOURCES)
    path: str | None = option(None, "file or folder of the sources that read one")
    loss: str | None = option(
        None,
        "what the targets are, by their loss: bce = several labels per sample, 0 and 1 by label [n, labels] "
        "(binary cross-entropy, the mean over labels); mse = real (squared error); null = a class of each "
        "sample (cross-entropy) if they are whole numbers, else real",
        choices=LOSSES,
    )
    keep_labels: list[int] = option(
        factory=list, doc="keep only these classes, renumbered 0, 1, ... in this order; empty = all", ge=0
    )
    train_limit: int | None = option(None, "largest number of training samples, stratified by class", ge=1)
    test_limit: int | None = option(None, "largest number of test samples, stratified by class", ge=1)
    resize: int | None = option(
        None, "height and width of the images: bilinear, antialiased if they shrink", ge=1
    )
    crop: bool = option(False, "crop oblong images to their central square before they are resized")
    pad: int = option(0, "zeros added on each side, before normalization", ge=0)
    channels: int | None = option(None, "3 repeats gray images into three channels", choices=(1, 3))
    rotations: list[int] = option(
        factory=list,
        doc="repeat every image at each of these angles (degrees counter-clockwise); the column"
        " `rotation` holds the angle",
        choices=(0, 90, 180, 270),
    )
    normalize: str | Normalization = option(
        "source",
        "constants of (pixel / 255 - mean) / std: source = constants of the source, or computed from all its "
        "training images; train = computed from the images kept; none = 0 and 1; or {mean: [..], std: [..]}",
    )
    seed: int = option(0, "seed of the limits, and of a source that draws samples", ge=0)
    parameters: Settings = option(factory=dict, doc="parameters of the source")

    @classmethod
    def known(cls) -> Mapping[str, type[Settings] | None]:
        return {name: source.options for name, source in SOURCES.items()}

    def validate(self) -> None:
        origin = SOURCES[self.source]
        takes_path = origin.kind == "path"
        if takes_path != bool(self.path):
            accepted = f"a file or folder, for source {self.source!r}" if takes_path else "null"
            raise BadInput("data.path", self.path, accepted)
        if isinstance(self.normalize, str) and self.normalize not in NORMALIZE:
            accepted = f"one of {', '.join(NORMALIZE)}, or a mapping of mean and std"
            raise BadInput("data.normalize", self.normalize, accepted)
        if self.loss == "bce" and getattr(self.parameters, "task", "") == "regression":
            raise BadInput("data.loss", "bce", "mse or null, with task: regression")
        if self.crop and self.resize is None:
            raise BadInput("data.crop", True, "false, without resize")
        for name in ("keep_labels", "rotations"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise BadInput(f"data.{name}", values, "every value once")
        for name, entry in self.entries.items():
            if entry.loss == "bce":
                raise BadInput(f"data.{name}.loss", "bce", "null within another entry")
        if filled := self._filled():
            object.__setattr__(self, "parameters", replace(self.parameters, **filled))  # type: ignore[type-var]

    def as_dict(self) -> dict[str, Any]:
        """Plain values; without ``loss`` unless it is set, so that results before it keep their settings."""
        values = super().as_dict()
        return values if self.loss else {name: v for name, v in values.items() if name != "loss"}

    def _filled(self) -> dict[str, Any]:
        """The parameters that are entries, with their defaults, so that the record is complete."""
        filled: dict[str, Any] = {}
        if parts := getattr(self.parameters, "parts", None):
            filled["parts"] = [
                {k: v for k, v in entry.flat().items() if k not in LEFT_TO_MIX} | part
                for entry, part in zip(self.entries.values(), parts)
            ]
        if "test_of" in self.entries:
            filled["test_of"] = self.entries["test_of"].flat()
        return filled

    @cached_property
    def entries(self) -> dict[str, Self]:
        """The entries within this one, by field: the parts of a mix, or whose test samples it has."""
        parts = [
            {k: v for k, v in part.items() if k != "offset"} for part in getattr(self.parameters, "parts", ())
        ]
        named = {f"parts[{i}]": part for i, part in enumerate(parts)}
        if hasattr(self.parameters, "test_of"):
            named["test_of"] = self.parameters.test_of
        return {name: type(self).parse(entry, section=f"data.{name}") for name, entry in named.items()}

    @property
    def title(self) -> str:
        """The name of the file that is read, or of the source."""
        return Path(self.path).stem if self.path else self.source

    def files(self, root: Path | str | None = None) -> dict[str, Path | None]:
        """All files and folders that the data are read from, by name, also of the parts of a mix.

        These are the ones that the user names and, for each source, its file in the data root (see
        `data_root`), None if there is none.
        """
        return _files(self.flat(), root, self.base)

    def start_from(self, base: Path) -> Self:
        """Let relative paths start from the folder ``base``, which is no setting."""
        object.__setattr__(self, "base", base)
        return self

    @property
    def opened(self) -> tuple[str | None, Settings]:
        """The path and the parameters of the source, with the paths of files that can be opened."""
        if self.base == Path():
            return self.path, self.parameters
        paths = {name: str(self.base / name) for name in _named(self.flat())}
        there = SOURCES[self.source].by_name and not (self.base / (self.path or "")).exists()
        path = self.path if there else paths.get(self.path or "")
        other = {name: paths[value] for name in PATHS if (value := getattr(self.parameters, name, None))}
        return path, replace(self.parameters, **other) if other else self.parameters  # type: ignore[type-var]


def _named(entry: Mapping[str, Any]) -> list[str]:
    return [entry[name] for name in ("path", *PATHS) if entry.get(name)]


def _files(entry: Mapping[str, Any], root: Path | str | None, base: Path) -> dict[str, Path | None]:
    origin = SOURCES[entry["source"]]
    files: dict[str, Path | None] = {name: base / name for name in _named(entry)}
    if named := entry.get("images"):
        folder = Path(os.path.normpath(base / (entry.get("path") or "")))
        images = Path(os.path.normpath(folder / named))
        if not images.is_relative_to(folder):
            files[str(images)] = images
    if origin.kind in ("download", "root"):
        files[f"data root: {origin.name}"] = origin.file(root)
    for part in (*entry.get("parts", ()), *([entry["test_of"]] if "test_of" in entry else ())):
        files |= _files(part, root, base)
    if entry.get("of"):  # the source whose images are transformed
        files |= _files({"source": entry["of"]}, root, base)
    return files


@contextmanager
def within(section: str) -> Iterator[None]:
    """Name the field ``data.x`` of a `BadInput` as the user wrote it: ``<section>.x``."""
    try:
        yield
    except BadInput as error:
        name = error.field.removeprefix("data.")
        raise error.renamed(f"{section}.{name}") from None
