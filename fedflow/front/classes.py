"""The code of the user's own classes, from memory: a notebook has no file of it."""

import hashlib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from dis import get_instructions
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedflow.plugins import plugins
from fedflow.project.digest import SHORT, digest
from fedflow.simulation.loop import Simulation
from fedflow.simulation.worker import INSTALLED

NUMBERS = (bool, int, float, complex, np.generic)
KINDS = (np.dtype, torch.dtype, torch.device)
PLAIN = (*NUMBERS, *KINDS, str, bytes, type(None), type(...), range, PurePath)  # their text is their value
CODE = (FunctionType, type, ModuleType)
WRAPPED = ("__func__", "__self__", "__wrapped__", "__name__", "func", "args", "keywords", "fget", "fset")
CHANGES = {*"append extend insert add update setdefault pop popitem remove discard clear sort".split()}
ATTRIBUTES, ENTRIES = ("LOAD_ATTR", "LOAD_METHOD"), ("STORE_SUBSCR", "DELETE_SUBSCR")
LOADS = ("LOAD_GLOBAL", "LOAD_DEREF", *ATTRIBUTES)
SITES = {"site-packages", "dist-packages"}
STARTS = ("__init__", "__post_init__")  # functions whose attributes are settings


def parts_of(simulation: Simulation) -> list[type]:
    """The classes of the method, update steps and extensions of a run."""
    job, settings = simulation.job, simulation.settings
    parts = [job.method, *job.training.extensions.values(), *settings.updates, *simulation.extensions]
    return [type(part) for part in parts]


def is_own(part: Any) -> bool:
    """True for a class or function that is not one of fedflow."""
    return part.__module__.partition(".")[0] != "fedflow"


def codes(parts: Iterable[Any]) -> dict[str, str]:
    """The setting ``code`` of a section with these objects, if the classes of some are not of fedflow."""
    classes = [kind for kind in map(type, parts) if is_own(kind)]
    return {"code": code_of(*classes)} if classes else {}


def code_of(*parts: Any) -> str:
    """A digest of own classes, functions or objects, and of own code and constants that they name.

    Own is code of notebooks, scripts and plug-ins, in contrast to code of fedflow and installed packages.
    Values that a function writes or may change do not count: they differ from run to run. The digest is of
    bytecode, and the same in all processes of one version of Python.
    """
    every = _Reader()
    every.read(parts)
    codes = [part for code in every.codes for part in _within(code)]
    reader = _Reader(*({name for code in codes for name in names(code)} for names in (_written, _changed)))
    return digest(reader.read(parts), SHORT)


class _Reader:
    """Forms of values without the names that are ``written``, and without containers that are ``changed``.

    ``codes`` are of the functions that were read.
    """

    def __init__(self, written: Collection[str] = (), changed: Collection[str] = ()) -> None:
        self.written, self.changed, self.codes = written, changed, list[CodeType]()
        self._read: list[FunctionType | type] = []
        self._numbers: dict[int, int] = {}  # of these, by their identity
        self._open = set[int]()  # containers and objects, which may hold themselves

    def read(self, parts: Sequence[Any]) -> list[Any]:
        """The forms of ``parts``, then of the classes and functions to which they lead."""
        forms = [self.form(part) for part in parts]
        for value in self._read:  # which grows
            forms.append(self._class(value) if isinstance(value, type) else self._function(value))
        return forms

    def form(self, value: Any) -> Any:
        """A value as plain ones; of objects of libraries, whose text has addresses, the type."""
        if isinstance(value, PLAIN):
            return repr(value)
        if isinstance(value, np.ndarray | Tensor):
            return _content(value)
        if isinstance(value, CodeType):
            return [value.co_code.hex(), list(value.co_names), self.form(value.co_consts)]
        if isinstance(value, FunctionType | type):
            return self._number(value) if is_written_here(value) else _title(value)
        if id(value) in self._open:
            return "again"
        self._open.add(id(value))
        form = self._parts(value)
        self._open.remove(id(value))
        return form

    def _number(self, value: FunctionType | type) -> int:
        """The number of a class or function, which is read once."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._read)
            self._read.append(value)
        return self._numbers[id(value)]

    def _class(self, cls: type) -> Any:
        functions = (FunctionType, classmethod, staticmethod)
        members = {k: v for k, v in vars(cls).items() if not k.startswith("__") or isinstance(v, functions)}
        if members.get("name") == cls.__name__:  # a run gives methods their name
            del members["name"]
        return [self._named(members), [self.form(base) for base in cls.__bases__]]

    def _function(self, function: FunctionType) -> Any:
        self.codes.append(function.__code__)
        parts = function.__code__, function.__defaults__, function.__kwdefaults__
        named = [_enclosed(function), _globals(function)]
        return [*map(self.form, parts), *map(self._named, named)]

    def _parts(self, value: Any) -> Any:
        """A container, a function in another form, a dataclass or an object of an own class by its parts."""
        if isinstance(value, tuple | list):
            return [self.form(item) for item in value]
        if isinstance(value, dict):
            return {str(name): self.form(item) for name, item in value.items()}
        if isinstance(value, set | frozenset):  # in an order that depends on the process
            return sorted(repr(self.form(item)) for item in value)
        if isinstance(value, ModuleType):
            return value.__name__
        if type(value).__module__ in ("builtins", "functools"):
            return [_title(type(value)), {k: self.form(getattr(value, k, None)) for k in WRAPPED}]
        if not (is_written_here(type(value)) or is_dataclass(value)):
            return _title(type(value))
        attributes = {k: v for k, v in getattr(value, "__dict__", {}).items() if k not in vars(nn.Module())}
        return [self.form(type(value)), self._named(attributes)]

    def _named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.form(value) for name, value in values.items() if not self._varies(name, value)}

    def _varies(self, name: str, value: Any) -> bool:
        """True for a value that functions write, or a container that they may change."""
        if isinstance(value, CODE):
            return False
        return name in self.written or (name in self.changed and not isinstance(value, (*PLAIN, tuple)))


def is_written_here(part: Any) -> bool:
    """True for a class, function or module of a notebook, a script, a project's folder, or a plug-in."""
    name = part.__name__ if isinstance(part, ModuleType) else part.__module__
    top = (name or "builtins").partition(".")[0]
    module = sys.modules.get(top)
    paths = [*getattr(module, "__path__", ()), getattr(module, "__file__", None) or ""]
    return top == "__main__" or _is_own_package(top, paths[0])


