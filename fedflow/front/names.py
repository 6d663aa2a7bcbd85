"""The names of ``import fedflow as ff``: imports of ``fedflow/__init__.pyi``, and registered classes.

A plug-in adds its methods, steps of updates and schemes: `ff.Halfway`, `ff.in_order`.
"""

import ast
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import fedflow
from fedflow.errors import unknown_name
from fedflow.plugins import Loading

STUB = Path(__file__).parents[1] / "__init__.pyi"
# What imports `fedflow.methods`.
ABOVE = ("fedflow.devices", "fedflow.front", "fedflow.simulation", "fedflow.tracking")
LIGHT = (  # but these do not
    "fedflow.simulation.extensions.extension",
    "fedflow.simulation.outcome",
    "fedflow.simulation.updates",
)
FRAMES = 3  # from a warning to the line that uses the name
# Old name -> the new name, and the minor version in which the old one still works, with a warning.
RENAMED: dict[str, tuple[str, str]] = {}


@cache
def exported() -> dict[str, tuple[str, str]]:
    """Public name -> the module that it is imported from, and its name there.

    As type checkers read a stub: ``from module import name as name``, and ``name = other`` for an import.
    """
    imported, public = {}, {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                imported[alias.asname or alias.name] = (node.module or "", alias.name)
                if alias.asname == alias.name:
                    public[alias.name] = imported[alias.name]
        elif isinstance(node, ast.Assign):
            public |= {ast.unparse(name): imported[ast.unparse(node.value)] for name in node.targets}
    return public


def known() -> list[str]:
    """All names that `lookup` finds, except old ones."""
    return [*dict.fromkeys([*exported(), *_methods(), *_steps(), *_schemes()])]


def lookup(name: str) -> Any:
    """The object of this public name. Raises AttributeError."""
    if name in RENAMED:
        name = _renamed(name, *RENAMED[name])
    if name in exported():
        module, inner = exported()[name]
        _check_time(name, module)
        if name == "Training" and not Loading.now:
            import_module("fedflow.simulation.settings")  # registers all keys of `training.extensions`
        value = _imported(module, inner)
    elif name in (classes := _methods() | _steps()):
        value = classes[name]
    elif name in _schemes():
        _check_time(name, "fedflow.front.schemes")
        from fedflow.front.schemes import scheme_function

        value = scheme_function(name)
    else:
        raise AttributeError(str(unknown_name("fedflow", name, known(), "dir(fedflow)")))
    return _with_page(value)


def _renamed(old: str, new: str, version: str) -> str:
    """The new name, with a warning in ``version`` and an error in later minor versions."""
    now, then = (tuple(map(int, text.split(".")[:2])) for text in (fedflow.__version__, version))
    if now > then:
        raise AttributeError(f"fedflow.{old} is now fedflow.{new}")
    message = f"fedflow.{old} is now fedflow.{new}; fedflow {then[0]}.{then[1] + 1} refuses the old name"
    warnings.warn(message, DeprecationWarning, stacklevel=FRAMES + 1)
    return new


def _check_time(public: str, module: str) -> None:
    """Refuse a name while plug-ins are imported if its module may be half imported then."""
    if Loading.now and module.startswith(ABOVE) and not module.startswith(LIGHT):
        when = "once plug-ins are imported: use it within a function"
        raise AttributeError(f"fedflow.{public} is there {when}")


def _imported(module: str, name: str) -> Any:
    """``from module import name``: a name within the module, or a module below it."""
    package = import_module(module)
    return getattr(package, name) if name in vars(package) else import_module(f"{module}.{name}")


def _methods() -> dict[str, Any]:
    """All registered methods, by the names of their classes."""
    return {cls.__name__: cls for cls in import_module("fedflow.methods").METHODS.values()}


def _steps() -> dict[str, Any]:
    """All registered steps of updates, by the names of their classes."""
    return {cls.__name__: cls for cls in import_module("fedflow.simulation.updates").STEPS.values()}


def _schemes() -> dict[str, Any]:
    """All registered schemes."""
    return dict(import_module("fedflow.partition").SCHEMES)


def _with_page(value: Any) -> Any:
    """A settings class with its page as docstring, in place of the signature of the dataclass."""
    if isinstance(value, type) and (value.__doc__ or "").startswith(f"{value.__name__}("):
        from fedflow.front.pages import keywords, page
        from fedflow.settings import Settings

        if issubclass(value, Settings):
            value.__doc__ = page(value, keywords(value))
    return value
