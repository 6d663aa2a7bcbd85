"""A JSON schema of ``params.yaml`` from the settings classes, for editors that complete and check YAML."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from fedflow.choice import PARAMETERS, Choice
from fedflow.config.params import Params
from fedflow.settings import Settings, hints

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
LABEL: dict[str, Schema] = {"label": {"type": ["string", "null"]}}
BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
TYPES: dict[Any, Schema] = {
    int: {"type": "integer"},
    # YAML reads 1e-3 as text
    float: {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^[+-]?\d+(\.\d*)?[eE][+-]?\d+$"}]},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}


def params_schema() -> Schema:
    """The schema of the whole file."""
    return {"$schema": DIALECT, "title": "fedflow params.yaml", **_object(Params)}


def _settings(cls: type[Settings]) -> Schema:
    """Values that `cls.parse` accepts."""
    schema = _chosen(cls) if issubclass(cls, Choice) else _object(cls)
    schema = cls.schema(schema)
    if not cls.short:
        return schema
    alone = schema["properties"][cls.short]
    accepted = {key: alone[key] for key in ("enum", "anyOf") if key in alone} or {"type": "string"}
    return {"anyOf": [accepted, schema]}


def _object(cls: type[Settings], without: tuple[str, ...] = (), merged: bool = False) -> Schema:
    """A mapping of the fields of ``cls``; ``merged``: of some, also in the mappings within it."""
    fields = [field for field in dataclasses.fields(cls) if field.name not in without]  # type: ignore[arg-type]
    missing = dataclasses.MISSING
    required = [f.name for f in fields if f.default is missing and f.default_factory is missing]
    schema: Schema = {"type": "object"}
    schema["properties"] = {f.name: _field(hints(cls)[f.name], f, merged) for f in fields}
    schema["additionalProperties"] = False
    return schema | ({"required": required} if required and not merged else {})


def _field(hint: Any, field: dataclasses.Field, merged: bool) -> Schema:
    """One field, with its meaning and default."""
    schema, doc = _value(hint, field.metadata, merged), field.metadata.get("doc")
    default = field.default_factory() if callable(field.default_factory) else field.default
    schema = schema | ({"description": doc} if doc else {})
    plain = default is None or isinstance(default, bool | int | float | str | list | dict)
    return schema | ({"default": default} if plain else {})


def _value(hint: Any, metadata: Mapping[str, Any], merged: bool = False) -> Schema:
    """Values that `fedflow.settings.check` accepts for this type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if chosen := [cls for arm in args if (cls := _choice_of(arm))]:  # changes of entries, without a key
            return {"type": ["object", "null"], "properties": _own(*chosen)}
        return {"anyOf": [_value(arm, {} if arm is type(None) else metadata, merged) for arm in args]}
    if origin in (list, tuple):
        return {"type": "array", "items": _value(args[0], metadata) if args else {}}
    if cls := _choice_of(hint):
        return {"type": "object"} | _entries(cls)
    if origin is dict and (named := args[1].keyed() if _is_settings(args[1]) else {}):
        null = {"type": "null"}
        entries = {name: {"anyOf": [_object(c, merged=merged), null]} for name, c in named.items()}
        return {"type": "object", "properties": entries, "additionalProperties": False}
    if dict in (hint, origin):
        return {"type": "object"} | ({"additionalProperties": _value(args[1], {})} if args else {})
    if _is_settings(hint):
        return _object(hint, merged=True) if merged else _settings(hint)
    if metadata.get("choices"):
        return {"enum": list(metadata["choices"])}
    bounds = {BOUNDS[op]: bound for op, bound in metadata.get("bounds", {}).items()}
    return TYPES.get(hint, {}) | bounds


def _is_settings(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Settings)


def _choice_of(hint: Any) -> type[Choice] | None:
    """The choice that entries of this mapping make, by their names unless a key names another one."""
    cls = typing.get_args(hint)[-1] if typing.get_origin(hint) is dict else None
    return cls if isinstance(cls, type) and issubclass(cls, Choice) and not cls.needs_key() else None


def _chosen(cls: type[Choice]) -> Schema:
    """The shared fields, and the parameters of what the key names."""
    schema = _object(cls, without=(PARAMETERS,))
    schema["properties"][cls.key] |= {"enum": sorted(cls.known())}
    del schema["additionalProperties"]
    branches = []
    for name, parameters in cls.known().items():
        then = _object(parameters) if parameters else {}
        then = {key: value for key, value in then.items() if key in ("properties", "required")}
        named = {"properties": {cls.key: {"const": name}}, "required": [cls.key]}
        branches.append({"if": named, "then": then} if then else {})
    # What no branch evaluated is unknown
    return schema | {"allOf": [branch for branch in branches if branch], "unevaluatedProperties": False}


def _own(cls: type[Choice]) -> dict[str, Schema]:
    """By name of the entry: the fields of what is chosen, and its changes of shared sections."""
    changed = {name: _object(section, merged=True) for name, section in cls.overrides.items()}
    may_be_null = {"type": ["object", "null"]} if cls.holds() else {}
    entries = {name: _object(chosen) | may_be_null for name, chosen in cls.known().items() if chosen}
    for entry in entries.values():
        entry["properties"] |= changed
    return entries


def _entries(cls: type[Choice]) -> Schema:
    """Entries with the fields of what they are called, or of what the key names."""
    entries, kind = _own(cls), cls.key
    shared = {kind: {"type": "string", "enum": sorted(entries)}} | (LABEL if "label" in cls.shared() else {})
    named = {
        "type": "object",
        "required": [kind],
        "properties": shared,
        "allOf": [
            {"if": {"properties": {kind: {"const": name}}}, "then": {"properties": entry["properties"]}}
            for name, entry in entries.items()
        ],
        "unevaluatedProperties": False,
    }
    plain = {
        name: entry | {"properties": entry["properties"] | shared | {kind: {"enum": [name, None]}}}
        for name, entry in entries.items()
    }
    return {"properties": plain, "additionalProperties": named}
