"""Values of ``params.yaml`` before they are typed: read from YAML, and changed by ``--set``."""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from fedflow.config.layers import kept
from fedflow.errors import BadInput, FedflowError
from fedflow.methods.registry import method_name
from fedflow.project.yaml_text import YamlError, yaml_file, yaml_value

WORD = r'"[^"]+"|[^".]+'
SETTING = re.compile(rf"({WORD})(\.({WORD}))*")


def read_yaml(path: Path) -> Any:
    """The content of a YAML file, as `yaml_text` reads it. Raises `FedflowError` if it cannot be read."""
    if path.exists() and not path.is_file():  # a pipe would wait for a writer
        raise FedflowError(f"cannot read {path}: not a regular file")
    try:
        return yaml_file(path)
    except OSError as error:
        where = "run in the project's folder, name it with --root, or make one with `fedflow init`"
        raise FedflowError(f"cannot read {path}: {error.strerror}; {where}") from error


def changed(values: Mapping[str, Any], changes: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """``values`` after ``changes``, and the changes, both with the registered names of methods.

    A changed field of a method takes precedence over its tuned value; what it makes meaningless is dropped.
    """
    known, given = deepcopy(dict(values)), dict[str, Any]()
    changes = [_with_registered_name(change, known) for change in changes]
    for change in changes:
        set_value(known, change)
        set_value(given, change)
        _untune(known, change)
    known = with_registered_names(known)
    _drop_replaced(known, given)
    return known, changes


def with_registered_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sections of ``params.yaml`` in which methods have their registered names, also where labels were given.

    Raises `BadInput` if two entries are one method. An entry with ``method:`` keeps the name that it has.
    """
    values, entries = dict(values), values.get("methods")
    own = {name for name, entry in _section(entries).items() if "method" in _section(entry)}

    def one(name: Any) -> Any:
        return name if isinstance(name, str) and name in own else method_name(name)

    def renamed(field: str, section: Any) -> Any:
        found: dict[str, Any] = {}
        for name, entry in _section(section).items():
            if one(name) in found:
                raise BadInput(f"{field}.{name}", name, f"one entry for the method {one(name)}")
            changed = {"method": method_name(entry["method"])} if "method" in _section(entry) else {}
            found[one(name)] = {**entry, **changed} if changed else entry
        return found if isinstance(section, Mapping) else section

    if "methods" in values:
        values["methods"] = renamed("methods", entries)
    if isinstance(tuned := values.get("tuned"), Mapping):
        values["tuned"] = {place: renamed(f"tuned.{place}", entry) for place, entry in tuned.items()}
    if "methods" in (tuning := _section(values.get("tuning"))):
        values["tuning"] = {**tuning, "methods": renamed("tuning.methods", tuning["methods"])}
    if isinstance((grid := _section(values.get("grid"))).get("methods"), list):
        values["grid"] = {**grid, "methods": [one(name) for name in grid["methods"]]}
    return values


def _section(value: Any) -> Mapping[str, Any]:
    """A section, or {} for what is none: `Params` says what is wrong with it."""
    return value if isinstance(value, Mapping) else {}


def _with_registered_name(change: str, values: Mapping[str, Any]) -> str:
    """A change with the registered name of the method that it names."""
    path, sign, text = change.partition("=")
    words = [word.strip('"') for word in re.findall(WORD, path)]
    known = _section(values.get("methods"))
    for prefix, at in ((["methods"], 1), (["tuning", "methods"], 2), (["tuned"], 2)):
        if words[: len(prefix)] == prefix and len(words) > at and words[at] not in known:
            words[at] = str(method_name(words[at]))
            return ".".join(f'"{word}"' if "." in word else word for word in words) + sign + text
    return change


def set_value(values: dict, override: str) -> None:
    """Apply one ``a.b.c=value`` (value in YAML) to nested mappings, in place.

    Known names are found with their dots, as in ``partitions.my.part.alpha=1``; new ones with dots
    need quotes: ``partitions."my.part"={...}``.
    """
    name, sign, text = override.partition("=")
    if not sign or not SETTING.fullmatch(name):
        raise BadInput("--set", override, "section.field=value, for example run.rounds=5")
    try:
        value = yaml_value(text)
    except YamlError as error:
        raise BadInput("--set", override, f"a value in YAML after the = sign ({error.problem})") from None
    put(values, [word.strip('"') for word in re.findall(WORD, name)], value)


def put(values: dict, words: Sequence[str], value: Any) -> None:
    """Set one value of nested mappings, in place; missing mappings are added.

    A name, such as a network without options, gives way to a mapping; raises `BadInput` for other values.
    """
    outer: list[str] = []
    while words:
        longest = range(len(words), 0, -1)
        known = next((n for n in longest if ".".join(words[:n]) in values), 1)
        key, words = ".".join(words[:known]), words[known:]
        if not words:
            values[key] = value
        elif not isinstance(inner := values.get(key), dict):
            if inner is not None and not (isinstance(inner, str) and inner):
                raise BadInput(".".join([*outer, key]), inner, "a mapping of field names to values")
            values[key] = {}
        outer.append(key)
        values = values[key]


def _untune(values: dict, override: str) -> None:
    """Let a change of a method's field take precedence over its tuned value."""
    section, *path = override.partition("=")[0].split(".")
    if section != "methods" or len(path) < 2:
        return
    tuned = values.get("tuned")
    for place in tuned.values() if isinstance(tuned, dict) else ():
        for parent in path[:-1]:
            place = place.get(parent) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place.pop(path[-1], None)


def _drop_replaced(values: dict, given: Mapping[str, Any]) -> None:
    """Reduce every `training` and `run`, in place, to what is `kept` under the ``given`` changes."""
    for name, changes in given.items():
        if not isinstance(changes, Mapping) or not isinstance(values.get(name), dict):
            continue
        if name in ("training", "run"):
            values[name] = kept(values[name], changes)
        else:
            _drop_replaced(values[name], changes)
