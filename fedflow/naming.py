"""Names of settings in labels and tables."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

PLAIN = ("method", "training", "run")  # sections that names of fields leave out


def flat(params: Mapping[str, Any], prefix: str = "", empty: bool = False) -> dict[str, Any]:
    """Settings by dotted name; the entries of ``parameters`` are moved one level up.

    Mappings without entries are left out, unless ``empty``.
    """
    values: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping) and (value or not empty):
            values |= flat(value, prefix if name == "parameters" else f"{prefix}{name}.", empty)
        else:
            values[f"{prefix}{name}"] = value
    return values


def text(value: Any) -> str:
    """A value in one line as YAML writes it, but mappings in words: "step clip, norm 1.0; step sign"."""
    if isinstance(value, Mapping) and value:
        return ", ".join(f"{name} {text(each)}" for name, each in flat(value).items())
    if isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
        return "; ".join(map(text, value))
    return value if isinstance(value, str) else json.dumps(value)


def say(name: str, value: Any) -> str:
    """``method.clusters`` as "clusters 4", ``partition.alpha`` as "partition alpha 0.1"; {} adds no value."""
    return spoken(name) if value == {} else f"{spoken(name)} {text(value)}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 seed", "1,200 runs"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listed(words: Sequence[str]) -> str:
    """Words joined by commas and "and"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def spoken(name: str) -> str:
    """A dotted name in words."""
    section, _, rest = name.removesuffix("_hash").partition(".")
    return " ".join([*([] if section in PLAIN else [section]), *rest.split(".")]).strip()
