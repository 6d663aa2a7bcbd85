"""The sections of params.yaml with their fields, for help pages."""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

from fedflow.choice import PARAMETERS, Choice
from fedflow.config.params import Params
from fedflow.local.central_training import NEUTRAL, CentralTraining
from fedflow.settings import Settings, describe, explain, hints

ELSEWHERE = {  # choices whose parameters are explained by another command
    "methods": "fedflow methods",
    "partitions": "fedflow schemes",
    "procedures": "fedflow procedures",
}


class Section(NamedTuple):
    """A section by dotted name, or the parameters of a choice in it; ``rows`` as of `explain`.

    ``same`` names an earlier section with the same fields.
    """

    name: str
    doc: str
    rows: list[dict[str, Any]]
    same: str = ""


def sections() -> Iterator[Section]:
    """All sections, each before those within it."""
    seen: dict[type, str] = {}
    fields = dataclasses.fields(Params)
    for field in sorted(fields, key=lambda field: field.name != "training"):  # central training extends it
        for cls in classes(hints(Params)[field.name]):
            yield from _of(field.name, field.metadata["doc"], cls, seen)


def _of(name: str, doc: str, cls: type[Settings], seen: dict[type, str]) -> Iterator[Section]:
    yield Section(name, doc, rows(cls), seen.get(cls, ""))
    if cls in seen:
        return
    seen[cls] = name
    if name not in ELSEWHERE:
        yield from (Section(f"{name}.{key}", doc, options) for key, doc, options in chosen(cls))
    docs = {row["name"]: row["doc"] for row in rows(cls)}
    for inner, nested in within(cls):
        if inner not in refused(cls):
            keyed = "." in inner  # an extension, which says what it is
            doc = str(nested.__doc__).partition("\n")[0] if keyed else docs[inner]
            yield from _of(f"{name}.{inner}", doc, nested, seen)


def rows(cls: type[Settings]) -> list[dict[str, Any]]:
    """The fields, without the parameters of a choice, which are keys of the same mapping.

    Defaults of settings within are in their section.
    """
    hidden = {*refused(cls), *([PARAMETERS] if issubclass(cls, Choice) else [])}
    shown = [row for row in explain(cls) if row["name"] not in hidden]
    shown = [row | {"default": {}} if isinstance(row["default"], Settings) else row for row in shown]
    unset = {"default": None, "symbol": "", "source": "", "grid": ()}
    further = getattr(cls, "further", {}).items()
    return shown + [
        unset | {"name": name, "accepts": f"null or {describe(hint, {})}", "doc": doc}
        for name, (hint, doc) in further
    ]


def refused(cls: type[Settings]) -> set[str]:
    """Fields that one network without clients cannot have."""
    if not issubclass(cls, CentralTraining):
        return set()
    return {*NEUTRAL, *(name for name, inner in within(cls) if getattr(inner, "needs_clients", False))}


def chosen(cls: type[Settings]) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """Name, choice in words and parameters of all classes among which the settings choose."""
    if issubclass(cls, Choice):
        shared = explain(cls)
        for name, made in cls.known().items():
            if options := [row for row in explain(made) if row not in shared] if made else []:
                yield name, f"{cls.key}: {name}", options


def within(cls: type[Settings]) -> Iterator[tuple[str, type[Settings]]]:
    """The fields that are settings themselves, and their classes; by key, if keys choose the class."""
    further = {name: hint for name, (hint, _) in getattr(cls, "further", {}).items()}
    for name, hint in {**hints(cls), **further}.items():
        for inner in classes(hint):
            keyed = inner.keyed() if typing.get_origin(hint) is dict else {}
            yield from ((f"{name}.{key}", made) for key, made in keyed.items())
            if name != PARAMETERS and dataclasses.fields(inner):  # type: ignore[arg-type]
                yield name, inner


def classes(hint: Any) -> Iterator[type[Settings]]:
    """The classes of settings in a type."""
    if isinstance(hint, type) and issubclass(hint, Settings) and dataclasses.is_dataclass(hint):
        yield hint
    for argument in typing.get_args(hint):
        yield from classes(argument)
