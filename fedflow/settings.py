"""Typed, validated, documented settings: hyperparameters, partition parameters and ``params.yaml`` alike.

A settings class lists its fields with `option`; building one from plain YAML values checks every
field and raises `BadInput` with the full name of the field and what it accepts::

    class FedProx(FedAvg):
        mu: float = option(0.01, "weight of the proximal term", symbol="mu", ge=0, source="Li et al. 2020")
"""

import dataclasses
import functools
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import numpy as np

from fedflow.errors import MISSING, BadInput, place, unknown_name

C = TypeVar("C", bound=type[Any])
OPERATORS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {  # name of a bound: its sign and its test
    "ge": (">=", operator.ge),
    "gt": (">", operator.gt),
    "le": ("<=", operator.le),
    "lt": ("<", operator.lt),
}
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")  # Python's float takes more: 1_0


def registering(table: dict[str, Any], base: type) -> Callable[[str, str], Callable[[C], C]]:
    """The decorator ``register(name, label)``: it names a class of ``base``, and adds it to ``table``."""

    def register(name: str, label: str) -> Callable[[C], C]:
        check_registrable(name)

        def add(cls: C) -> C:
            check_base(cls, base)
            if (other := table.get(name)) is not None and other.__module__ != cls.__module__:
                accepted = f"a name that {other.__module__} does not register, in {cls.__module__}"
                raise BadInput("name", name, accepted)
            cls.name, cls.label = name, label
            table[name] = cls
            return cls

        return add

    return register


def check_registrable(name: str) -> None:
    """Raise `BadInput` for a name that no folder of results or entry of params.yaml can have."""
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        raise BadInput("name", name, "letters, digits and _, beginning with a letter")


def check_base(cls: type, base: type) -> None:
    """Raise `BadInput` for a class that is registered without its base class."""
    if not issubclass(cls, base):
        raise BadInput("class", cls.__qualname__, f"a class of {base.__module__}.{base.__name__}")


def option(
    default: Any = dataclasses.MISSING,
    doc: str = "",
    *,
    symbol: str = "",
    source: str = "",
    grid: tuple = (),
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: Collection = (),
    factory: Any = None,  # a function without arguments, or a class
) -> Any:
    """A documented field: meaning, symbol, source, usual grid, and accepted values."""
    bounds = {op: bound for op, bound in zip(OPERATORS, (ge, gt, le, lt)) if bound is not None}
    metadata: dict[str, Any] = {"doc": doc, "symbol": symbol, "source": source, "grid": grid}
    metadata |= {"choices": choices, "bounds": bounds}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


