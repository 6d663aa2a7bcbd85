"""The types of ``import fedflow``, whose names are found when they are used: ``fedflow/__init__.pyi``.

``python -m fedflow.front.stub`` writes it from the registries of methods and partition schemes.
"""

import ast
import inspect
import textwrap
import types
import typing
from pathlib import Path
from typing import Any

import fedflow
from fedflow.front.names import keywords, methods, page, scheme_function, scheme_keywords
from fedflow.front.runner import run
from fedflow.local.local_training import LocalTraining
from fedflow.partition import SCHEMES
from fedflow.settings import Settings
from fedflow.simulation.setup import RunSettings

FILE = Path(__file__).parents[1] / "__init__.pyi"
NOTE = "Written by `python -m fedflow.front.stub` from the code; do not edit by hand."
QUOTES = 3 * '"'
IMPORTS = (
    "from collections.abc import Mapping, Sequence",
    "from pathlib import Path",
    "from typing import Any, Literal",
    "from fedflow.front.inputs import Data, Division, Network",
    "from fedflow.local.local_training import LocalTraining",
    "from fedflow.partition import PartitionParams",
    "from fedflow.settings import Settings",
)


def stub() -> str:
    """The text of ``__init__.pyi``."""
    classes: dict[str, type[Settings]] = {"Training": LocalTraining, **dict(sorted(methods().items()))}
    front = vars(fedflow)["FRONT"]  # not in the stub itself
    others = {name: module for name, module in front.items() if name not in ("run", "Training")}
    lines = [
        f'"""{(fedflow.__doc__ or "").strip()}\n\n{NOTE}\n"""\n',
        *IMPORTS,
        *(f"from {module} import {name} as {name}" for name, module in others.items()),
        *(f"from {cls.__module__} import {cls.__name__} as _{name}" for name, cls in classes.items()),
        "\n__version__: str\n",
        _run(),
        *map(_scheme, SCHEMES),
        *(_class(name, cls) for name, cls in classes.items()),
    ]
    return "\n".join(lines)


def _run() -> str:
    """`run`, with the fields of `RunSettings` in place of ``**settings``."""
    function = ast.parse(textwrap.dedent(inspect.getsource(run))).body[0]
    assert isinstance(function, ast.FunctionDef)
    function.args.kwarg = None
    given = {arg.arg for arg in function.args.kwonlyargs}
    more = [row for row in keywords(RunSettings) if row["name"] not in given]
    opening = f"def run({ast.unparse(function.args)}, {_keywords(more)}) -> Result:"
    settings = page(RunSettings, more).partition("Keywords:\n")[2]
    arguments = (inspect.getdoc(run) or "").partition("Args:\n")[2].partition("\n    settings:")[0]
    return _block(opening, f"{inspect.getdoc(run)}\n\nKeywords:\n{arguments}\n{settings}")


def _scheme(name: str) -> str:
    opening = f"def {name}(*, {_keywords(scheme_keywords(name))}) -> PartitionParams:"
    return _block(opening, inspect.getdoc(scheme_function(name)) or "")


def _class(name: str, cls: type[Settings]) -> str:
    rows = keywords(cls)
    init = f"    def __init__(self{', *, ' if rows else ''}{_keywords(rows)}) -> None: ...\n"
    return _block(f"class {name}(_{name}):", page(cls, rows)).removesuffix("    ...\n") + init


def _block(opening: str, text: str) -> str:
    """A definition with a docstring: the first part of ``text``, which is the idea, and the keywords."""
    parts = text.split("\n\n")
    escaped = "\n\n".join(dict.fromkeys([parts[0], *parts[-1:]])).replace("\\", r"\\")
    body = textwrap.indent(f"{QUOTES}{escaped}\n{QUOTES}\n...\n", 4 * " ")
    return f"{opening}\n{body}"


def _keywords(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{r['name']}: {_type(r['hint'], r['choices'])}{_default(r['default'])}" for r in rows)


def _default(value: Any) -> str:
    """Plain defaults as they are; others, such as lists and settings, as "..."."""
    if isinstance(value, str) and value == "required":
        return ""
    return f" = {value!r}" if value is None or type(value) in (bool, int, float, str) else " = ..."


def _type(hint: Any, choices: tuple = ()) -> str:
    """What `fedflow.settings.check` accepts for a field of this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_type(one, choices) for one in arguments)
    if hint is types.NoneType:
        return "None"
    if (origin or hint) in (list, tuple):
        return f"Sequence[{_type(arguments[0], choices) if arguments else 'Any'}]"
    if (origin or hint) is dict:
        return f"Mapping[str, {_type(arguments[1]) if arguments else 'Any'}]"
    if isinstance(hint, type) and issubclass(hint, Settings):
        return "Settings | Mapping[str, Any]"
    if choices and hint is not type(None):
        return f"Literal[{', '.join(map(repr, choices))}]"
    return "Any" if hint is Any else hint.__name__


if __name__ == "__main__":
    FILE.write_text(stub())
