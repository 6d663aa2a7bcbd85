"""A JSON schema of ``params.yaml`` from the settings classes, for editors that complete and check YAML."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from fedflow.config import ModelParams, Params
from fedflow.data import SOURCES, DatasetParams
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS
from fedflow.methods.fairness._weighing import HOSTS, Host
from fedflow.models import ARCHITECTURES, known_options
from fedflow.partition import SCHEMES, PartitionParams
from fedflow.procedures import PROCEDURES
from fedflow.procedures.distillation import METHODS as TEACHING
from fedflow.procedures.distillation import Method as Teaching
from fedflow.procedures.online import LEARNERS, Learner
from fedflow.settings import Settings, hints
from fedflow.simulation.setup import RunSettings

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
NAMED: dict[Any, tuple[str, Mapping[str, type[Settings]]]] = {  # the field that names one of them
    Learner: ("learner", LEARNERS),
    Teaching: ("method", TEACHING),
}


def params_schema() -> Schema:
    """The schema of the whole file."""
    return {"$schema": DIALECT, "title": "fedflow params.yaml", **_settings(Params)}


def _settings(cls: type[Settings]) -> Schema:
    """What `cls.parse` accepts."""
    if cls is DatasetParams:
        own = {name: source.options for name, source in SOURCES.items()}
        return _chosen(cls, "source", own)
    if cls is PartitionParams:
        return _chosen(cls, "scheme", dict(SCHEMES))
    if cls is Host:
        return _chosen(cls, "name", {name: METHODS[name] for name in HOSTS})
    if cls is ModelParams:
        return _model()
    if cls is Params:
        return _params()
    return _object(cls)


def _object(
    cls: type[Settings], without: tuple[str, ...] = (), partial: bool = False, merged: bool = False
) -> Schema:
    """A mapping of the fields of ``cls``; ``partial``: of some; ``merged``: also the mappings within it."""
    fields = [field for field in dataclasses.fields(cls) if field.name not in without]  # type: ignore[arg-type]
    missing = dataclasses.MISSING
    required = [f.name for f in fields if f.default is missing and f.default_factory is missing]
    schema: Schema = {"type": "object"}
    schema["properties"] = {f.name: _field(hints(cls)[f.name], f, merged) for f in fields}
    schema["additionalProperties"] = False
    return schema | ({"required": required} if required and not (partial or merged) else {})


def _field(hint: Any, field: dataclasses.Field, merged: bool) -> Schema:
    """One field, with its meaning and default."""
    schema, about = _value(hint, field.metadata, merged), field.metadata.get("doc")
    default = field.default_factory() if callable(field.default_factory) else field.default
    schema = schema | ({"description": about} if about else {})
    plain = default is None or isinstance(default, bool | int | float | str | list | dict)
    return schema | ({"default": default} if plain else {})


def _value(hint: Any, metadata: Mapping[str, Any], merged: bool = False) -> Schema:
    """What `fedflow.settings.check` accepts for this type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_value(arm, {} if arm is type(None) else metadata, merged) for arm in args]}
    if origin in (list, tuple):
        return {"type": "array", "items": _value(args[0], metadata) if args else {}}
    if chosen := [NAMED[arg] for arg in args if dict in (hint, origin) and arg in NAMED]:
        ((choice, known),) = chosen
        return {"type": "object"} | _entries(choice, {name: _object(own) for name, own in known.items()}, {})
    if dict in (hint, origin):
        return {"type": "object"} | ({"additionalProperties": _value(args[1], {})} if args else {})
    if isinstance(hint, type) and issubclass(hint, Settings):
        return _object(hint, merged=True) if merged else _settings(hint)
    if metadata.get("choices"):
        return {"enum": list(metadata["choices"])}
    bounds = {BOUNDS[op]: bound for op, bound in metadata.get("bounds", {}).items()}
    return TYPES.get(hint, {}) | bounds


def _chosen(cls: type[Settings], choice: str, own: Mapping[str, type[Settings] | None]) -> Schema:
    """The shared fields, and beside them the parameters of what ``choice`` names: ``own`` by name."""
    schema = _object(cls, without=("parameters",))
    schema["properties"][choice] |= {"enum": sorted(own)}
    del schema["additionalProperties"]
    branches = []
    for name, parameters in own.items():
        then = _object(parameters) if parameters else {}
        then = {key: value for key, value in then.items() if key in ("properties", "required")}
        named = {"properties": {choice: {"const": name}}, "required": [choice]}
        branches.append({"if": named, "then": then} if then else {})
    # What no branch evaluated is unknown
    return schema | {"allOf": [branch for branch in branches if branch], "unevaluatedProperties": False}


def _model() -> Schema:
    """The name of an architecture, or a mapping with its options."""
    names = sorted(ARCHITECTURES)
    known = {name: [*known_options(name), "trainable"] for name in names}
    by_name = [
        {
            "if": {"properties": {"name": {"const": name}}},
            "then": {"properties": {"options": {"propertyNames": {"enum": known[name]}}}},
        }
        for name in names
    ]
    schema = _object(ModelParams)
    schema["properties"]["name"] |= {"enum": names}
    about = "patterns of the parameters that are trained; the others are frozen; default: all are trained"
    schema["properties"]["trainable"] = _value(list[str], {}) | {"description": about}
    return {"anyOf": [{"enum": names}, schema | {"allOf": by_name}]}


def _params() -> Schema:
    """The whole file."""
    schema = _object(Params)
    sections = {"training": _object(LocalTraining, merged=True), "run": _object(RunSettings, merged=True)}
    methods, tuned = schema["properties"]["methods"], schema["properties"]["tuned"]
    own = {name: _object(cls, partial=True) | {"type": ["object", "null"]} for name, cls in METHODS.items()}
    for entry in own.values():
        entry["properties"] |= sections
    methods |= _entries("method", own, LABEL)
    tuned["additionalProperties"] = {"type": ["object", "null"], "properties": own}
    procedures = {name: _object(cls) | {"type": ["object", "null"]} for name, cls in PROCEDURES.items()}
    schema["properties"]["procedures"] |= _entries("procedure", procedures, LABEL)
    return schema


def _entries(kind: str, own: Mapping[str, Schema], more: Mapping[str, Schema]) -> Schema:
    """Entries with ``more`` and the fields of what they are called, or of what ``kind`` names."""
    shared = {kind: {"type": "string", "enum": sorted(own)}, **more}
    named = {
        "type": "object",
        "required": [kind],
        "properties": shared,
        "allOf": [
            {"if": {"properties": {kind: {"const": name}}}, "then": {"properties": entry["properties"]}}
            for name, entry in own.items()
        ],
        "unevaluatedProperties": False,
    }
    plain = {
        name: entry | {"properties": entry["properties"] | shared | {kind: {"enum": [name, None]}}}
        for name, entry in own.items()
    }
    return {"properties": plain, "additionalProperties": named}