# `option` is no field specifier: type checkers would take fields whose default is positional for required.
@dataclass_transform(kw_only_default=True, frozen_default=True)
class Settings:
    """Base of every settings class: a frozen, keyword-only dataclass whose values are checked.

    ``section`` prefixes a field's name in error messages; ``plural`` names the keys of mappings of such
    settings. Text in place of a mapping is the value of the field ``short``, if there is one.
    """

    section: ClassVar[str] = ""
    plural: ClassVar[str] = "names"
    short: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __new__(cls, *args: Any, **values: Any) -> Self:  # names are checked before the TypeError of __init__
        cls.check_names(values, cls.section)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        types_of = hints(type(self))
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            name = f"{self.section}.{field.name}" if self.section else field.name
            value = check(name, getattr(self, field.name), types_of[field.name], field.metadata)
            object.__setattr__(self, field.name, value)
        self.validate()

    def validate(self) -> None:
        """Check conditions on several fields; raise `BadInput`."""

    def refuse_unused(self, when: str, *names: str) -> None:
        """Raise `BadInput` for one of these fields that has another value than its default.

        ``when`` says why they have no effect, as in "with eps".
        """
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            factory, value = field.default_factory, getattr(self, field.name)
            default = field.default if factory is dataclasses.MISSING else factory()
            if field.name in names and value != default:
                name = f"{self.section}.{field.name}" if self.section else field.name
                raise BadInput(name, value, f"{written(default)}, its default, {when}")

    @classmethod
    def parse(cls, values: Mapping[str, Any], section: str | None = None) -> Self:
        """Build from plain values, e.g. a YAML mapping. Unknown and missing fields raise `BadInput`."""
        section = cls.section if section is None else section
        dot = f"{section}." if section else ""
        values = {cls.short: values} if cls.short and isinstance(values, str) else values
        if not isinstance(values, Mapping):
            raise BadInput(section or "params", values, "a mapping of field names to values")
        cls.check_names(values, section)
        fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for name, field in fields.items():
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if required and name not in values:
                doc = field.metadata.get("doc")
                accepted = describe(hints(cls)[name], field.metadata)
                raise BadInput(f"{dot}{name}", MISSING, f"{accepted} ({doc})" if doc else accepted)
        try:
            return cls(**values)
        except BadInput as error:  # name the field as the user does
            if section == cls.section:
                raise
            name = error.field.removeprefix(f"{cls.section}.")
            raise error.renamed(f"{dot}{name}") from None

    @classmethod
    def check_names(cls, values: Mapping[str, Any], section: str) -> None:
        """Raise `BadInput` for a name that is not a field."""
        fields = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in values:
            if name not in fields:
                full = f"{section}.{name}" if section else name
                raise unknown_name(full, name, fields, elsewhere=place(name))

    @classmethod
    def keyed(cls) -> Mapping[str, type["Settings"]]:
        """The classes by key, if the key of an entry in a mapping of such settings chooses its class."""
        return {}

    @classmethod
    def schema(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """The JSON schema of values that `parse` accepts, from the schema of the ``fields``."""
        return fields

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for YAML, JSON or a record."""
        return dataclasses.asdict(self)  # type: ignore[call-overload]


class Words(str):
    """Text that `BadInput` prints without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def shown(value: Any) -> Any:
    """``value`` for an error, with nested settings as "a mapping"."""
    return Words("a mapping") if isinstance(value, Settings) else value


_HINTS: dict[type, Mapping[str, Any]] = {}


def hints(cls: type) -> Mapping[str, Any]:
    """Types of the fields by name, evaluated once per class."""
    if cls not in _HINTS:
        _HINTS[cls] = types.MappingProxyType(typing.get_type_hints(cls))
    return _HINTS[cls]


def check(name: str, value: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
    """``value`` converted to ``hint``, with plain numbers for NumPy's; `BadInput` if it is not accepted."""
    value = _plain(value)
    accepted = functools.partial(describe, hint, metadata)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        errors: list[BadInput] = []
        for arm in (arm for arm in args if arm is not type(None)):
            try:
                return check(name, value, arm, metadata)
            except BadInput as error:
                errors.append(error)
        last = errors[-1]
        raise last if last.field.startswith(f"{name}.") else BadInput(name, last.value, accepted())
    if origin in (tuple, list):
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise BadInput(name, value, accepted())
        item = args[0] if args else Any
        return origin(check(f"{name}[{i}]", v, item, metadata) for i, v in enumerate(value))
    if dict in (hint, origin):
        if not isinstance(value, Mapping):
            raise BadInput(name, value, accepted() if args else f"{accepted()} of names (text) to values")
        for key in value:
            if not isinstance(key, str):
                raise BadInput(name, key, "names that are text")
        if not args:
            return dict(value)
        return {key: check(f"{name}.{key}", item, args[1], {}) for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, Settings):
        return value if isinstance(value, hint) else hint.parse(value, section=name)
    if hint is float and type(value) in (int, str):
        if isinstance(value, str) and not NUMBER.fullmatch(value):
            raise BadInput(name, value, accepted())
        try:
            value = float(value)  # YAML reads 1e-3 as text
        except OverflowError:
            raise BadInput(name, value, accepted()) from None
    if hint in (int, float, str, bool) and (
        type(value) is not hint or (hint is float and not math.isfinite(value))
    ):
        raise BadInput(name, value, accepted())
    if isinstance(value, str) and "\0" in value:
        raise BadInput(name, value, "text without null bytes")
    if metadata.get("choices") and value not in metadata["choices"]:
        raise unknown_name(name, value, map(str, metadata["choices"]))
    if not all(OPERATORS[op][1](value, bound) for op, bound in metadata.get("bounds", {}).items()):
        raise BadInput(name, value, accepted())
    return value


def _plain(value: Any) -> Any:
    """The value with plain numbers in place of NumPy's, also within lists and mappings."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    return value


def describe(hint: Any, metadata: Mapping[str, Any]) -> str:
    """The values that a field accepts, in words: 'a number >= 0', 'one of single, complete'."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if metadata.get("choices") and origin in (list, tuple):
        return f"a list, each item {describe(args[0], metadata)}"
    if metadata.get("choices"):
        return "one of " + ", ".join(map(str, metadata["choices"]))
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if arm is type(None) else describe(arm, metadata) for arm in args)
    if origin in (tuple, list):
        return f"a list, each item {describe(args[0], metadata) if args else 'any value'}"
    if origin is dict:
        return f"a mapping of {getattr(args[1], 'plural', 'names')} to their settings"
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "a mapping"}
    bounds = " and ".join(f"{OPERATORS[op][0]} {bound:g}" for op, bound in metadata.get("bounds", {}).items())
    is_settings = isinstance(hint, type) and issubclass(hint, Settings)
    base = "a mapping" if is_settings else words.get(origin or hint, "a value")
    return f"{base} {bounds}".rstrip()


def explain(cls: type[Settings]) -> list[dict[str, Any]]:
    """A row per field for help pages: name, symbol, default, accepted values, meaning, source, grid."""
    rows = []
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        default = field.default_factory() if callable(field.default_factory) else field.default
        row = {
            "name": field.name,
            "default": "required" if default is dataclasses.MISSING else default,
            "accepts": describe(hints(cls)[field.name], field.metadata),
        }
        meta = {"symbol": "", "doc": "", "source": "", "grid": (), **field.metadata}
        rows.append(row | {name: meta[name] for name in ("symbol", "doc", "source", "grid")})
    return rows


def written(value: Any) -> str:
    """A default as it is written in params.yaml: null, true, false or a mapping; else as in Python."""
    if isinstance(value, Settings):
        return f"{{{', '.join(f'{name}: {written(inner)}' for name, inner in value.as_dict().items())}}}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def markdown(options: list[dict[str, Any]]) -> list[str]:
    """The rows of `explain` as the lines of a Markdown table, without empty columns."""
    rows = [
        {
            "field": f"`{row['name']}`",
            "symbol": row["symbol"],
            "default": f"`{written(row['default'])}`",
            "accepts": row["accepts"],
            "meaning": row["doc"],
            "source": row["source"],
            "grid": ", ".join(map(written, row["grid"])),
        }
        for row in options
    ]
    columns = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
    if not columns:
        return []
    lines = [" | ".join(str(row[name]).replace("|", "\\|") for name in columns) for row in rows]
    return [f"| {line} |" for line in (" | ".join(columns), "|".join("---" for _ in columns), *lines)]
