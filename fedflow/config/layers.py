"""Changes that are laid over one another, the later over the earlier, and then typed once."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from fedflow.choice import Choice
from fedflow.errors import BadInput
from fedflow.settings import Settings

S = TypeVar("S", bound=Settings)
Layer = tuple[str, Mapping[str, Any]]  # the section with the changes, and the changes


def typed(cls: type[S], layers: Sequence[Layer]) -> S:
    """The settings of all layers; a later value replaces an earlier one, also if it is a mapping.

    An error names the field in the layer that has it.
    """
    values: dict[str, Any] = {}
    for _, changes in layers:
        values |= changes
    return _parsed(cls, values, layers)


def changed_by(settings: S, layers: Sequence[Layer]) -> S:
    """``settings`` after all layers; of a mapping in both, only the named fields change.

    Values that do not change keep their types: they are not parsed again.
    """
    values = _fields(settings)
    for _, changes in layers:
        values = merged(kept(values, changes), changes)
    return _parsed(type(settings), values, layers) if layers else settings


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` after ``changes``; of a mapping in both, only the named fields change."""
    nested = {}
    for name, new in changes.items():
        old = values.get(name)
        if isinstance(old, Settings) and not isinstance(old, Choice):
            old = _fields(old)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            nested[name] = merged(old, new)
    return {**values, **changes, **nested}


def kept(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Values of `training` or `run` without those that ``changes`` of other fields make meaningless."""
    replaced = {"epochs"} if changes.get("steps") is not None else set()
    if changes.get("sampling", "easy_first") != "easy_first":
        replaced.add("client_curriculum")
    return {name: value for name, value in values.items() if name not in replaced - changes.keys()}


def _fields(settings: Settings) -> dict[str, Any]:
    """The typed values of the fields."""
    return {field.name: getattr(settings, field.name) for field in fields(settings)}  # type: ignore[arg-type]


def _parsed(cls: type[S], values: Mapping[str, Any], layers: Sequence[Layer]) -> S:
    try:
        return cls.parse(values, section="")
    except BadInput as error:
        words = error.field.partition("[")[0].split(".")
        # the last of the layers that give most of the path to the field
        section, _ = max(reversed(layers), key=lambda layer: _depth(layer[1], words))
        raise error.renamed(f"{section}.{error.field}") from None


def _depth(changes: Any, words: Sequence[str]) -> int:
    """The number of words of the path to a field that are in these nested changes."""
    depth = 0
    for word in words:
        if not isinstance(changes, Mapping) or word not in changes:
            break
        changes, depth = changes[word], depth + 1
    return depth