@cache
def _is_own_package(top: str, path: str) -> bool:
    if top in ("fedflow", "torch", *sys.builtin_module_names):
        return False
    file = Path(path)
    installed = any(file.is_relative_to(folder) for folder in INSTALLED) or not SITES.isdisjoint(file.parts)
    return not installed or top in plugins()


def _title(part: Any) -> str:
    return f"{part.__module__}.{part.__qualname__}"


def _content(values: Any) -> Any:
    """Type, shape and a digest of the values of an array or tensor."""
    with suppress(RuntimeError, TypeError):  # sparse tensors
        data = values
        if isinstance(values, Tensor):
            data = values.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy()
        content = str(data.tolist()).encode() if data.dtype.hasobject else data.tobytes()
        return [str(values.dtype), list(values.shape), hashlib.blake2b(content, digest_size=8).hexdigest()]
    return _title(type(values))


def _enclosed(function: FunctionType) -> dict[str, Any]:
    """The variables around a function."""
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with suppress(ValueError):  # empty
            values[name] = cell.cell_contents
    return values


def _globals(function: FunctionType) -> dict[str, Any]:
    """The globals that a function names, and what it may name of the user's modules."""
    there, code = function.__globals__, function.__code__
    steps = [step for part in _within(code) for step in get_instructions(part)]
    named = {step.argval for step in steps if step.opname == "LOAD_GLOBAL"} & there.keys()
    values = {name: there[name] for name in sorted(named) if not name.startswith("__")}
    attributes = sorted({step.argval for step in steps if step.opname in ATTRIBUTES})
    for name, module in list(values.items()):
        if isinstance(module, ModuleType) and is_written_here(module):
            held = vars(module)
            values |= {f"{name}.{part}": held[part] for part in attributes if part in held}
    return values


def _within(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of the functions within it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _within(part)


def _written(code: CodeType) -> Iterator[str]:
    """The globals, variables around it and attributes that a function assigns, except in `STARTS`."""
    for step in get_instructions(code):
        around = step.opname == "STORE_DEREF" and step.argval in code.co_freevars
        attribute = step.opname == "STORE_ATTR" and code.co_name not in STARTS
        if around or attribute or step.opname == "STORE_GLOBAL":
            yield step.argval


def _changed(code: CodeType) -> Iterator[str]:
    """The names of values that a function may change in place: all that it loads, if it assigns an entry."""
    steps = list(get_instructions(code))
    loaded = [step.argval for step in steps if step.opname in LOADS]
    for before, step in pairwise(steps):
        changes = step.opname in ATTRIBUTES and (step.argval in CHANGES or step.argval.endswith("_"))
        if step.opname in ENTRIES or (changes and before.opname.startswith("BINARY")):
            yield from loaded
        elif changes and before.opname in LOADS:
            yield before.argval
