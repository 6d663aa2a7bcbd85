"""The code of classes that are not registered, from memory: a notebook has no file of it."""

from collections.abc import Iterator
from contextlib import suppress
from dis import get_instructions
from types import CodeType, FunctionType
from typing import Any

from fedflow.methods import METHODS
from fedflow.project.digest import SHORT, digest
from fedflow.simulation.loop import Simulation

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
WRAPPED = ("__func__", "func", "fget", "fset")  # the functions of class methods and properties
ASIDE = ("abc", "builtins", "fedflow", "typing")  # packages whose classes do not count


def parts_of(simulation: Simulation) -> list[type]:
    """The classes of the method, update steps and extensions of a run."""
    job, settings = simulation.job, simulation.settings
    parts = [job.method, *job.training.extensions.values(), *settings.updates, *simulation.extensions]
    return [type(part) for part in parts]


def is_own(part: Any) -> bool:
    """True for a class or function that is not one of fedflow."""
    return part.__module__.partition(".")[0] != "fedflow"


def code_of(cls: type) -> str:
    """A digest of the functions and plain values of a class and of its bases that are not registered.

    Functions and constants of their modules count if they are named. The digest is of bytecode, and the same
    in all processes of one version of Python.
    """
    bases = [base for base in cls.__mro__ if base.__module__.partition(".")[0] not in ASIDE]
    unregistered = [base for base in bases if base not in METHODS.values()]
    functions = [f for base in unregistered for member in vars(base).values() for f in _functions(member)]
    return digest([[_members(base) for base in unregistered], _helpers(functions)], SHORT)


def _members(cls: type) -> dict[str, Any]:
    """Functions and plain values by name."""
    members = {}
    for name, member in vars(cls).items():
        if functions := list(_functions(member)):
            members[name] = _form(functions)
        elif isinstance(member, PLAIN) and not name.startswith("__"):
            members[name] = _form(member)
    return members


def _functions(member: Any) -> Iterator[FunctionType]:
    """The functions of a member of a class."""
    for function in (member, *(getattr(member, name, None) for name in WRAPPED)):
        if isinstance(function, FunctionType):
            yield function


def _helpers(functions: list[FunctionType]) -> dict[str, Any]:
    """Functions and constants of a module that its ``functions`` name, also through each other."""
    helpers: dict[str, Any] = {}
    written = set[str]()  # these are no constants
    while functions:
        function, *functions = functions
        within = f"{function.__module__}."
        written |= {within + name for name in _names(function.__code__, "STORE_GLOBAL")}
        for name in _names(function.__code__, "LOAD_GLOBAL") & function.__globals__.keys():
            value = function.__globals__[name]
            helper = isinstance(value, FunctionType) and value.__module__ == function.__module__
            plain = isinstance(value, (*PLAIN, tuple)) and not name.startswith("__")
            if within + name not in helpers and (helper or plain):
                helpers[within + name] = _form(value)
                functions += [value] if helper else []
    return {name: form for name, form in helpers.items() if name not in written}


def _names(code: CodeType, operation: str) -> set[str]:
    """The global names that an operation of a function, or of the functions within it, uses."""
    names = {step.argval for step in get_instructions(code) if step.opname == operation}
    return names.union(*(_names(part, operation) for part in code.co_consts if isinstance(part, CodeType)))


def _enclosed(function: FunctionType) -> Iterator[Any]:
    """The plain values of variables around a function."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # empty
            if isinstance(cell.cell_contents, PLAIN):
                yield cell.cell_contents


def _form(value: Any) -> Any:
    """A function or a constant as plain values; of other objects, whose text has addresses, the type."""
    if isinstance(value, FunctionType):
        parts = value.__code__, value.__defaults__, value.__kwdefaults__, list(_enclosed(value))
        return [_form(part) for part in parts]
    if isinstance(value, CodeType):
        return [value.co_code.hex(), list(value.co_names), _form(value.co_consts)]
    if isinstance(value, tuple | list):
        return [_form(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _form(item) for name, item in value.items()}
    if isinstance(value, set | frozenset):  # in an order that depends on the process
        return sorted(repr(_form(item)) for item in value)
    return repr(value) if isinstance(value, PLAIN) else type(value).__qualname__
