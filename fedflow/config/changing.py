"""Values of ``params.yaml`` before they are typed: read from YAML, and changed by ``--set``."""

import re
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from fedflow.config.layers import kept
from fedflow.errors import BadInput, FedflowError
from fedflow.methods.registry import method_name
from fedflow.project.yaml_text import YamlError, yaml_file, yaml_value

WORD = r'"[^"]+"|[^".]+'
NAMED = 6  # dropped fields that a warning names
SETTING = re.compile(rf"({WORD})(\.({WORD}))*")


def read_yaml(path: Path) -> Any:
    """The content of a YAML file. Raises `FedflowError` if it cannot be read."""
    if path.exists() and not path.is_file():  # a pipe would wait for a writer
        raise FedflowError(f"cannot read {path}: not a regular file")
    try:
        return yaml_file(path)
    except OSError as error:
        where = "run in the project's folder, name it with --root, or make one with `fedflow init`"
        raise FedflowError(f"cannot read {path}: {error.strerror}; {where}") from error


def changed(values: Mapping[str, Any], changes: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """``values`` after ``changes``, and the changes, both with the registered names of methods.

    A changed field of a method takes precedence over its tuned value; fields that it replaces are dropped.
    """
    result, given = deepcopy(dict(values)), dict[str, Any]()
    changes = [_with_registered_name(change, result) for change in changes]
    for change in changes:
        set_value(result, change)
        set_value(given, change)
        _untune(result, change)
    result = with_registered_names(result)
    _drop_replaced(result, given)
    return result, changes


def with_registered_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sections of ``params.yaml`` with the registered names of methods in place of labels.

    Raises `BadInput` if two entries are one method. An entry with ``method:`` keeps its name.
    """
    values, entries = dict(values), values.get("methods")
    variants = {name for name, entry in _section(entries).items() if "method" in _section(entry)}

    def registered(name: Any) -> Any:
        return name if isinstance(name, str) and name in variants else method_name(name)

    def renamed(field: str, section: Any) -> Any:
        result: dict[str, Any] = {}
        for name, entry in _section(section).items():
            if (new := registered(name)) in result:
                raise BadInput(f"{field}.{name}", name, f"one entry for the method {new}")
            named = "method" in _section(entry)
            result[new] = {**entry, "method": method_name(entry["method"])} if named else entry
        return result if isinstance(section, Mapping) else section

    if "methods" in values:
        values["methods"] = renamed("methods", entries)
    if isinstance(tuned := values.get("tuned"), Mapping):
        values["tuned"] = {name: renamed(f"tuned.{name}", entry) for name, entry in tuned.items()}
    if "methods" in (tuning := _section(values.get("tuning"))):
        values["tuning"] = {**tuning, "methods": renamed("tuning.methods", tuning["methods"])}
    if isinstance((grid := _section(values.get("grid"))).get("methods"), list):
        values["grid"] = {**grid, "methods": [registered(name) for name in grid["methods"]]}
    return values


def _section(value: Any) -> Mapping[str, Any]:
    """A section, or {} for other values, which `Params` refuses."""
    return value if isinstance(value, Mapping) else {}


def _with_registered_name(change: str, values: Mapping[str, Any]) -> str:
    """A change with the registered name of the method that it names."""
    path, sign, text = change.partition("=")
    words = [word.strip('"') for word in re.findall(WORD, path)]
    entries = _section(values.get("methods"))
    for prefix, at in ((["methods"], 1), (["tuning", "methods"], 2), (["tuned"], 2)):
        if words[: len(prefix)] == prefix and len(words) > at and words[at] not in entries:
            words[at] = str(method_name(words[at]))
            return ".".join(f'"{word}"' if "." in word else word for word in words) + sign + text
    return change


def set_value(values: dict, override: str) -> None:
    """Apply one ``a.b.c=value`` (value in YAML) to nested mappings, in place.

    Existing names may have dots, as in ``partitions.my.part.alpha=1``; new names with dots need quotes:
    ``partitions."my.part"={...}``. Warns of fields that a new mapping drops.
    """
    name, sign, text = override.partition("=")
    if not sign or not SETTING.fullmatch(name):
        raise BadInput("--set", override, "section.field=value, for example run.rounds=5")
    try:
        value = yaml_value(text)
    except YamlError as error:
        raise BadInput("--set", override, f"a value in YAML after the = sign ({error.problem})") from None
    before = put(values, [word.strip('"') for word in re.findall(WORD, name)], value)
    if isinstance(value, Mapping) and (dropped := [str(f) for f in _section(before) if f not in value]):
        what = ", ".join(dropped) if len(dropped) <= NAMED else f"{len(dropped)} entries"
        keeping = f"--set {name}.FIELD=VALUE changes one field"
        warnings.warn(f"--set {name}: the new value drops {what}; {keeping}", stacklevel=2)


def put(values: dict, words: Sequence[str], value: Any) -> Any:
    """Set one value of nested mappings, in place, and return the one before; missing mappings are added.

    The name of a network without options becomes a mapping with this name, other text gives way to a mapping;
    raises `BadInput` for other values.
    """
    outer: list[str] = []
    while words:
        count = next((n for n in range(len(words), 0, -1) if ".".join(words[:n]) in values), 1)
        key, words = ".".join(words[:count]), words[count:]
        if not words:
            before, values[key] = values.get(key), value
            return before
        if not isinstance(inner := values.get(key), dict):
            if inner is not None and not (isinstance(inner, str) and inner):
                raise BadInput(".".join([*outer, key]), inner, "a mapping of field names to values")
            values[key] = {"name": inner} if inner and outer == ["models"] else {}
        outer.append(key)
        values = values[key]


def _untune(values: dict, override: str) -> None:
    """Let a change of a method's fields take precedence over their tuned values."""
    name, _, text = override.partition("=")
    section, *path = (word.strip('"') for word in re.findall(WORD, name))
    if section != "methods":
        return
    paths = [path]
    if len(path) < 2:  # a whole entry, or all
        entries = {path[0]: yaml_value(text)} if path else yaml_value(text)
        paths = [[method, field] for method, entry in _section(entries).items() for field in _section(entry)]
    for partition in _section(values.get("tuned")).values():
        for *parents, field in paths:
            entry = partition
            for parent in parents:
                entry = _section(entry).get(parent)
            if isinstance(entry, dict):
                entry.pop(field, None)
                if parents[-1:] in (["training"], ["run"]):
                    for other in entry.keys() - kept(entry, {field: yaml_value(text)}).keys():
                        del entry[other]


def _drop_replaced(values: dict, given: Mapping[str, Any]) -> None:
    """Reduce every `training` and `run`, in place, to the values that are `kept` under the given changes."""
    for name, changes in given.items():
        if not isinstance(changes, Mapping) or not isinstance(values.get(name), dict):
            continue
        if name in ("training", "run"):
            values[name] = kept(values[name], changes)
        else:
            _drop_replaced(values[name], changes)
